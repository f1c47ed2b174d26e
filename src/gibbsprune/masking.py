"""Masked layers: the stored weight times a mask, as a parametrisation of ``module.weight`` or another parameter.

Invariants: the stored weight (``parametrizations.weight.original``) is never written by a mask; nothing is rescaled.
For the gradient g at the masked weight w·x the mask is a constant unless the layer says otherwise:

================  ==============================================================================================
masked            g·x: a masked weight gets none that step (the paper)
straight-through  g: every stored weight gets it (dynamic pruning with feedback, Lin et al. 2020)
law               g·x + g·w ∂P/∂w with P the probability of keeping: a weight whose presence lowers the loss grows
================  ==============================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .checks import check_one_of, layers_told
from .distributed import cut_like, plain_class, whole
from .errors import UserError
from .recurrent import follow_masks
from .site import GRADIENTS, Site, joint_rows
from .structures import STRUCTURES, Filter, Structure
from .threshold import converged_mask
from .weights import Layer


class Masked(nn.Module):
    """weight ↦ weight × mask. Whoever owns the layer fills ``mask``; True keeps.

    ``extra`` is what the gradient is multiplied by beyond the mask, None for nothing; its owner fills it, too.
    """

    mask: Tensor
    extra: Tensor | None
    order: tuple[str, ...] = ()  # of the parameters of the module before any of them was masked

    def __init__(self, weight: Tensor, gradient: str = "masked") -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(weight.shape, dtype=torch.bool, device=weight.device))
        plain = check_one_of("gradient", gradient, GRADIENTS) == "masked"
        more = None if plain else torch.zeros(weight.shape, dtype=weight.dtype, device=weight.device)
        self.register_buffer("extra", more, persistent=False)

    def forward(self, weight: Tensor) -> Tensor:
        masked = weight * self.mask
        return masked if self.extra is None else masked + (weight - weight.detach()) * self.extra  # of value 0

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Assigning to ``module.weight`` sets the stored weight."""
        return weight


