"""Survivors that are shrunk by the threshold, so that weights come and go at zero (:mod:`gibbsprune.masking`)."""

from __future__ import annotations

import torch
from torch import Tensor

from .structures import Structure, as_structure
from .threshold import check_weight, converged_mask, mean_squares, quantile


def shrunk_mask(weight: Tensor, sparsity: float, structure: str | Structure = "weight") -> Tensor:
    """x_cvg·(1 − √(Q/w̄²)): what is left of each weight where survivors are shrunk by the threshold.

    >>> import torch
    >>> w = torch.tensor([1.0, -2.0, 4.0])
    >>> (w * shrunk_mask(w, 0.5)).tolist()
    [0.0, -0.0, 2.0]
    """
    kind, weight = as_structure(structure), check_weight(weight)
    means = mean_squares(weight, kind)
    mask = converged_mask(weight, sparsity, kind)
    if sparsity == 0:
        return mask.to(weight.dtype)
    lost = lost_share(means, quantile(means, sparsity))
    left = (1 - lost)[:, None].expand(-1, kind.size(weight.shape))
    return kind.unrows(left, weight.shape).to(weight.dtype) * mask


def lost_share(means: Tensor, threshold: Tensor) -> Tensor:
    """√(Q/w̄²), at most 1: the share of its value that shrinking by the threshold takes from a neighbourhood."""
    return (threshold / means.clamp_min(torch.finfo(means.dtype).tiny)).clamp(max=1).sqrt()
