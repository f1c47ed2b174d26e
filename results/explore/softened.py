"""Held-out search: one threshold for what weights add to a layer that is rescaled, in the networks of networks.py.

    python results/explore/softened.py 0 1 2 > results/explore/softened.json

A layer whose survivors are shrunk and then rescaled adds |w| times its factor to the network, but the law `rising`
compares |w|. Compared by what they would add if they were the last to stay, |w_j|·S_j / (S_j − j·|w_j|) with S_j the
sum of the j largest of their layer, weights of a layer that loses most of its own count for more. With exponentially
distributed weights of scale σ and a threshold T ≫ σ a layer keeps exp(−√(T/σ)) of its weights instead of exp(−T/σ).

- softened: one threshold for that, nothing assured;
- softened, balanced: and three quarters of an equal share is assured;
- balanced, shrunk: compared as ever, and no layer that no norm follows is given its strength back.
"""

import json
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import networks
import torch
from torch import Tensor

from gibbsprune import budgets
from gibbsprune.shares import one_threshold

WAYS = {
    "softened": ("global", {"survivors": "rescaled"}),
    "softened, balanced": ("balanced", {"survivors": "rescaled"}),
    "balanced, shrunk": ("balanced", {"survivors": "shrunk"}),
}


def added(means: Tensor) -> Tensor:
    """What each weight would add, squared, were it the last of its layer that stays; in the order of the weights."""
    size, order = means.double().sqrt().sort(descending=True)
    total, count = size.cumsum(0), torch.arange(1, len(size) + 1)
    left = (total - count * size).clamp_min(1e-12 * total.clamp_min(1e-300))
    worth = torch.cummin((size * total / left).clamp_max(1e6 * size[0] + 1e-30), 0).values
    return torch.empty_like(worth).index_copy_(0, order, worth.square()).to(means.dtype)


def softened(layers: Any, means: Sequence[Tensor], least: list[int], removed: float) -> list[int]:
    return one_threshold(layers, [added(mean.detach()) for mean in means], least, removed)


def trained(network: str, how: str, epochs: int, sparsity: float, way: str, seed: int) -> dict[str, Any]:
    budgets.one_threshold = softened if "softened" in way else one_threshold
    return networks.trained(network, how, epochs, sparsity, way, seed)


def rows(seeds: Iterable[int]) -> Iterable[dict[str, Any]]:
    for seed, network, epochs, how in networks.trainings(seeds):
        for sparsity in networks.SPARSITIES:
            for way in WAYS:
                told = {"network": network, "training": how, "epochs": epochs, "seed": seed}
                yield {**told, "sparsity": sparsity, "way": way, **trained(network, how, epochs, sparsity, way, seed)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    networks.WAYS |= WAYS
    networks.DATA = networks.held_out()
    print("[" + ",\n ".join(json.dumps(row) for row in rows(map(int, sys.argv[1:]))) + "]")
