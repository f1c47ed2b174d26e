"""Samplers: one law per file, each with one function ``draw(rows)`` from :class:`Rows` to a mask.

=============  =================================================================================================
independent    linear Hamiltonians: every spin on its own
two_point      the binary Hamiltonian: x_cvg or uniform
enumeration    all 2^n states of a neighbourhood, n ≤ 16
chromatic      the paper's Markov chain for filters: 50 sweeps over two halves
exact          the quadratic law at any size, through its auxiliary field
conditional    spins by themselves, of which a neighbourhood keeps a limited number
transfer       any pairs of small width (chains, trees, kernels), summed out one element after another
low_rank       pairs that are a sum of up to three squares, through an auxiliary field for each
coloured       any pairs: a Markov chain of 50 sweeps, all elements of one colour at a time
auto           the fastest exact one; where there is none, the chain
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
from ..graphs import Graph
from ..threshold import in_triton
from . import chromatic, coloured, conditional, enumeration, exact, independent, low_rank, transfer, two_point
from .rows import SWEEPS, Pairs, Rows
from .source import Source, stream

if TYPE_CHECKING:
    from ..hamiltonians import Hamiltonian

__all__ = [
    "CHAINS",
    "NAMES",
    "SAMPLERS",
    "SWEEPS",
    "Pairs",
    "Rows",
    "Source",
    "draw",
    "kernel",
    "resolve",
    "stream",
    "two_point",
]


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
    "transfer": Sampler(transfer.draw),
    "low_rank": Sampler(low_rank.draw),
    "coloured": Sampler(coloured.draw),
    "conditional": Sampler(conditional.draw),
}
NAMES = ("auto", *SAMPLERS)
IN_TRITON = ("independent", "chromatic", "exact")
CHAINS = ("chromatic", "coloured")  # the others draw from their law itself


def resolve(
    sampler: str, hamiltonian: Hamiltonian, size: int, limited: bool = False, pairs: Graph | None = None
) -> str:
    """The sampler to use for neighbourhoods of ``size`` elements, or a sentence saying which are possible.

    Args:
        sampler: a name, or "auto".
        hamiltonian: the law.
        size: of a neighbourhood.
        limited: whether only so many of it may be kept.
        pairs: which elements interact, where the Hamiltonian has pairs of its own.
    """
    check_one_of("sampler", sampler, NAMES)
    if pairs is not None:
        return _resolve_pairs(sampler, hamiltonian, pairs)
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


def _resolve_pairs(sampler: str, hamiltonian: Hamiltonian, pairs: Graph) -> str:
    names = hamiltonian.able(pairs)  # type: ignore[attr-defined]
    if sampler == "auto":
        return str(names[0])
    if sampler not in names:
        width = "more than 6" if pairs.width is None else f"{pairs.width}"
        what = f"{hamiltonian!r}, {len(pairs)} pairs of {pairs.size} elements, of width {width}"
        raise bad("sampler", sampler, f"{listed(['auto', *names])} with {what}")
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
