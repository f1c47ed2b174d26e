"""Operations on several tensors: entry by entry, concatenation, sums of branches.

A residual sum of branches that keep different channels is taken over the channels that are live in any of them
and wanted: the largest branch is the base, the constants of the others are added to it, and their live channels
are added in at their places.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx

from .aten import attribute, op_name, shape
from .channels import (
    Dims,
    Facts,
    LeftAlone,
    common,
    coordinates,
    mask_of,
    numbers,
    product,
    reduce_to,
    rows,
    whole,
)
from .layers import Mix, Norm, Rule
from .parts import SumInto
from .plan import SCATTER_COST, Plan, ease


class Operand:
    """One tensor of an operation with broadcasting, in the dimensions and factors of the result."""

    def __init__(self, plan: Plan, node: fx.Node, rank: int) -> None:
        self.plan, self.node = plan, node
        self.fixed = node in plan.constants
        self.sizes = (1,) * (rank - len(shape(node))) + shape(node)
        if self.fixed:
            value = plan.constants[node].cpu().double().reshape(self.sizes)
            self.own = Facts(tuple((s,) for s in self.sizes), torch.zeros(self.sizes, dtype=torch.bool), value)
        else:
            own = plan.facts_of(node)
            new = rank - len(own.dims)
            array = [1] * new + list(own.live.shape)
            self.own = Facts(((1,),) * new + own.dims, own.live.reshape(array), own.value.reshape(array))

    def settle(self, dims: Dims, tracked: list[bool] | None = None) -> None:
        """Take the result's factors; tell channels apart along the tracked ones only."""
        self.dims = tuple(d if size > 1 else (1,) * len(d) for d, size in zip(dims, self.sizes))
        self.facts = self.own.recast(self.dims).refine(self.dims)
        self.base = self.facts
        self.axes = [axis for axis, f in enumerate(self.facts.factors) if f > 1 and tracked and tracked[axis]]
        if self.fixed and tracked is not None:
            live, low, high = self.facts.live, self.facts.value, self.facts.value
            for axis in range(live.dim()):
                if not tracked[axis]:
                    low, high, live = low.amin(axis, True), high.amax(axis, True), live.any(axis, True)
            self.facts = Facts.of(self.dims, live | (low != high), low)

    def want(self, wanted: Tensor) -> Tensor | None:
        if self.fixed:
            return None
        return reduce_to(wanted, self.base.live.shape).reshape(self.plan.facts_of(self.node).live.shape)

    def seen(self) -> tuple[Facts, Tensor]:
        """Facts and grid along all tracked axes that it has."""
        if self.fixed:
            full = self.facts.spread(self.axes)
            return full, whole(full.live.shape)
        new = len(self.sizes) - len(shape(self.node))
        skipped = sum(len(d) for d in self.dims[:new])
        facts, grid = self.plan.seen(self.node, self.dims[new:], [axis - skipped for axis in self.axes])
        array = [1] * skipped
        made = Facts(
            self.dims,
            facts.live.reshape(array + list(facts.live.shape)),
            facts.value.reshape(array + list(facts.live.shape)),
        )
        return made, grid.reshape(array + list(grid.shape))

    def aligned(self, user: fx.Node, target: Tensor, array: torch.Size) -> fx.Node:
        """The tensor laid out like the part that it has of the result's grid."""
        facts, grid = self.seen()
        coords = coordinates(target, array)
        for axis in range(target.dim()):
            if axis not in self.axes:
                coords = [c.narrow(axis, 0, 1) for c in coords]
        own = numbers([c if axis in self.axes else c * 0 for axis, c in enumerate(coords)], facts.live.shape)
        new = len(self.sizes) - len(shape(self.node))
        skipped = sum(len(d) for d in self.dims[:new])
        cut = Facts(
            facts.dims[new:],
            facts.live.reshape(facts.live.shape[skipped:]),
            facts.value.reshape(facts.live.shape[skipped:]),
        )
        grid, own = grid.reshape(grid.shape[skipped:]), own.reshape(own.shape[skipped:])
        if self.fixed and torch.equal(grid, own):
            return self.node
        if (
            self.fixed
            and self.node.op == "get_attr"
            and self.plan.readers[id(attribute(self.plan.module, self.node))] == 1
        ):
            return self.plan.cut(self.node, cut, grid, own)
        return self.plan.aligned(user, self.node, (cut, grid), own)


