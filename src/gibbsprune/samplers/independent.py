"""Independent spins: a linear Hamiltonian's law has a product form (Proposition 1).

p(x) ∝ exp(−Σ h_i x_i), so P(x_i = +1) = σ(−2 h_i), with h = β a.
"""

from __future__ import annotations

from torch import Tensor

from .source import Source


def draw(field: Tensor, source: Source) -> Tensor:
    """A mask from a field h = βa of any shape (rows, n)."""
    return source.uniform(field.shape[1]) < (-2 * field).sigmoid_()
