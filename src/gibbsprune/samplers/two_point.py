"""The binary Hamiltonian's law: x_cvg with probability p_cvg (Lemma 1), else uniform over all masks."""

from __future__ import annotations

import torch
from torch import Tensor

from .source import Source


def choose(log_p: Tensor, source: Source) -> Tensor:
    """Which layers take x_cvg: one decision per layer, with probability p_cvg given as its logarithm."""
    return source.uniform(1)[:, 0].double().log_() < log_p


def draw(converged: Tensor, chosen: Tensor, source: Source) -> Tensor:
    """A mask (rows, n): x_cvg, given as (rows, 1), in the ``chosen`` (rows, 1), elsewhere uniform."""
    return torch.where(chosen, converged, source.uniform(source.size) < 0.5)
