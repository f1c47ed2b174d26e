"""A pruner that follows somebody else's training loop: what the callbacks of all trainers have in common."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..attaching import masked_layers
from ..checks import check_one_of, check_whole
from ..errors import UserError
from ..pruner import GibbsPruner
from ..saving import STORED
from ..targets import scheduled
from ..weights import Layer, path

DRAWS = ("sample", "converged", None)
FEW = 20  # epochs; steps of such a size tear at what was learnt


class Follower:
    """Wraps the trainer's model, draws at its optimiser steps, anneals by its epochs, finalizes at its end.

    Args:
        draw: the final masks, as in ``GibbsPruner.finalize``; None leaves finalizing to the user.
        steps_per_epoch: optimiser steps per epoch of the pruner; None follows the trainer's epochs, or in a training of
            fewer than :data:`FEW`, whose length it knows, hundredths of it.
        arguments: of :class:`gibbsprune.GibbsPruner`, all but the model; and ``diagnostics``, on how many draws
            :meth:`gibbsprune.GibbsPruner.diagnostics` are measured after each epoch, 0 for none.
    """

    def __init__(self, draw: str | None, steps_per_epoch: int | None, arguments: Mapping[str, Any]) -> None:
        check_one_of("draw", draw, DRAWS)
        if steps_per_epoch is not None:
            check_whole("steps_per_epoch", steps_per_epoch)
        self.draw, self.steps_per_epoch, self.arguments = draw, steps_per_epoch, dict(arguments)
        self.pace = steps_per_epoch  # of this training
        self.draws = check_whole("diagnostics", self.arguments.pop("diagnostics", 0), 0)
        self.pruner: GibbsPruner | None = None
        self.resumed = False
        self._aside: tuple[GibbsPruner, dict[str, Any]] | None = None  # a finished model, while another is in its place
        self._guarded: tuple[nn.Module, Any] | None = None  # and the handle of the hook that looks
        self._wrap: Callable[[], None] | None = None

    # -- the training ------------------------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Whether there is a model that is being pruned."""
        return self.pruner is not None and not self.pruner.finalized

    def follows(self, model: nn.Module) -> bool:
        """Whether the pruner is of this model, which a trainer may have put into another."""
        return self.pruner is not None and any(self.pruner.model is module for module in model.modules())

    def wrap(self, model: nn.Module) -> None:
        """Masks ``model``, once; another model than before gets a pruner of its own."""
        if not self.follows(model):
            self.pruner, self.resumed = GibbsPruner(model, **self.arguments), False
        if self.open:
            self.guard(self._pruner.model)

    def start(self, epochs: float | None, steps: float | None) -> None:
        """The default schedule for a training of so many epochs or optimiser steps, and the first masks.

        They are drawn from the weights that all ranks have by now; a resumed run goes on with its own masks.
        """
        if not self.open:
            return
        self.pace, own = self.steps_per_epoch, scheduled(self.arguments.get("sparsity"))
        if all(self.arguments.get(name) is None for name in ("schedule", "epochs")):
            if epochs and epochs < FEW and steps and not (self.pace or own):
                self.pace = max(1, int(steps) // 100)
            length = epochs if not self.pace else steps and steps / self.pace
            if not (length and 0 < length < 1e9):
                raise UserError(
                    "the trainer does not know how long it will train, as the law must: give epochs, a schedule of "
                    "beta, or max_steps and steps_per_epoch"
                )
            self._pruner.lasts(math.ceil(length))
        if not self.resumed:
            self._pruner.restart()
        self.resumed = False  # the next training starts anew, unless it is resumed too

    def begin_epoch(self, epoch: int) -> None:
        if self.open and not self.pace:
            self._pruner.set_epoch(epoch)

    def step(self) -> None:
        """After an optimiser step."""
        if self.open:
            self._pruner.step()
            if self.pace and self._pruner.steps % self.pace == 0:
                self._pruner.set_epoch(self._pruner.steps // self.pace)

    @torch.no_grad()
    def metrics(self) -> dict[str, float]:
        """β where there is one, the share of the masks that has converged, and that of weights that is masked now."""
        if not self.open:
            return {}
        beta = {"gibbsprune/beta": self._pruner.beta} if math.isfinite(self._pruner.beta) else {}
        return {
            **beta,
            "gibbsprune/agreement": self._pruner.agreement(),
            "gibbsprune/sparsity": self._pruner.sparsity(),
            **(self._pruner.diagnostics(max(2, self.draws)).scalars() if self.draws else {}),
        }

    def finish(self) -> None:
        if self.open and self.draw:
            self._pruner.finalize(self.draw)

    def lay_aside(self, model: nn.Module) -> None:
        """Gives up the pruner of ``model``, to mask it anew; if it is finished, :meth:`put_back` brings it back."""
        if self.pruner is not None and self.pruner.finalized and self.follows(model):
            self._aside = self.pruner, copy.deepcopy(model.state_dict())
        self.pruner = None

    def put_back(self, model: nn.Module) -> None:
        """The finished model that was laid aside is again in ``model``."""
        if self._aside is not None:
            self._pruner.take_off()
            (self.pruner, state), self._aside = self._aside, None
            model.load_state_dict(state, strict=False)

    @property
    def _pruner(self) -> GibbsPruner:
        assert self.pruner is not None
        return self.pruner

    # -- saving and resuming -----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return self._pruner.state_dict() if self.open else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.open and state:
            self._pruner.load_state_dict(state)
            self.resumed = True

    def guard(self, model: nn.Module, wrap: Callable[[], None] | None = None) -> None:
        """Looks at each state that is loaded into ``model``, before it is: masked layers want masked weights.

        With ``wrap``, a model that is not masked yet is masked by it when a state with masks comes.
        """

        if self._guarded is not None and self._guarded[0] is model:
            self._wrap = wrap  # the hook stays: it may be the one that is running
            return

        def look(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
            own = [name.removeprefix(prefix) for name in state if name.startswith(prefix)]
            found = [match.groups("") for name in own if (match := STORED.fullmatch(name))]
            layers = {path(layer.owner, layer.parameter): name for name, layer in self.layers().items()}
            under = (path(owner, parameter) for owner, parameter in found)
            masked = {layers.get(name, name.removesuffix(".weight")) for name in under}
            if self.open and self.follows(module):
                others = masked_layers(module) - self._pruner.masks.keys()  # of another pruner
                self._compare(masked - others, {layers[name] for name in own if name in layers})
            if self._wrap is not None and masked:
                self._wrap()

        self.unguard()
        self._wrap, self._guarded = wrap, (model, model.register_load_state_dict_pre_hook(look))

    def layers(self) -> dict[str, Layer]:
        """What is pruned, by name."""
        return self._pruner.layers if self.open else {}

    def _compare(self, masked: set[str], plain: set[str]) -> None:
        """Refuses a state, or a part of one, that has its masks elsewhere than the pruner."""
        mine = self._pruner.masks.keys()
        if not masked and plain & mine:
            raise UserError(
                "the checkpoint holds no masks: it is of a model that was finalized or never pruned, and pruning "
                "cannot be resumed from it"
            )
        if other := sorted(masked - mine | plain & mine):
            raise UserError(f"the checkpoint has masks on other layers than this pruner: {', '.join(other)}")

    def unguard(self) -> None:
        self._wrap = None
        if self._guarded is not None:
            self._guarded[1].remove()
            self._guarded = None
