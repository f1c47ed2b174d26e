"""Held-out search: what masked weights may learn, where a batch norm stands behind them; ResNet-8 on digits, on a CPU.

    gibbsprune sweep run results/explore/outputs.py --results build/outputs --work runs/outputs --at-most 32
    python results/explore/outputs.py build/outputs > results/explore/outputs.json

SGD, a decay of 3e-4, 40 epochs, 400 of the training images held out. At zero temperature, survivors shrunk, one
threshold: gradients straight through, and in proportion to what an output has left. Beside them gradual pruning with
one threshold and, of neighbourhoods of several weights, masks that are drawn.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gibbsprune.training import RECIPES, RunSpec

RECIPE = RECIPES["best"].replace(epochs=40, batch=64, weight_decay=3e-4, shift=1, flip=False, anneal_epochs=25)
DRAWN = RECIPE.replace(law="annealed")
WEIGHTS = {"weight": (0.9, 0.95, 0.98, 0.99, 0.995)}
PATTERNS = {"2:4": (0.5,), "1:4": (0.75,), "at-most-3": (0.75,)}
LARGER = {"filter": (0.75, 0.875), "column": (0.75,), "kernel": (0.9, 0.95), "1x4": (0.95,), "4x4": (0.9,)}
WAYS: list[tuple[str, Any, dict[str, Any]]] = [
    ("gibbs", RECIPE, {"gradient": "straight-through", "survivors": "shrunk"}),
    ("gibbs", RECIPE, {"gradient": "proportional", "survivors": "shrunk"}),
    ("gibbs", RECIPE, {"gradient": "proportional", "survivors": "whole"}),
    ("gradual", DRAWN, {"until": 0.8, "allocation": "global"}),
    ("gibbs", DRAWN, {"units": "threshold"}),
]


def runs() -> Iterable[RunSpec]:
    for seeds, cells, ways in ((6, WEIGHTS, WAYS[:2] + WAYS[3:4]), (4, LARGER, WAYS), (4, PATTERNS, WAYS[:2])):
        for seed in range(seeds):
            for structure, sparsities in cells.items():
                for sparsity in sparsities:
                    for method, recipe, settings in ways:
                        yield RunSpec(
                            "digits:heldout=400", "resnet8", method, structure, sparsity=sparsity, recipe=recipe,
                            seed=seed, settings=settings,
                        )  # fmt: skip


def told(folder: Path) -> Iterable[dict[str, Any]]:
    """What the runs were and what came out, without what all of them share."""
    for file in sorted(folder.glob("*.json")):
        result = json.loads(file.read_text())
        spec = result["spec"]
        yield {
            **{
                name: spec[name]
                for name in ("data", "method", "structure", "hamiltonian", "sparsity", "seed", "settings")
            },
            **{name: spec["recipe"][name] for name in ("law", "epochs", "beta_start", "beta_end")},
            **{name: result[name] for name in ("accuracy", "accuracy_recalibrated")},
            "kept": {layer["name"]: layer["kept"] for layer in result["layers"]},
        }


if __name__ == "__main__":
    print("[" + ",\n ".join(json.dumps(row) for row in told(Path(sys.argv[1]))) + "]")
