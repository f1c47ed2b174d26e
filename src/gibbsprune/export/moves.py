"""Operations that move channels (reshape, permute, expand, cut) or work along other dimensions than theirs."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from .aten import op_name, shape
from .channels import (
    Facts,
    LeftAlone,
    coordinates,
    mask_of,
    numbers,
    product,
    refined_grid,
    regroup,
    rows,
)
from .layers import Rule
from .plan import DENSE_ENOUGH, Plan

ALL = 2**63 - 1


class Move(Rule):
    """One tensor in, the same atoms out."""

    def __init__(self, plan: Plan, node: fx.Node) -> None:
        super().__init__(plan, node)
        self.inputs = [node.args[0]]  # type: ignore[list-item]
        self.x = plan.facts_of(self.source)

    def size(self, arg: Any, axes: Sequence[int], made: Facts, grid: Tensor) -> Any:
        """A size among an operator's arguments, for the smaller tensor."""
        axes = [axis for axis in axes if made.live.shape[axis] > 1]
        before = math.prod(made.live.shape[axis] for axis in axes)
        after = math.prod(grid.shape[axis] for axis in axes)
        if before == after or (isinstance(arg, int) and arg < 0):
            return arg
        if isinstance(arg, int):
            return arg // before * after
        return self.plan.call(self.node, operator.mul, self.plan.call(self.node, operator.floordiv, arg, before), after)


class Reshape(Move):
    """Factors of dimensions regrouped, and split where that is needed."""

    def facts(self) -> Facts:
        self.dims = regroup(self.x.factors, shape(self.node))
        self.made = self.x.refine(self.dims)
        return self.made

    def wants(self, wanted: Tensor) -> list[Tensor | None]:
        return [self.plan.rounded(wanted).reshape(self.x.live.shape)]

    def edit(self, wanted: Tensor) -> Tensor:
        plan, node = self.plan, self.node
        kept = plan.kept_of(self.source)
        grid = refined_grid(kept, self.x, self.made)
        if grid is None:
            grid = rows(wanted)
            sizes = iter(n for n, f in zip(grid.shape, self.made.factors) if f > 1)
            parts = iter(f for f in self.made.factors if f > 1)
            compact = []
            for factor in self.x.factors:
                found, size = 1, 1
                while found < factor:
                    found, size = found * next(parts), size * next(sizes)
                compact.append(size)
            source = plan.aligned(node, self.source, (self.x, kept), grid.reshape(compact))
            node.replace_input_with(self.source, source)
        if op_name(node) in ("reshape", "unflatten"):
            at = 1 if op_name(node) == "reshape" else 2
            first: Any = 0 if at == 1 else node.args[1] % len(self.x.dims)  # type: ignore[operator]
            sizes_given: Any = node.args[at]
            changed = [self.size(arg, self.made.axes(first + i), self.made, grid) for i, arg in enumerate(sizes_given)]
            node.args = (*node.args[:at], changed, *node.args[at + 1 :])
        return grid


class Permute(Move):
    """Dimensions in another order."""

    def facts(self) -> Facts:
        args: Any = self.node.args
        order = list(range(len(self.x.dims)))
        if op_name(self.node) == "permute":
            order = [d % len(order) for d in args[1]]
        elif op_name(self.node) == "t":
            order = order[::-1]
        else:
            a, b = (d % len(order) for d in args[1:3])
            order[a], order[b] = order[b], order[a]
        self.axes = [axis for d in order for axis in self.x.axes(d)]
        dims = tuple(self.x.dims[d] for d in order)
        return Facts(dims, self.x.live.permute(self.axes), self.x.value.permute(self.axes))

    def wants(self, wanted: Tensor) -> list[Tensor | None]:
        return [wanted.permute([self.axes.index(axis) for axis in range(len(self.axes))])]

    def edit(self, wanted: Tensor) -> Tensor:
        grid = self.plan.kept_of(self.source)
        coords = coordinates(grid, self.x.live.shape)
        return numbers([coords[axis].permute(self.axes) for axis in self.axes], wanted.shape)


