"""Masks from and to ``torch.nn.utils.prune``, which keeps a pruned tensor as ``weight_orig`` and ``weight_mask``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from torch import Tensor, nn
from torch.nn.utils import prune

from ..attaching import check_plain
from ..errors import UserError
from ..holding import hold
from ..structures import PRUNABLE, check_mask

_ORIGINAL, _MASK = "_orig", "_mask"
Pruned = TypeVar("Pruned", nn.Module, dict[str, Tensor])


def from_torch_prune(pruned: Pruned) -> Pruned:
    """A model, or the state of one, that ``torch.nn.utils.prune`` masked, as a plain one with zeros.

    A model is changed in place: its masks are burnt in, its hooks are gone, and the zeros of its convolutions and
    Linears are held while it is trained on, as :meth:`GibbsPruner.finalize` leaves a model. Of a state, as
    ``torch.save`` wrote it, a new one is given that loads into a model that was never pruned.
    """
    if not isinstance(pruned, nn.Module):
        return {
            name.removesuffix(_ORIGINAL): value * _binary(pruned, name) if _masked(pruned, name) else value
            for name, value in pruned.items()
            if not (name.endswith(_MASK) and name.removesuffix(_MASK) + _ORIGINAL in pruned)
        }
    found = [
        (name, module, own.removesuffix(_ORIGINAL))
        for name, module in pruned.named_modules()
        for own in list(module._parameters)
        if _masked(module._buffers, own)
    ]
    masks = [_binary(module._buffers, f"{own}{_ORIGINAL}", f"{name}.").bool() for name, module, own in found]
    for (_, module, own), mask in zip(found, masks):
        prune.remove(module, own)
        if own == "weight":  # before the bias again: optimisers save their states in the order of parameters
            module._parameters.update({n: module._parameters.pop(n) for n in list(module._parameters) if n != own})
        if own == "weight" and isinstance(module, PRUNABLE):
            hold(module, mask)
    return pruned


def to_torch_prune(model: nn.Module, masks: Mapping[str, Tensor] | None = None) -> nn.Module:
    """A finalized model whose zeros are masks of ``torch.nn.utils.prune``, in place.

    Args:
        model: the model.
        masks: by the names of layers, True or 1 keeps; None for the zeros of all convolutions and Linears.
    """
    check_plain(model, "giving it the masks of torch.nn.utils.prune")
    layers = {name: m for name, m in model.named_modules() if isinstance(m, PRUNABLE) and "weight" in m._parameters}
    if masks is None:
        zeros = {name: layer.weight != 0 for name, layer in layers.items()}
        masks = {name: mask for name, mask in zeros.items() if not bool(mask.all())}
    for name, mask in masks.items():
        if name not in layers:
            raise UserError(f"masks have a layer {name!r}: allowed are {', '.join(layers) or 'none'}")
        check_mask(mask, tuple(layers[name].weight.shape))
    for name, mask in masks.items():
        prune.custom_from_mask(layers[name], "weight", mask.to(layers[name].weight))
    return model


def _masked(state: Mapping[str, Tensor | None], name: str) -> bool:
    return name.endswith(_ORIGINAL) and state.get(name.removesuffix(_ORIGINAL) + _MASK) is not None


def _binary(state: Mapping[str, Tensor | None], name: str, where: str = "") -> Tensor:
    """The mask of a tensor, refused where it holds anything else than zeros and ones."""
    mask = state[own := name.removesuffix(_ORIGINAL) + _MASK]
    assert mask is not None
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise UserError(f"{where}{own} holds other values than 0 and 1, which no mask has")
    return mask
