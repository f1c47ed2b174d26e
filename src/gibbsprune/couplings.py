"""Energies with any pairs: H(x) = Σ A_ij x_i x_j + Σ b_i x_i (the paper's xᵀAx + bᵀx, each pair counted once).

A < 0 attracts (alike is cheap), A > 0 repels. What interacts is said by ``within``:

=================  ===================================================================  ==========================
neighbourhood      the weights of a neighbourhood with each other                        kernels, filters
kernel             whole neighbourhoods in the same kernel                               weights
filter             whole neighbourhoods in the same filter                               weights, kernels
layer              whole neighbourhoods of a layer                                       weights, kernels, filters
network            whole neighbourhoods of any layers, by the layers' names              weights, kernels, filters
=================  ===================================================================  ==========================

In the last four a neighbourhood is kept or pruned as a whole, one spin X_k with the sum of its weights' fields, which
is the limit c → ∞ of :class:`~gibbsprune.Quadratic`; with single weights the spin is the weight's own. The elements
that interact lie on a *grid*: (outputs, inputs, *kernel), as much of it as they span. Those of a network are numbered
within their layers, as the structure cuts them (:mod:`gibbsprune.across`), each with its own layer's field and m.

``centred`` pairs are Σ A_ij (x_i − m)(x_j − m) with m = 1 − 2p, the mean of a mask of sparsity p. Without that,
attraction would prune more than p asks for (most neighbours are pruned) and repulsion less. x_cvg knows of magnitudes
alone: to end with a mask of the law itself, finalize with one more draw.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from .across import Across, Counts, pieces
from .checks import bad
from .graphs import WIDTH, Graph
from .hamiltonians import Hamiltonian, Linear
from .schedules import Schedule
from .structures import Filter, Kernel, Structure, Weight

ENUMERATED = 10  # elements up to which all states are the fastest exact way
MOST = 16  # elements that can be enumerated
RANK = 3  # squares of which the auxiliary fields are drawn together
WITHIN = {
    "neighbourhood": ("kernel", "filter"),
    "kernel": ("weight",),
    "filter": ("weight", "kernel"),
    "layer": ("weight", "kernel", "filter"),
    "network": ("weight", "kernel", "filter"),
}


class Coupled(Hamiltonian):
    """An energy with pairs of its own: a subclass is a frozen dataclass with :meth:`pairs` and :meth:`strengths`."""

    within: str = "neighbourhood"
    centred: bool = False
    vectors: Tensor | None = None

    @property
    def network(self) -> Across | None:
        """The pairs of a network."""
        return None

    @property
    def structures(self) -> tuple[str, ...]:  # type: ignore[override]
        return WITHIN[self.within]

    def families(self, structure: Structure) -> tuple[str, ...]:
        return ()  # pairs are of kernels and filters as they are, not of tiles or limited ones

    @property
    def samplers(self) -> tuple[str, ...]:
        squares = ("low_rank",) if self.vectors is not None else ()
        return ("transfer", "enumeration", *squares, "coloured", "independent")

    @abstractmethod
    def pairs(self, grid: Sequence[int]) -> Any:
        """Which elements interact, (E, 2), as flat indices of a grid of them."""

    @abstractmethod
    def strengths(self, weights: Tensor, graph: Graph) -> Tensor:
        """A of every pair, (1 or rows, E), from the interacting weights (rows, elements, weights of an element)."""

    def strengths_across(self, weights: Mapping[str, Tensor], graph: Graph) -> Tensor:
        """A of every pair of a network, (E,), from the named layers' weights (neighbourhoods, weights of each)."""
        raise NotImplementedError

    def peers(self, layers: Mapping[str, int]) -> Counts:
        return () if self.network is None else self.network.of(layers)

    def pairing(self, shape: Sequence[int], structure: Structure, name: str = "", peers: Counts = ()) -> Graph:
        if self.network is None:
            return _pairing(self, self.grid(shape, structure))
        if not peers:
            raise bad("within", self.within, "those of a layer where there is a single one: a network has names")
        near = self.network.connected(name)
        return self.network.graph(tuple(p for p in peers if p[0] in near)) if name in dict(peers) else Graph(1, [])

    def able(self, graph: Graph) -> tuple[str, ...]:
        """The samplers that can draw from a law with these pairs, what ``auto`` takes first."""
        if self.network is None:
            return self._able(graph)
        coupled = [piece.graph for piece in pieces(graph) if len(piece.graph)]
        each = [self._able(one) for one in sorted(coupled, key=lambda one: -one.size)] or [self._able(Graph(1, []))]
        return tuple(name for name in each[0] if all(name in names for names in each))

    def _able(self, graph: Graph) -> tuple[str, ...]:
        exact = ["transfer"] if graph.width is not None else []
        if self.vectors is not None:
            exact.append("low_rank")
        if graph.size <= MOST:
            exact.insert(0 if graph.size <= ENUMERATED and (graph.width or WIDTH) > 3 else len(exact), "enumeration")
        return (*(() if len(graph) else ("independent",)), *exact, "coloured")

    # -- from a layer to rows of elements that interact, and back ------------------------------------------------------

    @property
    def whole(self) -> bool:
        """Whether a spin is a neighbourhood as a whole."""
        return self.within != "neighbourhood"

    def grid(self, shape: Sequence[int], structure: Structure) -> tuple[int, ...]:
        """The elements that interact, as they lie in a layer."""
        inputs, kernel = (
            Filter(transposed=structure.transposed, groups=structure.groups)._inputs(shape),
            tuple(shape[2:]),
        )
        outputs = math.prod(shape) // max(1, inputs * math.prod(kernel))
        axes = {"kernel": kernel, "filter": (inputs, *kernel), "layer": (outputs, inputs, *kernel)}
        if not self.whole:
            return axes[structure.name]
        inner = {"weight": (), "kernel": kernel, "filter": (inputs, *kernel)}[structure.name]
        return axes[self.within][: len(axes[self.within]) - len(inner)]

    def order(self, shape: Sequence[int], structure: Structure) -> Tensor | None:
        """The neighbourhoods in the order in which they interact; None where that is their own.

        Weights are in the order of their tensor, which in a transposed convolution has the filters across.
        """
        if self.network is not None or not (isinstance(structure, Weight) and structure.transposed):
            return None
        block = Kernel if self.within == "kernel" else Filter
        index = torch.arange(math.prod(shape)).reshape(tuple(shape))
        return block(transposed=structure.transposed, groups=structure.groups).rows(index).flatten()

    def pair_energy(
        self, spins: Tensor, rows: Tensor, mean: float, shape: Sequence[int], structure: Structure
    ) -> Tensor:
        graph, weights = self.pairing(shape, structure), rows[:, :, None]  # of a network refused: it is no layer's own
        broken = torch.zeros(spins.shape[:-2], dtype=torch.bool, device=spins.device)
        if self.whole:
            broken = (spins != spins[..., :1]).any(-1).any(-1)  # no mask of this law
            order = self.order(shape, structure)
            first = spins[..., 0] if order is None else spins[..., 0][..., order.to(spins.device)]
            each = rows if order is None else rows[order.to(rows.device)]
            spins, weights = first.unflatten(-1, (-1, graph.size)), each.unflatten(0, (-1, graph.size))
        one, two = graph.ends(spins.device)
        away = spins - mean if self.centred else spins
        total = (self.strengths(weights, graph).to(spins.dtype) * away[..., one] * away[..., two]).sum((-2, -1))
        return total.masked_fill(broken, torch.inf)


@lru_cache(maxsize=512)
def _pairing(energy: Coupled, grid: tuple[int, ...]) -> Graph:
    return Graph(math.prod(grid), energy.pairs(grid))


class WithField(Coupled):
    """The field of a linear Hamiltonian, with its unit, slope and schedule."""

    base: Linear

    def field(self, squares: Tensor, means: Tensor, threshold: Tensor) -> Tensor:
        return self.base.field(squares, means, threshold)

    def unit(self, threshold: Tensor, size: int) -> Tensor | None:
        unit = self.base.unit(threshold, size)
        if unit is None or not self.whole or self.base.kind == "sign":  # which is in units of n already
            return unit
        return unit * size  # the fields of a neighbourhood add up: so it is decided as a single weight is

    def slope(self, squares: Tensor) -> Tensor:
        return self.base.slope(squares)

    def default_schedule(self, epochs: int, sizes: Sequence[int] = ()) -> Schedule:
        return self.base.default_schedule(epochs, sizes)
