"""What a layer costs, and how much of a network's budget it gets: by one threshold, or by its shape."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .threshold import CHUNK

DIGITS = ((20, 11), (10, 10), (0, 10))  # where the digits of a float ≥ 0 begin, and how many bits they have


@dataclass(frozen=True)
class Share:
    """What a budget knows of one layer: its shape, its M neighbourhoods of n weights, what each of them costs.

    ``table`` is what 1, 2 … M of them cost together, where that is not a multiple of ``cost``, their mean.
    """

    shape: tuple[int, ...]
    count: int
    size: int
    cost: float
    table: tuple[float, ...] | None = None

    def spent(self, keeps: np.ndarray) -> np.ndarray:
        """What numbers of neighbourhoods cost together."""
        return keeps * self.cost if self.table is None else np.asarray(self.table)[keeps - 1]


def one_threshold(layers: Sequence[Share], means: Sequence[Tensor], least: Sequence[int], removed: float) -> list[int]:
    """How many each layer keeps above one threshold on n·w̄²/c, without a sort, in bounded memory.

    Floats ≥ 0 order as their bits, so that three histograms find those of the threshold, some digits at a time from the
    top: everything is kept from the lowest digit on from which it fits, and the next histogram is of what has the digit
    under it. What lies exactly on the threshold is kept layer by layer, as far as it fits.
    """
    costs, kept = np.array([layer.cost for layer in layers]), np.zeros(len(layers), np.int64)
    counts = np.array([layer.count for layer in layers])
    budget = (1 - removed) * float(costs @ counts) * (1 + 1e-12)
    found = 0
    for shift, width in DIGITS:
        each = _digits(means, layers, shift, width, found)
        upto = kept[:, None] + np.cumsum(each[:, ::-1], 1)[:, ::-1]  # (layers, digits): kept, if from this digit on
        fits = costs @ np.maximum(upto, np.array(least)[:, None]) <= budget  # from some digit on
        digit = len(fits) - 1 - int(fits.sum())  # the first that does not
        if digit < 0:
            return counts.tolist()
        kept = upto[:, digit] - each[:, digit]
        found = (found << width) | digit
    keeps = np.maximum(kept, least)
    for index, equal in enumerate(kept + each[:, digit] - keeps):
        more = min(max(0, int(equal)), max(0, int((budget - costs @ keeps) // costs[index])))
        keeps[index] += more
        if more < equal:
            break
    return keeps.tolist()


def _digits(means: Sequence[Tensor], layers: Sequence[Share], shift: int, width: int, found: int) -> np.ndarray:
    """Histograms (layers, digits) of some digits of the layers' priorities, where the digits above are ``found``.

    Layers are counted together, up to CHUNK elements at once: a GPU is waited for once, not for each of them.
    """
    total = np.zeros(len(layers) << width, np.int64)
    for parts in _together(means):
        scales = [layers[index].size / layers[index].cost for index, _ in parts]
        bits = torch.cat([part * scale for (_, part), scale in zip(parts, scales)]).float().view(torch.int32)
        owner = torch.tensor([index for index, _ in parts]).repeat_interleave(torch.tensor([len(v) for _, v in parts]))
        places = (owner.to(bits.device) << width) + ((bits >> shift) & ((1 << width) - 1))
        if (shift, width) != DIGITS[0]:
            places = places[(bits >> (shift + width)) == found]
        total += torch.bincount(places, minlength=len(total)).cpu().numpy()
    return total.reshape(len(layers), -1)


def _together(means: Sequence[Tensor]) -> Iterator[list[tuple[int, Tensor]]]:
    """Pieces of layers, each with the layer's index, of at most CHUNK elements together and on one device."""
    group: list[tuple[int, Tensor]] = []
    for index, mean in enumerate(means):
        for piece in mean.detach().split(CHUNK):
            taken = sum(len(part) for _, part in group)
            if group and (taken + len(piece) > CHUNK or group[0][1].device != piece.device):
                yield group
                group = []
            group.append((index, piece))
    yield group


def erdos_renyi(layers: Sequence[Share], removed: float, floor: float = 0.0) -> list[float]:
    """The share that each layer keeps, ε·(Σ dimensions)/(Π dimensions) with one ε, from ``floor`` to 1.

    Where shares are beyond both ends, those are settled first that miss theirs by more: the others stay where they are.
    """
    raw = [sum(layer.shape) / math.prod(layer.shape) for layer in layers]
    cost = [layer.count * layer.cost for layer in layers]
    settled: dict[int, float] = {}
    while open_ := [i for i in range(len(layers)) if i not in settled]:
        left = (1 - removed) * sum(cost) - sum(cost[i] * share for i, share in settled.items())
        scale = left / sum(raw[i] * cost[i] for i in open_)
        over, under = [i for i in open_ if scale * raw[i] > 1], [i for i in open_ if scale * raw[i] < floor]
        if not over and not under:
            return [settled.get(i, scale * raw[i]) for i in range(len(layers))]
        excess = sum((scale * raw[i] - 1) * cost[i] for i in over)
        lack = sum((floor - scale * raw[i]) * cost[i] for i in under)
        settled |= dict.fromkeys(over, 1.0) if excess >= lack else dict.fromkeys(under, floor)
    return [settled[i] for i in range(len(layers))]
