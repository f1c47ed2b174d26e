"""Samplers: one law per file, each with one function ``draw(rows)`` from :class:`Rows` to a mask.

=============  =================================================================================================
independent    linear Hamiltonians: every spin on its own
two_point      the binary Hamiltonian: x_cvg or uniform
enumeration    all 2^n states of a neighbourhood, n ≤ 16
chromatic      the paper's Markov chain for filters: 50 sweeps over two halves
exact          the quadratic law at any size, through its auxiliary field
conditional    spins by themselves, of which a neighbourhood keeps a limited number
auto           the fastest exact one
=============  =================================================================================================

A new one is a file and a line of ``SAMPLERS``; a Hamiltonian says by which of them it is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from torch import Tensor

from ..checks import bad, check_one_of, listed
from ..threshold import in_triton
from . import chromatic, conditional, enumeration, exact, independent, two_point
from .rows import SWEEPS, Rows
from .source import Source, stream

if TYPE_CHECKING:
    from ..hamiltonians import Hamiltonian

__all__ = ["NAMES", "SAMPLERS", "SWEEPS", "Rows", "Source", "draw", "kernel", "resolve", "stream", "two_point"]


@dataclass(frozen=True)
class Sampler:
    """How masks are drawn, and the largest neighbourhood for which that can be done."""

    draw: Callable[[Rows], Tensor]
    limit: float = math.inf


SAMPLERS = {
    "independent": Sampler(independent.draw),
    "two_point": Sampler(two_point.draw),
    "enumeration": Sampler(enumeration.draw, enumeration.LIMIT),
    "chromatic": Sampler(chromatic.draw),
    "exact": Sampler(exact.draw),
    "conditional": Sampler(conditional.draw),
}
NAMES = ("auto", *SAMPLERS)
IN_TRITON = ("independent", "chromatic", "exact")


def resolve(sampler: str, hamiltonian: Hamiltonian, size: int, limited: bool = False) -> str:
    """The sampler to use for neighbourhoods of ``size`` elements, or a sentence saying which are possible.

    Args:
        sampler: a name, or "auto".
        hamiltonian: the law.
        size: of a neighbourhood.
        limited: whether only so many of it may be kept.
    """
    check_one_of("sampler", sampler, NAMES)
    names = hamiltonian.samplers
    if limited and "two_point" not in names:
        names = ("conditional",)
    if sampler == "auto":
        return names[0]
    if sampler not in names:
        raise bad("sampler", sampler, f"{listed(['auto', *names])} with {hamiltonian!r}")
    if size > (most := SAMPLERS[sampler].limit):
        others = listed(name for name in names if SAMPLERS[name].limit >= size)
        raise bad("sampler", sampler, f"{others} with neighbourhoods of {size} elements, more than {most}")
    return sampler


def kernel(sampler: str, values: Tensor) -> ModuleType | None:
    """The module with the sampler's GPU kernel, where it has one that works on these values."""
    if sampler not in IN_TRITON or not in_triton(values):
        return None
    return import_module(f".{sampler}_triton", __package__)


def draw(sampler: str, rows: Rows) -> Tensor:
    """A mask (rows, n) by a resolved sampler; a neighbourhood of one element has nothing to be coupled with."""
    if sampler == "independent" or rows.source.size == 1:
        return independent.draw(rows)
    if rows.limits is not None:
        return conditional.draw(rows)
    return (kernel(sampler, rows.field) or SAMPLERS[sampler]).draw(rows)
