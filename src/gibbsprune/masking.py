"""Masked layers: the stored weight times a mask, as a parametrisation of ``module.weight``.

Invariants: the stored weight (``parametrizations.weight.original``) is never written by a mask; nothing is rescaled.
For the gradient g at the masked weight w·x the mask is a constant unless the layer says otherwise:

================  ==============================================================================================
masked            g·x: a masked weight gets none that step (the paper)
straight-through  g: every stored weight gets it (dynamic pruning with feedback, Lin et al. 2020)
law               g·x + g·w ∂P/∂w with P the probability of keeping: a weight whose presence lowers the loss grows
================  ==============================================================================================

Survivors keep their whole value (the paper), or are shrunk by the threshold, w·x·(1 − √(Q/w̄²)), so that a weight comes
and goes at zero, and no mask that changes is a jump of the network (straight-through gradients with that are ST-3,
Vanderschueren & De Vleeschouwer 2023). The gradient does not see the shrinking.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, SupportsIndex, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .checks import check_one_of
from .distributed import cut_like, plain_class
from .errors import UserError
from .importance import Score
from .site import GRADIENTS
from .structures import Structure, as_structure, is_ours
from .survivors import SURVIVORS, shrunk_mask
from .threshold import converged_mask


class Masked(nn.Module):
    """weight ↦ weight × mask. Whoever owns the layer fills ``mask``; True keeps.

    ``extra`` is what the gradient is multiplied by beyond the mask, ``lost`` the share that a survivor loses of its
    value, each None for nothing; the owner fills them, too.
    """

    mask: Tensor
    extra: Tensor | None
    lost: Tensor | None

    def __init__(self, weight: Tensor, gradient: str = "masked", survivors: str = "whole") -> None:
        super().__init__()
        nothing = torch.zeros(weight.shape, dtype=weight.dtype, device=weight.device)
        self.register_buffer("mask", torch.ones(weight.shape, dtype=torch.bool, device=weight.device))
        plain = check_one_of("gradient", gradient, GRADIENTS) == "masked"
        self.register_buffer("extra", None if plain else nothing, persistent=False)
        whole = check_one_of("survivors", survivors, SURVIVORS) == "whole"
        self.register_buffer("lost", None if whole else nothing.clone(), persistent=False)

    def forward(self, weight: Tensor) -> Tensor:
        masked = weight * self.mask
        if self.extra is not None:
            masked = masked + (weight - weight.detach()) * self.extra  # of value 0
        return masked if self.lost is None else masked - weight.detach() * self.mask * self.lost

    def seeing(self) -> Tensor:
        """Which weights get a gradient: those that the mask keeps, or all."""
        return self.mask if self.extra is None else torch.ones_like(self.mask)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Assigning to ``module.weight`` sets the stored weight."""
        return weight


class GibbsMasked(Masked):
    """The sampled mask while training, the converged mask x_cvg in ``eval()``.

    x_cvg follows the weights: it is recomputed when they have changed since it was last used, whoever changed
    them (an optimiser, ``load_state_dict``, an EMA update, also one through ``.data``), and only then.
    """

    converged: Tensor

    def __init__(
        self,
        weight: Tensor,
        structure: Structure,
        sparsity: float,
        gradient: str = "masked",
        survivors: str = "whole",
    ) -> None:
        super().__init__(weight, gradient, survivors)
        self.structure, self.sparsity = structure, sparsity
        like = self.mask if self.lost is None else self.lost  # of survivors that are shrunk x_cvg holds what is left
        self.register_buffer("converged", torch.ones_like(like), persistent=False)
        self.score: Score | None = None  # what the law is of, where that is not the weight
        self.seen = torch.full((3,), -1, dtype=torch.int64)  # on the CPU wherever the model is

    def forward(self, weight: Tensor) -> Tensor:
        if self.training:
            return super().forward(weight)
        kind = self.structure
        if self.score is not None:
            return weight * _limit(self.score(weight), self.sparsity, kind, self.lost is not None)
        traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
        if not traced and torch._C._are_functorch_transforms_active():
            return weight * _Converged.apply(weight, self.sparsity, kind, self.lost is not None)
        if not is_ours(kind):  # of the user's own: an operator cannot take it
            return weight * _limit(weight, self.sparsity, kind, self.lost is not None)
        # The operator counts as a write at every call, which a backward pass through two forward passes would refuse.
        bring = refresh_ if traced else _refresh
        bring(self.converged, self.seen, weight.detach(), self.sparsity, kind.spelling, kind.transposed, kind.groups)
        return weight * self.converged


class _Converged(torch.autograd.Function):
    """The converged mask under ``torch.func``, which shows a weight's values only to a function of this kind."""

    @staticmethod
    def forward(weight: Tensor, sparsity: float, structure: Structure, shrunk: bool) -> Tensor:
        return _limit(weight, sparsity, structure, shrunk)

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


