"""Layers whose neighbourhoods have the same size and law, as one matrix of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .hamiltonians import Binary, log_p_converged
from .samplers import Source, two_point
from .site import Site, joint_rows
from .survivors import left_share
from .threshold import CHUNK, Segments

LEAST = 1e-30  # of a unit: a threshold of 0 decides everything
MOVED = 1 << 26  # elements that are moved by one index, at most
GREATEST = 1e28  # β whose fields float32 can still add up; whatever is decided by then is decided


class Stack:
    """Units of sites with the same law and neighbourhood size, as consecutive rows of one matrix, run after run.

    Most units are of one site. What counts or names the sites of a stack speaks of the first of each unit.
    """

    def __init__(self, sites: Sequence[Site], units: Sequence[tuple[int, ...]]) -> None:
        self.units = units
        self.tied = [[sites[i] for i in unit] for unit in units]
        self.sites = [together[0] for together in self.tied]
        first = self.sites[0]
        self.hamiltonian, self.sampler = first.hamiltonian, first.sampler
        self.size = sum(site.size for site in self.tied[0])
        self.counts = [site.count for site in self.sites]
        self.segments = Segments(self.counts, [site.sparsity for site in self.sites])
        self.runs = sorted({site.run for site in self.sites})
        self.run_rows = [sum(s.count for s in self.sites if s.run == run) for run in self.runs]
        self.run_sites = [sum(s.run == run for s in self.sites) for run in self.runs]
        self.sizes = [math.prod(site.shape) for site in self._members()]
        moved = len(self.sites) > 1 and not all(site.structure.in_order for site in self.sites)
        self.moved = moved and sum(self.counts) * self.size <= MOVED

    def set_sparsities(self, sites: Sequence[Site]) -> None:
        """Other sparsities from now on, those of the sites that the units are of."""
        self.segments.set_sparsities([sites[unit[0]].sparsity for unit in self.units])

    def site_run(self, device: torch.device) -> Tensor:
        """The run of each site."""
        return self.segments.constant("run", device, lambda: torch.tensor([s.run for s in self.sites]))

    def site_bits(self, device: torch.device) -> Tensor:
        """The logarithm of the number of each site's masks, base 2: its number of weights, N."""
        make = lambda: torch.tensor(self.counts, dtype=torch.float64) * self.size  # noqa: E731
        return self.segments.constant("bits", device, make)

    def rows(self, weights: Sequence[Tensor]) -> Tensor:
        """The weights of all sites, (rows, n), in float32 or better."""
        if self.moved and weights[self.units[0][0]].device.type == "cuda":
            stacked = self.gathered([weights[i].detach() for unit in self.units for i in unit])
        else:
            parts = [joint_rows([weights[i] for i in unit], tied) for unit, tied in zip(self.units, self.tied)]
            stacked = parts[0] if len(parts) == 1 else torch.cat(parts)
        return stacked.to(torch.promote_types(stacked.dtype, torch.float32))

    def gathered(self, weights: Sequence[Tensor]) -> Tensor:
        """The rows of many small layers by a single index: on a GPU each layer by itself costs a kernel."""
        flat = torch.cat([weights[0].new_zeros(1), *(weight.reshape(-1) for weight in weights)])
        return flat[self.places(flat.device)].view(-1, self.size)

    def places(self, device: torch.device) -> Tensor:
        """Where the elements of the rows are among all weights, counted from 1; 0 for what is none."""

        def make() -> Tensor:
            numbers = torch.arange(1, 1 + sum(self.sizes)).split(self.sizes)
            whole = iter([n.view(site.shape) for n, site in zip(numbers, self._members())])
            return torch.cat([joint_rows([next(whole) for _ in tied], tied).reshape(-1) for tied in self.tied])

        return self.segments.constant("places", device, make)

    def returned(self, mask: Tensor) -> list[Tensor]:
        """The inverse of :meth:`gathered`."""

        def make() -> Tensor:
            places = self.places(torch.device("cpu"))
            back = torch.empty(1 + sum(self.sizes), dtype=torch.int64)
            back[places] = torch.arange(len(places))
            return back[1:]

        flat = mask.reshape(-1)[self.segments.constant("back", mask.device, make)]
        return [part.view(site.shape) for part, site in zip(flat.split(self.sizes), self._members())]

    def _members(self) -> list[Site]:
        return [site for tied in self.tied for site in tied]

    def squares(self, weights: Sequence[Tensor]) -> Tensor:
        """w² of all sites, (rows, n)."""
        return self.rows(weights).square()

    def means(self, squares: Tensor) -> Tensor:
        return squares.flatten() if self.size == 1 else squares.mean(1)

    def converged(self, weights: Sequence[Tensor]) -> Tensor:
        """x_cvg of all rows."""
        return self.segments.converged(self.means(self.squares(weights)))[:, None].expand(-1, self.size)

    def left(self, weights: Sequence[Tensor]) -> Tensor:
        """1 − √(Q/w̄²) of all rows, 1 where nothing is pruned."""
        means = self.means(self.squares(weights))
        threshold = self.segments.thresholds(means)
        if not self.segments.fixed:
            threshold = threshold.masked_fill(self.segments.kept_whole(means.device, spread=False), 0)
        return left_share(means, self.segments.spread(threshold))[:, None].expand(-1, self.size)

    def ties(self, weights: Sequence[Tensor]) -> Tensor:
        """Which rows feel no field."""
        return self.segments.on_threshold(self.means(self.squares(weights)))[:, None].expand(-1, self.size)

    def scales(self, betas: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
        """β of every site, and what its field is multiplied by: β in the field's own unit."""
        beta = betas[self.site_run(threshold.device)].clamp(max=GREATEST).to(threshold.dtype)
        unit = self.hamiltonian.unit(threshold, self.size)
        return beta, beta if unit is None else in_units(beta, unit)

    def parts(self, run: int, rows: int) -> list[slice]:
        """The rows of a run in pieces that depend on nothing but the run, as its random numbers do."""
        first, step = sum(self.run_rows[:run]), rows
        if rows * self.size > CHUNK:
            step = max(1, CHUNK // 4 // self.size)
        return [slice(first + i, first + min(i + step, rows)) for i in range(0, rows, step)]

    def binary_field(
        self, converged: Tensor, betas: Tensor, streams: Sequence[torch.Generator | None], draws: int
    ) -> Tensor:
        """h of the binary law, (draws · rows, …), after every layer has decided; x_cvg is given as (rows, …)."""
        assert isinstance(self.hamiltonian, Binary)
        device = converged.device
        bits = self.site_bits(device)
        beta = self.hamiltonian.absolute(betas[self.site_run(device)].double(), bits)
        log_p = log_p_converged(beta.clamp_min(0), bits)
        sites = [count * draws for count in self.run_sites]
        chosen = two_point.choose(log_p.repeat(draws), Source(streams, sites, 1, device))
        chosen = chosen.repeat_interleave(len(converged)) if len(self.sites) == 1 else self.segments.spread(chosen)
        return two_point.field(converged.repeat(draws, 1), chosen[:, None])

    def scatter(self, mask: Tensor, masks: list[Tensor]) -> None:
        """The rows of a mask, back in the shapes of the sites' weights."""
        if self.moved and mask.device.type == "cuda":
            for index, part in zip((i for unit in self.units for i in unit), self.returned(mask)):
                masks[index] = part
            return
        for unit, tied, rows in zip(self.units, self.tied, mask.split(self.counts)):
            for index, site, part in zip(unit, tied, rows.split([site.size for site in tied], 1)):
                masks[index] = site.unrows(part)


def in_units(beta: Tensor, unit: Tensor) -> Tensor:
    """β in units of a field, as large as float32 bears it."""
    return (beta / unit.clamp_min(LEAST)).clamp(max=GREATEST)