class Pointwise(Rule):
    """An operation entry by entry on one tensor or several, with broadcasting."""

    def __init__(self, plan: Plan, node: fx.Node) -> None:
        super().__init__(plan, node)
        rank = len(shape(node))
        self.inputs = list(dict.fromkeys(n for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor)))
        self.parts = [Operand(plan, n, rank) for n in self.inputs]
        dims: list[tuple[int, ...]] = [(1,)] * rank
        for part in self.parts:
            for d in range(rank):
                if part.sizes[d] > 1:
                    dims[d] = common(dims[d], part.own.dims[d]) if dims[d] != (1,) else part.own.dims[d]
        self.dims = tuple(dims)
        for part in self.parts:
            part.settle(self.dims)
        count = sum(len(d) for d in dims)
        tracked = [False] * count
        for part in self.parts:
            wide = [axis for axis, n in enumerate(part.facts.live.shape) if n > 1]
            if not part.fixed or sum(size > 1 for size in part.sizes) == 1:
                for axis in wide:
                    tracked[axis] = True
        for part in self.parts:
            part.settle(self.dims, tracked)

    def compute(self) -> Tensor:
        """The operation at the constants' values."""
        values = {part.node: part.facts.value for part in self.parts}
        name = op_name(self.node)
        asks = self.node.args[0] if name == "where" else self.node.args[1] if name == "masked_fill" else None

        def value(node: fx.Node) -> Tensor:
            return values[node].bool() if node is asks else values[node]

        args, kwargs = fx.node.map_arg((self.node.args, dict(self.node.kwargs)), value)
        return self.node.target(*args, **kwargs).double()  # type: ignore[operator]

    def facts(self) -> Facts:
        live = torch.zeros((), dtype=torch.bool)
        for part in self.parts:
            live = live | part.facts.live
        why = "gives no finite number"
        try:
            value = self.compute()
        except Exception:  # an operator that does not take these numbers, or takes sizes too
            value, why = torch.full((), torch.nan, dtype=torch.float64), "depends on sizes that vary"
        name = op_name(self.node)
        lost = ~live & ~value.isfinite()
        if lost.any() and len(self.parts) == 1:
            self.loss = f"it {why}, which leaves {int(lost.sum())} of {lost.numel()} channels no longer constant"
        if name in ("mul", "div"):  # 0 · x = 0
            nought = [part.facts.zero for part in (self.parts if name == "mul" else self.parts[:1])]
            if name == "mul" or self.node.args[0] is self.parts[0].node:
                for zero in nought:
                    live, zero = torch.broadcast_tensors(live, zero)
                    live, value = (
                        live & ~zero,
                        value.expand(torch.broadcast_shapes(value.shape, zero.shape)).masked_fill(zero, 0),
                    )
        if name == "where" and len(self.parts) == 3:
            first, second = (self.part(self.node.args[i]).facts for i in (1, 2))
            same = ~first.live & ~second.live & (first.value == second.value)
            live, same = torch.broadcast_tensors(live, same)
            live, value = live & ~same, torch.where(same, first.value + 0 * second.value, value)
        live, value = torch.broadcast_tensors(live, value)
        self.made = Facts.of(self.dims, live, value)
        return self.made

    def part(self, node: Any) -> Operand:
        return next(part for part in self.parts if part.node is node)

    def wants(self, wanted: Tensor) -> list[Tensor | None]:
        if len(self.parts) == 1:
            return [self.parts[0].want(wanted)]
        uneven = any(self.uneven())
        if uneven and self.plan.prefer == "speed":
            wanted = mask_of(product(wanted), wanted.shape)
        exact = uneven and self.plan.prefer == "size"  # what fills it up is put in later
        lives = [part.facts.live.expand(wanted.shape) for part in self.parts]
        return [
            None if part.fixed else part.want(wanted & live if exact else ease(wanted, live))
            for part, live in zip(self.parts, lives)
        ]

    def uneven(self) -> list[bool]:
        """Which tensors have some of the tracked axes and lack others."""
        tracked = {axis for axis, n in enumerate(self.made.live.shape) if n > 1}
        return [bool(part.axes) and set(part.axes) != tracked for part in self.parts]

    def target(self, wanted: Tensor) -> Tensor:
        """The grid of the result."""
        array, uneven = self.made.live.shape, any(self.uneven())
        full = {axis for axis, n in enumerate(array) if n > 1}
        grids = [part.seen()[1] for part in self.parts if not part.fixed and set(part.axes) == full]
        if grids and int(grids[0].flatten()[0]) >= 0 and all(torch.equal(grids[0], g) for g in grids[1:]):
            alone = len([part for part in self.parts if not part.fixed and part.axes]) == len(grids)
            if (
                alone
                and not (wanted & ~mask_of(grids[0], array)).any()
                and (not uneven or torch.equal(grids[0], product(mask_of(grids[0], array))))
            ):
                return grids[0]
        return product(wanted) if uneven else rows(wanted)

    def edit(self, wanted: Tensor) -> Tensor:
        target = self.target(wanted)
        new = {part.node: part.aligned(self.node, target, self.made.live.shape) for part in self.parts}
        self.node.args = fx.node.map_arg(self.node.args, lambda n: new.get(n, n))
        self.node.kwargs = fx.node.map_arg(dict(self.node.kwargs), lambda n: new.get(n, n))
        return target


