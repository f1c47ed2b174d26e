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

from .checks import check_beta, check_whole
from .hamiltonians import Binary, Hamiltonian, Linear, Quadratic, as_hamiltonian
from .interacting import Interacting, interaction
from .joined import Joined
from .lanes import Lanes
from .limited import Limited
from .samplers import SWEEPS, Rows, Source, draw, kernel
from .site import Site, units
from .stacks import Stack
from .structures import Structure, as_structure, given_sparsity
from .threshold import CHUNK, check_weight, converged_mask

LARGE = 1 << 22  # a layer of more weights than this is not stacked with others
CONVERGED = 0.999  # the share of weights on which drawn masks equal x_cvg, from which on they count as converged


def independent_kind(hamiltonian: Hamiltonian, sampler: str, size: int) -> str | None:
    """The kind of :class:`Linear` that gives the same field where spins are independent, else None.

    A neighbourhood of one weight has nothing to be coupled with. Kernels know these fields only, not a subclass's own.
    """
    if size > 1 and sampler != "independent":
        return None
    if type(hamiltonian) is Linear:
        return hamiltonian.kind
    return "square" if type(hamiltonian) is Quadratic else None


def split(unit: Sequence[Site]) -> int:
    """Where the chromatic sampler cuts the rows of a unit in two."""
    return unit[0].split if len(unit) == 1 else (sum(site.size for site in unit) + 1) // 2


