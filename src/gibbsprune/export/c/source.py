"""The C source and header of a network, and a small program that runs it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from string import Template

import numpy as np

from gibbsprune.export.c.calls import Calls
from gibbsprune.export.c.memory import WIDTHS, Memory, planned
from gibbsprune.export.c.network import Layer, Network, Phases, Value
from gibbsprune.export.c.pack import packed, together

COMMAND = "cc -O3 -march=native -ffp-contract=fast"
HEADER = Template("""\
/* $net: a network in C, written by gibbsprune; see $net.c. */
#ifndef ${NET}_H
#define ${NET}_H
#include <stdint.h>

$shapes
#ifndef ${NET}_LANES
#define ${NET}_LANES 0 /* 1: batches are computed several images side by side, in a second arena */
#endif
#ifndef ${NET}_SHARED
#define ${NET}_SHARED 0 /* 1: several threads can compute one image together, see ${net}_share */
#endif
#if ${NET}_SHARED
#include <stdatomic.h>
#endif
#define ${NET}_ARENA $arena /* floats */
#define ${NET}_MANY $many /* floats of the second arena */

/* The weights, expanded from the few bytes in the source; threads share them. */
typedef struct {
  float bias[$bias], value[$value];
  int32_t offset[$offset], begin[$begin];
#if ${NET}_LANES
  int32_t many[$offset];
#endif
} ${net}_model;

/* What each thread needs to run the network. */
typedef struct {
#if ${NET}_LANES
  int side; /* from how many images on they are computed side by side */
  _Alignas(64) float many[${NET}_MANY];
#endif
#if ${NET}_SHARED
  _Alignas(64) atomic_int arrived;
  _Alignas(64) atomic_int turn;
#endif
  _Alignas(64) float arena[${NET}_ARENA];
} ${net}_context;

extern const unsigned char *const ${net}_weights;
void ${net}_load(const unsigned char *weights, ${net}_model *model); /* once, with ${net}_weights */
void ${net}_init(${net}_context *context);                           /* once for each context */
void ${net}_run(const ${net}_model *model, ${net}_context *context, int images, $arguments);
#if ${NET}_SHARED
/* One image by several threads: each of them calls this with the same context and a part of its own, from 0 on. */
void ${net}_share(const ${net}_model *model, ${net}_context *context, int part, int parts, $arguments);
#endif
#endif
""")
SOURCE = Template("""\
/* $net: a network in C, written by gibbsprune. C11 with the vector extensions of GCC and Clang, libc and libm.
   $command -c $net.c */
#include "$net.h"
#include <math.h>
#include <stddef.h>
#include <string.h>
#if ${NET}_SHARED
#include <sched.h>
#endif
#define GP_INPUT $kind

$kernels
/* The planes of this network, its places in the arena, and those of its expanded weights. */
$geometry
$places
$tables

/* A layer's kernel is compiled twice, for one image and for as many as a vector holds. */
#define GP_KERNEL(k, ...)                                                                  \\
  GP_STATIC void gp_one_##k(const float *x, float *y, const float *z, gp_taps w, int f, int n) {  \\
    enum { L = 1 };                                                                        \\
    (void)z;                                                                               \\
    __VA_ARGS__                                                                            \\
  }                                                                                        \\
  GP_STATIC void gp_many_##k(const float *x, float *y, const float *z, gp_taps w, int f, int n) { \\
    enum { L = GP_V };                                                                     \\
    (void)z;                                                                               \\
    __VA_ARGS__                                                                            \\
  }
#if ${NET}_LANES
#define GP_MANY m->many
#else
#define GP_MANY (int32_t *)0
#endif
/* Layer i by kernel k, K filters together: this thread's part of n filters. */
#define GP_CALL(k, i, K, x, y, z, n)                                                                        \\
  {                                                                                                         \\
    const int32_t *begin = m->begin + BEGIN##i;                                                             \\
    const int first = gp_first(begin, GP_UP(n, K), part, parts) * (K);                                      \\
    const int end = gp_first(begin, GP_UP(n, K), part + 1, parts) * (K);                                    \\
    const int32_t *offset = ((L) == 1 ? m->offset : GP_MANY) + OFFSET##i;                                   \\
    ((L) == 1 ? gp_one_##k : gp_many_##k)(x, y, z, (gp_taps){m->bias + BIAS##i, m->value + VALUE##i, offset, begin}, \\
                                          first, GP_LESS(end, n));                                          \\
    gp_wait(c, parts);                                                                                      \\
  }
#define GP_ALONE(...)                  \\
  {                                    \\
    if (part == 0) { __VA_ARGS__ }     \\
    gp_wait(c, parts);                 \\
  }

$layers