class Expand(Move):
    """Dimensions of one entry repeated."""

    def facts(self) -> Facts:
        sizes, before = shape(self.node), shape(self.source)
        self.new = len(sizes) - len(before)
        self.grown = [i for i in range(len(sizes)) if i < self.new or before[i - self.new] != sizes[i]]
        dims: list[tuple[int, ...]] = [(size,) for size in sizes]
        for i in range(len(sizes)):
            if i not in self.grown:
                dims[i] = self.x.dims[i - self.new]
        self.array = [1] * self.new + list(self.x.live.shape)
        return Facts(tuple(dims), self.x.live.reshape(self.array), self.x.value.reshape(self.array))

    def wants(self, wanted: Tensor) -> list[Tensor | None]:
        return [wanted.reshape(self.x.live.shape)]

    def edit(self, wanted: Tensor) -> Tensor:
        sizes: Any = self.node.args[1]
        kept = [size if i in self.grown else -1 for i, size in enumerate(sizes)]
        self.node.args = (self.source, kept, *self.node.args[2:])
        grid = self.plan.kept_of(self.source)
        return grid.reshape([1] * self.new + list(grid.shape))


class Cut(Move):
    """A slice of a dimension, or one of its entries."""

    def __init__(self, plan: Plan, node: fx.Node) -> None:
        super().__init__(plan, node)
        args: Any = (*node.args, *[None] * (5 - len(node.args)))
        self.dim = (args[1] or 0) % len(self.x.dims)
        self.one = op_name(node) == "select"
        self.whole = not self.x.tracked(self.dim)
        if self.whole:
            return
        if len(self.x.dims[self.dim]) > 1:
            raise LeftAlone("it cuts a dimension of several factors")
        size = self.x.dims[self.dim][0]
        if any(isinstance(a, fx.Node) for a in args[2:]):
            raise LeftAlone("it cuts channels at a place that varies")
        if self.one:
            self.taken = torch.tensor([args[2] % size])
        else:
            self.taken = torch.arange(size)[slice(args[2], args[3], args[4])]
        self.axis = self.x.axes(self.dim)[0]

    def drop(self, array: Tensor) -> Tensor:
        return array.squeeze(self.axis) if self.one else array

    def facts(self) -> Facts:
        dims = list(self.x.dims)
        first, count = self.x.axes(self.dim)[0], len(dims[self.dim])
        if self.one:
            del dims[self.dim]
        else:
            dims[self.dim] = (shape(self.node)[self.dim],)
        if not self.whole:
            live, value = (self.drop(x.index_select(self.axis, self.taken)) for x in (self.x.live, self.x.value))
            return Facts(tuple(dims), live, value)
        self.array = list(self.x.live.shape)
        self.array[first : first + count] = [] if self.one else [1]
        return Facts(tuple(dims), self.x.live.reshape(self.array), self.x.value.reshape(self.array))

    def wants(self, wanted: Tensor) -> list[Tensor | None]:
        return [wanted.reshape(self.x.live.shape) if self.whole else self._read(wanted)]

    def _read(self, wanted: Tensor) -> Tensor:
        found = torch.zeros_like(self.x.live)
        return found.index_copy(self.axis, self.taken, wanted.unsqueeze(self.axis) if self.one else wanted)

    def edit(self, wanted: Tensor) -> Tensor:
        plan, node = self.plan, self.node
        grid = plan.kept_of(self.source)
        if self.whole:
            sizes = list(grid.shape)
            first, count = self.x.axes(self.dim)[0], len(self.x.dims[self.dim])
            sizes[first : first + count] = [] if self.one else [1]
            return grid.reshape(sizes)
        source = self.source
        others = [axis for axis in range(grid.dim()) if axis != self.axis]
        index = coordinates(grid, self.x.live.shape)[self.axis]
        gone = not torch.isin(index, self.taken).any()  # constants, which have not been kept
        if gone or (index.amin(others) != index.amax(others)).any():
            kept = mask_of(grid, self.x.live.shape)
            target = product(kept | self._read(wanted) if gone else kept)
            source, grid = plan.aligned(node, source, (self.x, grid), target), target
            index = coordinates(grid, self.x.live.shape)[self.axis]
        line = index.amin(others)
        at = [i for t in self.taken.tolist() for i in (line == t).nonzero().flatten().tolist()]
        picks = torch.tensor(at)
        coords = coordinates(grid.index_select(self.axis, picks), self.x.live.shape)
        new = [x for axis, x in enumerate(coords) if axis != self.axis or not self.one]
        if self.one:
            node.args = (source, self.dim, at[0])
            return numbers([x.squeeze(self.axis) for x in new], wanted.shape)
        where = {int(t): i for i, t in enumerate(self.taken)}
        new[self.axis] = torch.tensor([where[int(t)] for t in new[self.axis].flatten()]).view(new[self.axis].shape)
        if at == list(range(at[0], at[0] + len(at))):
            node.args = (source, self.dim, at[0], at[0] + len(at))
        else:
            picked = plan.picked(node, source, self.dim, self.x.along(self.dim), line, line[picks])
            node.args = (picked, self.dim, 0, ALL)
        return numbers(new, wanted.shape)


