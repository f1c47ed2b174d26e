"""Held-out digits: the law `rising` beside masks that are drawn, with Adam, for every kind of neighbourhood; ResNet-8.

    gibbsprune sweep run results/explore/laws.py --results build/laws --work runs/laws --at-most 30
    python results/explore/outputs.py build/laws > results/explore/laws.json

The recipe `digits` as it is, 400 of the training images held out: each law as it is by default, drawn masks in units of
the threshold as the pruner draws them, and gradual pruning with one threshold beside them. Filters rise over shorter
parts of training, too, and in trainings four times as long.
"""

from collections.abc import Iterable
from typing import Any

from gibbsprune.training import RECIPES, Recipe, RunSpec
from gibbsprune.training.spec import scale_recipe

CELLS = {
    "weight": (0.9, 0.98), "kernel": (0.9, 0.95), "filter": (0.75, 0.875), "column": (0.75,), "1x4": (0.9,),
    "4x4": (0.9,), "2:4": (0.5,),
}  # fmt: skip
RISING, DRAWN, GRADUAL = ("gibbs", "rising"), ("gibbs", "annealed"), ("gradual", "annealed")
SHORT = RECIPES["digits"]
LONG = scale_recipe(SHORT, 4 * SHORT.epochs)


def run(
    way: tuple[str, str], structure: str, sparsity: float, seed: int, recipe: Recipe = SHORT, **settings: Any
) -> RunSpec:
    method, law = way
    if way == DRAWN:
        settings |= {"units": "threshold"}
    if way == GRADUAL:
        settings |= {"until": 0.8} | ({} if structure == "2:4" else {"allocation": "global"})
    return RunSpec(
        "digits:heldout=400", "resnet8", method, structure, sparsity=sparsity, recipe=recipe.replace(law=law),
        seed=seed, settings=settings,
    )  # fmt: skip


def runs() -> Iterable[RunSpec]:
    for seed in range(6):
        for structure, sparsities in CELLS.items():
            for sparsity in sparsities:
                yield from (run(way, structure, sparsity, seed) for way in (RISING, DRAWN, GRADUAL))
        for sparsity in CELLS["filter"]:
            for recipe in (SHORT, LONG):
                yield from (run(RISING, "filter", sparsity, seed, recipe, until=until) for until in (0.7, 0.8))
            yield from (run(way, "filter", sparsity, seed, LONG) for way in (RISING, GRADUAL))
