"""Budgets: one sparsity for the whole network, and how much of it each layer bears.

An *allocation* orders the neighbourhoods of all layers by a priority; those are kept that come first, until the budget
is spent. With M neighbourhoods of n weights in a layer, w̄² their mean squares and c what one of them costs:

=========  =====================================================================================================
uniform    every layer keeps the same share, as the paper does
global     priority n·w̄²/c: one threshold for the network, the most energy for the cost
lamp       priority of the j-th smallest of a layer, w̄²_j / Σ_{i ≥ j} w̄²_i (Lee et al. 2021)
erk        shares proportional to (Σ dimensions) / (Π dimensions) of the weight (Evci et al. 2020), at most 1
=========  =====================================================================================================

A cost is a number of weights, n, or of multiply-adds, n times the places at which a layer's weight is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .checks import bad, check_number, check_one_of, check_sparsity, check_whole, excluding, layers_told, number
from .errors import UserError
from .looking import arguments, plain_eval
from .schedules import Schedule
from .selection import Sparsity, targets
from .site import units_of
from .structures import Structure
from .threshold import kept_count
from .weights import Layer

ALLOCATIONS = ("uniform", "global", "lamp", "erk")


@dataclass(frozen=True)
class Share:
    """What a budget knows of one layer: its shape, its M neighbourhoods of n weights, what each of them costs."""

    shape: tuple[int, ...]
    count: int
    size: int
    cost: float


@dataclass(frozen=True)
class Budget:
    """How much is removed from all pruned layers together, and from which.

    Args:
        weights: the fraction of their weights that is removed, or a schedule of it; 0.9 unless ``macs`` is given.
        macs: instead, the fraction of their multiply-adds, or a schedule of it.
        allocation: "uniform", "global", "lamp" or "erk".
        floor: the least share of a layer's neighbourhoods that stays; at least one always does.
        round_to: kept neighbourhoods of a layer are a multiple of this (filters in eights, as hardware likes them).

    >>> Budget(0.95, allocation="lamp").target()
    0.95
    """

    weights: float | Schedule | None = None
    macs: float | Schedule | None = None
    allocation: str = "global"
    floor: float = 0.0
    round_to: int = 1

    def __post_init__(self) -> None:
        if self.weights is not None and self.macs is not None:
            raise bad("macs", self.macs, f"None beside weights={self.weights!r}: a budget has one measure")
        check_sparsity(self.target())
        check_one_of("allocation", self.allocation, ALLOCATIONS)
        check_number("floor", self.floor, number(0, 1))
        check_whole("round_to", self.round_to)

    def target(self, epoch: float = math.inf) -> float:
        """The fraction removed at an epoch, by default in the end."""
        given = self.macs if self.macs is not None else 0.9 if self.weights is None else self.weights
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
            shares = None if self.allocation == "uniform" else erdos_renyi(layers, removed)
            return [
                self._rounded(kept_count(removed, layer.count) if shares is None else share * layer.count, layer, low)
                for layer, share, low in zip(layers, shares or [0.0] * len(layers), least)
            ]
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
            score = self._priority(np.sort(mean.detach().double().cpu().numpy())[::-1], layer)
            heads = np.arange(0, layer.count, step)
            sizes = np.diff(np.append(heads, layer.count))
            group = np.add.reduceat(score, heads) / sizes
            group[: math.ceil(low / step)] = np.inf  # what must stay comes first
            priorities.append(group)
            costs.append(sizes * layer.cost)
            owners.append(np.full(len(group), index))
        priority, cost, owner = map(np.concatenate, (priorities, costs, owners))
        order = np.argsort(-priority, kind="stable")
        must = int(np.isinf(priority).sum())
        total = sum(layer.count * layer.cost for layer in layers)
        spent = np.cumsum(cost[order])
        fits = int(np.searchsorted(spent, (1 - removed) * total * (1 + 1e-12), side="right"))
        groups = np.bincount(owner[order[: max(must, fits)]], minlength=len(layers))
        return [min(layer.count, int(n) * step) for layer, n in zip(layers, groups)]

    def _priority(self, descending: np.ndarray, layer: Share) -> np.ndarray:
        if self.allocation == "global":
            return descending * (layer.size / layer.cost)
        tail = np.cumsum(descending)  # Σ of those at least as large
        return np.divide(descending, tail, out=np.zeros_like(tail), where=tail > 0)


def erdos_renyi(layers: Sequence[Share], removed: float) -> list[float]:
    """The share that each layer keeps, ε·(Σ dimensions)/(Π dimensions) with one ε, and 1 where that would exceed 1."""
    raw = [sum(layer.shape) / math.prod(layer.shape) for layer in layers]
    cost = [layer.count * layer.cost for layer in layers]
    whole: set[int] = set()
    while True:
        left = (1 - removed) * sum(cost) - sum(cost[i] for i in whole)
        scale = left / sum(raw[i] * cost[i] for i in range(len(layers)) if i not in whole)
        over = {i for i in range(len(layers)) if i not in whole and scale * raw[i] > 1}
        if not over:
            return [1.0 if i in whole else scale * raw[i] for i in range(len(layers))]
        whole |= over


def sparsity_keeping(keep: int, count: int) -> float:
    """A sparsity at which the converged mask keeps ``keep`` of ``count``, and which puts none exactly on Q."""
    return 0.0 if keep == count else (count - 1 - keep + 0.5) / (count - 1)


class Targets:
    """The sparsity of each layer at an epoch, from whatever was given for it.

    Args:
        sparsity: a number, a mapping or function from layer name, a :class:`Schedule` or a :class:`Budget`.
        shares: the layers by name, as a budget knows them.
        tied: layers that go with another one, by the name of that.
    """

    def __init__(
        self,
        sparsity: Sparsity | Schedule | Budget,
        shares: Mapping[str, Share],
        tied: Mapping[str, str] | None = None,
    ) -> None:
        self.given, self.shares, self.tied = sparsity, dict(shares), dict(tied or {})
        self.rises = isinstance(sparsity, Schedule)
        self.shared = isinstance(sparsity, Budget)

    def at(self, epoch: float, means: Callable[[], Sequence[Tensor]]) -> dict[str, float]:
        """By layer name; ``means`` gives the w̄² of the layers' neighbourhoods, which only a budget asks for."""
        given, names = self.given, list(self.shares)
        if isinstance(given, Schedule):
            return dict.fromkeys(names, check_sparsity(given(epoch)))
        if not isinstance(given, Budget):
            return targets(given, names)
        keeps = given.keeps(list(self.shares.values()), means(), epoch)
        found = {name: sparsity_keeping(keep, share.count) for keep, (name, share) in zip(keeps, self.shares.items())}
        return found | {name: found[first] for name, first in self.tied.items()}


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
        sparsity: what was given for it; a budget of multiply-adds needs ``example_inputs``.
        example_inputs: a tensor or a tuple of the model's inputs.
    """
    uses = dict.fromkeys(layers, 1.0)
    if isinstance(sparsity, Budget) and sparsity.macs is not None:
        if example_inputs is None:
            raise bad("example_inputs", None, "a tensor or a tuple of inputs, with a budget of multiply-adds")
        uses = places(model, layers, example_inputs)
    shares = {}
    for name, layer in layers.items():
        kind, shape = layer.structure(structure), layer.view or layer.shape
        size = kind.size(shape)
        shares[name] = Share(shape, kind.count(shape), size, size * uses[name])
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


@torch.no_grad()
def places(model: nn.Module, layers: Mapping[str, Layer], example_inputs: Any) -> dict[str, float]:
    """At how many places each layer's weight is used for one example: the outputs it makes per filter."""
    args, kwargs = arguments(example_inputs)
    examples = len(next(iter((*args, *kwargs.values()))))
    found, handles = dict.fromkeys(layers, 0.0), []
    for name, layer in layers.items():

        def count(module: Any, _: Any, out: Any, name: str = name) -> None:
            while not isinstance(out, Tensor):
                out = out[0]  # what attention and recurrent layers give beside their states
            found[name] += out.numel() / (getattr(module, "out_channels", None) or out.shape[-1]) / examples

        handles.append(layer.module.register_forward_hook(count))
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
