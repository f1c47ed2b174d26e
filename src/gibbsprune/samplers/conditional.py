"""Independent spins of which only so many may be kept: the conditional Bernoulli law.

With odds y_i = exp(−2 h_i) independent spins keep a set A with p(A) ∝ Π_{i∈A} y_i. Given that the number of kept spins
lies between two limits, only sets of such sizes remain, with the same odds: adding a constant to all h of a row
changes nothing within one size, so that for an exact count the threshold Q cancels. (It is not the law of the largest
of h_i plus Gumbel noise, which draws one after the other without replacement.) It is drawn exactly, in one of two ways:

* **Patterns.** Where a row has few sets of its size, 6 for two of four, their logarithms are sums of −2 h_i: one
  uniform number picks one. The greatest is subtracted before exponents are taken, so that no β is too large.
* **Recursion** over the elementary symmetric sums of the odds of the last spins, e_k(i) = Σ_{A ⊂ {i…n}, |A| = k} Π y:

      e_k(i) = e_k(i+1) + y_i e_{k−1}(i+1),      P(keep i | k left to keep) = y_i e_{k−1}(i+1) / e_k(i),

  as logarithms in float64. Where the count is not given, it is drawn first, from e_s(1).

All shapes are fixed, as a captured CUDA graph needs it.
"""

from __future__ import annotations

import itertools
import math
from functools import cache

import torch
from torch import Tensor

from .rows import Rows

PATTERNS = 36  # of a row, up to which they are listed
BLOCK = 1 << 15  # rows worked on at once on a CPU: small enough to stay in the cache
RARE = -80.0  # exponents below it, of numbers so small that a CPU takes its time for them
BUDGET = 1 << 22  # numbers of the recursion held at once


def draw(rows: Rows) -> Tensor:
    """A mask (rows, n) in which every row keeps as many as its limits allow."""
    assert rows.limits is not None
    (least, most), size = rows.limits, rows.field.shape[1]
    exact = least == most
    if exact and math.comb(size, most) <= PATTERNS:
        uniform = rows.source.uniform(1)[:, 0]
        table = patterns(size, most, rows.field.device)
        block = BLOCK if rows.field.device.type == "cpu" else len(uniform)
        parts = zip(rows.field.split(block), uniform.split(block))
        drawn = [table.index_select(0, by_pattern(field, u, most)) for field, u in parts]
    else:
        uniform = rows.source.uniform(size + (not exact))
        block = max(1, BUDGET // ((size + 1) * (most + 1)))
        parts = zip(rows.field.split(block), uniform.split(block))
        drawn = [by_recursion(field, u, least, most) for field, u in parts]
    return drawn[0] if len(drawn) == 1 else torch.cat(drawn)


@cache
def patterns(size: int, keep: int, device: torch.device) -> Tensor:
    """All masks that keep so many of so many, as rows in lexicographic order."""
    sets = list(itertools.combinations(range(size), keep))
    return torch.tensor([[i in kept for i in range(size)] for kept in sets], device=device)


@cache
def members(size: int, keep: int, device: torch.device) -> Tensor:
    """What each of them keeps, by number."""
    return torch.tensor(list(itertools.combinations(range(size), keep)), device=device)


def by_pattern(field: Tensor, uniform: Tensor, keep: int) -> Tensor:
    """Which pattern each row (rows, n) takes: the first whose cumulated probability exceeds the uniform number."""
    odds = (-2 * field.T).contiguous()
    cpu = field.device.type == "cpu"  # which likes many passes over a cache, as a GPU likes few kernels
    logs = _sums(odds, keep) if cpu else odds[members(len(odds), keep, odds.device)].sum(1)
    logs -= logs.amax(0)
    logs.clamp_(min=RARE).exp_()
    if cpu:
        for before, total in itertools.pairwise(logs):
            total += before
    else:
        logs = logs.cumsum(0)
    return (logs[:-1] <= uniform * logs[-1]).sum(0)


def _sums(odds: Tensor, keep: int) -> Tensor:
    """The sums over all patterns of (n, rows), one after the other."""
    sets = list(itertools.combinations(range(len(odds)), keep))
    logs = odds.new_empty(len(sets), odds.shape[1])
    for total, (first, *others) in zip(logs, sets):
        total.copy_(odds[first])
        for i in others:
            total += odds[i]
    return logs


def by_recursion(field: Tensor, uniform: Tensor, least: int, most: int) -> Tensor:
    """A mask (rows, n) from uniform numbers, one per spin, and one more where the count must be drawn."""
    odds, uniform = -2 * field.T.double(), uniform.T
    size, count = odds.shape
    sums = odds.new_full((size + 1, most + 1, count), -math.inf)  # log e_k of the spins from i on
    sums[:, 0] = 0
    for i in reversed(range(size)):
        torch.logaddexp(sums[i + 1, 1:], odds[i] + sums[i + 1, :-1], out=sums[i, 1:])
    left = torch.full((1, count), most, device=odds.device)
    if least < most:
        total = sums[0, least:].softmax(0).cumsum(0)
        left = least + (total[:-1] <= uniform[size:] * total[-1:]).sum(0, keepdim=True)
    kept = torch.empty(size, count, dtype=torch.bool, device=odds.device)
    for i in range(size):
        with_it = odds[i] + sums[i + 1].gather(0, (left - 1).clamp_(min=0))
        chance = (with_it - sums[i].gather(0, left)).exp_()
        kept[i] = ((uniform[i] < chance) & (left > 0))[0]
        left = left - kept[i].long()
    return kept.T
