"""Neighbourhoods of which only so many weights may stay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ..checks import bad, check_whole
from .tiles import Tiled
from .whole import Kernel

LARGEST = 64  # group of an N:M pattern


@dataclass(frozen=True)
class NM(Tiled):
    """Exactly N of every M consecutive weights along the inputs, at each position of a convolution's kernel.

    The last inputs, if M does not divide them, are a smaller group, which keeps N or all that it has.

    >>> NM(2, 4).spelling, NM(1, 4).sparsity
    ('2:4', 0.75)
    """

    n: int
    m: int

    name: ClassVar[str] = "nm"
    family: ClassVar[str] = "weight"
    limited: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if check_whole("m", self.m) > LARGEST:
            raise bad("m", self.m, f"whole numbers from 1 to {LARGEST}")
        if check_whole("n", self.n) > self.m:
            raise bad("n", self.n, f"whole numbers from 1 to {self.m} with m = {self.m}")

    def __repr__(self) -> str:
        return f"NM(n={self.n}, m={self.m})"

    @property
    def spelling(self) -> str:
        return f"{self.n}:{self.m}"

    @property
    def manner(self) -> str:
        return f"to {self.spelling}"

    @property
    def plural(self) -> str:
        return f"groups of {self.m}"

    @property
    def sparsity(self) -> float:
        return 1 - self.n / self.m

    def limits(self, shape: Sequence[int]) -> tuple[int, int]:
        return self.n, self.n

    def eased(self, sparsity: float, shape: Sequence[int]) -> NM:
        return replace(self, n=min(self.m, max(self.n, round(self.m * (1 - sparsity)))))

    def tile(self) -> tuple[int, int]:
        return 1, self.m


@dataclass(frozen=True)
class AtMost(Kernel):
    """Single weights, of which a kernel keeps at most ``k`` and the layer as many as its sparsity says.

    >>> AtMost(3).spelling
    'at-most-3'
    """

    k: int

    name: ClassVar[str] = "at-most"
    family: ClassVar[str] = "weight"
    limited: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole("k", self.k)

    def __repr__(self) -> str:
        return f"AtMost(k={self.k})"

    @property
    def spelling(self) -> str:
        return f"at-most-{self.k}"

    @property
    def manner(self) -> str:
        return f"to at most {self.k} of a kernel"

    @property
    def plural(self) -> str:
        return "kernels"

    def limits(self, shape: Sequence[int]) -> tuple[int, int]:
        return 0, min(self.k, self.size(shape))

    def eased(self, sparsity: float, shape: Sequence[int]) -> AtMost:
        return replace(self, k=max(self.k, math.ceil(self.size(shape) * (1 - sparsity))))
