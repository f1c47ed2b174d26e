"""Short trainings whose batch norms lag behind the sparsity: with what training left of statistics, and estimated anew.

    gibbsprune sweep run results/explore/lagging.py --results results/explore/lagging --work runs/explore

ResNet-8 on digits, the law `rising` as it is by default, a CPU; `lagged` is the accuracy with the former.
"""

from collections.abc import Iterable

from gibbsprune.training import RECIPES, RunSpec
from gibbsprune.training.spec import scale_recipe

LAG = ((5, 64, 0.9), (10, 128, 0.95), (16, 256, 0.95), (8, 64, 0.98))  # epochs, images in a batch, sparsity


def runs() -> Iterable[RunSpec]:
    for epochs, batch, sparsity in LAG:
        recipe = scale_recipe(RECIPES["digits"], epochs).replace(batch=batch)
        yield from (RunSpec(model="resnet8", sparsity=sparsity, recipe=recipe, seed=seed) for seed in range(8))
