"""Neighbourhoods that are kept or removed whole: weights, kernels, outputs, inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from .structure import Structure


@dataclass(frozen=True)
class Weight(Structure):
    """Unstructured: every weight is a neighbourhood of its own."""

    name: ClassVar[str] = "weight"
    family: ClassVar[str] = "weight"

    def size(self, shape: Sequence[int]) -> int:
        return 1

    def split(self, shape: Sequence[int]) -> int:
        return 1

    @property
    def in_order(self) -> bool:
        return True

    def rows(self, weight: Tensor) -> Tensor:
        return weight.reshape(-1, 1)  # in the tensor's own order, however the layer lays it out

    def unrows(self, rows: Tensor, shape: Sequence[int]) -> Tensor:
        return rows.reshape(*rows.shape[:-2], *shape)


@dataclass(frozen=True)
class Kernel(Structure):
    """One k×k slice per input/output pair of a convolution; a single weight of a Linear."""

    name: ClassVar[str] = "kernel"

    def size(self, shape: Sequence[int]) -> int:
        return math.prod(shape[2:])


@dataclass(frozen=True)
class Filter(Structure):
    """One output channel of a convolution; a row of a Linear."""

    name: ClassVar[str] = "filter"

    def size(self, shape: Sequence[int]) -> int:
        return self._inputs(shape) * math.prod(shape[2:])

    def _inputs(self, shape: Sequence[int]) -> int:
        if self.transposed:
            return shape[0] // self.groups
        return shape[1] if len(shape) > 1 else 1


@dataclass(frozen=True)
class Column(Structure):
    """One input channel of a convolution; a column of a Linear."""

    name: ClassVar[str] = "column"

    def size(self, shape: Sequence[int]) -> int:
        inputs = shape[0] if self.transposed else self.groups * (shape[1] if len(shape) > 1 else shape[0])
        return math.prod(shape) // inputs

    @property
    def in_order(self) -> bool:
        return self.transposed

    def rows(self, weight: Tensor) -> Tensor:
        if self.transposed or weight.dim() == 1:
            return weight.reshape(-1, self.size(weight.shape))
        return weight.reshape(self._grouped(weight.shape)).transpose(1, 2).reshape(-1, self.size(weight.shape))

    def unrows(self, rows: Tensor, shape: Sequence[int]) -> Tensor:
        lead = rows.shape[:-2]
        if self.transposed or len(shape) == 1:
            return rows.reshape(*lead, *shape)
        groups, outputs, inputs, *kernel = self._grouped(shape)
        flipped = rows.reshape(*lead, groups, inputs, outputs, *kernel)
        return flipped.transpose(len(lead) + 1, len(lead) + 2).reshape(*lead, *shape)
