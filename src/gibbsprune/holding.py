"""Pruned weights stay zero after pruning, under any optimiser with momentum and weight decay.

A finalized layer has no mask any more, but an optimiser may still hold momentum for its pruned weights. So a layer
whose zeros must last carries a record of them, which its copies take along; its gradients are masked, and after every
optimiser step, and before every closure that a step evaluates, its zeros are written again. Who writes other weights
over the zeros between two steps, as ``load_state_dict`` may, ends that.

No tensor knows of the optimiser that writes it, and optimisers are made before and after a layer is held. So torch's
hook on all of them is needed; it is set when the first layer is held and not before.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from .distributed import cut_like, is_sharded, whole
from .weights import prunable

RECORD = "_held_zeros"  # the attribute of a held layer, with the name of the parameter behind it

_lock = threading.Lock()
_layers: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_listening: list[Any] = []  # the handles of the hooks


class _Zeros:
    """Where a layer's weight is held at zero, and the state of the weight when it was last known to be zero there."""

    def __init__(
        self, layer: nn.Module, parameter: str, where: Tensor, weight: nn.Parameter, hooked: int | None = None
    ) -> None:
        self.layer, self.parameter, self.where, self.state = weakref.ref(layer), parameter, where, _state(weight)
        self.hooked = hooked  # the weight whose gradient is masked
        self.shard: nn.Parameter | None = None  # what is trained while ``fully_shard`` shows the gathered weight
        with _lock:
            _layers.add(layer)
            if not _listening:
                _listening.append(register_optimizer_step_pre_hook(_before_step))
                _listening.append(register_optimizer_step_post_hook(_after_step))
        self.watch(weight)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Zeros | None:
        """The record of a copied layer, whose weight has been copied before."""
        layer = self.layer()
        weight = None if layer is None else self.weight(layer)
        copies = memo.get(id(layer)), memo.get(id(weight))
        if weight is None or copies[0] is None or copies[1] is None or self.state != _state(weight):
            return None
        return _Zeros(copies[0], self.parameter, self.where.clone(), copies[1])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # a layer that is saved whole is an ordinary one

    def weight(self, layer: nn.Module) -> nn.Parameter | None:
        """The parameter that is trained as the layer's weight; it may lie under a parametrisation."""
        weight = _weight(layer, self.parameter)
        return weight if weight is None or self.shard is None or is_sharded(weight) else self.shard

    def watch(self, weight: nn.Parameter) -> None:
        """Remembers a shard, and sees to it that gradients are masked, of what may be another weight than before."""
        self.shard = weight if is_sharded(weight) else None
        if weight.requires_grad and self.hooked != id(weight):
            layer, parameter = self.layer, self.parameter
            weight.register_hook(lambda gradient: _masked(layer(), parameter, gradient))
            self.hooked = id(weight)

    def last(self, layer: nn.Module, weight: nn.Parameter) -> bool:
        """Whether the layer is still held; other weights over its zeros end that here."""
        if self.state == _state(weight):
            return True
        self.state = _state(weight)  # somebody has written
        if weight.shape == self.where.shape and not _any((weight.detach() != 0).logical_and_(self.on(weight))):
            return True
        layer.__dict__.pop(RECORD + self.parameter, None)
        warnings.warn(
            "other weights were written over zeros that were held, and are trained freely from here on; "
            "gibbsprune.hold_zeros(model) holds the zeros that there are",
            stacklevel=2,
        )
        return False

    @torch.no_grad()
    def write(self, weight: nn.Parameter) -> None:
        weight.masked_fill_(self.on(weight), 0)
        self.state = _state(weight)

    def on(self, tensor: Tensor) -> Tensor:
        """Where, on the tensor's device and cut as it is."""
        if is_sharded(tensor) and not is_sharded(self.where):
            self.where = cut_like(self.where, tensor)
        if self.where.device != tensor.device:
            self.where = self.where.to(tensor.device)
        return self.where


def hold(module: nn.Module, mask: Tensor, parameter: str = "weight") -> None:
    """Keeps a parameter of ``module`` zero where ``mask`` is False, until others are written over these zeros."""
    before, weight = _record(module, parameter), _weight(module, parameter)
    assert weight is not None
    module.__dict__[RECORD + parameter] = _Zeros(module, parameter, ~mask, weight, before.hooked if before else None)


def hold_zeros(model: nn.Module) -> nn.Module:
    """Keeps the exact zeros of all weights of ``model`` that can be pruned zero while it is trained on.

    ``GibbsPruner.finalize`` does this itself, and copies of its model take it along; call it on a pruned model loaded
    from disk before fine-tuning it.
    """
    for layer in prunable(model).values():
        if isinstance(layer.weight, nn.Parameter):
            mask = whole(layer.weight) != 0
            if not bool(mask.all()):
                hold(layer.module, mask, layer.parameter)
    return model


def held() -> list[tuple[nn.Module, _Zeros]]:
    """The layers whose zeros are held, as they are now, with each of their records; other threads may hold more."""
    with _lock:
        return [
            (layer, record)
            for layer in _layers
            for name, record in list(layer.__dict__.items())  # at once: its owner may write it meanwhile
            if name.startswith(RECORD) and record is not None
        ]


def _record(layer: nn.Module, parameter: str) -> _Zeros | None:
    return layer.__dict__.get(RECORD + parameter)


def _weight(module: nn.Module, parameter: str) -> nn.Parameter | None:
    if parametrize.is_parametrized(module, parameter):
        return getattr(module.parametrizations[parameter], "original", None)  # type: ignore[index]
    return module._parameters.get(parameter)


def _state(weight: Tensor) -> tuple[int, int]:
    """What tells whether somebody has written: which tensor it is, and its version."""
    return id(weight), weight._version


def _masked(layer: nn.Module | None, parameter: str, gradient: Tensor) -> Tensor:
    zeros = None if layer is None else _record(layer, parameter)
    if layer is None or zeros is None or (weight := zeros.weight(layer)) is None or not zeros.last(layer, weight):
        return gradient
    return gradient.masked_fill(zeros.on(gradient), 0)


def _any(mask: Tensor) -> bool:
    """Of a shard, whether there is one in this rank's part: no rank waits for another."""
    return bool((mask.to_local() if is_sharded(mask) else mask).any())  # type: ignore[attr-defined]


def _held_by(optimizer: torch.optim.Optimizer) -> list[tuple[_Zeros, nn.Module, nn.Parameter]]:
    """The held layers whose weights an optimiser trains."""
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    found = []
    for layer, zeros in held():
        weight = zeros.weight(layer)
        if weight is not None and id(weight) in trained:
            found.append((zeros, layer, weight))
    return found


def _before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    lasting = [(zeros, weight) for zeros, layer, weight in _held_by(optimizer) if zeros.last(layer, weight)]
    for zeros, weight in lasting:
        zeros.watch(weight)
    if not lasting:
        return None

    def zeroed(closure: Callable[[], Any]) -> Callable[[], Any]:
        def evaluate() -> Any:
            for zeros, weight in lasting:
                if zeros.state != _state(weight):  # the step has written
                    zeros.write(weight)
            return closure()

        return evaluate

    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": zeroed(kwargs["closure"])}
    if len(args) > 1 and callable(args[1]):  # after the optimiser itself
        return (args[0], zeroed(args[1]), *args[2:]), kwargs
    return None


def _after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    for zeros, _, weight in _held_by(optimizer):
        zeros.write(weight)