def _limit(weight: Tensor, sparsity: float, structure: Structure, shrunk: bool) -> Tensor:
    """What a weight is multiplied by in the limit: x_cvg, or what it leaves of survivors that are shrunk."""
    return (shrunk_mask if shrunk else converged_mask)(weight, sparsity, structure)


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
    kind = replace(as_structure(structure), transposed=transposed, groups=groups)
    converged.copy_(_limit(weight, sparsity, kind, converged.is_floating_point()))
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


def attach(module: nn.Module, masked: Masked) -> None:
    """Puts a mask on ``module.weight``, which stays the same object with all that hangs on it.

    torch writes into a tensor that it parametrises, and DDP would lose its gradient. So it gets a stand-in.
    """
    weight, alone = cast(nn.Parameter, module.weight), not parametrize.is_parametrized(module)
    module.weight = nn.Parameter(torch.empty(weight.shape, dtype=weight.dtype, device="meta"))
    parametrize.register_parametrization(module, "weight", masked, unsafe=True)
    cast(nn.ModuleDict, module.parametrizations)["weight"].original = weight
    if alone:
        type(module).__reduce_ex__ = _reduce  # type: ignore[method-assign, assignment]  # the class is the module's own


def _reduce(module: nn.Module, protocol: SupportsIndex) -> tuple[Any, ...]:
    """A masked module as pickle takes it: one of its own class, which is masked again when it is made.

    So a masked model can be saved whole and be passed to another process; torch refuses that for parametrised modules,
    whose class it makes at run time.
    """
    if "__reduce_ex__" not in vars(type(module)):
        raise UserError("a masked layer in shards cannot be pickled: save its state_dict()")
    state = dict(module.__dict__)
    modules = dict(module._modules)
    chain = cast(nn.ModuleDict, modules.pop("parametrizations"))
    if list(chain) != ["weight"] or len(chain["weight"]) != 1:  # type: ignore[arg-type]
        raise UserError("a masked layer with further parametrisations cannot be pickled: save its state_dict()")
    state["_modules"] = modules
    masked, weight = chain["weight"][0], chain["weight"].original  # type: ignore[index]
    return _empty, (type(module).__bases__[0],), (state, masked, weight), None, None, _mask_again


def _empty(cls: type[nn.Module]) -> nn.Module:
    return cls.__new__(cls)


def _mask_again(module: nn.Module, saved: tuple[dict[str, Any], Masked, nn.Parameter]) -> None:
    state, masked, weight = saved
    module.__setstate__(state)
    module.weight = weight
    attach(module, masked)


def stored_weight(module: nn.Module) -> nn.Parameter:
    """The weight under the mask, which the optimiser trains."""
    parametrizations = cast(nn.ModuleDict, module.parametrizations)
    return cast(nn.Parameter, parametrizations["weight"].original)


def masked_layers(model: nn.Module) -> set[str]:
    """The names of the layers that carry a mask, whoever draws it."""
    return {
        name
        for name, module in model.named_modules()
        if parametrize.is_parametrized(module, "weight")
        and any(isinstance(part, Masked) for part in module.parametrizations["weight"])
    }


def check_masked(model: nn.Module, layers: Mapping[str, nn.Module], masks: Mapping[str, Masked]) -> None:
    """Refuses layers that have been exchanged, or whose weight has been parametrised, since they were masked.

    A layer may have moved in the model, as into a wrapper.
    """
    modules = set(model.modules())
    for name, module in layers.items():
        if module not in modules:
            raise UserError(
                f"layer {name!r} is no longer in the model: exchange layers before the pruner is made, or after "
                "finalize()"
            )
        over = list(module.parametrizations["weight"]) if parametrize.is_parametrized(module, "weight") else []  # type: ignore[index]
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


def _own_class(module: nn.Module) -> None:
    """A parametrised module's class, made for it alone: copies share it, and torch takes their weight away with it."""
    cls = type(module)
    content = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    module.__class__ = type(cls.__name__, cls.__bases__, content)


def burn(module: nn.Module, mask: Tensor, lost: Tensor | None = None) -> None:
    """Writes zeros into the stored weight where the mask prunes, for good, and removes the parametrisation.

    Survivors lose the share ``lost`` of their value.

    The parameter stays the same object, so optimisers that hold it go on working, and ``module.parameters()`` has
    its old order again, the weight before the bias, by which optimisers save and load their states.
    """
    weight = stored_weight(module)
    with torch.no_grad():
        weight.masked_fill_(cut_like(~mask, weight), 0)
        if lost is not None:
            weight.mul_(1 - cut_like(lost, weight))
    with plain_class(module):
        _own_class(module)
        parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)
    parameters = module._parameters
    for name in [name for name in parameters if name != "weight"]:
        parameters[name] = parameters.pop(name)