class Filled(Rule):
    """A tensor of one number throughout."""

    def __init__(self, plan: Plan, node: fx.Node, number: float) -> None:
        super().__init__(plan, node)
        self.number = number

    def facts(self) -> Facts:
        made = Facts.unknown(shape(self.node))
        return Facts(made.dims, ~made.live, made.value + self.number)

    def wants(self, wanted: Tensor) -> list[Tensor | None]:
        return [None for _ in self.inputs]

    def edit(self, wanted: Tensor) -> Tensor:
        for part in self.inputs:  # only its sizes are read
            self.node.replace_input_with(part, self.plan.restored(self.node, part))
        return torch.zeros([1] * wanted.dim(), dtype=torch.long)


class Along(Rule):
    """An operation along some dimensions, of which it needs all entries; along the others entry by entry.

    ``constant(v)`` gives the values of constant inputs, and not a number where the result is not the same everywhere,
    of which ``why`` tells the reason.
    """

    why = "gives no finite number"

    def __init__(
        self,
        plan: Plan,
        node: fx.Node,
        dims: Sequence[int],
        constant: Callable[[Tensor], Tensor] | None = None,
        dropped: bool = False,
    ) -> None:
        super().__init__(plan, node)
        self.inputs = [node.args[0]]  # type: ignore[list-item]
        self.x = plan.facts_of(self.source)
        self.dims = [d % len(self.x.dims) for d in dims]
        self.constant = constant
        self.dropped = self.dims if dropped else []

    def facts(self) -> Facts:
        x, sizes = self.x, iter(shape(self.node))
        axes = [axis for d in self.dims for axis in x.axes(d)]
        live, low, high = x.live, x.value, x.value
        for axis in axes:
            live, low, high = live.any(axis, True), low.amin(axis, True), high.amax(axis, True)
        live = live | (low != high)
        value = self.constant(low) if self.constant is not None else torch.full_like(low, torch.nan)
        lost = ~live & ~value.isfinite()
        if lost.any() and self.constant is not None:
            self.loss = f"it {self.why}, which leaves {int(lost.sum())} of {lost.numel()} channels no longer constant"
        dims: list[tuple[int, ...]] = []
        self.array: list[int] = []  # of the output
        self.inside: list[int] = []  # of the output, with the dropped dimensions
        for d, factors in enumerate(x.dims):
            size = [live.shape[axis] for axis in x.axes(d)] if d not in self.dims else [1]
            self.inside += size if d not in self.dims else [1] * len(factors)
            if d not in self.dropped:
                new = next(sizes)
                dims.append(factors if d not in self.dims else (new,))
                self.array += size
        return Facts.of(tuple(dims), live.reshape(self.array), value.reshape(self.array))

    def wants(self, wanted: Tensor) -> list[Tensor | None]:
        found = wanted.reshape(self.inside).expand(self.x.live.shape)
        return [found if list(self.x.live.shape) == self.inside else found & self.x.live]

    def edit(self, wanted: Tensor) -> Tensor:
        plan, node, x = self.plan, self.node, self.x
        grid = plan.kept_of(self.source)
        axes = [axis for d in self.dims for axis in x.axes(d) if x.live.shape[axis] > 1]
        if axes:
            mask = wanted.reshape(self.inside).expand(x.live.shape)
            target = product(mask)
            node.replace_input_with(self.source, plan.aligned(node, self.source, (x, grid), target))
            grid = target
        coords = coordinates(grid, x.live.shape)
        kept = [axis for d in range(len(x.dims)) if d not in self.dims for axis in x.axes(d)]
        for axis in axes:
            coords = [c.narrow(axis, 0, 1) for c in coords]
        total = numbers([c if a in kept else c * 0 for a, c in enumerate(coords)], self.inside)
        out = [n for d in range(len(x.dims)) for n in _sizes(total, x, d, self.dims, self.dropped)]
        return total.reshape(out)


def _sizes(grid: Tensor, x: Facts, d: int, dims: Sequence[int], dropped: Sequence[int]) -> list[int]:
    if d in dropped:
        return []
    return [1] if d in dims else [grid.shape[axis] for axis in x.axes(d)]


