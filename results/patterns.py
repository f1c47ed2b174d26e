"""Patterns beside single weights, and patterns drawn beside patterns chosen by magnitude: ResNet-20 on CIFAR-10.

    gibbsprune sweep run results/patterns.py --results results/patterns

2:4 at 50 %; 1:4, tiles of 1×4 and at most 3 of a kernel at 75 %; beside each of them single weights of the same
sparsity. Every convolution but the first is pruned, which is every one with at least 4 input channels. By Gibbs
pruning, by gradual magnitude pruning, and by the largest of each step with straight-through gradients (feedback), all
with the recipe modern and 200 epochs, three seeds. The seeds come one after another, so that a sweep that is cut has
whole comparisons; the dense network last.
"""

from collections.abc import Iterable

from gibbsprune.training import RunSpec
from gibbsprune.training.recipes import RECIPES

PATTERNS = {"2:4": 0.5, "1:4": 0.75, "1x4": 0.75, "at-most-3": 0.75}
METHODS = {"gibbs": {"units": "threshold"}, "gradual": {}, "feedback": {}}
SEEDS = (0, 1, 2)


def runs() -> Iterable[RunSpec]:
    cells = [*PATTERNS.items(), *(("weight", sparsity) for sparsity in sorted(set(PATTERNS.values())))]
    for seed in SEEDS:
        for method, settings in METHODS.items():
            for structure, sparsity in cells:
                yield run(method, seed, structure, sparsity, settings)
    for seed in SEEDS:
        yield run("dense", seed)


def run(
    method: str, seed: int, structure: str = "weight", sparsity: float | None = None, settings: dict | None = None
) -> RunSpec:
    own = {} if sparsity is None else {"sparsity": sparsity, "settings": settings}
    return RunSpec("cifar10", "resnet20", method, structure, recipe=RECIPES["modern"], seed=seed, **own)
