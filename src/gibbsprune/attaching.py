"""Masks on layers, and off again: put on, pickled with them, looked for, burnt in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .checks import layers_told
from .distributed import cut_like, plain_class
from .errors import UserError
from .masking import Masked, chains
from .recurrent import follow_masks
from .weights import Layer, check_module


def attach(module: nn.Module, masked: Masked, name: str = "weight") -> None:
    """Puts a mask on a parameter of ``module``, which stays the same object with all that hangs on it.

    torch writes into a tensor that it parametrises, and DDP would lose its gradient. So it gets a stand-in.
    """
    weight, alone = cast(nn.Parameter, getattr(module, name)), not parametrize.is_parametrized(module)
    others = [] if alone else [part for chain in chains(module).values() for part in chain]
    masked.order = next((part.order for part in others if isinstance(part, Masked)), tuple(module._parameters))
    setattr(module, name, nn.Parameter(torch.empty(weight.shape, dtype=weight.dtype, device="meta")))
    parametrize.register_parametrization(module, name, masked, unsafe=True)
    chains(module)[name].original = weight
    if alone:
        type(module).__reduce_ex__ = _reduce  # type: ignore[method-assign, assignment]  # the class is the module's own
    if isinstance(module, nn.RNNBase) and alone:
        follow_masks(module)


def _reduce(module: nn.Module, protocol: SupportsIndex) -> tuple[Any, ...]:
    """A masked module as pickle takes it: one of its own class, which is masked again when it is made.

    So a masked model can be saved whole and be passed to another process; torch refuses that for parametrised modules,
    whose class it makes at run time.
    """
    if "__reduce_ex__" not in vars(type(module)):
        raise UserError("a masked layer in shards cannot be pickled: save its state_dict()")
    state = dict(module.__dict__)
    modules = dict(module._modules)
    masked = cast(Any, modules.pop("parametrizations"))
    if not all(len(chain) == 1 and isinstance(chain[0], Masked) for chain in masked.values()):
        raise UserError("a masked layer with further parametrisations cannot be pickled: save its state_dict()")
    state["_modules"] = modules
    if isinstance(module, nn.RNNBase):  # its lists of weights are made anew
        state |= {"_flat_weights": [], "_flat_weight_refs": []}
    masks = {name: (chain[0], chain.original) for name, chain in masked.items()}
    return _empty, (type(module).__bases__[0],), (state, masks), None, None, _mask_again


def _empty(cls: type[nn.Module]) -> nn.Module:
    return cls.__new__(cls)


def _mask_again(module: nn.Module, saved: tuple[dict[str, Any], Mapping[str, tuple[Masked, nn.Parameter]]]) -> None:
    state, masks = saved
    module.__setstate__(state)
    order = next(iter(masks.values()))[0].order
    for name, (_, weight) in masks.items():
        module._parameters[name] = weight
    _sort(module, order)
    if isinstance(module, nn.RNNBase):
        module._init_flat_weights()
    for name, (masked, _) in masks.items():
        attach(module, masked, name)


def _sort(module: nn.Module, order: Sequence[str]) -> None:
    """Gives the parameters of a module the order that they had."""
    parameters = module._parameters
    for name in sorted(parameters, key=lambda name: order.index(name) if name in order else len(order)):
        parameters[name] = parameters.pop(name)


def stored_weight(module: nn.Module, name: str = "weight") -> nn.Parameter:
    """The weight under the mask, which the optimiser trains."""
    parametrizations = cast(nn.ModuleDict, module.parametrizations)
    return cast(nn.Parameter, parametrizations[name].original)


def masked_layers(model: nn.Module) -> set[str]:
    """The names of the layers that carry a mask, whoever draws it."""
    return {
        Layer(owner, module, name).name
        for owner, module in model.named_modules()
        if parametrize.is_parametrized(module)
        for name, chain in chains(module).items()
        if any(isinstance(part, Masked) for part in chain)
    }


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
    check_module(model)
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


def burn(module: nn.Module, mask: Tensor, left: Tensor | None = None, name: str = "weight") -> None:
    """Writes zeros into the stored weight where the mask prunes, for good, and removes the parametrisation; survivors
    keep the share ``left`` of their value.

    The parameter stays the same object, so optimisers that hold it go on working, and ``module.parameters()`` has
    its old order again, the weight before the bias, by which optimisers save and load their states.
    """
    weight = stored_weight(module, name)
    order = cast(Any, module.parametrizations)[name][0].order
    with torch.no_grad():
        weight.masked_fill_(cut_like(~mask, weight), 0)
        if left is not None:
            weight.mul_(cut_like(left, weight))
    with plain_class(module):
        _own_class(module)
        parametrize.remove_parametrizations(module, name, leave_parametrized=False)
    _sort(module, order)
    if isinstance(module, nn.RNNBase) and not parametrize.is_parametrized(module):
        module._init_flat_weights()
