"""What a network costs: parameters, non-zeros, bytes, multiply-adds, and milliseconds, layer by layer and in total.

Several forms of one network (dense, pruned, compact) are timed in interleaved rounds of one run, so that whatever
else the machine does touches all of them alike; medians are reported, with the quartiles as the spread. On request the
pruned network in C is one of them.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from .c.compiled import compile_c
from .c.library import compiler
from .c.network import Layer
from .c.source import Source
from .c.write import network
from .onnx import prepared
from .packed import packed_size, save_packed
from .reuse import CONVOLUTIONS

WHOLES = (nn.MultiheadAttention,)  # what computes the layers inside itself
LAYERS = (nn.Linear, *CONVOLUTIONS, *WHOLES)


@dataclass(frozen=True)
class Latency:
    """Milliseconds: the median of the rounds, and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, milliseconds: list[float]) -> Latency:
        if len(milliseconds) < 2:
            return cls(*(milliseconds * 3))
        low, middle, high = statistics.quantiles(milliseconds, n=4, method="inclusive")
        return cls(middle, low, high)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f})"


@dataclass(frozen=True)
class LayerProfile:
    """One layer with weights: its weight's shape, values, non-zeros, multiply-adds per input, and milliseconds."""

    shape: tuple[int, ...]
    parameters: int
    nonzero: int
    macs: int
    latency: dict[int, Latency]


@dataclass(frozen=True)
class Profile:
    """One form of a network. Latencies are by batch size; ``size`` is the packed file's, ``dense_size`` without.

    A network in C stores and multiplies what is not zero, and has no layers to time. Where there is none, there is no
    latency, and ``missing`` says why.
    """

    parameters: int
    nonzero: int
    size: int
    dense_size: int
    macs: int
    latency: dict[int, Latency]
    layers: dict[str, LayerProfile]
    missing: str = ""


def profile(
    forms: Mapping[str, nn.Module],
    example_inputs: Tensor,
    batches: tuple[int, ...] = (1, 128),
    rounds: int = 15,
    in_c: str | None = None,
) -> dict[str, Profile]:
    """Measure forms of one network at inputs like ``example_inputs``, whose rows are repeated to each batch size.

    At most ``rounds`` rounds per batch size, fewer where they would take more than some ten seconds. ``in_c`` names the
    form that is compiled for each batch size as well, with as many threads as torch has; its profile is called "C".
    """
    if rounds < 1 or not batches or min(batches) < 1:
        raise UserError(f"rounds is {rounds} and batches are {batches}; all must be at least 1.")
    modes = [(module, module.training) for model in forms.values() for module in model.modules()]
    try:
        plain = {name: model.eval() for name, model in forms.items()}
        if in_c is None:
            return _profiled(plain, {}, example_inputs, batches, rounds)
        counts = _in_c(forms[in_c], example_inputs)
        compiled = {}
        if not counts.missing:
            threads = torch.get_num_threads()
            compiled = {batch: compile_c(forms[in_c], _rows(example_inputs, batch), threads) for batch in batches}
        found = _profiled(plain, compiled, example_inputs, batches, rounds)
        return found | {"C": replace(counts, latency=found["C"].latency) if compiled else counts}
    finally:
        for module, training in modes:
            module.training = training


def _rows(x: Tensor, batch: int) -> Tensor:
    """The rows of the inputs, repeated to a batch."""
    return x[torch.arange(batch) % len(x)].contiguous()


def _in_c(model: nn.Module, example_inputs: Tensor) -> Profile:
    """What the network in C stores and multiplies, or why there is none."""
    if compiler() is None:
        return Profile(0, 0, 0, 0, 0, {}, {}, "no C compiler (cc, gcc or clang) was found")
    try:
        source = Source(network(*prepared(model, example_inputs[:2])), "net", 1)
    except UserError as error:
        return Profile(0, 0, 0, 0, 0, {}, {}, str(error))
    layers = [op for op in source.network.ops if isinstance(op, Layer)]
    survivors = [int(layer.weight.count_nonzero()) for layer in layers]
    numbers = sum(survivors) + sum(len(layer.bias) for layer in layers)
    macs = sum(n * math.prod(layer.output.planes[1:]) for n, layer in zip(survivors, layers))
    return Profile(numbers, numbers, len(source.data), len(source.data), macs, {}, {})


