"""The binary Hamiltonian's law: x_cvg with probability p_cvg (Lemma 1), else uniform over all masks.

Once a layer has decided, its spins are independent: in an infinite field, or in none.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .independent import draw as draw
from .source import Source


def choose(log_p: Tensor, source: Source) -> Tensor:
    """Which layers take x_cvg: one decision per layer, with probability p_cvg given as its logarithm."""
    return source.uniform(1)[:, 0].double().log_() < log_p


def field(converged: Tensor, chosen: Tensor) -> Tensor:
    """h of rows: −∞ where a layer that is ``chosen`` keeps, +∞ where it prunes, 0 in the other layers."""
    return torch.where(chosen, torch.where(converged, -math.inf, math.inf), 0.0)
