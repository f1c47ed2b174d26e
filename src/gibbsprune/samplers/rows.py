"""What a sampler draws from: rows of one or more layers, one neighbourhood each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from ..graphs import Graph
from .source import Source

SWEEPS = 50  # of a chain, as in the paper


class Pairs(NamedTuple):
    """Which elements of a row interact and how: A of the graph's pairs, (1 or rows, pairs).

    ``vectors`` is (squares, n) where A_ij = −Σ_r v_ri v_rj, else None.
    """

    graph: Graph
    strengths: Tensor
    vectors: Tensor | None = None

    def of(self, part: slice) -> Tensor:
        """The strengths of some rows."""
        return self.strengths if len(self.strengths) == 1 else self.strengths[part]


@dataclass(frozen=True)
class Rows:
    """p(x) ∝ exp(J Σ_{pairs} x_i x_j − Σ h_i x_i) of every row; with ``pairs`` exp(−J Σ A_ij x_i x_j − Σ h_i x_i).

    Args:
        field: h = βb, (rows, n), or (rows, 1) where it is the same for all of a row.
        coupling: J = βc, (rows, 1); 0 where spins are independent.
        source: the rows' random numbers.
        split: where a chain cuts a row in two halves.
        sweeps: how often a chain resamples both.
        limits: the least and the most that a row keeps, if it is limited.
        pairs: which elements interact, where these are not all of a row.
        start: the mask that a warm chain goes on from.
    """

    field: Tensor
    coupling: Tensor
    source: Source
    split: int = 1
    sweeps: int = SWEEPS
    limits: tuple[int, int] | None = None
    pairs: Pairs | None = None
    start: Tensor | None = None
