"""What the masks of a pruner are doing: energy, movement, and whether a chain has mixed.

Everything is measured on draws of its own, from a random stream of its own: training is not touched. Where masks are
drawn exactly the draws are independent of each other. Where a chain draws them, two chains are watched sweep by sweep,
one from the mask that keeps all and one from the mask that prunes all. As long as they can be told apart after as many
sweeps as the pruner makes, its masks depend on where the chain began: it has not mixed, and more sweeps, a warm chain,
a weaker coupling or a slower annealing are due.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .hamiltonians import energy
from .joined import Joined
from .law import Law
from .site import Site, joint_rows, units
from .structures import Filter
from .text import columns

APART = 0.02  # of the magnetisation of two chains, beyond what chance makes of it: they have not met
TRAINED = 100  # steps from which on somebody trains, and wants to hear of masks that do not freeze


@dataclass(frozen=True)
class LayerDiagnostics:
    """One layer at one β.

    ``energy`` is H per weight. ``magnetisation`` is the mean spin, 1 − 2·sparsity of the masks. ``acceptance`` is the
    share of weights that turn over from one draw to the next, of a chain from one sweep to the next. ``undecided`` is
    Σ 4P(1 − P), the effective number of weights that are not decided yet: all of them at β = 0, none in the end.
    ``time`` is the autocorrelation time of the energy in draws, or sweeps: 1 where they are independent. ``gap`` is the
    difference in magnetisation of two chains from opposite ends; None where draws are exact.
    """

    name: str
    size: int
    weights: int
    sampler: str
    energy: float
    magnetisation: float
    acceptance: float
    undecided: float
    time: float
    gap: float | None = None

    @property
    def mixed(self) -> bool:
        """Whether nothing can be seen of where a chain began."""
        return self.gap is None or self.gap < APART + 4 * math.sqrt(max(self.undecided, 1.0)) / self.weights


@dataclass(frozen=True)
class Diagnostics:
    """All layers; ``print(diagnostics)`` shows a table, :meth:`scalars` is what a logger takes."""

    beta: float
    layers: list[LayerDiagnostics]

    @property
    def mixed(self) -> bool:
        return all(layer.mixed for layer in self.layers)

    @property
    def undecided(self) -> float:
        """The effective number of undecided weights of all layers."""
        return sum(layer.undecided for layer in self.layers)

    @property
    def by_size(self) -> dict[int, float]:
        """The magnetisation of all layers with neighbourhoods of one size: large ones freeze first."""
        found = {}
        for size in sorted({layer.size for layer in self.layers}):
            some = [layer for layer in self.layers if layer.size == size]
            found[size] = sum(one.magnetisation * one.weights for one in some) / sum(one.weights for one in some)
        return found

    def scalars(self, prefix: str = "gibbsprune/") -> dict[str, float]:
        """One number per curve, as ``SummaryWriter.add_scalar`` takes it."""
        total = sum(layer.weights for layer in self.layers)
        mean = {
            name: sum(getattr(layer, name) * layer.weights for layer in self.layers) / total
            for name in ("energy", "acceptance")
        }
        found = {"undecided": self.undecided, "time": max(layer.time for layer in self.layers), **mean}
        found |= {f"magnetisation of {size}": value for size, value in self.by_size.items()}
        if gaps := [layer.gap for layer in self.layers if layer.gap is not None]:
            found["gap"] = max(gaps)
        return {prefix + name: float(value) for name, value in found.items()}

    def __str__(self) -> str:
        header = ("layer", "of size", "sampler", "energy", "magnetisation", "acceptance", "undecided", "time", "gap")
        body = [
            (layer.name, f"{layer.size}", layer.sampler, f"{layer.energy:.4g}", f"{layer.magnetisation:.4f}",
             f"{layer.acceptance:.4f}", f"{layer.undecided:.1f}", f"{layer.time:.1f}",
             "" if layer.gap is None else f"{layer.gap:.4f}{'' if layer.mixed else ' not mixed'}")
            for layer in self.layers
        ]  # fmt: skip
        lines = columns([header, *body], left=len(header))
        return "\n".join([f"beta {self.beta:g}, {self.undecided:.1f} weights undecided", *lines])


def autocorrelation(series: Sequence[float] | Tensor) -> Tensor:
    """ρ(t) of a series for t = 0, 1 … up to half its length.

    >>> autocorrelation([1.0, -1.0, 1.0, -1.0]).tolist()
    [1.0, -0.75, 0.5]
    """
    values = torch.as_tensor(series, dtype=torch.float64)
    away = values - values.mean()
    square = away.square().sum()
    lags = range(len(away) // 2 + 1)
    if not square > 0:
        return torch.tensor([float(t == 0) for t in lags], dtype=torch.float64)
    return torch.stack([(away[: len(away) - t] * away[t:]).sum() / square for t in lags])


def autocorrelation_time(series: Sequence[float] | Tensor) -> float:
    """1 + 2 Σ ρ(t), up to where ρ is lost in noise: that many draws tell as much as one independent one.

    The sum ends at the first pair ρ(t) + ρ(t + 1) that is not positive (Geyer's initial positive sequence).
    """
    rho = autocorrelation(series).tolist()
    total = 0.0
    for t in range(1, len(rho) - 1, 2):
        if rho[t] + rho[t + 1] <= 0:
            break
        total += rho[t] + rho[t + 1]
    return max(1.0, 1 + 2 * total)


@torch.no_grad()
def diagnose(
    sites: Mapping[str, Site], weights: Sequence[Tensor], beta: float, draws: int, sweeps: int, seed: int
) -> Diagnostics:
    """Draws from the laws of some layers, on one device.

    Args:
        sites: the layers.
        weights: of them, or what takes their place.
        beta: the inverse temperature.
        draws: how many masks of each exact law.
        sweeps: how many of a chain, as many as the pruner makes.
        seed: of the random numbers.
    """
    chained = {name for name, site in sites.items() if site.sampler == "coloured"}
    found = {}
    for chain in (False, True):
        some = [name for name in sites if (name in chained) == chain]
        given = [weight for name, weight in zip(sites, weights) if name in some]
        if some:
            watch = _watch_chains if chain else _watch_draws
            found.update(watch({name: sites[name] for name in some}, given, beta, sweeps if chain else draws, seed))
    return Diagnostics(beta, [found[name] for name in sites])


class _Record:
    """What is kept of the masks of a layer as they come."""

    def __init__(self, site: Site, weight: Tensor) -> None:
        self.site = site
        self.energies: list[float] = []
        self.magnetisations: list[float] = []
        self.flips: list[float] = []
        self.kept = torch.zeros(site.shape, device=weight.device)
        self.count = 0
        self.last: Tensor | None = None

    def add(self, mask: Tensor, energy: float, counts: bool) -> None:
        self.energies.append(energy)
        self.magnetisations.append(2 * float(mask.float().mean()) - 1)
        if self.last is not None and counts:
            self.flips.append(float((mask != self.last).float().mean()))
        self.last = mask.clone()
        if counts:
            self.kept += mask
            self.count += 1

    def undecided(self) -> float:
        chance = self.kept / max(1, self.count)
        return float((4 * chance * (1 - chance)).sum()) * self.count / max(1, self.count - 1)


def _energies(law: Law, weights: Sequence[Tensor], masks: Sequence[Tensor]) -> list[float]:
    """H of every layer's mask; that of a unit is shared out to its layers by their weights."""
    sites, found = law.sites, [0.0] * len(law.sites)
    for group in law.groups:
        for i, own in group.energies(weights, masks).items() if isinstance(group, Joined) else ():
            found[i] = own
    for unit in units(sites):
        if sites[unit[0]].peers:
            continue
        tied = [sites[i] for i in unit]
        site, structure = tied[0], tied[0].structure if len(tied) == 1 else Filter()
        mask, weight = masks[unit[0]].reshape(site.cut), weights[unit[0]].reshape(site.cut)
        if len(tied) > 1:
            mask, weight = (joint_rows([values[i] for i in unit], tied) for values in (masks, weights))
        total = float(energy(mask, weight, site.hamiltonian, structure, site.sparsity))
        for i, part in zip(unit, tied):
            found[i] = total * part.size / sum(one.size for one in tied)
    return found


def _watch_draws(
    sites: Mapping[str, Site], weights: Sequence[Tensor], beta: float, draws: int, seed: int
) -> dict[str, LayerDiagnostics]:
    law, generator, betas = _law(sites.values(), weights, beta, seed)
    records = [_Record(site, weight) for site, weight in zip(sites.values(), weights)]
    for _ in range(max(2, draws)):
        masks = law.draw(weights, betas, [generator])
        for record, mask, now in zip(records, masks, _energies(law, weights, masks)):
            record.add(mask, now, counts=True)
    return {name: _summed(name, [record]) for name, record in zip(sites, records)}


def _watch_chains(
    sites: Mapping[str, Site], weights: Sequence[Tensor], beta: float, sweeps: int, seed: int
) -> dict[str, LayerDiagnostics]:
    """Two chains from opposite ends, one sweep at a time; only their second halves are counted."""
    law, generator, betas = _law([replace(site, warm=True, sweeps=1) for site in sites.values()], weights, beta, seed)
    both: list[list[_Record]] = [[] for _ in sites]
    for start in (torch.ones, torch.zeros):
        masks = [start(site.shape, dtype=torch.bool, device=w.device) for site, w in zip(sites.values(), weights)]
        records = [_Record(site, weight) for site, weight in zip(sites.values(), weights)]
        for sweep in range(sweeps):
            masks = law.draw(weights, betas, [generator], before=masks)
            for record, mask, now in zip(records, masks, _energies(law, weights, masks)):
                record.add(mask, now, counts=sweep >= sweeps // 2)
        for pair, record in zip(both, records):
            pair.append(record)
    return {name: _summed(name, pair) for name, pair in zip(sites, both)}


def _law(
    sites: Iterable[Site], weights: Sequence[Tensor], beta: float, seed: int
) -> tuple[Law, torch.Generator, Tensor]:
    device = weights[0].device
    generator = torch.Generator(device).manual_seed(seed)
    betas = torch.full((1,), min(beta, 1e28), dtype=torch.float64, device=device)
    return Law(list(sites)), generator, betas


def _summed(name: str, records: Sequence[_Record]) -> LayerDiagnostics:
    """One layer from one sequence of draws, or from the second halves of two chains."""
    site, late = records[0].site, slice(0 if len(records) == 1 else len(records[0].energies) // 2, None)
    count, mean = math.prod(site.shape), lambda values: sum(values) / max(1, len(values))
    levels = [mean(record.magnetisations[late]) for record in records]
    return LayerDiagnostics(
        name,
        site.size,
        count,
        site.sampler,
        mean([mean(record.energies[late]) for record in records]) / count,
        mean(levels),
        mean([flip for record in records for flip in record.flips]),
        mean([record.undecided() for record in records]),
        max(autocorrelation_time(record.energies[late]) for record in records),
        abs(levels[0] - levels[-1]) if len(records) == 2 else None,
    )


def unconverged(agreement: float, beta: float, coupling: float, draw: str) -> str:
    """The warning of masks that have not converged when training ends.

    Args:
        agreement: the share of weights on which they equal the converged ones.
        beta: the last β.
        coupling: of the Hamiltonian.
        draw: with which masks it ends, "sample" or "converged".
    """
    larger = f", where neighbourhoods stay half pruned use a larger coupling than {coupling:g}," if coupling else ""
    what, remedy = "the network was trained with other masks than it ends with", ""
    if draw == "sample":
        what, remedy = "the sparsity is not exact", " or use finalize(draw='converged')"
    return (
        f"the masks have not converged: {1 - agreement:.2%} of them differ from the converged masks at beta {beta:g}, "
        f"so {what}; anneal to a higher beta{larger} with set_epoch(){remedy}"
    )


def unrisen(now: float, end: float, epoch: float) -> str:
    """The warning of a training that ends before its sparsity has risen from ``now`` to ``end``."""
    return (
        f"the sparsity has risen to {now:.1%} of the weights by epoch {epoch:g}, and {end:.1%} are removed now, with "
        "which the network was not trained: give the pruner the epochs of the training, and call set_epoch() in each"
    )


def untimely(had: float, has: float) -> str:
    """The warning of weights that were loaded and are of a time with another sparsity."""
    return (
        f"the weights are of a time when {had:.1%} of them were masked, and {has:.1%} are removed now, with which they "
        "were not trained: choose among epochs at the end, where the sparsity has risen"
    )


def stale(steps: int) -> str:
    """The warning of batch norms that lag behind a sparsity which rose so many steps ago."""
    return (
        f"the sparsity rose {steps} steps ago, and the running statistics of batch norms are still partly those of "
        "before: estimate them anew with gp.recalibrate(model, batches), or train for longer"
    )
