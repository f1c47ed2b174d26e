"""Held-out search: how layers share a sparsity under the law `rising`; ResNet-8 on digits, on a CPU.

    gibbsprune sweep run results/explore/balance.py --results build/balance --work runs/balance --at-most 32
    python results/explore/balance.py build/balance > results/explore/balance.json

SGD, the decay of `best`, 40 epochs, 400 of the training images held out: one threshold for the network, the same with
three quarters of its share by shape assured to every layer (`balanced` as it was first), and shares by shape alone
(ERK).
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gibbsprune.training import RECIPES, RunSpec

RECIPE = RECIPES["best"].replace(epochs=40, batch=64, shift=1, flip=False, anneal_epochs=25)
CELLS = {"weight": (0.95, 0.98, 0.99, 0.995), "kernel": (0.9, 0.95), "filter": (0.75, 0.875)}
ALLOCATIONS, SEEDS = ("global", "balanced", "erk"), range(4)


def runs() -> Iterable[RunSpec]:
    for seed in SEEDS:
        for structure, sparsities in CELLS.items():
            for sparsity in sparsities:
                for allocation in ALLOCATIONS:
                    yield RunSpec(
                        "digits:heldout=400", "resnet8", "gibbs", structure, sparsity=sparsity, recipe=RECIPE,
                        seed=seed, settings={"allocation": allocation},
                    )  # fmt: skip


def told(folder: Path) -> Iterable[dict[str, Any]]:
    """What the runs were and what came out, without what all of them share."""
    for file in sorted(folder.glob("*.json")):
        result = json.loads(file.read_text())
        spec = result["spec"]
        yield {
            **{name: spec[name] for name in ("structure", "sparsity", "seed")},
            "allocation": spec["settings"]["allocation"],
            **{name: result[name] for name in ("accuracy", "accuracy_recalibrated")},
            "kept": {layer["name"]: layer["kept"] for layer in result["layers"]},
        }


if __name__ == "__main__":
    print("[" + ",\n ".join(json.dumps(row) for row in told(Path(sys.argv[1]))) + "]")
