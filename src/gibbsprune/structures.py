"""Structures: how a layer's weights are cut into neighbourhoods (Section III-B and III-D of the paper).

A structure views a weight tensor as a matrix of ``rows``: one row per neighbourhood N_k, one column per
element of it. ``weight`` has neighbourhoods of one weight, ``kernel`` one per input/output pair of a
convolution, ``filter`` one per output channel. The neighbourhoods partition the weights, so ``rows`` and
``unrows`` are inverse to each other.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from .checks import bad, listed
from .errors import UserError


@dataclass(frozen=True)
class Structure(ABC):
    """A partition of a weight tensor into neighbourhoods of equal size.

    ``transposed`` and ``groups`` describe how a layer lays its weight out: a transposed convolution stores
    (inputs, outputs / groups, *kernel), every other layer (outputs, inputs / groups, *kernel).
    """

    transposed: bool = False
    groups: int = 1

    name: ClassVar[str]

    @abstractmethod
    def size(self, shape: Sequence[int]) -> int:
        """Elements per neighbourhood, n."""

    def count(self, shape: Sequence[int]) -> int:
        """Neighbourhoods in the layer, M."""
        return math.prod(shape) // self.size(shape)

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

    def _inputs(self, shape: Sequence[int]) -> int:
        """Input channels that one neighbourhood spans."""
        return 1

    def _grouped(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (self.groups, shape[0] // self.groups, *shape[1:])

    def _outputs_first(self, weight: Tensor) -> Tensor:
        if not self.transposed:
            return weight
        return weight.reshape(self._grouped(weight.shape)).transpose(1, 2)


@dataclass(frozen=True)
class Weight(Structure):
    """Unstructured: every weight is a neighbourhood of its own."""

    name: ClassVar[str] = "weight"

    def size(self, shape: Sequence[int]) -> int:
        return 1

    def split(self, shape: Sequence[int]) -> int:
        return 1

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


STRUCTURES: dict[str, type[Structure]] = {kind.name: kind for kind in (Weight, Kernel, Filter)}

PRUNABLE = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


def as_structure(structure: str | Structure, module: nn.Module | None = None) -> Structure:
    """A structure from its name or object, laid out as ``module`` stores its weight."""
    if isinstance(structure, str) and structure in STRUCTURES:
        structure = STRUCTURES[structure]()
    if not isinstance(structure, Structure):
        raise bad("structure", structure, listed(STRUCTURES))
    if module is None:
        return structure
    transposed = bool(getattr(module, "transposed", False))
    groups = int(getattr(module, "groups", 1)) if transposed else 1
    return replace(structure, transposed=transposed, groups=groups)


def check_mask(mask: Tensor, shape: Sequence[int]) -> Tensor:
    """A mask is boolean (or holds only 0 and 1) and has the weight's shape."""
    if tuple(mask.shape[-len(shape) :]) != tuple(shape):
        raise UserError(f"mask has shape {tuple(mask.shape)}, but the weight has shape {tuple(shape)}")
    if mask.dtype != torch.bool:
        if not bool(((mask == 0) | (mask == 1)).all()):
            raise UserError("mask holds values other than 0 and 1: a mask is True where a weight is kept")
        mask = mask.bool()
    return mask
