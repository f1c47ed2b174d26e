"""Targeted dropout (Gomez et al. 2019): at every step each of the fraction γ of lowest weights (kernels, filters) is
dropped with probability α; at the end the lowest are pruned.

Both are constant, or rise: with ``ramp="authors"`` as those of the method raise them, over a share of training, γ to
0.95 of its last value in the first half of that and to all of it in the second, α linearly to 0.99; then both are held,
so that the network trains with the mask that it ends with. ``ramping`` is one sentence of the Gibbs pruning paper: α
rises linearly from 0 to the sparsity p by the end of training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...checks import bad, choice, flag, number
from ...samplers import Source
from ...site import Site
from ...threshold import Segments
from .method import BELOW_ONE, SHARE, Method, Setting

if TYPE_CHECKING:
    from ..spec import RunSpec


def default_drop(spec: RunSpec) -> float:
    """α in the end."""
    if spec.setting("ramp") == "authors":
        return 0.99
    return 0.9 if spec.structure == "filter" else 0.75


class TargetedDropout(Method):
    name = "targeted-dropout"
    about = "the lowest weights are dropped at random while training, and pruned at the end (Gomez et al.)"
    settings = {
        "drop": Setting(
            number(0, 1),
            "targeted-dropout: α, with which a targeted one is dropped (0.75; filters 0.9; 0.99 with ramp 'authors')",
            default_drop,
            "a",
        ),
        "targeted": Setting(
            BELOW_ONE, "targeted-dropout: γ, the fraction targeted (the sparsity)", lambda spec: spec.sparsity, "g"
        ),
        "ramping": Setting(flag(), "targeted-dropout: α rises from 0 to the sparsity", False, "ramping"),
        "ramp": Setting(
            choice("none", "authors"),
            "targeted-dropout: 'authors': α and γ rise, then are held (none)",
            "none",
            "ramp.",
        ),
        "until": Setting(SHARE, "targeted-dropout: share of training in which they rise (0.5)", 0.5, "u"),
    }
    ends_with = "converged"

    def check(self, spec: RunSpec) -> None:
        if spec.setting("ramping") and spec.setting("drop") != self.settings["drop"].default(spec):
            raise bad("drop", spec.setting("drop"), "none with ramping, in which α rises to the sparsity")
        if spec.setting("ramping") and spec.setting("ramp") != "none":
            raise bad("ramp", spec.setting("ramp"), "'none' with ramping, which is the paper's way")

    def rule(self, sites: Sequence[Site], specs: Sequence[RunSpec], device: torch.device) -> Targeted:
        return Targeted(sites, [fraction(specs[site.run]) for site in sites])

    def level(self, spec: RunSpec, sites: Sequence[Site]) -> Callable[[int], float]:
        if spec.setting("ramping"):
            last = max(1, spec.own_epochs - 1)
            return lambda epoch: spec.sparsity * min(1.0, epoch / last)
        return lambda epoch: spec.setting("drop") * risen(spec, epoch)


def risen(spec: RunSpec, epoch: int) -> float:
    """How far α and γ have risen, from 0 to 1."""
    if spec.setting("ramp") == "none":
        return 1.0
    return min(1.0, epoch / max(1, round(spec.setting("until") * spec.own_epochs)))


def fraction(spec: RunSpec) -> Callable[[int], float]:
    """γ as a function of the epoch."""

    def of(epoch: int) -> float:
        t = risen(spec, epoch)
        return float(spec.setting("targeted")) * (0.95 * min(1.0, 2 * t) + 0.05 * max(0.0, 2 * t - 1))

    return of


class Targeted:
    """One coin per targeted neighbourhood; ``fractions`` are the γ of each site as functions of the epoch."""

    def __init__(self, sites: Sequence[Site], fractions: Sequence[Callable[[int], float]]) -> None:
        self.order = sorted(range(len(sites)), key=lambda i: sites[i].run)
        self.sites = [sites[i] for i in self.order]
        self.fractions = [fractions[i] for i in self.order]
        self.segments = Segments([s.count for s in self.sites], [of(0) for of in self.fractions])
        self.runs = sorted({site.run for site in self.sites})
        self.rows = [sum(s.count for s in self.sites if s.run == run) for run in self.runs]

    def set_epoch(self, epoch: int) -> None:
        self.segments.set_sparsities([of(epoch) for of in self.fractions])

    def draw(
        self, weights: Sequence[Tensor], levels: Tensor, generators: Sequence[torch.Generator | None]
    ) -> list[Tensor]:
        means = torch.cat([site.means(weights[i]) for i, site in zip(self.order, self.sites)])
        device = means.device
        run = self.segments.constant("run", device, lambda: torch.tensor([s.run for s in self.sites]))
        some = self.segments.constant("some", device, lambda: ~torch.tensor(self.segments.whole), varying=True)
        drop = self.segments.spread(levels[run].to(means.dtype) * some)  # γ = 0 targets nothing, not even the lowest
        coins = Source([generators[r] for r in self.runs], self.rows, 1, device).uniform(1).flatten()
        keep = (means > self.segments.spread(self.segments.thresholds(means))) | (coins >= drop)
        masks = [torch.empty(0)] * len(self.sites)
        for i, site, part in zip(self.order, self.sites, keep.split(self.segments.lengths)):
            masks[i] = site.unrows(part[:, None].expand(-1, site.size))
        return masks
