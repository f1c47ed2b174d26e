"""The Gibbs law of layers whose neighbourhoods interact across layers (:mod:`gibbsprune.across`).

Fields, units and thresholds are those of each layer by itself, as where it interacts with no other. Rows of the law are
gathered from the rows of several layers, and drawn by the samplers of all other pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .across import pieces
from .errors import UserError
from .graphs import Graph
from .interacting import Interacting
from .samplers import Pairs, Rows, Source, draw
from .site import Site

SURE = 60.0  # a field beyond all pairs that decides of a spin, up to e^−120


class Part(NamedTuple):
    """Rows of elements of any layers, all with the same pairs."""

    graph: Graph  # of a row
    elements: np.ndarray  # (rows, elements)
    edges: np.ndarray  # (rows, pairs)
    site: Site  # of a layer in it, which says how it is drawn


class Joined:
    """Sites of a run whose neighbourhoods interact across layers.

    Neighbourhoods of one size are a stack, which knows their fields; their spins, one for each, stack after stack, are
    the elements. Everything that goes out of here has one value for each of them, (elements, 1).
    """

    def __init__(self, sites: Sequence[Site], units: Sequence[tuple[int, ...]]) -> None:
        sizes: dict[int, list[tuple[int, ...]]] = {}
        for unit in units:
            sizes.setdefault(sites[unit[0]].size, []).append(unit)
        self.stacks = [Interacting(sites, sizes[size], Graph(1, [])) for size in sorted(sizes)]
        self.sites = [site for stack in self.stacks for site in stack.sites]
        self.run, peers = self.sites[0].run, self.sites[0].peers
        ends = np.cumsum([site.count for site in self.sites]).tolist()
        self.places = {site.name: slice(end - site.count, end) for site, end in zip(self.sites, ends)}
        self.size, self.energy = ends[-1], self.stacks[0].hamiltonian
        self.named = [name for name, _ in peers]
        if missing := [name for name in self.named if name not in self.places]:
            told = "allowed are layers that lose something, all on one device"
            if len(missing) < len(self.named):
                raise UserError(f"pairs name layer {missing[0]!r}, which is not drawn with the others: {told}")
            self.named = []
        assert self.energy.network is not None
        self.graph = self.energy.network.graph(peers if self.named else ())
        self.parts = self._parts()

    def _parts(self) -> list[Part]:
        """What the pairs make of the elements, and those of layers without pairs, one by one."""
        where = np.concatenate([np.empty(0, np.int64), *(np.r_[self.places[name]] for name in self.named)])
        owner = np.repeat(np.arange(len(self.sites)), [site.count for site in self.sites])
        ways = np.array([site.sampler for site in self.sites])[owner]
        found = []
        for graph, elements, edges in pieces(self.graph):
            everywhere = where[elements]
            for way in dict.fromkeys(ways[everywhere[:, 0]].tolist()):
                mine = ways[everywhere[:, 0]] == way
                site = self.sites[owner[everywhere[mine][0, 0]]]
                found.append(Part(graph, everywhere[mine], edges[mine], site))
        if loose := [site for site in self.sites if site.name not in self.named]:
            elements = np.concatenate([np.r_[self.places[site.name]] for site in loose])[:, None]
            found.append(Part(Graph(1, []), elements, np.empty((len(elements), 0), np.int64), loose[0]))
        return found

    def draw(
        self,
        weights: Sequence[Tensor],
        betas: Tensor,
        generators: Sequence[torch.Generator | None],
        sweeps: int,
        draws: int = 1,
        before: Sequence[Tensor] | None = None,
    ) -> Tensor:
        """A mask (draws · elements, 1)."""
        field, beta, strengths = self._law(weights, betas)
        device, kept = field.device, self._kept(field.device)
        going = self._cat(stack.masks(before) for stack in self.stacks) if before is not None else None
        mask = torch.empty(draws, self.size, dtype=torch.bool, device=device)
        for number, (graph, _, _, site) in enumerate(self.parts):
            elements, edges = self._index(number, device)
            h, J, A = field[elements], beta[elements[:, :1]], strengths[edges]
            if self.energy.centred:
                h = h - J * graph.total(A.to(h.dtype), self._means(beta)[elements])
            if kept is not None:  # which the others feel
                h = torch.where(kept[elements], -SURE - J * graph.total(A.to(h.dtype).abs()), h)
            start = going[elements].repeat(draws, 1) if going is not None and site.warm else None
            h, J, A = (each.repeat(draws, 1) for each in (h, J, A))
            source = Source([generators[self.run]], [len(h)], graph.size, device)
            pairs, count = Pairs(graph, A, self.energy.vectors), site.sweeps or sweeps
            drawn = draw(site.sampler, Rows(h, J, source, sweeps=count, pairs=pairs, start=start))
            mask[:, elements] = drawn.view(draws, *elements.shape)
        return (mask if kept is None else mask | kept).reshape(-1, 1)

    def _law(self, weights: Sequence[Tensor], betas: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """h = βb and β of all elements, and A of all pairs."""
        values, fields, scales = zip(*(stack.fields(weights, betas) for stack in self.stacks))
        rows = [own for stack, some in zip(self.stacks, values) for own in some.split(stack.counts)]
        named = {site.name: own for site, own in zip(self.sites, rows) if site.name in self.named}
        field = self._cat(fields)
        strengths = self.energy.strengths_across(named, self.graph) if named else field.new_zeros(0)
        return field, self._cat(scales), strengths

    # -- one value for each element ------------------------------------------------------------------------------------

    def _cat(self, values: Iterable[Tensor]) -> Tensor:
        return torch.cat([value[:, 0] if value.dim() == 2 else value for value in values])

    def _means(self, like: Tensor) -> Tensor:
        """1 − 2p of each element's layer."""
        return self._cat(stack.mean_spin(like) for stack in self.stacks)

    def _kept(self, device: torch.device) -> Tensor | None:
        """The elements of layers of which nothing is removed for now; None where there never are any."""
        if all(stack.segments.fixed for stack in self.stacks):
            return None
        return self._cat(stack.segments.kept_whole(device) for stack in self.stacks)

    def _index(self, number: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """The elements and pairs of some rows on a device, made once."""
        part, constant = self.parts[number], self.stacks[0].segments.constant
        return (
            constant(f"elements {number}", device, lambda: torch.from_numpy(part.elements)),
            constant(f"edges {number}", device, lambda: torch.from_numpy(part.edges)),
        )

    def energies(self, weights: Sequence[Tensor], masks: Sequence[Tensor]) -> dict[int, float]:
        """H of every site, by its index; half of a pair's energy is that of either element."""
        betas = torch.ones(1 + self.run, dtype=torch.float64, device=masks[0].device)
        field, beta, strengths = self._law(weights, betas)
        spins = 2 * self._cat(stack.masks(masks) for stack in self.stacks).to(field.dtype) - 1
        away = spins - self._means(beta) if self.energy.centred else spins
        each = field * spins
        for number, part in enumerate(self.parts):
            elements, edges = self._index(number, field.device)
            pulls = part.graph.total(strengths[edges].to(field.dtype), away[elements])
            each[elements] += away[elements] * pulls / 2
        members = [unit[0] for stack in self.stacks for unit in stack.units]
        return {i: float(own.sum()) for i, own in zip(members, each.split([site.count for site in self.sites]))}

    def set_sparsities(self, sites: Sequence[Site]) -> None:
        """Other sparsities from now on."""
        for stack in self.stacks:
            stack.set_sparsities(sites)

    def converged(self, weights: Sequence[Tensor]) -> Tensor:
        """x_cvg of all elements."""
        return self._cat(stack.converged(weights) for stack in self.stacks)[:, None]

    def left(self, weights: Sequence[Tensor]) -> Tensor:
        """1 − √(Q/w̄²) of all elements."""
        return self._cat(stack.left(weights) for stack in self.stacks)[:, None]

    def ties(self, weights: Sequence[Tensor]) -> Tensor:
        """Which elements feel no field."""
        return self._cat(stack.ties(weights) for stack in self.stacks)[:, None]

    def scatter(self, mask: Tensor, masks: list[Tensor]) -> None:
        """A value for each element, in the shapes of the sites' weights."""
        for stack, some in zip(self.stacks, mask.split([sum(stack.counts) for stack in self.stacks])):
            stack.scatter(some.expand(-1, stack.size), masks)
