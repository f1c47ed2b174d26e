"""Han et al. 2015: train; then prune the smallest weights to 10, 20 … 90 %, with n epochs of fine-tuning after each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from ..errors import UserError
from ..fields import number, optional, text, whole
from ..law import Site
from ..threshold import keep_largest, kept_count
from .method import Method, Phase, Setting, training, tuning

if TYPE_CHECKING:
    from ..training.finished import Finished
    from ..training.replica import Replica
    from ..training.spec import RunSpec

#: Learning rates of fine-tuning, as a share of the recipe's: the paper's 1e-5 of 1e-3, but for digits, whose epochs are
#: of 22 steps, the best of 0.01, 0.1 and 0.3 on images held out of the training set (two seeds).
SHARES = {"digits": 0.3}

TUNE_RATE = Setting(number(0, above=True), "learning rate of fine-tuning (0.01 of the recipe's; digits 0.3)",
                    lambda spec: SHARES.get(spec.recipe.name, 0.01) * spec.recipe.lr, "lr")  # fmt: skip
SOURCE = Setting(optional(text()), "start from this finished dense run instead of training one",
                 lambda spec: None, "from.")  # fmt: skip


class Magnitude(Method):
    name = "magnitude"
    about = "train, then prune by magnitude in steps of 10 % with fine-tuning after each (Han et al.)"
    structures: ClassVar[tuple[str, ...]] = ("weight",)
    settings = {
        "tune_epochs": Setting(whole(0), "epochs of fine-tuning after each step of pruning (a twentieth of training)",
                               lambda spec: max(1, round(spec.recipe.epochs / 20)), "n"),
        "tune_rate": TUNE_RATE,
        "from": SOURCE,
    }  # fmt: skip

    def phases(self, spec: RunSpec) -> list[Phase]:
        tunes = [tuning(spec, spec.setting("tune_epochs"), f"tune {100 * p:g} %") for p in rates(spec.sparsity)]
        return [Phase("start", 0, training(spec).rate) if spec.setting("from") else training(spec), *tunes]

    def epochs_before(self, spec: RunSpec) -> int:
        return training(spec).epochs if spec.setting("from") else 0

    def check_source(self, spec: RunSpec, source: Finished, sites: Mapping[str, Site]) -> None:
        check_dense(spec, source)

    def begin_phase(self, run: Replica, phase: int) -> None:
        if phase == 0:
            if run.source is not None:
                run.load(run.source)
            return
        sparsity = rates(run.spec.sparsity)[phase - 1]
        for name, site in run.sites.items():
            run.hold(name, largest(self.score(run.weights[name], site), site, sparsity, run.masks[name]))

    def score(self, weight: Tensor, site: Site) -> Tensor:
        """Of each neighbourhood; the lowest are pruned."""
        return site.structure.rows(weight).abs().sum(1)


def check_dense(spec: RunSpec, source: Finished) -> None:
    """The source must be what the run would have trained itself: its epochs count as this run's."""
    mine = f"dense {spec.model} on {spec.data} of {training(spec).epochs} epochs"
    other = source.spec
    found = f"{other.method} {other.model} on {other.data} of {other.total_epochs} epochs"
    if found != mine:
        raise UserError(f"method {spec.method!r} would start from a {mine}, but {spec.setting('from')} is a {found}")


def rates(sparsity: float) -> list[float]:
    """10, 20 … % up to the sparsity asked for, which is the last.

    >>> rates(0.35)
    [0.1, 0.2, 0.3, 0.35]
    """
    return [k / 10 for k in range(1, 10) if k / 10 < sparsity] + [sparsity]


def largest(scores: Tensor, site: Site, sparsity: float, left: Tensor | None = None) -> Tensor:
    """The mask of a layer that keeps the neighbourhoods with the largest scores, as many as the converged mask does.

    ``left`` is the layer's mask so far: what it has pruned stays pruned, whatever the scores.
    """
    scores = scores.detach().cpu()
    if left is not None:
        scores = scores.masked_fill(~site.structure.rows(left.cpu())[:, 0], -1)
    kept = keep_largest(scores, kept_count(sparsity, site.count))
    return site.structure.unrows(kept[:, None].expand(-1, site.size), site.shape)
