"""Exact draws of couplings that are sums of a few squares, at any size, by one auxiliary field for each square.

p(x) ∝ exp((J/2) Σ_r (v_r·x)² − Σ h_i x_i) is what pairs A_ij = −Σ_r v_ri v_rj give (x_i² = 1 makes no difference). With
one Gaussian integral for each square (Hubbard–Stratonovich)

    p(u) ∝ exp(−|u|²/2J) Π_i 2cosh(Σ_r v_ri u_r − h_i),    P(x_i = +1 | u) = σ(2(Σ_r v_ri u_r − h_i)).

u is drawn on a lattice of spacing 0.9 √J, which by Poisson summation is the integral up to a factor 1 ± 6·10^−11 for
each square, whatever v_r·x is: :mod:`gibbsprune.samplers.exact` is the case of one v of ones. The lattice has
2.2 √J Σ|v| + 15 points along each axis. Most of them have no mass at low temperatures, and are found at a coarser
spacing Δ: the second derivatives of log p(u) are at least −1/J, so that inside a box it exceeds its greatest value at a
corner by no more than Δ²/8J for each axis. Boxes that together have less than e^−25 of the mass are left out.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from .exact import REACH, SPACING, _log_cosh, _pick
from .rows import Rows

RANK = 3
STRIDE = {1: 16, 2: 6, 3: 4}  # lattice points along a box, by the number of squares
NEGLIGIBLE = 25.0  # what has less than e^−25 of the mass, a tenth of the lattice's own error, is left out
BLOCK = 1 << 22  # numbers worked on at once


def draw(rows: Rows) -> Tensor:
    """A mask (rows, n) from the law of every row."""
    assert rows.pairs is not None
    assert rows.pairs.vectors is not None
    uniform, spins = rows.source.uniform(1).double(), rows.source.uniform(rows.field.shape[1])
    vectors = rows.pairs.vectors.to(rows.field.device).double()
    stride = STRIDE[len(vectors)]
    reach = (vectors.abs().sum(1) * math.sqrt(float(rows.coupling.max())) + REACH) / SPACING
    boxes = [2 * math.ceil(float(r) / stride) for r in reach]
    corners = torch.cartesian_prod(*(torch.arange(-(b // 2), b // 2 + 1) for b in boxes)).reshape(-1, len(vectors))
    inside = torch.cartesian_prod(*[torch.arange(stride)] * len(vectors)).reshape(-1, len(vectors))
    corners, inside = (c.to(vectors) for c in (corners * stride, inside))
    step = max(1, BLOCK // (len(corners) * vectors.shape[1]))
    parts = zip(*(t.split(step) for t in (rows.field.double(), rows.coupling.double(), uniform, spins)))
    return torch.cat([_draw(h, j, u, s, vectors, corners, inside, boxes) for h, j, u, s in parts])


def _draw(
    field: Tensor,
    coupling: Tensor,
    uniform: Tensor,
    spins: Tensor,
    vectors: Tensor,
    corners: Tensor,
    inside: Tensor,
    boxes: list[int],
) -> Tensor:
    """Some rows: first the boxes that can have mass, then a point in them, then the spins."""
    stride, rank = STRIDE[len(vectors)], len(vectors)
    at_corners = log_density(corners[None], field, coupling, vectors)
    table = at_corners.view(-1, *(b + 1 for b in boxes))
    best = torch.full((len(field), *boxes), -math.inf, dtype=table.dtype, device=table.device)
    for corner in itertools.product((0, 1), repeat=rank):
        best = torch.maximum(best, table[(slice(None), *(slice(c, c + b) for c, b in zip(corner, boxes)))])
    best = best.flatten(1) + rank * (stride * SPACING) ** 2 / 8
    # A box holds stride^rank points, each below its bound.
    least = at_corners.amax(1, keepdim=True) - NEGLIGIBLE - math.log(best.shape[1] * len(inside))
    count = max(1, int((best >= least).sum(1).max()))
    chosen = best.topk(count, 1).indices.sort(1).values
    first = corners.view(*(b + 1 for b in boxes), rank)[tuple(slice(0, b) for b in boxes)].reshape(-1, rank)
    points = (first[chosen][:, :, None] + inside).flatten(1, 2)  # (rows, count · stride^rank, rank)
    step = max(1, BLOCK // (points.shape[1] * vectors.shape[1]))
    drawn = []
    for p, h, j, u in zip(*(t.split(step) for t in (points, field, coupling, uniform))):
        index = _pick(torch.arange(p.shape[1], device=p.device).expand(len(p), -1), log_density(p, h, j, vectors), u)
        drawn.append(p.gather(1, index[:, :, None].expand(-1, 1, rank)).squeeze(1))
    local = SPACING * coupling.sqrt() * torch.cat(drawn) @ vectors - field
    return spins < (2 * local).sigmoid_()


def log_density(points: Tensor, field: Tensor, coupling: Tensor, vectors: Tensor) -> Tensor:
    """log p(u) + constant at u = 0.9 √J · points, (rows, points); ``points`` is (1 or rows, points, squares)."""
    pull = (SPACING * points) @ vectors  # (1 or rows, points, n)
    found = []
    step = max(1, BLOCK // (max(1, len(field)) * field.shape[1]))
    for some in pull.split(step, 1):
        found.append(_log_cosh(coupling.sqrt()[:, :, None] * some - field[:, None]).sum(-1))
    return torch.cat(found, 1) - (SPACING * points).square().sum(-1) / 2
