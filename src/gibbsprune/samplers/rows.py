"""What a sampler draws from: rows of one or more layers, one neighbourhood each."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .source import Source

SWEEPS = 50  # of the chromatic sampler, as in the paper


@dataclass(frozen=True)
class Rows:
    """p(x) ∝ exp(J Σ_{pairs} x_i x_j − Σ h_i x_i) of every row.

    Args:
        field: h = βb, (rows, n), or (rows, 1) where it is the same for all of a row.
        coupling: J = βc, (rows, 1); 0 where spins are independent.
        source: the rows' random numbers.
        split: where a chain cuts a row in two halves.
        sweeps: how often a chain resamples both.
        limits: the least and the most that a row keeps, if it is limited.
    """

    field: Tensor
    coupling: Tensor
    source: Source
    split: int = 1
    sweeps: int = SWEEPS
    limits: tuple[int, int] | None = None
