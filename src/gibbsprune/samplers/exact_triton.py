"""The exact sampler as one Triton kernel: a block of rows per program, its lattice of u in a loop.

On a GPU the full lattice is cheap, so there is no proposal: the point u is drawn by adding Gumbel noise to log p(u) and
taking the largest, in one pass. Rows in the two-state regime skip the loop. See :mod:`gibbsprune.samplers.exact`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .exact import REACH, SPACING
from .source import Source


@triton.jit
def _kernel(
    field, coupling, seeds, mask, rows,
    N: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, SPACING: tl.constexpr, REACH: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    c = tl.arange(0, BLOCK_N)
    row_ok = r < rows
    live = row_ok[:, None] & (c < N)[None, :]
    at = r[:, None] * N + c[None, :]
    h = tl.load(field + at, mask=live, other=0.0)
    j = tl.load(coupling + r, mask=row_ok, other=1.0)
    seed = tl.load(seeds + r, mask=row_ok, other=0)
    zero = tl.zeros([BLOCK_R], tl.int32)
    total = tl.sum(h, 1)
    extreme = tl.max(tl.abs(h), 1)
    two = j * N > 40 + 2 * extreme
    root = tl.sqrt(j)
    points = tl.where(two | (r >= rows), 0.0, tl.ceil((N * root + REACH) / SPACING))
    best = tl.full([BLOCK_R], float("-inf"), tl.float32)
    u = tl.zeros([BLOCK_R], tl.float32)
    for k in range(2 * tl.max(points, 0).to(tl.int32) + 1):
        point = SPACING * root * (k - points)
        far = tl.abs(point)
        z = tl.abs(point[:, None] - h)
        # log 2cosh summed as its excess over |u|, so that large terms cancel on paper and not in float32
        excess = tl.where(live, (z - far[:, None]) + tl.log(1 + tl.exp(-2 * z)), 0.0)
        short = far - j * N
        value = tl.sum(excess, 1) - short * short / (2 * j)
        noise = tl.maximum(tl.rand(seed, zero + k), 1e-10)
        value = tl.where(k <= 2 * points, value - tl.log(-tl.log(noise)), float("-inf"))
        u = tl.where(value > best, point, u)
        best = tl.maximum(value, best)
    dice = tl.rand(seed[:, None], (1 << 20) + c[None, :] + zero[:, None])
    spins = tl.maximum(dice, 2.0e-8) < tl.sigmoid(2 * (u[:, None] - h))
    coin = tl.maximum(tl.rand(seed, zero + (1 << 19)), 2.0e-8) < tl.sigmoid(-2 * total)
    spins = (spins & (two[:, None] == 0)) | (coin[:, None] & two[:, None])
    tl.store(mask + at, spins.to(tl.int8), mask=live)


def draw(field: Tensor, coupling: Tensor, source: Source) -> Tensor:
    """A mask from the law of every row, as :func:`gibbsprune.samplers.exact.draw`."""
    rows, size = field.shape
    mask = torch.empty(rows, size, dtype=torch.bool, device=field.device)
    block_n = max(16, triton.next_power_of_2(size))
    block_r = max(1, 1024 // block_n)
    _kernel[(triton.cdiv(rows, block_r),)](
        field.contiguous(), coupling.contiguous(), source.seeds(), mask.view(torch.int8), rows,
        N=size, BLOCK_R=block_r, BLOCK_N=block_n, SPACING=SPACING, REACH=REACH,
    )  # fmt: skip
    return mask
