"""The energy of any pairs that its owner gives, within layers or across them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .across import ALLOWED, Across, Counts
from .checks import bad, check_one_of
from .couplings import RANK, WITHIN, WithField
from .errors import UserError
from .graphs import Graph, all_pairs, check_pairs
from .hamiltonians import Linear
from .structures import Structure


@dataclass(frozen=True, eq=False, repr=False)
class Pairwise(WithField):
    """H(x) = Σ A_ij x_i x_j + Σ b_i x_i with any pairs; A < 0 attracts, A > 0 repels.

    Args:
        pairs: (E, 2) whole numbers, which elements interact, or a function from the grid of elements to them (as
            :func:`gibbsprune.grid_pairs`), where layers differ. Of a network a mapping from two layer names to pairs of
            their neighbourhoods, or to a function from how many both have (as :func:`gibbsprune.kth_pairs`).
        strengths: A: a number, E numbers, or a function from the interacting weights, a tensor (rows, elements, weights
            of an element), to (rows, E). Of a network E is of all its pairs in the order given, and a function gets a
            dict from layer names to (neighbourhoods, weights of each).
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
        if within == "network":
            pairs = pairs if isinstance(pairs, Across) else Across(pairs)
        elif isinstance(pairs, Mapping):
            raise bad("within", within, f"'network' where pairs are {ALLOWED}")
        elif not callable(pairs):
            pairs = check_pairs(pairs, None)
        values: dict[str, Any] = {
            "given": pairs, "A": strengths, "within": within, "base": base, "centred": bool(centred), "vectors": None,
        }  # fmt: skip
        if not callable(strengths):
            values["A"] = _real(strengths, "strengths", "numbers, and functions of the weights")
            if not bool(torch.isfinite(values["A"]).all()):
                raise UserError("strengths hold NaN or infinite numbers: allowed are finite ones")
            _check_count(
                values["A"], pairs.total if isinstance(pairs, Across) else None if callable(pairs) else len(pairs)
            )
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def low_rank(cls, vectors: Any, within: str = "neighbourhood", base: Linear | None = None) -> Pairwise:
        """H(x) = −½ Σ_r (v_r·x)² + Σ b_i x_i: attraction as a sum of a few squares, drawn exactly at any size.

        ``vectors`` is (squares, elements), one to three squares. A_ij = −Σ_r v_ri v_rj; a single vector of √c is
        :class:`~gibbsprune.Quadratic`. Of a network a mapping from layer names to them.
        """
        allowed = f"numbers of shape (1 to {RANK}, elements), by layer name with within 'network'"
        layers = vectors if isinstance(vectors, Mapping) else {"": vectors}
        if isinstance(vectors, Mapping) != (within == "network") or not layers:
            raise bad("vectors", vectors, allowed)
        each = [_real(some, "vectors", allowed) for some in layers.values()]
        try:
            v = torch.cat(each, -1)
        except RuntimeError:
            raise bad("vectors", vectors, allowed) from None
        if v.dim() != 2 or not 1 <= len(v) <= RANK or not bool(torch.isfinite(v).all()):
            raise UserError(
                f"vectors have shape {tuple(v.shape)}: allowed are finite numbers of shape (1 to {RANK}, elements)"
            )
        given: Any = all_pairs(v.shape[1])
        pairs = given
        if within == "network":
            given = Across.complete({name: some.shape[1] for name, some in zip(layers, each)})
            pairs = given.graph(tuple(given.counts.items())).pairs
        made = cls(given, -(v[:, pairs[:, 0]] * v[:, pairs[:, 1]]).sum(0), within, base)
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
        what = (
            getattr(self.given, "__name__", None) or self.network or f"{len(self.given)} pairs {_token(self.given)[:6]}"
        )
        how = getattr(self.A, "__name__", None) or (f"{self.A.item():g}" if self.A.dim() == 0 else _token(self.A)[:6])
        more = ", centred=True" if self.centred else ""
        return f"Pairwise({what}, {how}, within={self.within!r}, base={self.base!r}{more})"

    @property
    def network(self) -> Across | None:
        return self.given if isinstance(self.given, Across) else None

    def pairing(self, shape: Sequence[int], structure: Structure, name: str = "", peers: Counts = ()) -> Graph:
        if self.network is not None and peers and not callable(self.A):
            _check_count(self.A, len(self.network.graph(peers)))
        graph = super().pairing(shape, structure, name, peers)
        if self.network is None and self.vectors is not None and self.vectors.shape[1] != graph.size:
            raise UserError(f"vectors have {self.vectors.shape[1]} elements: allowed are {graph.size}, which interact")
        return graph

    def pairs(self, grid: Sequence[int]) -> Any:
        return self.given(tuple(grid)) if callable(self.given) else self.given

    def strengths(self, weights: Tensor, graph: Graph) -> Tensor:
        if not callable(self.A):
            _check_count(self.A, len(graph))
            return graph.constant("A", weights.device, lambda: self.A.expand(1, len(graph)).to(weights.device))
        return _checked(self.A(weights), ((len(weights), len(graph)), (1, len(graph))))

    def strengths_across(self, weights: Mapping[str, Tensor], graph: Graph) -> Tensor:
        if not callable(self.A):
            device = next(iter(weights.values())).device
            return graph.constant("A", device, lambda: self.A.expand(len(graph)).to(device))
        return _checked(self.A(weights), ((len(graph),),))


def _real(value: Any, name: str, allowed: str) -> Tensor:
    """Numbers as they are given, in float64."""
    try:
        found = torch.as_tensor(value)
        if not found.is_complex():  # a repelling square has an imaginary root, which is none of the law's
            return found.detach().cpu().double()
    except (TypeError, ValueError, RuntimeError):
        pass
    raise bad(name, value, allowed)


def _checked(found: Any, shapes: tuple[tuple[int, ...], ...]) -> Tensor:
    """What a function of the weights gives, if these are strengths."""
    if not isinstance(found, Tensor) or found.is_complex() or tuple(found.shape) not in shapes:
        given = type(found).__name__ if not isinstance(found, Tensor) else tuple(found.shape)
        given = f"{found.dtype} of shape {given}" if isinstance(found, Tensor) and found.is_complex() else given
        what = ", rows and pairs" if len(shapes[0]) == 2 else ""
        raise UserError(f"the function of strengths gives {given}: allowed are tensors of shape {shapes[0]}{what}")
    if found.device.type == "cpu" and not bool(torch.isfinite(found).all()):  # a GPU would wait for the answer
        raise UserError("the function of strengths gives NaN or infinite numbers: allowed are finite ones")
    return found


def _check_count(strengths: Tensor, pairs: int | None) -> None:
    if strengths.dim() > 1 or (strengths.dim() == 1 and pairs is not None and len(strengths) != pairs):
        count = "as many as pairs" if pairs is None else str(pairs)
        raise UserError(f"strengths have shape {tuple(strengths.shape)}: allowed are one number and {count}")


def _token(value: Any) -> Any:
    if isinstance(value, Across):
        return tuple((names, _token(pairs)) for names, pairs in value.given.items())
    if isinstance(value, (Tensor, np.ndarray)):
        data = value.numpy() if isinstance(value, Tensor) else value
        return hashlib.sha256(repr(data.shape).encode() + np.ascontiguousarray(data).tobytes()).hexdigest()
    return value
