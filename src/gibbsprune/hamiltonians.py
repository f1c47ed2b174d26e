"""Hamiltonians: the energy H(x) of a mask (Section III-C and III-D).

Spins are x_i = +1 where the mask keeps and −1 where it prunes. Every Hamiltonian here but Binary has the form

    H(x) = −c Σ_k Σ_{pairs {i,j} ⊂ N_k} x_i x_j + Σ_i b_i x_i

with a coupling c (0 for the linear ones), each unordered pair counted once, and a field b that depends on the
weights through their squares w², the neighbourhoods' means w̄² and the threshold Q. A *relative* one measures β in units
of its own field, so that one schedule suits every layer, network and weight decay (:meth:`Hamiltonian.unit`). A new
Hamiltonian of this form is a subclass that overrides :meth:`Hamiltonian.field`: see docs/adding_a_hamiltonian.md.
Energies with other pairs are in :mod:`gibbsprune.couplings`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .across import Counts
from .checks import bad, check_number, check_one_of, listed, number
from .graphs import Graph
from .schedules import LinearSchedule, LogSchedule, Schedule, annealed
from .structures import STRUCTURES, Structure, as_structure, check_mask, given_sparsity
from .threshold import check_weight, converged_mask, kept_count, measured

LN2 = math.log(2.0)


class Hamiltonian(ABC):
    """An energy with a field per weight and one coupling inside neighbourhoods."""

    coupling: float = 0.0
    structures: tuple[str, ...] = tuple(STRUCTURES)

    @property
    def samplers(self) -> tuple[str, ...]:
        """The samplers that can draw from this law, the fastest exact one first (:mod:`gibbsprune.samplers`)."""
        return ("exact", "chromatic", "enumeration") if self.coupling else ("independent", "enumeration")

    @abstractmethod
    def field(self, squares: Tensor, means: Tensor, threshold: Tensor) -> Tensor:
        """b, elementwise: ``squares`` is w² as (rows, n), ``means`` w̄² and ``threshold`` Q as (rows, 1)."""

    def families(self, structure: Structure) -> tuple[str, ...]:
        """The names of :attr:`structures` under which a structure may go beside its own."""
        return (structure.family,)

    def unit(self, threshold: Tensor, size: int) -> Tensor | None:
        """What the field of a layer is divided by, from its Q and its neighbourhoods' size; None for nothing."""
        return None

    def slope(self, squares: Tensor) -> Tensor:
        """−w ∂b/∂w at a constant Q, elementwise: by how much a larger weight lowers its own field."""
        return 2 * squares

    def strength(self, size: int) -> float:
        """The coupling of a pair in a neighbourhood of ``size``."""
        return self.coupling

    def peers(self, layers: Mapping[str, int]) -> Counts:
        """The layers that interact with others, of all with their numbers of neighbourhoods (:mod:`.across`)."""
        return ()

    def pairing(self, shape: Sequence[int], structure: Structure, name: str = "", peers: Counts = ()) -> Graph | None:
        """Which elements of a layer interact, where these are not all of a neighbourhood (:mod:`.couplings`).

        Where layers interact with each other, as ``peers`` do, those are in it that the layer is connected with.
        """
        return None

    def default_schedule(self, epochs: int, sizes: Sequence[int] = ()) -> Schedule:
        """A sensible annealing of β in this field's units; ``sizes`` are the layers' weight counts."""
        return LogSchedule(0.7, 1e4, epochs)

    def annealing(self, epochs: int, sizes: Sequence[int] = ()) -> Schedule:
        """The schedule of a training of so many epochs: the default one, over their first 64 %, then held."""
        return self.default_schedule(annealed(epochs), sizes)

    def energy(self, spins: Tensor, field: Tensor) -> Tensor:
        """H of spins (..., rows, n) in a field (rows, n)."""
        total = (field * spins).sum((-2, -1))
        if self.coupling:
            pairs = (spins.sum(-1).square() - spins.shape[-1]) / 2
            total = total - self.strength(spins.shape[-1]) * pairs.sum(-1)
        return total

    def pair_energy(
        self, spins: Tensor, rows: Tensor, mean: float, shape: Sequence[int], structure: Structure
    ) -> Tensor | float:
        """What pairs of :meth:`pairing` add to H of spins (..., rows, n) of a layer with the weights ``rows``.

        Args:
            spins: ±1.
            rows: of weights, (rows, n).
            mean: of a mask's spins at the layer's sparsity.
            shape: of the layer's weight.
            structure: how it is cut.
        """
        return 0.0


