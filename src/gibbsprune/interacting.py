"""The Gibbs law of layers whose Hamiltonian says which elements interact (:mod:`gibbsprune.couplings`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import energies  # noqa: F401  # their names are known wherever there is a law
from .couplings import Coupled
from .graphs import Graph
from .samplers import Pairs, Rows, Source, draw
from .site import Site
from .stacks import Stack


def interaction(site: Site) -> tuple[tuple[int, ...], tuple[int, ...], int, bool]:
    """What sites must share to be drawn together: the grid of what interacts, how it is laid out, and their chain."""
    energy = site.hamiltonian
    if not isinstance(energy, Coupled) or site.peers:
        return (), (), site.sweeps or 0, site.warm
    layout = () if energy.order(site.cut, site.structure) is None else site.cut
    return energy.grid(site.cut, site.structure), layout, site.sweeps or 0, site.warm


class Interacting(Stack):
    """Sites with the same pairs. A row of the law are the elements that interact, of which a site has one or more."""

    hamiltonian: Coupled

    def __init__(self, sites: Sequence[Site], units: Sequence[tuple[int, ...]], pairs: Graph | None = None) -> None:
        super().__init__(sites, units)
        pairs = pairs or self.sites[0].pairing
        assert pairs is not None
        self.pairs: Graph = pairs
        self.warm = self.sites[0].warm

    def draw(
        self,
        weights: Sequence[Tensor],
        betas: Tensor,
        generators: Sequence[torch.Generator | None],
        sweeps: int,
        draws: int = 1,
        before: Sequence[Tensor] | None = None,
    ) -> Tensor:
        """A mask (draws · rows, n); more than one draw only for a single site."""
        energy, pairs = self.hamiltonian, self.pairs
        field, beta, strengths = self._law(weights, betas)
        device, alone = field.device, len(field)
        blocks = [alone * count // sum(self.run_rows) * draws for count in self.run_rows]
        source = Source([generators[r] for r in self.runs], blocks, pairs.size, device)
        if draws > 1:
            field, beta = field.repeat(draws, 1), beta.repeat(draws, 1)
            strengths = strengths.repeat(draws, 1) if len(strengths) > 1 else strengths
        start = self._arranged(self.masks(before))[:, :, 0] if before is not None and self.warm else None
        held = Pairs(pairs, strengths, energy.vectors)
        mask = draw(self.sampler, Rows(field, beta, source, sweeps=sweeps, pairs=held, start=start))
        if energy.whole:
            each, order = mask.reshape(draws, -1), self._order(device)
            if order is not None:
                each = torch.empty_like(each).index_copy_(1, order, each)
            mask = each.reshape(-1, 1).expand(-1, self.size)
        if not self.segments.fixed:  # a sparsity of 0 keeps all, and one that rises may begin with it
            mask = mask | self.segments.kept_whole(device).repeat(draws)[:, None]
        return mask

    def _law(self, weights: Sequence[Tensor], betas: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """h = βb of what interacts, (rows, elements), β, (rows, 1), and A of the pairs, (1 or rows, pairs)."""
        energy = self.hamiltonian
        values, field, beta = self.fields(weights, betas)
        field = self._arranged(field)[:, :, 0]
        strengths = energy.strengths(self._arranged(values), self.pairs)
        beta = beta.view(len(field), -1)[:, :1]
        if energy.centred:
            mean = self.mean_spin(beta).view(len(field), -1)[:, :1]
            field = field - mean * beta * self.pairs.total(strengths.to(field.dtype))
        return field, beta, strengths

    def fields(self, weights: Sequence[Tensor], betas: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The weights of all rows, (rows, n), h = βb of their elements, (rows, 1 or n), and β, (rows, 1)."""
        energy, values = self.hamiltonian, self.rows(weights)
        squares = values.square()
        means = self.means(squares)
        threshold = self.segments.thresholds(means)
        beta, scale = (self.segments.spread(each)[:, None] for each in self.scales(betas, threshold))
        field = energy.field(squares, means[:, None], self.segments.spread(threshold)[:, None]) * scale
        return values, field.sum(1, keepdim=True) if energy.whole else field, beta

    def masks(self, masks: Sequence[Tensor]) -> Tensor:
        """The masks of all sites, one value per element that interacts."""
        rows = torch.cat([s.rows(masks[i]) for (i,), s in zip(self.units, self.sites)])
        return rows[:, :1] if self.hamiltonian.whole else rows

    def _arranged(self, values: Tensor) -> Tensor:
        """Values of all rows, (rows, k), as (rows that interact, elements, k); k = 1 where n elements do."""
        if not self.hamiltonian.whole:
            return values[:, :, None]
        order = self._order(values.device)
        return (values if order is None else values[order]).unflatten(0, (-1, self.pairs.size))

    def _order(self, device: torch.device) -> Tensor | None:
        """All rows in the order in which they interact, where that is not their own; sites then have one shape."""
        order = self.hamiltonian.order(self.sites[0].cut, self.sites[0].structure)
        if order is None:
            return None
        make = lambda: torch.cat([order + k * len(order) for k in range(len(self.sites))])  # noqa: E731
        return self.segments.constant("order", device, make)

    def mean_spin(self, like: Tensor) -> Tensor:
        """1 − 2p of every row's site, as far as its neighbourhoods can be shared out so."""
        make = lambda: torch.tensor([2 * k / m - 1 for k, m in zip(self.segments.keep, self.counts)])  # noqa: E731
        return self.segments.spread(self.segments.constant("mean", like.device, make, varying=True).to(like.dtype))
