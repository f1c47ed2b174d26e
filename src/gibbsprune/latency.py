"""How long a layer takes with fewer filters: measured here, on the machine and the device that the network is on.

A table has a row per number of filters kept. Layers are timed one by one, at the inputs that the network gives them,
with some numbers of filters, and in between their times are interpolated. A layer of fewer inputs is faster, too; that
is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .errors import UserError
from .looking import arguments, plain_eval

POINTS = 8  # numbers of filters that are timed
ROUNDS, LEAST = 7, 2e-3  # how often, and how long at least, in seconds

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@torch.no_grad()
def tables(model: nn.Module, layers: Mapping[str, nn.Module], example_inputs: Any) -> dict[str, tuple[float, ...]]:
    """Seconds that each layer takes with 1, 2 … all of its filters, never less with more of them."""
    for name, module in layers.items():
        if not isinstance(module, LAYERS) or getattr(module, "groups", 1) > 1:
            kinds = "plain convolutions and Linears"
            raise UserError(f"layer {name!r} cannot be timed with fewer filters: allowed are {kinds}; exclude it")
    inputs = _inputs(model, layers, example_inputs)
    return {name: _table(module, inputs[name]) for name, module in layers.items()}


def _inputs(model: nn.Module, layers: Mapping[str, nn.Module], example_inputs: Any) -> dict[str, Tensor]:
    """What each layer sees."""
    args, kwargs = arguments(example_inputs)
    found: dict[str, Tensor] = {}

    def see(name: str, _: nn.Module, given: tuple[Any, ...]) -> None:
        found.setdefault(name, given[0])

    handles = [module.register_forward_pre_hook(partial(see, name)) for name, module in layers.items()]
    try:
        with plain_eval(model):
            model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    if unused := [name for name in layers if name not in found]:
        raise UserError(f"layer {unused[0]!r} is not used with these example_inputs: exclude it")
    return found


def _table(layer: Any, x: Tensor) -> tuple[float, ...]:
    count = len(layer.weight)
    tried = sorted({1, *(max(1, round(count * part / POINTS)) for part in range(1, POINTS + 1))})
    fewer = [_fewer(layer, keep) for keep in tried]
    times = np.full(len(tried), np.inf)
    for _ in range(ROUNDS):  # one after another in every round: what else the machine does touches all alike
        times = np.minimum(times, [seconds(partial(part, x), x.device) for part in fewer])
    return tuple(np.interp(np.arange(1, count + 1), tried, np.maximum.accumulate(times)).tolist())


def _fewer(layer: Any, keep: int) -> nn.Module:
    """A layer like it with so many filters."""
    bias, place = layer.bias is not None, {"device": layer.weight.device, "dtype": layer.weight.dtype}
    if isinstance(layer, nn.Linear):
        return nn.Linear(layer.in_features, keep, bias, **place)
    sizes = layer.kernel_size, layer.stride, layer.padding, layer.dilation
    made: nn.Module = type(layer)(layer.in_channels, keep, *sizes, 1, bias, layer.padding_mode, **place)
    return made


def seconds(call: Callable[[], Any], device: torch.device) -> float:
    """Of one call, the mean of as many as take at least a few milliseconds."""
    calls = 1
    while True:
        _wait(device)
        began = time.perf_counter()
        for _ in range(calls):
            call()
        _wait(device)
        took = time.perf_counter() - began
        if took >= LEAST:
            return took / calls
        calls *= 2


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
