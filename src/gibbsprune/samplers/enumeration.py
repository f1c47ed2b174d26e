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


def draw(rows: Rows) -> Tensor:
    """A mask (rows, n) from the law p(x) ∝ exp(J S²/2 − Σ h_i x_i) of every row."""
    field, coupling = rows.field, rows.coupling
    count, size = field.shape
    spins = states(size, field.device, torch.float64)
    uniform = rows.source.uniform(1).double()
    chosen = torch.empty(count, dtype=torch.long, device=field.device)
    for part in torch.arange(count, device=field.device).split(max(1, BUDGET >> size)):
        span = slice(int(part[0]), int(part[-1]) + 1)
        weights = log_weights(field[span].double(), coupling[span].double(), spins)
        total = weights.softmax(1).cumsum(1)
        index = torch.searchsorted(total, uniform[span] * total[:, -1:], right=True)
        chosen[span] = index.squeeze(1).clamp_(max=len(spins) - 1)
    return spins[chosen] > 0
