"""What weights are multiplied by in the limit, as they are now: brought up to date only when they have changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .structures import Structure, as_structure
from .survivors import shrunk_mask
from .threshold import converged_mask


class Converged(torch.autograd.Function):
    """The converged mask under ``torch.func``, which shows a weight's values only to a function of this kind."""

    @staticmethod
    def forward(weight: Tensor, sparsity: Tensor, structure: Structure, shrunk: bool, view: tuple[int, ...]) -> Tensor:
        return limit(weight, float(sparsity), structure, shrunk, view)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return None

    @staticmethod
    def vmap(info: Any, in_dims: Any, weight: Tensor, sparsity: Tensor, *how: Any) -> tuple[Tensor, int]:
        size = info.batch_size
        weights, sparsities = (
            [x] * size if dim is None else x.movedim(dim, 0) for x, dim in zip((weight, sparsity), in_dims)
        )
        return torch.stack([Converged.apply(w, s, *how) for w, s in zip(weights, sparsities)]), 0


def limit(weight: Tensor, sparsity: float, structure: Structure, shrunk: bool, view: Sequence[int]) -> Tensor:
    """What a weight is multiplied by in the limit: x_cvg, or what it leaves of survivors that are shrunk."""
    left = (shrunk_mask if shrunk else converged_mask)(weight.reshape(view), sparsity, structure)
    return left.reshape(weight.shape)


def refresh(
    converged: Tensor,
    seen: Tensor,
    weight: Tensor,
    sparsity: Tensor,
    structure: str,
    transposed: bool,
    groups: int,
) -> None:
    """Brings ``converged`` up to date with ``weight`` if the weight or the sparsity has changed since ``seen``."""
    now = [int(sparsity.view(torch.int64)), *_state(weight)]
    if now[1] >= 0 and seen.tolist()[: len(now)] == now:
        return
    kind = replace(as_structure(structure), transposed=transposed, groups=groups)
    left = limit(weight, float(sparsity), kind, converged.is_floating_point(), weight.shape)
    converged.copy_(left.reshape(converged.shape))
    seen[: len(now)] = torch.tensor(now)


#: The same as an operator of its own, so that ``torch.compile`` keeps it in the graph and it runs at every call.
refresh_ = torch.library.custom_op("gibbsprune::refresh_", refresh, mutates_args=("converged", "seen"))


def _state(weight: Tensor) -> list[int]:
    """What tells one state of a weight from another: version, place, and the sum of its bits.

    The sum is for writers that count no versions: ``weight.data``, numpy views, replayed CUDA graphs.
    """
    try:
        version = weight._version
    except RuntimeError:  # inference tensors count no versions
        version = -1
    if weight.is_cuda and torch.cuda.is_current_stream_capturing():
        return [version, weight.data_ptr()]  # a captured graph must not wait for a sum
    bits = weight.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[weight.element_size()])
    return [version, weight.data_ptr(), int(bits.sum())]


@refresh_.register_fake
def _(
    converged: Tensor,
    seen: Tensor,
    weight: Tensor,
    sparsity: Tensor,
    structure: str,
    transposed: bool,
    groups: int,
) -> None:
    return None
