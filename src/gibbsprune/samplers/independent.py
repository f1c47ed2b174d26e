"""Independent spins: a linear Hamiltonian's law has a product form (Proposition 1).

p(x) ∝ exp(−Σ h_i x_i), so P(x_i = +1) = σ(−2 h_i), with h = β a.
"""

from __future__ import annotations

from torch import Tensor

from .rows import Rows


def draw(rows: Rows) -> Tensor:
    """A mask (rows, n); the coupling does not matter."""
    return rows.source.uniform(rows.source.size) < (-2 * rows.field).sigmoid_()
