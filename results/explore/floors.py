"""Held-out search: a floor under every layer, the decay of the recipe, and how kernels and filters share a budget.

    gibbsprune sweep run results/explore/floors.py --results results/explore/floors --work runs/explore

With one threshold and much decay a layer may die at 98 % (decay.txt). A floor of a quarter of the share that is kept on
the whole would let none; whether masked weights must still fade then, and how much decay is best, is asked here.
"""

from collections.abc import Iterable
from typing import Any

from gibbsprune.training import RECIPES, RunSpec
from gibbsprune.training.spec import scale_recipe

EPOCHS, SEEDS, DECAYS = 60, (0, 1), (3e-4, 5e-4)


def run(decay: float, sparsity: float, seed: int, structure: str = "weight", method: str = "gibbs", **settings: Any):
    short = scale_recipe(RECIPES["best"], EPOCHS).replace(weight_decay=decay)
    return RunSpec(
        "cifar10:heldout=5000", "resnet20", method, structure=structure, sparsity=sparsity, recipe=short, seed=seed,
        settings=settings,
    )  # fmt: skip


def runs() -> Iterable[RunSpec]:
    for decay in DECAYS:
        for sparsity in (0.98, 0.95, 0.9):
            floor = round((1 - sparsity) / 4, 6)
            fadings: list[dict[str, Any]] = [{"fading": 0.0}, {}] if sparsity == 0.98 else [{"fading": 0.0}]
            for fading in fadings:
                yield from (run(decay, sparsity, seed, floor=floor, **fading) for seed in SEEDS)
    for structure, sparsity in (("kernel", 0.9), ("filter", 0.75)):
        floor = round((1 - sparsity) / 4, 6)
        ways: list[dict[str, Any]] = [{}, {"floor": floor}, {"allocation": "uniform"}]
        for way in [*ways, {"method": "gradual"}]:
            yield from (run(DECAYS[0], sparsity, seed, structure, **way) for seed in SEEDS)
