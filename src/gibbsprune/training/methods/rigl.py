"""RigL (Evci et al. 2020): the sparsity is that of the end from the first step; which weights there are changes.

It begins with a random mask. After every ΔT steps until T_end (a share of training), in each layer the fraction

    α(t) = α/2 · (1 + cos(π t / T_end))

of the active weights with the smallest magnitude is dropped, and as many that are not active are grown, where the loss
has the largest gradient; they start from zero, and so do their moments. One that was dropped may be grown at once, and
then stays as it is. The gradient is that of the step before, which reaches all weights (straight-through): what it does
to a masked one is never seen, since it starts from zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...budgets import Budget
from ...checks import choice, whole
from ...targets import Targets, site_shares, sparsity_keeping
from ...threshold import kept_count
from .magnitude import largest
from .method import BELOW_ONE, SHARE, Method, Setting

if TYPE_CHECKING:
    from ...threshold import Segments
    from ..replica import Replica
    from ..spec import RunSpec

TINY = 1e-30  # of an active weight's magnitude, above the 0 of those that are not


class RigL(Method):
    name = "rigl"
    about = "sparse from the start: the smallest weights go, others grow where the gradient is largest (Evci et al.)"
    structures = ("weight",)
    settings = {
        "every": Setting(whole(1), "rigl: steps between two changes of the mask (100)", 100, "t"),
        "fraction": Setting(BELOW_ONE, "rigl: of the active weights, which is exchanged at first (0.3)", 0.3, "a"),
        "until": Setting(SHARE, "rigl: share of training after which the mask stays (0.75)", 0.75, "u"),
        "allocation": Setting(choice("erk", "uniform"), "rigl: how layers share the sparsity (erk)", "erk", ""),
    }

    def gradient(self, spec: RunSpec) -> str:
        return "straight-through"

    def begin_phase(self, run: Replica, phase: int) -> None:
        generator = run.stream("masks")
        for name, keep in active(run).items():
            site = run.sites[name]
            scores = torch.rand(site.count, generator=generator, dtype=torch.float64)
            run.hold(name, largest(scores, site, sparsity_keeping(keep, site.count)))

    def every(self, spec: RunSpec) -> int | None:
        return int(spec.setting("every")) if spec.sparsity > 0 else None

    def after_step(self, run: Replica, step: int, steps: int) -> None:
        share = exchanged(run.spec.setting("fraction"), step, run.spec.setting("until") * steps)
        if share:
            run.exchange(renewed(run, share))


def active(run: Replica) -> dict[str, int]:
    """How many weights each layer has all the time."""
    budget = Budget(run.spec.sparsity, allocation=run.spec.setting("allocation"))
    shared = Targets(budget, site_shares(run.sites)).at(0, lambda: [])
    return {name: kept_count(shared[name], site.count) for name, site in run.sites.items()}


def exchanged(fraction: float, step: int, end: float) -> float:
    """α(t), 0 from T_end on."""
    return 0.5 * fraction * (1 + math.cos(math.pi * step / end)) if step < end else 0.0


def renewed(run: Replica, share: float) -> dict[str, Tensor]:
    """The masks after an exchange, of all layers at once: nothing waits for the host."""
    masks, weights, gradients = (
        torch.cat([part[name].flatten() for name in run.sites]) for part in (run.masks, run.weights, run.gradients)
    )
    keeps = list(active(run).values())
    stay = [keep - math.floor(share * keep) for keep in keeps]
    strongest = _largest(run.segments, torch.where(masks, weights.abs().clamp_min(TINY), 0.0), stay)
    new = _largest(run.segments, torch.where(strongest, torch.inf, gradients.abs()), keeps)
    return {name: part.view(run.sites[name].shape) for name, part in zip(run.sites, run.segments.split(new))}


def _largest(layers: Segments, values: Tensor, keeps: Sequence[int]) -> Tensor:
    """The largest values of each layer, as many as it keeps."""
    layers.set_sparsities([sparsity_keeping(keep, count) for keep, count in zip(keeps, layers.lengths)])
    return layers.converged(values)
