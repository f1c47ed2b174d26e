"""Held-out search: what keeps the layers of a deep network alive under the law `rising`; ResNet-56 on CIFAR-10.

    gibbsprune sweep run results/explore/deep.py --results results/explore/deep --work runs/explore --at-most 20

On the test set some of its first blocks keep one weight per layer, and accuracy goes with them. Four ways against that:
batch norms without decay, which shrinks the scale of a block that is hardly needed and with it the gradient of its
weights; a floor under every layer, half of what the network keeps; shares by shape (ERK); less decay.
"""

from collections.abc import Iterable
from typing import Any

from gibbsprune.training import RECIPES, RunSpec
from gibbsprune.training.spec import scale_recipe

EPOCHS, SEEDS = 60, (0, 1)
SHORT = scale_recipe(RECIPES["best"], EPOCHS)


def run(sparsity: float, seed: int, recipe: dict[str, Any], settings: dict[str, Any]) -> RunSpec:
    return RunSpec(
        "cifar10:heldout=5000", "resnet56", "gibbs", sparsity=sparsity, recipe=SHORT.replace(**recipe), seed=seed,
        settings=settings,
    )  # fmt: skip


def runs() -> Iterable[RunSpec]:
    for sparsity in (0.98, 0.95):
        for seed in SEEDS:
            yield run(sparsity, seed, {}, {})
            yield run(sparsity, seed, {}, {"floor": (1 - sparsity) / 2})
            yield run(sparsity, seed, {}, {"allocation": "erk"})
    for sparsity in (0.98, 0.95):
        for seed in SEEDS:
            yield run(sparsity, seed, {"decay_on": "convolutions"}, {})
            yield run(sparsity, seed, {"weight_decay": 3e-4}, {})
    for seed in SEEDS:
        yield run(0.9, seed, {}, {})
        yield run(0.9, seed, {"decay_on": "convolutions"}, {})
