"""Graphs of spins that interact: coloured for a chain, ordered for an exact elimination.

A :class:`Graph` says which of ``size`` spins interact, each pair once; how strongly is another matter. Spins of one
colour have no pair among them, so that they are independent given the others. Eliminating the spins one after
another joins the neighbours of each; where no spin has more than a few by then (the graph's *width*: 1 for trees and
chains, 3 for a 3×3 grid), sums over all states are cheap.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .checks import bad, check_whole, parsed, wholes
from .errors import UserError

WIDTH = 6  # the greatest width of an exact elimination: tables of 2^7 numbers
LENGTH = 1024  # the most spins that are eliminated one after another


class Colour(NamedTuple):
    """Spins of one colour, with their neighbours: place ``size`` and pair ``len(pairs)`` stand for none."""

    nodes: Tensor  # (k,)
    others: Tensor  # (k, degree)
    edges: Tensor  # (k, degree), which pair that is


class Step(NamedTuple):
    """One spin to be eliminated, the neighbours that it has by then, and its pairs with them as (neighbour, pair)."""

    node: int
    rest: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]


class Graph:
    """Which of ``size`` spins interact.

    Args:
        size: the number of spins.
        pairs: (E, 2) whole numbers from 0 to size − 1; each unordered pair at most once.
    """

    def __init__(self, size: int, pairs: Any) -> None:
        self.size, self.pairs = size, check_pairs(pairs, size)
        self._made: dict[tuple[str, torch.device], Any] = {}

    def __len__(self) -> int:
        return len(self.pairs)

    def constant(self, name: str, device: torch.device, make: Callable[[], Any]) -> Any:
        """What is made once per device and kept, as a captured CUDA graph needs it."""
        if (name, device) not in self._made:
            self._made[name, device] = make()
        return self._made[name, device]

    def ends(self, device: torch.device) -> Tensor:
        """Both spins of every pair, (2, E)."""
        return self.constant("ends", device, lambda: torch.from_numpy(np.ascontiguousarray(self.pairs.T)).to(device))

    def total(self, strengths: Tensor, values: Tensor | None = None) -> Tensor:
        """Σ_j A_ij of every spin from the strengths (rows, E), or Σ_j A_ij v_j with values (rows, size): (rows, size).

        Without values whole layers are summed, whose strengths are often the same in all rows.
        """
        padded = F.pad(strengths, (0, 1))
        if values is not None:
            nodes, others, edges = self.constant(
                "around",
                values.device,
                lambda: Colour(*(part.to(values.device) for part in self._table(np.arange(self.size)))),
            )
            return (padded[:, edges] * F.pad(values, (0, 1))[:, others]).sum(-1)
        if self.size * self.most <= 8 * len(self) + 1024:  # one table holds little that is not there
            everything = self.constant(
                "all", strengths.device, lambda: self._table(np.arange(self.size)).edges.to(strengths.device)
            )
            return padded[:, everything].sum(-1)
        sums = strengths.new_zeros(len(strengths), self.size)
        for nodes, _, edges in self.colours(strengths.device):
            sums[:, nodes] = padded[:, edges].sum(-1)
        return sums

    @cached_property
    def most(self) -> int:
        """The most pairs that a spin has, at least 1."""
        return max(1, int(np.bincount(self.pairs.ravel(), minlength=1).max()))

    # -- colours -----------------------------------------------------------------------------------------------------

    @cached_property
    def colouring(self) -> np.ndarray:
        """A colour per spin, from 0: two where two suffice, else the first free one, spins of most pairs first."""
        sides = _two_sides(self.size, self.pairs)
        return _first_free(self.size, self.pairs) if sides is None else sides

    def colours(self, device: torch.device) -> list[Colour]:
        """The spins by colour, with tables of their neighbours; made once per device."""

        def make() -> list[Colour]:
            found = [self._table(np.flatnonzero(self.colouring == c)) for c in range(self.colouring.max(initial=0) + 1)]
            return [Colour(*(part.to(device) for part in colour)) for colour in found]

        return self.constant("colours", device, make)

    @cached_property
    def _around(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The neighbours of all spins one after another, the pairs with them, how many, and where they begin."""
        both = np.concatenate([self.pairs, self.pairs[:, ::-1]])
        order = np.argsort(both[:, 0], kind="stable")
        degree = np.bincount(both[:, 0], minlength=self.size)
        return both[order, 1], order % max(1, len(self.pairs)), degree, np.cumsum(degree) - degree

    def _table(self, nodes: np.ndarray) -> Colour:
        """Some spins with their neighbours."""
        others, edges, degree, starts = self._around
        column = np.arange(degree[nodes].max(initial=0))
        there = column < degree[nodes][:, None]
        place = np.where(there, starts[nodes][:, None] + column, 0)
        tables = (np.where(there, table[place], none) if len(column) else place
                  for table, none in ((others, self.size), (edges, len(self.pairs))))  # fmt: skip
        return Colour(*(torch.from_numpy(np.ascontiguousarray(part)) for part in (nodes, *tables)))

    # -- elimination -------------------------------------------------------------------------------------------------

    @cached_property
    def elimination(self) -> list[Step] | None:
        """The spins in an order in which each has few neighbours when its turn comes; None where there is none."""
        if self.size > LENGTH or len(self.pairs) > WIDTH * self.size:
            return None
        near: list[set[int]] = [set() for _ in range(self.size)]
        number = {}
        for edge, (a, b) in enumerate(self.pairs.tolist()):
            near[a].add(b)
            near[b].add(a)
            number[a, b] = number[b, a] = edge
        queue, done, steps = [(len(n), i) for i, n in enumerate(near)], [False] * self.size, []
        heapq.heapify(queue)
        while queue:
            degree, node = heapq.heappop(queue)
            if done[node] or degree != len(near[node]):
                continue
            if degree > WIDTH:
                return None
            done[node], rest = True, tuple(sorted(near[node]))
            steps.append(
                Step(node, rest, tuple((other, number[node, other]) for other in rest if (node, other) in number))
            )
            for other in rest:
                near[other] |= near[node]
                near[other] -= {node, other}
                heapq.heappush(queue, (len(near[other]), other))
        return steps

    @property
    def width(self) -> int | None:
        """The most neighbours that a spin has when it is eliminated; None where that is too many."""
        return None if self.elimination is None else max((len(step.rest) for step in self.elimination), default=0)


