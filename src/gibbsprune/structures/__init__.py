"""Structures: how a layer's weights are cut into neighbourhoods (Section III-B and III-D of the paper).

A structure views a weight tensor as a matrix of ``rows``: one row per neighbourhood N_k, one column per element of it.
Neighbourhoods are kept or removed whole:

=========  =====================================================================================================
weight     single weights
kernel     one per input/output pair of a convolution
filter     one per output channel
column     one per input channel
4x4        tiles of so many outputs × inputs, at each position of a kernel (any r×c)
=========  =====================================================================================================

or *limited*: single weights are kept or removed, but only so many of a neighbourhood may stay:

=========  =====================================================================================================
2:4        exactly N of M consecutive inputs, at each position of a kernel (any N:M)
at-most-3  at most so many of a kernel
=========  =====================================================================================================

or slices of several weights, which a network is looked through for (:mod:`gibbsprune.units`) and which go together:

=========  =====================================================================================================
head       attention heads: queries, keys, values and what reads them
neuron     hidden neurons: the weights into one and those out of it
=========  =====================================================================================================

The neighbourhoods partition the weights, so that ``unrows`` is the inverse of ``rows``. Where tiles or groups of M do
not come out even, the weight is filled up with zeros, which ``unrows`` cuts off.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import bad, check_sparsity, listed
from ..errors import UserError
from .limited import NM, AtMost
from .structure import Structure
from .tiles import Block
from .units import Head, Joint, Neuron, Unit
from .whole import Column, Filter, Kernel, Weight

__all__ = [
    "JOINT",
    "KINDS",
    "NM",
    "PRUNABLE",
    "STRUCTURES",
    "AtMost",
    "Block",
    "Column",
    "Filter",
    "Head",
    "Joint",
    "Kernel",
    "Neuron",
    "Structure",
    "Unit",
    "Weight",
    "as_structure",
    "check_mask",
    "given_sparsity",
    "is_ours",
]

SPARSITY = 0.9  # unless another one is asked for

STRUCTURES: dict[str, type[Structure]] = {kind.name: kind for kind in (Weight, Kernel, Filter, Column)}
#: Structures of several weights at once.
JOINT: dict[str, type[Structure]] = {kind.name: kind for kind in (Head, Neuron)}
#: Structures of numbers: how they are written, and what is made of them.
WRITTEN: dict[str, type[Structure]] = {r"(\d+):(\d+)": NM, r"(\d+)x(\d+)": Block, r"at-most-(\d+)": AtMost}
KINDS = (*STRUCTURES, *(kind.name for kind in WRITTEN.values()))
EXAMPLES = (*STRUCTURES, "4x4", "2:4", "at-most-3")
ALLOWED = f"{listed((*STRUCTURES, *JOINT))}, '2:4' and other N:M, '4x4' and other tiles, 'at-most-3' and other limits"

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
    made = _read(structure) if isinstance(structure, str) else structure
    if not isinstance(made, Structure):
        raise bad("structure", structure, ALLOWED)
    if module is None:
        return made
    return replace(made, transposed=bool(getattr(module, "transposed", False)), groups=getattr(module, "groups", 1))


def _read(text: str) -> Structure | None:
    if found := (STRUCTURES | JOINT).get(text):
        return found()
    for form, kind in WRITTEN.items():
        if numbers := re.fullmatch(form, text):
            return kind(*map(int, numbers.groups()))
    return None


def is_ours(structure: Structure) -> bool:
    """Whether its spelling says all of it; one of a user's own may be anything."""
    return type(structure) in (*STRUCTURES.values(), *WRITTEN.values())


def given_sparsity(sparsity: Any, structure: Structure) -> float:
    """The sparsity of a layer from what was given for it, None for nothing: a pattern N:M has one only, and 0."""
    fixed = structure.sparsity
    if sparsity is None:
        return SPARSITY if fixed is None else fixed
    value = check_sparsity(sparsity)
    if fixed is None or value == 0:
        return value
    if abs(value - fixed) < 1e-3:
        return fixed
    raise bad("sparsity", sparsity, f"{fixed:g} with structure {structure.spelling!r}, or 0 for a layer left whole")


def check_mask(mask: Tensor, shape: Sequence[int]) -> Tensor:
    """A mask is boolean (or holds only 0 and 1) and has the weight's shape."""
    if tuple(mask.shape[-len(shape) :]) != tuple(shape):
        raise UserError(f"mask has shape {tuple(mask.shape)}, but the weight has shape {tuple(shape)}")
    if mask.dtype != torch.bool:
        if not bool(((mask == 0) | (mask == 1)).all()):
            raise UserError("mask holds values other than 0 and 1: a mask is True where a weight is kept")
        mask = mask.bool()
    return mask