class Sum(Pointwise):
    """The sum of two branches of the same shape, of which each may keep channels of its own."""

    def simple(self) -> bool:
        sizes = shape(self.node)  # those of a part may lack dimensions of one entry
        same = len(self.parts) == 2 and all(shape(p.node) == sizes and not p.fixed for p in self.parts)
        return same and not self.node.kwargs and sum(n > 1 for n in self.made.live.shape) == 1

    def wants(self, wanted: Tensor) -> list[Tensor | None]:
        asked = super().wants(wanted)
        if self.plan.prefer == "size" or not self.simple():
            return asked
        return [
            part.want(wanted) if self._cheap(part.node, wanted, part_wanted) else part_wanted
            for part, part_wanted in zip(self.parts, asked)
        ]

    def _cheap(self, part: fx.Node, wanted: Tensor, asked: Tensor | None) -> bool:
        """Whether the layer behind a branch computes the constants too at less than the cost of scattering."""
        rule = self.plan.rules.get(part)
        while isinstance(rule, Norm) or (isinstance(rule, Pointwise) and len(rule.inputs) == 1):
            if len(rule.source.users) > 1:
                break
            rule = self.plan.rules.get(rule.source)
        if type(rule) is not Mix or len(rule.node.users) > 1 or asked is None:
            return False
        return rule.cost(int(wanted.sum())) - rule.cost(int(asked.sum())) <= SCATTER_COST * int(wanted.sum())

    def edit(self, wanted: Tensor) -> Tensor:
        plan, node = self.plan, self.node
        if not self.simple():
            return super().edit(wanted)
        axis = next(axis for axis, n in enumerate(self.made.live.shape) if n > 1)
        dim = next(d for d in range(len(self.dims)) if axis in self.made.axes(d))
        seen = [part.seen() for part in self.parts]
        if len(self.dims[dim]) > 1 or any(int(grid.flatten()[0]) < 0 for _, grid in seen):
            return super().edit(wanted)
        wanted = wanted.flatten()
        sides = []
        for part, (facts, grid) in zip(self.parts, seen):
            line, live = grid.flatten(), facts.live.flatten()
            kept = torch.zeros_like(wanted)
            kept[line] = True
            sides.append((part.node, line, kept, live, facts.value.flatten()))
        sides.sort(key=lambda side: [-int((side[2] & mask).sum()) for mask in (wanted, wanted & side[3])])
        (base, line, kept, live, value), (other, other_line, other_kept, other_live, other_value) = sides
        target = line if torch.equal(kept, wanted) else wanted.nonzero().flatten()
        own = self.part(base)
        along = Facts(((len(wanted),),), live, value)
        base_node = plan.picked(node, own.node, dim, along, line, target)
        if not (other_kept & wanted & other_live).any():
            other_kept = torch.zeros_like(other_kept)  # constant throughout: this branch need not be computed
        constant = other_value.masked_fill(other_kept, 0)[target]
        shift = constant.to(plan.dtype) if constant.ne(0).any() else None
        result = target.view([-1 if a == axis else 1 for a in range(self.made.live.dim())])
        if shift is None and torch.equal(other_line, target) and other_kept.any():
            node.args = (base_node, other)
        elif (other_kept & wanted).any():
            where = {int(c): i for i, c in enumerate(target)}
            pairs = [(i, where[int(c)]) for i, c in enumerate(other_line) if int(c) in where]
            source, position = (torch.tensor(x) for x in zip(*pairs))
            all_source = torch.equal(source, torch.arange(len(other_line)))
            all_places = torch.equal(position, torch.arange(len(target)))
            made = SumInto(dim, shift, None if all_source else source, None if all_places else position)
            plan.replace(node, made, base_node, other)
        elif shift is not None:
            plan.replace(node, SumInto(dim, shift, None, None), base_node)
        else:
            plan.after.append(lambda: _instead(node, base_node))
        return result


def _instead(node: fx.Node, other: fx.Node) -> None:
    node.replace_all_uses_with(other)


