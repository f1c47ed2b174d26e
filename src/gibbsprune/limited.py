"""The Gibbs law of layers that keep a limited number of weights in each neighbourhood: N of M, or at most k.

The law is that of single weights, given the counts (:mod:`gibbsprune.samplers.conditional`). Where the count is exact,
Q is the neighbourhood's own, half-way between its last weight that stays and its first that goes; ``square`` and
``abs`` do not need it, because it cancels. Where there is only a most, Q is the layer's: as many weights lie above it
as the sparsity leaves, none of them beyond the k largest of its neighbourhood (:func:`gibbsprune.limits.eligible`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .hamiltonians import Binary, Linear
from .limits import cuts, eligible, keep_in_rows
from .samplers import Rows, Source, draw
from .site import Site
from .stacks import GREATEST, Stack, in_units
from .survivors import left_share
from .threshold import CHUNK, Segments

SURE = 50.0  # a field beyond which a weight that is compared with Q is decided, up to e^−100
CERTAIN = 1e30  # a field that decides of a weight, whatever its neighbours' are
NEVER = 1e34  # that of what fills up a group, and is kept by none


class Limited(Stack):
    """Sites with the same limits."""

    def __init__(self, sites: Sequence[Site], units: Sequence[tuple[int, ...]]) -> None:
        super().__init__(sites, units)
        limits = self.sites[0].limits
        assert limits is not None
        self.limits, (self.least, self.most) = limits, limits
        self.exact = self.least == self.most
        self.elements = Segments([count * self.size for count in self.counts], [s.sparsity for s in self.sites])
        self.ragged = any(site.count * site.size > math.prod(site.shape) for site in self.sites)
        plain = type(self.hamiltonian) is Linear and self.hamiltonian.kind != "sign" and not self.hamiltonian.relative
        self.cancels = self.exact and plain

    def filling(self, device: torch.device) -> Tensor:
        """Which elements of the rows are no weights."""

        def make() -> Tensor:
            return torch.cat([~s.rows(torch.ones(s.shape, dtype=torch.bool)) for s in self.sites])

        return self.segments.constant("filling", device, make)

    def site_bits(self, device: torch.device) -> Tensor:
        """The logarithm of the number of each site's patterns, base 2."""

        def patterns(real: int) -> float:
            return math.log2(sum(math.comb(real, s) for s in range(min(self.least, real), min(self.most, real) + 1)))

        def make() -> Tensor:
            real = (~self.filling(torch.device("cpu"))).sum(1)
            bits = torch.tensor([patterns(n) for n in range(self.size + 1)], dtype=torch.float64)[real]
            return torch.stack([part.sum() for part in bits.split(self.counts)])

        return self.segments.constant("bits", device, make)

    def converged(self, weights: Sequence[Tensor]) -> Tensor:
        """x_cvg of all rows."""
        squares = self.rows(weights).square()
        if self.exact:
            mask = keep_in_rows(squares, self.most)
        else:
            mask = self.elements.converged(eligible(squares, self.most).flatten()).view_as(squares)
        return mask if self.elements.fixed else mask | self.elements.kept_whole(mask.device).view_as(mask)

    def left(self, weights: Sequence[Tensor]) -> Tensor:
        """1 − √(Q/w²) of all rows, with Q at least what the row's largest weight has that goes; 1 where all stay."""
        squares = self.rows(weights).square()
        bound = cuts(squares, self.most)[1]
        if not self.exact:
            threshold = self.elements.thresholds(eligible(squares, self.most).flatten())
            bound = torch.maximum(bound, self.segments.spread(threshold)[:, None])
        left = left_share(squares, bound)
        return left if self.elements.fixed else left.masked_fill(self.elements.kept_whole(left.device).view_as(left), 1)

    def ties(self, weights: Sequence[Tensor]) -> Tensor:
        """Rows in which equal weights compete for a place: no field decides between them."""
        squares = self.rows(weights).square()
        inside, outside = cuts(squares, self.most)
        tied = (inside == outside) if self.most < self.size else torch.zeros_like(inside, dtype=torch.bool)
        if not self.exact:
            on = self.elements.on_threshold(eligible(squares, self.most).flatten()).view_as(squares)
            tied = tied | on.any(1, keepdim=True)
        return tied.expand(-1, self.size)

    def draw(
        self,
        weights: Sequence[Tensor],
        betas: Tensor,
        generators: Sequence[torch.Generator | None],
        sweeps: int,
        draws: int = 1,
    ) -> Tensor:
        """A mask (draws · rows, n); more than one draw only for a single site."""
        rows = self.rows(weights)
        device, streams = rows.device, [generators[r] for r in self.runs]
        source = Source(streams, [count * draws for count in self.run_rows], self.size, device)
        if isinstance(self.hamiltonian, Binary):
            field = self.binary_field(self.converged(weights), betas, streams, draws).clamp(-CERTAIN, CERTAIN)
            return self._drawn(field, source, slice(0, len(rows)), draws)
        beta, threshold, values = self._columns(rows, betas)
        whole = max(self.run_rows) * self.size <= CHUNK
        runs = [(0, [slice(0, len(rows))])] if whole else [(k, self.parts(k, n)) for k, n in enumerate(self.run_rows)]
        masks = []
        for run, parts in runs:
            for part in parts:
                some = [c[part] if len(c) > 1 else c for c in (rows, beta, threshold, values)]
                field = self._field(*some).repeat(draws, 1) if draws > 1 else self._field(*some)
                own = source if whole else source.narrow(part.stop - part.start, run)
                masks.append(self._drawn(field, own, part, draws))
        return masks[0] if len(masks) == 1 else torch.cat(masks)

    def _columns(self, rows: Tensor, betas: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """β, Q and what Q is compared with, per row or one for all; of an exact count only β."""
        beta = betas[self.site_run(rows.device)].clamp(max=GREATEST).to(rows.dtype)
        beta = beta[:1] if len(self.runs) == 1 else self.segments.spread(beta)
        if self.exact:
            none = beta.new_zeros(1, 1)
            return beta[:, None], none, none
        values = eligible(rows.square(), self.most)
        threshold = self.elements.thresholds(values.flatten())
        return beta[:, None], self.segments.spread(threshold)[:, None], values

    def _field(self, rows: Tensor, beta: Tensor, threshold: Tensor, values: Tensor) -> Tensor:
        """h of some rows."""
        squares = rows.square()
        if self.exact:
            values = squares
            if not self.cancels:
                inside, outside = cuts(squares, self.most)
                threshold = (inside + outside) / 2
        unit = self.hamiltonian.unit(threshold, self.size)
        scale = beta if unit is None else in_units(beta, unit)
        field = self.hamiltonian.field(squares, values, threshold) * scale
        return field.clamp_(-SURE, SURE) if self.exact and not self.cancels else field

    def _drawn(self, field: Tensor, source: Source, part: slice, draws: int) -> Tensor:
        if self.ragged:
            field = field.masked_fill(self.filling(field.device)[part].repeat(draws, 1), NEVER)
        return draw(self.sampler, Rows(field, field.new_zeros(1, 1), source, limits=self.limits))
