"""Masked layers: the stored weight times a mask, as a parametrisation of ``module.weight``.

Invariants: the stored weight (``parametrizations.weight.original``) is never written by a mask; the mask is a
constant for the gradient, so a masked weight gets no data gradient that step; nothing is rescaled.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .structures import STRUCTURES, Structure
from .threshold import converged_mask


class Masked(nn.Module):
    """weight ↦ weight × mask. Whoever owns the layer fills ``mask``; True keeps."""

    mask: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones_like(weight, dtype=torch.bool))

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.mask

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Assigning to ``module.weight`` sets the stored weight."""
        return weight


class GibbsMasked(Masked):
    """The sampled mask while training, the converged mask x_cvg in ``eval()``.

    x_cvg follows the weights: it is recomputed when they have changed since it was last used, whoever changed
    them (an optimiser, ``load_state_dict``, an EMA update), and only then.
    """

    converged: Tensor

    def __init__(self, weight: Tensor, structure: Structure, sparsity: float) -> None:
        super().__init__(weight)
        self.structure, self.sparsity = structure, sparsity
        self.register_buffer("converged", torch.ones_like(weight, dtype=torch.bool), persistent=False)
        self.seen = torch.full((2,), -1, dtype=torch.int64)  # on the CPU wherever the model is

    def forward(self, weight: Tensor) -> Tensor:
        if self.training:
            return weight * self.mask
        kind = self.structure
        refresh_(self.converged, self.seen, weight.detach(), self.sparsity, kind.name, kind.transposed, kind.groups)
        return weight * self.converged


@torch.library.custom_op("gibbsprune::refresh_", mutates_args=("converged", "seen"))
def refresh_(
    converged: Tensor,
    seen: Tensor,
    weight: Tensor,
    sparsity: float,
    structure: str,
    transposed: bool,
    groups: int,
) -> None:
    """Brings ``converged`` up to date with ``weight`` if the weight has changed since ``seen``.

    An operator of its own, so that ``torch.compile`` keeps it in the graph and it runs at every call.
    """
    try:
        version = weight._version
    except RuntimeError:  # inference tensors count no versions
        version = -1
    now = torch.tensor([version, weight.data_ptr()])
    if version >= 0 and torch.equal(seen, now):
        return
    kind = STRUCTURES[structure](transposed=transposed, groups=groups)
    converged.copy_(converged_mask(weight, sparsity, kind))
    seen.copy_(now)


@refresh_.register_fake
def _(
    converged: Tensor,
    seen: Tensor,
    weight: Tensor,
    sparsity: float,
    structure: str,
    transposed: bool,
    groups: int,
) -> None:
    return None


def attach(module: nn.Module, masked: Masked) -> None:
    """Puts a mask on ``module.weight``."""
    parametrize.register_parametrization(module, "weight", masked, unsafe=True)


def stored_weight(module: nn.Module) -> nn.Parameter:
    """The weight under the mask, which the optimiser trains."""
    parametrizations = cast(nn.ModuleDict, module.parametrizations)
    return cast(nn.Parameter, parametrizations["weight"].original)


def burn(module: nn.Module, mask: Tensor) -> None:
    """Multiplies the mask into the stored weight for good and removes the parametrisation.

    The parameter stays the same object, so optimisers that hold it go on working.
    """
    with torch.no_grad():
        stored_weight(module).mul_(mask)
    parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)
