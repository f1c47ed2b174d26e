"""Held-out digits: the law `rising` beside masks that are drawn, with Adam, for every kind of neighbourhood; ResNet-8.

    gibbsprune sweep run results/explore/laws.py --results build/laws --work runs/laws --at-most 30
    python results/explore/outputs.py build/laws > results/explore/laws.json

The recipe `digits` as it is, 400 of the training images held out: each law as it is by default, drawn masks in units of
the threshold as the pruner draws them, and gradual pruning with one threshold beside them. Filters rise over shorter
parts of training, too.
"""

from collections.abc import Iterable
from typing import Any

from gibbsprune.training import RECIPES, RunSpec

CELLS = {
    "weight": (0.9, 0.98), "kernel": (0.9, 0.95), "filter": (0.75, 0.875), "column": (0.75,), "1x4": (0.9,),
    "4x4": (0.9,), "2:4": (0.5,),
}  # fmt: skip
DRAWN = RECIPES["digits"]
RISING = DRAWN.replace(law="rising")
WAYS: list[tuple[str, Any, dict[str, Any]]] = [
    ("gibbs", RISING, {}),
    ("gibbs", DRAWN, {"units": "threshold"}),
    ("gradual", DRAWN, {"until": 0.8}),
]
SOONER: list[tuple[str, Any, dict[str, Any]]] = [("gibbs", RISING, {"until": until}) for until in (0.7, 0.8)]


def runs() -> Iterable[RunSpec]:
    for seed in range(6):
        for structure, sparsities in CELLS.items():
            for sparsity in sparsities:
                for method, recipe, settings in [*WAYS, *(SOONER if structure == "filter" else [])]:
                    shared = {"allocation": "global"} if method == "gradual" and structure != "2:4" else {}
                    yield RunSpec(
                        "digits:heldout=400", "resnet8", method, structure, sparsity=sparsity, recipe=recipe,
                        seed=seed, settings=settings | shared,
                    )  # fmt: skip
