"""Held-out search: the decay of the recipe, of masked weights, and how kernels and filters share a budget.

    gibbsprune sweep run results/explore/decay_and_structures.py --results results/explore/decay_and_structures
"""

from collections.abc import Iterable
from typing import Any

from gibbsprune.training import RunSpec
from gibbsprune.training.recipes import MODERN
from gibbsprune.training.spec import scale_recipe

SHRUNK = {
    "ramp": "cubic",
    "until": 0.9,
    "allocation": "global",
    "gradient": "straight-through",
    "survivors": "shrunk",
    "temperature": "zero",
}
GRADUAL = {"allocation": "global", "until": 0.8}
DECAYS = {
    3e-4: [
        ("gibbs", "weight", 0.9, {}),
        ("gibbs", "weight", 0.95, {}),
        ("gibbs", "weight", 0.98, {}),
        ("gibbs", "weight", 0.9, {"fading": 2e-4}),
        ("gibbs", "weight", 0.95, {"fading": 3e-4}),
        ("gibbs", "weight", 0.98, {"fading": 1e-3}),
        ("gibbs", "weight", 0.98, {"fading": 1e-3, "until": 0.8}),
        ("gradual", "weight", 0.95, GRADUAL),
        ("gradual", "weight", 0.9, GRADUAL),
        ("gradual", "weight", 0.98, GRADUAL),
        ("feedback", "weight", 0.95, {"allocation": "global"}),
        ("rigl", "weight", 0.95, {}),
        ("gibbs", "kernel", 0.9, {}),
        ("gibbs", "kernel", 0.9, {"allocation": "uniform"}),
        ("gibbs", "filter", 0.75, {}),
        ("gibbs", "filter", 0.75, {"allocation": "uniform"}),
    ],
    5e-4: [
        ("gibbs", "weight", 0.9, {}),
        ("gibbs", "weight", 0.95, {}),
        ("gibbs", "weight", 0.98, {}),
        ("gibbs", "weight", 0.98, {"fading": 1e-3}),
    ],
}


def runs() -> Iterable[RunSpec]:
    short = scale_recipe(MODERN, 60)
    for decay, kinds in DECAYS.items():
        for method, structure, sparsity, changes in kinds:
            settings: dict[str, Any] = {**(SHRUNK if method == "gibbs" else {}), **changes}
            for seed in (0, 1):
                yield RunSpec(
                    "cifar10:heldout=5000",
                    "resnet20",
                    method,
                    structure=structure,
                    sparsity=sparsity,
                    recipe=short.replace(weight_decay=decay),
                    seed=seed,
                    settings=settings,
                )
