"""Masked layers: the stored weight times a mask, as a parametrisation of ``module.weight`` or another parameter.

Invariants: the stored weight (``parametrizations.weight.original``) is never written by a mask; nothing is rescaled.
For the gradient g at the masked weight w·x the mask is a constant unless the layer says otherwise:

================  ==============================================================================================
masked            g·x: a masked weight gets none that step (the paper)
proportional      g·x + g·(1 − x)·‖w_o·x_o‖/‖w_o‖ with o the weight's output: as much as that has left of its strength
straight-through  g: every stored weight gets it (dynamic pruning with feedback, Lin et al. 2020)
law               g·x + g·w ∂P/∂w with P the probability of keeping: a weight whose presence lowers the loss grows
================  ==============================================================================================

Survivors keep their whole value (the paper), or are shrunk by the threshold, w·x·(1 − √(Q/w̄²)), so that a weight comes
and goes at zero and no mask that changes is a jump of the network (with straight-through gradients ST-3, Vanderschueren
& De Vleeschouwer 2023), or shrunk and then rescaled to their mean magnitude, by one factor per layer. The gradient does
not see it; but a layer that norms follow is rescaled in any case, and its gradient is multiplied by that factor, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from .checks import check_one_of
from .converging import Converged, limit, refresh, refresh_
from .distributed import whole
from .importance import Score
from .site import GRADIENTS, Site, joint_rows
from .structures import Filter, Structure, is_ours
from .survivors import SURVIVORS, keeps_strength, strength
from .weights import Layer


class Masked(nn.Module):
    """weight ↦ weight × mask. Whoever owns the layer fills ``mask``; True keeps.

    ``slope`` is what the gradient is multiplied by, None for the mask, ``left`` the share that a survivor keeps of its
    value (more than 1 for those that gain), None for all of it; the owner fills them, too (:mod:`gibbsprune.filling`).
    """

    slope: Tensor | None
    left: Tensor | None
    order: tuple[str, ...] = ()  # of the parameters of the module before any of them was masked

    def __init__(
        self, weight: Tensor, gradient: str = "masked", survivors: str = "whole", normed: bool = False
    ) -> None:
        super().__init__()
        ones = torch.ones(weight.shape, dtype=weight.dtype, device=weight.device)
        self.register_buffer("mask", torch.ones(weight.shape, dtype=torch.int8, device=weight.device))
        self.rescales = keeps_strength(check_one_of("survivors", survivors, SURVIVORS), normed)
        plain = check_one_of("gradient", gradient, GRADIENTS) == "masked" and not (self.rescales and normed)
        self.register_buffer("slope", None if plain else ones, persistent=False)
        self.register_buffer("left", None if survivors == "whole" else ones.clone(), persistent=False)

    @property
    def mask(self) -> Tensor:
        """The buffer of that name, seen as booleans: torch's mean of buffers (``AveragedModel``) takes numbers only."""
        return self._whole_numbers().view(torch.bool)

    def _whole_numbers(self) -> Tensor:
        """The same as it is stored, which compilers multiply by without a second look at its bytes."""
        return cast(Tensor, super().__getattr__("mask"))

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "mask"] = destination[prefix + "mask"].view(torch.bool)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if isinstance(mask := state_dict.get(prefix + "mask"), Tensor):
            state_dict[prefix + "mask"] = mask.bool().view(torch.int8)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def forward(self, weight: Tensor) -> Tensor:
        mask = self._whole_numbers()
        if self.slope is None and self.left is None:
            return weight * mask
        value = weight.detach()
        kept = value * mask if self.left is None else value * mask * self.left
        if self.slope is None:
            return kept + (weight - value) * mask  # of which the second part is 0, but to the gradient
        return torch.addcmul(kept, weight - value, self.slope)

    def seeing(self) -> Tensor:
        """Which weights get a gradient: those that the mask keeps, and what has one beyond it."""
        return self.mask if self.slope is None else self.slope != 0

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Assigning to ``module.weight`` sets the stored weight."""
        return weight


class GibbsMasked(Masked):
    """The sampled mask while training, the converged mask x_cvg in ``eval()``.

    x_cvg follows the weights: it is recomputed when they have changed since it was last used, whoever changed
    them (an optimiser, ``load_state_dict``, an EMA update, also one through ``.data``), and only then. Its sparsity is
    a buffer, on the CPU wherever the model is: states hold it, and averages follow one that rises.
    """

    converged: Tensor
    sparsity: Tensor
    together: Sequence[tuple[Layer, Site]] = ()  # the layers of its unit with their sites, itself among them

    def __init__(
        self,
        weight: Tensor,
        structure: Structure,
        sparsity: float,
        gradient: str = "masked",
        survivors: str = "whole",
        normed: bool = False,
        view: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(weight, gradient, survivors, normed)
        self.structure, self.view = structure, view or tuple(weight.shape)
        self.register_buffer("sparsity", torch.tensor(sparsity, dtype=torch.float64))
        kind = torch.int8 if self.left is None else weight.dtype  # of shrunk survivors x_cvg holds what is left
        self.register_buffer("converged", torch.ones(weight.shape, dtype=kind, device=weight.device), persistent=False)
        self.score: Score | None = None  # what the law is of, where that is not the weight
        self.seen = torch.full((4,), -1, dtype=torch.int64)  # on the CPU, too

    def forward(self, weight: Tensor) -> Tensor:
        if self.training:
            return super().forward(weight)
        left = self._of_unit(weight) if self.together else self._limit(weight)
        if self.rescales:
            left = left * strength(weight.detach().flatten(), left.flatten())
        return weight * left

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        kept = self.sparsity
        super()._apply(fn, recurse)
        self.sparsity = kept
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        state_dict.setdefault(prefix + "sparsity", self.sparsity)  # of an earlier version
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _limit(self, weight: Tensor) -> Tensor:
        """x_cvg, or what shrinking leaves where it keeps."""
        kind = self.structure
        if self.score is not None:
            return limit(self.score(weight), float(self.sparsity), kind, self.left is not None, self.view)
        traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
        if not traced and torch._C._are_functorch_transforms_active():
            return Converged.apply(weight, self.sparsity, kind, self.left is not None, self.view)
        if not is_ours(kind):  # of the user's own: an operator cannot take it
            return limit(weight, float(self.sparsity), kind, self.left is not None, self.view)
        # The operator counts as a write at every call, which a backward pass through two forward passes would refuse.
        bring = refresh_ if traced else refresh
        seen = weight.detach().reshape(self.view)
        bring(self.converged, self.seen, seen, self.sparsity, kind.spelling, kind.transposed, kind.groups)
        return self.converged

    def tie(self, together: Sequence[tuple[Layer, Site]]) -> None:
        """From now on x_cvg is that of several layers, whose rows are one neighbourhood each."""
        self.together = list(together)
        rows = self.converged.new_ones(together[0][1].count, sum(site.size for _, site in together))
        self.register_buffer("joint", rows, persistent=False)

    def _of_unit(self, weight: Tensor) -> Tensor:
        """Its part of what is left in the limit of all layers of its unit."""
        masks = [chains(layer.module)[layer.parameter][0] for layer, _ in self.together]
        weights = [weight if mask is self else whole(layer.stored) for mask, (layer, _) in zip(masks, self.together)]
        sites = [site for _, site in self.together]
        rows = joint_rows([mask.score(w) if mask.score else w for mask, w in zip(masks, weights)], sites)
        how = Filter(), self.left is not None, tuple(rows.shape)
        traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
        if self.score is not None:
            joint = limit(rows, float(self.sparsity), *how)
        elif not traced and torch._C._are_functorch_transforms_active():
            joint = Converged.apply(rows, self.sparsity, *how)
        else:
            joint = cast(Tensor, self.joint)
            (refresh_ if traced else refresh)(joint, self.seen, rows, self.sparsity, "filter", False, 1)
        parts = joint.split([site.size for site in sites], 1)
        return next(site.unrows(part) for mask, site, part in zip(masks, sites, parts) if mask is self)


def chains(module: nn.Module) -> Any:
    """The parametrisations of each parametrised parameter of a module."""
    return module.parametrizations
