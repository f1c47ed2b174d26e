"""An l1 penalty whose λ is chosen on held-out training images, then the test-set runs with it.

    gibbsprune sweep run results/best/l1.py --results results/best --work runs/best

Short runs try λ on 5 000 of the training images; as soon as all of a recipe's are there, its λ of the best mean
accuracy is trained on all training images and tested on the test set. The paper's λ, 0.001, is among them.
"""

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from gibbsprune.training import RunSpec
from gibbsprune.training.recipes import RECIPES
from gibbsprune.training.spec import scale_recipe

PENALTIES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
TRIALS, EPOCHS, SEEDS = (0, 1), 60, (0, 1, 2)


def trial(recipe: str, penalty: float, seed: int) -> RunSpec:
    short = scale_recipe(RECIPES[recipe], EPOCHS)
    settings = {"penalty": penalty}
    return RunSpec("cifar10:heldout=5000", "resnet20", "l1", recipe=short, seed=seed, settings=settings)


def chosen(recipe: str, results: Mapping[str, dict[str, Any]]) -> float | None:
    """The λ of the best mean accuracy on held-out images; None as long as one is missing."""
    means = {}
    for penalty in PENALTIES:
        found = [results.get(trial(recipe, penalty, seed).name()) for seed in TRIALS]
        if None in found:
            return None
        means[penalty] = statistics.fmean(result["accuracy"] for result in found)
    return max(means, key=means.__getitem__)


def runs(results: Mapping[str, dict[str, Any]]) -> Iterable[RunSpec]:
    for recipe in ("modern", "paper"):
        yield from (trial(recipe, penalty, seed) for penalty in PENALTIES for seed in TRIALS)
        if (penalty := chosen(recipe, results)) is not None:
            for seed in SEEDS:
                yield RunSpec(
                    "cifar10", "resnet20", "l1", recipe=RECIPES[recipe], seed=seed, settings={"penalty": penalty}
                )