def as_pairs(pairs: Any) -> np.ndarray:
    """Pairs as (E, 2) whole numbers."""
    try:
        found = np.asarray(pairs.cpu() if isinstance(pairs, Tensor) else pairs)
    except ValueError:  # lists of other lengths
        raise bad("pairs", pairs, "whole numbers of shape (pairs, 2)") from None
    if found.size == 0:
        return np.empty((0, 2), np.int64)
    if found.ndim != 2 or found.shape[1] != 2 or found.dtype.kind not in "iu":
        raise UserError(
            f"pairs are {found.dtype} of shape {found.shape}: allowed are whole numbers of shape (pairs, 2)"
        )
    return found.astype(np.int64)


def check_pairs(pairs: Any, size: int | None, told: Callable[[int], str] = str) -> np.ndarray:
    """Pairs as (E, 2) whole numbers, or a sentence saying what is wrong with them.

    Args:
        pairs: of elements.
        size: how many elements there are, None where that is not known yet.
        told: an element in words.
    """
    found = as_pairs(pairs)
    outside = found[(found < 0) | (found >= size)] if size is not None else found[found < 0]
    if len(outside):
        allowed = "whole numbers from 0" if size is None else f"0 to {size - 1} where {size} elements interact"
        raise UserError(f"pairs name element {outside[0]}: allowed are {allowed}")
    size = int(found.max(initial=0)) + 1 if size is None else size
    if (same := found[found[:, 0] == found[:, 1]]).size:
        raise UserError(f"pairs couple element {told(same[0, 0])} with itself: allowed are pairs of two elements")
    keys = np.sort(found, 1) @ np.array([size, 1])
    if len(np.unique(keys)) < len(keys):
        a, b = map(told, divmod(int(keys[np.argsort(keys)][1:][np.diff(np.sort(keys)) == 0][0]), size))
        raise UserError(f"pairs name {a} and {b} more than once: allowed is each pair once, in either order")
    return found


