"""Held-out search: what the recipe `best` should be for a small and for a deep network; ResNet-20 and -56 on CIFAR-10.

    gibbsprune sweep run results/explore/recipe.py --results results/explore/recipe --work runs/explore --autotune

On the test set some first blocks of a ResNet-56 keep one weight per layer, and accuracy goes with them; at 90 % nothing
dies, but the network learns its training images by heart. Against the first: three quarters of an equal share assured
to every layer and strength given back to the two that no norm follows (`balanced`, `rescaled`: the law as other
networks have it by default). Against the second: a hidden square in every training image (cutout). One threshold alone
is with ResNet-20 in shares.py, of the same settings and seeds. Balanced and rescaled cost ResNet-20 accuracy: which of
the two does is asked last.
"""

from collections.abc import Iterable
from typing import Any

from gibbsprune.training import RECIPES, RunSpec
from gibbsprune.training.spec import scale_recipe

EPOCHS, SEEDS, SPARSITIES = 60, (0, 1), (0.98, 0.95, 0.9)
SHORT = scale_recipe(RECIPES["modern"], EPOCHS).replace(name="best", law="rising", weight_decay=5e-4)
ONE: dict[str, Any] = {"allocation": "global", "survivors": "shrunk"}
BALANCED: dict[str, Any] = {"allocation": "balanced", "survivors": "rescaled"}


def run(model: str, sparsity: float, seed: int, cutout: int = 0, **settings: Any) -> RunSpec:
    return RunSpec(
        "cifar10:heldout=5000", model, sparsity=sparsity, recipe=SHORT.replace(cutout=cutout), seed=seed,
        settings=settings,
    )  # fmt: skip


def runs() -> Iterable[RunSpec]:
    small, deep = "resnet20", "resnet56"
    for seed in SEEDS:
        for sparsity in SPARSITIES:
            yield run(deep, sparsity, seed, **ONE)
            yield run(deep, sparsity, seed, **BALANCED)
            yield run(small, sparsity, seed, **BALANCED)
        yield from (run(deep, sparsity, seed, 8, **BALANCED) for sparsity in (0.95, 0.9))
        yield run(small, 0.9, seed, 8, **BALANCED)
    for seed in SEEDS:
        for sparsity in SPARSITIES:
            yield run(small, sparsity, seed, allocation="balanced", survivors="shrunk")
            yield run(small, sparsity, seed, allocation="global", survivors="rescaled")
