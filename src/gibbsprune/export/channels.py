"""What is known of the channels of a tensor, and how those that stay are laid out.

A dimension of a tensor is a list of *factors*: that of the images of a batch is one, that of (heads · width) is two
after it was split for attention. Along some factors channels are told apart; along the others all entries are alike.
An array with one axis per factor, of size 1 where all are alike, says for each *atom* (a combination of channels)

- in :class:`Facts`: whether it is live, or constant: the same known value at every place and for every input;
- as a *mask*: whether it is wanted.

A *grid* is such an array too, of the smaller tensor: the number of the atom that lies at each of its positions. So
reshaping, permuting and cutting a tensor does the same to its facts, masks and grids. Heads of which each keeps other
channels have rows of the same length, in which the shorter ones are filled up with atoms that nobody wants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

Dims = tuple[tuple[int, ...], ...]


class LeftAlone(Exception):
    """This operation cannot be made smaller, and why; ``node`` names another that is to blame."""

    def __init__(self, reason: str, node: str = "") -> None:
        super().__init__(reason)
        self.node = node


@dataclass(frozen=True)
class Facts:
    """The factors of every dimension; which atoms are live, and the value of each constant one, in float64."""

    dims: Dims
    live: Tensor
    value: Tensor

    @classmethod
    def of(cls, dims: Dims, live: Tensor, value: Tensor) -> Facts:
        live, value = torch.broadcast_tensors(live, value.double())
        return cls(dims, live | ~value.isfinite(), value.masked_fill(live | ~value.isfinite(), 0))

    @classmethod
    def unknown(cls, shape: Sequence[int]) -> Facts:
        one = torch.ones([1] * len(shape), dtype=torch.bool)
        return cls(tuple((size,) for size in shape), one, one.double() * 0)

    @property
    def zero(self) -> Tensor:
        return ~self.live & self.value.eq(0)

    @property
    def factors(self) -> tuple[int, ...]:
        return sum(self.dims, ())

    def axes(self, dim: int) -> list[int]:
        """The axes of a dimension's factors."""
        start = sum(len(d) for d in self.dims[:dim])
        return list(range(start, start + len(self.dims[dim])))

    def tracked(self, dim: int) -> bool:
        return any(self.live.shape[axis] > 1 for axis in self.axes(dim))

    def refine(self, dims: Dims) -> Facts:
        """The same in finer factors."""
        return Facts(dims, *(refine(x, self.factors, sum(dims, ())) for x in (self.live, self.value)))

    def recast(self, dims: Dims) -> Facts:
        """The same with these factors for dimensions along which all entries are alike."""
        new = tuple(old if self.tracked(d) else new for d, (old, new) in enumerate(zip(self.dims, dims)))
        array = [n for d in range(len(dims)) for n in self._array(d, new[d])]
        return Facts(new, self.live.reshape(array), self.value.reshape(array))

    def _array(self, dim: int, factors: Sequence[int]) -> list[int]:
        return [self.live.shape[a] for a in self.axes(dim)] if self.tracked(dim) else [1] * len(factors)

    def spread(self, axes: Sequence[int]) -> Facts:
        """The same with channels told apart along these axes."""
        shape = [f if axis in axes else n for axis, (f, n) in enumerate(zip(self.factors, self.live.shape))]
        return Facts(self.dims, self.live.expand(shape), self.value.expand(shape))

    def along(self, dim: int) -> Facts:
        """What is known of the entries of one dimension: live where any of theirs is, or values differ."""
        axes = self.axes(dim)
        full = self.spread(axes)
        others = [axis for axis in range(full.live.dim()) if axis not in axes and full.live.shape[axis] > 1]
        live, value = full.live, full.value
        if others:
            low, high = value.amin(others, True), value.amax(others, True)
            live, value = live.any(others[0], True) if len(others) == 1 else _any(live, others), low
            live = live | (low != high)
        size = math.prod(self.dims[dim])
        return Facts.of(((size,),), live.reshape(size), value.reshape(size))