def grid_pairs(grid: Sequence[int], axes: Sequence[int] | None = None) -> np.ndarray:
    """Next neighbours on a grid, along some of its axes or all, as pairs of flat indices.

    >>> grid_pairs((2, 2)).tolist()
    [[0, 2], [1, 3], [0, 1], [2, 3]]
    """
    sizes = parsed("grid", grid, wholes(0))
    index, every = np.arange(math.prod(sizes)).reshape(sizes), range(len(sizes))
    found = [np.empty((0, 2), np.int64)]
    for axis in every if axes is None else axes:
        if axis not in every:
            raise bad("axes", axes, f"some of 0 to {len(sizes) - 1} on a grid of {len(sizes)} axes")
        moved = np.moveaxis(index, axis, 0)
        found.append(np.stack([moved[:-1].ravel(), moved[1:].ravel()], 1))
    return np.concatenate(found)


def all_pairs(size: int) -> np.ndarray:
    """Every pair of ``size`` elements."""
    check_whole("size", size, 0)
    return np.stack(np.triu_indices(size, 1), 1)


def kth_pairs(counts: Sequence[int]) -> np.ndarray:
    """The k-th of one with the k-th of the other, of as many each: filters whose outputs are added.

    >>> kth_pairs((3, 3)).tolist()
    [[0, 0], [1, 1], [2, 2]]
    """
    sizes = parsed("counts", counts, wholes(0))
    if len(sizes) != 2 or sizes[0] != sizes[1]:
        raise UserError(f"counts are {' and '.join(map(str, sizes))}: allowed are two equal ones, k-th with k-th")
    return np.stack([np.arange(sizes[0])] * 2, 1)


def components(size: int, pairs: np.ndarray) -> np.ndarray:
    """The least number of the spins that each spin is connected with, itself among them."""
    label = np.arange(size)
    while True:  # by passing it on and following it
        least = label.copy()
        np.minimum.at(least, pairs[:, 0], label[pairs[:, 1]])
        np.minimum.at(least, pairs[:, 1], label[pairs[:, 0]])
        least = least[least]
        if np.array_equal(least, label):
            return label
        label = least


def _two_sides(size: int, pairs: np.ndarray) -> np.ndarray | None:
    """0 or 1 for every spin so that all pairs differ, or None where that is impossible; all components at once."""
    label = components(size, pairs)
    side = np.where(label == np.arange(size), 0, -1)
    one, two = np.concatenate([pairs, pairs[:, ::-1]]).T
    while (open_ := (side[one] >= 0) & (side[two] < 0)).any():
        side[two[open_]] = 1 - side[one[open_]]
        rest = side[two] < 0
        one, two = one[rest], two[rest]
    return None if (side[pairs[:, 0]] == side[pairs[:, 1]]).any() else side


def _first_free(size: int, pairs: np.ndarray) -> np.ndarray:
    near: list[list[int]] = [[] for _ in range(size)]
    for a, b in pairs.tolist():
        near[a].append(b)
        near[b].append(a)
    colour = [-1] * size
    for node in sorted(range(size), key=lambda i: -len(near[i])):
        taken = {colour[other] for other in near[node]}
        colour[node] = next(c for c in range(len(taken) + 1) if c not in taken)
    return np.array(colour)
