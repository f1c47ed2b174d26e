"""The Gibbs law p(x) ∝ exp(−βH(x)) of many layers at once.

Layers whose neighbourhoods have the same size are stacked into one matrix of rows, of one run or of many, so
that a model's masks are drawn with a handful of tensor operations whatever its number of layers:

    weights ─► rows ─► squares, means ─► thresholds Q ─► field b ─► sampler(βb, βc) ─► masks
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from .checks import check_beta, check_sparsity, check_whole
from .hamiltonians import Binary, Hamiltonian, Linear, Quadratic, as_hamiltonian, log_p_converged
from .lanes import Lanes
from .samplers import SWEEPS, Rows, Source, draw, kernel, two_point
from .site import Site, joint_rows, units
from .structures import Structure, as_structure
from .threshold import CHUNK, Segments, check_weight, converged_mask

LARGE = 1 << 22  # a layer of more weights than this is not stacked with others


def independent_kind(hamiltonian: Hamiltonian, sampler: str, size: int) -> str | None:
    """The kind of :class:`Linear` that gives the same field where spins are independent, else None.

    A neighbourhood of one weight has nothing to be coupled with. Kernels know these fields only, not a subclass's own.
    """
    if size > 1 and sampler != "independent":
        return None
    if type(hamiltonian) is Linear:
        return hamiltonian.kind
    return "square" if type(hamiltonian) is Quadratic else None


LEAST = 1e-30  # of a unit: a threshold of 0 decides everything
GREATEST = 1e28  # β whose fields float32 can still add up; whatever is decided by then is decided


class Law:
    """Draws the masks of all sites together, each site from its own Hamiltonian at its run's β.

    ``lanes`` is for training loops that capture their steps: on a GPU layers of different sizes or laws are then drawn
    side by side.
    """

    def __init__(self, sites: Sequence[Site], lanes: bool = False) -> None:
        self.sites = [site.checked() for site in sites]
        self.runs = 1 + max((site.run for site in self.sites), default=0)
        groups: dict[tuple, list[tuple[int, ...]]] = {}
        for unit in units(self.sites):
            site, size = self.sites[unit[0]], sum(self.sites[i].size for i in unit)
            alone = unit[0] if sum(math.prod(self.sites[i].shape) for i in unit) > LARGE else -1
            split = site.split if len(unit) == 1 else (size + 1) // 2
            key = (site.hamiltonian, site.sampler, site.structure.name, size, split, alone)
            groups.setdefault(key, []).append(unit)
        # An order that depends on no other run, so that a run's random numbers go the same way alone as among others.
        keys = sorted(groups, key=lambda key: (*key[1:], repr(key[0])))
        ordered = [sorted(groups[key], key=lambda unit: self.sites[unit[0]].run) for key in keys]
        self.groups = [_Group(self.sites, units) for units in ordered]
        self.lanes = Lanes() if lanes else None

    def set_sparsities(self, sparsities: Sequence[float]) -> None:
        """Another sparsity of each site from now on, as when it rises; in place, also for a captured graph."""
        self.sites = [site.at(p) for site, p in zip(self.sites, sparsities)]
        for group in self.groups:
            group.segments.set_sparsities([self.sites[unit[0]].sparsity for unit in group.units])

    def draw(
        self,
        weights: Sequence[Tensor],
        betas: Tensor,
        generators: Sequence[torch.Generator | None],
        sweeps: int = SWEEPS,
    ) -> list[Tensor]:
        """One mask per site.

        Args:
            weights: of the sites.
            betas: β of each run, on the weights' device.
            generators: the random stream of each run.
            sweeps: of the chromatic sampler.
        """
        masks: list[Tensor] = [torch.empty(0)] * len(self.sites)
        jobs = [partial(group.draw, weights, betas, generators, sweeps) for group in self.groups]
        drawn = self.lanes.run(jobs, betas.device) if self.lanes else [job() for job in jobs]
        for group, rows in zip(self.groups, drawn):
            group.scatter(rows, masks)
        return masks

    def final(
        self,
        weights: Sequence[Tensor],
        betas: Tensor,
        generators: Sequence[torch.Generator | None],
        sweeps: int = SWEEPS,
    ) -> list[Tensor]:
        """The masks with which training ends: one more :meth:`draw`, of the same arguments.

        A neighbourhood exactly on Q, by a tie of floating-point numbers, feels no field: it is as in x_cvg.
        """
        drawn, converged = self.draw(weights, betas, generators, sweeps), self.converged(weights)
        ties = self._each(weights, lambda group, means: group.segments.on_threshold(means))
        return [torch.where(tie, limit, mask) for tie, limit, mask in zip(ties, converged, drawn)]

    def pull(self, weights: Sequence[Tensor], betas: Tensor) -> list[Tensor]:
        """w ∂P/∂w of every weight, P the probability of keeping it: what the gradient "law" has beyond the mask.

        With the field h = βb of a spin by itself P = σ(−2h), so that it is P(1 − P)·2β·(−w ∂b/∂w).
        """
        pulls: list[Tensor] = [torch.empty(0)] * len(self.sites)
        for group in self.groups:
            group.scatter(group.pull(weights, betas), pulls)
        return pulls

    def converged(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """x_cvg of every site."""
        return self._each(weights, lambda group, means: group.segments.converged(means))

    def _each(self, weights: Sequence[Tensor], of: Callable[[_Group, Tensor], Tensor]) -> list[Tensor]:
        """A mask of every site from a function of its neighbourhoods' w̄²."""
        masks: list[Tensor] = [torch.empty(0)] * len(self.sites)
        for group in self.groups:
            rows = of(group, group.means(group.squares(weights)))
            group.scatter(rows[:, None].expand(-1, group.size), masks)
        return masks


