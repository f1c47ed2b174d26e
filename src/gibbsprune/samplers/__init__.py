"""Samplers: one law per file, all drawing from a field h = βb and a coupling J = βc of rows.

=============  =================================================================================================
independent    linear Hamiltonians: every spin on its own
two_point      the binary Hamiltonian: x_cvg or uniform
enumeration    all 2^n states of a neighbourhood, n ≤ 16
chromatic      the paper's Markov chain for filters: 50 sweeps over two halves
exact          the quadratic law at any size, through its auxiliary field
auto           the fastest exact one
=============  =================================================================================================
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

from ..checks import bad, check_one_of, listed
from ..hamiltonians import Binary, Hamiltonian
from . import chromatic, enumeration, exact, independent, two_point
from .source import Source

__all__ = [
    "SAMPLERS",
    "Source",
    "chromatic",
    "draw_rows",
    "enumeration",
    "exact",
    "independent",
    "resolve",
    "two_point",
]

SAMPLERS = ("auto", "independent", "two_point", "enumeration", "chromatic", "exact")


def possible(hamiltonian: Hamiltonian) -> list[str]:
    """The samplers that can draw from a Hamiltonian's law, the fastest exact one first."""
    if isinstance(hamiltonian, Binary):
        return ["two_point"]
    return ["exact", "chromatic", "enumeration"] if hamiltonian.coupling else ["independent", "enumeration"]


def resolve(sampler: str, hamiltonian: Hamiltonian, size: int) -> str:
    """The sampler to use for neighbourhoods of ``size`` elements, or a sentence saying which are possible."""
    check_one_of("sampler", sampler, SAMPLERS)
    names = possible(hamiltonian)
    if sampler == "auto":
        return names[0]
    if sampler not in names:
        raise bad("sampler", sampler, f"{listed(['auto', *names])} with {hamiltonian!r}")
    if sampler == "enumeration" and size > enumeration.LIMIT:
        others = listed(name for name in names if name != "enumeration")
        raise bad("sampler", sampler, f"{others} with neighbourhoods of {size} elements, more than {enumeration.LIMIT}")
    return sampler


def draw_rows(
    sampler: str,
    field: Tensor,
    coupling: Tensor,
    source: Source,
    split: int = 1,
    sweeps: int = chromatic.SWEEPS,
) -> Tensor:
    """A mask (rows, n) from a field h (rows, n) and a coupling J (rows, 1), by a resolved sampler."""
    if sampler == "independent" or field.shape[1] == 1:
        return independent.draw(field, source)
    if sampler == "enumeration":
        return enumeration.draw(field, coupling, source)
    if field.device.type == "cuda" and field.dtype == torch.float32 and find_spec("triton"):
        from . import chromatic_triton, exact_triton

        if sampler == "exact":
            return exact_triton.draw(field, coupling, source)
        return chromatic_triton.draw(field, coupling, source, split, sweeps)
    if sampler == "exact":
        return exact.draw(field, coupling, source)
    assert sampler == "chromatic", sampler
    return chromatic.draw(field, coupling, source, split, sweeps)