class GibbsMasked(Masked):
    """The sampled mask while training, the converged mask x_cvg in ``eval()``.

    x_cvg follows the weights: it is recomputed when they have changed since it was last used, whoever changed
    them (an optimiser, ``load_state_dict``, an EMA update, also one through ``.data``), and only then.
    """

    converged: Tensor
    together: Sequence[tuple[Layer, Site]] = ()  # the layers of its unit with their sites, itself among them

    def __init__(
        self,
        weight: Tensor,
        structure: Structure,
        sparsity: float,
        gradient: str = "masked",
        view: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(weight, gradient)
        self.structure, self.sparsity, self.view = structure, sparsity, view or tuple(weight.shape)
        self.register_buffer("converged", torch.ones_like(self.mask), persistent=False)
        self.seen = torch.full((3,), -1, dtype=torch.int64)  # on the CPU wherever the model is

    def forward(self, weight: Tensor) -> Tensor:
        if self.training:
            return super().forward(weight)
        if self.together:
            return weight * self._of_unit(weight)
        kind = self.structure
        traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
        if not traced and torch._C._are_functorch_transforms_active():
            return weight * _Converged.apply(weight, self.sparsity, kind, self.view)
        if STRUCTURES.get(kind.name) is not type(kind):  # of the user's own: an operator cannot take it
            return weight * converged_mask(weight.reshape(self.view), self.sparsity, kind).reshape(weight.shape)
        # The operator counts as a write at every call, which a backward pass through two forward passes would refuse.
        bring = refresh_ if traced else _refresh
        seen = weight.detach().reshape(self.view)
        bring(self.converged, self.seen, seen, self.sparsity, kind.name, kind.transposed, kind.groups)
        return weight * self.converged

    def tie(self, together: Sequence[tuple[Layer, Site]]) -> None:
        """From now on x_cvg is that of several layers, whose rows are one neighbourhood each."""
        self.together = list(together)
        rows = torch.ones(together[0][1].count, sum(site.size for _, site in together), dtype=torch.bool)
        self.register_buffer("joint", rows.to(self.mask.device), persistent=False)

    def _of_unit(self, weight: Tensor) -> Tensor:
        """Its part of the converged mask of all layers of its unit."""
        masks = [layer.module.parametrizations[layer.parameter][0] for layer, _ in self.together]  # type: ignore[index]
        weights = [weight if mask is self else whole(layer.stored) for mask, (layer, _) in zip(masks, self.together)]
        sites = [site for _, site in self.together]
        rows = joint_rows(weights, sites)
        traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
        if not traced and torch._C._are_functorch_transforms_active():
            joint = _Converged.apply(rows, self.sparsity, Filter(), tuple(rows.shape))
        else:
            joint = cast(Tensor, self.joint)
            (refresh_ if traced else _refresh)(joint, self.seen, rows, self.sparsity, "filter", False, 1)
        parts = joint.split([site.size for site in sites], 1)
        return next(site.unrows(part) for mask, site, part in zip(masks, sites, parts) if mask is self)


class _Converged(torch.autograd.Function):
    """The converged mask under ``torch.func``, which shows a weight's values only to a function of this kind."""

    @staticmethod
    def forward(weight: Tensor, sparsity: float, structure: Structure, view: tuple[int, ...]) -> Tensor:
        return converged_mask(weight.reshape(view), sparsity, structure).reshape(weight.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        return None

    @staticmethod
    def vmap(info: Any, in_dims: Any, weight: Tensor, *how: Any) -> tuple[Tensor, int]:
        return torch.stack([_Converged.apply(w, *how) for w in weight.movedim(in_dims[0], 0)]), 0


def _refresh(
    converged: Tensor,
    seen: Tensor,
    weight: Tensor,
    sparsity: float,
    structure: str,
    transposed: bool,
    groups: int,
) -> None:
    """Brings ``converged`` up to date with ``weight`` if the weight has changed since ``seen``."""
    now = _state(weight)
    if now[0] >= 0 and seen.tolist()[: len(now)] == now:
        return
    kind = STRUCTURES[structure](transposed=transposed, groups=groups)
    converged.copy_(converged_mask(weight, sparsity, kind).reshape(converged.shape))
    seen[: len(now)] = torch.tensor(now)


#: The same as an operator of its own, so that ``torch.compile`` keeps it in the graph and it runs at every call.
refresh_ = torch.library.custom_op("gibbsprune::refresh_", _refresh, mutates_args=("converged", "seen"))


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
    sparsity: float,
    structure: str,
    transposed: bool,
    groups: int,
) -> None:
    return None


def attach(module: nn.Module, masked: Masked, name: str = "weight") -> None:
    """Puts a mask on a parameter of ``module``, which stays the same object with all that hangs on it.

    torch writes into a tensor that it parametrises, and DDP would lose its gradient. So it gets a stand-in.
    """
    weight = cast(nn.Parameter, getattr(module, name))
    others = [part for chain in getattr(module, "parametrizations", {}).values() for part in chain]
    masked.order = next((part.order for part in others if isinstance(part, Masked)), tuple(module._parameters))
    setattr(module, name, nn.Parameter(torch.empty(weight.shape, dtype=weight.dtype, device="meta")))
    parametrize.register_parametrization(module, name, masked, unsafe=True)
    cast(nn.ModuleDict, module.parametrizations)[name].original = weight
    if isinstance(module, nn.RNNBase) and not others:
        follow_masks(module)


def stored_weight(module: nn.Module, name: str = "weight") -> nn.Parameter:
    """The weight under the mask, which the optimiser trains."""
    parametrizations = cast(nn.ModuleDict, module.parametrizations)
    return cast(nn.Parameter, parametrizations[name].original)


def check_masked(model: nn.Module, layers: Mapping[str, Layer], masks: Mapping[str, Masked]) -> None:
    """Refuses layers that have been exchanged, or whose weight has been parametrised, since they were masked.

    A layer may have moved in the model, as into a wrapper.
    """
    modules = set(model.modules())
    if gone := [name for name, layer in layers.items() if layer.module not in modules]:
        told = layers_told(gone, "is", "are")
        raise UserError(
            f"{told} no longer in the model: exchange layers before the pruner is made, or after finalize()"
        )
    for name, layer in layers.items():
        module, parameter = layer.module, layer.parameter
        masked = parametrize.is_parametrized(module, parameter)
        over = list(module.parametrizations[parameter]) if masked else []  # type: ignore[index]
        if over != [masks[name]]:
            others = ", ".join(type(part).__name__ for part in over if part is not masks[name])
            raise UserError(
                f"layer {name!r} has {f'{others} over' if others else 'lost'} its mask: add other parametrisations "
                "after finalize(), and remove none before"
            )


def check_plain(model: nn.Module, purpose: str, transformed: bool = False) -> None:
    """Refuses a model with masks still in place, or with other parametrisations unless ``transformed`` allows them."""
    for name, module in model.named_modules():
        if parametrize.is_parametrized(module):
            parts = [part for chain in cast(nn.ModuleDict, module.parametrizations).values() for part in chain]  # type: ignore[attr-defined]
            if any(isinstance(part, Masked) for part in parts):
                raise UserError(f"the model still carries masks: finalize it before {purpose}")
            if transformed:
                continue
            raise UserError(
                f"layer {name!r} is parametrised ({type(parts[0]).__name__}): remove that "
                f"(torch.nn.utils.parametrize.remove_parametrizations) before {purpose}"
            )


def pack(mask: Tensor) -> Tensor:
    """A mask as one bit per weight."""
    return torch.from_numpy(np.packbits(mask.flatten().cpu().numpy()))


def unpack(bits: Tensor, shape: torch.Size) -> Tensor:
    flat = np.unpackbits(bits.cpu().numpy(), count=shape.numel())
    return torch.from_numpy(flat).bool().reshape(shape)


def _own_class(module: nn.Module) -> None:
    """A parametrised module's class, made for it alone: copies share it, and torch takes their weight away with it."""
    cls = type(module)
    content = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    module.__class__ = type(cls.__name__, cls.__bases__, content)


def burn(module: nn.Module, mask: Tensor, name: str = "weight") -> None:
    """Writes zeros into the stored weight where the mask prunes, for good, and removes the parametrisation.

    The parameter stays the same object, so optimisers that hold it go on working, and ``module.parameters()`` has
    its old order again, the weight before the bias, by which optimisers save and load their states.
    """
    weight = stored_weight(module, name)
    order = cast(Any, module.parametrizations)[name][0].order
    with torch.no_grad():
        weight.masked_fill_(cut_like(~mask, weight), 0)
    with plain_class(module):
        _own_class(module)
        parametrize.remove_parametrizations(module, name, leave_parametrized=False)
    parameters = module._parameters
    for other in sorted(parameters, key=lambda other: order.index(other) if other in order else len(order)):
        parameters[other] = parameters.pop(other)
    if isinstance(module, nn.RNNBase) and not parametrize.is_parametrized(module):
        module._init_flat_weights()
