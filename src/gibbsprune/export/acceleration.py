"""The same network, each layer computed in the way that this CPU was measured to be fastest at.

Candidates are those of :mod:`gibbsprune.export.executors`: oneDNN's fused convolutions, narrow convolutions over
several pixels, sparse matrices for weight-wise pruned layers; and the memory format of images. Each is timed at the
layer's own input, in rounds beside the plain way, and taken only if it is clearly faster; and the whole network is
timed at the end, so that what comes out is not slower than what went in.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from gibbsprune.errors import UserError
from gibbsprune.export.aten import capture
from gibbsprune.export.equality import difference
from gibbsprune.export.executors import Fused, Lanes, Plain, Sparse
from gibbsprune.export.parts import as_modules
from gibbsprune.export.reuse import last_reader, reuse_memory
from gibbsprune.export.sites import Site, move_borders, site_at
from gibbsprune.looking import arguments
from gibbsprune.masking import check_plain

Timing = tuple[int, Callable[[], float]]  # how many rounds, and the clock
GAIN = 0.93  # of the plain time: what is not faster than this stays plain
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


@dataclass(frozen=True)
class Choice:
    """A layer that is computed in another way, and the milliseconds of the plain way and of this one."""

    name: str
    way: str
    plain: float
    chosen: float


@dataclass(frozen=True)
class AccelerateReport:
    """Milliseconds of the whole network before and after, the format of images, and the layers that changed."""

    before: float
    after: float
    memory_format: str
    choices: list[Choice] = field(default_factory=list)
    note: str = ""

    def __str__(self) -> str:
        head = f"{self.before:.2f} ms, now {self.after:.2f} ms ({self.memory_format})"
        lines = [f"{c.name}: {c.way}, {c.plain:.3f} ms, now {c.chosen:.3f} ms" for c in self.choices]
        return "\n".join([head, *([self.note] if self.note else []), *lines])


def accelerate(
    model: nn.Module,
    example_inputs: Tensor | Sequence[Any],
    rounds: int = 7,
    clock: Callable[[], float] = time.perf_counter,
) -> nn.Module:
    """A copy of ``model`` for inference on this CPU, at inputs like these, with torch's present number of threads.

    Args:
        model: a finalized network on the CPU; :func:`~gibbsprune.compact` it first where whole filters are pruned.
        example_inputs: one input, or the sequence of the arguments of ``forward``. The batch size matters: what
            is fastest for one image is not for a hundred.
        rounds: how often each way is timed.
        clock: what tells the seconds. On a machine busy with other work, ``time.process_time`` with one thread of
            torch's is steadier.

    Returns:
        A module without gradients, with an :class:`AccelerateReport` as its ``report``. Where nothing is faster, it
        is a plain copy, and the report says so.
    """
    check_plain(model, "accelerating")
    if elsewhere := [name for name, value in model.state_dict().items() if value.device.type != "cpu"]:
        raise UserError(f"'{elsewhere[0]}' is not on the CPU; accelerate works on CPU models only.")
    if rounds < 1:
        raise UserError(f"rounds is {rounds}; it must be at least 1.")
    inputs, _ = arguments(example_inputs)  # copied for every call: the model may overwrite them
    original = copy.deepcopy(model).eval().requires_grad_(False)
    with torch.no_grad():
        expected = original(*copy.deepcopy(inputs))
        graphs, note = {}, ""
        for name in _formats(original, inputs):
            try:
                graphs[name] = _graph(original, inputs, name)
            except Exception as error:  # of the model's own code, at a symbolic tensor or at one in another order
                note = note or str(error).strip().partition(chr(10))[0]
        if not graphs:
            alone = timed({"": original}, inputs, rounds, clock)[""]
            return _reported(original, AccelerateReport(alone, alone, "contiguous", note=note))
        options = [_accelerated(graph, inputs, name, (rounds, clock)) for name, graph in graphs.items()]
        right = [(m, c, f) for m, c, f in options if difference(expected, m(*copy.deepcopy(inputs))) <= 1e-4]
        took = timed({"": original} | {f: m for m, _, f in right}, inputs, rounds, clock)
    best = min(took, key=lambda name: took[name])
    if best == "":
        note = "nothing was faster as a whole than the network as it was"
        return _reported(original, AccelerateReport(took[""], took[""], "contiguous", note=note))
    module, choices, found = next(option for option in right if option[2] == best)
    return _reported(module, AccelerateReport(took[""], took[best], found, choices))


def timed(
    ways: Mapping[str, Callable[..., Any]],
    inputs: tuple[Any, ...],
    rounds: int,
    clock: Callable[[], float],
    hopeless: float = 1.6,
) -> dict[str, float]:
    """The least milliseconds of each way, in interleaved rounds after one to warm up, the first way being the rule.

    The least, because whatever else the machine does can only lengthen a measurement. A way that takes
    ``hopeless`` times as long as the first in the first two rounds is not timed further. Each call gets its own
    copy of the inputs, made before the clock starts.
    """
    took: dict[str, list[float]] = {name: [] for name in ways}
    left = dict(ways)
    for turn in range(rounds + 1):
        for name, way in left.items():
            given = copy.deepcopy(inputs)
            start = clock()
            way(*given)
            if turn:
                took[name].append(1e3 * (clock() - start))
        if turn == 1:
            limit = hopeless * took[next(iter(ways))][0]
            left = {name: way for name, way in left.items() if took[name][0] <= limit}
    return {name: min(values) for name, values in took.items()}


def _reported(module: nn.Module, report: AccelerateReport) -> nn.Module:
    module.report = report  # type: ignore[assignment]
    return module


def _formats(model: nn.Module, inputs: tuple[Any, ...]) -> list[str]:
    images = any(isinstance(x, Tensor) and x.dim() == 4 for x in inputs)
    convolutions = any(isinstance(module, nn.Conv2d) for module in model.modules())
    return list(FORMATS) if images and convolutions else ["contiguous"]


def _graph(model: nn.Module, inputs: tuple[Any, ...], memory_format: str) -> fx.GraphModule:
    """A copy of the network in one memory format, traced."""
    root = copy.deepcopy(model)
    if memory_format != "contiguous":
        root = root.to(memory_format=FORMATS[memory_format])  # type: ignore[call-overload]
    module = capture(root, _in_format(inputs, memory_format))
    as_modules(module)
    return module


def _in_format(inputs: tuple[Any, ...], memory_format: str) -> tuple[Any, ...]:
    if memory_format == "contiguous":
        return inputs
    return tuple(x.contiguous(memory_format=FORMATS[memory_format]) if _image(x) else x for x in inputs)


def _accelerated(
    module: fx.GraphModule, inputs: tuple[Any, ...], memory_format: str, timing: Timing
) -> tuple[nn.Module, list[Choice], str]:
    """The network in one memory format, each of its layers computed in its fastest way."""
    kind = FORMATS[memory_format]
    inputs = _in_format(inputs, memory_format)
    move_borders(module)
    sites = {site.nodes[0]: site for node in module.graph.nodes if (site := site_at(module, node)) is not None}
    chooser = _Chooser(module, sites, timing)
    chooser.run(*copy.deepcopy(inputs))
    for site, executor in chooser.chosen:
        site.replace(module, executor)
    if memory_format != "contiguous":
        for node, x in zip([n for n in module.graph.nodes if n.op == "placeholder"], inputs):
            if _image(x):
                with module.graph.inserting_after(node):
                    moved = module.graph.call_method("contiguous", (node,), {"memory_format": kind})
                node.replace_all_uses_with(moved, lambda user, moved=moved: user is not moved)
    module.graph.lint()
    reuse_memory(module, trainable=False)
    return module, chooser.choices, memory_format


def _image(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dim() == 4


class _Chooser(fx.Interpreter):
    """Runs the network once, and times at every site the ways to compute it, at the inputs that come by."""

    def __init__(self, module: fx.GraphModule, sites: dict[fx.Node, Site], timing: Timing) -> None:
        super().__init__(module)
        self.starts, self.timing = {site.nodes[-1]: site for site in sites.values()}, timing
        self.chosen: list[tuple[Site, nn.Module]] = []
        self.choices: list[Choice] = []
        self.garbage_collect_values = False
        self.graph_module = module

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n in self.starts:
            self._choose(self.starts[n], result)
        return result

    def _choose(self, site: Site, result: Tensor) -> None:
        source: Any = site.nodes[0].args[0]
        x = self.env[source]
        other = None if site.other is None else self.env[site.other].clone()
        own = other is not None and last_reader(self.graph_module, site.nodes, site.other)
        candidates: dict[str, nn.Module] = {"plain": Plain(site.layer, site.relu)}
        if Fused.takes(site.layer, x) and len(site.nodes) > 1:
            candidates["fused"] = Fused(site.layer, site.relu)
        for pixels in Lanes.options(site.layer, x, result):
            candidates[f"{pixels} pixels at once"] = Lanes(site.layer, site.relu, pixels)
        if Sparse.takes(site.layer, x):
            candidates["sparse"] = Sparse(site.layer, site.relu)
        args = (x,) if other is None else (x, other)
        for name in list(candidates)[1:]:
            if not difference(result, candidates[name](*args)) <= 1e-4:
                del candidates[name]
        for candidate in candidates.values():
            candidate.own = own  # type: ignore[assignment]
        if len(candidates) == 1:
            return
        took = timed(candidates, args, *self.timing)
        best = min(took, key=lambda name: took[name])
        if took[best] <= GAIN * took["plain"]:
            self.chosen.append((site, candidates[best]))
            self.choices.append(Choice(str(site.nodes[0].target), best, took["plain"], took[best]))
