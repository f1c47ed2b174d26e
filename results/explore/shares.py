"""Held-out search: how layers share a sparsity under the law `rising`: by one threshold, by LAMP, or equally.

    gibbsprune sweep run results/explore/shares.py --results results/explore/shares --work runs/explore

With one threshold and much decay a layer may die at 98 % (decay.txt, which has the runs with one threshold), and layers
of unlike scale are compared with each other; LAMP compares a weight with those of its own layer alone. Kernels and
filters are beside the law with a temperature.
"""

from collections.abc import Iterable
from typing import Any

from gibbsprune.training import RECIPES, RunSpec
from gibbsprune.training.spec import scale_recipe

EPOCHS, SEEDS = 60, (0, 1)


def run(sparsity: float, seed: int, structure: str = "weight", law: str = "rising", **settings: Any) -> RunSpec:
    short = scale_recipe(RECIPES["best"], EPOCHS).replace(law=law)
    return RunSpec(
        "cifar10:heldout=5000", "resnet20", structure=structure, sparsity=sparsity, recipe=short, seed=seed,
        settings=settings,
    )  # fmt: skip


def runs() -> Iterable[RunSpec]:
    for structure, sparsity in (("kernel", 0.9), ("filter", 0.75)):
        ways: list[dict[str, Any]] = [
            {},
            {"allocation": "lamp"},
            {"allocation": "uniform"},
            {"law": "annealed", "units": "threshold"},
        ]
        for way in ways:
            yield from (run(sparsity, seed, structure, **way) for seed in SEEDS)
    for sparsity in (0.98, 0.95, 0.9):
        yield from (run(sparsity, seed, allocation="lamp") for seed in SEEDS)
