"""Iterative magnitude pruning with rewinding (Frankle et al. 2019).

Train; prune the smallest weights of each layer a step towards the final sparsity; put the survivors back to the values
they had after the first steps of training; train again. Each of R rounds keeps the same share of what is left,
(1 − p)^(1/R), so that R rounds are R + 1 trainings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import UserError
from ..fields import optional, whole
from .magnitude import largest
from .method import Method, Phase, Setting, training

if TYPE_CHECKING:
    from ..training.replica import Replica
    from ..training.spec import RunSpec

REWIND = 500


class Lottery(Method):
    name = "lottery"
    about = "train, prune by magnitude, rewind the survivors to an early step, train again (IMP)"
    structures = ("weight",)
    settings = {
        "rounds": Setting(whole(1), "lottery: how often to prune, rewind and train again (3)", lambda spec: 3, "r"),
        "rewind_step": Setting(optional(whole(1)), "lottery: rewind to the values after so many steps "
                               f"({REWIND}, or a tenth of training where that is less)", lambda spec: None, "k"),
    }  # fmt: skip

    def phases(self, spec: RunSpec) -> list[Phase]:
        return [training(spec) for _ in range(spec.setting("rounds") + 1)]

    def save_at(self, spec: RunSpec, steps: int) -> int:
        wanted = spec.setting("rewind_step")
        if wanted is None:
            return min(REWIND, max(1, steps // 10))
        if wanted > steps:
            raise UserError(f"rewind_step is {wanted}, but training has only {steps} steps")
        return int(wanted)

    def begin_phase(self, run: Replica, phase: int) -> None:
        if phase == 0:
            return
        sparsity = round_sparsity(run.spec.sparsity, phase, run.spec.setting("rounds"))
        for name, site in run.sites.items():
            run.hold(name, largest(run.weights[name].abs().flatten(), site, sparsity, run.masks[name]))
        run.rewind()


def round_sparsity(sparsity: float, done: int, rounds: int) -> float:
    """The sparsity after some of the rounds: 1 − (1 − p)^(done / rounds)."""
    return sparsity if done == rounds else 1 - (1 - sparsity) ** (done / rounds)
