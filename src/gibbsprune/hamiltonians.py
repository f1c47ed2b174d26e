"""Hamiltonians: the energy H(x) of a mask (Section III-C and III-D).

Spins are x_i = +1 where the mask keeps and −1 where it prunes. Every Hamiltonian here but Binary has the form

    H(x) = −c Σ_k Σ_{pairs {i,j} ⊂ N_k} x_i x_j + Σ_i b_i x_i

with a coupling c (0 for the linear ones), each unordered pair counted once, and a field b that depends on the
weights through their squares w², the neighbourhoods' means w̄² and the threshold Q. A new Hamiltonian of this
form is a subclass that overrides :meth:`Hamiltonian.field`: see docs/adding_a_hamiltonian.md.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .errors import UserError
from .schedules import LinearSchedule, LogSchedule, Schedule
from .structures import Structure, as_structure, check_mask
from .threshold import check_sparsity, check_weight, converged_mask, mean_squares, quantile

LN2 = math.log(2.0)


class Hamiltonian(ABC):
    """An energy with a field per weight and one coupling inside neighbourhoods."""

    coupling: float = 0.0
    structures: ClassVar[tuple[str, ...]] = ("weight", "kernel", "filter")

    @abstractmethod
    def field(self, squares: Tensor, means: Tensor, threshold: Tensor) -> Tensor:
        """b, elementwise: ``squares`` is w² as (rows, n), ``means`` w̄² and ``threshold`` Q as (rows, 1)."""

    def default_schedule(self, epochs: int, sizes: Sequence[int] = ()) -> Schedule:
        """A sensible annealing of β in this field's units; ``sizes`` are the layers' weight counts."""
        return LogSchedule(0.7, 1e4, epochs)

    def check(self, structure: Structure) -> None:
        """Refuses a structure for which this Hamiltonian is not defined."""
        if structure.name not in self.structures:
            raise UserError(f"{self!r} cannot be used with structure {structure.name!r}: possible are {possible()}")

    def energy(self, spins: Tensor, field: Tensor) -> Tensor:
        """H of spins (..., rows, n) in a field (rows, n)."""
        total = (field * spins).sum((-2, -1))
        if self.coupling:
            pairs = (spins.sum(-1).square() - spins.shape[-1]) / 2
            total = total - self.coupling * pairs.sum(-1)
        return total


@dataclass(frozen=True)
class Linear(Hamiltonian):
    """H(x) = aᵀx with a_i = sgn(Q − w_i²), Q − w_i² or √Q − |w_i| (equations i, ii and iii).

    With kernels and filters only ``sign`` is possible, as sgn(Q − w̄_k²) for all of neighbourhood k.
    """

    kind: str = "square"

    structures: ClassVar[tuple[str, ...]] = ("weight",)

    def __post_init__(self) -> None:
        if self.kind not in ("sign", "square", "abs"):
            raise UserError(f"unknown Linear kind {self.kind!r}: allowed are 'sign', 'square', 'abs'")

    def __repr__(self) -> str:
        return f"Linear({self.kind!r})"

    def check(self, structure: Structure) -> None:
        if self.kind != "sign":
            super().check(structure)

    def field(self, squares: Tensor, means: Tensor, threshold: Tensor) -> Tensor:
        if self.kind == "sign":
            return (threshold - means).sign().expand_as(squares)
        if self.kind == "square":
            return threshold - squares
        return threshold.sqrt() - squares.sqrt()

    def default_schedule(self, epochs: int, sizes: Sequence[int] = ()) -> Schedule:
        if self.kind == "sign":
            return LogSchedule(0.01, 10.0, epochs)
        if self.kind == "abs":
            return LogSchedule(0.1, 1e3, epochs)
        return super().default_schedule(epochs, sizes)


@dataclass(frozen=True)
class Quadratic(Hamiltonian):
    """H(x) = −c Σ_{pairs in a neighbourhood} x_i x_j + Σ (Q − w_i²) x_i (equation for structured pruning)."""

    coupling: float = 0.01

    structures: ClassVar[tuple[str, ...]] = ("kernel", "filter")

    def __post_init__(self) -> None:
        if not isinstance(self.coupling, (int, float)) or not 0 < self.coupling < math.inf:
            raise UserError(f"coupling is {self.coupling!r}: allowed are positive numbers")

    def field(self, squares: Tensor, means: Tensor, threshold: Tensor) -> Tensor:
        return threshold - squares


@dataclass(frozen=True)
class Binary(Hamiltonian):
    """H(x) = 0 if x = x_cvg, else 1 (equation for the binary Hamiltonian).

    The whole layer of N weights switches from uniform to x_cvg at β ≈ N ln 2. ``relative`` says how β is given:
    None as it is; "ratio" in units of N ln 2, so that every layer switches at 1; "offset" as the distance
    from N ln 2, so that every layer switches smoothly around 0 with probability about σ(β).
    """

    relative: str | None = None

    def __post_init__(self) -> None:
        if self.relative not in (None, "ratio", "offset"):
            raise UserError(f"relative is {self.relative!r}: allowed are None, 'ratio', 'offset'")

    def field(self, squares: Tensor, means: Tensor, threshold: Tensor) -> Tensor:
        raise TypeError("the binary Hamiltonian has no field")

    def absolute(self, beta: Tensor, count: Tensor) -> Tensor:
        """β of the formula from the β the user gave, for a layer of ``count`` weights."""
        if self.relative == "ratio":
            return beta * (count * LN2)
        if self.relative == "offset":
            return beta + count * LN2
        return beta

    def default_schedule(self, epochs: int, sizes: Sequence[int] = ()) -> Schedule:
        if self.relative == "ratio":
            return LinearSchedule(0.0, 1.25, epochs)
        if self.relative == "offset":
            return LinearSchedule(-10.0, 20.0, epochs)
        return LinearSchedule(0.0, 1.25 * LN2 * max([*sizes, 1]), epochs)


def log_p_converged(beta: Tensor, count: Tensor) -> Tensor:
    """log p_cvg of Lemma 1: p_cvg = (1 − e^−β) / ((2^N − 1) e^−β + 1), in log space and float64."""
    beta, count = beta.double(), count.double()
    above = torch.log(-torch.expm1(-beta))
    log_states = count * LN2 + torch.log(-torch.expm1(-count * LN2))  # log(2^N − 1)
    return above - torch.logaddexp(torch.zeros_like(beta), log_states - beta)


def possible() -> str:
    """The possible combinations, for error messages."""
    return (
        "Binary with weight, kernel and filter; Linear('sign') with weight, kernel and filter; "
        "Linear('square') and Linear('abs') with weight; Quadratic with kernel and filter"
    )


def default_hamiltonian(structure: Structure) -> Hamiltonian:
    """What the paper found best: Linear('square') for weights, Quadratic(0.01) for kernels and filters."""
    return Linear("square") if structure.name == "weight" else Quadratic()


HAMILTONIANS: dict[str, Hamiltonian] = {
    "binary": Binary(),
    "sign": Linear("sign"),
    "square": Linear("square"),
    "abs": Linear("abs"),
    "quadratic": Quadratic(),
}


def as_hamiltonian(hamiltonian: str | Hamiltonian | None, structure: Structure) -> Hamiltonian:
    """A Hamiltonian from its name, object or None (the structure's default), checked against the structure."""
    if hamiltonian is None:
        chosen = default_hamiltonian(structure)
    elif isinstance(hamiltonian, Hamiltonian):
        chosen = hamiltonian
    elif isinstance(hamiltonian, str) and hamiltonian in HAMILTONIANS:
        chosen = HAMILTONIANS[hamiltonian]
    else:
        names = ", ".join(map(repr, HAMILTONIANS))
        raise UserError(f"unknown Hamiltonian {hamiltonian!r}: allowed are {names} or a Hamiltonian object")
    chosen.check(structure)
    return chosen


def energy(
    mask: Tensor,
    weight: Tensor,
    hamiltonian: str | Hamiltonian | None = None,
    structure: str | Structure = "weight",
    sparsity: float = 0.9,
) -> Tensor:
    """H(x) of one layer's mask (or of a stack of masks), in float64.

    >>> import torch, gibbsprune as gp
    >>> w = torch.tensor([1.0, 2.0, 3.0])
    >>> float(gp.energy(torch.tensor([False, True, True]), w, gp.Linear("sign"), sparsity=0.4))
    -3.0
    """
    check_sparsity(sparsity)
    kind = as_structure(structure)
    weight = check_weight(weight)
    chosen = as_hamiltonian(hamiltonian, kind)
    mask = check_mask(mask, weight.shape)
    lead = mask.shape[: mask.dim() - weight.dim()]
    if isinstance(chosen, Binary):  # in the weight's own precision, in which x_cvg is what it is everywhere else
        differs = (mask != converged_mask(weight, sparsity, kind)).flatten(len(lead)).any(-1)
        return differs.double()
    weight = weight.double()
    means = mean_squares(weight, kind)
    field = chosen.field(kind.rows(weight).square(), means[:, None], quantile(means, sparsity))
    stack = mask.reshape(-1, *weight.shape)
    spins = torch.stack([kind.rows(m) for m in stack]).double() * 2 - 1
    return chosen.energy(spins, field).reshape(lead)
