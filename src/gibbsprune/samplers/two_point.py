"""The binary Hamiltonian's law: x_cvg with probability p_cvg (Lemma 1), else uniform over all masks."""

from __future__ import annotations

import torch
from torch import Tensor

from .source import Source


def draw(converged: Tensor, log_p: Tensor, layer: Tensor, first: Tensor, source: Source) -> Tensor:
    """A mask (rows, n) for several layers at once.

    ``converged`` is x_cvg as (rows, 1), ``log_p`` log p_cvg per layer, ``layer`` the layer of each row and
    ``first`` the first row of each layer (whose random number decides for the whole layer).
    """
    coin = source.uniform(1)[first, 0].double()
    chosen = coin.log_() < log_p
    bits = source.uniform(source.size) < 0.5
    return torch.where(chosen[layer, None], converged, bits)
