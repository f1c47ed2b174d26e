"""Held-out search: how layers of unlike scales share a sparsity under the law `rising`; four networks on digits, a CPU.

    python results/explore/scales.py 0 1 2 > results/explore/scales.json

Convolutions with and without batch norms, dense layers, a small ViT; as they are made, and with the weights of each
layer times 10^u, u from -1 to 1. Adam, 20 epochs, tested on 400 of the training images held out. Layers share by one
threshold, by one with a floor under every layer (a quarter or half of what the network keeps), by one with half or
three quarters of its share by shape assured to each (the second is `balanced` as it was first; now it assures of an
equal share), by shape alone (`erk`), or equally (`uniform`).
"""

import json
import sys
from collections.abc import Callable, Iterable
from itertools import pairwise

import torch
from torch import Tensor, nn

import gibbsprune as gp
from gibbsprune import budgets
from gibbsprune.data import load

EPOCHS, BATCH, RATE, HELD_OUT = 20, 64, 3e-3, 400
CELLS = (("weight", 0.95), ("weight", 0.98), ("filter", 0.75))
FLOORS = {"global": 0.0, "floor 1/4": 0.25, "floor 1/2": 0.5}
ASSURED = {"balanced 1/2": 0.5, "balanced": 0.75}
WAYS = (*FLOORS, *ASSURED, "erk", "uniform")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.n1 = nn.LayerNorm(width)
        self.at = nn.MultiheadAttention(width, 4, batch_first=True)
        self.n2 = nn.LayerNorm(width)
        self.a, self.b = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.n1(x)
        x = x + self.at(normed, normed, normed, need_weights=False)[0]
        return x + self.b(torch.relu(self.a(self.n2(x))))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e = nn.Conv2d(1, 32, 2, 2)
        self.p = nn.Parameter(0.02 * torch.randn(1, 16, 32))
        self.blocks = nn.Sequential(*(Block(32) for _ in range(3)))
        self.n, self.h = nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.e(x).flatten(2).transpose(1, 2) + self.p
        return self.h(self.n(self.blocks(x)).mean(1))


def convolutions(normed: bool) -> nn.Module:
    layers: list[nn.Module] = []
    inputs = 1
    for outputs, stride in ((16, 1), (32, 1), (32, 2), (64, 1), (64, 2)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride, 1), *([nn.BatchNorm2d(outputs)] if normed else []), nn.ReLU()]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def dense() -> nn.Module:
    widths = (64, 256, 256, 128)
    hidden = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(128, 10))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "convolutions": lambda: convolutions(False),
    "convolutions, batch norms": lambda: convolutions(True),
    "dense": dense,
    "ViT": ViT,
}


@torch.no_grad()
def scale(model: nn.Module, seed: int) -> None:
    """Multiplies the weights of each layer by 10^u, u from -1 to 1."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        for name in ("weight", "in_proj_weight"):
            weight = getattr(module, name, None)
            if weight is not None and weight.dim() > 1:
                weight.mul_(10 ** (2 * torch.rand((), generator=generator) - 1))


def budget(way: str, sparsity: float) -> gp.Budget:
    ramp = gp.CubicSchedule(0.0, sparsity, round(0.9 * EPOCHS))
    if way in FLOORS:
        return gp.Budget(ramp, floor=FLOORS[way] * (1 - sparsity))
    budgets.ASSURED = ASSURED.get(way, budgets.ASSURED)
    return gp.Budget(ramp, allocation="balanced" if way in ASSURED else way)


def run(network: str, scaled: bool, structure: str, sparsity: float, way: str, seed: int) -> tuple[float, list[float]]:
    """The accuracy on held-out images, and which share of each layer stayed."""
    data = load("digits")
    images = data.x_train.float().permute(0, 3, 1, 2) / 255
    images, labels = (images - images.mean()) / images.std(), data.y_train
    x, y = images[:-HELD_OUT], labels[:-HELD_OUT]
    torch.manual_seed(seed)
    model = NETWORKS[network]()
    if scaled:
        scale(model, seed)
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    pruner = gp.GibbsPruner(
        model, budget(way, sparsity), structure, law="rising", epochs=EPOCHS, seed=seed, example_inputs=x[:2]
    )
    for epoch in range(EPOCHS):
        pruner.set_epoch(epoch)
        for some in torch.randperm(len(x)).split(BATCH):
            nn.functional.cross_entropy(model(x[some]), y[some]).backward()
            optimizer.step()
            optimizer.zero_grad()
            pruner.step()
        rates.step()
    model = pruner.finalize().eval()
    with torch.no_grad():
        right = (model(images[-HELD_OUT:]).argmax(1) == labels[-HELD_OUT:]).float().mean()
    return round(float(right), 4), [round(1 - layer.achieved, 4) for layer in pruner.summary().layers]


def rows(seeds: Iterable[int]) -> Iterable[dict[str, object]]:
    for seed in seeds:
        for network in NETWORKS:
            for scaled in (False, True):
                for structure, sparsity in CELLS:
                    for way in WAYS:
                        accuracy, kept = run(network, scaled, structure, sparsity, way, seed)
                        yield {
                            **{"network": network, "scaled": scaled, "structure": structure, "sparsity": sparsity},
                            **{"shared": way, "seed": seed, "accuracy": accuracy, "kept": kept},
                        }


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("[" + ",\n ".join(json.dumps(row) for row in rows(map(int, sys.argv[1:]))) + "]")
