"""Budgets: one sparsity for the whole network, and how much of it each layer bears.

An *allocation* orders the neighbourhoods of all layers by a priority; those are kept that come first, until the budget
is spent. With M neighbourhoods of n weights in a layer, w̄² their mean squares and c what one of them costs:

=========  =====================================================================================================
uniform    every layer keeps the same share, as the paper does
global     priority n·w̄²/c: one threshold for the network, the most energy for the cost
balanced   the same, but that every layer keeps three quarters of what ``uniform`` would leave it, whatever its scale
lamp       priority of the j-th smallest of a layer, w̄²_j / Σ_{i ≥ j} w̄²_i (Lee et al. 2021)
erk        shares proportional to (Σ dimensions) / (Π dimensions) of the weight (Evci et al. 2020), at most 1
=========  =====================================================================================================

A cost is a number of weights, n, or of multiply-adds, n times the places at which a layer's weight is used; or the time
that a layer takes with so many filters, measured (:mod:`gibbsprune.latency`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from .checks import (
    bad,
    check_number,
    check_one_of,
    check_sparsity,
    check_whole,
    listed,
    number,
)
from .schedules import Schedule
from .shares import Share, erdos_renyi, one_threshold
from .threshold import kept_count

ALLOCATIONS = ("uniform", "global", "balanced", "lamp", "erk")
MEASURES = ("weights", "macs", "latency")
TIMED = ("global", "lamp")  # what finds shares by adding up costs
ASSURED = 0.75  # what a layer has of an equal share in any case, where the allocation is "balanced"


@dataclass(frozen=True)
class Budget:
    """How much is removed from all pruned layers together, and from which.

    Args:
        weights: the fraction of their weights that is removed, or a schedule of it; 0.9 unless another one is given.
        macs: instead, the fraction of their multiply-adds, or a schedule of it.
        allocation: "uniform", "global", "balanced", "lamp" or "erk"; with ``latency`` "global" or "lamp".
        floor: the least share of a layer's neighbourhoods that stays, at most what the budget leaves of all; at least
            one always does.
        round_to: kept neighbourhoods of a layer are a multiple of this (filters in eights, as hardware likes them).
        latency: instead of weights, and with filters, the fraction of the time that they take, or a schedule of it. It
            is measured when the pruner is made, where the network and its example inputs are: never the same twice.

    >>> Budget(0.95, allocation="lamp").target()
    0.95
    """

    weights: float | Schedule | None = None
    macs: float | Schedule | None = None
    allocation: str = "global"
    floor: float = 0.0
    round_to: int = 1
    latency: float | Schedule | None = None

    def __post_init__(self) -> None:
        given = {name: value for name in MEASURES if (value := getattr(self, name)) is not None}
        if len(given) > 1:
            (first, one), (name, value) = list(given.items())[:2]
            raise bad(name, value, f"None beside {first}={one!r}: a budget has one measure")
        name, value = self.given
        if callable(value) and not isinstance(value, Schedule):
            raise bad(name, value, "numbers from 0 up to but not 1, and schedules")
        check_sparsity(self.target(), name)
        check_one_of("allocation", self.allocation, ALLOCATIONS)
        if self.latency is not None and self.allocation not in TIMED:
            raise bad("allocation", self.allocation, f"{listed(TIMED)} with a budget of latency")
        check_number("floor", self.floor, number(0, 1))
        free = 1 - ASSURED if self.allocation == "balanced" else 1.0  # of what stays, nobody's yet
        if self.latency is None and self.floor > (most := free * (1 - self.target())) + 1e-9:
            assured = f", and {ASSURED:g} of the rest assured by allocation 'balanced'" if free < 1 else ""
            told = f"numbers up to {most:.3g} where {self.target():g} of all is removed{assured}"
            raise bad("floor", self.floor, told)
        check_whole("round_to", self.round_to)

    @property
    def given(self) -> tuple[str, float | Schedule]:
        """The measure, and how much of it is removed."""
        named = ((name, value) for name in MEASURES if (value := getattr(self, name)) is not None)
        return next(named, (MEASURES[0], 0.9))

    def target(self, epoch: float = math.inf) -> float:
        """The fraction removed at an epoch, by default in the end."""
        _, value = self.given
        return value(epoch) if isinstance(value, Schedule) else value

    def along(self, ramp: Callable[[float], float | Schedule]) -> Budget:
        """The same, reached as the ramp to a number has it; a schedule stays as it is."""
        name, value = self.given
        return self if isinstance(value, Schedule) else replace(self, **{name: ramp(value)})  # type: ignore[arg-type]

    def keeps(self, layers: Sequence[Share], means: Sequence[Tensor], epoch: float = math.inf) -> list[int]:
        """How many neighbourhoods each layer keeps.

        Args:
            layers: what is pruned.
            means: w̄² of each layer's neighbourhoods.
            epoch: when; by default in the end.
        """
        removed, step = check_sparsity(self.target(epoch)), self.round_to
        least = [max(1, math.ceil(self.floor * layer.count)) for layer in layers]
        if removed == 0:
            return [layer.count for layer in layers]
        if self.allocation in ("uniform", "erk"):
            shares = None if self.allocation == "uniform" else erdos_renyi(layers, removed, self.floor)
            return [
                self._rounded(kept_count(removed, layer.count) if shares is None else share * layer.count, layer, low)
                for layer, share, low in zip(layers, shares or [0.0] * len(layers), least)
            ]
        if self.allocation == "balanced":
            sure = (ASSURED * (1 - removed) * layer.count for layer in layers)
            least = [max(low, step * math.floor(own / step)) for low, own in zip(least, sure)]
        if self.allocation != "lamp" and self.round_to == 1 and all(layer.table is None for layer in layers):
            return one_threshold(layers, means, least, removed)
        return self._greedy(layers, means, least, removed)

    def _rounded(self, keep: float, layer: Share, least: int) -> int:
        """The nearest multiple of ``round_to`` that the layer and its floor allow."""
        step = self.round_to
        nearest = step * max(1, round(keep / step), math.ceil(least / step))
        return min(layer.count, nearest)

    def _greedy(self, layers: Sequence[Share], means: Sequence[Tensor], least: list[int], removed: float) -> list[int]:
        """Groups of ``round_to`` neighbourhoods in the order of their priority, until the budget is spent."""
        step, priorities, costs, owners = self.round_to, [], [], []
        for index, (layer, mean, low) in enumerate(zip(layers, means, least)):
            score = self._priority(mean.detach().double().sort(descending=True).values.cpu().numpy(), layer)
            heads = np.arange(0, layer.count, step)
            sizes = np.diff(np.append(heads, layer.count))
            group = np.add.reduceat(score, heads) / sizes
            group[: math.ceil(low / step)] = np.inf  # what must stay comes first
            priorities.append(group)
            costs.append(np.diff(layer.spent(heads + sizes), prepend=0.0))
            owners.append(np.full(len(group), index))
        priority, cost, owner = map(np.concatenate, (priorities, costs, owners))
        order = np.argsort(-priority, kind="stable")
        must = int(np.isinf(priority).sum())
        total = sum(float(layer.spent(np.array(layer.count))) for layer in layers)
        spent = np.cumsum(cost[order])
        if self.latency is not None and spent[must - 1] > (1 - removed) * total:
            most = 1 - spent[must - 1] / total
            raise bad(
                "latency", removed, f"fractions up to {most:.2f}, beyond which layers take their time whatever stays"
            )
        fits = int(np.searchsorted(spent, (1 - removed) * total * (1 + 1e-12), side="right"))
        groups = np.bincount(owner[order[: max(must, fits)]], minlength=len(layers))
        return [min(layer.count, int(n) * step) for layer, n in zip(layers, groups)]

    def _priority(self, descending: np.ndarray, layer: Share) -> np.ndarray:
        if self.allocation != "lamp":
            return descending * (layer.size / layer.cost)
        tail = np.cumsum(descending)  # Σ of those at least as large
        return np.divide(descending, tail, out=np.zeros_like(tail), where=tail > 0)