class _Group:
    """Units of sites with the same law and neighbourhood size, as consecutive rows of one matrix."""

    def __init__(self, sites: Sequence[Site], units: Sequence[tuple[int, ...]]) -> None:
        self.units = units
        self.parts = [[sites[i] for i in unit] for unit in units]
        self.sites = [parts[0] for parts in self.parts]
        first = self.sites[0]
        self.hamiltonian, self.sampler = first.hamiltonian, first.sampler
        self.size = sum(part.size for part in self.parts[0])
        self.split = first.split if len(self.parts[0]) == 1 else (self.size + 1) // 2
        self.counts = [site.count for site in self.sites]
        self.segments = Segments(self.counts, [site.sparsity for site in self.sites])
        self.runs = sorted({site.run for site in self.sites})
        self.run_rows = [sum(s.count for s in self.sites if s.run == run) for run in self.runs]
        self.run_sites = [sum(s.run == run for s in self.sites) for run in self.runs]
        self.kind = independent_kind(self.hamiltonian, self.sampler, self.size)

    def site_run(self, device: torch.device) -> Tensor:
        """The run of each site."""
        return self.segments.constant("run", device, lambda: torch.tensor([s.run for s in self.sites]))

    def site_weights(self, device: torch.device) -> Tensor:
        """The number of weights of each site, N."""
        make = lambda: torch.tensor(self.counts, dtype=torch.float64) * self.size  # noqa: E731
        return self.segments.constant("weights", device, make)

    def squares(self, weights: Sequence[Tensor]) -> Tensor:
        """w² of all sites, (rows, n), in float32 or better."""
        parts = [joint_rows([weights[i] for i in unit], tied) for unit, tied in zip(self.units, self.parts)]
        stacked = parts[0] if len(parts) == 1 else torch.cat(parts)
        return stacked.to(torch.promote_types(stacked.dtype, torch.float32)).square()

    def means(self, squares: Tensor) -> Tensor:
        return squares.flatten() if self.size == 1 else squares.mean(1)

    def draw(
        self,
        weights: Sequence[Tensor],
        betas: Tensor,
        generators: Sequence[torch.Generator | None],
        sweeps: int,
        draws: int = 1,
    ) -> Tensor:
        """A mask (draws · rows, n); more than one draw only for a single site."""
        mask = self._draw(weights, betas, generators, sweeps, draws)
        if not self.segments.fixed:  # a sparsity of 0 keeps all, and one that rises may begin with it
            mask |= self.segments.kept_whole(mask.device).repeat(draws)[:, None]
        return mask

    def _draw(
        self,
        weights: Sequence[Tensor],
        betas: Tensor,
        generators: Sequence[torch.Generator | None],
        sweeps: int,
        draws: int,
    ) -> Tensor:
        squares = self.squares(weights)
        means = self.means(squares)
        device, streams = means.device, [generators[r] for r in self.runs]
        source = Source(streams, [count * draws for count in self.run_rows], self.size, device)
        if isinstance(self.hamiltonian, Binary):
            field = self._binary_field(means, betas, streams, draws)
            return draw(self.sampler, Rows(field, torch.zeros_like(field), source))
        threshold = self.segments.thresholds(means)
        beta, scale = self._scales(betas, threshold)
        if self.kind and draws == 1 and (triton := kernel("independent", means)):
            pieces = self.segments.pieces(device, self.size)
            each = Source(streams, self.run_sites, self.size, device)
            return triton.draw_layers(means, threshold, scale, each, pieces, self.kind)
        if len(self.sites) > 1:
            threshold = self.segments.spread(threshold)
            alone = len(self.runs) == 1
            scale = beta[:1] if alone and scale is beta else self.segments.spread(scale)
            beta = beta[:1] if alone else self.segments.spread(beta)
        columns = (squares, means[:, None], threshold[:, None], scale[:, None], beta[:, None])
        if max(self.run_rows) * self.size <= CHUNK:
            return self._draw_rows(columns, source, sweeps, draws)
        mask = torch.empty(squares.shape, dtype=torch.bool, device=device)  # huge layers: bounded memory
        for run, rows in enumerate(self.run_rows):
            for part in self._parts(run, rows):
                some = [c[part] if len(c) > 1 else c for c in columns]
                mask[part] = self._draw_rows(some, source.narrow(part.stop - part.start, run), sweeps)
        return mask

    def _scales(self, betas: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
        """β of every site, and what its field is multiplied by: β in the field's own unit."""
        beta = betas[self.site_run(threshold.device)].clamp(max=GREATEST).to(threshold.dtype)
        unit = self.hamiltonian.unit(threshold, self.size)
        return beta, beta if unit is None else (beta / unit.clamp_min(LEAST)).clamp(max=GREATEST)

    def pull(self, weights: Sequence[Tensor], betas: Tensor) -> Tensor:
        """w ∂P/∂w of all rows, whose spins are independent."""
        squares = self.squares(weights)
        threshold = self.segments.thresholds(self.means(squares))
        scale = self.segments.spread(self._scales(betas, threshold)[1])[:, None]
        field = self.hamiltonian.field(squares, squares, self.segments.spread(threshold)[:, None]) * scale
        keep = (-2 * field).sigmoid_()
        return keep * (1 - keep) * 2 * scale * self.hamiltonian.slope(squares)

    def _parts(self, run: int, rows: int) -> list[slice]:
        """The rows of a run in pieces that depend on nothing but the run, as its random numbers do."""
        first, step = sum(self.run_rows[:run]), rows
        if rows * self.size > CHUNK:
            step = max(1, CHUNK // 4 // self.size)
        return [slice(first + i, first + min(i + step, rows)) for i in range(0, rows, step)]

    def _draw_rows(self, columns: Sequence[Tensor], source: Source, sweeps: int, draws: int = 1) -> Tensor:
        squares, means, threshold, scale, beta = columns
        field = self.hamiltonian.field(squares, means, threshold) * scale
        field = field.repeat(draws, 1) if draws > 1 else field
        coupling = (beta * self.hamiltonian.strength(self.size)).expand(len(squares), 1).repeat(draws, 1)
        return draw(self.sampler, Rows(field, coupling, source, self.split, sweeps))

    def _binary_field(
        self, means: Tensor, betas: Tensor, streams: Sequence[torch.Generator | None], draws: int
    ) -> Tensor:
        """h of the binary law, (draws · rows, 1), after every layer has decided."""
        assert isinstance(self.hamiltonian, Binary)
        device = means.device
        weights = self.site_weights(device)
        beta = self.hamiltonian.absolute(betas[self.site_run(device)].double(), weights)
        log_p = log_p_converged(beta.clamp_min(0), weights)
        sites = [count * draws for count in self.run_sites]
        chosen = two_point.choose(log_p.repeat(draws), Source(streams, sites, 1, device))
        chosen = chosen.repeat_interleave(len(means)) if len(self.sites) == 1 else self.segments.spread(chosen)
        return two_point.field(self.segments.converged(means).repeat(draws)[:, None], chosen[:, None])

    def scatter(self, mask: Tensor, masks: list[Tensor]) -> None:
        """The rows of a mask, back in the shapes of the sites' weights."""
        for unit, tied, rows in zip(self.units, self.parts, mask.split(self.counts)):
            for index, site, part in zip(unit, tied, rows.split([site.size for site in tied], 1)):
                masks[index] = site.unrows(part)


def sample(
    weight: Tensor,
    hamiltonian: str | Hamiltonian | None = None,
    structure: str | Structure = "weight",
    sparsity: float = 0.9,
    beta: float = 1.0,
    sampler: str = "auto",
    sweeps: int = SWEEPS,
    draws: int = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Masks of one layer from its Gibbs law at inverse temperature β, shape (draws, *weight.shape), True keeps.

    β = ∞ gives the converged mask: the law's limit, where a coupling is large enough for the weights (docs/theory.md).

    Args:
        weight: of the layer.
        hamiltonian: an object or a name; None for the structure's best.
        structure: ``"weight"``, ``"kernel"`` or ``"filter"``.
        sparsity: the fraction to remove.
        beta: the inverse temperature β.
        sampler: ``"auto"`` or a name of :mod:`gibbsprune.samplers`.
        sweeps: of the chromatic sampler.
        draws: how many masks.
        generator: where the random numbers come from; None for torch's global one.

    >>> import torch, gibbsprune as gp
    >>> w = torch.linspace(-1, 1, 100)
    >>> mask = gp.sample(w, sparsity=0.8, beta=1e6, generator=torch.Generator().manual_seed(0))
    >>> bool((mask[0] == gp.converged_mask(w, 0.8)).all())
    True
    """
    weight = check_weight(weight)
    kind = as_structure(structure)
    chosen = as_hamiltonian(hamiltonian, kind)
    for name, value in (("draws", draws), ("sweeps", sweeps)):
        check_whole(name, value)
    offset = isinstance(chosen, Binary) and chosen.relative == "offset"
    if not (offset and math.isfinite(beta)):
        beta = check_beta(beta)
    site = Site(tuple(weight.shape), kind, chosen, check_sparsity(sparsity), sampler)
    out = torch.empty(draws, *weight.shape, dtype=torch.bool, device=weight.device)
    if math.isinf(beta) or sparsity == 0:  # which keeps all
        site.checked()
        return out.copy_(converged_mask(weight, sparsity, kind))
    betas = torch.tensor([beta], dtype=torch.float64, device=weight.device)
    (group,) = Law([site]).groups
    for part in out.split(max(1, LARGE // weight.numel())):
        rows = group.draw([weight], betas, [generator], sweeps, len(part))
        part.copy_(kind.unrows(rows.view(len(part), -1, group.size), weight.shape))
    return out
