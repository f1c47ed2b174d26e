"""Held-out search: what the law `rising` does to ordinary networks as users make them, on digits and a CPU.

    python results/explore/networks.py 0 1 2 > results/explore/networks.json

Convolutions with batch norms and a dense layer that is pruned, too; the same with a dense head of two layers; blocks
whose channels are weighed by two small dense layers (squeeze and excitation); two convolutions before a transformer
(Adam, 11 epochs); all with torch's initial values.
Adam at a constant rate and with one that falls to zero, SGD with one that falls to zero; 11 and 40 epochs, tested on
300 of the training images held out.

- as it was: survivors shrunk, those of layers that no norm follows, too; one threshold;
- strong: each layer is given its strength back; one threshold;
- balanced: and three quarters of an equal share is assured to every layer;
- by shape: the same with three quarters of ERK's share, as `balanced` was when that was run; not in this file any more;
- gradual: whole survivors, gradients for them alone; one threshold.
"""

import json
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gibbsprune as gp
from gibbsprune.data import load

BATCH, HELD_OUT, SPARSITIES = 64, 300, (0.95, 0.98)
TRAININGS = [(11, "adam, constant"), (11, "adam"), (11, "sgd"), (40, "adam"), (40, "sgd")]
WAYS: dict[str, tuple[str, dict[str, str]]] = {
    "as it was": ("global", {"survivors": "shrunk"}),
    "strong": ("global", {"survivors": "rescaled"}),
    "balanced": ("balanced", {"survivors": "rescaled"}),
    "gradual": ("global", {"survivors": "whole", "gradient": "masked"}),
}


def normed(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]


class Weighed(nn.Module):
    """A convolution whose channels are weighed, beside what goes past it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.squeeze, self.excite = nn.Linear(width, width // 2), nn.Linear(width // 2, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.convolution(x))
        weights = self.excite(self.squeeze(y.mean((2, 3))).relu()).sigmoid()
        return (x + y * weights[:, :, None, None]).relu()


def last() -> nn.Module:
    return nn.Sequential(*normed(1, 16), *normed(16, 32), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10))


def head() -> nn.Module:
    body = [*normed(1, 16), *normed(16, 32), nn.MaxPool2d(2), *normed(32, 32), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10))


def weighed() -> nn.Module:
    body = [*normed(1, 32), Weighed(32), nn.MaxPool2d(2), Weighed(32), Weighed(32)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


class Pieces(nn.Module):
    """A transformer of the places that convolutions leave."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(*normed(1, 32), *normed(32, 32), nn.MaxPool2d(2))
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
        self.transformer, self.last = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.transformer(self.convolutions(x).flatten(2).transpose(1, 2)).mean(1))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], dict[str, str]]] = {
    "a dense layer": (last, {"include": "*", "exclude": "0"}),
    "a dense head": (head, {}),
    "channels weighed": (weighed, {}),
    "a transformer": (Pieces, {}),
}


def trained(network: str, how: str, epochs: int, sparsity: float, way: str | None, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    make, selected = NETWORKS[network]
    model, pruner = make(), None
    if way is not None:
        allocation, options = WAYS[way]
        ramp = gp.CubicSchedule(0.0, sparsity, round(0.9 * epochs))
        budget = gp.Budget(ramp, allocation=allocation)
        pruner = gp.GibbsPruner(model, budget, epochs=epochs, law="rising", **options, **selected)  # type: ignore[arg-type]
    falls, steps = "constant" not in how, epochs * -(-len(DATA[0]) // BATCH)
    adam, sgd = torch.optim.Adam, torch.optim.SGD
    optimizer = (
        adam(model.parameters(), 3e-3)
        if how.startswith("adam")
        else sgd(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    )
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps) if falls else None
    for epoch in range(epochs):
        if pruner is not None:
            pruner.set_epoch(epoch)
        for rows in torch.randperm(len(DATA[0])).split(BATCH):
            F.cross_entropy(model(DATA[0][rows]), DATA[1][rows]).backward()
            optimizer.step()
            optimizer.zero_grad()
            if pruner is not None:
                pruner.step()
            if rate is not None:
                rate.step()
    least = min(float(layer.mask.float().mean()) for layer in pruner.masks.values()) if pruner else 1.0
    if pruner is not None:
        model = pruner.finalize()
    found = {"accuracy": accuracy(model)}
    gp.recalibrate(model, DATA[0].split(BATCH))
    return {**found, "accuracy_recalibrated": accuracy(model), "least_kept_of_a_layer": round(least, 5)}


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    return round(float((model.eval()(DATA[2]).argmax(1) == DATA[3]).float().mean()), 4)


def trainings(seeds: Iterable[int]) -> Iterable[tuple[int, str, int, str]]:
    """Seed, network, epochs and how it is trained."""
    for seed in seeds:
        for network in NETWORKS:
            for epochs, how in TRAININGS if network != "a transformer" else TRAININGS[1:2]:
                yield seed, network, epochs, how


def rows(seeds: Iterable[int]) -> Iterable[dict[str, Any]]:
    for seed, network, epochs, how in trainings(seeds):
        told = {"network": network, "training": how, "epochs": epochs, "seed": seed}
        yield {**told, "way": "dense", **trained(network, how, epochs, 0.0, None, seed)}
        for sparsity in SPARSITIES:
            for way in WAYS:
                more = {"sparsity": sparsity, "way": way}
                yield {**told, **more, **trained(network, how, epochs, sparsity, way, seed)}


def held_out() -> tuple[Tensor, ...]:
    """Images and classes to train with, and to test with."""
    arrays = load("digits").holdout(HELD_OUT, 0)
    x, y = (part.permute(0, 3, 1, 2) / 255 for part in (arrays.x_train, arrays.x_test))
    return x, arrays.y_train, y, arrays.y_test


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # batch norms that lag behind the last masks: both accuracies are told
    DATA = held_out()
    print("[" + ",\n ".join(json.dumps(row) for row in rows(map(int, sys.argv[1:]))) + "]")
