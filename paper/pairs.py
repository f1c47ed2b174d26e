"""Two methods in pairs: on which test images is one right and the other wrong, seed by seed.

McNemar's test asks whether two networks are right equally often on images like these; runs of the same seed are one
pair. It knows nothing of how much a method differs from seed to seed (that is ``chance``), but it sees differences far
smaller than those of accuracies, because both networks see the same images. Seeds are combined by Stouffer's method.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np

from gibbsprune.archives import read_arrays
from gibbsprune.errors import UserError
from gibbsprune.files import ReadError
from gibbsprune.sweeps.results import PREDICTIONS

from .groups import Group


@dataclass(frozen=True)
class SeedPair:
    """One seed: the images on which only the first, and only the second network is right; an exact p-value."""

    seed: int
    first: int
    second: int
    p: float

    @property
    def z(self) -> float:
        return (self.first - self.second) / math.sqrt(max(1, self.first + self.second))


@dataclass(frozen=True)
class Paired:
    """All seeds that both methods have, the share of images by which the first is ahead, and their joint p-value."""

    pairs: tuple[SeedPair, ...]
    ahead: float
    p: float


def predictions(folder: Path, name: str) -> np.ndarray | None:
    """The class that a run saw in each test image; None where none were stored."""
    file = folder / PREDICTIONS / f"{name}.npz"
    if not file.exists():
        return None
    try:
        return read_arrays(file, file.name, ["classes"])["classes"]
    except ReadError as error:
        raise UserError(f"{file} holds no predictions: {error}") from None


def mcnemar(first: int, second: int) -> float:
    """The probability of so uneven a division of the images on which two networks differ, if both were as good."""
    total, least = first + second, min(first, second)
    if not total:
        return 1.0
    ways = math.lgamma(total + 1) - total * math.log(2)
    tail = sum(math.exp(ways - math.lgamma(k + 1) - math.lgamma(total - k + 1)) for k in range(least + 1))
    return min(1.0, 2 * tail)


def pair(seed: int, one: np.ndarray, other: np.ndarray, labels: np.ndarray) -> SeedPair:
    """Two runs of one seed."""
    if not one.shape == other.shape == labels.shape:
        raise UserError(f"predictions and labels differ in shape: {one.shape}, {other.shape} and {labels.shape}")
    right, theirs = one == labels, other == labels
    first, second = int((right & ~theirs).sum()), int((~right & theirs).sum())
    return SeedPair(seed, first, second, mcnemar(first, second))


def combined(pairs: Sequence[SeedPair]) -> float:
    """The two-sided p-value of all seeds together (Stouffer)."""
    return 2 * NormalDist().cdf(-abs(sum(one.z for one in pairs)) / math.sqrt(len(pairs)))


def compare(folder: Path, one: Group, other: Group, labels: np.ndarray) -> Paired | None:
    """Two kinds of runs, seed by seed; None where they have no seed in common with predictions of both.

    Args:
        folder: the results, with the predictions beside them.
        one: the first kind of runs.
        other: the second kind.
        labels: the true class of each test image.
    """
    known = {record["spec"]["seed"]: record["name"] for record in other.records}
    pairs = []
    for record in one.records:
        seed = record["spec"]["seed"]
        first = predictions(folder, record["name"])
        second = predictions(folder, known[seed]) if seed in known else None
        if first is not None and second is not None:
            pairs.append(pair(seed, first, second, labels))
    if not pairs:
        return None
    ahead = sum(each.first - each.second for each in pairs) / (len(pairs) * len(labels))
    return Paired(tuple(pairs), ahead, combined(pairs))
