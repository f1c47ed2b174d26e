"""Iterative magnitude pruning with rewinding (Frankle et al. 2019).

Train; prune the smallest weights of each layer a step towards the final sparsity; put the survivors back to the values
they had after the first steps of training; train again. Each of R rounds keeps the same share of what is left,
(1 − p)^(1/R), so that R rounds are R + 1 trainings. The first, which is the same for every R, may be taken from a
finished run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import UserError
from ..fields import optional, text, whole
from ..law import Site
from .after_training import AfterTraining, check_recipe
from .magnitude import largest
from .method import Phase, Setting, training

if TYPE_CHECKING:
    from ..training.finished import Finished
    from ..training.replica import Replica
    from ..training.spec import RunSpec

REWIND = 500


class Lottery(AfterTraining):
    name = "lottery"
    about = "train, prune by magnitude, rewind the survivors to an early step, train again (IMP)"
    structures = ("weight",)
    keeps = ("early", "trained")
    settings = {
        "rounds": Setting(whole(1), "lottery: how often to prune, rewind and train again (3)", lambda spec: 3, "r"),
        "rewind_step": Setting(optional(whole(1)), "lottery: rewind to the values after so many steps "
                               f"({REWIND}, or a tenth of training where that is less)", lambda spec: None, "k"),
        "from": Setting(optional(text()), "start after the first training of this finished lottery run",
                        lambda spec: None, "from."),
    }  # fmt: skip

    def tunes(self, spec: RunSpec) -> list[Phase]:
        return [training(spec) for _ in range(spec.setting("rounds"))]

    def check_source(self, spec: RunSpec, source: Finished, sites: Mapping[str, Site]) -> None:
        """The source must have begun with the training that the run would make itself."""
        mine, other = _beginning(spec), _beginning(source.spec)
        if mine != other:
            raise UserError(f"method 'lottery' would start from {mine}, but {spec.setting('from')} is {other}")
        check_recipe(spec, source.spec)
        if not source.kept:
            raise UserError(f"{spec.setting('from')} holds the end of its training alone, not the first round's")

    def save_at(self, spec: RunSpec, steps: int) -> int | None:
        if spec.setting("from"):
            return None
        wanted = spec.setting("rewind_step")
        if wanted is None:
            return min(REWIND, max(1, steps // 10))
        if wanted > steps:
            raise UserError(f"rewind_step is {wanted}, but training has only {steps} steps")
        return int(wanted)

    def start(self, run: Replica, source: Finished) -> None:
        run.keep(source.kept)
        run.put_back("trained")

    def prune(self, run: Replica, step: int) -> None:
        if step == 0:
            run.put_aside("trained")
        sparsity = round_sparsity(run.spec.sparsity, step + 1, run.spec.setting("rounds"))
        for name, site in run.sites.items():
            run.hold(name, largest(run.weights[name].abs().flatten(), site, sparsity, run.masks[name]))
        run.put_back("early")


def _beginning(spec: RunSpec) -> str:
    """A run's first training in words."""
    if spec.method != "lottery":
        return f"a {spec.method} {spec.model} on {spec.data}"
    step = spec.setting("rewind_step")
    return (
        f"a lottery {spec.model} on {spec.data} of {training(spec).epochs} epochs a round, seed {spec.seed}, "
        f"rewound to step {step if step is not None else 'default'}"
    )


def round_sparsity(sparsity: float, done: int, rounds: int) -> float:
    """The sparsity after some of the rounds: 1 − (1 − p)^(done / rounds)."""
    return sparsity if done == rounds else 1 - (1 - sparsity) ** (done / rounds)
