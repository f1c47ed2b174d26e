"""What is known of each tensor's channels, what is wanted of them, and what is kept.

For every tensor of the traced network, with its channels along one axis:

- *facts*, found forwards: a channel is live, or it is constant: the same known value at every place and for every
  input. So is the output of a removed filter after batch norm and ReLU.
- *wanted*, found backwards: the channels that some consumer reads. A live channel that all consumers multiply by
  zero is not wanted; a constant one is folded into its consumers, and wanted only where it cannot be.
- *kept*: the channels that the smaller tensor holds, in their old order. Every wanted channel is kept.
"""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

DENSE_ENOUGH = 0.8  # from this share of live channels on, computing the few constants is cheaper than scattering
SCATTER_COST = 128  # multiply-adds at one place that cost as much as scattering one channel (benchmarks/README.md)
LANES = 16  # channels that a CPU computes at once: the last few up to a multiple of it are free


@dataclass(frozen=True)
class Facts:
    """Along ``axis``: which channels are live, and the value of each constant one (0 where live), in float64."""

    axis: int
    live: Tensor
    value: Tensor

    @classmethod
    def of(cls, axis: int, live: Tensor, value: Tensor) -> Facts:
        return cls(axis, live, value.double().masked_fill(live, 0))

    @classmethod
    def unknown(cls, axis: int, channels: int) -> Facts:
        return cls(axis, torch.ones(channels, dtype=torch.bool), torch.zeros(channels, dtype=torch.float64))


class LeftAlone(Exception):
    """This operation cannot be made smaller, and why."""


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """The shape of a node's tensor at the example inputs; refused where it is not a tensor."""
    meta = node.meta.get("tensor_meta")
    if meta is None or not hasattr(meta, "shape"):
        raise LeftAlone("it works on something else than a tensor")
    return tuple(meta.shape)


def ease(target: Tensor, live: Tensor) -> Tensor:
    """Of ``target``, the live ones to ask for; all of it where nearly all are live."""
    wanted = target & live
    return target if wanted.sum() >= DENSE_ENOUGH * target.sum() else wanted


class Plan:
    """Facts, wants and kept channels of every node, and the edits that make the graph smaller."""

    def __init__(self, module: fx.GraphModule, device: torch.device, dtype: torch.dtype, prefer: str) -> None:
        self.module, self.device, self.dtype, self.prefer = module, device, dtype, prefer
        self.shared = shared_layers(module)
        self.rules: dict[fx.Node, Any] = {}
        self.facts: dict[fx.Node, Facts] = {}
        self.wanted: dict[fx.Node, Tensor] = {}
        self.kept: dict[fx.Node, Tensor] = {}
        self.same: dict[fx.Node, fx.Node] = {}  # sums whose other branch vanished
        self.borders: dict[fx.Node, nn.Module] = {}  # what zero padding leaves to add to a layer's output

    def facts_on(self, node: fx.Node, axis: int) -> Facts:
        """The facts of a node whose channels lie along ``axis``; one without facts is live throughout."""
        shape = shape_of(node)
        if node not in self.facts:
            return Facts.unknown(axis, shape[axis])
        if self.facts[node].axis != axis:
            raise LeftAlone("its input has its channels along another axis")
        return self.facts[node]

    def want(self, node: fx.Node, channels: Tensor) -> None:
        if node in self.facts:
            before = self.wanted.get(node)
            self.wanted[node] = channels if before is None else before | channels

    def settle(self, node: fx.Node) -> None:
        """All consumers have spoken. A tensor that is read keeps one channel at least, for its shape."""
        if node not in self.facts:
            return
        facts = self.facts[node]
        wanted = self.wanted.setdefault(node, torch.zeros_like(facts.live))
        if not wanted.any():
            wanted = wanted.clone()
            wanted[carrier(facts, ~facts.live) if not facts.live.all() else 0] = True
            self.wanted[node] = wanted

    def kept_on(self, node: fx.Node, axis: int) -> Tensor:
        """The kept channels of a node; all where nothing is known of it."""
        return self.kept[node] if node in self.kept else self.facts_on(node, axis).live

    def align(self, user: fx.Node, node: fx.Node, target: Tensor, axis: int) -> fx.Node:
        """A node, before ``user``, with exactly the ``target`` channels of ``node``; constants filled in."""
        kept = self.kept_on(node, axis)
        if torch.equal(kept, target):
            return node
        base = self.facts_on(node, axis).value[target]
        return self.insert(user, Scatter(axis, base.to(self.dtype), *moves(kept, target)), node)

    def insert(self, user: fx.Node, module: nn.Module, *args: fx.Node) -> fx.Node:
        """A new node before ``user`` that calls ``module``."""
        with self.module.graph.inserting_before(user):
            return self.module.graph.call_module(self._add(user, module), args)

    def turn_into(self, node: fx.Node, module: nn.Module, *args: fx.Node) -> None:
        """Let ``node`` call ``module`` from now on."""
        self.turn(node, "call_module", self._add(node, module), *args)

    def turn(self, node: fx.Node, op: str, target: Any, *args: Any) -> None:
        node.op, node.target, node.args, node.kwargs = op, target, args, {}

    def finish(self) -> None:
        """The edits that replace one node by another, when no rule speaks of either any more."""
        for node, base in self.same.items():
            node.replace_all_uses_with(base)
        for node, module in self.borders.items():
            with self.module.graph.inserting_after(node):
                added = self.module.graph.call_module(self._add(node, module))
            node.replace_all_uses_with(added)
            added.args = (node, node.args[0])

    def _add(self, user: fx.Node, module: nn.Module) -> str:
        name = f"channels_{user.name}"
        while hasattr(self.module, name):
            name += "_"
        self.module.add_module(name, module.to(self.device))
        return name


