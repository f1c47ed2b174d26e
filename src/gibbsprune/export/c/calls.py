"""One call of a C kernel for each operation of a network, and the constant tables that the calls name.

In these lines ``L`` is the number of images that lie side by side, ``a + Ai(L)`` the place of slot i in the arena,
``Si(L)`` and ``Di(L)`` the distances of rows and of channels in planes of kind i.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .memory import Memory
from .network import (
    MOST_LOOPS,
    Act,
    Affine,
    Along,
    Constant,
    Join,
    Layer,
    Move,
    Network,
    Op,
    Phases,
    Pointwise,
    Pool,
    Product,
    Value,
)
from .pack import worth_sharing


class Calls:
    """The lines of a network's forward pass, its tables, and its layers' kernels, one for all layers of a shape.

    With each line comes whether several threads should share it.
    """

    def __init__(self, network: Network, memory: Memory, together: dict[Layer, bool]) -> None:
        self.memory, self.together = memory, together
        self.number = {layer: i for i, layer in enumerate(together)}
        self.tables: list[str] = []
        self.kernels: dict[str, str] = {}
        self.lines = [(line, worth_sharing(op)) for op in network.ops for line in WRITERS[type(op)](self, op)]

    def at(self, value: Value) -> str:
        """Where a value lies."""
        return f"a + A{self.memory.place[value]}(L)"

    def strides(self, value: Value) -> str:
        """From row to row and from channel to channel."""
        n = self.memory.of(value).number
        return f"S{n}(L), D{n}(L)"

    def plane(self, value: Value) -> str:
        """From channel to channel."""
        return f"D{self.memory.of(value).number}(L)"

    def ends(self, op: Op) -> str:
        """Where an operation reads and where it writes."""
        return f"{self.at(op.inputs[0])}, {self.at(op.output)}"

    def table(self, kind: str, numbers: Tensor | np.ndarray | Sequence[Any]) -> str:
        """The name of a table of constants."""
        array = np.asarray(numbers).reshape(-1)
        texts = [number(x) for x in array] if kind == "float" else [str(int(x)) for x in array]
        self.tables.append(f"static const {kind} table{len(self.tables)}[] = {{{', '.join(texts)}}};")
        return f"table{len(self.tables) - 1}"

    def layer(self, op: Layer) -> Iterator[str]:
        x, y = op.inputs[0], op.output
        (_, h, w), nx, ny = y.planes, self.memory.of(x).number, self.memory.of(y).number
        shape = f"{h}, {w}, L, S{nx}(L), S{ny}(L), D{ny}(L)"
        other = self.at(op.inputs[1]) if len(op.inputs) > 1 else "0"
        together = "GP_K" if self.together[op] else "1"
        body = f"gp_layer({together}, x, y, {'z' if other != '0' else '0'}, w, n, part, parts, {shape}, {act(op.act)});"
        kernel = list(self.kernels).index(body) if body in self.kernels else len(self.kernels)
        self.kernels[body] = f"GP_KERNEL({kernel}, {body})"
        yield f"GP_CALL({kernel}, {self.number[op]}, {self.ends(op)}, {other}, {len(op.weight)})"

    def pointwise(self, op: Pointwise) -> Iterator[str]:
        c, h, w = op.output.planes
        yield f"gp_pointwise({self.ends(op)}, {c}, {h}, {w}, L, {self.strides(op.output)}, {act(op.act)});"

    def affine(self, op: Affine) -> Iterator[str]:
        c, h, w = op.output.planes
        scale, shift = self.table("float", op.scale.float()), self.table("float", op.shift.float())
        strides = self.strides(op.output)
        yield f"gp_affine({self.ends(op)}, {scale}, {shift}, {c}, {h}, {w}, L, {strides}, {int(op.slope)});"

    def join(self, op: Join) -> Iterator[str]:
        x, z = op.inputs
        (c, h, w), (zc, zh, zw), n = op.output.planes, z.planes, self.memory.of(z).number
        steps = f"{f'D{n}(L)' if zc == c else 0}, {f'S{n}(L)' if zh == h else 0}, {int(zw == w)}"
        places = f"{self.at(x)}, {self.at(z)}, {self.at(op.output)}"
        yield f"gp_join({places}, {c}, {h}, {w}, L, {self.strides(op.output)}, {steps}, '{op.kind}');"

    def product(self, op: Product) -> Iterator[str]:
        x, z, y = (*op.inputs, op.output)
        (c, h, w), inner = y.planes, x.shape[-1]
        places = f"{self.at(x)}, {self.at(z)}, {self.at(y)}"
        strides = [self.strides(value) for value in (x, z, y)]
        if len(y.shape) == 2:  # the rows of a matrix are channels
            c, h, strides = 1, c, [f"{self.plane(value)}, 0" for value in (x, z, y)]
        yield f"gp_product({places}, {c}, {h}, {inner}, {w}, L, {', '.join(strides)});"

    def constant(self, op: Constant) -> Iterator[str]:
        place = f"{self.at(op.output)}, {', '.join(map(str, op.output.planes))}, L, {self.strides(op.output)}"
        yield f"gp_constant({self.table('float', op.numbers.float())}, {place});"

    def phases(self, op: Phases) -> Iterator[str]:
        x, y = op.inputs[0], op.output
        (xc, xh, xw), (_, h, w), (a, b) = x.planes, y.planes, op.stride
        (row, plane), source = self.strides(y).split(", "), self.strides(x)
        for i, (v, u) in enumerate(op.phases):
            rows, columns = max(0, min(h, -(-(xh - v) // a))), max(0, min(w, -(-(xw - u) // b)))
            yield (
                f"gp_phase({self.at(x)}, {self.at(y)} + {i} * {plane} * L, {xc}, {h}, {w}, L, {source}, {row}, "
                f"{len(op.phases)} * {plane}, {rows}, {columns}, {a}, {b}, {v}, {u});"
            )

    def pool(self, op: Pool) -> Iterator[str]:
        x, y = op.inputs[0], op.output
        (_, xh, xw), (c, h, w) = x.planes, y.planes
        if op.mean and op.rows == [(0, xh, 1, xh)] and op.columns == [(0, xw, 1, xw)]:
            yield f"gp_mean({self.ends(op)}, {c}, {xh}, {xw}, L, {self.strides(x)}, {self.plane(y)});"
            return
        windows = f"{self.table('int32_t', op.rows)}, {self.table('int32_t', op.columns)}, {int(op.mean)}"
        yield f"gp_pool({self.ends(op)}, {c}, {h}, {w}, L, {self.strides(x)}, {self.strides(y)}, {windows});"

    def along(self, op: Along) -> Iterator[str]:
        (c, h, w), (row, plane) = op.output.planes, self.strides(op.output).split(", ")
        axes = [f"{c}, {plane}", f"{h}, {row}", f"{w}, 1"]
        axes.append(axes.pop(op.axis))
        if op.scale is None or op.shift is None:
            yield f"gp_softmax({self.ends(op)}, {', '.join(axes)}, L);"
        else:
            scale, shift = self.table("float", op.scale.float()), self.table("float", op.shift.float())
            yield f"gp_norm({self.ends(op)}, {scale}, {shift}, {', '.join(axes)}, L, {number(op.eps)});"

    def move(self, op: Move) -> Iterator[str]:
        y, free = op.output, not any(self.memory.of(value).bordered for value in (*op.inputs, op.output))
        if op.view and self.memory.place[op.inputs[0]] == self.memory.place[y]:
            return
        if free and (loops := op.loops) is not None:
            loops = [*loops, *[(1, 0)] * (MOST_LOOPS - len(loops))]
            yield f"gp_turn({self.ends(op)}, {int(op.index[0])}, L, {', '.join(f'{n}, {step}' for n, step in loops)});"
            return
        start, whole = 0, by_channels(op)
        for x in op.inputs:
            index = torch.where((op.index >= start) & (op.index < start + x.size), op.index - start, -2)
            if x is op.inputs[0]:
                index = torch.where(op.index < 0, -1, index)
            start += x.size
            (_, xh, xw), (_, h, w) = x.planes, y.planes
            if whole:
                firsts = index[:: h * w]
                pieces = runs(torch.where(firsts < 0, firsts, firsts // (h * w)), len(index), len(index))
                sides = f"{h}, {w}, {self.strides(y)}"
            else:
                pieces = runs(index, xw, w)
                sides = f"{xh}, {xw}, {self.strides(x)}, {h}, {w}, {self.strides(y)}"
            kind = "gp_planes" if whole else "gp_move"
            table = self.table("int32_t", pieces)
            yield f"{kind}({self.at(x)}, {self.at(y)}, {table}, {len(pieces)}, L, {sides});"


WRITERS: dict[type[Op], Callable[[Calls, Any], Iterator[str]]] = {
    Layer: Calls.layer,
    Pointwise: Calls.pointwise,
    Affine: Calls.affine,
    Join: Calls.join,
    Product: Calls.product,
    Constant: Calls.constant,
    Phases: Calls.phases,
    Pool: Calls.pool,
    Along: Calls.along,
    Move: Calls.move,
}


def act(given: Act) -> str:
    """An activation as arguments of a kernel."""
    return f"GP_{given.kind}, {number(given.p)}, {number(given.q)}"


def number(x: float) -> str:
    """A float32 constant that reads back as the same number."""
    value = float(np.float32(x))
    if math.isnan(value) or math.isinf(value):
        return "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"
    text = f"{value:.9g}"
    return text + ("f" if "." in text or "e" in text else ".0f")


def by_channels(op: Move) -> bool:
    """Whether a move takes whole channels of planes of one size, or zeros."""
    _, h, w = op.output.planes
    rows = op.index.view(-1, h * w)
    first = rows[:, :1]
    along = torch.where(first < 0, first, first + torch.arange(h * w))
    return (
        all(x.planes[1:] == (h, w) for x in op.inputs)
        and bool((rows == along).all())
        and bool(((first < 0) | (first % (h * w) == 0)).all())
    )


def runs(index: Tensor, from_row: int, to_row: int) -> list[tuple[int, int, int, int]]:
    """To, from, number and distance of every piece that lies within a row on both sides.

    From -1 come zeros; what comes from -2 is left out.
    """
    at, place = torch.arange(len(index)), index.clone()
    steps = torch.cat([torch.zeros(1, dtype=torch.long), place.diff()])
    row = torch.where(place < 0, place, place // from_row)
    hard = (at % to_row == 0) | torch.cat([torch.ones(1, dtype=torch.bool), row.diff() != 0])
    changed = torch.cat([torch.ones(1, dtype=torch.bool), steps.diff() != 0]) & ~hard
    begins, before = hard.clone(), -1
    for i in (hard | changed).nonzero().flatten().tolist():
        begins[i] = bool(hard[i]) or before < i - 1  # the second of a piece may be at any distance of the first
        before = i if begins[i] else before
    first = begins.nonzero().flatten()
    count = torch.cat([first, torch.tensor([len(index)])]).diff()
    after = steps[(first + 1).clamp(max=len(index) - 1)]
    step = torch.where((count > 1) & (place[first] >= 0), after, 1)
    pieces = torch.stack([first, place[first], count, step], 1)
    return [tuple(piece) for piece in pieces[pieces[:, 1] >= -1].tolist()]
