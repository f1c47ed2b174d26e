"""The C source and header of a network, and a small program that runs it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from string import Template

import numpy as np

from .calls import Calls
from .memory import WIDTHS, Memory, planned
from .network import Layer, Network, Phases, Value
from .pack import packed, together

COMMAND = "cc -O3 -march=native -ffp-contract=fast"


@dataclass
class Source:
    """The text of a network and its weights as bytes, for the batch size at which it is to be fast.

    With ``scale`` and ``shift`` the inputs are raw pixels, uint8 of (rows, columns, channels).
    """

    network: Network
    name: str
    batch: int
    dtype: str = "float32"
    scale: Sequence[float] | None = None
    shift: Sequence[float] | None = None
    class_names: Sequence[str] = ()
    memory: Memory = field(init=False)
    data: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.memory = planned(self.network)
        layers = [op for op in self.network.ops if isinstance(op, Layer)]
        self.together = {layer: together(layer, self.batch) for layer in layers}
        self.data = b"".join(packed(layer, self.dtype) for layer in layers)
        self.calls = Calls(self.network, self.memory, self.together)
        self.kind = "float" if self.scale is None else "uint8_t"
        self.inputs, self.outputs = (
            [(f"{what}{i}", f"{self.name.upper()}_{what.upper()}{i}", x) for i, x in _numbered(values)]
            for what, values in (("input", self.network.inputs), ("output", self.network.outputs))
        )
        self.lines = [*self._enter(), *self.calls.lines, *self._leave()]

    def arena(self, lanes: bool = False) -> int:
        """Numbers in the arena, enough for every width of vectors."""
        return max(self.memory.arena(v, v if lanes else 1) for v in WIDTHS)

    def sizes(self) -> dict[str, int]:
        """Numbers of each kind in the expanded weights, enough for every machine."""
        each = [[_sizes(layer, K) for K in ((4, 8) if several else (1,))] for layer, several in self.together.items()]
        kinds = ("bias", "value", "offset", "begin")
        return {kind: 1 + sum(max(sizes[kind] for sizes in layer) for layer in each) for kind in kinds}

    def header(self) -> str:
        """The declarations that a program needs."""
        shapes = [
            f"#define {macro} {x.size} /* numbers of one image: {' x '.join(map(str, x.shape)) or 1} */"
            for _, macro, x in (*self.inputs, *self.outputs)
        ]
        if self.class_names:
            shapes.append(f"extern const char *const {self.name}_classes[{len(self.class_names)}];")
        return _text("template.h").substitute(
            self._names(), shapes="\n".join(shapes), arena=self.arena(), many=self.arena(True), **self.sizes()
        )

    def source(self, weights: bool = True) -> str:
        """The whole source; without weights for a program that hands them to ``load`` itself."""
        return _text("template.c").substitute(
            self._names(),
            kernels=_text("kernels.c").template,
            geometry="\n".join(self._geometry()),
            places="\n".join(self._places()),
            tables="\n".join(self.calls.tables),
            layers="\n".join(self.calls.kernels.values()),
            loads="\n".join(self._loads()),
            calls="\n".join(self._calls()),
            names=", ".join(name for name, _, _ in (*self.inputs, *self.outputs)),
            given=", ".join(f"{name} + (long)i * {macro}" for name, macro, _ in (*self.inputs, *self.outputs)),
            weights=self._weights() if weights else f"const unsigned char *const {self.name}_weights = 0;",
        )

    def team(self) -> str:
        """Threads that run the network together, for a library that this process loads."""
        names = self._names()
        given = ", ".join(f"t->{name} + (long)i * {macro}" for name, macro, _ in (*self.inputs, *self.outputs))
        fields = names["arguments"].replace(", ", "; ") + ";"
        assigned = " ".join(f"t->{name} = {name};" for name, _, _ in (*self.inputs, *self.outputs))
        return _text("team.c").substitute(names, fields=fields, given=given, assigned=assigned)

    def example(self) -> str:
        """A program that runs the network on one image of zeros."""
        arrays = [f"static {self.kind} {name}[{macro}];" for name, macro, _ in self.inputs]
        arrays += [f"static float {name}[{macro}];" for name, macro, _ in self.outputs]
        names = ", ".join(name for name, _, _ in (*self.inputs, *self.outputs))
        first, macro, _ = self.outputs[0]
        return _text("template_main.c").substitute(
            self._names(), arrays="\n".join(arrays), names=names, first=macro, suffix=first.removeprefix("output")
        )

    def _names(self) -> dict[str, str]:
        arguments = [f"const {self.kind} *{name}" for name, _, _ in self.inputs]
        arguments += [f"float *{name}" for name, _, _ in self.outputs]
        return {
            "net": self.name,
            "NET": self.name.upper(),
            "kind": self.kind,
            "arguments": ", ".join(arguments),
            "command": COMMAND,
        }

    def _geometry(self) -> list[str]:
        lines, before = [], "0"
        for p in self.memory.planes.values():
            lines.append(f"#define S{p.number}(L) ((long)GP_STEP({p.w}, {p.wide}, L))")
            lines.append(f"#define D{p.number}(L) GP_PLANE({p.h}, {p.high}, S{p.number}(L))")
        for i, slot in enumerate(self.memory.slots):
            front, size = "0", f"GP_ALIGNED({slot.channels} * (L))"
            if (q := slot.planes) is not None:
                front = f"GP_ALIGNED(({q.high} * S{q.number}(L) + {q.wide}) * (L))"
                size = f"2 * {front} + GP_ALIGNED({slot.channels} * D{q.number}(L) * (L))"
            lines += [f"#define A{i}(L) ({before} + {front})", f"#define E{i}(L) ({before} + {size})"]
            before = f"E{i}(L)"
        for kind, lanes in (("ARENA", "1"), ("MANY", "GP_V")):
            end = before.replace("(L)", f"({lanes})")
            lines.append(
                f'_Static_assert({end} + 4 * GP_V <= {self.name.upper()}_{kind}, "the arena is large enough");'
            )
        return lines

    def _places(self) -> list[str]:
        """Where each layer's expanded weights begin."""
        lines, before = [], dict.fromkeys(("BIAS", "VALUE", "OFFSET", "BEGIN"), "0")
        for i, (layer, several) in enumerate(self.together.items()):
            lines.append(f"enum {{ {', '.join(f'{kind}{i} = {place}' for kind, place in before.items())} }};")
            before = {kind: f"{kind}{i} + {size}" for kind, size in zip(before, _texts(layer, several))}
        return lines

    def _loads(self) -> list[str]:
        """What expands the layers, one after the other."""
        lines = []
        phases = {op.output: op.phases for op in self.network.ops if isinstance(op, Phases)}
        for i, (layer, several) in enumerate(self.together.items()):
            x = layer.inputs[0]
            n, (sh, sw) = self.memory.of(x).number, layer.stride
            place = f"S{n}(1), D{n}(1), S{n}(GP_V), D{n}(GP_V)"
            found = phases.get(x, [(0, 0)]) if layer.stride != (1, 1) else [(0, 0)]
            table = [found.index((a, b)) if (a, b) in found else 0 for a in range(sh) for b in range(sw)]
            numbers = *layer.weight.shape, layer.groups, *layer.dilation, *layer.padding, sh, sw, len(found)
            shape = f"{', '.join(map(str, numbers))}, {'GP_K' if several else 1}, phase, {place}"
            lines.append(
                f"  {{\n    static const int16_t phase[] = {{{', '.join(map(str, table))}}};\n"
                f"    const gp_shape shape = {{{shape}}};\n    GP_LOAD({i});\n  }}"
            )
        return lines

    def _calls(self) -> list[str]:
        """All lines; threads wait for each other where one of them did, or will do, what others need."""
        lines, before = [], False
        for line, shared in self.lines:
            if shared or before:
                lines.append("  gp_wait(c, parts);")
            part = "part, parts" if shared else "0, 1"
            call = line.replace("(", f"({part}, ", 1)
            lines.append(f"  {call}" if shared else f"  if (part == 0) {call}")
            before = shared
        return lines

    def _enter(self) -> list[tuple[str, bool]]:
        lines = []
        for name, _, x in self.inputs:
            c, h, w = x.planes
            order = f"{h * w}, {w}, 1" if self.scale is None else f"1, {w * c}, {c}"
            scale, shift = self.scale or [1.0] * c, self.shift or [0.0] * c
            held = self.calls.table("float", scale), self.calls.table("float", shift)
            place = f"{self.calls.at(x)}, {c}, {h}, {w}, L, {self.calls.strides(x)}"
            lines.append((f"gp_enter({name}, {place}, {order}, {', '.join(held)});", False))
        return lines

    def _leave(self) -> list[tuple[str, bool]]:
        line = "gp_leave({}, {}, {}, {}, {}, L, {});"
        values = [(self.calls.at(x), name, *x.planes, self.calls.strides(x)) for name, _, x in self.outputs]
        return [(line.format(*value), False) for value in values]

    def _weights(self) -> str:
        words = np.frombuffer(self.data + b"\0" * (8 - len(self.data) % 8), dtype="<u8")
        lines = [", ".join(f"0x{word:x}u" for word in words[i : i + 8]) for i in range(0, len(words), 8)]
        return (
            "/* The weights: biases, positions of the survivors, their values; little-endian. */\n"
            "static const uint64_t gp_data[] = {\n" + ",\n".join(lines) + "};\n"
            f"const unsigned char *const {self.name}_weights = (const unsigned char *)gp_data;" + self._classes()
        )

    def _classes(self) -> str:
        """The names of the classes as an array of strings."""
        if not self.class_names:
            return ""
        names = ", ".join(_string(name) for name in self.class_names)
        return f"\nconst char *const {self.name}_classes[{len(self.class_names)}] = {{{names}}};"


