"""Held-out digits: which Hamiltonian suits which pattern, and how layers share a sparsity; ResNet-8, on a CPU.

    gibbsprune sweep run results/explore/defaults.py --results build/defaults --work runs/defaults
    python results/explore/outputs.py build/defaults > results/explore/defaults.json

The recipe of outputs.py, 400 of the training images held out. Patterns are drawn, each Hamiltonian by its own schedule
of β, in units of the threshold where it has a field. Single weights are pruned by the law `rising` with proportional
gradients, so far that allocations matter.
"""

from collections.abc import Iterable
from typing import Any

from gibbsprune.hamiltonians import possible
from gibbsprune.structures import as_structure
from gibbsprune.training import RECIPES, RunSpec

RISING = RECIPES["best"].replace(epochs=40, batch=64, weight_decay=3e-4, shift=1, flip=False, anneal_epochs=25)
DRAWN = RISING.replace(law="annealed")
PATTERNS = {"2:4": 0.5, "1:4": 0.75, "at-most-3": 0.75, "1x4": 0.75, "4x4": 0.9, "column": 0.75}
SEEDS = range(4)


def run(structure: str, sparsity: float, seed: int, hamiltonian: str = "square", **settings: Any) -> RunSpec:
    return RunSpec(
        "digits:heldout=400", "resnet8", "gibbs", structure, hamiltonian, sparsity=sparsity,
        recipe=RISING if "allocation" in settings else DRAWN, seed=seed, settings=settings,
    )  # fmt: skip


def runs() -> Iterable[RunSpec]:
    for seed in SEEDS:
        for structure, sparsity in PATTERNS.items():
            for name in possible(as_structure(structure)):
                yield run(structure, sparsity, seed, name, **({} if name == "binary" else {"units": "threshold"}))
        for sparsity in (0.98, 0.99, 0.995):
            for allocation in ("global", "lamp", "erk"):
                yield run("weight", sparsity, seed, allocation=allocation)
