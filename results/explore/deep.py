"""Held-out search: why the recipe `best` has no more of a ResNet-56 at 90 % than at 95 %, on CIFAR-10.

    gibbsprune sweep run results/explore/deep.py --results results/explore/deep --work runs/explore --at-most 18

Is it the decay (a dense network beside it says what that does without pruning), the gradient of masked weights, which
lets first layers die, or how layers share the sparsity?
"""

from collections.abc import Iterable
from typing import Any

from gibbsprune.training import RECIPES, RunSpec
from gibbsprune.training.spec import scale_recipe

EPOCHS, SEEDS = 60, (0, 1)
DECAYS = (3e-4, 5e-4)
CALM: dict[str, Any] = {"gradient": "proportional", "fading": 0.0}
WAYS: list[dict[str, Any]] = [{}, CALM, CALM | {"allocation": "lamp"}]


def run(sparsity: float, seed: int, decay: float = DECAYS[0], method: str = "gibbs", **settings: Any) -> RunSpec:
    short = scale_recipe(RECIPES["best"], EPOCHS).replace(weight_decay=decay)
    return RunSpec(
        "cifar10:heldout=5000", "resnet56", method, sparsity=sparsity, recipe=short, seed=seed, settings=settings
    )


def runs() -> Iterable[RunSpec]:
    for seed in SEEDS:
        for way in WAYS:
            yield from (run(sparsity, seed, **way) for sparsity in (0.9, 0.98))
        yield from (run(0.9, seed, DECAYS[1], **way) for way in WAYS[:2])
    yield from (run(0.9, SEEDS[0], decay, "dense") for decay in DECAYS)
