"""Energies with any pairs: H(x) = Σ A_ij x_i x_j + Σ b_i x_i (the paper's xᵀAx + bᵀx, each pair counted once).

A < 0 attracts (alike is cheap), A > 0 repels. What interacts is said by ``within``:

=================  ===================================================================  ==========================
neighbourhood      the weights of a neighbourhood with each other                        kernels, filters
kernel             whole neighbourhoods in the same kernel                               weights
filter             whole neighbourhoods in the same filter                               weights, kernels
layer              whole neighbourhoods of a layer                                       weights, kernels, filters
=================  ===================================================================  ==========================

In the last three a neighbourhood is kept or pruned as a whole, one spin X_k with the sum of its weights' fields, which
is the limit c → ∞ of :class:`~gibbsprune.Quadratic`; with single weights the spin is the weight's own. The elements
that interact lie on a *grid*: (outputs, inputs, *kernel), as much of it as they span.

``centred`` pairs are Σ A_ij (x_i − m)(x_j − m) with m = 1 − 2p, the mean of a mask of sparsity p. Without that,
attraction would prune more than p asks for (most neighbours are pruned) and repulsion less. x_cvg knows of magnitudes
alone: to end with a mask of the law itself, finalize with one more draw.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .checks import bad, check_one_of
from .errors import UserError
from .graphs import WIDTH, Graph, all_pairs, check_pairs
from .hamiltonians import Hamiltonian, Linear
from .schedules import Schedule
from .structures import Filter, Kernel, Structure, Weight

ENUMERATED = 10  # elements up to which all states are the fastest exact way
MOST = 16  # elements that can be enumerated
RANK = 3  # squares of which the auxiliary fields are drawn together
WITHIN = {
    "neighbourhood": ("kernel", "filter"),
    "kernel": ("weight",),
    "filter": ("weight", "kernel"),
    "layer": ("weight", "kernel", "filter"),
}


class Coupled(Hamiltonian):
    """An energy with pairs of its own: a subclass is a frozen dataclass with :meth:`pairs` and :meth:`strengths`."""

    within: str = "neighbourhood"
    centred: bool = False
    vectors: Tensor | None = None

    @property
    def structures(self) -> tuple[str, ...]:  # type: ignore[override]
        return WITHIN[self.within]

    def families(self, structure: Structure) -> tuple[str, ...]:
        return ()  # pairs are of kernels and filters as they are, not of tiles or limited ones

    @property
    def samplers(self) -> tuple[str, ...]:
        squares = ("low_rank",) if self.vectors is not None else ()
        return ("transfer", "enumeration", *squares, "coloured", "independent")

    @abstractmethod
    def pairs(self, grid: Sequence[int]) -> Any:
        """Which elements interact, (E, 2), as flat indices of a grid of them."""

    @abstractmethod
    def strengths(self, weights: Tensor, graph: Graph) -> Tensor:
        """A of every pair, (1 or rows, E), from the interacting weights (rows, elements, weights of an element)."""

    def pairing(self, shape: Sequence[int], structure: Structure) -> Graph:
        return _pairing(self, self.grid(shape, structure))

    def able(self, graph: Graph) -> tuple[str, ...]:
        """The samplers that can draw from a law with these pairs, what ``auto`` takes first."""
        exact = ["transfer"] if graph.width is not None else []
        if self.vectors is not None:
            exact.append("low_rank")
        if graph.size <= MOST:
            exact.insert(0 if graph.size <= ENUMERATED and (graph.width or WIDTH) > 3 else len(exact), "enumeration")
        return (*(() if len(graph) else ("independent",)), *exact, "coloured")

    # -- from a layer to rows of elements that interact, and back ------------------------------------------------------

    @property
    def whole(self) -> bool:
        """Whether a spin is a neighbourhood as a whole."""
        return self.within != "neighbourhood"

    def grid(self, shape: Sequence[int], structure: Structure) -> tuple[int, ...]:
        """The elements that interact, as they lie in a layer."""
        inputs, kernel = (
            Filter(transposed=structure.transposed, groups=structure.groups)._inputs(shape),
            tuple(shape[2:]),
        )
        outputs = math.prod(shape) // max(1, inputs * math.prod(kernel))
        axes = {"kernel": kernel, "filter": (inputs, *kernel), "layer": (outputs, inputs, *kernel)}
        if not self.whole:
            return axes[structure.name]
        inner = {"weight": (), "kernel": kernel, "filter": (inputs, *kernel)}[structure.name]
        return axes[self.within][: len(axes[self.within]) - len(inner)]

    def order(self, shape: Sequence[int], structure: Structure) -> Tensor | None:
        """The neighbourhoods in the order in which they interact; None where that is their own.

        Weights are in the order of their tensor, which in a transposed convolution has the filters across.
        """
        if not (isinstance(structure, Weight) and structure.transposed):
            return None
        block = Kernel if self.within == "kernel" else Filter
        index = torch.arange(math.prod(shape)).reshape(tuple(shape))
        return block(transposed=structure.transposed, groups=structure.groups).rows(index).flatten()

    def pair_energy(
        self, spins: Tensor, rows: Tensor, mean: float, shape: Sequence[int], structure: Structure
    ) -> Tensor:
        graph, weights = self.pairing(shape, structure), rows[:, :, None]
        broken = torch.zeros(spins.shape[:-2], dtype=torch.bool, device=spins.device)
        if self.whole:
            broken = (spins != spins[..., :1]).any(-1).any(-1)  # no mask of this law
            order = self.order(shape, structure)
            first = spins[..., 0] if order is None else spins[..., 0][..., order.to(spins.device)]
            each = rows if order is None else rows[order.to(rows.device)]
            spins, weights = first.unflatten(-1, (-1, graph.size)), each.unflatten(0, (-1, graph.size))
        one, two = graph.ends(spins.device)
        away = spins - mean if self.centred else spins
        total = (self.strengths(weights, graph).to(spins.dtype) * away[..., one] * away[..., two]).sum((-2, -1))
        return total.masked_fill(broken, torch.inf)


@lru_cache(maxsize=512)
def _pairing(energy: Coupled, grid: tuple[int, ...]) -> Graph:
    return Graph(math.prod(grid), energy.pairs(grid))


class WithField(Coupled):
    """The field of a linear Hamiltonian, with its unit, slope and schedule."""

    base: Linear

    def field(self, squares: Tensor, means: Tensor, threshold: Tensor) -> Tensor:
        return self.base.field(squares, means, threshold)

    def unit(self, threshold: Tensor, size: int) -> Tensor | None:
        unit = self.base.unit(threshold, size)
        if unit is None or not self.whole or self.base.kind == "sign":  # which is in units of n already
            return unit
        return unit * size  # the fields of a neighbourhood add up: so it is decided as a single weight is

    def slope(self, squares: Tensor) -> Tensor:
        return self.base.slope(squares)

    def default_schedule(self, epochs: int, sizes: Sequence[int] = ()) -> Schedule:
        return self.base.default_schedule(epochs, sizes)


@dataclass(frozen=True, eq=False, repr=False)
class Pairwise(WithField):
    """H(x) = Σ A_ij x_i x_j + Σ b_i x_i with any pairs; A < 0 attracts, A > 0 repels.

    Args:
        pairs: (E, 2) whole numbers, which elements interact, or a function from the grid of elements to them (as
            :func:`gibbsprune.grid_pairs`), where layers differ.
        strengths: A: a number, E numbers, or a function from the interacting weights, a tensor (rows, elements, weights
            of an element), to (rows, E).
        within: what interacts (:mod:`gibbsprune.couplings`).
        base: whose field b is taken, any :class:`~gibbsprune.Linear`; with a relative one A is in units of the
            threshold.
        centred: whether pairs are products of deviations from the mask's mean.

    >>> import torch, gibbsprune as gp
    >>> ising = gp.Pairwise(gp.grid_pairs, -0.3, within="kernel", base=gp.Linear("square", relative=True))
    >>> weight = torch.randn(8, 8, 3, 3, generator=torch.Generator().manual_seed(0))
    >>> gp.sample(weight, ising, beta=2.0, generator=torch.Generator().manual_seed(0)).shape
    torch.Size([1, 8, 8, 3, 3])
    """

    given: Any = None
    A: Any = 0.0
    within: str = "neighbourhood"
    base: Linear = field(default_factory=Linear)
    centred: bool = False
    vectors: Tensor | None = None

    def __init__(
        self,
        pairs: Any,
        strengths: float | Sequence[float] | Tensor | Callable[[Tensor], Tensor],
        within: str = "neighbourhood",
        base: Linear | None = None,
        centred: bool = False,
    ) -> None:
        check_one_of("within", within, WITHIN)
        base = Linear() if base is None else base
        if not isinstance(base, Linear):
            raise bad("base", base, "Linear Hamiltonians, whose field is taken")
        if not callable(pairs):
            highest = np.asarray(pairs.cpu() if isinstance(pairs, Tensor) else pairs)
            pairs = check_pairs(pairs, int(highest.max(initial=0)) + 1 if highest.dtype.kind in "iu" else 0)
        values: dict[str, Any] = {
            "given": pairs, "A": strengths, "within": within, "base": base, "centred": bool(centred), "vectors": None,
        }  # fmt: skip
        if not callable(strengths):
            try:
                values["A"] = torch.as_tensor(strengths, dtype=torch.float64).detach().cpu()
            except (TypeError, ValueError, RuntimeError):
                raise bad("strengths", strengths, "numbers, and functions of the weights") from None
            if not bool(torch.isfinite(values["A"]).all()):
                raise UserError("strengths hold NaN or infinite numbers: allowed are finite ones")
            _check_count(values["A"], None if callable(pairs) else len(pairs))
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def low_rank(cls, vectors: Any, within: str = "neighbourhood", base: Linear | None = None) -> Pairwise:
        """H(x) = −½ Σ_r (v_r·x)² + Σ b_i x_i: attraction as a sum of a few squares, drawn exactly at any size.

        ``vectors`` is (squares, elements), one to three squares. A_ij = −Σ_r v_ri v_rj; a single vector of √c is
        :class:`~gibbsprune.Quadratic`.
        """
        try:
            v = torch.as_tensor(vectors, dtype=torch.float64).detach().cpu()
        except (TypeError, ValueError, RuntimeError):
            raise bad("vectors", vectors, f"numbers of shape (1 to {RANK}, elements)") from None
        if v.dim() != 2 or not 1 <= len(v) <= RANK or not bool(torch.isfinite(v).all()):
            raise UserError(
                f"vectors have shape {tuple(v.shape)}: allowed are finite numbers of shape (1 to {RANK}, elements)"
            )
        pairs = all_pairs(v.shape[1])
        made = cls(pairs, -(v[:, pairs[:, 0]] * v[:, pairs[:, 1]]).sum(0), within, base)
        object.__setattr__(made, "vectors", v)
        return made

    @property
    def _identity(self) -> tuple[Any, ...]:
        """What makes two of them equal: functions by themselves, arrays by what they hold."""
        return (self.within, self.base, self.centred, *map(_token, (self.given, self.A, self.vectors)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pairwise) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __repr__(self) -> str:
        what = getattr(self.given, "__name__", None) or f"{len(self.given)} pairs {_token(self.given)[:6]}"
        how = getattr(self.A, "__name__", None) or (f"{self.A.item():g}" if self.A.dim() == 0 else _token(self.A)[:6])
        more = ", centred=True" if self.centred else ""
        return f"Pairwise({what}, {how}, within={self.within!r}, base={self.base!r}{more})"

    def pairs(self, grid: Sequence[int]) -> Any:
        return self.given(tuple(grid)) if callable(self.given) else self.given

    def strengths(self, weights: Tensor, graph: Graph) -> Tensor:
        if not callable(self.A):
            _check_count(self.A, len(graph))
            return graph.constant("A", weights.device, lambda: self.A.expand(1, len(graph)).to(weights.device))
        found = self.A(weights)
        allowed = ((1, len(graph)), (len(weights), len(graph)))
        if not isinstance(found, Tensor) or tuple(found.shape) not in allowed:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise UserError(
                f"the function of strengths gives {shape}: allowed are tensors of shape {allowed[1]}, rows and pairs"
            )
        return found


def _check_count(strengths: Tensor, pairs: int | None) -> None:
    if strengths.dim() > 1 or (strengths.dim() == 1 and pairs is not None and len(strengths) != pairs):
        count = "as many as pairs" if pairs is None else str(pairs)
        raise UserError(f"strengths have shape {tuple(strengths.shape)}: allowed are one number and {count}")


def _token(value: Any) -> Any:
    if isinstance(value, (Tensor, np.ndarray)):
        data = value.numpy() if isinstance(value, Tensor) else value
        return hashlib.sha256(repr(data.shape).encode() + np.ascontiguousarray(data).tobytes()).hexdigest()
    return value