def _profiled(
    forms: Mapping[str, nn.Module],
    compiled: Mapping[int, nn.Module],
    example_inputs: Tensor,
    batches: tuple[int, ...],
    rounds: int,
) -> dict[str, Profile]:
    names = [*forms, *(["C"] if compiled else [])]
    totals: dict[str, dict[int, Latency]] = {name: {} for name in names}
    layers: dict[str, dict[int, dict[str, Latency]]] = {name: {} for name in names}
    counted = {name: multiply_adds(model, example_inputs[:1]) for name, model in forms.items()}
    for batch in batches:
        ways = {**forms, **({"C": compiled[batch]} if compiled else {})}
        took, inside = _timed(ways, _rows(example_inputs, batch), rounds)
        for name in names:
            totals[name][batch] = Latency.of(took[name])
            layers[name][batch] = {layer: Latency.of(values) for layer, values in inside[name].items()}
    found = {}
    for name, model in forms.items():
        sizes = _sizes(model)
        rows = {
            layer: LayerProfile(
                tuple(_weight(module).shape),
                sum(p.numel() for p in module.parameters()),
                sum(int(p.count_nonzero()) for p in module.parameters()),
                counted[name][layer],
                {batch: layers[name][batch][layer] for batch in batches},
            )
            for layer, module in _layers(model)
            if layer in counted[name]
        }
        parameters = list(model.parameters())
        found[name] = Profile(
            sum(p.numel() for p in parameters),
            sum(int(p.count_nonzero()) for p in parameters),
            *sizes,
            sum(counted[name].values()),
            totals[name],
            rows,
        )
    if compiled:
        found["C"] = Profile(0, 0, 0, 0, 0, totals["C"], {})
    return found


@torch.no_grad()
def multiply_adds(model: nn.Module, x: Tensor) -> dict[str, int]:
    """Multiply-adds per input of every layer with weights, zeros included, all its calls together.

    Layers are convolutions, dense layers, and attention, of which the four projections count.
    """
    found: dict[str, int] = {}

    def register(name: str, module: Any) -> list[Any]:
        def hook(module: Any, inputs: Any, named: Any, output: Any) -> None:
            if isinstance(module, nn.MultiheadAttention):
                each = _projections(module, *inputs, **named)
            elif getattr(module, "transposed", False):
                each = inputs[0].numel() * module.weight[0].numel()
            else:
                each = output.numel() * _weight(module)[0].numel()
            found[name] = found.get(name, 0) + each // len(x)

        return [module.register_forward_hook(hook, with_kwargs=True)]

    _hooked(model, register, lambda: model(x.clone()))
    return found


def _projections(attention: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    """Multiply-adds of attention's projections: of query, key and value, and of the result."""
    return (2 * query.numel() + key.numel() + value.numel()) * attention.embed_dim


def _weight(module: Any) -> Tensor:
    """The weight of a layer; of attention, that of the queries, with those of keys and values where they are one."""
    if isinstance(module, nn.MultiheadAttention):
        return module.q_proj_weight if module.in_proj_weight is None else module.in_proj_weight
    return module.weight


def _layers(model: nn.Module) -> list[tuple[str, Any]]:
    """The layers with weights, by name, without those inside another one."""
    inside = {part for whole in model.modules() if isinstance(whole, WHOLES) for part in whole.children()}
    return [(name, m) for name, m in model.named_modules() if isinstance(m, LAYERS) and m not in inside]


def _hooked(model: nn.Module, register: Callable[[str, Any], list[Any]], call: Callable[[], Any]) -> None:
    """Call with hooks on every layer with weights, and without them afterwards."""
    handles = [h for name, m in _layers(model) for h in register(name, m)]
    try:
        call()
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def _timed(
    forms: Mapping[str, nn.Module], x: Tensor, rounds: int
) -> tuple[dict[str, list[float]], dict[str, dict[str, list[float]]]]:
    """Milliseconds of every form, and of its layers, in interleaved rounds after one to warm up."""
    took: dict[str, list[float]] = {name: [] for name in forms}
    inside: dict[str, dict[str, list[float]]] = {name: {} for name in forms}
    begun = time.perf_counter()
    for turn in range(rounds + 1):
        for name, model in forms.items():
            given = x.clone()  # the model may overwrite it
            start = time.perf_counter()
            model(given)
            total = 1e3 * (time.perf_counter() - start)
            clocks = _layer_times(model, x)
            if turn:
                took[name].append(total)
                for layer, milliseconds in clocks.items():
                    inside[name].setdefault(layer, []).append(milliseconds)
        if turn >= min(5, rounds) and time.perf_counter() - begun > 10:
            break
    return took, inside


def _layer_times(model: nn.Module, x: Tensor) -> dict[str, float]:
    """Milliseconds in each layer during one call."""
    spent: dict[str, float] = {}
    started: dict[str, float] = {}

    def register(name: str, module: Any) -> list[Any]:
        def before(*_: Any) -> None:
            started[name] = time.perf_counter()

        def after(*_: Any) -> None:
            spent[name] = spent.get(name, 0.0) + 1e3 * (time.perf_counter() - started[name])

        return [module.register_forward_pre_hook(before), module.register_forward_hook(after)]

    given = x.clone()
    _hooked(model, register, lambda: model(given))
    return spent


def _sizes(model: nn.Module) -> tuple[int, int]:
    """Bytes of the packed float32 file and of dense safetensors."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "packed"
        save_packed(model, path)
        return os.path.getsize(path), packed_size(path, model).dense
