"""Held-out search: is a temperature worth anything where a network learns its images by heart? Few digits, a CPU.

    gibbsprune sweep run results/explore/scarce.py --results build/scarce --work runs/scarce --at-most 32
    python results/explore/outputs.py build/scarce > results/explore/scarce.json

ResNet-8 and the recipe `best` on 60 to 300 of the training images, the others held out. Masks that are drawn are noise,
as dropout is, which helps where there is little to learn from; on CIFAR-10 a ResNet-56 at 90 % has learnt its images,
too. So the law `rising` is beside the same with masks drawn at a temperature, in units of the threshold; all else is
equal: the ramp, one threshold, gradients, survivors.
"""

from collections.abc import Iterable
from typing import Any

from gibbsprune.training import RECIPES, Recipe, RunSpec

EPOCHS = 100
COLD = RECIPES["best"].replace(epochs=EPOCHS, batch=50, shift=1, flip=False, anneal_epochs=90)
WARM = COLD.replace(law="annealed")
RISING: dict[str, Any] = {
    "units": "threshold", "ramp": "cubic", "until": 0.9, "allocation": "global", "gradient": "proportional",
    "survivors": "shrunk",
}  # fmt: skip
TEMPERATURES = ((10, 10), (1, 1e3), (3, 1e4), (30, 1e4))
SPARSITIES, SEEDS = (0.8, 0.95), range(8)


def run(
    images: int, sparsity: float, seed: int, recipe: Recipe = COLD, method: str = "gibbs", **settings: Any
) -> RunSpec:
    return RunSpec(
        f"digits:heldout={1442 - images}", "resnet8", method, sparsity=sparsity, recipe=recipe, seed=seed,
        settings=settings,
    )  # fmt: skip


def warm(images: int, sparsity: float, seed: int, start: float, end: float) -> RunSpec:
    """The law `rising`, but that masks are drawn at a temperature."""
    recipe = WARM.replace(anneal="log", beta_start=start, beta_end=end)
    return run(images, sparsity, seed, recipe, **RISING)


def runs() -> Iterable[RunSpec]:
    for images in (100, 300):
        for seed in SEEDS:
            yield run(images, 0.9, seed, WARM, "dense")
            for sparsity in SPARSITIES:
                yield run(images, sparsity, seed)
                yield run(images, sparsity, seed, WARM, "gradual", until=0.8, allocation="global")
                yield run(images, sparsity, seed, WARM, units="threshold")
                yield from (warm(images, sparsity, seed, *ends) for ends in TEMPERATURES)
    # Asked of what the runs above suggest, on other seeds and other images.
    for images, seeds in ((100, range(8, 24)), (60, range(12)), (200, range(12))):
        for seed in seeds:
            for sparsity in (0.95, 0.98):
                yield run(images, sparsity, seed)
                yield from (warm(images, sparsity, seed, *ends) for ends in ((10, 10), (3, 1e4)))
