"""Chromatic Gibbs sampling of the quadratic law, as the paper samples filters (Section III-D).

A neighbourhood is cut in two halves; couplings inside a half are dropped, so that a half is independent given
the other's sum: P(x_i = +1) = σ(2(J S_other − h_i)). One sweep resamples both halves once. The chain starts from
the all-or-nothing law P(all kept) = σ(−2 Σ h_i). Its stationary law is the bipartite one,

    p(x) ∝ exp(J S_A S_B − Σ h_i x_i),

not the complete graph's: that is what :mod:`gibbsprune.samplers.exact` draws.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .rows import Rows

BLOCK = 1 << 18  # spins swept together: as many as the cache holds


def draw(rows: Rows) -> Tensor:
    """A mask (rows, n) after ``rows.sweeps`` sweeps; the first ``rows.split`` columns are A."""
    field, coupling, source, split = rows.field, rows.coupling, rows.source, rows.split
    size = field.shape[1]
    kept = source.uniform(1) < (-2 * field.sum(1, keepdim=True)).sigmoid_()
    mask = kept.repeat(1, size)
    extreme = torch.maximum(field.amax(1, keepdim=True), -field.amin(1, keepdim=True))
    # From a uniform state whose spins all flip with probability below e^−40 the chain never moves.
    moving = (coupling * min(split, size - split) <= 20 + extreme).flatten()
    first = 0
    for fill, count in zip(source.fills, source.rows):
        index = moving[first : first + count].nonzero().flatten() + first
        for part in index.split(max(1, BLOCK // size)) if len(index) else ():
            mask[part] = _sweep(field[part], coupling[part], kept[part], split, rows.sweeps, fill)
        first += count
    return mask


def _sweep(
    field: Tensor, coupling: Tensor, kept: Tensor, split: int, sweeps: int, fill: Callable[[Tensor], Tensor]
) -> Tensor:
    size = field.shape[1]
    halves = [(-2 * half).contiguous() for half in (field[:, :split], field[:, split:])]
    chance = [torch.empty_like(half) for half in halves]
    random = [torch.empty_like(half) for half in halves]
    other = (2.0 * kept - 1.0) * (size - split)
    for _ in range(sweeps):
        for half, p, u in zip(halves, chance, random):
            torch.add(half, 2 * coupling * other, out=p)
            torch.lt(fill(u), p.sigmoid_(), out=u)  # u now holds the spins: 1 is up, 0 is down
            other = 2.0 * u.sum(1, keepdim=True) - u.shape[1]
    return torch.cat(random, 1) > 0
