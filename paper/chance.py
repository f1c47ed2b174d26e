"""What may be chance: a difference of mean accuracies, the deviation between seeds, and many comparisons at once.

A single seed says nothing of its deviation, and three say little. So the deviation is pooled over all kinds of runs of
a structure that have several seeds, and its upper confidence limit √(ν s² / χ²(0.05; ν)) with ν degrees of freedom is
taken for all of them; a kind whose seeds differ by far more than those of the others, as where trainings collapse, has
its own. A question with m comparisons is corrected by Holm's procedure: the chance that any of its differences is
called one without being one is at most 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from .groups import Group, family

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
        self._apart: dict[str, tuple[int, float]] = {}
        self._squares: dict[str, list[tuple[int, float]]] = {}
        kinds: dict[str, dict[str, tuple[int, float]]] = {}
        for group in groups:
            if (deviation := group.deviation()) is not None:
                own = kinds.setdefault(group.spec.structure, {})
                own[family(group.spec)] = len(group.records) - 1, deviation**2
        for structure, found in kinds.items():
            self._apart |= (apart := standing_out(found))
            self._squares[structure] = [pair for name, pair in found.items() if name not in apart]

    def upper(self, structure: str) -> float:
        """The upper limit of the deviation in points; without seeds of this structure that of all, or infinity."""
        found = self._squares.get(structure) or [pair for kinds in self._squares.values() for pair in kinds]
        return upper_limit(found)

    def stands_out(self, group: Group) -> bool:
        """Whether its seeds differ by more than those of the others of its structure."""
        return family(group.spec) in self._apart

    def claim(self, one: Group, other: Group) -> Claim:
        """The first against the second."""
        variances = (self._limit(group) ** 2 / len(group.records) for group in (one, other))
        return self._claim(one.mean() - other.mean(), sum(variances), min(len(one.records), len(other.records)))

    def printed(self, group: Group, accuracy: float) -> Claim:
        """Ours against an accuracy that the paper prints, taken as a single run of the same kind."""
        seeds = len(group.records)
        return self._claim(group.mean() - accuracy, self._limit(group) ** 2 * (1 + 1 / seeds), seeds)

    def _limit(self, group: Group) -> float:
        own = self._apart.get(family(group.spec))
        return self.upper(group.spec.structure) if own is None else upper_limit([own])

    def _claim(self, difference: float, variance: float, seeds: int) -> Claim:
        z = abs(difference) / math.sqrt(variance) if variance else math.inf if difference else 0.0
        return Claim(difference, 2 * NormalDist().cdf(-z), seeds)


def standing_out(found: Mapping[str, tuple[int, float]], level: float = LEVEL) -> dict[str, tuple[int, float]]:
    """Variances with their degrees of freedom that are too large to be of the deviation of the rest.

    The largest is compared with all the others together (F test, corrected for its being the largest), and so on as
    long as one is too large.
    """
    from scipy.stats import f

    rest, apart = dict(found), {}
    while len(rest) > 1:
        name = max(rest, key=lambda each: rest[each][1])
        degrees, square = rest.pop(name)
        freedom = sum(each for each, _ in rest.values())
        pooled = sum(each * value for each, value in rest.values()) / freedom
        if square <= pooled * float(f.isf(level / (len(rest) + 1), degrees, freedom)):
            break
        apart[name] = degrees, square
    return apart


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
