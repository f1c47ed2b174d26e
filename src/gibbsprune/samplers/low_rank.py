"""Exact draws of couplings that are sums of a few squares, at any size, by one auxiliary field for each square.

p(x) ∝ exp((J/2) Σ_r (v_r·x)² − Σ h_i x_i) is what pairs A_ij = −Σ_r v_ri v_rj give (x_i² = 1 makes no difference). With
one Gaussian integral for each square (Hubbard–Stratonovich)

    p(u) ∝ exp(−|u|²/2J) Π_i 2cosh(Σ_r v_ri u_r − h_i),    P(x_i = +1 | u) = σ(2(Σ_r v_ri u_r − h_i)).

u is drawn on a lattice of spacing 0.9 √J, which by Poisson summation is the integral up to a factor 1 ± 6·10^−11 for
each square, whatever v_r·x is: :mod:`gibbsprune.samplers.exact` is the case of one v of ones. The lattice has
2.2 √J Σ|v| + 15 points along each axis. Most of them have no mass at low temperatures, and are left out in boxes, of
which those that may have mass are halved again and again: the second derivatives of log p(u) are at least −1/J, so that
inside a box of sides Δ it exceeds its greatest value at a corner by no more than Δ²/8J for each axis. Boxes that
together have less than e^−25 of the mass are left out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .exact import REACH, SPACING, _log_cosh, _pick
from .rows import Rows

RANK = 3
STRIDE = {1: 16, 2: 6, 3: 4}  # lattice points along the smallest boxes, by the number of squares
FIRST = 4  # boxes at most on either side of the origin, along each axis, to begin with
MOST = 24  # halvings: where there are more, from β = 10^15 on, float64 does not tell log p of the points apart
NEGLIGIBLE = 25.0  # what has less than e^−25 of the mass, a tenth of the lattice's own error, is left out
BLOCK = 1 << 22  # numbers worked on at once


def draw(rows: Rows) -> Tensor:
    """A mask (rows, n) from the law of every row."""
    assert rows.pairs is not None
    assert rows.pairs.vectors is not None
    uniform, spins = rows.source.uniform(1).double(), rows.source.uniform(rows.field.shape[1])
    vectors = rows.pairs.vectors.to(rows.field.device).double()
    reach = (vectors.abs().sum(1) * math.sqrt(float(rows.coupling.max())) + REACH) / SPACING
    halvings = max(0, math.ceil(math.log2(float(reach.max()) / (FIRST * STRIDE[len(vectors)]))))
    side = STRIDE[len(vectors)] * 2.0**halvings
    counts = [math.ceil(float(r) / side) for r in reach]  # of boxes, on either side of the origin
    boxes = side * torch.cartesian_prod(*(torch.arange(-c, c) for c in counts)).reshape(1, -1, len(vectors)).to(vectors)
    step = max(1, BLOCK // (boxes.shape[1] * vectors.numel()))
    parts = zip(*(t.split(step) for t in (rows.field.double(), rows.coupling.double(), uniform, spins)))
    return torch.cat([_draw(h, j, u, s, vectors, boxes, side, min(halvings, MOST)) for h, j, u, s in parts])


def _draw(
    field: Tensor,
    coupling: Tensor,
    uniform: Tensor,
    spins: Tensor,
    vectors: Tensor,
    boxes: Tensor,
    side: float,
    halvings: int,
) -> Tensor:
    """Some rows: first the boxes that can have mass, then a point in them, then the spins."""
    rank, stride = len(vectors), STRIDE[len(vectors)]
    points = math.log(boxes.shape[1]) + rank * math.log(side)  # of the whole lattice
    boxes = _likely(boxes.expand(len(field), -1, -1), side, points, field, coupling, vectors)
    for _ in range(halvings):
        side /= 2
        boxes = (boxes[:, :, None] + side * _within(2, vectors)).flatten(1, 2)
        boxes = _likely(boxes, side, points, field, coupling, vectors)
    drawn = []
    step = max(1, BLOCK // (boxes.shape[1] * stride**rank * vectors.shape[1]))
    for b, h, j, u in zip(*(t.split(step) for t in (boxes, field, coupling, uniform))):
        p = (b[:, :, None] + side / stride * _within(stride, vectors)).flatten(1, 2)  # (rows, points, rank)
        index = _pick(torch.arange(p.shape[1], device=p.device).expand(len(p), -1), log_density(p, h, j, vectors), u)
        drawn.append(p.gather(1, index[:, :, None].expand(-1, 1, rank)).squeeze(1))
    local = SPACING * coupling.sqrt() * torch.cat(drawn) @ vectors - field
    return spins < (2 * local).sigmoid_()


def _within(side: int, vectors: Tensor) -> Tensor:
    """The lattice's points of a box at the origin, (side^rank, rank)."""
    axes = [torch.arange(side)] * len(vectors)
    return torch.cartesian_prod(*axes).reshape(-1, len(vectors)).to(vectors)


def _likely(boxes: Tensor, side: float, points: float, field: Tensor, coupling: Tensor, vectors: Tensor) -> Tensor:
    """Those of the boxes (rows, boxes, rank), by their lowest corners, that can have mass; equally many of each row.

    What is left out, of a lattice of exp(``points``) points, has less than e^−25 of the mass in all.
    """
    corners = (boxes[:, :, None] + side * _within(2, vectors)).flatten(1, 2)
    best = log_density(corners, field, coupling, vectors).view(*boxes.shape[:2], -1).amax(2)
    least = best.amax(1, keepdim=True) - NEGLIGIBLE - points - len(vectors) * (side * SPACING) ** 2 / 8
    count = max(1, int((best >= least).sum(1).max()))
    chosen = best.topk(count, 1).indices.sort(1).values
    return boxes.gather(1, chosen[:, :, None].expand(-1, -1, len(vectors)))


def log_density(points: Tensor, field: Tensor, coupling: Tensor, vectors: Tensor) -> Tensor:
    """log p(u) + constant at u = 0.9 √J · points, (rows, points); ``points`` is (1 or rows, points, squares)."""
    found = []
    step = max(1, BLOCK // (max(1, len(field)) * field.shape[1]))
    for some in (SPACING * points).split(step, 1):
        pull = coupling.sqrt()[:, :, None] * (some @ vectors)  # (rows, points, n)
        found.append(_log_cosh(pull - field[:, None]).sum(-1) - some.square().sum(-1) / 2)
    return torch.cat(found, 1)
