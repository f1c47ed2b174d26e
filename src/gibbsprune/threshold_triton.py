"""Order statistics of all layers at once in Triton: radix selection over pieces of all layers in parallel.

Floats ≥ 0 order as their bits. Four passes find the bits of the wanted value, eight at a time from the top: every
program makes a histogram of the next digit of its piece's values, among those that have the digits found so far, and
adds it to its layer's. From the histograms of the passes before, a program finds those digits by itself. A last pass
finds the value after the wanted one. Exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048  # values at once
WIDTH, PASSES = 8, 4  # bits of a digit, and how many digits a float has
LARGEST = 0x7FFFFFFF


@triton.jit
def _found(counts, ranks, segment, DONE: tl.constexpr, PASSES: tl.constexpr, WIDTH: tl.constexpr):
    """The first digits of a layer's wanted value, its rank among the values that have them, and how many have them."""
    bins = tl.arange(0, 1 << WIDTH)
    digits, rank, alike = 0, tl.load(ranks + segment), 0
    for done in tl.static_range(DONE):
        histogram = tl.load(counts + ((segment * PASSES + done) << WIDTH) + bins)
        digit = tl.sum((tl.cumsum(histogram, 0) <= rank).to(tl.int32), 0)
        rank -= tl.sum(tl.where(bins < digit, histogram, 0), 0)
        alike = tl.sum(tl.where(bins == digit, histogram, 0), 0)
        digits = (digits << WIDTH) | digit
    return digits, rank, alike


@triton.jit
def _count(
    bits, pieces, ranks, counts, DONE: tl.constexpr, PASSES: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """Counts the next digit of a piece's values, among those that have the digits found so far."""
    piece, bins = pieces + 4 * tl.program_id(0), tl.arange(0, 1 << WIDTH)
    segment, start, length = tl.load(piece).to(tl.int32), tl.load(piece + 1), tl.load(piece + 3).to(tl.int32)
    digits, _, _ = _found(counts, ranks, segment, DONE, PASSES, WIDTH)
    total = tl.zeros([1 << WIDTH], tl.int32)
    for first in range(0, length, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(bits + start + at, mask=at < length, other=0) >> (WIDTH * (PASSES - 1 - DONE))
        match = (at < length) & ((value >> WIDTH) == digits)
        matching = tl.sum(match.to(tl.int32), 0)
        if matching > 0:  # the others are counted as zeros, and taken off again
            histogram = tl.histogram(tl.where(match, value & ((1 << WIDTH) - 1), 0), 1 << WIDTH)
            total += histogram - tl.where(bins == 0, BLOCK - matching, 0)
    tl.atomic_add(counts + ((segment * PASSES + DONE) << WIDTH) + bins, total, mask=total > 0, sem="relaxed")


@triton.jit
def _after(
    bits, pieces, ranks, counts, found, upto, least, PASSES: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """The value found, how many are at most it, and the least above it; a layer's programs agree on the first two."""
    piece = pieces + 4 * tl.program_id(0)
    segment, start, length = tl.load(piece).to(tl.int32), tl.load(piece + 1), tl.load(piece + 3).to(tl.int32)
    here, left, alike = _found(counts, ranks, segment, PASSES, PASSES, WIDTH)
    above = tl.full([BLOCK], 0x7FFFFFFF, tl.int32)
    for first in range(0, length, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(bits + start + at, mask=at < length, other=0x7FFFFFFF)
        above = tl.minimum(above, tl.where(value > here, value, 0x7FFFFFFF))
    tl.store(found + segment, here)
    tl.store(upto + segment, tl.load(ranks + segment) - left + alike)
    tl.atomic_min(least + segment, tl.min(above, 0), sem="relaxed")


class Selection:
    """Radix selection in segments of fixed lengths, with its constants and work space on one device."""

    def __init__(self, lengths: Sequence[int], ranks: Sequence[int], pieces: Tensor) -> None:
        self.pieces, self.lengths, device = pieces, list(lengths), pieces.device
        self.ranks = torch.zeros(len(self.lengths), dtype=torch.int32, device=device)
        self.enough = torch.zeros_like(self.ranks)
        self.set_ranks(ranks)
        self.counts = torch.zeros(len(lengths), PASSES, 1 << WIDTH, dtype=torch.int32, device=device)

    def set_ranks(self, ranks: Sequence[int]) -> None:
        """Which order statistic of each segment is wanted from now on."""
        enough = [
            rank + 1 if rank + 1 < m else -1 for rank, m in zip(ranks, self.lengths)
        ]  # after the last comes itself
        self.ranks.copy_(torch.tensor(list(ranks), dtype=torch.int32))
        self.enough.copy_(torch.tensor(enough, dtype=torch.int32))

    def __call__(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The wanted order statistic of every segment of values ≥ 0, the one after it, and how many are at most it."""
        given = (values.contiguous().view(torch.int32), self.pieces, self.ranks, self.counts.zero_())
        grid = (len(self.pieces),)
        for done in range(PASSES):
            _count[grid](*given, DONE=done, PASSES=PASSES, WIDTH=WIDTH, BLOCK=BLOCK)
        found, upto = torch.empty_like(self.ranks), torch.empty_like(self.ranks)
        least = torch.full_like(self.ranks, LARGEST)
        _after[grid](*given, found, upto, least, PASSES=PASSES, WIDTH=WIDTH, BLOCK=BLOCK)
        above = torch.where(upto > self.enough, found, least)
        return found.view(torch.float32), above.view(torch.float32), upto
