"""A bench for methods: networks small enough to compute by hand, and fleets of them on a few digits."""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gibbsprune import data
from gibbsprune.data.arrays import Arrays
from gibbsprune.training.fleet import Fleet
from gibbsprune.training.recipes import RECIPES
from gibbsprune.training.replica import Replica
from gibbsprune.training.spec import RunSpec

RECIPE = RECIPES["digits"].replace(optimizer="sgd", lr=0.02, batch=32, epochs=2, anneal_epochs=2, lr_schedule="steps")
TINY, SMALL = "method_bench:tiny", "method_bench:small"


class Tiny(nn.Module):
    """One prunable layer, ``second``: 5 filters of 2 kernels of 2 weights."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 2, 3, stride=2)
        self.second = nn.Conv2d(2, 5, (1, 2), bias=False)
        self.dense = nn.Linear(5, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(F.gelu(self.second(F.gelu(self.first(x)))).mean((2, 3)))


class Small(nn.Module):
    """Three convolutions with batch norm and smooth activations; two of them are prunable."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 8, 3, stride=2, padding=1, bias=False)
        self.second = nn.Conv2d(8, 12, 3, padding=1, bias=False)
        self.third = nn.Conv2d(12, 16, 3, stride=2, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(12), nn.BatchNorm2d(16)])
        self.dense = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip((self.first, self.second, self.third), self.norms):
            x = F.gelu(norm(layer(x)))
        return self.dense(x.mean((2, 3)))


def tiny(classes: int, channels: int) -> nn.Module:
    return Tiny(classes, channels)


def small(classes: int, channels: int) -> nn.Module:
    return Small(classes, channels)


def few(images: int = 320) -> Arrays:
    """The first digits."""
    whole = data.load("digits")
    train = {"x_train": whole.x_train[:images], "y_train": whole.y_train[:images]}
    return dataclasses.replace(whole, **train, x_test=whole.x_test[:100], y_test=whole.y_test[:100])


def spec(method: str, structure: str = "weight", **options) -> RunSpec:
    return RunSpec(**{"model": TINY, "method": method, "structure": structure, "recipe": RECIPE, **options})


def replica(method: str, structure: str = "weight", weight: Tensor | None = None, **options) -> Replica:
    """One untrained run, with ``weight`` in the prunable layer of the tiny network."""
    run = Fleet([spec(method, structure, **options)], few(32)).engines[0].replicas[0]
    if weight is not None:
        with torch.no_grad():
            run.weights["second"].copy_(weight)
    return run


def kept(run: Replica, layer: str = "second") -> list[int]:
    """Which weights a layer's mask keeps, by their place in the tensor."""
    return run.masks[layer].flatten().nonzero().flatten().tolist()