@dataclass(frozen=True)
class Linear(Hamiltonian):
    """H(x) = aᵀx with a_i = sgn(Q − w_i²), Q − w_i² or √Q − |w_i| (equations i, ii and iii).

    With kernels and filters only ``sign`` is possible, as sgn(Q − w̄_k²) for all of neighbourhood k.

    ``relative`` divides a by Q (``abs``: by √Q; ``sign``: by n): P(keep) = σ(2β(w² − Q)/Q) does not change when all
    weights are scaled.
    """

    kind: str = "square"
    relative: bool = False

    def __post_init__(self) -> None:
        check_one_of("kind", self.kind, ("sign", "square", "abs"))

    def __repr__(self) -> str:
        return f"Linear({self.kind!r}{', relative=True' if self.relative else ''})"

    def unit(self, threshold: Tensor, size: int) -> Tensor | None:
        if not self.relative:
            return None
        return {"square": threshold, "abs": threshold.sqrt(), "sign": torch.full_like(threshold, size)}[self.kind]

    @property
    def structures(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(STRUCTURES) if self.kind == "sign" else ("weight",)

    def field(self, squares: Tensor, means: Tensor, threshold: Tensor) -> Tensor:
        if self.kind == "sign":
            return (threshold - means).sign().expand_as(squares)
        if self.kind == "square":
            return threshold - squares
        return threshold.sqrt() - squares.sqrt()

    def slope(self, squares: Tensor) -> Tensor:
        if self.kind == "square":
            return super().slope(squares)
        return squares.sqrt() if self.kind == "abs" else torch.zeros_like(squares)

    def default_schedule(self, epochs: int, sizes: Sequence[int] = ()) -> Schedule:
        if self.relative:
            return relative_schedule(epochs)
        if self.kind == "sign":
            return LogSchedule(0.01, 10.0, epochs)
        if self.kind == "abs":
            return LogSchedule(0.1, 1e3, epochs)
        return super().default_schedule(epochs, sizes)


@dataclass(frozen=True)
class Quadratic(Hamiltonian):
    """H(x) = −c Σ_{pairs in a neighbourhood} x_i x_j + Σ (Q − w_i²) x_i (equation for structured pruning).

    ``relative`` divides fields by nQ and c by n: where the coupling holds a neighbourhood together, it is kept with
    probability σ(2β(w̄² − Q)/Q), whatever its size and the weights' scale. It holds from about βc = 3 on: c = 1 then.
    """

    coupling: float = 0.01
    relative: bool = False

    structures: ClassVar[tuple[str, ...]] = ("kernel", "filter")  # type: ignore[misc]

    def __post_init__(self) -> None:
        check_number("coupling", self.coupling, number(0, above=True))

    def __repr__(self) -> str:
        return f"Quadratic(coupling={self.coupling!r}{', relative=True' if self.relative else ''})"

    def unit(self, threshold: Tensor, size: int) -> Tensor | None:
        return threshold * size if self.relative else None

    def strength(self, size: int) -> float:
        return self.coupling / size if self.relative else self.coupling

    def default_schedule(self, epochs: int, sizes: Sequence[int] = ()) -> Schedule:
        return relative_schedule(epochs) if self.relative else super().default_schedule(epochs, sizes)

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

    samplers: ClassVar[tuple[str, ...]] = ("two_point",)

    def __post_init__(self) -> None:
        check_one_of("relative", self.relative, (None, "ratio", "offset"))

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


def relative_schedule(epochs: int) -> Schedule:
    """β of a relative field: from a few undecided weights around Q to none."""
    return LogSchedule(3.0, 1e4, epochs)


def log_p_converged(beta: Tensor, count: Tensor) -> Tensor:
    """log p_cvg of Lemma 1: p_cvg = (1 − e^−β) / ((2^N − 1) e^−β + 1), in log space and float64."""
    beta, count = beta.double(), count.double()
    above = torch.log(-torch.expm1(-beta))
    log_states = count * LN2 + torch.log(-torch.expm1(-count * LN2))  # log(2^N − 1)
    return above - torch.logaddexp(torch.zeros_like(beta), log_states - beta)


#: Every Hamiltonian by name, the best one for a structure first. β of ``"binary"`` is the distance from N ln 2.
HAMILTONIANS: dict[str, Hamiltonian] = {
    "quadratic": Quadratic(),
    "square": Linear("square"),
    "abs": Linear("abs"),
    "sign": Linear("sign"),
    "binary": Binary("offset"),
}


def possible(structure: Structure) -> list[str]:
    """The names of the Hamiltonians of a structure, the one that the paper found best first."""
    return [name for name, one in HAMILTONIANS.items() if fits(one, structure)]


def fits(hamiltonian: Hamiltonian, structure: Structure) -> bool:
    """Whether a Hamiltonian is made for a structure, or for the one that it is like."""
    return bool({structure.name, *hamiltonian.families(structure)} & set(hamiltonian.structures))


#: The best in units of the threshold, where none is named: nobody chooses a β, and by a coupling above 1 all end whole.
RELATIVE: dict[str, Hamiltonian] = {
    "quadratic": Quadratic(1.05, relative=True),
    "square": Linear("square", relative=True),
}


def as_hamiltonian(hamiltonian: str | Hamiltonian | None, structure: Structure) -> Hamiltonian:
    """A Hamiltonian from its name, object or None (the structure's best, relative), checked against the structure."""
    given = RELATIVE[possible(structure)[0]] if hamiltonian is None else hamiltonian
    chosen = HAMILTONIANS.get(given) if isinstance(given, str) else given
    if not isinstance(chosen, Hamiltonian):
        raise bad("hamiltonian", given, f"{listed(HAMILTONIANS)} and Hamiltonian objects")
    if not fits(chosen, structure):
        raise bad("hamiltonian", given, f"{listed(possible(structure))} with structure {structure.spelling!r}")
    return chosen


def energy(
    mask: Tensor,
    weight: Tensor,
    hamiltonian: str | Hamiltonian | None = None,
    structure: str | Structure = "weight",
    sparsity: float | None = None,
) -> Tensor:
    """H(x) of one layer's mask (or of a stack of masks), in float64; infinite for one that the structure excludes.

    Args:
        mask: True keeps, of the weight's shape or with leading dimensions.
        weight: of the layer.
        hamiltonian: an object or a name; None for the structure's best, relative to the threshold.
        structure: an object or a name, as in :mod:`gibbsprune.structures`.
        sparsity: the fraction to remove, which gives the threshold Q; None for 0.9, or for that of a pattern N:M.

    >>> import torch, gibbsprune as gp
    >>> w = torch.tensor([1.0, 2.0, 3.0])
    >>> float(gp.energy(torch.tensor([False, True, True]), w, gp.Linear("sign"), sparsity=0.4))
    -3.0
    """
    kind = as_structure(structure)
    sparsity = given_sparsity(sparsity, kind)
    weight = check_weight(weight)
    chosen = as_hamiltonian(hamiltonian, kind)
    mask = check_mask(mask, weight.shape)
    lead, limited = mask.shape[: mask.dim() - weight.dim()], torch.zeros((), dtype=torch.float64)
    stack = torch.stack([kind.rows(m) for m in mask.reshape(-1, *weight.shape)])
    if kind.limited:
        real_rows = kind.rows(torch.ones_like(weight))
        (least, most), kept = kind.limits(weight.shape), stack.sum(-1)
        outside = (kept > most) | (kept < real_rows.sum(1).clamp(max=least))
        limited = torch.where(outside.any(-1), math.inf, 0.0).double().reshape(lead)
    if isinstance(chosen, Binary):  # in the weight's own precision, in which x_cvg is what it is everywhere else
        differs = (mask != converged_mask(weight, sparsity, kind)).flatten(len(lead)).any(-1)
        return differs.double() + limited
    squares, means, threshold = measured(weight.double(), sparsity, kind)
    field = chosen.field(squares, means, threshold)
    if (unit := chosen.unit(threshold, field.shape[1])) is not None:
        field = field / unit.clamp_min(1e-300)
    if kind.limited:
        field = field * (real_rows > 0)
    spins, mean = stack.double() * 2 - 1, 2 * kept_count(sparsity, len(field)) / len(field) - 1
    pairs = chosen.pair_energy(spins, kind.rows(weight.double()), mean, weight.shape, kind)
    return (chosen.energy(spins, field) + pairs).reshape(lead) + limited