class Law:
    """Draws the masks of all sites together, each site from its own Hamiltonian at its run's β.

    ``lanes`` is for training loops that capture their steps: on a GPU layers of different sizes or laws are then drawn
    side by side. ``cold`` is the law at zero temperature, whatever β: every draw is x_cvg, also where a coupling is too
    small for the weights to make it the state of least energy.
    """

    def __init__(self, sites: Sequence[Site], lanes: bool = False, cold: bool = False) -> None:
        self.cold = cold
        self.sites = [site.checked() for site in sites]
        self.runs = 1 + max((site.run for site in self.sites), default=0)
        groups: dict[tuple, list[tuple[int, ...]]] = {}
        for unit in units(self.sites):
            tied = [self.sites[i] for i in unit]
            site, size = tied[0], sum(part.size for part in tied)
            alone = unit[0] if sum(math.prod(part.shape) for part in tied) > LARGE else -1
            own = (site.limits or (), *interaction(site))
            key: tuple = (site.hamiltonian, site.sampler, site.structure.name, size, split(tied), *own, alone)
            if site.peers:  # of any size, and of one run
                key = (site.hamiltonian, "", site.peers, site.run)
            groups.setdefault(key, []).append(unit)
        # An order that depends on no other run, so that a run's random numbers go the same way alone as among others.
        keys = sorted(groups, key=lambda key: (*key[1:], repr(key[0])))
        ordered = [sorted(groups[key], key=lambda unit: self.sites[unit[0]].run) for key in keys]
        self.groups: list[_Group | Limited | Interacting | Joined] = []
        for members in ordered:
            first = self.sites[members[0][0]]
            coupled = first.pairing is not None and (len(first.pairing) or first.size > 1)  # as a whole, without pairs
            kinds = ((Joined, first.peers), (Limited, first.limits), (Interacting, coupled), (_Group, True))
            self.groups.append(next(kind for kind, there in kinds if there)(self.sites, members))
        self.lanes = Lanes() if lanes else None

    def set_sparsities(self, sparsities: Sequence[float]) -> None:
        """Another sparsity of each site from now on, as when it rises; in place, also for a captured graph."""
        self.sites = [site.at(p) for site, p in zip(self.sites, sparsities)]
        for group in self.groups:
            group.set_sparsities(self.sites)

    def draw(
        self,
        weights: Sequence[Tensor],
        betas: Tensor,
        generators: Sequence[torch.Generator | None],
        sweeps: int = SWEEPS,
        before: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """One mask per site.

        Args:
            weights: of the sites.
            betas: β of each run, on the weights' device.
            generators: the random stream of each run.
            sweeps: of a chain.
            before: the masks of the sites, from which warm chains go on; None where all begin anew.
        """
        if self.cold:
            return self.converged(weights)
        masks: list[Tensor] = [torch.empty(0)] * len(self.sites)
        jobs = [
            partial(group.draw, weights, betas, generators, group.sites[0].sweeps or sweeps, before=before)
            if isinstance(group, (Interacting, Joined))
            else partial(group.draw, weights, betas, generators, group.sites[0].sweeps or sweeps)
            for group in self.groups
        ]
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
        before: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """The masks with which training ends: one more :meth:`draw`, of the same arguments.

        A neighbourhood exactly on Q, by a tie of floating-point numbers, feels no field: it is as in x_cvg.
        """
        drawn, converged = self.draw(weights, betas, generators, sweeps, before), self.converged(weights)
        ties = self._each(lambda group: group.ties(weights))
        return [torch.where(tie, limit, mask) for tie, limit, mask in zip(ties, converged, drawn)]

    def pull(self, weights: Sequence[Tensor], betas: Tensor) -> list[Tensor]:
        """w ∂P/∂w of every weight, P the probability of keeping it: what the gradient "law" has beyond the mask.

        With the field h = βb of a spin by itself P = σ(−2h), so that it is P(1 − P)·2β·(−w ∂b/∂w).
        """
        pulls: list[Tensor] = [torch.empty(0)] * len(self.sites)
        for group in self.groups:
            if isinstance(group, _Group):  # limited weights are not drawn by themselves
                group.scatter(group.pull(weights, betas), pulls)
        return pulls

    def converged(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """x_cvg of every site."""
        return self._each(lambda group: group.converged(weights))

    def left(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """The share of its value that every weight keeps where survivors are shrunk by the threshold."""
        return self._each(lambda group: group.left(weights))

    def _each(self, of: Callable[[_Group | Limited | Interacting | Joined], Tensor]) -> list[Tensor]:
        """A value for every weight of every site, from the rows that a group gives."""
        values: list[Tensor] = [torch.empty(0)] * len(self.sites)
        for group in self.groups:
            group.scatter(of(group), values)
        return values


class _Group(Stack):
    """Units whose neighbourhoods are kept or removed whole."""

    def __init__(self, sites: Sequence[Site], units: Sequence[tuple[int, ...]]) -> None:
        super().__init__(sites, units)
        self.split = split(self.tied[0])
        self.kind = independent_kind(self.hamiltonian, self.sampler, self.size)

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
            field = self.binary_field(self.segments.converged(means)[:, None], betas, streams, draws)
            return draw(self.sampler, Rows(field, torch.zeros_like(field), source))
        threshold = self.segments.thresholds(means)
        beta, scale = self.scales(betas, threshold)
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
            for part in self.parts(run, rows):
                some = [c[part] if len(c) > 1 else c for c in columns]
                mask[part] = self._draw_rows(some, source.narrow(part.stop - part.start, run), sweeps)
        return mask

    def pull(self, weights: Sequence[Tensor], betas: Tensor) -> Tensor:
        """w ∂P/∂w of all rows, whose spins are independent."""
        squares = self.squares(weights)
        threshold = self.segments.thresholds(self.means(squares))
        scale = self.segments.spread(self.scales(betas, threshold)[1])[:, None]
        field = self.hamiltonian.field(squares, squares, self.segments.spread(threshold)[:, None]) * scale
        keep = (-2 * field).sigmoid_()
        return keep * (1 - keep) * 2 * scale * self.hamiltonian.slope(squares)

    def _draw_rows(self, columns: Sequence[Tensor], source: Source, sweeps: int, draws: int = 1) -> Tensor:
        squares, means, threshold, scale, beta = columns
        field = self.hamiltonian.field(squares, means, threshold) * scale
        field = field.repeat(draws, 1) if draws > 1 else field
        coupling = (beta * self.hamiltonian.strength(self.size)).expand(len(squares), 1).repeat(draws, 1)
        return draw(self.sampler, Rows(field, coupling, source, self.split, sweeps))


def sample(
    weight: Tensor,
    hamiltonian: str | Hamiltonian | None = None,
    structure: str | Structure = "weight",
    sparsity: float | None = None,
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
        hamiltonian: an object or a name; None for the structure's best, with β in units of the threshold.
        structure: an object or a name, as in :mod:`gibbsprune.structures`.
        sparsity: the fraction to remove; None for 0.9, or for the one of a pattern N:M.
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
    sparsity = given_sparsity(sparsity, kind)
    site = Site(tuple(weight.shape), kind, chosen, sparsity, sampler)
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