class Mean(Along):
    """A mean or sum over channels: dead ones leave, and the number of entries stays."""

    def __init__(self, plan: Plan, node: fx.Node, dims: Sequence[int], dropped: bool) -> None:
        mean = op_name(node) == "mean"
        super().__init__(plan, node, dims, None, dropped)
        tracked = [axis for d in self.dims for axis in self.x.axes(d) if self.x.live.shape[axis] > 1]
        self.summed = tracked
        self.mean = mean

    def facts(self) -> Facts:
        made = super().facts()
        value = self.x.value.mean(self.summed, True) if self.summed else self.x.value
        live = self.x.live
        for axis in self.summed:
            live = live.any(axis, True)
        if not self.mean:
            value = value.masked_fill(value != 0, torch.nan)
        return Facts.of(made.dims, live.reshape(self.array), value.reshape(self.array))

    def wants(self, wanted: Tensor) -> list[Tensor | None]:
        found = wanted.reshape(self.inside).expand(self.x.live.shape)
        return [found & (self.x.live | self.x.value.ne(0))]

    def edit(self, wanted: Tensor) -> Tensor:
        plan, node, x = self.plan, self.node, self.x
        grid = plan.kept_of(self.source)
        read = self.wants(wanted)[0]
        assert read is not None
        coords = coordinates(grid, x.live.shape)
        kept = [axis for d in range(len(x.dims)) if d not in self.dims for axis in x.axes(d)]
        apart = any((coords[a] != coords[a].narrow(b, 0, 1)).any() for a in kept for b in self.summed)
        spare = mask_of(grid, x.live.shape) & ~(x.zero | read)
        if apart or spare.any():
            target = product(mask_of(grid, x.live.shape) & read) if read.any() else product(read | (x.live | True))
            node.replace_input_with(self.source, plan.aligned(node, self.source, (x, grid), target))
            grid = target
            coords = coordinates(grid, x.live.shape)
        share = math.prod(grid.shape[axis] for axis in self.summed) / math.prod(
            x.live.shape[axis] for axis in self.summed
        )
        if self.mean and share < 1:
            plan.after.append(lambda: _scaled(plan, node, share))
        for axis in self.summed:
            coords = [c.narrow(axis, 0, 1) for c in coords]
        total = numbers([c if a in kept else c * 0 for a, c in enumerate(coords)], self.inside)
        return total.reshape([n for d in range(len(x.dims)) for n in _sizes(total, x, d, self.dims, self.dropped)])


def _scaled(plan: Plan, node: fx.Node, share: float) -> None:
    new = plan.call(node.next, torch.ops.aten.mul.Tensor, node, share)
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new, lambda user: user is not new)


class Standardised(Along):
    """Layer, group or RMS norm over channels: each output reads all inputs, so those that left are put back."""

    def __init__(self, plan: Plan, node: fx.Node, dims: Sequence[int], weight: Any, bias: Any, channels: int) -> None:
        super().__init__(plan, node, dims)
        self.channels = channels % len(self.x.dims)
        self.scale, self.shift = plan.tensor(weight), plan.tensor(bias)

    def facts(self) -> Facts:
        made = super().facts()
        axes = made.axes(self.channels)
        along = [made.factors[axis] if axis in axes else 1 for axis in range(made.live.dim())]
        size = math.prod(along)
        live = torch.ones(size, dtype=torch.bool) if self.scale is None else self.scale.flatten().ne(0)
        value = torch.zeros(size, dtype=torch.float64) if self.shift is None else self.shift.flatten()
        if len(value) != size or len(live) != size:
            return made
        self.out = Facts.of(made.dims, live.view(along), value.view(along))
        return self.out

    def wants(self, wanted: Tensor) -> list[Tensor | None]:
        return [self.x.live]

    def edit(self, wanted: Tensor) -> Tensor:
        plan, node = self.plan, self.node
        node.replace_input_with(self.source, plan.restored(node, self.source))
        grid = torch.arange(wanted.numel()).view(wanted.shape)
        if int(wanted.sum()) >= DENSE_ENOUGH * wanted.numel():
            return grid
        target = product(wanted)

        def select() -> None:
            new = plan.aligned(node.next, node, (self.out, grid), target)
            node.replace_all_uses_with(new, lambda user: user is not new)

        plan.after.append(select)
        return target
