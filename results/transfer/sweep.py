"""The recipe `best`, settings untouched, on another network and on other pictures, beside its strongest rivals.

    python results/transfer/fashion_mnist.py /usr/share/datasets/fashion-mnist results/transfer/fashion_mnist.npz
    gibbsprune sweep run results/transfer/sweep.py --results results/transfer --work runs/transfer

A VGG on CIFAR-10 and a ResNet-20 on Fashion-MNIST, which is left out where its file is not there.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gibbsprune.training import RECIPES, RunSpec

FASHION = Path(__file__).with_name("fashion_mnist.npz")
METHODS: dict[str, dict[str, Any]] = {
    "gibbs": {},
    "gradual": {"allocation": "global", "until": 0.8},
    "feedback": {"allocation": "global"},
}


def runs() -> Iterable[RunSpec]:
    tasks = [("cifar10", "vgg:make"), *([(os.path.relpath(FASHION), "resnet20")] if FASHION.exists() else [])]
    for seed in (0, 1, 2):
        for data, model in tasks:
            for sparsity in (0.95, 0.98):
                for method, settings in METHODS.items():
                    yield RunSpec(
                        data, model, method, sparsity=sparsity, recipe=RECIPES["best"], seed=seed, settings=settings
                    )
