"""Units: slices of several weights of a network that are kept or removed together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..checks import bad, check_one_of, check_whole
from ..errors import UserError
from .structure import Structure

SIDES = ("filter", "column")


@dataclass(frozen=True)
class Joint(Structure):
    """What is made of several weights: in a network each of them has rows of its own (:mod:`gibbsprune.units`)."""

    def size(self, shape: Sequence[int]) -> int:
        raise UserError(f"structure {self.name!r} is of several weights of a network: a single one has none")


@dataclass(frozen=True)
class Head(Joint):
    """Attention heads: queries, keys and values of a head, and what reads them."""

    name: ClassVar[str] = "head"


@dataclass(frozen=True)
class Neuron(Joint):
    """Hidden neurons: the weights into one, those of its gate where it has one, and the weights out of it."""

    name: ClassVar[str] = "neuron"


@dataclass(frozen=True)
class Unit(Joint):
    """Units of the user's own.

    Args:
        parts: by patterns of layer names, whether a unit has outputs of the layer (``"filter"``) or inputs
            (``"column"``). What a ``*`` stands for is the same in all layers of a unit.
        units: how many there are, each of as many consecutive outputs or inputs as come to it; None for one by one.

    >>> Unit({"layers.*.up": "filter", "layers.*.down": "column"}).manner
    'unit-wise'
    >>> heads = Unit({"*.q": "filter", "*.k": "filter", "*.v": "filter", "*.o": "column"}, units=8)
    """

    parts: Any
    units: int | None = None

    name: ClassVar[str] = "unit"

    def __post_init__(self) -> None:
        given = self.parts.items() if isinstance(self.parts, Mapping) else self.parts
        if (
            not isinstance(self.parts, (Mapping, tuple))
            or not self.parts
            or not all(isinstance(n, str) for n, _ in given)
        ):
            raise bad("parts", self.parts, "mappings from patterns of layer names to 'filter' and 'column'")
        for _, side in given:
            check_one_of("parts", side, SIDES)
        if self.units is not None:
            check_whole("units", self.units, 2)
        object.__setattr__(self, "parts", tuple(given))
