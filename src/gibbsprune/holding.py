"""Pruned weights stay zero after pruning, under any optimiser with momentum and weight decay.

A finalized layer has no mask any more, but an optimiser may still hold momentum for its pruned weights. So the
layers whose zeros must last are remembered, their gradients are masked, and after every optimiser step, and before
every closure that a step evaluates, their zeros are written again. Who writes other weights over the zeros between
two steps, as ``load_state_dict`` may, ends that.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary, WeakIdRef

from .distributed import cut_like, is_sharded, whole
from .structures import PRUNABLE


@dataclass
class _Zeros:
    """Where a layer's weight is held at zero, and the state of the weight when it was last known to be zero there."""

    where: Tensor
    state: tuple[int, int]
    hooked: int | None = None  # the weight whose gradient is masked
    shard: nn.Parameter | None = None  # what is trained while ``fully_shard`` shows the gathered weight

    def on(self, tensor: Tensor) -> Tensor:
        if is_sharded(tensor) and not is_sharded(self.where):
            self.where = cut_like(self.where, tensor)
        if self.where.device != tensor.device:
            self.where = self.where.to(tensor.device)
        return self.where


#: By layer and not by weight: torch swaps no tensor that has weak references, as it must to change a shard's dtype.
_held: MutableMapping[nn.Module, _Zeros] = WeakIdKeyDictionary()


def hold(module: nn.Module, mask: Tensor) -> None:
    """Keeps ``module.weight`` zero where ``mask`` is False, until other weights are written over these zeros."""
    weight, before = _weight(module), _held.get(module)
    assert weight is not None
    _held[module] = _Zeros(~mask, _state(weight), before.hooked if before else None)
    _watch(module, weight)


def hold_zeros(model: nn.Module) -> nn.Module:
    """Keeps the exact zeros of all convolution and Linear weights of ``model`` zero while it is trained on.

    ``GibbsPruner.finalize`` does this itself; call it on a copy of a finalized model, or on a pruned model loaded
    from disk, before fine-tuning it.
    """
    for module in model.modules():
        if isinstance(module, PRUNABLE) and isinstance(module.weight, nn.Parameter):
            mask = whole(module.weight) != 0
            if not bool(mask.all()):
                hold(module, mask)
    return model


def _weight(module: nn.Module) -> nn.Parameter | None:
    """The parameter that is trained as the layer's weight; it may lie under a parametrisation."""
    if parametrize.is_parametrized(module, "weight"):
        weight = getattr(module.parametrizations["weight"], "original", None)  # type: ignore[index]
    else:
        weight = module._parameters.get("weight")
    shard = _held[module].shard if module in _held else None
    return weight if weight is None or shard is None or is_sharded(weight) else shard


def _state(weight: Tensor) -> tuple[int, int]:
    """What tells whether somebody has written: which tensor it is, and its version."""
    return id(weight), weight._version


def _watch(module: nn.Module, weight: nn.Parameter) -> None:
    """Remembers a shard, and sees to it that gradients are masked, of what may be another weight than before."""
    zeros, owner = _held[module], WeakIdRef(module)
    zeros.shard = weight if is_sharded(weight) else None
    if weight.requires_grad and zeros.hooked != id(weight):
        weight.register_hook(lambda gradient: _masked(owner(), gradient))
        zeros.hooked = id(weight)


def _masked(module: nn.Module | None, gradient: Tensor) -> Tensor:
    if module is None or (weight := _weight(module)) is None or not _lasts(module, weight):
        return gradient
    return gradient.masked_fill(_held[module].on(gradient), 0)


def _lasts(module: nn.Module, weight: nn.Parameter) -> bool:
    """Whether the layer is held; other weights over its zeros end that here."""
    zeros = _held.get(module)
    if zeros is None:
        return False
    if zeros.state != _state(weight):  # somebody has written
        zeros.state = _state(weight)
        if weight.shape != zeros.where.shape or _any((weight.detach() != 0).logical_and_(zeros.on(weight))):
            del _held[module]
            warnings.warn(
                "other weights were written over zeros that were held, and are trained freely from here on; "
                "gibbsprune.hold_zeros(model) holds the zeros that there are",
                stacklevel=2,
            )
    return module in _held


def _any(mask: Tensor) -> bool:
    """Of a shard, whether there is one in this rank's part: no rank waits for another."""
    return bool((mask.to_local() if is_sharded(mask) else mask).any())  # type: ignore[attr-defined]


def _held_by(optimizer: torch.optim.Optimizer) -> Iterator[tuple[nn.Module, nn.Parameter]]:
    """The held layers whose weights an optimiser trains."""
    if len(_held):
        trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for module in list(_held):
            weight = _weight(module)
            if weight is not None and id(weight) in trained:
                yield module, weight


@torch.no_grad()
def _write_zeros(module: nn.Module, weight: nn.Parameter) -> None:
    zeros = _held[module]
    weight.masked_fill_(zeros.on(weight), 0)
    zeros.state = _state(weight)


def _before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    held = [pair for pair in _held_by(optimizer) if _lasts(*pair)]
    for pair in held:
        _watch(*pair)
    if not held:
        return None

    def zeroed(closure: Callable[[], Any]) -> Callable[[], Any]:
        def evaluate() -> Any:
            for module, weight in held:
                if module in _held and _held[module].state != _state(weight):  # the step has written
                    _write_zeros(module, weight)
            return closure()

        return evaluate

    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": zeroed(kwargs["closure"])}
    if len(args) > 1 and callable(args[1]):  # after the optimiser itself
        return (args[0], zeroed(args[1]), *args[2:]), kwargs
    return None


def _after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    for pair in _held_by(optimizer):
        _write_zeros(*pair)


register_optimizer_step_pre_hook(_before_step)
register_optimizer_step_post_hook(_after_step)
