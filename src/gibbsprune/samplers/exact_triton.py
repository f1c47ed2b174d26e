"""The exact sampler in Triton, one launch for all rows. See :mod:`gibbsprune.samplers.exact` for the mathematics.

Short rows (kernels) walk the lattice of u, a few rows to a program. Long ones (filters) draw u from the Taylor proposal
over the whole lattice at once, and walk it only if the proposal is rejected. Where J is large, only the points around
every u = JS are walked. Rows in the two-state regime do neither.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .exact import APART, REACH, SPACING, TOOTH, slack
from .rows import Rows

POINTS = 512  # lattice points that a proposal covers; a row that needs more walks the lattice


@triton.jit
def _tooth(k, root, N: tl.constexpr, SPACING: tl.constexpr, TOOTH: tl.constexpr):
    """Point k of those around every JS, in units of the lattice's spacing."""
    magnetisation = 2 * (k // (2 * TOOTH + 1)) - N
    return tl.floor(magnetisation * root / SPACING + 0.5) + (k % (2 * TOOTH + 1) - TOOTH)


@triton.jit
def _narrow(
    field, coupling, seeds, mask, rows,
    N: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr, SPACING: tl.constexpr, REACH: tl.constexpr,
    SLACK: tl.constexpr, APART: tl.constexpr, TOOTH: tl.constexpr,
):  # fmt: skip
    """Several short rows: u from the lattice, by adding Gumbel noise to log p(u) and taking the largest."""
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
    above, below = tl.maximum(tl.max(h, 1), 0.0), tl.maximum(tl.max(-h, 1), 0.0)
    two = (j * N > 40 + 2 * tl.maximum(above, below)) | (j > tl.minimum(above, below) + SLACK)
    root = tl.sqrt(j)
    apart = j > APART
    reach = tl.where(apart, 0.0, tl.ceil((N * root + REACH) / SPACING))
    points = tl.where(apart, (N + 1.0) * (2 * TOOTH + 1), 2 * reach + 1)
    points = tl.where(two | (r >= rows), 0.0, points)
    best = tl.full([BLOCK_R], float("-inf"), tl.float32)
    u = tl.zeros([BLOCK_R], tl.float32)
    for k in range(tl.max(points, 0).to(tl.int32)):
        point = SPACING * root * tl.where(apart, _tooth(k, root, N, SPACING, TOOTH), k - reach)
        far = tl.abs(point)
        z = tl.abs(point[:, None] - h)
        # log 2cosh summed as its excess over |u|, so that large terms cancel on paper and not in float32
        excess = tl.where(live, (z - far[:, None]) + tl.log(1 + tl.exp(-2 * z)), 0.0)
        short = far - j * N
        value = tl.sum(excess, 1) - short * (short / (2 * j))
        noise = tl.maximum(tl.rand(seed, zero + k), 1e-10)
        value = tl.where(k < points, value - tl.log(-tl.log(noise)), float("-inf"))
        u = tl.where(value > best, point, u)
        best = tl.maximum(value, best)
    dice = tl.rand(seed[:, None], (1 << 20) + c[None, :] + zero[:, None])
    spins = tl.maximum(dice, 2.0e-8) < tl.sigmoid(2 * (u[:, None] - h))
    coin = tl.maximum(tl.rand(seed, zero + (1 << 19)), 2.0e-8) < tl.sigmoid(-2 * total)
    spins = (spins & (two[:, None] == 0)) | (coin[:, None] & two[:, None])
    tl.store(mask + at, spins.to(tl.int8), mask=live)


@triton.jit
def _wide(
    field, coupling, seeds, mask,
    N: tl.constexpr, BLOCK_N: tl.constexpr, POINTS: tl.constexpr, SPACING: tl.constexpr, REACH: tl.constexpr,
    SLACK: tl.constexpr, APART: tl.constexpr, TOOTH: tl.constexpr,
):  # fmt: skip
    """One long row: a proposal from the Taylor polynomial of the log density, the lattice itself if rejected."""
    r = tl.program_id(0).to(tl.int64)
    c, k = tl.arange(0, BLOCK_N), tl.arange(0, POINTS)
    live = c < N
    h = tl.load(field + r * N + c, mask=live, other=0.0)
    j = tl.load(coupling + r)
    seed = tl.load(seeds + r)
    total = tl.sum(h, 0)
    above, below = tl.maximum(tl.max(h, 0), 0.0), tl.maximum(tl.max(-h, 0), 0.0)
    two = (j * N > 40 + 2 * tl.maximum(above, below)) | (j > tl.minimum(above, below) + SLACK)
    mean = total / N
    away = tl.where(live, h - mean, 0.0)
    second = tl.sum(away * away, 0)
    third = tl.sum(away * away * away, 0)
    error = tl.sum(away * away * away * away, 0) / 12
    root = tl.sqrt(j)
    reach = tl.ceil((N * root + REACH) / SPACING)
    points = SPACING * root * (k - reach)
    v = points - mean
    t = 2 * tl.sigmoid(2 * v) - 1
    bend = tl.abs(v) - tl.abs(points) + tl.log(1 + tl.exp(-2 * tl.abs(v)))
    short = tl.abs(points) - j * N
    guess = N * bend + (1 - t * t) * (second / 2 + t * third / 3) - short * short / (2 * j)
    noise = tl.maximum(tl.rand(seed, k), 1e-10)
    fits = (error < 1) & (2 * reach < POINTS)
    noisy = tl.where(k <= tl.where(fits, 2 * reach, -1.0), guess - tl.log(-tl.log(noise)), float("-inf"))
    chosen = k == tl.argmax(noisy, 0)
    u = tl.sum(tl.where(chosen, points, 0.0), 0)
    guessed = tl.sum(tl.where(chosen, guess, 0.0), 0)
    z = tl.abs(u - h)
    excess = tl.where(live, (z - tl.abs(u)) + tl.log(1 + tl.exp(-2 * z)), 0.0)
    true = tl.sum(excess, 0) - (tl.abs(u) - j * N) * (tl.abs(u) - j * N) / (2 * j)
    coins = tl.maximum(tl.rand(seed, (1 << 19) + tl.arange(0, 2)), 2.0e-8)
    first = tl.sum(tl.where(tl.arange(0, 2) == 0, coins, 0.0), 0)
    other = tl.sum(tl.where(tl.arange(0, 2) == 1, coins, 0.0), 0)
    apart = j > APART
    count = tl.where(apart, (N + 1.0) * (2 * TOOTH + 1), 2 * reach + 1)
    again = tl.where(two | (fits & (tl.log(first) < true - guessed - error)), 0.0, count)
    best = tl.sum(tl.full([1], float("-inf"), tl.float32), 0)
    for step in range(again.to(tl.int32)):
        point = SPACING * root * tl.where(apart, _tooth(step, root, N, SPACING, TOOTH), step - reach)
        z = tl.abs(point - h)
        excess = tl.where(live, (z - tl.abs(point)) + tl.log(1 + tl.exp(-2 * z)), 0.0)
        beside = tl.abs(point) - j * N
        value = tl.sum(excess, 0) - beside * (beside / (2 * j))
        fresh = tl.maximum(tl.sum(tl.rand(seed, (1 << 21) + step + tl.arange(0, 1)), 0), 1e-10)
        value -= tl.log(-tl.log(fresh))
        u = tl.where(value > best, point, u)
        best = tl.maximum(value, best)
    dice = tl.maximum(tl.rand(seed, (1 << 20) + c), 2.0e-8)
    chance = tl.where(two, tl.sigmoid(-2 * total), tl.sigmoid(2 * (u - h)))
    spins = tl.where(two, other, dice) < chance
    tl.store(mask + r * N + c, spins.to(tl.int8), mask=live)


def draw(rows: Rows) -> Tensor:
    """A mask from the law of every row, as :func:`gibbsprune.samplers.exact.draw`."""
    count, size = rows.field.shape
    mask = torch.empty(count, size, dtype=torch.bool, device=rows.field.device)
    tensors = (rows.field.contiguous(), rows.coupling.contiguous(), rows.source.seeds(), mask.view(torch.int8))
    block_n = max(16, triton.next_power_of_2(size))
    constants = {"N": size, "BLOCK_N": block_n, "SPACING": SPACING, "REACH": REACH, "SLACK": slack(size)}
    constants |= {"APART": APART, "TOOTH": TOOTH}
    if size > 32:
        _wide[(count,)](*tensors, **constants, POINTS=POINTS)
    else:  # few rows to a program, since one row outside the two-state regime makes all of them walk the lattice
        block_r = 64 // block_n
        _narrow[(triton.cdiv(count, block_r),)](*tensors, count, **constants, BLOCK_R=block_r, num_warps=1)
    return mask
