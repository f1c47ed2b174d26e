"""Order statistics of all layers at once in Triton: radix selection over blocks of all layers in parallel.

Floats ≥ 0 order as their bits. Three passes find the bits of the wanted value, 11, 10 and 10 at a time from the top:
every block adds its values' next digits to its layer's histogram, which tells the wanted value's digit. A last pass
finds the value after it. Exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
BINS = 2048
DIGITS = ((20, 11), (10, 10), (0, 10))  # shift and width of each pass
LARGEST = 0x7FFFFFFF


@triton.jit
def _count(
    bits, block_segment, block_start, block_end, prefix, counts,
    SHIFT: tl.constexpr, WIDTH: tl.constexpr, BINS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Counts the next digit of a block's values, among those whose bits above agree with the prefix."""
    b = tl.program_id(0)
    segment, start = tl.load(block_segment + b), tl.load(block_start + b)
    at = start + tl.arange(0, BLOCK)
    inside = at < tl.load(block_end + b)
    value = tl.load(bits + at, mask=inside, other=0)
    match = inside & ((value >> (SHIFT + WIDTH)) == tl.load(prefix + segment))
    digit = tl.where(match, (value >> SHIFT) & ((1 << WIDTH) - 1), 0)
    tl.atomic_add(counts + segment * BINS + digit, tl.full([BLOCK], 1, tl.int32), mask=match, sem="relaxed")


@triton.jit
def _narrow(counts, prefix, rank, WIDTH: tl.constexpr, BINS: tl.constexpr):
    """Takes the digit that holds the wanted rank into the prefix, and clears the histogram for the next pass."""
    s, bins = tl.program_id(0), tl.arange(0, BINS)
    histogram = tl.load(counts + s * BINS + bins)
    left = tl.load(rank + s)
    digit = tl.sum((tl.cumsum(histogram, 0) <= left).to(tl.int32), 0)
    before = tl.sum(tl.where(bins < digit, histogram, 0), 0)
    tl.store(prefix + s, (tl.load(prefix + s) << WIDTH) | digit)
    tl.store(rank + s, left - before)
    tl.store(counts + s * BINS + bins, tl.zeros([BINS], tl.int32))


@triton.jit
def _after(bits, block_segment, block_start, block_end, found, upto, least, BLOCK: tl.constexpr):
    """Counts the values up to the one found, and finds the least above it."""
    b = tl.program_id(0)
    segment = tl.load(block_segment + b)
    at = tl.load(block_start + b) + tl.arange(0, BLOCK)
    inside = at < tl.load(block_end + b)
    value = tl.load(bits + at, mask=inside, other=0x7FFFFFFF)
    here = tl.load(found + segment)
    tl.atomic_add(upto + segment, tl.sum((inside & (value <= here)).to(tl.int32), 0))
    tl.atomic_min(least + segment, tl.min(tl.where(inside & (value > here), value, 0x7FFFFFFF), 0))


class Selection:
    """Radix selection in segments of fixed lengths, with its constants and work space on one device."""

    def __init__(self, lengths: Sequence[int], ranks: Sequence[int], device: torch.device) -> None:
        starts = [0]
        for length in lengths:
            starts.append(starts[-1] + length)
        blocks = [(s, at, starts[s + 1]) for s in range(len(lengths)) for at in range(starts[s], starts[s + 1], BLOCK)]
        self.blocks = tuple(torch.tensor(column, dtype=torch.int32, device=device) for column in zip(*blocks))
        self.ranks = torch.tensor(list(ranks), dtype=torch.int32, device=device)
        self.last = torch.tensor([m - 1 for m in lengths], dtype=torch.int32, device=device)
        self.counts = torch.zeros(len(lengths), BINS, dtype=torch.int32, device=device)

    def __call__(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The wanted order statistic of every segment of values ≥ 0, the one after it, and how many are at most it."""
        bits = values.contiguous().view(torch.int32)
        segments, blocks = len(self.ranks), len(self.blocks[0])
        found, left = torch.zeros_like(self.ranks), self.ranks.clone()
        for shift, width in DIGITS:
            _count[(blocks,)](bits, *self.blocks, found, self.counts, SHIFT=shift, WIDTH=width, BINS=BINS, BLOCK=BLOCK)
            _narrow[(segments,)](self.counts, found, left, WIDTH=width, BINS=BINS)
        upto, least = torch.zeros_like(found), torch.full_like(found, LARGEST)
        _after[(blocks,)](bits, *self.blocks, found, upto, least, BLOCK=BLOCK)
        repeated = (upto > self.ranks + 1) | (self.ranks >= self.last)
        above = torch.where(repeated, found, least)
        return found.view(torch.float32), above.view(torch.float32), upto
