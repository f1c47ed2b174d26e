"""Enumeration: all 2^n states of a neighbourhood, as the paper samples kernels. For n up to 16."""

from __future__ import annotations

import torch
from torch import Tensor

from .rows import Rows

LIMIT = 16
BUDGET = 1 << 22  # probabilities held at once


def states(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """All 2^n spin configurations as rows of ±1."""
    codes = torch.arange(1 << size, device=device)
    bits = (codes[:, None] >> torch.arange(size, device=device)) & 1
    return bits.to(dtype) * 2 - 1


def log_weights(field: Tensor, coupling: Tensor, spins: Tensor) -> Tensor:
    """−βH of every state: (J/2) S² − Σ h_i x_i, up to a constant."""
    return coupling * spins.sum(1).square() / 2 - field @ spins.T


def log_weights_of_pairs(rows: Rows, part: slice, spins: Tensor) -> Tensor:
    """−βH of every state where pairs say which elements interact: −J Σ A_ij x_i x_j − Σ h_i x_i."""
    assert rows.pairs is not None
    one, two = rows.pairs.graph.ends(spins.device)
    alike = rows.pairs.graph.constant("alike", spins.device, lambda: (spins[:, one] * spins[:, two]).T.contiguous())
    pairs = rows.pairs.of(part).double() @ alike
    return -rows.coupling[part].double() * pairs - rows.field[part].double() @ spins.T


def draw(rows: Rows) -> Tensor:
    """A mask (rows, n) from the law of every row."""
    field, coupling = rows.field, rows.coupling
    count, size = field.shape
    spins = states(size, field.device, torch.float64)
    uniform = rows.source.uniform(1).double()
    chosen = torch.empty(count, dtype=torch.long, device=field.device)
    step = max(1, BUDGET >> size)
    for first in range(0, count, step):
        span = slice(first, first + step)
        if rows.pairs is None:
            weights = log_weights(field[span].double(), coupling[span].double(), spins)
        else:
            weights = log_weights_of_pairs(rows, span, spins)
        total = weights.softmax(1).cumsum(1)
        index = torch.searchsorted(total, uniform[span] * total[:, -1:], right=True)
        chosen[span] = index.squeeze(1).clamp_(max=len(spins) - 1)
    return spins[chosen] > 0
