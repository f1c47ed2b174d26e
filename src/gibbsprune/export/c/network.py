"""A network as a list of operations on planes: what lies between the ATen graph and the C source.

A value is what one image has at one place of the network, of up to three axes: channels, rows and columns. Two axes
are channels of one row, one axis is channels of one pixel. Everything here is known before the first image comes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor

from ...errors import UserError


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
    """A convolution, or a dense layer along the last axis; a second input is added before the activation."""

    weight: Tensor  # (filters, inputs of a group, rows, columns)
    bias: Tensor
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    act: Act = NONE
    dense: bool = False  # a dense layer, whose inputs are the last axis

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
class Move(Op):
    """Numbers from one place to another: for each place of the output the place of the input, or -1 for a zero."""

    index: Tensor

    @property
    def view(self) -> bool:
        """Whether every number stays where it is."""
        return self.output.size == self.inputs[0].size and bool((self.index.flatten().diff() == 1).all())


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
        """Append an operation; its output. Only moves know more than three axes."""
        if not isinstance(op, Move) and any(len(x.shape) > 3 for x in (*op.inputs, op.output)):
            raise UserError(f"a value of {op.output.shape} per image cannot be written as C; at most 3 axes can.")
        self.ops.append(op)
        return op.output

    def readers(self, value: Value) -> int:
        """How often a value is read, by operations and as an output."""
        return sum(op.inputs.count(value) for op in self.ops) + self.outputs.count(value)
