"""Products of matrices, and attention: what is multiplied by zero leaves in pairs, heads as a whole."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx

from .aten import shape
from .channels import Facts, LeftAlone, common, coordinates, mask_of, numbers, product, rows
from .joins import Operand
from .layers import Rule
from .plan import Plan


class Attention(Rule):
    """Scaled dot-product attention: whole heads leave, then rows of q and k in pairs, then rows of v.

    A product q_d k_d of which either is zero adds nothing. One whose k_d is constant adds the same to all scores of a
    row, which softmax does not see. Each head keeps its own pairs, as many as the head with most of them.
    """

    def __init__(self, plan: Plan, node: fx.Node) -> None:
        super().__init__(plan, node)
        args: Any = (*node.args, *[None] * (4 - len(node.args)))
        given: dict[str, Any] = {"dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}
        given |= dict(zip(("dropout_p", "is_causal"), node.args[4:])) | dict(node.kwargs)
        mask = args[3] if args[3] is not None else given.pop("attn_mask", None)
        if given["enable_gqa"]:
            raise LeftAlone("its heads share keys and values")
        self.mask = mask
        self.inputs = [*args[:3], *([mask] if mask is not None else [])]
        rank = len(shape(node))
        self.parts = [Operand(plan, n, rank) for n in self.inputs]
        if any(part.fixed for part in self.parts[:3]) or rank < 3:
            raise LeftAlone("it attends to constants")
        q, k, v = self.parts[:3]
        batch = [q.own.dims[d] for d in range(rank - 2)]
        for part in (k, v):
            for d in range(rank - 2):
                batch[d] = common(batch[d], part.own.dims[d])
        width = common(q.own.dims[-1], k.own.dims[-1])
        for part, last in ((q, width), (k, width), (v, v.own.dims[-1])):
            part.settle((*batch, part.own.dims[-2], last))
        if any(part.own.tracked(rank - 2) for part in (q, k, v)):
            raise LeftAlone("its tokens are channels")
        self.heads = sum(len(d) for d in batch)
        tracked = [any(p.facts.live.shape[a] > 1 for p in (q, k, v)) for a in range(self.heads)]
        last_q = [any(p.facts.live.shape[-len(width) :][i] > 1 for p in (q, k)) for i in range(len(width))]
        last_v = [n > 1 for n in v.facts.live.shape[-len(v.own.dims[-1]) :]]
        for part, last, flags in ((q, width, last_q), (k, width, last_q), (v, v.own.dims[-1], last_v)):
            tokens = part.own.dims[-2]
            part.settle((*batch, tokens, last), [*tracked, *[False] * len(tokens), *flags])
            part.facts = part.facts.spread(part.axes)
        if mask is not None:
            ends = self.parts[3].own.dims[-2:]
            self.parts[3].settle((*batch, *ends), [*tracked, *[False] * len(sum(ends, ()))])
        self.batch = batch
        scale = given["scale"]
        self.scale = scale if scale is not None else 1 / math.sqrt(shape(args[0])[-1])

    def facts(self) -> Facts:
        q, _, v = (part.facts for part in self.parts[:3])
        dims = (*self.batch, q.dims[-2], v.dims[-1])
        live = v.live if self.mask is None else v.live | v.value.ne(0)
        array = [*v.live.shape[: self.heads], *[1] * len(q.dims[-2]), *v.live.shape[-len(v.dims[-1]) :]]
        self.made = Facts.of(dims, live.reshape(array), v.value.reshape(array))
        return self.made

    def pairs(self, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """What is read of q and k, and of v; a head has some of both, or none."""
        q, k, v = (part.facts for part in self.parts[:3])
        values = wanted.reshape(v.live.shape) & ~v.zero
        ends = list(range(self.heads, wanted.dim()))
        heads = wanted
        for axis in ends:
            heads = heads.any(axis, True)
        heads = heads.reshape([*heads.shape[: self.heads], *[1] * (q.live.dim() - self.heads)])
        both = ~q.zero & k.live.reshape(q.live.shape) & heads
        return _some(both, heads, self.heads), _some(values, heads, self.heads)

    def wants(self, wanted: Tensor) -> list[Tensor | None]:
        both, values = (self.plan.rounded(m) for m in self.pairs(wanted))
        masks = (both, both.reshape(self.parts[1].facts.live.shape), values)
        size = self.plan.prefer == "size"  # constants, and what fills up a head, are put in later
        found = [part.want(m & part.facts.live if size else m) for part, m in zip(self.parts, masks)]
        if self.mask is not None:
            found.append(None if self.parts[3].fixed else torch.ones_like(self.plan.facts_of(self.mask).live))
        return found

    def edit(self, wanted: Tensor) -> Tensor:
        both, values = self.pairs(wanted)
        other = both.reshape(self.parts[1].facts.live.shape)
        grids = [rows(both), rows(other), rows(values)]
        arrays = [part.facts.live.shape for part in self.parts[:3]]
        nodes: list[Any] = [
            part.aligned(self.node, grid, array) for part, grid, array in zip(self.parts, grids, arrays)
        ]
        kwargs = {k: v for k, v in self.node.kwargs.items() if k != "attn_mask"}
        if self.mask is not None:
            array = torch.Size([*wanted.shape[: self.heads], *[1] * (self.parts[3].facts.live.dim() - self.heads)])
            first = grids[2].reshape([*grids[2].shape[: self.heads], -1])[..., 0]
            coords = coordinates(first, self.parts[2].facts.live.shape)[: self.heads]
            ones = [*first.shape, *[1] * (len(array) - self.heads)]
            zero = torch.zeros(ones, dtype=torch.long)
            grid = numbers([*(c.reshape(ones) for c in coords), *[zero] * (len(array) - self.heads)], array)
            nodes.append(self.parts[3].aligned(self.node, grid, array))
        self.node.args = (*nodes, *self.node.args[len(nodes) :])
        self.node.kwargs = {**kwargs, "scale": self.scale}
        sizes = grids[2].shape
        middle = wanted.dim() - self.heads - len(self.parts[2].own.dims[-1])
        return grids[2].reshape([*sizes[: self.heads], *[1] * middle, *sizes[-len(self.parts[2].own.dims[-1]) :]])


def _some(mask: Tensor, heads: Tensor, count: int) -> Tensor:
    """The mask with at least one atom in each of these heads, and none in others."""
    flat = mask.reshape(*mask.shape[:count], -1).clone()
    chosen = heads.reshape(*heads.shape[:count]).expand(flat.shape[:-1])
    flat &= chosen[..., None]
    flat[..., 0] |= chosen & ~flat.any(-1)
    return flat.reshape(mask.shape)


class Product(Rule):
    """The product of two tensors of matrices: terms of which either factor is zero leave in pairs."""

    def __init__(self, plan: Plan, node: fx.Node) -> None:
        super().__init__(plan, node)
        args: Any = node.args
        rank = len(shape(node))
        self.inputs = list(args[:2])
        if any(len(shape(n)) < 2 for n in self.inputs) or args[0] is args[1]:
            raise LeftAlone("it multiplies with a line of numbers, or a tensor with itself")
        self.parts = [Operand(plan, n, rank) for n in self.inputs]
        a, b = self.parts
        batch: list[tuple[int, ...]] = [(1,)] * (rank - 2)
        for part in self.parts:
            for d in range(rank - 2):
                if part.sizes[d] > 1:
                    batch[d] = common(batch[d], part.own.dims[d]) if batch[d] != (1,) else part.own.dims[d]
        inner = common(a.own.dims[-1], b.own.dims[-2])
        self.sides = (a.own.dims[-2], inner), (inner, b.own.dims[-1])
        for part, side in zip(self.parts, self.sides):
            part.settle((*batch, *side))
        self.heads = sum(len(d) for d in batch)
        tracked = [any(p.facts.live.shape[x] > 1 and not p.fixed for p in self.parts) for x in range(self.heads)]
        ends = [list(p.facts.live.shape[self.heads :]) for p in self.parts]
        m, n = len(a.own.dims[-2]), len(b.own.dims[-1])
        inside = [x > 1 or y > 1 for x, y in zip(ends[0][m:], ends[1][: len(inner)])]
        rows_of = [x > 1 and not a.fixed for x in ends[0][:m]]
        columns = [x > 1 and not b.fixed for x in ends[1][len(inner) :]]
        if (a.fixed or b.fixed) and not any(not p.fixed and p.facts.live.numel() > 1 for p in self.parts):
            inside = [False] * len(inner)
        flags = [*rows_of, *inside], [*inside, *columns]
        for part, side, flag in zip(self.parts, self.sides, flags):
            part.settle((*batch, *side), [*tracked, *flag])
            part.facts = part.facts.spread(part.axes)
        self.dims = (*batch, a.own.dims[-2], b.own.dims[-1])
        self.ragged = sum((any(rows_of), any(inside), any(columns))) <= 1
        self.ragged &= all(
            set(range(self.heads)) & set(p.axes) == {x for x in range(self.heads) if tracked[x]} for p in self.parts
        )
        self.inner = math.prod(inner) if not any(inside) else 1
        del n

    def flat(self, array: Tensor, rows_of: int) -> Tensor:
        """An array as one of (…, rows, columns)."""
        cut = self.heads + rows_of
        return array.reshape(*array.shape[: self.heads], math.prod(array.shape[self.heads : cut]), -1)

    def matrices(self, which: str) -> tuple[Tensor, Tensor]:
        a, b = (getattr(part.facts, which) for part in self.parts)
        return self.flat(a, len(self.sides[0][0])), self.flat(b, len(self.sides[1][0]))

    def facts(self) -> Facts:
        (za, zb), (la, lb), (va, vb) = (self.matrices(k) for k in ("zero", "live", "value"))
        total = (~za).double() @ (~zb).double()
        fixed = (~za & ~la).double() @ (~zb & ~lb).double()
        value = va @ vb
        if self.inner > 1:
            value = value.masked_fill(value != 0, torch.nan)
        m, n = len(self.sides[0][0]), len(self.sides[1][1])
        ends = [*self.parts[0].facts.live.shape[self.heads : self.heads + m], *self.parts[1].facts.live.shape[-n:]]
        array = [*total.shape[: self.heads], *ends]
        self.made = Facts.of(self.dims, (total > fixed).reshape(array), value.reshape(array))
        return self.made

    def read(self, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The atoms of both factors and of the result that have to be there, heads being the same in all."""
        za, zb = self.matrices("zero")
        w = self.flat(wanted, len(self.sides[0][0]))
        inner = ((w.double() @ (~zb).double().transpose(-1, -2)) > 0) & ~za
        inner = inner.any(-2)  # (…, inner)
        left, right = w.any(-1), w.any(-2)
        chosen = left.any(-1)
        inner = inner.clone()
        inner[..., 0] |= chosen & ~inner.any(-1)
        a = left[..., :, None] & inner[..., None, :]
        b = inner[..., :, None] & right[..., None, :]
        out = left[..., :, None] & right[..., None, :]
        shapes = [[*wanted.shape[: self.heads], *p.facts.live.shape[self.heads :]] for p in self.parts]
        return a.reshape(shapes[0]), b.reshape(shapes[1]), out.reshape(wanted.shape)

    def wants(self, wanted: Tensor) -> list[Tensor | None]:
        found = []
        for part, mask in zip(self.parts, self.read(wanted)):
            mask = self.plan.rounded(mask) if self.ragged else mask_of(product(mask), mask.shape)
            asked = mask & part.facts.live if self.plan.prefer == "size" else mask
            found.append(None if part.fixed else part.want(asked))
        return found

    def edit(self, wanted: Tensor) -> Tensor:
        grid = rows if self.ragged else product
        *masks, out = self.read(wanted)
        nodes = [part.aligned(self.node, grid(mask), mask.shape) for part, mask in zip(self.parts, masks)]
        self.node.args = tuple(nodes)
        return grid(out)
