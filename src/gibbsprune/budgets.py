"""Budgets: one sparsity for the whole network, and how much of it each layer bears.

An *allocation* orders the neighbourhoods of all layers by a priority; those are kept that come first, until the budget
is spent. With M neighbourhoods of n weights in a layer, w̄² their mean squares and c what one of them costs:

=========  =====================================================================================================
uniform    every layer keeps the same share, as the paper does
global     priority n·w̄²/c: one threshold for the network, the most energy for the cost
balanced   the same, but that every layer keeps three quarters of what ``erk`` would give it, whatever its scale
lamp       priority of the j-th smallest of a layer, w̄²_j / Σ_{i ≥ j} w̄²_i (Lee et al. 2021)
erk        shares proportional to (Σ dimensions) / (Π dimensions) of the weight (Evci et al. 2020), at most 1
=========  =====================================================================================================

A cost is a number of weights, n, or of multiply-adds, n times the places at which a layer's weight is used; or the time
that a layer takes with so many filters, measured (:mod:`gibbsprune.latency`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .checks import (
    bad,
    check_number,
    check_one_of,
    check_sparsity,
    check_whole,
    excluding,
    layers_told,
    listed,
    number,
)
from .distributed import active
from .errors import UserError
from .latency import tables
from .looking import arguments, plain_eval
from .schedules import Schedule
from .selection import Sparsity, by_layer, targets
from .shares import Share, erdos_renyi, one_threshold
from .site import Site, units_of
from .structures import Filter, Structure
from .threshold import kept_count, mean_squares
from .weights import Layer

ALLOCATIONS = ("uniform", "global", "balanced", "lamp", "erk")
MEASURES = ("weights", "macs", "latency")
TIMED = ("global", "lamp")  # what finds shares by adding up costs
ASSURED = 0.75  # what a layer has of its share by "erk" in any case, where the allocation is "balanced"


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
        name = next(iter(given), MEASURES[0])
        if callable(value := given.get(name)) and not isinstance(value, Schedule):
            raise bad(name, value, "numbers from 0 up to but not 1, and schedules")
        check_sparsity(self.target(), name)
        check_one_of("allocation", self.allocation, ALLOCATIONS)
        if self.latency is not None and self.allocation not in TIMED:
            raise bad("allocation", self.allocation, f"{listed(TIMED)} with a budget of latency")
        check_number("floor", self.floor, number(0, 1))
        free = 1 - ASSURED if self.allocation == "balanced" else 1.0  # of what stays, nobody's yet
        if self.latency is None and self.floor > (most := free * (1 - self.target())) + 1e-9:
            raise bad("floor", self.floor, f"numbers up to {most:.3g} where {self.target():g} of all is removed")
        check_whole("round_to", self.round_to)

    def target(self, epoch: float = math.inf) -> float:
        """The fraction removed at an epoch, by default in the end."""
        given = next((value for name in MEASURES if (value := getattr(self, name)) is not None), 0.9)
        return given(epoch) if isinstance(given, Schedule) else given

    def keeps(self, layers: Sequence[Share], means: Sequence[Tensor], epoch: float = math.inf) -> list[int]:
        """How many neighbourhoods each layer keeps.

        Args:
            layers: what is pruned.
            means: w̄² of each layer's neighbourhoods.
            epoch: when; by default in the end.
        """
        removed = check_sparsity(self.target(epoch))
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
            sure = (ASSURED * share * layer.count for share, layer in zip(erdos_renyi(layers, removed), layers))
            least = [max(low, math.floor(own)) for low, own in zip(least, sure)]
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


def sparsity_keeping(keep: int, count: int) -> float:
    """A sparsity at which the converged mask keeps ``keep`` of ``count``, and which puts none exactly on Q."""
    return 0.0 if keep == count else (count - 1 - keep + 0.5) / (count - 1)


class Targets:
    """The sparsity of each layer at an epoch, from whatever was given for it.

    Args:
        sparsity: a number or a :class:`Schedule`, a mapping or function from layer name to such, or a :class:`Budget`.
        shares: the layers by name, as a budget knows them.
        tied: layers that go with another one, by the name of that.
    """

    def __init__(
        self,
        sparsity: Sparsity | Budget,
        shares: Mapping[str, Share],
        tied: Mapping[str, str] | None = None,
    ) -> None:
        self.shares, self.tied = dict(shares), dict(tied or {})
        self.budget = sparsity if isinstance(sparsity, Budget) else None
        self.asked = by_layer(sparsity, list(shares)) if not isinstance(sparsity, Budget) else {}
        self.rises = any(isinstance(value, Schedule) for value in self.asked.values())
        self.reached = 0.0  # by the budget, when it was shared out last

    def at(self, epoch: float, means: Callable[[], Sequence[Tensor]]) -> dict[str, float]:
        """By layer name; ``means`` gives the w̄² of the layers' neighbourhoods, which only a budget asks for."""
        if self.budget is None:
            return targets(self.asked, epoch)
        self.reached = self.budget.target(epoch)
        keeps = self.budget.keeps(list(self.shares.values()), means(), epoch)
        found = {name: sparsity_keeping(keep, share.count) for keep, (name, share) in zip(keeps, self.shares.items())}
        return found | {name: found[first] for name, first in self.tied.items()}

    def due(self, epoch: float) -> bool:
        """Whether there may be other sparsities: budgets are shared out when one begins, or they have risen by 1 %."""
        if self.budget is None:
            return self.rises
        return epoch == int(epoch) or self.budget.target(epoch) - self.reached > 0.01 * self.budget.target()

    def risen(self, epoch: float) -> tuple[float, float]:
        """The sparsity at an epoch, and that in the end: of a budget, or of the layer that loses most."""
        if self.budget is not None:
            return self.budget.target(epoch), self.budget.target()
        end = targets(self.asked)
        most = max(end, key=end.__getitem__)
        return targets(self.asked, epoch)[most], end[most]

    def means(self, layers: Mapping[str, Layer], structure: Structure) -> list[Tensor]:
        """w̄² of the neighbourhoods of every layer, or of those that are shared out as one."""
        rows: dict[str, list[Tensor]] = {}
        for name, layer in layers.items():
            rows.setdefault(self.tied.get(name, name), []).append(layer.rows(structure))
        joint = [rows[name][0] if len(rows[name]) == 1 else torch.cat(rows[name], 1) for name in self.shares]
        return [mean_squares(part, Filter()) for part in joint]