void ${net}_load(const unsigned char *data, ${net}_model *m) {
#if ${NET}_LANES
#define GP_SIDE(i) m->many + OFFSET##i
#else
#define GP_SIDE(i) 0
#endif
#define GP_LOAD(i)                                                                               \\
  data = gp_expand(data, &shape, m->bias + BIAS##i, m->value + VALUE##i, m->offset + OFFSET##i, \\
                   GP_SIDE(i), m->begin + BEGIN##i)
$loads
  (void)data, (void)m;
}

/* All threads of an image wait here for each other before the next operation. */
GP_INLINE void gp_wait(${net}_context *c, const int parts) {
#if ${NET}_SHARED
  if (parts == 1) return;
  const int turn = atomic_load(&c->turn);
  if (atomic_fetch_add(&c->arrived, 1) == parts - 1) {
    atomic_store(&c->arrived, 0);
    atomic_fetch_add(&c->turn, 1);
  } else {
    for (int n = 0; atomic_load(&c->turn) == turn; n++)
      if (n > 4000) sched_yield();
  }
#else
  (void)c, (void)parts;
#endif
}

/* Layers are shared out among the parts; the first part alone does the rest. */
GP_INLINE void gp_forward(const ${net}_model *m, ${net}_context *c, float *a, $arguments, const int L, const int part,
                          const int parts) {
$calls
  (void)m;
}

void ${net}_init(${net}_context *c) {
  memset(c, 0, sizeof *c);
#if ${NET}_LANES
  c->side = GP_V;
#endif
}

void ${net}_run(const ${net}_model *m, ${net}_context *c, int images, $arguments) {
  int i = 0;
#if ${NET}_LANES
  for (; images >= c->side && i + GP_V <= images; i += GP_V) gp_forward(m, c, c->many, $given, GP_V, 0, 1);
#endif
  for (; i < images; i++) gp_forward(m, c, c->arena, $given, 1, 0, 1);
}

#if ${NET}_SHARED
void ${net}_share(const ${net}_model *m, ${net}_context *c, int part, int parts, $arguments) {
  gp_forward(m, c, c->arena, $names, 1, part, parts);
}
#endif

$weights
""")
MAIN = Template("""\
/* $command main.c $net.c -lm -o $net */
#include <stdio.h>
#include "$net.h"

static ${net}_model model;
static ${net}_context context;
$arrays

int main(void) {
  ${net}_load(${net}_weights, &model);
  ${net}_init(&context);
  ${net}_run(&model, &context, 1, $names);
  for (int i = 0; i < $first; i++) printf("%g\\n", output$suffix[i]);
  return 0;
}
""")


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
        return HEADER.substitute(
            self._names(), shapes="\n".join(shapes), arena=self.arena(), many=self.arena(True), **self.sizes()
        )

    def source(self, weights: bool = True) -> str:
        """The whole source; without weights for a program that hands them to ``load`` itself."""
        return SOURCE.substitute(
            self._names(),
            kernels=(resources.files(__package__) / "kernels.c").read_text(encoding="utf-8"),
            geometry="\n".join(self._geometry()),
            places="\n".join(self._places()),
            tables="\n".join(self.calls.tables),
            layers="\n".join(self.calls.kernels.values()),
            loads="\n".join(self._loads()),
            calls="\n".join(f"  {line if line.startswith('GP_CALL') else f'GP_ALONE({line})'}" for line in self.lines),
            names=", ".join(name for name, _, _ in (*self.inputs, *self.outputs)),
            given=", ".join(f"{name} + (long)i * {macro}" for name, macro, _ in (*self.inputs, *self.outputs)),
            weights=self._weights() if weights else f"const unsigned char *const {self.name}_weights = 0;",
        )

    def example(self) -> str:
        """A program that runs the network on one image of zeros."""
        arrays = [f"static {self.kind} {name}[{macro}];" for name, macro, _ in self.inputs]
        arrays += [f"static float {name}[{macro}];" for name, macro, _ in self.outputs]
        names = ", ".join(name for name, _, _ in (*self.inputs, *self.outputs))
        first, macro, _ = self.outputs[0]
        return MAIN.substitute(
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
            if layer.dense and len(x.shape) > 1:
                place = "0, 1, 0, 1"
            found = phases.get(x, [(0, 0)]) if layer.stride != (1, 1) else [(0, 0)]
            table = [found.index((a, b)) if (a, b) in found else 0 for a in range(sh) for b in range(sw)]
            numbers = *layer.weight.shape, layer.groups, *layer.dilation, *layer.padding, sh, sw, len(found)
            shape = f"{', '.join(map(str, numbers))}, {'GP_K' if several else 1}, phase, {place}"
            lines.append(
                f"  {{\n    static const int16_t phase[] = {{{', '.join(map(str, table))}}};\n"
                f"    const gp_shape shape = {{{shape}}};\n    GP_LOAD({i});\n  }}"
            )
        return lines

    def _enter(self) -> list[str]:
        lines = []
        for name, _, x in self.inputs:
            c, h, w = x.planes
            order = f"{h * w}, {w}, 1" if self.scale is None else f"1, {w * c}, {c}"
            scale, shift = self.scale or [1.0] * c, self.shift or [0.0] * c
            held = self.calls.table("float", scale), self.calls.table("float", shift)
            place = f"{self.calls.at(x)}, {c}, {h}, {w}, L, {self.calls.strides(x)}"
            lines.append(f"gp_enter({name}, {place}, {order}, {', '.join(held)});")
        return lines

    def _leave(self) -> list[str]:
        return [
            "gp_leave({}, {}, {}, {}, {}, L, {});".format(self.calls.at(x), name, *x.planes, self.calls.strides(x))
            for name, _, x in self.outputs
        ]

    def _weights(self) -> str:
        words = np.frombuffer(self.data + b"\0" * (8 - len(self.data) % 8), dtype="<u8")
        lines = [", ".join(f"0x{word:x}u" for word in words[i : i + 8]) for i in range(0, len(words), 8)]
        return (
            "/* The weights: biases, positions of the survivors, their values; little-endian. */\n"
            "static const uint64_t gp_data[] = {\n" + ",\n".join(lines) + "};\n"
            f"const unsigned char *const {self.name}_weights = (const unsigned char *)gp_data;"
        )


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
