"""Han et al. 2015: train; then prune the smallest weights to 10, 20 … 90 %, with n epochs of fine-tuning after each."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from ...budgets import Budget
from ...checks import whole
from ...site import Site
from ...targets import Targets, site_shares
from ...threshold import keep_largest, kept_count
from .after_training import SOURCE, TUNE_RATE, AfterTraining
from .method import Phase, Setting, tuning

if TYPE_CHECKING:
    from ..replica import Replica
    from ..spec import RunSpec


class Magnitude(AfterTraining):
    name = "magnitude"
    about = "train, then prune by magnitude in steps of 10 % with fine-tuning after each (Han et al.)"
    structures: ClassVar[tuple[str, ...]] = ("weight",)
    settings = {
        "tune_epochs": Setting(
            whole(0),
            "epochs of fine-tuning after each step of pruning (a twentieth of training)",
            lambda spec: max(1, round(spec.recipe.epochs / 20)),
            "n",
        ),
        "tune_rate": TUNE_RATE,
        "from": SOURCE,
    }

    def tunes(self, spec: RunSpec) -> list[Phase]:
        return [tuning(spec, spec.setting("tune_epochs"), f"tune {100 * p:g} %") for p in rates(spec.sparsity)]

    def prune(self, run: Replica, step: int) -> None:
        sparsity = rates(run.spec.sparsity)[step]
        for name, site in run.sites.items():
            run.hold(name, largest(self.score(run.weights[name], site), site, sparsity, run.masks[name]))

    def score(self, weight: Tensor, site: Site) -> Tensor:
        """Of each neighbourhood; the lowest are pruned."""
        return site.rows(weight).abs().sum(1)


def rates(sparsity: float) -> list[float]:
    """10, 20 … % up to the sparsity asked for, which is the last.

    >>> rates(0.35)
    [0.1, 0.2, 0.3, 0.35]
    """
    return [k / 10 for k in range(1, 10) if k / 10 < sparsity] + [sparsity]


def largest(scores: Tensor, site: Site, sparsity: float, left: Tensor | None = None) -> Tensor:
    """The mask of a layer that keeps the neighbourhoods with the largest scores, as many as the converged mask does.

    Args:
        scores: of the neighbourhoods.
        site: the layer.
        sparsity: the fraction to remove.
        left: the layer's mask so far: what it has pruned stays pruned, whatever the scores.
    """
    scores = scores.detach().cpu()
    if left is not None:
        scores = scores.masked_fill(~site.rows(left.cpu())[:, 0], -1)
    kept = keep_largest(scores, kept_count(sparsity, site.count))
    return site.unrows(kept[:, None].expand(-1, site.size))


def share_largest(run: Replica, sparsity: float, allocation: str, back: bool = True) -> None:
    """Gives every layer the mask of its largest neighbourhoods, at its share of the network's sparsity.

    Args:
        run: whose layers.
        sparsity: of the network.
        allocation: how layers share it (:mod:`gibbsprune.budgets`).
        back: whether what has been pruned may come back.
    """
    weights, masks = run.weights, run.masks
    means = {
        name: site.means(weights[name] if back else weights[name] * masks[name]) for name, site in run.sites.items()
    }
    given = sparsity if allocation == "uniform" else Budget(sparsity, allocation=allocation)
    shared = Targets(given, site_shares(run.sites)).at(0, lambda: list(means.values()))
    for name, site in run.sites.items():
        run.hold(name, largest(means[name], site, shared[name], None if back else masks[name]))
