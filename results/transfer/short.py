"""The recipe `best` and its strongest rivals in ten epochs of Fashion-MNIST: a small ResNet, a CPU.

    python results/transfer/fashion_mnist.py /usr/share/datasets/fashion-mnist results/transfer/fashion_mnist.npz
    gibbsprune sweep run results/transfer/short.py --results results/transfer/short --work runs/short --at-most 1

Six minutes per run on one core. Settings are untouched.
"""

from collections.abc import Iterable

from gibbsprune.training import RECIPES, RunSpec
from gibbsprune.training.spec import scale_recipe

DATA, EPOCHS = "results/transfer/fashion_mnist.npz", 10
WAYS: tuple[tuple[str, dict[str, object]], ...] = (
    ("gibbs", {}),
    ("gradual", {"allocation": "global", "until": 0.8}),
    ("feedback", {"allocation": "global"}),
)


def runs() -> Iterable[RunSpec]:
    recipe = scale_recipe(RECIPES["best"], EPOCHS)
    for sparsity in (0.98, 0.95):
        for seed in (0, 1, 2):
            for method, settings in WAYS:
                yield RunSpec(DATA, "resnet8", method, sparsity=sparsity, recipe=recipe, seed=seed, settings=settings)
