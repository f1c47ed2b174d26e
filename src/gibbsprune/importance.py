"""Importance from gradients or activations: a score v_i that takes the place of |w_i| in any law.

=========  =============================================================================================================
magnitude  v = |w|, as in the paper
taylor     v = |g·w| with g the gradient of the loss: to first order, by how much the loss changes without the weight
wanda      v = |w|·‖x‖ with x the inputs that the weight is multiplied by (Sun et al. 2023)
=========  =============================================================================================================

Fields are then b = Q − v² with Q the quantile of v², and x_cvg keeps the largest v. |g·w| and ‖x‖² are averaged over
steps with a momentum of 0.99. A masked weight gets no gradient: it keeps the score that it had when it was last kept.
The scores' scale is arbitrary, so that the temperature must have none either: a relative Hamiltonian.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .checks import bad, check_one_of, excluding, layers_told
from .errors import UserError
from .hamiltonians import Hamiltonian
from .structures import PRUNABLE
from .weights import Layer

KINDS = ("magnitude", "taylor", "wanda")
NEW = 0.01  # the share of a step in the average


def check_importance(
    kind: str, hamiltonian: Hamiltonian, gradient: str = "masked", layers: Mapping[str, Layer] | None = None
) -> None:
    """Scores have no unit, no known derivative, and in several processes are not the same everywhere."""
    check_inputs(kind, layers or {})
    check_one_of("importance", kind, KINDS)
    if kind == "magnitude":
        return
    probe = torch.ones(1)
    if hamiltonian.samplers != ("two_point",) and hamiltonian.unit(probe, 1) is None:
        raise bad("importance", kind, f"'magnitude' with {hamiltonian!r}, whose field has a unit: use a relative one")
    if gradient == "law":
        raise bad("importance", kind, "'magnitude' with gradient 'law'")
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        raise UserError(f"importance is {kind!r}, which several processes would not agree on: allowed is 'magnitude'")


def check_inputs(kind: str, layers: Mapping[str, Layer]) -> None:
    """The inputs that weights are multiplied by are known of convolutions and Linears."""
    known = {n for n, one in layers.items() if isinstance(one.module, PRUNABLE) and one.parameter == "weight"}
    others = [name for name in layers if name not in known]
    if kind == "wanda" and others:
        raise UserError(
            f"importance is 'wanda', which is of the inputs of convolutions and Linears, and so not of "
            f"{layers_told(others)}: use 'taylor', or leave out with exclude={excluding(others, layers)!r}"
        )


def add_gradient(score: Tensor, weight: Tensor, gradient: Tensor, seen: Tensor) -> None:
    """v ← 0.99 v + 0.01 |g·w| where the mask kept the weight, or the gradient was seen all the same."""
    now = (weight.detach() * gradient).abs_().to(score.dtype)
    score.add_((now - score).mul_(seen), alpha=NEW)


def add_inputs(norms: Tensor, inputs: Tensor, channels: int) -> None:
    """‖x‖² of every input channel, its mean over all else, averaged over steps."""
    others = [d for d in range(inputs.dim()) if d != channels % inputs.dim()]
    norms.lerp_(inputs.detach().float().square().mean(others), NEW)


def by_inputs(weight: Tensor, norms: Tensor, groups: int = 1, transposed: bool = False) -> Tensor:
    """|w|·‖x‖ of a Linear or a convolution; ``norms`` are per input channel, over all groups."""
    w, root = weight.detach().abs(), norms.sqrt().to(weight.dtype)
    kernel = [1] * (w.dim() - 2)
    if transposed:
        return w * root.view(-1, 1, *kernel)
    grouped = w.unflatten(0, (groups, -1))
    return (grouped * root.view(groups, 1, w.shape[1], *kernel)).flatten(0, 1)


def channel_axis(module: nn.Module) -> int:
    """Which dimension of a layer's input are its channels."""
    return -1 - len(getattr(module, "kernel_size", ()))


class Score(nn.Module):
    """The scores of one layer of a model, brought up to date by hooks while it is trained.

    Args:
        kind: "taylor" or "wanda".
        module: the masked layer.
        weight: under its mask.
        seen: which weights get a gradient in this step.
    """

    value: Tensor

    def __init__(self, kind: str, module: nn.Module, weight: nn.Parameter, seen: Callable[[], Tensor]) -> None:
        super().__init__()
        self.kind, self.groups = kind, int(getattr(module, "groups", 1))
        self.transposed = bool(getattr(module, "transposed", False))
        inputs = getattr(module, "in_features", 0) or getattr(module, "in_channels", 1)
        shape = tuple(weight.shape) if kind == "taylor" else (int(inputs),)
        self.register_buffer("value", torch.zeros(shape, dtype=torch.float32, device=weight.device))
        if kind == "taylor":
            self._hook = weight.register_hook(lambda gradient: add_gradient(self.value, weight, gradient, seen()))
        else:
            axis = channel_axis(module)
            self._hook = module.register_forward_pre_hook(lambda layer, given: self._look(layer, given, axis))

    def _look(self, layer: nn.Module, given: Any, axis: int) -> None:
        if layer.training:
            add_inputs(self.value, given[0], axis)

    def forward(self, weight: Tensor) -> Tensor:
        """The scores as they are now, in the weight's shape."""
        return self.value if self.kind == "taylor" else by_inputs(weight, self.value, self.groups, self.transposed)

    def detach(self) -> None:
        """Stops looking."""
        self._hook.remove()
