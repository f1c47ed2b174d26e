"""Pairs across layers: which neighbourhoods of which layers interact, as one graph over all of them.

An element is a neighbourhood of a layer: its k-th filter, say. The elements of all layers that pairs name, one layer
after another, are the spins of one :class:`~gibbsprune.graphs.Graph`. Mostly it falls into many pieces without a pair
between them, which are independent of each other. Those with the same pairs are rows of one matrix, as neighbourhoods
of a layer are: two convolutions of 64 filters, of which the k-th attract each other, are 64 rows of two spins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from .checks import bad, listed
from .errors import UserError
from .graphs import Graph, all_pairs, as_pairs, check_pairs, components

#: Layers that pairs name, each with the number of its neighbourhoods.
Counts = tuple[tuple[str, int], ...]

ALLOWED = "mappings from two layer names to pairs of their neighbourhoods"


class Across:
    """Pairs by the names of two layers.

    Args:
        given: from two names, which may be the same one, to (E, 2) whole numbers, or to a function from the numbers of
            neighbourhoods of both to these, as :func:`gibbsprune.kth_pairs`.
        counts: how many neighbourhoods the layers must have, by name, where that is known.
    """

    def __init__(self, given: Any, counts: Mapping[str, int] | None = None) -> None:
        if not isinstance(given, Mapping) or not given:
            raise bad("pairs", given, f"{ALLOWED}, with within 'network'")
        for names in given:
            if not (isinstance(names, tuple) and len(names) == 2 and all(isinstance(name, str) for name in names)):
                raise bad("the key of pairs", names, "two layer names")
        self.given: dict[tuple[str, str], np.ndarray | Callable[[tuple[int, int]], Any]]
        self.given = {names: pairs if callable(pairs) else as_pairs(pairs) for names, pairs in given.items()}
        self.counts = dict(counts or {})
        self.names = tuple(dict.fromkeys(name for names in self.given for name in names))
        self._graphs: dict[Counts, Graph] = {}
        if not any(callable(pairs) for pairs in self.given.values()):
            self.graph(tuple((name, self._least(name)) for name in self.names))  # whatever can be refused by now

    @classmethod
    def complete(cls, counts: Mapping[str, int]) -> Across:
        """Every pair of the elements of some layers."""
        names = list(counts)
        both = ((a, b) for i, a in enumerate(names) for b in names[i:])
        pairs = {
            (a, b): all_pairs(counts[a]) if a == b else np.indices((counts[a], counts[b])).reshape(2, -1).T
            for a, b in both
        }
        return cls(pairs, counts)

    def _least(self, name: str) -> int:
        """How many neighbourhoods a layer has at least."""
        mine = [pairs[:, side] for names, pairs in self.given.items() for side in (0, 1) if names[side] == name]  # type: ignore[index]
        return self.counts.get(name, 1 + max(int(column.max(initial=0)) for column in mine))

    @property
    def total(self) -> int | None:
        """How many pairs there are, where that does not depend on the layers."""
        fixed = [len(pairs) for pairs in self.given.values() if not callable(pairs)]
        return sum(fixed) if len(fixed) == len(self.given) else None

    def __repr__(self) -> str:
        return f"pairs of {listed(self.names)}"

    def of(self, layers: Mapping[str, int]) -> Counts:
        """The layers that are named, of all that are pruned, by their numbers of neighbourhoods."""
        for name in self.names:
            if name not in layers:
                raise UserError(f"pairs name layer {name!r}: allowed are those that are pruned, {listed(layers)}")
        return tuple((name, layers[name]) for name in self.names)

    def connected(self, name: str) -> set[str]:
        """The layers that pairs connect with one, itself among them."""
        found = {name}
        while more := {one for names in self.given if found & {*names} for one in names} - found:
            found |= more
        return found

    def graph(self, layers: Counts) -> Graph:
        """The elements of some layers, one layer after another, with all pairs among these in the order given."""
        if layers not in self._graphs:
            self._graphs[layers] = self._graph(dict(layers))
        return self._graphs[layers]

    def _graph(self, counts: dict[str, int]) -> Graph:
        starts = dict(zip(counts, np.cumsum([0, *counts.values()]).tolist()))
        for name, count in counts.items():
            if (wanted := self.counts.get(name, count)) != count:
                raise UserError(f"vectors have {wanted} elements of layer {name!r}: allowed are {count}, as it has")
        flat = [np.empty((0, 2), np.int64)]
        for names, given in self.given.items():
            if not counts.keys() >= {*names}:
                continue
            both = counts[names[0]], counts[names[1]]
            pairs = as_pairs(given(both) if callable(given) else given)
            for side, (name, count) in enumerate(zip(names, both)):
                outside = pairs[(pairs[:, side] < 0) | (pairs[:, side] >= count), side]
                if len(outside):
                    raise UserError(f"pairs name element {outside[0]} of layer {name!r}: allowed are 0 to {count - 1}")
            flat.append(pairs + np.array([starts[name] for name in names]))
        size = sum(counts.values())

        def told(element: int) -> str:
            name = max((name for name in counts if starts[name] <= element), key=lambda name: starts[name])
            return f"{element - starts[name]} of layer {name!r}"

        return Graph(size, check_pairs(np.concatenate(flat), size, told))


class Piece(NamedTuple):
    """Rows of spins that are connected within a row alone, all rows with the same pairs."""

    graph: Graph  # of a row
    elements: np.ndarray  # (rows, graph.size), which spins these are
    edges: np.ndarray  # (rows, len(graph)), and which pairs


def pieces(graph: Graph) -> list[Piece]:
    """What a graph falls into, spins and pairs of each piece in their own order."""
    return graph.constant("pieces", torch.device("cpu"), lambda: _pieces(graph))


def _pieces(graph: Graph) -> list[Piece]:
    label = components(graph.size, graph.pairs)
    order = np.argsort(label, kind="stable")
    roots, first, sizes = np.unique(label[order], return_index=True, return_counts=True)
    place = np.empty(graph.size, np.int64)
    place[order] = np.arange(graph.size) - np.repeat(first, sizes)
    ends, owner = np.sort(place[graph.pairs], 1), np.searchsorted(roots, label[graph.pairs[:, 0]])
    sorted_edges = np.lexsort((ends[:, 1], ends[:, 0], owner))
    counts = np.bincount(owner, minlength=len(roots))
    starts = np.cumsum(counts) - counts
    alike: dict[tuple[int, bytes], list[int]] = {}
    for piece, (size, start, count) in enumerate(zip(sizes.tolist(), starts.tolist(), counts.tolist())):
        shape = ends[sorted_edges[start : start + count]]
        alike.setdefault((size, shape.tobytes()), []).append(piece)
    found = []
    for (size, flat), mine in sorted(alike.items()):
        inner = Graph(size, np.frombuffer(flat, np.int64).reshape(-1, 2))
        elements = order[first[mine][:, None] + np.arange(size)]
        found.append(Piece(inner, elements, sorted_edges[starts[mine][:, None] + np.arange(len(inner))]))
    return found
