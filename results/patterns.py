"""Patterns beside single weights, and three ways to them: ResNet-20 on CIFAR-10.

    gibbsprune sweep run results/patterns.py --results results/patterns --at-most 18

2:4 at 50 %; 1:4, tiles of 1×4 and at most 3 of a kernel at 75 %; beside each of them single weights of the same
sparsity. Every convolution but the first is pruned, which is every one with at least 4 input channels. By drawn masks
whose temperature falls, by the law `rising` (the largest of each step, shrunk, here with straight-through gradients and
masked weights that fade), and by gradual magnitude pruning, all with the recipe best and a decay of 3e-4, cut to 60
epochs. The seeds come one after another, so that a sweep that is cut has whole comparisons; the dense network last.
"""

from collections.abc import Iterable
from typing import Any

from gibbsprune.training import RECIPES, RunSpec
from gibbsprune.training.spec import scale_recipe

PATTERNS = {"2:4": 0.5, "1:4": 0.75, "1x4": 0.75, "at-most-3": 0.75}
FADING = {0.5: 2e-5, 0.75: 6e-5}
METHODS: list[tuple[str, str, dict[str, Any]]] = [
    ("gibbs", "annealed", {"units": "threshold"}),
    ("gibbs", "rising", {"gradient": "straight-through"}),
    ("gradual", "annealed", {"until": 0.8}),
]
EPOCHS, SEEDS = 60, (0, 1, 2)


def runs() -> Iterable[RunSpec]:
    recipe = scale_recipe(RECIPES["best"], EPOCHS).replace(weight_decay=3e-4)
    cells = [*PATTERNS.items(), *(("weight", sparsity) for sparsity in sorted(set(PATTERNS.values())))]
    for seed in SEEDS:
        for method, law, settings in METHODS:
            how = recipe.replace(law=law)
            for structure, sparsity in cells:
                own: dict[str, Any] = {"fading": FADING[sparsity]} if law == "rising" else {}
                if law == "rising" and structure == "1x4":
                    own["allocation"] = "global"  # as the law had it then
                if method == "gradual" and structure in ("weight", "1x4"):
                    own = {"allocation": "global"}
                yield RunSpec(
                    "cifar10", "resnet20", method, structure, sparsity=sparsity, recipe=how, seed=seed,
                    settings=settings | own,
                )  # fmt: skip
    for seed in SEEDS:
        yield RunSpec("cifar10", "resnet20", "dense", recipe=recipe, seed=seed)
