"""Zhu & Gupta 2017: the sparsity of magnitude pruning rises with a cubic schedule while the network trains.

s(t) = p·(1 − (1 − t)³), t from 0 to 1 over the first epochs; the mask is renewed before every epoch, from all weights,
so that one that was pruned may come back. Layers share the sparsity equally, or as another ``allocation`` says. Of N:M
the N falls from M, as far as s(t) has come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...schedules import ANNEALED
from ...structures import KINDS
from ...threshold import converged_mask
from .gibbs import ALLOCATION, check_allocation
from .magnitude import share_largest
from .method import SHARE, Method, Setting

if TYPE_CHECKING:
    from ..replica import Replica
    from ..spec import RunSpec


class Gradual(Method):
    name = "gradual"
    about = "magnitude pruning on a cubic schedule while training (Zhu & Gupta)"
    structures = KINDS
    settings = {
        "until": Setting(
            SHARE, f"gradual: share of training after which the sparsity is reached ({ANNEALED})", ANNEALED, "u"
        ),
        "allocation": ALLOCATION,
    }

    def check(self, spec: RunSpec) -> None:
        check_allocation(spec)

    def begin_epoch(self, run: Replica, epoch: int) -> None:
        ramp = max(1, round(run.spec.setting("until") * run.spec.own_epochs))
        sparsity = cubic(run.spec.sparsity, (epoch + 1) / ramp)
        if epoch >= ramp:
            return  # the mask stays
        if not any(site.structure.limited for site in run.sites.values()):
            return share_largest(run, sparsity, run.spec.setting("allocation"))
        for name, site in run.sites.items():
            eased, weight = site.structure.eased(sparsity, site.cut), run.weights[name]
            mask = converged_mask(weight.reshape(site.cut), sparsity if eased.sparsity is None else None, eased)
            run.hold(name, mask.reshape(site.shape))


def cubic(sparsity: float, t: float) -> float:
    """p·(1 − (1 − t)³), at most p."""
    return sparsity if t >= 1 else sparsity * (1 - (1 - t) ** 3)
