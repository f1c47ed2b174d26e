"""What a structure is."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Structure(ABC):
    """A partition of a weight tensor into neighbourhoods of equal size.

    ``transposed`` and ``groups`` describe how a layer lays its weight out: a transposed convolution stores
    (inputs, outputs / groups, *kernel), every other layer (outputs, inputs / groups, *kernel).
    """

    transposed: bool = False
    groups: int = 1

    name: ClassVar[str]
    #: The structure whose Hamiltonians it has: ``"weight"`` where single weights are decided on.
    family: ClassVar[str] = "filter"
    #: Whether only so many weights of a neighbourhood may stay, and they are decided on one by one.
    limited: ClassVar[bool] = False

    @abstractmethod
    def size(self, shape: Sequence[int]) -> int:
        """Elements per neighbourhood, n."""

    def count(self, shape: Sequence[int]) -> int:
        """Neighbourhoods in the layer, M."""
        return math.prod(shape) // self.size(shape)

    def limits(self, shape: Sequence[int]) -> tuple[int, int]:
        """How many of a neighbourhood are kept if it is :attr:`limited`: either exactly so many, or 0 and the most."""
        return 0, self.size(shape)

    @property
    def sparsity(self) -> float | None:
        """The only sparsity that a layer can have, or None."""
        return None

    def eased(self, sparsity: float, shape: Sequence[int]) -> Structure:
        """What can be asked of a layer on the way there, at a lower sparsity."""
        return self

    @property
    def spelling(self) -> str:
        """What :func:`as_structure` makes it from."""
        return self.name

    @property
    def manner(self) -> str:
        """How a network is pruned, in words."""
        return f"{self.name}-wise"

    @property
    def plural(self) -> str:
        """Neighbourhoods, in words."""
        return f"{self.name}s"

    def split(self, shape: Sequence[int]) -> int:
        """Where the chromatic sampler cuts a row in two: by input channel, or inside a single channel."""
        size = self.size(shape)
        inputs = self._inputs(shape)
        return (inputs + 1) // 2 * (size // inputs) if inputs > 1 else (size + 1) // 2

    def rows(self, weight: Tensor) -> Tensor:
        """The (M, n) matrix of neighbourhoods."""
        return self._outputs_first(weight).reshape(-1, self.size(weight.shape))

    def unrows(self, rows: Tensor, shape: Sequence[int]) -> Tensor:
        """The inverse of :meth:`rows`: (..., M, n) back to (..., *shape)."""
        lead = rows.shape[:-2]
        if not self.transposed:
            return rows.reshape(*lead, *shape)
        inner = self._grouped(shape)
        flipped = (inner[0], inner[2], inner[1], *inner[3:])
        first = len(lead)
        return rows.reshape(*lead, *flipped).transpose(first + 1, first + 2).reshape(*lead, *shape)

    @property
    def in_order(self) -> bool:
        """Whether rows are the weight's own memory, which nothing has to be moved for."""
        return not self.transposed

    def _inputs(self, shape: Sequence[int]) -> int:
        """Input channels that one neighbourhood spans."""
        return 1

    def _grouped(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (self.groups, shape[0] // self.groups, *shape[1:])

    def _outputs_first(self, weight: Tensor) -> Tensor:
        if not self.transposed:
            return weight
        return weight.reshape(self._grouped(weight.shape)).transpose(1, 2)
