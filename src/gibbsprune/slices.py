"""Slices of weights: a layer's part of what several layers have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import nn

from .flow import CONVOLUTIONS
from .structures import Column, Filter, Structure
from .weights import Layer, is_conv1d


@dataclass(frozen=True)
class Part:
    """A layer's part of some units: its outputs or inputs, cut into so many; None for one by one.

    ``fused``: queries, keys and values one below the other, each of which is cut.
    """

    layer: str
    side: str
    units: int | None = None
    fused: bool = False


def cut(layer: Layer, part: Part) -> Layer:
    """A layer whose rows are its part of the units."""
    shape, flipped = layer.shape, layer.transposed
    own: Structure = Filter() if part.side == "filter" else Column()
    if part.units is None:
        return replace(layer, own=own)
    outs, ins, rest = outputs(layer), inputs(layer), math.prod(shape[2:])
    if part.fused:
        three = (ins * 3, part.units, -1) if flipped else (3, part.units, -1)
        return replace(layer, own=own, view=_sized(three, shape), transposed=True)
    view: tuple[int, ...]
    if part.side == "filter":
        view = (ins, part.units, outs // part.units * rest) if flipped else (part.units, -1)
    else:
        view = (part.units, -1) if flipped else (outs, part.units, ins // part.units * rest)
    return replace(layer, own=own, view=_sized(view, shape))


def _sized(view: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    known = math.prod(size for size in view if size > 0)
    return tuple(size if size > 0 else math.prod(shape) // known for size in view)


def outputs(layer: Layer) -> int:
    return Filter(transposed=layer.transposed, groups=layer.groups).count(layer.shape)


def inputs(layer: Layer) -> int:
    return Column(transposed=layer.transposed, groups=layer.groups).count(layer.shape)


def plain(layer: Layer | None) -> bool:
    """Whether it is a dense layer, or a convolution of all inputs."""
    dense = layer is not None and (isinstance(layer.module, (nn.Linear, *CONVOLUTIONS)) or is_conv1d(layer.module))
    return layer is not None and dense and layer.groups == 1
