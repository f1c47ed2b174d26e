"""One call of a C kernel for each operation of a network, and the constant tables that the calls name.

In these lines ``L`` is the number of images that lie side by side, ``a + Ai(L)`` the place of slot i in the arena,
``Si(L)`` and ``Di(L)`` the distances of rows and of channels in planes of kind i.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from .memory import Memory
from .network import (
    Act,
    Affine,
    Along,
    Concat,
    Join,
    Layer,
    Move,
    Network,
    Op,
    Phases,
    Pointwise,
    Pool,
    Value,
)


class Calls:
    """The lines of a network's forward pass, its tables, and its layers' kernels, one for all layers of a shape."""

    def __init__(self, network: Network, memory: Memory, together: dict[Layer, bool]) -> None:
        self.memory, self.together = memory, together
        self.number = {layer: i for i, layer in enumerate(together)}
        self.tables: list[str] = []
        self.kernels: dict[str, str] = {}
        self.lines = [line for op in network.ops for line in WRITERS[type(op)](self, op)]

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
        (c, h, w), nx, ny = y.planes, self.memory.of(x).number, self.memory.of(y).number
        if op.dense and len(x.shape) > 1:
            shape = f"{c}, 1, L, D{nx}(L), D{ny}(L), 1"
        elif op.dense:
            shape = f"1, 1, L, 1, 1, D{ny}(L)"
        else:
            shape = f"{h}, {w}, L, S{nx}(L), S{ny}(L), D{ny}(L)"
        other = self.at(op.inputs[1]) if len(op.inputs) > 1 else "0"
        together = "GP_K" if self.together[op] else "1"
        body = f"gp_layer({together}, x, y, {'z' if other != '0' else '0'}, w, f, n, {shape}, {act(op.act)});"
        kernel = list(self.kernels).index(body) if body in self.kernels else len(self.kernels)
        self.kernels[body] = f"GP_KERNEL({kernel}, {body})"
        yield f"GP_CALL({kernel}, {self.number[op]}, {together}, {self.ends(op)}, {other}, {len(op.weight)})"

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

    def concat(self, op: Concat) -> Iterator[str]:
        (_, h, w), channels, n = op.output.planes, 0, self.memory.of(op.output).number
        for part in op.inputs:
            size = f"({part.planes[0] - 1} * D{n}(L) + {h - 1} * S{n}(L) + {w}) * L * 4"
            yield f"memcpy({self.at(op.output)} + {channels} * D{n}(L) * L, {self.at(part)}, (size_t){size});"
            channels += part.planes[0]

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
        x, y = op.inputs[0], op.output
        if self.memory.place[x] != self.memory.place[y]:
            pieces = runs(op)
            (_, xh, xw), (_, h, w) = x.planes, y.planes
            sides = f"{xh}, {xw}, {self.strides(x)}, {h}, {w}, {self.strides(y)}"
            yield f"gp_move({self.ends(op)}, {self.table('int32_t', pieces)}, {len(pieces)}, L, {sides});"


WRITERS: dict[type[Op], Callable[[Calls, Any], Iterator[str]]] = {
    Layer: Calls.layer,
    Pointwise: Calls.pointwise,
    Affine: Calls.affine,
    Join: Calls.join,
    Concat: Calls.concat,
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


def runs(op: Move) -> list[tuple[int, int, int, int]]:
    """To, from, number and distance of every piece that lies within a row on both sides; from -1 come zeros."""
    index = op.index.tolist()
    from_row, to_row = op.inputs[0].planes[2], op.output.planes[2]
    found, i = [], 0
    while i < len(index):
        end, start, n, step = min(len(index), (i // to_row + 1) * to_row), index[i], 1, 1
        row = start // from_row
        if start >= 0 and i + 1 < end and index[i + 1] // from_row == row:
            step = index[i + 1] - start
        while i + n < end and (
            index[i + n] == start + n * step and index[i + n] // from_row == row if start >= 0 else index[i + n] < 0
        ):
            n += 1
        found.append((i, start, n, step))
        i += n
    return found
