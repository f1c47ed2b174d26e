"""What methods that prune a trained network share: they train it, or start from a finished run; then train it on."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...checks import bad, number, or_word
from ...errors import UserError
from ...site import Site
from .method import REWIND, Method, Phase, Setting, is_file, starting, training

if TYPE_CHECKING:
    from ..finished import Finished
    from ..replica import Replica
    from ..spec import RunSpec

#: Learning rates of fine-tuning, as a share of the recipe's: the paper's 1e-5 of 1e-3, but for digits, whose epochs are
#: of 22 steps, the best of 0.01, 0.1 and 0.3 on images held out of the training set (two seeds).
SHARES = {"digits": 0.3}

TUNE_RATE = Setting(
    or_word(number(0, above=True), REWIND),
    "learning rate of fine-tuning (0.01 of the recipe's; digits 0.3), or 'rewind': training's last",
    lambda spec: SHARES.get(spec.recipe.name, 0.01) * spec.recipe.lr,
    "lr",
)
SOURCE = starting("start from this finished dense run, or .safetensors file, instead of training one")

#: Fields of a recipe that say nothing about a training without drawn masks.
UNUSED = ("name", "anneal", "beta_start", "beta_end", "anneal_epochs")


def check_recipe(spec: RunSpec, other: RunSpec) -> None:
    """Refuses a finished run that was trained by another recipe than the one that starts from it."""
    mine, theirs = spec.recipe.as_dict(), other.recipe.as_dict()
    for field in mine:
        if field not in UNUSED and mine[field] != theirs[field]:
            raise UserError(
                f"{spec.setting('from')} was trained with {field} {theirs[field]}, but this run's recipe has "
                f"{mine[field]}: give both the same"
            )


class AfterTraining(Method):
    """Training, or nothing with ``from``, then the phases of :meth:`tunes`, before each of which is pruned."""

    def check(self, spec: RunSpec) -> None:
        epochs, most = spec.setting("tune_epochs"), training(spec).epochs
        if spec.setting("tune_rate") == REWIND and epochs > most:
            raise bad("tune_epochs", epochs, f"the {most} epochs of training at most, with tune_rate {REWIND!r}")

    def phases(self, spec: RunSpec) -> list[Phase]:
        start = Phase("start", 0, training(spec).rate) if spec.setting("from") else training(spec)
        return [start, *self.tunes(spec)]

    def epochs_before(self, spec: RunSpec) -> int:
        return training(spec).epochs if spec.setting("from") and not is_file(spec.setting("from")) else 0

    def check_source(self, spec: RunSpec, source: Finished, sites: Mapping[str, Site]) -> None:
        """A run must be what this one would have trained itself: its epochs count as this run's. Of a file nothing is
        known, and nothing counts."""
        if source.spec is None:
            return
        mine = f"dense {spec.model} on {spec.data} of {training(spec).epochs} epochs"
        other, named = source.spec, spec.setting("from")
        found = f"{other.method} {other.model} on {other.data} of {other.total_epochs} epochs"
        if found != mine:
            raise UserError(f"method {spec.method!r} would start from a {mine}, but {named} is a {found}")
        check_recipe(spec, other)

    def begin_phase(self, run: Replica, phase: int) -> None:
        if phase:
            self.prune(run, phase - 1)

    @abstractmethod
    def tunes(self, spec: RunSpec) -> list[Phase]:
        """The phases of fine-tuning, or of training again."""

    @abstractmethod
    def prune(self, run: Replica, step: int) -> None:
        """What is done to the masks before one of them."""
