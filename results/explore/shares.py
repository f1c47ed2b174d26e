"""Held-out search: what masked weights may learn and how layers share a sparsity under the law `rising`, on CIFAR-10.

    gibbsprune sweep run results/explore/shares.py --results results/explore/shares --work runs/explore --at-most 26

On digits the gradient in proportion to what an output has left keeps weights alive where straight-through gradients
let a network collapse, and nothing has to fade (outputs.json). Is it as good where those do well, and does it bear the
decay of 5e-4 with which those collapsed at 98 % (decay.txt)? LAMP, which compares a weight with those of its own layer
alone, is beside it at 98 %; kernels and filters beside gradual pruning with one threshold and the law with a
temperature.
"""

from collections.abc import Iterable
from typing import Any

from gibbsprune.training import RECIPES, RunSpec
from gibbsprune.training.spec import scale_recipe

EPOCHS, SEEDS = 60, (0, 1)
FADING = {0.9: 1.8e-4, 0.95: 3.8e-4, 0.98: 9.8e-4}


def run(
    sparsity: float,
    seed: int,
    structure: str = "weight",
    method: str = "gibbs",
    law: str = "rising",
    decay: float = 5e-4,
    **settings: Any,
) -> RunSpec:
    short = scale_recipe(RECIPES["best"], EPOCHS).replace(law=law, weight_decay=decay)
    return RunSpec(
        "cifar10:heldout=5000", "resnet20", method, structure, sparsity=sparsity, recipe=short, seed=seed,
        settings=settings,
    )  # fmt: skip


def runs() -> Iterable[RunSpec]:
    for sparsity in (0.98, 0.95, 0.9):
        fading = {"gradient": "straight-through", "fading": FADING[sparsity], "decay": 3e-4}
        ways: list[dict[str, Any]] = [fading, {"decay": 3e-4}, {}]
        for way in [*ways, {"decay": 3e-4, "allocation": "lamp"}] if sparsity == 0.98 else ways:
            yield from (run(sparsity, seed, **way) for seed in SEEDS)
    for structure, sparsity in (("kernel", 0.9), ("filter", 0.75)):
        gradual = {"method": "gradual", "until": 0.8, "allocation": "global"}
        one = {"allocation": "global"}  # as the law had it then
        for way in (one, one | {"until": 0.8}, gradual, {"law": "annealed", "units": "threshold"}):
            yield from (run(sparsity, seed, structure, **way) for seed in SEEDS)