def _any(mask: Tensor, axes: Sequence[int]) -> Tensor:
    for axis in axes:
        mask = mask.any(axis, True)
    return mask


def reduce_to(mask: Tensor, shape: Sequence[int]) -> Tensor:
    """Whether any is wanted along the axes that ``shape`` does not tell apart."""
    return _any(mask, [axis for axis, n in enumerate(shape) if n == 1]).reshape(list(shape))


def refine(array: Tensor, factors: Sequence[int], finer: Sequence[int]) -> Tensor:
    """An array over ``factors`` as one over ``finer`` ones, of which each factor is a product."""
    parts = [(i, part) for i, part in enumerate(finer) if part > 1]
    shape = [1] * len(finer)
    for factor, size in zip(factors, array.shape):
        found = 1
        while found < factor:
            i, part = parts.pop(0)
            shape[i] = part if size > 1 else 1
            found *= part
    return array.reshape(shape)


def common(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """The coarsest factors of which those of both are products."""
    ends: set[int] = {1}
    for factors in (first, second):
        total = 1
        for factor in factors:
            total *= factor
            ends.add(total)
    found = sorted(ends)
    if any(b % a for a, b in pairwise(found)):
        raise LeftAlone(f"it joins dimensions of {tuple(first)} and {tuple(second)} channels")
    return tuple(b // a for a, b in pairwise(found)) or (1,)


def regroup(factors: Sequence[int], sizes: Sequence[int]) -> Dims:
    """The factors of the dimensions of a reshaped tensor, split where that is needed."""
    rest, dims = [f for f in factors if f > 1], []
    for size in sizes:
        dim: list[int] = []
        while math.prod(dim) < size:
            if not rest:
                raise LeftAlone(f"it reshapes {tuple(factors)} to {tuple(sizes)}")
            need = size // math.prod(dim)
            factor = rest.pop(0)
            if factor > need:
                if factor % need:
                    raise LeftAlone(f"it reshapes {tuple(factors)} to {tuple(sizes)}")
                rest.insert(0, factor // need)
                factor = need
            elif need % factor:
                raise LeftAlone(f"it reshapes {tuple(factors)} to {tuple(sizes)}")
            dim.append(factor)
        dims.append(tuple(dim) or (1,))
    return tuple(dims)


def whole(shape: Sequence[int]) -> Tensor:
    """The grid of all atoms."""
    return torch.arange(math.prod(shape)).reshape(list(shape))


def mask_of(grid: Tensor, shape: Sequence[int]) -> Tensor:
    mask = torch.zeros(math.prod(shape), dtype=torch.bool)
    mask[grid.flatten()] = True
    return mask.reshape(list(shape))


def product(mask: Tensor) -> Tensor:
    """The least grid that holds the mask and keeps the same channels of an axis whatever the others."""
    axes = range(mask.dim())
    kept = [_any(mask, [a for a in axes if a != axis]).flatten().nonzero().flatten() for axis in axes]
    return numbers([k.view([-1 if a == axis else 1 for a in axes]) for axis, k in enumerate(kept)], mask.shape)


def rows(mask: Tensor) -> Tensor:
    """The least grid that holds the mask, in which each channel of an axis may keep other ones of later axes."""
    if sum(n > 1 for n in mask.shape) <= 1:
        return product(mask)
    ids = whole(mask.shape)

    def needs(part: Tensor) -> list[int]:
        if not part.dim():
            return []
        inner = [needs(row) for row in part[_rows_of(part)]]
        return [len(inner), *(max(sizes) for sizes in zip(*inner))] if inner else [0] * part.dim()

    def build(part: Tensor, numbered: Tensor, sizes: list[int]) -> Tensor:
        if not sizes:
            return numbered
        used = _rows_of(part).tolist()
        spare = [i for i in range(len(part)) if i not in set(used)]
        chosen = sorted(used + spare[: sizes[0] - len(used)])
        return torch.stack([build(part[i], numbered[i], sizes[1:]) for i in chosen])

    return build(mask, ids, needs(mask))


def _rows_of(part: Tensor) -> Tensor:
    return part.reshape(len(part), -1).any(1).nonzero().flatten()


def coordinates(grid: Tensor, shape: Sequence[int]) -> list[Tensor]:
    """Where the atoms of a grid lie along each axis."""
    return list(torch.unravel_index(grid, torch.Size(shape)))


def numbers(coords: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """The numbers of the atoms at these coordinates; axes of one count for nothing."""
    total: Tensor = torch.zeros([1] * len(shape), dtype=torch.long)
    stride = 1
    for axis in range(len(shape) - 1, -1, -1):
        total = total + (coords[axis] * stride if shape[axis] > 1 else 0)
        stride *= shape[axis]
    return total


def refined_grid(grid: Tensor, facts: Facts, finer: Facts) -> Tensor | None:
    """A grid over the factors of ``facts`` as one over finer ones; None where rows would be of several lengths."""
    parts = [(i, part) for i, part in enumerate(finer.factors) if part > 1]
    shape = [1] * len(finer.factors)
    coords = coordinates(grid, facts.live.shape)
    for axis, (factor, size) in enumerate(zip(facts.factors, facts.live.shape)):
        pieces: list[tuple[int, int]] = []
        while factor > 1 and math.prod(part for _, part in pieces) < factor:
            pieces.append(parts.pop(0))
        if size == 1:
            continue
        line = coords[axis].movedim(axis, 0).reshape(grid.shape[axis], -1)[:, 0]
        stride, left = factor, grid.shape[axis]
        for i, part in pieces:
            stride //= part
            lead = line[:left] // stride
            count = left if stride == 1 else int((lead[1:] != lead[:-1]).sum()) + 1
            if left % count:
                return None
            shape[i], left = count, left // count
    result = grid.reshape(shape)
    return result if _in_rows(result, finer) else None


def _in_rows(grid: Tensor, facts: Facts) -> bool:
    """Whether the channel along each axis is the same along all later axes of its dimension."""
    coords = coordinates(grid, facts.live.shape)
    for dim in range(len(facts.dims)):
        axes = [a for a in facts.axes(dim) if facts.live.shape[a] > 1]
        for i, axis in enumerate(axes):
            for later in axes[i + 1 :]:
                if (coords[axis] != coords[axis].narrow(later, 0, 1)).any():
                    return False
    return True


def place(grid: Tensor, facts: Facts, dim: int) -> Tensor | None:
    """The old index along ``dim`` at each position of the smaller one; None where it depends on other dimensions."""
    axes = facts.axes(dim)
    total: Tensor = torch.zeros([1] * grid.dim(), dtype=torch.long)
    stride = 1
    coords = coordinates(grid, facts.live.shape)
    for axis in reversed(axes):
        factor = facts.factors[axis]
        found = coords[axis]
        if facts.live.shape[axis] == 1 and factor > 1:
            found = torch.arange(factor).view([-1 if a == axis else 1 for a in range(grid.dim())])
        total = total + found * stride
        stride *= factor
    for axis in range(grid.dim()):
        if axis not in axes:
            if (total != total.narrow(axis, 0, 1)).any():
                return None
            total = total.narrow(axis, 0, 1)
    return total.flatten()


def from_line(facts: Facts, dim: int, mask: Tensor) -> Tensor:
    """The atoms of a tensor that lie at these indices of one dimension."""
    axes = facts.axes(dim)
    shape = [facts.factors[axis] if axis in axes else 1 for axis in range(facts.live.dim())]
    found = mask.reshape(shape)
    found = _any(found, [axis for axis in axes if facts.live.shape[axis] == 1])
    return found.expand(facts.live.shape)
