"""Differences between two kinds of runs, by seeds and by images, and a table of them with their verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gibbsprune.archives import read_arrays
from gibbsprune.text import table

from .chance import Chance, Claim, holm
from .groups import Group
from .pairs import Paired, compare


@dataclass(frozen=True)
class Difference:
    """How far one kind of runs is ahead of another, by seeds and by images; ``names`` say which and where."""

    names: tuple[str, ...]
    claim: Claim
    paired: Paired | None


class Judge:
    """Compares kinds of runs on CIFAR-10.

    Args:
        groups: all that are judged together: the deviation between seeds is theirs.
        folder: their results, with the predictions beside them.
    """

    def __init__(self, groups: Sequence[Group], folder: Path) -> None:
        self.chance, self.folder = Chance(groups), folder
        file = folder.parent / "cifar10_labels.npz"
        self.labels = read_arrays(file, file.name, ["classes"])["classes"] if file.exists() else None

    def difference(self, names: tuple[str, ...], one: Group, other: Group) -> Difference:
        """The first against the second."""
        paired = None if self.labels is None else compare(self.folder, one, other, self.labels)
        return Difference(names, self.chance.claim(one, other), paired)


def told(found: Sequence[Difference], heads: Sequence[str], whose: str, groups: Sequence[Group]) -> list[str]:
    """How the differences are judged, and their table, which is one question: all rows share its 5 %."""
    cut, chance = holm(each.claim.p for each in found), Chance(groups)
    rows = [
        [
            *each.names, f"{round(each.claim.difference, 2) + 0.0:+.2f}", _chance(each.claim.p),
            "" if each.paired is None else _chance(each.paired.p), _verdict(each.claim, cut),
        ]
        for each in found
    ]  # fmt: skip
    limits = sorted({round(chance.upper(group.spec.structure), 2) for group in groups})
    limit = f"{limits[0]:.2f}" + (f" to {limits[-1]:.2f}" if len(limits) > 1 else "") + " points"
    if math.isinf(limits[-1]):
        limit = "which nobody knows where each has one seed"
    how = (
        f"How far {whose} is ahead, in points. *By seeds*: the chance of such a difference of means, with the upper "
        f"95 % limit of the deviation between seeds, {limit}; the verdict is this one's, at 5 % with Holm's "
        "correction for all rows. *By images*: the same trained networks in pairs of a seed, image by image (McNemar), "
        "which knows nothing of other seeds."
    )
    if apart := [f"`{group.spec.name(with_seed=False)}`" for group in groups if chance.stands_out(group)]:
        how += f" Seeds of {' and '.join(apart)} differ by far more than the others' and are judged by their own limit."
    return [how, table([*heads, "ahead by", "by seeds, p", "by images, p", ""], rows, left=len(heads))]


def _chance(p: float) -> str:
    return f"{p:.1g}" if p >= 1e-12 else "< 1e-12"


def _verdict(claim: Claim, cut: float) -> str:
    told = {1: "beyond chance", -1: "behind, beyond chance", 0: "not told apart"}[claim.sign(cut)]
    return told + (", one seed" if claim.seeds == 1 else "")
