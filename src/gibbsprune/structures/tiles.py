"""Tiles of outputs × inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from ..checks import check_whole
from .structure import Structure


@dataclass(frozen=True)
class Tiled(Structure):
    """What :class:`Block` and :class:`NM` share: tiles of outputs × inputs, at each position of a kernel."""

    def tile(self) -> tuple[int, int]:
        """Outputs and inputs of a neighbourhood."""
        raise NotImplementedError

    def size(self, shape: Sequence[int]) -> int:
        return math.prod(self.tile())

    def count(self, shape: Sequence[int]) -> int:
        (tall, wide), (outputs, inputs, kernel) = self.tile(), self._cube(shape)
        return math.ceil(outputs / tall) * math.ceil(inputs / wide) * kernel

    @property
    def in_order(self) -> bool:
        return False

    def _cube(self, shape: Sequence[int]) -> tuple[int, int, int]:
        """Outputs, inputs of each, positions of a kernel; a vector is what one output reads."""
        if len(shape) == 1:
            return 1, shape[0], 1
        if self.transposed:
            return shape[1] * self.groups, shape[0] // self.groups, math.prod(shape[2:])
        return shape[0], shape[1], math.prod(shape[2:])

    def rows(self, weight: Tensor) -> Tensor:
        (tall, wide), (outputs, inputs, kernel) = self.tile(), self._cube(weight.shape)
        cube = self._outputs_first(weight).reshape(outputs, inputs, kernel)
        if outputs % tall or inputs % wide:
            cube = nn.functional.pad(cube, (0, 0, 0, -inputs % wide, 0, -outputs % tall))
        tiles = cube.reshape(cube.shape[0] // tall, tall, cube.shape[1] // wide, wide, kernel)
        return tiles.permute(0, 2, 4, 1, 3).reshape(-1, tall * wide)

    def unrows(self, rows: Tensor, shape: Sequence[int]) -> Tensor:
        (tall, wide), (outputs, inputs, kernel) = self.tile(), self._cube(shape)
        lead, down, across = rows.shape[:-2], math.ceil(outputs / tall), math.ceil(inputs / wide)
        tiles = rows.reshape(-1, down, across, kernel, tall, wide).permute(0, 1, 4, 2, 5, 3)
        cube = tiles.reshape(-1, down * tall, across * wide, kernel)[:, :outputs, :inputs]
        return super().unrows(cube.reshape(*lead, outputs, inputs * kernel), shape)


@dataclass(frozen=True)
class Block(Tiled):
    """Tiles of ``height`` outputs × ``width`` inputs, at each position of a convolution's kernel.

    >>> Block(4, 1).spelling
    '4x1'
    """

    height: int
    width: int

    name: ClassVar[str] = "block"

    def __post_init__(self) -> None:
        check_whole("height", self.height)
        check_whole("width", self.width)

    def __repr__(self) -> str:
        return f"Block(height={self.height}, width={self.width})"

    @property
    def spelling(self) -> str:
        return f"{self.height}x{self.width}"

    @property
    def manner(self) -> str:
        return f"in tiles of {self.spelling}"

    @property
    def plural(self) -> str:
        return f"tiles of {self.spelling}"

    def tile(self) -> tuple[int, int]:
        return self.height, self.width
