"""Targeted dropout (Gomez et al. 2019): at every step each of the fraction γ of lowest weights (kernels, filters) is
dropped with probability α; at the end the lowest are pruned. Ramping: α rises linearly from 0 to the sparsity p."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...checks import flag, number
from ...errors import UserError
from ...samplers import Source
from ...site import Site
from ...threshold import Segments
from .method import Method, Setting

if TYPE_CHECKING:
    from ..spec import RunSpec


class TargetedDropout(Method):
    name = "targeted-dropout"
    about = "the lowest weights are dropped at random while training, and pruned at the end (Gomez et al.)"
    settings = {
        "drop": Setting(number(0, 1), "targeted-dropout: α, with which a targeted one is dropped (0.75; filters 0.9)",
                        lambda spec: 0.9 if spec.structure == "filter" else 0.75, "a"),
        "targeted": Setting(number(0, 1, below=True), "targeted-dropout: γ, the fraction targeted (the sparsity)",
                            lambda spec: spec.sparsity, "g"),
        "ramping": Setting(flag(), "targeted-dropout: α rises from 0 to the sparsity", lambda spec: False, "ramping"),
    }  # fmt: skip
    ends_with = "converged"

    def check(self, spec: RunSpec) -> None:
        if spec.setting("ramping") and spec.setting("drop") != self.settings["drop"].default(spec):
            raise UserError(
                f"drop is {spec.setting('drop'):g}, but with ramping α rises to the sparsity; give one of them"
            )

    def rule(self, sites: Sequence[Site], specs: Sequence[RunSpec], device: torch.device) -> Targeted:
        return Targeted([replace(site, sparsity=specs[site.run].setting("targeted")) for site in sites])

    def level(self, spec: RunSpec, sites: Sequence[Site]) -> Callable[[int], float]:
        if not spec.setting("ramping"):
            return lambda epoch: spec.setting("drop")
        last = max(1, spec.own_epochs - 1)
        return lambda epoch: spec.sparsity * min(1.0, epoch / last)


class Targeted:
    """One coin per targeted neighbourhood; a site's sparsity is the fraction γ of them that is targeted."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self.order = sorted(range(len(sites)), key=lambda i: sites[i].run)
        self.sites = [sites[i] for i in self.order]
        self.segments = Segments([s.count for s in self.sites], [s.sparsity for s in self.sites])
        self.runs = sorted({site.run for site in self.sites})
        self.rows = [sum(s.count for s in self.sites if s.run == run) for run in self.runs]

    def draw(
        self, weights: Sequence[Tensor], levels: Tensor, generators: Sequence[torch.Generator | None]
    ) -> list[Tensor]:
        means = torch.cat([site.means(weights[i]) for i, site in zip(self.order, self.sites)])
        device = means.device
        run = self.segments.constant("run", device, lambda: torch.tensor([s.run for s in self.sites]))
        some = self.segments.constant("some", device, lambda: torch.tensor([s.sparsity > 0 for s in self.sites]))
        drop = self.segments.spread(levels[run].to(means.dtype) * some)  # γ = 0 targets nothing, not even the lowest
        coins = Source([generators[r] for r in self.runs], self.rows, 1, device).uniform(1).flatten()
        keep = (means > self.segments.spread(self.segments.thresholds(means))) | (coins >= drop)
        masks = [torch.empty(0)] * len(self.sites)
        for i, site, part in zip(self.order, self.sites, keep.split(self.segments.lengths)):
            masks[i] = site.unrows(part[:, None].expand(-1, site.size))
        return masks
