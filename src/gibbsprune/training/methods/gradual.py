"""Zhu & Gupta 2017: the sparsity of magnitude pruning rises with a cubic schedule while the network trains.

s(t) = p·(1 − (1 − t)³), t from 0 to 1 over the first epochs; the mask is renewed before every epoch, from all weights,
so that one that was pruned may come back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...checks import number
from ...schedules import ANNEALED
from .magnitude import largest
from .method import Method, Setting

if TYPE_CHECKING:
    from ..replica import Replica


class Gradual(Method):
    name = "gradual"
    about = "magnitude pruning on a cubic schedule while training (Zhu & Gupta)"
    settings = {
        "until": Setting(
            number(0, 1, above=True),
            f"gradual: share of training after which the sparsity is reached ({ANNEALED})",
            lambda spec: ANNEALED,
            "u",
        )
    }

    def begin_epoch(self, run: Replica, epoch: int) -> None:
        ramp = max(1, round(run.spec.setting("until") * run.spec.own_epochs))
        sparsity = cubic(run.spec.sparsity, (epoch + 1) / ramp)
        if epoch >= ramp:
            return  # the mask stays
        for name, site in run.sites.items():
            scores = site.rows(run.weights[name]).square().mean(1)
            run.hold(name, largest(scores, site, sparsity))


def cubic(sparsity: float, t: float) -> float:
    """p·(1 − (1 − t)³), at most p."""
    return sparsity if t >= 1 else sparsity * (1 - (1 - t) ** 3)
