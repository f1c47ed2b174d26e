"""Held-out search: what a deep network needs under the law `rising`; ResNet-56 on CIFAR-10.

    gibbsprune sweep run results/explore/deep.py --results results/explore/deep --work runs/explore --at-most 20

On the test set some of its first blocks keep one weight per layer, and accuracy goes with them. Against that: three
quarters of an equal share assured to every layer (`balanced`; the two projections keep their strength, too: that is
the law as other networks have it by default), or shares by shape alone (ERK); batch norms without decay, which shrinks
the scale of a block that is hardly needed and with it the gradient of its weights. At 90 % nothing dies, and the
network learns its training images by heart: does more decay help, and how does feedback fare?
"""

from collections.abc import Iterable
from typing import Any

from gibbsprune.training import RECIPES, RunSpec
from gibbsprune.training.spec import scale_recipe

EPOCHS, SEEDS = 60, (0, 1)
SHORT = scale_recipe(RECIPES["best"], EPOCHS)
BALANCED: dict[str, Any] = {"allocation": "balanced", "survivors": "rescaled"}


def run(
    sparsity: float, seed: int, method: str = "gibbs", recipe: dict[str, Any] | None = None, **settings: Any
) -> RunSpec:
    return RunSpec(
        "cifar10:heldout=5000", "resnet56", method, sparsity=sparsity, recipe=SHORT.replace(**recipe or {}), seed=seed,
        settings=settings,
    )  # fmt: skip


def runs() -> Iterable[RunSpec]:
    for seed in SEEDS:
        for sparsity in (0.98, 0.95):
            yield run(sparsity, seed)
            yield run(sparsity, seed, **BALANCED)
            yield run(sparsity, seed, allocation="erk")
        yield run(0.9, seed)
        yield run(0.9, seed, **BALANCED)
        yield from (run(sparsity, seed, "feedback", allocation="global") for sparsity in (0.95, 0.9))
    for seed in SEEDS:
        yield from (run(sparsity, seed, recipe={"decay_on": "convolutions"}) for sparsity in (0.98, 0.95, 0.9))
    for seed in SEEDS:
        yield from (run(sparsity, seed, recipe={"weight_decay": 1e-3}) for sparsity in (0.95, 0.9))
