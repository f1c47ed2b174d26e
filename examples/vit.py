"""A small vision transformer on CIFAR-10, trained and pruned to 80 and 90 %, three seeds: a network and a sweep.

    gibbsprune sweep run examples/vit.py --results results/vit --device cuda

It is trained dense, by the law ``rising``, by Gibbs pruning with a temperature (a sparsity that rises, one threshold
for the network, straight-through gradients) and by gradual magnitude pruning with one threshold and the same ramp.
Beside this file the network alone is ``--model vit:make``.

Patches of 4 × 4 pixels, width 192, six blocks of six heads, 1.8 million weights. It is written so that a fleet can fuse
several runs into one network: queries, keys and values are layers of their own, heads and norms are cut from the last
dimension by their size, and norms and positions have no parameters; runs are then more heads of the same network.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gibbsprune.training import RunSpec
from gibbsprune.training.recipes import recipe
from gibbsprune.training.spec import scale_recipe

RAMP: dict[str, Any] = {"allocation": "global", "until": 0.8}
METHODS: list[tuple[str, str, dict[str, Any]]] = [
    ("gibbs", "rising", {}),
    ("gradual", "annealed", RAMP),
    ("gibbs", "annealed", {**RAMP, "ramp": "cubic", "units": "threshold", "gradient": "straight-through"}),
]


class Norm(nn.Module):
    """Each token's ``width`` channels to mean 0 and variance 1."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.unflatten(-1, (-1, self.width)), (self.width,)).flatten(-2)


class Block(nn.Module):
    """Attention, then two dense layers, each added to what comes in."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.size = width // heads
        self.norm, self.norm2 = Norm(width), Norm(width)
        self.query, self.key, self.value, self.mix = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        heads = [part(y).unflatten(-1, (-1, self.size)).transpose(1, 2) for part in (self.query, self.key, self.value)]
        x = x + self.mix(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ViT(nn.Module):
    """Patches, positions, blocks, the mean over tokens, classes."""

    def __init__(self, classes: int, channels: int, patch: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.width = width
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.blocks = nn.Sequential(*(Block(width, heads, 2 * width) for _ in range(depth)))
        self.norm, self.head = Norm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x)
        places = _places(x.shape[2], x.shape[3], self.width, x)
        x = x.flatten(2).transpose(1, 2)
        x = (x.unflatten(-1, (-1, self.width)) + places[:, None]).flatten(-2)
        return self.head(self.norm(self.blocks(x)).mean(1))


def _places(rows: int, columns: int, width: int, like: Tensor) -> Tensor:
    """Sines and cosines of each token's row and column, (tokens, width)."""
    rates = 100.0 ** -torch.linspace(0, 1, width // 4, device=like.device)
    turns = [torch.arange(n, device=like.device)[:, None] * rates for n in (rows, columns)]
    row, column = (torch.cat([turn.sin(), turn.cos()], 1) for turn in turns)
    grid = torch.cat([row[:, None].expand(-1, columns, -1), column[None].expand(rows, -1, -1)], 2)
    return grid.flatten(0, 1).to(like.dtype)


def make(classes: int, channels: int) -> nn.Module:
    """For images of 32 × 32, or any other multiple of 4."""
    return ViT(classes, channels, patch=4, width=192, depth=6, heads=6)


def tiny(classes: int, channels: int) -> nn.Module:
    """For images of 8 × 8, to try it on a CPU."""
    return ViT(classes, channels, patch=2, width=32, depth=2, heads=4)


def runs() -> Iterator[RunSpec]:
    """The sweep."""
    return trainings("cifar10", "vit:make", epochs=100)


def trainings(data: str, model: str, epochs: int) -> Iterator[RunSpec]:
    """AdamW with cosine decay after three epochs of warming up; weights decay by 0.05 times the learning rate."""
    how = scale_recipe(recipe("modern"), epochs).replace(
        optimizer="adamw", lr=1e-3, weight_decay=0.05, warmup_epochs=3, warmup_lr=2e-4, shift=4
    )
    for seed in range(3):
        yield RunSpec(data, model, method="dense", recipe=how, seed=seed)
        for sparsity in (0.8, 0.9):
            for method, law, settings in METHODS:
                yield RunSpec(
                    data, model, method, sparsity=sparsity, recipe=how.replace(law=law), seed=seed, settings=settings
                )
