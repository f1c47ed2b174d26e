"""Learning-rate rewinding (Renda et al. 2020): train, prune the smallest weights, train on with the rates of before.

After each of R rounds of pruning the weights go on from where they are, but the learning rates start again: all of
those of training, or those of its last epochs. One round prunes at once; each of several keeps the same share of what
is left, (1 − p)^(1/R). Magnitudes are compared in the whole network, as its authors do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...budgets import ALLOCATIONS
from ...checks import choice, whole
from .after_training import SOURCE, AfterTraining
from .lottery import round_sparsity
from .magnitude import share_largest
from .method import SHARE, Phase, Setting, rewound, training

if TYPE_CHECKING:
    from ..replica import Replica
    from ..spec import RunSpec


class Rewinding(AfterTraining):
    name = "lr-rewinding"
    about = "train, prune by magnitude, train on with the learning rates from the first (Renda et al.)"
    structures = ("weight",)
    settings = {
        "rounds": Setting(whole(1), "lr-rewinding: how often to prune and train again (1)", 1, "r"),
        "repeat": Setting(SHARE, "lr-rewinding: share of training, its last, that is repeated (1)", 1.0, "b"),
        "allocation": Setting(
            choice(*ALLOCATIONS), "lr-rewinding: how layers share the sparsity (global)", "global", ""
        ),
        "from": SOURCE,
    }

    def tunes(self, spec: RunSpec) -> list[Phase]:
        epochs = max(1, round(spec.setting("repeat") * training(spec).epochs))
        return [rewound(spec, epochs) for _ in range(spec.setting("rounds"))]

    def prune(self, run: Replica, step: int) -> None:
        sparsity = round_sparsity(run.spec.sparsity, step + 1, run.spec.setting("rounds"))
        share_largest(run, sparsity, run.spec.setting("allocation"), back=False)