class Concat(Rule):
    """Tensors one behind the other along a dimension."""

    def __init__(self, plan: Plan, node: fx.Node) -> None:
        super().__init__(plan, node)
        args: Any = node.args
        self.inputs = list(args[0])
        rank = len(shape(node))
        self.dim = (args[1] if len(args) > 1 else 0) % rank
        self.parts = [Operand(plan, n, rank) for n in self.inputs if math.prod(shape(n))]
        if len(self.parts) < len(self.inputs):
            raise LeftAlone("it concatenates something empty")
        dims: list[tuple[int, ...]] = list(self.parts[0].own.dims)
        for part in self.parts[1:]:
            for d in range(rank):
                if d != self.dim:
                    dims[d] = common(dims[d], part.own.dims[d])
        joined = any(part.own.tracked(self.dim) and not part.fixed for part in self.parts)
        if joined and any(len(part.own.dims[self.dim]) > 1 for part in self.parts):
            raise LeftAlone("it concatenates dimensions of several factors")
        self.joined = joined
        self.axis = sum(len(d) for d in dims[: self.dim])
        tracked: list[bool] = []
        for d in range(rank):
            if d == self.dim:
                tracked += [joined]
                continue
            found = [False] * len(dims[d])
            for part in self.parts:
                if not part.fixed and part.own.tracked(d):
                    found = [True] * len(dims[d])
            tracked += found
        for part in self.parts:
            own = [*dims]
            own[self.dim] = (part.sizes[self.dim],)
            if not joined and part.fixed:
                part.own = _merged(part.own, self.dim)
            part.settle(tuple(own), tracked)
        self.dims = tuple((shape(node)[self.dim],) if d == self.dim else dims[d] for d in range(rank))
        self.tracked = tracked

    def spread(self, part: Operand) -> Facts:
        return part.facts.spread([axis for axis, t in enumerate(self.tracked) if t])

    def facts(self) -> Facts:
        made = [self.spread(part) for part in self.parts]
        if self.joined:
            live, value = (torch.cat([getattr(m, k) for m in made], self.axis) for k in ("live", "value"))
        else:
            live, value = made[0].live, made[0].value
            for m in made[1:]:
                live = live | m.live | (m.value != value)
        self.made = Facts.of(self.dims, live, value)
        self.sizes = [m.live.shape[self.axis] for m in made]
        return self.made

    def wants(self, wanted: Tensor) -> list[Tensor | None]:
        several = sum(n > 1 for n in wanted.shape) > 1
        if several and self.plan.prefer == "speed":
            wanted = mask_of(product(wanted), wanted.shape)
        exact = several and self.plan.prefer == "size"
        pieces = wanted.split(self.sizes, self.axis) if self.joined else [wanted] * len(self.parts)
        return [
            None
            if part.fixed
            else part.want(piece & self.spread(part).live if exact else ease(piece, self.spread(part).live))
            for part, piece in zip(self.parts, pieces)
        ]

    def edit(self, wanted: Tensor) -> Tensor:
        several = sum(n > 1 for n in wanted.shape) > 1
        nodes: list[fx.Node] = []
        grids: list[Tensor] = []
        start = 0
        pieces = wanted.split(self.sizes, self.axis) if self.joined else [wanted] * len(self.parts)
        for index, (part, piece, size) in enumerate(zip(self.parts, pieces, self.sizes)):
            seen = part.seen()[1]
            array = self.spread(part).live.shape
            target: Tensor | None
            if self.joined and not several:
                held = int(seen.flatten()[0]) >= 0
                kept = mask_of(seen, array) if held else torch.ones(array, dtype=torch.bool)
                missing = piece & ~kept  # constants that a reader wants as channels
                target = seen if held and not missing.any() else product(kept | missing)
            else:
                full = product(wanted)
                inside = mask_of(full, wanted.shape)
                inside = inside.split(self.sizes, self.axis)[index] if self.joined else inside
                target = product(inside) if inside.any() else None
            if target is None:
                start += size
                continue
            nodes.append(part.aligned(self.node, target, array))
            coords = coordinates(target, array)
            coords[self.axis] = coords[self.axis] + start if self.joined else coords[self.axis]
            grids.append(numbers(coords, wanted.shape))
            start += size if self.joined else 0
        self.node.args = (nodes, *self.node.args[1:])
        return torch.cat(grids, self.axis) if self.joined else grids[0]


def _merged(facts: Facts, dim: int) -> Facts:
    """The same with one factor for a dimension along which all are alike."""
    axes = facts.axes(dim)
    live, value = facts.live, facts.value
    for axis in axes:
        low, high = value.amin(axis, True), value.amax(axis, True)
        live, value = live.any(axis, True) | (low != high), low
    array = [n for axis, n in enumerate(live.shape) if axis not in axes[1:]]
    dims = tuple((math.prod(d),) if i == dim else d for i, d in enumerate(facts.dims))
    return Facts(dims, live.reshape(array), value.reshape(array))