def site_shares(sites: Mapping[str, Site]) -> dict[str, Share]:
    """Sites as a budget of weights knows them."""
    return {name: Share(site.cut, site.count, site.size, site.size) for name, site in sites.items()}


def shares_of(
    model: nn.Module,
    layers: Mapping[str, Layer],
    structure: Structure,
    sparsity: Any,
    example_inputs: Any = None,
) -> dict[str, Share]:
    """The layers as a budget knows them.

    Args:
        model: the network.
        layers: what is pruned of it, by name.
        structure: how it is cut.
        sparsity: what was given for it; a budget of multiply-adds or latency needs ``example_inputs``.
        example_inputs: a tensor or a tuple of the model's inputs.
    """
    uses, times = dict.fromkeys(layers, 1.0), None
    if isinstance(sparsity, Budget) and (sparsity.macs is not None or sparsity.latency is not None):
        if example_inputs is None:
            raise bad(
                "example_inputs", None, "a tensor or a tuple of inputs, with a budget of multiply-adds or latency"
            )
        if sparsity.macs is not None:
            uses = places(model, layers, example_inputs)
        else:
            times = timed(model, layers, structure, example_inputs)
    shares = {}
    for name, layer in layers.items():
        kind, shape = layer.structure(structure), layer.view or layer.shape
        size = kind.size(shape)
        count, table = kind.count(shape), None if times is None else times[name]
        shares[name] = Share(shape, count, size, size * uses[name] if table is None else table[-1] / count, table)
    for name, first in tied_to(layers, sparsity).items():
        follower, leader = shares.pop(name), shares[first]
        size, cost = leader.size + follower.size, leader.cost + follower.cost
        shares[first] = Share((leader.count, size), leader.count, size, cost)
    return shares


def tied_to(layers: Mapping[str, Layer], sparsity: Any) -> dict[str, str]:
    """With a budget, the layers that are shared out with another one, by the name of that."""
    if not isinstance(sparsity, Budget):
        return {}
    firsts = units_of(layers, dict.fromkeys(layers, 0.0))
    return {name: first for name, first in firsts.items() if name != first}


def timed(
    model: nn.Module, layers: Mapping[str, Layer], structure: Structure, example_inputs: Any
) -> dict[str, tuple[float, ...]]:
    """The tables of a budget of latency, where there can be one."""
    if structure.name != "filter":
        raise bad(
            "structure", structure.name, "'filter' with a budget of latency: other zeros save no time by themselves"
        )
    if active():
        raise UserError("a budget of latency is measured, and each process would find another: use macs instead")
    known = {name: layer.module if layer.parameter == "weight" else nn.Module() for name, layer in layers.items()}
    return tables(model, known, example_inputs)


@torch.no_grad()
def places(model: nn.Module, layers: Mapping[str, Layer], example_inputs: Any) -> dict[str, float]:
    """At how many places each layer's weight is used for one example: the outputs it makes per filter."""
    args, kwargs = arguments(example_inputs)
    examples = len(next(iter((*args, *kwargs.values()))))
    found, handles = dict.fromkeys(layers, 0.0), []
    # Attention computes from the weight of its last layer, which is never called itself.
    users: dict[nn.Module, nn.Module]
    users = {part.out_proj: part for part in model.modules() if isinstance(part, nn.MultiheadAttention)}
    for name, layer in layers.items():

        def count(module: Any, _: Any, out: Any, name: str = name) -> None:
            while not isinstance(out, Tensor):
                out = out[0]  # what attention and recurrent layers give beside their states
            found[name] += out.numel() / (getattr(module, "out_channels", None) or out.shape[-1]) / examples

        handles.append(users.get(layer.module, layer.module).register_forward_hook(count))
    try:
        with plain_eval(model):
            model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    if unused := [name for name, uses in found.items() if not uses]:
        told = layers_told(unused, "is not used", "are not used")
        raise UserError(f"{told} with these example_inputs: leave it out with exclude={excluding(unused, layers)!r}")
    return found
