"""Held-out search: what survivors may lose where batch norms have little time to follow; ResNet-8 on digits, a CPU.

    python results/explore/short.py [whole shrunk …] > results/explore/short.json

The law `rising`, with survivors whole, shrunk, and rescaled, which here differs in the two projections alone: no norm
follows them; single weights share one threshold alone, as they did by default. *balanced*: the law as it is by default.
*Trained*: networks that had learnt the
digits in 25 epochs are pruned in 4, 8 or 16 more of 18 steps each, with the recipe `digits`; 288 of the training images
held out. *New*: SGD and the decay of `best`, 40 epochs of new networks; 400 images held out.
"""

import io
import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from gibbsprune.training import RECIPES, RunSpec, run
from gibbsprune.training.progress import PlainProgress
from gibbsprune.training.spec import scale_recipe

KINDS, SEEDS = ("whole", "shrunk", "rescaled", "balanced"), range(4)
LENGTHS, SPARSITIES = (4, 8, 16), (0.9, 0.95, 0.98)
NEW = RECIPES["best"].replace(epochs=40, batch=64, shift=1, flip=False, anneal_epochs=25)
CELLS = (("weight", 0.98), ("weight", 0.99), ("kernel", 0.95), ("filter", 0.875))


def trained(spec: RunSpec, folder: Path) -> dict[str, Any]:
    """Its accuracy with the statistics that training left, and with those estimated anew."""
    result = run.start([spec], folder, "cpu", progress=PlainProgress(io.StringIO())).results[0]
    accuracy = result.get("lagged", result)["accuracy"]
    return {"accuracy": round(accuracy, 4), "accuracy_recalibrated": round(result["accuracy_recalibrated"], 4)}


def settings(kind: str, structure: str) -> dict[str, Any]:
    if kind == "balanced":
        return {"survivors": "whole" if structure == "filter" else "rescaled", "allocation": "balanced"}
    return {"survivors": kind, **({"allocation": "global"} if structure == "weight" else {})}


def rows(home: Path, kinds: Sequence[str]) -> Iterable[dict[str, Any]]:
    for seed in SEEDS:
        dense = home / f"dense-{seed}"
        spec = RunSpec("digits:heldout=288", "resnet8", "dense", seed=seed)
        yield {"start": "dense", "sparsity": 0.0, "epochs": spec.epochs, "seed": seed, **trained(spec, dense)}
        for epochs in LENGTHS:
            recipe = scale_recipe(RECIPES["digits"], epochs).replace(law="rising")
            for sparsity in SPARSITIES:
                for kind in kinds:
                    told = {"start": "trained", "structure": "weight", "sparsity": sparsity, "epochs": epochs}
                    spec = RunSpec(
                        "digits:heldout=288", "resnet8", sparsity=sparsity, recipe=recipe, seed=seed,
                        settings={**settings(kind, "weight"), "from": str(dense)},
                    )  # fmt: skip
                    yield {**told, "survivors": kind, "seed": seed, **trained(spec, home / spec.name())}
        for structure, sparsity in CELLS:
            for kind in kinds:
                told = {"start": "new", "structure": structure, "sparsity": sparsity, "epochs": NEW.epochs}
                spec = RunSpec(
                    "digits:heldout=400", "resnet8", "gibbs", structure, sparsity=sparsity, recipe=NEW, seed=seed,
                    settings=settings(kind, structure),
                )  # fmt: skip
                yield {**told, "survivors": kind, "seed": seed, **trained(spec, home / spec.name())}


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        print("[" + ",\n ".join(json.dumps(row) for row in rows(Path(folder), sys.argv[1:] or KINDS)) + "]")
