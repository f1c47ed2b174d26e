"""What a mask leaves of the weights that it keeps: all, or what is left after shrinking them by the threshold.

Shrunk, a weight comes and goes at zero, so that a mask that changes is no jump of the network (docs/theory.md). That
makes layers weaker, too. A layer that a norm follows is given its strength back, and the gradient with it: it trains as
if it were only shrunk, and running statistics stay true. Rescaled, the other layers are as strong as before, too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import limits
from .structures import Structure, as_structure, given_sparsity
from .threshold import check_weight, converged_mask, mean_squares, quantile, squared_rows

SURVIVORS = ("whole", "shrunk", "rescaled")
PIECE, LONG = 1 << 10, 1 << 17  # of what float64 would take three times as long to add up


def keeps_strength(survivors: str, normed: bool) -> bool:
    """Whether a layer whose survivors lose something is multiplied by a factor; ``normed``: a norm follows it."""
    return survivors == "rescaled" or (survivors == "shrunk" and normed)


def shrunk_mask(weight: Tensor, sparsity: float | None = None, structure: str | Structure = "weight") -> Tensor:
    """x_cvg·(1 − √(Q/w̄²)): what is left of each weight where survivors are shrunk by the threshold.

    >>> import torch
    >>> w = torch.tensor([1.0, -2.0, 4.0])
    >>> (w * shrunk_mask(w, 0.5)).tolist()
    [0.0, -0.0, 2.0]
    """
    kind, weight = as_structure(structure), check_weight(weight)
    sparsity = given_sparsity(sparsity, kind)
    mask = converged_mask(weight, sparsity, kind)
    if sparsity == 0:
        return mask.to(weight.dtype)
    if kind.limited:
        values, (least, most) = squared_rows(weight, kind), kind.limits(weight.shape)
        bound = limits.cuts(values, most)[1]
        if least < most:
            bound = torch.maximum(bound, quantile(limits.eligible(values, most).flatten(), sparsity))
    else:
        values = mean_squares(weight, kind)[:, None]
        bound = quantile(values.flatten(), sparsity)
    left = left_share(values, bound).expand(-1, kind.size(weight.shape))
    return kind.unrows(left, weight.shape).to(weight.dtype) * mask


def left_share(means: Tensor, threshold: Tensor) -> Tensor:
    """1 − √(Q/w̄²), at least 0: the share of its value that shrinking by the threshold leaves of a neighbourhood."""
    lost = threshold / means.clamp_min(torch.finfo(means.dtype).tiny)
    return lost.clamp_(max=1).sqrt_().neg_().add_(1)  # in place: of a large layer it is felt


def strength(weight: Tensor, left: Tensor) -> Tensor:
    """The factor of each row that gives its survivors, as many as they are, their mean magnitude back.

    >>> import torch
    >>> w = torch.tensor([1.0, -3.0, 4.0])
    >>> left = shrunk_mask(w, 0.5)
    >>> (w * left * strength(w, left)).tolist()
    [0.0, -0.0, 4.0]

    Args:
        weight: rows of weights.
        left: what shrinking has left of each of them, from 0 to 1.
    """
    whole, now = _size(weight * (left > 0)), _size(weight * left)
    return torch.where(now > 0, whole / now, 1).to(left.dtype)


def _size(values: Tensor) -> Tensor:
    """Σ|v| of each row, the same in whatever company; of long ones in pieces that float32 adds up well."""
    length = values.shape[-1]
    if length <= LONG:
        return values.abs().sum(-1, keepdim=True, dtype=torch.float64)
    whole = length - length % PIECE
    pieces = values[..., :whole].unflatten(-1, (-1, PIECE))
    return _size(torch.linalg.vector_norm(pieces, 1, dim=-1)) + _size(values[..., whole:])
