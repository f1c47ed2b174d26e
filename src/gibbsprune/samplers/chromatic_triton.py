"""The chromatic chain as one Triton kernel: a row per program, all its sweeps without leaving the registers.

As separate PyTorch operations 50 sweeps are hundreds of launches per step. See :mod:`gibbsprune.samplers.chromatic`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .rows import Rows


@triton.jit
def _half(h, live, other, j, dice):
    """A half given the other's sum: its spins and its own sum."""
    up = tl.where(tl.maximum(dice, 2.0e-8) < tl.sigmoid(2 * (j * other - h)), live, 0.0)
    return up, tl.sum(2.0 * up - live, 0)


@triton.jit
def _kernel(
    field, coupling, seeds, mask, sweeps,
    N: tl.constexpr, SPLIT: tl.constexpr, SMALLER: tl.constexpr, BLOCK_A: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0).to(tl.int64)
    a, b = tl.arange(0, BLOCK_A), SPLIT + tl.arange(0, BLOCK_B)
    in_a, in_b = a < SPLIT, b < N
    live_a, live_b = in_a.to(tl.float32), in_b.to(tl.float32)
    h_a = tl.load(field + r * N + a, mask=in_a, other=0.0)
    h_b = tl.load(field + r * N + b, mask=in_b, other=0.0)
    j = tl.load(coupling + r)
    seed = tl.load(seeds + r)
    total = tl.sum(h_a, 0) + tl.sum(h_b, 0)
    extreme = tl.maximum(tl.max(tl.abs(h_a), 0), tl.max(tl.abs(h_b), 0))
    dice = tl.maximum(tl.rand(seed, (1 << 29) + 0 * tl.program_id(0)), 2.0e-8)
    kept = tl.where(dice < tl.sigmoid(-2 * total), 1.0, 0.0)
    up_a, up_b = live_a * kept, live_b * kept
    other = (2.0 * kept - 1.0) * (N - SPLIT)
    frozen = j * SMALLER > 20 + extreme
    last = tl.where(frozen, 0, sweeps)
    for block in range((last + 3) // 4):  # four sweeps from each call of the random number generator
        a0, a1, a2, a3 = tl.rand4x(seed, block * (2 * N) + a)
        b0, b1, b2, b3 = tl.rand4x(seed, block * (2 * N) + N + b)
        up_a, sum_a = _half(h_a, live_a, other, j, a0)
        up_b, other = _half(h_b, live_b, sum_a, j, b0)
        if 4 * block + 1 < last:
            up_a, sum_a = _half(h_a, live_a, other, j, a1)
            up_b, other = _half(h_b, live_b, sum_a, j, b1)
        if 4 * block + 2 < last:
            up_a, sum_a = _half(h_a, live_a, other, j, a2)
            up_b, other = _half(h_b, live_b, sum_a, j, b2)
        if 4 * block + 3 < last:
            up_a, sum_a = _half(h_a, live_a, other, j, a3)
            up_b, other = _half(h_b, live_b, sum_a, j, b3)
    tl.store(mask + r * N + a, up_a.to(tl.int8), mask=in_a)
    tl.store(mask + r * N + b, up_b.to(tl.int8), mask=in_b)


def draw(rows: Rows) -> Tensor:
    """A mask after ``rows.sweeps`` sweeps, as :func:`gibbsprune.samplers.chromatic.draw`."""
    (count, size), split = rows.field.shape, rows.split
    mask = torch.empty(count, size, dtype=torch.bool, device=rows.field.device)
    _kernel[(count,)](
        rows.field.contiguous(),
        rows.coupling.contiguous(),
        rows.source.seeds(),
        mask.view(torch.int8),
        rows.sweeps,
        N=size,
        SPLIT=split,
        SMALLER=min(split, size - split),
        BLOCK_A=max(16, triton.next_power_of_2(split)),
        BLOCK_B=max(16, triton.next_power_of_2(size - split)),
    )
    return mask