def shared_layers(module: fx.GraphModule) -> dict[str, str]:
    """The layers with a parameter that another layer or the network's own code reads too, and what to say of them."""
    readers = Counter(id(p) for layer in module.modules() for p in layer.parameters(recurse=False))
    reads = [n for n in module.graph.nodes if n.op == "get_attr" and not all(_type_only(user) for user in n.users)]
    readers.update(id(operator.attrgetter(node.target)(module)) for node in reads)
    return {
        name: f"its {which} is read elsewhere too"
        for name, layer in module.named_modules()
        for which, p in layer.named_parameters(recurse=False)
        if readers[id(p)] > 1
    }


def _type_only(node: fx.Node) -> bool:
    return node.target is getattr and node.args[1] in ("dtype", "device", "ndim")


def carrier(facts: Facts, among: Tensor) -> int:
    """The constant channel of the largest size among these."""
    return int(facts.value.abs().masked_fill(~(among & ~facts.live), -1).argmax())


def moves(kept: Tensor, target: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Where the channels of both lie among the kept ones and among the target ones; None where that is all."""
    source, position = target[kept], kept[target]
    return (
        None if source.all() else source.nonzero().flatten(),
        None if position.all() else position.nonzero().flatten(),
    )


class Scatter(nn.Module):
    """y = base, then y[position] = x[source] along ``axis``; no source or position stands for all channels."""

    base: Tensor
    source: Tensor | None
    position: Tensor | None

    def __init__(self, axis: int, base: Tensor, source: Tensor | None, position: Tensor | None) -> None:
        super().__init__()
        self.axis = axis
        self.register_buffer("base", None if position is None else base)
        self.register_buffer("source", source)
        self.register_buffer("position", position)

    def forward(self, x: Tensor) -> Tensor:
        if self.source is not None:
            x = x.index_select(self.axis, self.source)
        if self.position is None:
            return x
        shape = list(x.shape)
        shape[self.axis] = len(self.base)
        base = self.base.to(x.dtype).view(-1, *[1] * (x.dim() - 1 - self.axis))
        return base.expand(shape).index_copy(self.axis, self.position, x)


class Overwriting(nn.Module):
    """An operation that may write its result into its first input."""

    reuse = False  # whether nobody reads that input later
    kept = False  # whether layers that read it before may keep it for their gradients

    def owns(self, x: Tensor) -> bool:
        return self.reuse and not (torch.is_grad_enabled() and (self.kept or x.requires_grad))


class SumInto(Overwriting):
    """y = a + base, then y[position] += b[source] along ``axis``; no base stands for zero, no b for none of it."""

    base: Tensor | None
    source: Tensor | None
    position: Tensor | None

    def __init__(self, axis: int, base: Tensor | None, source: Tensor | None, position: Tensor | None) -> None:
        super().__init__()
        self.axis = axis
        self.register_buffer("base", base)
        self.register_buffer("source", source)
        self.register_buffer("position", position)

    def forward(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        own = self.owns(a)
        if self.base is not None:
            base = self.base.to(a.dtype).view(-1, *[1] * (a.dim() - 1 - self.axis))
            a, own = a.add_(base) if own else a + base, True
        if b is None:
            return a
        if self.source is not None:
            b = b.index_select(self.axis, self.source)
        if a.dtype != b.dtype:  # under autocast
            kind = torch.promote_types(a.dtype, b.dtype)
            own, a, b = own or a.dtype != kind, a.to(kind), b.to(kind)
        if self.position is None:
            return a.add_(b) if own else a + b
        if a.dtype == torch.float16 and torch.compiler.is_compiling():  # ONNX Runtime has no such sum in float16
            return a.index_copy(self.axis, self.position, a.index_select(self.axis, self.position) + b)
        return a.index_add_(self.axis, self.position, b) if own else a.index_add(self.axis, self.position, b)


class AddBorders(Overwriting):
    """y + Σ_c W_c * v_c for constant inputs v_c of a zero-padded convolution, a map of the image's size."""

    weight: Tensor

    def __init__(self, weight: Tensor, stride: Any, padding: Any, dilation: Any) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.options = (stride, padding, dilation)
        self._map: tuple[Any, Tensor] | None = None  # of the last image size and type

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return y + self.map(x)
        weight = self.weight
        version = None if weight.is_inference() else weight._version
        key = (x.shape[2:], y.dtype, weight.dtype, weight.device, weight.data_ptr(), version)
        found = self._map  # looked at once: another thread may replace it
        if found is None or found[0] != key:
            with torch.autocast(weight.device.type, enabled=False):
                found = self._map = (key, self.map(x).to(y.dtype))
        return y.add_(found[1]) if self.owns(y) else y + found[1]

    def map(self, x: Tensor) -> Tensor:
        """What to add, for images of the size of ``x``."""
        convolution: Any = (F.conv1d, F.conv2d, F.conv3d)[x.dim() - 3]
        return convolution(self.weight.new_ones(1, 1, *x.shape[2:]), self.weight, None, *self.options)


def add_into(own: Tensor, other: Tensor) -> Tensor:
    """The sum, written into ``own`` unless that is of another type than ``other``, as under autocast."""
    return own.add_(other) if own.dtype == other.dtype else own + other


def full_shape(x: Tensor, axis: int, channels: int) -> torch.Size:
    """The shape that ``x`` had with all its channels."""
    return torch.Size([*x.shape[:axis], channels, *x.shape[axis + 1 :]])