def _text(name: str) -> Template:
    """A C file of this package."""
    return Template((resources.files(__package__) / name).read_text(encoding="utf-8"))


def _string(text: str) -> str:
    """A string of C, in UTF-8."""
    plain = set(range(32, 127)) - {*b'"\\?'}
    return '"' + "".join(chr(b) if b in plain else f"\\{b:03o}" for b in text.encode()) + '"'


def _numbered(values: Sequence[Value]) -> list[tuple[str, Value]]:
    return [("" if len(values) == 1 else f"_{i}", value) for i, value in enumerate(values)]


def _sizes(layer: Layer, K: int) -> dict[str, int]:
    """Numbers that an expanded layer takes, with K filters together."""
    filters, each = len(layer.weight), layer.weight[0].numel()
    if K == 1:
        survivors = int((layer.weight.float() != 0).sum())
        return {"bias": filters, "value": survivors, "offset": survivors, "begin": filters + 1}
    blocks = math.ceil(filters / K)
    return {"bias": blocks * K, "value": blocks * K * each, "offset": blocks * each, "begin": blocks + 1}


def _texts(layer: Layer, several: bool) -> list[str]:
    """The same in the same order, as constant expressions of the machine's own number of filters together."""
    if not several:
        return [str(size) for size in _sizes(layer, 1).values()]
    each, blocks = layer.weight[0].numel(), f"GP_UP({len(layer.weight)}, GP_K)"
    return [f"{blocks} * GP_K", f"{blocks} * GP_K * {each}", f"{blocks} * {each}", f"{blocks} + 1"]
