"""Iterative magnitude pruning with rewinding (Frankle et al. 2019).

Train; prune the smallest weights of each layer a step towards the final sparsity; put the survivors back to the values
they had after the first steps of training; train again. Each of R rounds keeps the same share of what is left,
(1 − p)^(1/R), so that R rounds are R + 1 trainings. The first, which is the same for every R, may be taken from a
finished run. A run may also be one round alone, which goes on from that of the round before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...checks import bad, optional, whole
from ...errors import UserError
from ...site import Site
from .after_training import AfterTraining, check_recipe
from .magnitude import largest
from .method import Phase, Setting, starting, training

if TYPE_CHECKING:
    from ..finished import Finished
    from ..replica import Replica
    from ..spec import RunSpec

REWIND = 500


class Lottery(AfterTraining):
    name = "lottery"
    about = "train, prune by magnitude, rewind the survivors to an early step, train again (IMP)"
    structures = ("weight",)
    keeps = ("early", "trained")
    settings = {
        "rounds": Setting(whole(1), "lottery: how often to prune, rewind and train again (3)", 3, "r"),
        "rewind_step": Setting(
            optional(whole(1)),
            f"lottery: rewind to the values after so many steps ({REWIND}, or a tenth of training where that is less)",
            None,
            "k",
        ),
        "round": Setting(
            optional(whole(0)),
            "lottery: this round alone, from the one before; 0: the first training (all, one after the other)",
            None,
            "round",
        ),
        "from": starting("start after the first training of this finished lottery run, or after its round"),
    }

    def check(self, spec: RunSpec) -> None:
        number, rounds, source = spec.setting("round"), spec.setting("rounds"), spec.setting("from")
        if number is None:
            return
        if number > rounds:
            raise bad("round", number, f"numbers up to the {rounds} rounds")
        if number and source is None:
            raise UserError(f"round {number} of a lottery needs 'from', the finished run of the round before")
        if not number and source is not None:
            raise UserError(f"round 0 of a lottery is its first training, which starts from no run, not from {source}")

    def tunes(self, spec: RunSpec) -> list[Phase]:
        number = spec.setting("round")
        if number == 0:
            return [Phase("end", 0, training(spec).rate)]
        return [training(spec) for _ in range(spec.setting("rounds") if number is None else 1)]

    def epochs_before(self, spec: RunSpec) -> int:
        return super().epochs_before(spec) * (spec.setting("round") or 1)

    def check_source(self, spec: RunSpec, source: Finished, sites: Mapping[str, Site]) -> None:
        """The source must have begun with the training that the run would make itself."""
        named = spec.setting("from")
        if source.spec is None:
            raise UserError(f"method 'lottery' starts from a finished lottery run, and {named} is a file of weights")
        mine, other = _beginning(spec), _beginning(source.spec)
        if mine != other:
            raise UserError(f"method 'lottery' would start from {mine}, but {named} is {other}")
        check_recipe(spec, source.spec)
        if not source.kept:
            raise UserError(f"{named} holds the end of its training alone, not the first round's")
        if (number := spec.setting("round") or 0) > 1:
            mine, other = _round(spec, number - 1), _round(source.spec, source.spec.setting("round"))
            if mine != other:
                raise UserError(f"round {number} of a lottery goes on from {mine}, but {named} is {other}")

    def save_at(self, spec: RunSpec, steps: int) -> int | None:
        if spec.setting("from"):
            return None
        wanted = spec.setting("rewind_step")
        if wanted is None:
            return min(REWIND, max(1, steps // 10))
        if wanted > steps:
            raise bad("rewind_step", wanted, f"numbers up to the {steps} steps of training")
        return int(wanted)

    def start(self, run: Replica, source: Finished) -> None:
        run.keep(source.kept)
        if (run.spec.setting("round") or 1) == 1:
            run.put_back("trained")
            return
        run.load(source)
        for name, mask in source.masks.items():
            run.hold(name, mask)

    def prune(self, run: Replica, step: int) -> None:
        number = run.spec.setting("round")
        if step == 0 and not run.spec.setting("from"):
            run.put_aside("trained")
        if number == 0:
            return
        sparsity = round_sparsity(run.spec.sparsity, number or step + 1, run.spec.setting("rounds"))
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


def _round(spec: RunSpec, number: int | None) -> str:
    """What a run of that round alone, or of all, leaves behind."""
    done = "all rounds" if number is None else f"round {number}"
    return f"{done} of {spec.setting('rounds')} to sparsity {spec.sparsity:g}"


def round_sparsity(sparsity: float, done: int, rounds: int) -> float:
    """The sparsity after some of the rounds: 1 − (1 − p)^(done / rounds)."""
    return sparsity if done == rounds else 1 - (1 - sparsity) ** (done / rounds)
