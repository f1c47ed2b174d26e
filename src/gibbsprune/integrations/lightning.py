"""Gibbs pruning as a Lightning callback, for ``lightning`` and ``pytorch_lightning``.

::

    trainer = Trainer(max_epochs=90, callbacks=[GibbsPruning(sparsity=0.9)])
    trainer.fit(model, loader)          # the model comes out pruned
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from ..errors import UserError
from ..pruner import GibbsPruner
from .follower import Follower

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _callback_class() -> Any:
    """The callback class of the Lightning that is in use: both where both are, else the one that is installed."""
    loaded = [module for module in map(sys.modules.get, PACKAGES) if module]
    for name in PACKAGES:
        if not loaded:
            try:
                loaded = [import_module(name)]
            except ModuleNotFoundError:
                continue
    if not loaded:
        raise UserError("GibbsPruning needs Lightning: pip install 'gibbsprune[lightning]'")
    classes = tuple(module.Callback for module in loaded)
    return classes[0] if len(classes) == 1 else type("Callback", classes, {})


Callback: Any = _callback_class()


class GibbsPruning(Callback):
    """Prunes the model while the trainer fits it.

    The model is masked before the optimisers are made, masks are renewed after every optimiser step, the sparsity rises
    (or β), and when the fit is over the masks are burnt in. Every epoch the sparsity, the agreement with the converged
    masks and β, where there is one, are logged. Checkpoints of the trainer hold all of it and resume bit for bit.

    Args:
        sparsity: as of :class:`gibbsprune.GibbsPruner`, whose other arguments may be given too, and
            ``diagnostics=16`` to log :meth:`~gibbsprune.GibbsPruner.diagnostics` on as many draws.
        draw: the final masks: ``"converged"``, ``"sample"``, or None to call ``callback.pruner.finalize()`` oneself.
        steps_per_epoch: optimiser steps per epoch of the pruner; None for the trainer's own epochs, or for hundredths
            of the training if these are fewer than 20.
    """

    def __init__(
        self,
        sparsity: Any = None,
        *,
        draw: str | None = "converged",
        steps_per_epoch: int | None = None,
        **arguments: Any,
    ) -> None:
        self._follower = Follower(draw, steps_per_epoch, {"sparsity": sparsity, **arguments})
        self._drawn = 0  # optimiser steps that have their masks

    @property
    def pruner(self) -> GibbsPruner | None:
        """The pruner, once there is a model."""
        return self._follower.pruner

    @property
    def state_key(self) -> str:
        """By which checkpoints know it: several in one trainer differ in the layers that they prune."""
        chosen = {what: self._follower.arguments.get(what) for what in ("include", "exclude")}
        given = [f"{what}={_named(value)}" for what, value in chosen.items() if value is not None]
        return type(self).__qualname__ + ("{" + ", ".join(given) + "}" if given else "")

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self._check_averages(trainer)
            self._wrap(trainer, pl_module)
            if not self._follower.open:
                self._follower.guard(pl_module, _refuse)  # which holds its zeros: a state with masks would not fit
        elif not (self._follower.open and self._follower.follows(pl_module)):
            # a checkpoint of the training may be loaded into a model without masks
            self._follower.guard(pl_module, lambda: self._wrap(trainer, pl_module, anew=True))

    def _wrap(self, trainer: Any, pl_module: Any, anew: bool = False) -> None:
        if anew:
            self._follower.lay_aside(pl_module)
        if not self._follower.follows(pl_module):
            _configure(trainer, pl_module)
            self._follower.wrap(pl_module)

    def _check_averages(self, trainer: Any) -> None:
        for callback in trainer.callbacks[: trainer.callbacks.index(self)]:
            if getattr(callback, "_average_model", None) is not None:
                raise UserError(
                    f"{type(callback).__name__} comes before GibbsPruning in the trainer's callbacks and has copied "
                    f"the model without its masks: put GibbsPruning first"
                )
        device = trainer.strategy.root_device.type
        for callback in trainer.callbacks if device != "cpu" else ():
            own = {"avg_fn", "multi_avg_fn"} & getattr(callback, "_kwargs", {}).keys()
            if getattr(callback, "_use_buffers", False) and not own:
                raise UserError(
                    f"{type(callback).__name__} takes torch's plain mean of the buffers too, which knows no whole "
                    f"numbers on {device}: give it avg_fn=torch.optim.swa_utils.get_swa_avg_fn()"
                )

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        steps = float(trainer.estimated_stepping_batches)
        each = max(1.0, trainer.num_training_batches / trainer.accumulate_grad_batches)
        self._follower.start(steps / each, steps)
        self._drawn = trainer.global_step

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._follower.begin_epoch(trainer.current_epoch)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step > self._drawn:  # not while gradients are being accumulated
            self._drawn = trainer.global_step
            self._follower.step()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        alike = [callback for callback in trainer.callbacks if isinstance(callback, GibbsPruning)]
        number = "" if alike[0] is self else f"{alike.index(self) + 1}/"  # the first of several has the plain names
        found = {name.replace("/", f"/{number}"): value for name, value in self._follower.metrics().items()}
        pl_module.log_dict(found, sync_dist=trainer.world_size > 1)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self._follower.finish()  # after all checkpoints of the fit, and after averaged weights are back in the model

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._follower.unguard()
        self._follower.put_back(pl_module)  # after the test of a checkpoint with masks

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._follower.put_back(pl_module)

    def state_dict(self) -> dict[str, Any]:
        return self._follower.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._follower.load_state_dict(state_dict)


def _named(selector: Any) -> str:
    """Patterns, types and functions of layers by name, the same in every process."""
    if isinstance(selector, (list, tuple)):
        return "|".join(map(_named, selector))
    return selector if isinstance(selector, str) else getattr(selector, "__qualname__", type(selector).__qualname__)


def _refuse() -> None:
    raise UserError(
        "the masks of this model are burnt in, so that a checkpoint with masks cannot be resumed in it: take a new one"
    )


def _configure(trainer: Any, pl_module: Any) -> None:
    """Makes the layers of a module that makes them in ``configure_model``, which Lightning may call more than once."""
    if type(pl_module).configure_model.__module__.split(".")[0] not in ("lightning", "pytorch_lightning"):
        with (
            trainer.strategy.tensor_init_context(),
            trainer.strategy.model_sharded_context(),
            trainer.precision_plugin.module_init_context(),
        ):
            pl_module.configure_model()
