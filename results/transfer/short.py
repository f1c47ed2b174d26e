"""The recipe `best` and its strongest rivals in ten epochs of Fashion-MNIST: a small ResNet and a VGG, a CPU.

    python results/transfer/fashion_mnist.py /usr/share/datasets/fashion-mnist results/transfer/fashion_mnist.npz
    gibbsprune sweep run results/transfer/short.py --results results/transfer/short --work runs/short --at-most 1

Six minutes per run of the ResNet on one core, twelve of the VGG. Settings are untouched; feedback, which collapses
with the decay of the recipe, has that of `modern`, too, and in the VGG that alone. The VGG is a network of one's own:
the law is as every such network has it.
"""

from collections.abc import Iterable

from gibbsprune.training import RECIPES, RunSpec
from gibbsprune.training.spec import scale_recipe

DATA, EPOCHS = "results/transfer/fashion_mnist.npz", 10
BEST, SMALL = RECIPES["best"], RECIPES["best"].replace(weight_decay=RECIPES["modern"].weight_decay)
WAYS = (
    ("gibbs", BEST, {}),
    ("gradual", BEST, {"allocation": "global", "until": 0.8}),
    ("feedback", SMALL, {"allocation": "global"}),
    ("feedback", BEST, {"allocation": "global"}),
)


def runs() -> Iterable[RunSpec]:
    for model, seeds, ways in (("resnet8", (0, 1, 2), WAYS), ("vgg:make", (0,), WAYS[:3])):
        for seed in seeds:
            for sparsity in (0.98, 0.95):
                for method, recipe, settings in ways:
                    yield RunSpec(
                        DATA, model, method, sparsity=sparsity, recipe=scale_recipe(recipe, EPOCHS), seed=seed,
                        settings=settings,
                    )  # fmt: skip
