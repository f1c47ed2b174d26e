"""Held-out search: how layers share a sparsity under the law `rising`: one threshold, one with a floor, LAMP, equally.

    gibbsprune sweep run results/explore/floors.py --results results/explore/floors --work runs/explore

With one threshold and much decay a layer may die at 98 % (decay.txt), and layers of unlike scale are compared with each
other. A floor of a quarter of the share that is kept on the whole would let none die; LAMP compares a weight with those
of its own layer alone. Kernels and filters are beside gradual pruning and the law with a temperature.
"""

from collections.abc import Iterable
from typing import Any

from gibbsprune.training import RECIPES, RunSpec
from gibbsprune.training.spec import scale_recipe

EPOCHS, SEEDS = 60, (0, 1)


def run(
    sparsity: float, seed: int, structure: str = "weight", method: str = "gibbs", law: str = "rising", **settings: Any
) -> RunSpec:
    short = scale_recipe(RECIPES["best"], EPOCHS).replace(law=law)
    return RunSpec(
        "cifar10:heldout=5000", "resnet20", method, structure=structure, sparsity=sparsity, recipe=short, seed=seed,
        settings=settings,
    )  # fmt: skip


def runs() -> Iterable[RunSpec]:
    for sparsity in (0.98, 0.95, 0.9):
        ways: list[dict[str, Any]] = [{}, {"allocation": "lamp"}]
        if sparsity > 0.9:
            ways.append({"floor": round((1 - sparsity) / 4, 6)})
        for way in ways:
            yield from (run(sparsity, seed, **way) for seed in SEEDS)
    for structure, sparsity in (("kernel", 0.9), ("filter", 0.75)):
        ways = [
            {},
            {"allocation": "lamp"},
            {"allocation": "uniform"},
            {"method": "gradual", "until": 0.8},
            {"law": "annealed", "units": "threshold"},
        ]
        for way in ways:
            yield from (run(sparsity, seed, structure, **way) for seed in SEEDS)
