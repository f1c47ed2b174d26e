"""The sparsity of each layer at an epoch, from whatever was asked for, and what the layers are to a budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .budgets import Budget
from .checks import bad, check_sparsity, excluding, layers_told
from .distributed import active
from .errors import UserError
from .latency import tables
from .looking import arguments, plain_eval
from .schedules import Schedule
from .selection import leave_out
from .shares import Share
from .site import Site, units_of
from .structures import Filter, Structure
from .threshold import mean_squares
from .weights import Layer

FELT = 0.9  # of what was left: less than that is left, and outputs show it

Sparsity = float | Schedule | Mapping[str, float | Schedule] | Callable[[str], float | Schedule]


def by_layer(sparsity: Sparsity, names: list[str]) -> dict[str, float | Schedule]:
    """What is asked of each layer: a number or a schedule for all, by name, or by a function of the name."""
    if callable(sparsity) and not isinstance(sparsity, (type, Schedule)):
        return {name: sparsity(name) for name in names}
    if isinstance(sparsity, Mapping):
        if unknown := [name for name in sparsity if name not in names]:
            told = layers_told(unknown, "is not pruned", "are not pruned", ", which ")
            raise UserError(f"sparsity names {told}: there are {', '.join(names)}")
        if missing := [name for name in names if name not in sparsity]:
            raise UserError(
                f"sparsity says nothing of {layers_told(missing)}: give a value (0 keeps all), or"
                f"{leave_out(missing, names)}"
            )
        return {name: sparsity[name] for name in names}
    return dict.fromkeys(names, sparsity)  # type: ignore[arg-type]


def scheduled(sparsity: Any) -> bool:
    """Whether what was asked for says itself when, in epochs, as far as one sees."""
    if isinstance(sparsity, Budget):
        return isinstance(sparsity.given[1], Schedule)
    values = sparsity.values() if isinstance(sparsity, Mapping) else [sparsity]
    return any(isinstance(value, Schedule) or callable(value) for value in values)


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

    def check(self, structures: Mapping[str, Structure]) -> None:
        """Refuses what layers cannot have whose structure says how many weights stay, and where nothing can go."""
        for name, kind in structures.items():
            given = self.budget or self.asked[name]
            if kind.limited and isinstance(given, (Schedule, Budget)):
                raise bad("sparsity", given, f"numbers, one or by layer, with structure {kind.spelling!r}")
        if self.budget and self.budget.target() and all(share.count == 1 for share in self.shares.values()):
            told = layers_told(list(self.shares), f"has a single {kind.name}", f"have a single {kind.name} each")
            raise UserError(f"{told}, which stays: there is nothing to remove")

    def at(self, epoch: float, means: Callable[[], Sequence[Tensor]]) -> dict[str, float]:
        """By layer name; ``means`` gives the w̄² of the layers' neighbourhoods, which only a budget asks for."""
        if self.budget is None:
            return self._asked(epoch)
        keeps = self.budget.keeps(list(self.shares.values()), means(), epoch)
        found = {name: sparsity_keeping(keep, share.count) for keep, (name, share) in zip(keeps, self.shares.items())}
        return found | {name: found[first] for name, first in self.tied.items()}

    def due(self, epoch: float, before: float) -> bool:
        """Whether there may be other sparsities than at the epoch before: a budget is shared out when another epoch
        begins, and within one in steps of a hundredth."""
        if self.budget is None:
            return self.rises
        end = self.budget.target() or 1.0
        one, other = (round(self.budget.target(when) / end, 12) for when in (epoch, before))
        return math.floor(epoch) != math.floor(before) or math.floor(100 * one) != math.floor(100 * other)

    def total(self, epoch: float = math.inf) -> float:
        """The sparsity of all layers together that is asked for at an epoch, by default in the end."""
        if self.budget is not None:
            return self.budget.target(epoch)
        sizes = {name: share.count * share.size for name, share in self.shares.items()}
        now = self._asked(epoch)
        return sum(size * now[name] for name, size in sizes.items()) / sum(sizes.values())

    def rose(self, epochs: int) -> int:
        """The last of so many epochs that began with a sparsity which outputs show; 0 where none did but the first."""
        last, left = 0, 1.0
        for epoch in range(epochs):
            if (now := 1 - self.total(epoch)) < FELT * left:
                last, left = epoch, now
        return last

    def open(self, epoch: float) -> bool:
        """Whether any layer, or the budget, is to go elsewhere yet."""
        return self.total(epoch) != self.total() if self.budget else self._asked(epoch) != self._asked(math.inf)

    def _asked(self, epoch: float) -> dict[str, float]:
        now = {name: value(epoch) if isinstance(value, Schedule) else value for name, value in self.asked.items()}
        return {name: check_sparsity(value) for name, value in now.items()}

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
