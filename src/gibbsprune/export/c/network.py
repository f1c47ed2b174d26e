"""A network as a list of operations on planes: what lies between the ATen graph and the C source.

A value is what one image has at one place of the network: channels, rows and columns. Two axes are channels of one row,
one axis is channels of one pixel, and of more than three the last two are rows and columns. Everything here is known
before the first image comes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

MOST_LOOPS = 5  # within one another, in a move that turns axes round


@dataclass(eq=False)
class Value:
    """What one image has at one place."""

    shape: tuple[int, ...]

    @property
    def planes(self) -> tuple[int, int, int]:
        """Channels, rows and columns; further axes, which only moves know, count as channels."""
        *rest, w = self.shape[1:] or (1,)
        h = rest[-1] if rest else 1
        return self.size // (h * w), h, w

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Act:
    """An activation of the C kernels, with its two numbers."""

    kind: str = "NONE"
    p: float = 0.0
    q: float = 0.0


NONE = Act()


@dataclass(eq=False)
class Op:
    """An operation: what it reads, the first of them first, and what it writes."""

    inputs: list[Value]
    output: Value


@dataclass(eq=False)
class Layer(Op):
    """A convolution, of one pixel for a dense layer; a second input is added before the activation."""

    weight: Tensor  # (filters, inputs of a group, rows, columns)
    bias: Tensor
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    act: Act = NONE

    def shifts(self, axis: int) -> list[int]:
        """Where the kernel reads on this axis, relative to stride × the output's place."""
        return [k * self.dilation[axis] - self.padding[axis] for k in range(self.weight.shape[2 + axis])]


@dataclass(eq=False)
class Phases(Op):
    """Every stride-th row and column of the input, for each of the phases: the planes that strided layers read."""

    stride: tuple[int, int]
    phases: list[tuple[int, int]]


@dataclass(eq=False)
class Pointwise(Op):
    """An activation by itself."""

    act: Act


@dataclass(eq=False)
class Affine(Op):
    """scale · x + shift for each channel; with ``slope`` only where x is negative."""

    scale: Tensor
    shift: Tensor
    slope: bool = False


@dataclass(eq=False)
class Join(Op):
    """Sum, difference, product or quotient of two values, the second perhaps of fewer axes: "+", "-", "*", "/"."""

    kind: str


@dataclass(eq=False)
class Product(Op):
    """The matrix products of the last two axes, one for each place of the others."""


@dataclass(eq=False)
class Constant(Op):
    """Numbers that are the same for every image."""

    numbers: Tensor


@dataclass(eq=False)
class Move(Op):
    """Numbers from one place to another: for each place of the output the place among all inputs, or -1 for a zero."""

    index: Tensor

    @property
    def view(self) -> bool:
        """Whether every number stays where it is."""
        return self.output.size == sum(x.size for x in self.inputs) == self.inputs[0].size and bool(
            (self.index.flatten().diff() == 1).all()
        )

    @property
    def loops(self) -> list[tuple[int, int]] | None:
        """Where it only turns axes of one input round: number and distance of each of them, the innermost first."""
        found: list[tuple[int, int]] = []
        starts = self.index.flatten()
        if len(self.inputs) > 1 or int(starts[0]) < 0:
            return None
        while len(starts) > 1:
            steps = starts.diff()
            step, breaks = int(steps[0]), (steps != steps[0]).nonzero()
            count = int(breaks[0]) + 1 if len(breaks) else len(starts)
            if len(starts) % count or len(found) == MOST_LOOPS:
                return None
            blocks = starts.view(-1, count)
            starts = blocks[:, 0]
            if not bool((blocks - starts[:, None] == step * torch.arange(count)).all()):
                return None
            found.append((count, step))
        return found


@dataclass(eq=False)
class Concat(Op):
    """The channels of all inputs, one after the other."""


@dataclass(eq=False)
class Pool(Op):
    """Maxima or means of windows: for every output row and column first, end, step and divisor."""

    rows: list[tuple[int, int, int, int]]
    columns: list[tuple[int, int, int, int]]
    mean: bool


@dataclass(eq=False)
class Along(Op):
    """Softmax, or a layer norm with scale and shift, along one axis of (channels, rows, columns)."""

    axis: int
    scale: Tensor | None = None
    shift: Tensor | None = None
    eps: float = 0.0


@dataclass
class Network:
    """Operations in the order in which they run."""

    inputs: list[Value]
    outputs: list[Value]
    ops: list[Op] = field(default_factory=list)

    def add(self, op: Op) -> Value:
        """Append an operation; its output."""
        self.ops.append(op)
        return op.output

    def moved(self, x: Value, index: Tensor) -> Value:
        """Some numbers of one value in another order, or zeros where the index is -1; its shape is the index's."""
        return self.add(Move([x], Value(tuple(index.shape)), index.reshape(-1)))

    def viewed(self, x: Value, shape: tuple[int, ...]) -> Value:
        """The same numbers, under another shape."""
        return x if x.shape == shape else self.moved(x, torch.arange(x.size).reshape(shape))

    def turned(self, x: Value, order: Sequence[int]) -> Value:
        """The axes in another order."""
        return self.moved(x, torch.arange(x.size).reshape(x.shape).permute(*order))

    def expanded(self, x: Value, shape: tuple[int, ...]) -> Value:
        """Repeated along axes of one."""
        return x if x.shape == shape else self.moved(x, torch.arange(x.size).reshape(x.shape).expand(shape))

    def readers(self, value: Value) -> int:
        """How often a value is read, by operations and as an output."""
        return sum(op.inputs.count(value) for op in self.ops) + self.outputs.count(value)
