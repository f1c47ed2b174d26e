"""Where every value lies: one arena, planned before the first image comes.

All values with planes of one size have the same zeros around them, as many as any layer sees beyond the edge. They
share places in the arena with nothing but each other, so the zeros are written once, when the context is made. Between
the rows of a plane lie ``wide`` zeros, between the planes ``high`` rows of them; a row's left border is the end of the
row before. Values without borders share their places whatever their shape.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .fuse import used_shifts, views
from .network import Affine, Layer, Network, Op, Pointwise, Value

WIDTHS = (4, 8, 16)  # numbers in a vector, of the machines that the source is compiled for


@dataclass
class Planes:
    """The rows and columns of some values, and how far layers look beyond them."""

    number: int
    h: int
    w: int
    high: int = 0
    wide: int = 0

    @property
    def bordered(self) -> bool:
        return bool(self.high or self.wide)

    def step(self, vector: int, lanes: int) -> int:
        """From row to row, in pixels: the C macro GP_STEP."""
        if self.w * lanes % vector:
            return self.w + self.wide
        return -(-(self.w + self.wide) * lanes // vector) * vector // lanes

    def plane(self, vector: int, lanes: int) -> int:
        """From channel to channel: the C macro GP_PLANE."""
        return (self.h + self.high) * self.step(vector, lanes)

    def front(self, vector: int, lanes: int) -> int:
        """Numbers before the first pixel, so that it lies at a multiple of sixteen."""
        return -(-(self.high * self.step(vector, lanes) + self.wide) * lanes // 16) * 16


@dataclass
class Slot:
    """A place in the arena for values of the same planes, or for any without borders, one after the other."""

    planes: Planes | None
    channels: int = 0  # of the largest value; numbers per image where there are no borders
    busy_until: int = -1

    def size(self, vector: int, lanes: int) -> int:
        """Numbers that it takes in the arena, for ``lanes`` interleaved images."""
        if self.planes is None:
            return -(-self.channels * lanes // 16) * 16
        front = self.planes.front(vector, lanes)
        return 2 * front + -(-self.channels * self.planes.plane(vector, lanes) * lanes // 16) * 16


@dataclass
class Memory:
    """The planes of every size, and the slot of every value."""

    planes: dict[tuple[int, int], Planes] = field(default_factory=dict)
    slots: list[Slot] = field(default_factory=list)
    place: dict[Value, int] = field(default_factory=dict)

    def of(self, value: Value) -> Planes:
        return self.planes[value.planes[1:]]

    def arena(self, vector: int, lanes: int) -> int:
        """The arena's size in numbers, with room behind it for a vector that is read and not used."""
        return sum(slot.size(vector, lanes) for slot in self.slots) + 4 * vector


def planned(network: Network) -> Memory:
    """Borders from what the layers read, then places from when values are needed."""
    memory = Memory()
    values = [*network.inputs, *(op.output for op in network.ops)]
    for value in values:
        size = value.planes[1:]
        memory.planes.setdefault(size, Planes(len(memory.planes), *size))
    for op in network.ops:
        if isinstance(op, Layer):
            planes = memory.of(op.inputs[0])
            sizes, ends = (planes.h, planes.w), op.output.planes[1:]
            far = [0, 0]
            for shift in used_shifts(op):
                for axis in (0, 1):
                    a = shift[axis] // op.stride[axis]
                    far[axis] = max(far[axis], -a, ends[axis] + a - sizes[axis])
            planes.high, planes.wide = max(planes.high, far[0]), max(planes.wide, far[1])
    _place(network, memory, values)
    return memory


def _inherited(op: Op, memory: Memory) -> Value | None:
    """The input that an operation may overwrite with its output: each number is read just before it is written."""
    if isinstance(op, (Pointwise, Affine)):
        return op.inputs[0]
    if isinstance(op, Layer) and len(op.inputs) > 1 and memory.place[op.inputs[0]] != memory.place[op.inputs[1]]:
        return op.inputs[1]
    return None


def _place(network: Network, memory: Memory, values: list[Value]) -> None:
    made = {op.output: i for i, op in enumerate(network.ops)}
    last = {value: made.get(value, -1) for value in values}
    for i, op in enumerate(network.ops):
        last |= dict.fromkeys(op.inputs, i)
    last |= dict.fromkeys(network.outputs, len(network.ops))
    same: dict[Value, Value] = {}  # a view lies where its input lies
    for op in views(network):
        source, target = op.inputs[0], op.output
        if not memory.of(source).bordered and not memory.of(target).bordered:
            same[target] = source = same.get(source, source)
            last[source] = max(last[source], last[target])
    for value in values:
        if value in same:
            memory.place[value] = memory.place[same[value]]
            continue
        planes = memory.of(value) if memory.of(value).bordered else None
        size = value.planes[0] if planes else value.size
        start = made.get(value, -1)
        free = [s for s in memory.slots if s.planes is planes and s.busy_until < start]
        if start >= 0 and (left := _inherited(network.ops[start], memory)) is not None:
            inherited = memory.slots[memory.place[left]]
            if inherited.planes is planes and inherited.busy_until == start:
                free.append(inherited)
        slot = min(free, key=lambda s: (max(0, size - s.channels), abs(s.channels - size)), default=None)
        if slot is None:
            slot = Slot(planes)
            memory.slots.append(slot)
        slot.channels, slot.busy_until = max(slot.channels, size), last[value]
        memory.place[value] = next(i for i, s in enumerate(memory.slots) if s is slot)
