"""Gibbs pruning as a callback of the Hugging Face ``Trainer``.

::

    trainer = Trainer(model, args, train_dataset=data, callbacks=[GibbsPruningCallback(sparsity=0.5)])
    trainer.train()          # the model comes out pruned
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import UserError
from ..pruner import GibbsPruner
from .follower import Follower

try:
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState
except ModuleNotFoundError as error:
    raise UserError("GibbsPruningCallback needs Transformers: pip install 'gibbsprune[transformers]'") from error

_STREAMS = ("generators", "before")  # of a pruner's state, which JSON can hold as text only


class GibbsPruningCallback(TrainerCallback, ExportableState):
    """Prunes the model while the trainer trains it.

    The model is masked when the trainer is made, masks are renewed after every optimiser step, the sparsity rises (or
    β), and at the end the masks are burnt in. The trainer's checkpoints hold all of it:
    ``trainer.train(resume_from_checkpoint=…)`` goes on where it was.

    Args:
        sparsity: as of :class:`gibbsprune.GibbsPruner`, whose other arguments may be given too, and
            ``diagnostics=16`` to log :meth:`~gibbsprune.GibbsPruner.diagnostics` on as many draws.
        draw: the final masks: ``"converged"``, ``"sample"``, or None to call ``callback.pruner.finalize()`` oneself.
        steps_per_epoch: optimiser steps per epoch of the pruner; None for the trainer's own epochs, or for hundredths
            of the training if these are fewer than 20.

    The sparsity, the agreement with the converged masks and β, where there is one, are put into
    ``trainer.state.log_history`` every epoch.
    Set ``callback.trainer = trainer`` to send them to the trainer's reporters (TensorBoard, Weights & Biases …) too.
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
        self.trainer: Any = None

    @property
    def pruner(self) -> GibbsPruner | None:
        """The pruner, once there is a model."""
        return self._follower.pruner

    def on_init_end(self, args: Any, state: Any, control: Any, model: nn.Module | None = None, **_: Any) -> None:
        if model is not None:
            self._follower.wrap(model)

    def on_train_begin(self, args: Any, state: Any, control: Any, model: nn.Module | None = None, **_: Any) -> None:
        if model is not None and self.pruner is not None and not self._follower.follows(model):  # of a model_init
            if state.global_step:
                raise UserError(
                    "the trainer made another model than the one that is pruned: a training with model_init cannot be "
                    "resumed, give the trainer the model itself"
                )
            self._follower.wrap(model)
        if self.pruner is None:
            raise UserError(
                "GibbsPruningCallback has not seen the trainer being made: give it in Trainer(callbacks=[…]), with a "
                "model and with restore_callback_states_from_checkpoint=False (it restores itself)"
            )
        if not self._follower.open and state.global_step and self._saved_pruner(state):
            raise UserError(
                "the masks of this model are burnt in, so that the checkpoint's masked weights were not loaded: resume "
                "with a new Trainer and a new model"
            )
        if self._follower.open and state.global_step:
            self._follower.load_state_dict(self._saved(state))
        self._follower.start(state.num_train_epochs, state.max_steps)

    def _saved_pruner(self, state: Any) -> Mapping[str, Any]:
        """The pruner's part of a trainer's state, empty if that was not saved while masks were in place."""
        saved = state.stateful_callbacks.get(type(self).__name__)
        return saved.get("pruner") or {} if isinstance(saved, Mapping) else {}

    def _saved(self, state: Any) -> dict[str, Any]:
        """The pruner's state from the trainer's, and the masks from the model, which has them already."""
        if not (read := self._saved_pruner(state)):
            raise UserError("the checkpoint holds no state of GibbsPruningCallback: it was saved without it")
        assert self.pruner is not None
        streams = {what: {device: _tensor(text) for device, text in read[what].items()} for what in _STREAMS}
        return {**read, **streams, "masks": self.pruner.state_dict()["masks"]}

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._follower.begin_epoch(int((state.epoch or 0) + 1e-6))

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._follower.step()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        metrics = self._follower.metrics()
        if metrics and self.trainer is not None:
            self.trainer.log(metrics)
        elif metrics:
            state.log_history.append({**metrics, "epoch": state.epoch, "step": state.global_step})

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._follower.finish()
        self._follower.unguard()

    def state(self) -> dict[str, Any]:
        """What the trainer writes into ``trainer_state.json``: all but the masks, which are saved with the model."""
        found = self._follower.state_dict()
        streams = {what: {device: _text(state) for device, state in found.get(what, {}).items()} for what in _STREAMS}
        rest = {name: value for name, value in found.items() if name != "masks"}
        return {"args": {}, "attributes": {}, "pruner": rest | streams if found else {}}


def _text(stream: Tensor) -> str:
    return base64.b64encode(stream.cpu().numpy().tobytes()).decode()


def _tensor(text: str) -> Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), np.uint8).copy())
