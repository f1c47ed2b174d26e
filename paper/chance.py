"""What may be chance: a difference of mean accuracies, the deviation between seeds, and many comparisons at once.

A single seed says nothing of its deviation, and three say little. So the deviation is pooled over all kinds of runs of
a structure that have several seeds, and its upper confidence limit √(ν s² / χ²(0.05; ν)) with ν degrees of freedom is
taken for all of them. A question with m comparisons is corrected by Holm's procedure: the chance that any of its
differences is called one without being one is at most 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from .groups import Group

LEVEL = 0.05


@dataclass(frozen=True)
class Claim:
    """A difference in points, the probability of one as large by chance, and the fewest seeds on either side."""

    difference: float
    p: float
    seeds: int

    def sign(self, cut: float) -> int:
        """1 or −1 where the difference is beyond chance, else 0; ``cut`` is what :func:`holm` allows."""
        return 0 if self.p > cut else (1 if self.difference > 0 else -1)


class Chance:
    """The deviation between seeds of all results, by structure."""

    def __init__(self, groups: Iterable[Group]) -> None:
        self._squares: dict[str, list[tuple[int, float]]] = {}
        for group in groups:
            if (deviation := group.deviation()) is not None:
                kinds = self._squares.setdefault(group.spec.structure, [])
                kinds.append((len(group.records) - 1, deviation**2))

    def upper(self, structure: str) -> float:
        """The upper limit of the deviation in points; without seeds of this structure that of all, or infinity."""
        found = self._squares.get(structure) or [pair for kinds in self._squares.values() for pair in kinds]
        return upper_limit(found)

    def claim(self, one: Group, other: Group) -> Claim:
        """The first against the second."""
        variances = (self.upper(group.spec.structure) ** 2 / len(group.records) for group in (one, other))
        return self._claim(one.mean() - other.mean(), sum(variances), min(len(one.records), len(other.records)))

    def printed(self, group: Group, accuracy: float) -> Claim:
        """Ours against an accuracy that the paper prints, taken as a single run of the same kind."""
        seeds = len(group.records)
        return self._claim(group.mean() - accuracy, self.upper(group.spec.structure) ** 2 * (1 + 1 / seeds), seeds)

    def _claim(self, difference: float, variance: float, seeds: int) -> Claim:
        z = abs(difference) / math.sqrt(variance) if variance else math.inf if difference else 0.0
        return Claim(difference, 2 * NormalDist().cdf(-z), seeds)


def upper_limit(found: Sequence[tuple[int, float]], level: float = LEVEL) -> float:
    """Of the deviation behind variances, each with its degrees of freedom."""
    from scipy.stats import chi2

    freedom = sum(degrees for degrees, _ in found)
    if not freedom:
        return math.inf
    return math.sqrt(sum(degrees * square for degrees, square in found) / float(chi2.ppf(level, freedom)))


def holm(values: Iterable[float], level: float = LEVEL) -> float:
    """The largest of the probabilities that is beyond chance when all are judged together; −1 if none is."""
    ordered, cut = sorted(values), -1.0
    for i, p in enumerate(ordered):
        if p > level / (len(ordered) - i):
            break
        cut = p
    return cut
