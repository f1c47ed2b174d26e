"""The quadratic law sampled exactly, at any neighbourhood size, with neither 2^n states nor a Markov chain.

Inside a neighbourhood Σ_{pairs} x_i x_j = (S² − n)/2 with S = Σ x_i, so with J = βc and h = βb

    p(x) ∝ exp(J S²/2 − Σ h_i x_i).

Three exact ways, chosen by row:

* **Two states.** Where J n > 40 + 2 max|h_i| every other state together has less mass than n·e^−40: the row is kept
  whole with probability σ(−2 Σ h_i).
* **Recursion over S** for small n. Given S the coupling is constant, so S is drawn from e_s(y)·exp(J S²/2) with e_s the
  elementary symmetric polynomials of the odds y_i = exp(−2 h_i), and the spins one by one given what is left of S.
* **Auxiliary field** for large n (Hubbard–Stratonovich). exp(J S²/2) is a Gaussian integral over u, so that
  p(u) ∝ exp(−u²/2J) Π 2cosh(u − h_i), and given u all spins are independent with P(x_i = +1) = σ(2(u − h_i)).
  On a lattice of spacing δ the sum over u equals the integral up to a factor 1 ± 2 exp(−2π² J/δ²) (Poisson summation):
  5·10^−11 at δ = 0.9 √J. Σ log cosh(u − h_i) is replaced by its Taylor polynomial in the h_i around their mean, which
  costs O(n + lattice), and that proposal is accepted or rejected with the one exact value at the drawn u. A rejected
  row is drawn again from the full lattice, so the law stays exact.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from . import independent
from .source import Source

RECURSION_LIMIT = 32
SPACING = 0.9  # of the lattice, in units of √J
REACH = 6.5  # of the lattice beyond ±Jn, in units of √J
ROOM = 650.0  # exponents that float64 holds
BUDGET = 1 << 23  # numbers held at once by the full lattice


def draw(field: Tensor, coupling: Tensor, source: Source) -> Tensor:
    """A mask from the law of every row; ``field`` h is (rows, n) and ``coupling`` J (rows, 1)."""
    size = field.shape[1]
    if size == 1:
        return independent.draw(field, source)
    uniform, spins = source.uniform(3), source.uniform(size)
    total = field.sum(1, keepdim=True)
    extreme = torch.maximum(field.amax(1, keepdim=True), -field.amin(1, keepdim=True))
    mask = (uniform[:, :1] < (-2 * total).sigmoid()).repeat(1, size)
    open_rows = (coupling * size <= 40 + 2 * extreme).flatten().nonzero().flatten()
    if len(open_rows) == 0:
        return mask
    whole = len(open_rows) == len(field)
    if not whole:
        field, coupling = field[open_rows], coupling[open_rows]
        uniform, spins = uniform[open_rows], spins[open_rows]
    way = _recursion if size <= RECURSION_LIMIT else _auxiliary
    part = way(field, coupling, uniform, spins)
    return part if whole else mask.index_copy_(0, open_rows, part)


# -- recursion over S ------------------------------------------------------------------------------------------------


def _recursion(field: Tensor, coupling: Tensor, uniform: Tensor, spins: Tensor) -> Tensor:
    size = field.shape[1]
    need = 2 * field.abs().sum(1) + coupling.flatten() * (size * size / 2)
    fits = need < ROOM
    h, j = field.double().T.contiguous(), coupling.double().flatten()
    u, v = uniform[:, 0].double(), spins.T
    if bool(fits.all()):
        return _by_products(h, j, u, v).T
    out = torch.empty(size, len(field), dtype=torch.bool, device=field.device)
    for way, which in ((_by_products, fits), (_by_logarithms, ~fits)):
        index = which.nonzero().flatten()
        if len(index):
            out[:, index] = way(h[:, index], j[index], u[index], v[:, index].contiguous())
    return out.T


def _by_products(h: Tensor, j: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Elementary symmetric polynomials as they are; tables[k][s + 1] is e_s of the first k odds, 0 at the ends."""
    size, rows = h.shape
    odds = (-2 * h).exp_()
    table = h.new_zeros(3, rows)
    table[1] = 1.0
    tables = [table]
    for k in range(size):
        grown = h.new_zeros(k + 4, rows)
        grown[1:-1] = table[1:]
        grown[2:-1] += odds[k] * table[1:-1]
        tables.append(table := grown)
    magnetisation = torch.arange(-size, size + 1, 2, device=h.device, dtype=h.dtype)[:, None]
    # Only the differences of J S²/2 matter: taking off the largest keeps the exponent at or below zero.
    weights = table[1:-1] * ((magnetisation.square() - size * size) * (j / 2)).exp_()
    total = weights.cumsum(0)
    s = (total <= u * total[-1]).sum(0, keepdim=True).clamp_(max=size)
    out = torch.empty(size, rows, dtype=torch.bool, device=h.device)
    for k in reversed(range(size)):
        up = odds[k] * tables[k].gather(0, s)[0]
        kept = v[k] * (up + tables[k].gather(0, s + 1)[0]) < up
        out[k] = kept
        s -= kept.long()
    return out


def _by_logarithms(h: Tensor, j: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """The same recursion on logarithms, for fields whose products float64 cannot hold."""
    size, rows = h.shape
    table = h.new_full((3, rows), -math.inf)
    table[1] = 0.0
    tables = [table]
    for k in range(size):
        grown = h.new_full((k + 4, rows), -math.inf)
        grown[1:-1] = torch.logaddexp(table[1:], table[:-1] - 2 * h[k])
        tables.append(table := grown)
    magnetisation = torch.arange(-size, size + 1, 2, device=h.device, dtype=h.dtype)[:, None]
    total = (table[1:-1] + magnetisation.square() * (j / 2)).softmax(0).cumsum(0)
    s = (total <= u * total[-1]).sum(0, keepdim=True).clamp_(max=size)
    out = torch.empty(size, rows, dtype=torch.bool, device=h.device)
    for k in reversed(range(size)):
        up = tables[k].gather(0, s)[0] - 2 * h[k]
        kept = v[k].double().logit() < up - tables[k].gather(0, s + 1)[0]
        out[k] = kept
        s -= kept.long()
    return out


# -- auxiliary field -------------------------------------------------------------------------------------------------


def _auxiliary(field: Tensor, coupling: Tensor, uniform: Tensor, spins: Tensor) -> Tensor:
    size = field.shape[1]
    mean = field.mean(1, keepdim=True)
    away = field - mean
    second = away.square()
    error = second.square().sum(1, keepdim=True) / 12  # bounds the Taylor remainder: |L''''| ≤ 2
    moments = (mean, second.sum(1, keepdim=True), (second * away).sum(1, keepdim=True))
    lattice = _lattice(coupling, size)
    u = _pick(lattice, _taylor(lattice, coupling, size, *moments), uniform[:, :1])
    true = _log_density(u, field, coupling)
    guess = _taylor(u, coupling, size, *moments)
    accepted = (uniform[:, 1:2].log() < true - guess - error) & (error < 1.0)
    again = (~accepted).flatten().nonzero().flatten()
    for part in again.split(max(1, BUDGET // (lattice.shape[1] * size))) if len(again) else ():
        points, h, j = lattice[part], field[part], coupling[part]
        exact = _log_density(points[:, :, None], h[:, None, :], j[:, :, None]).squeeze(2)
        u[part] = _pick(points, exact, uniform[part, 2:])
    return spins < (2 * (u - field)).sigmoid_()


def _lattice(coupling: Tensor, size: int) -> Tensor:
    """Points of u covering every S from −n to n, (rows, points)."""
    root = coupling.sqrt()
    points = math.ceil(float((size * root.max() + REACH) / SPACING))
    return SPACING * root * torch.arange(-points, points + 1, device=coupling.device, dtype=coupling.dtype)


def _log_cosh(x: Tensor) -> Tensor:
    """log 2cosh x without overflow."""
    size = x.abs()
    return size + torch.log1p((-2 * size).exp_())


def _log_density(u: Tensor, field: Tensor, coupling: Tensor) -> Tensor:
    """log p(u) + constant = −u²/2J + Σ log 2cosh(u − h_i), the sum over the last dimension."""
    return _log_cosh(u - field).sum(-1, keepdim=True) - u.square() / (2 * coupling)


def _taylor(u: Tensor, coupling: Tensor, size: int, mean: Tensor, second: Tensor, third: Tensor) -> Tensor:
    """log p(u) with log 2cosh expanded to third order in h_i − mean."""
    v = u - mean
    t = v.tanh()
    bend = 1 - t * t
    return size * _log_cosh(v) + bend * (second / 2 + t * third / 3) - u.square() / (2 * coupling)


def _pick(points: Tensor, log_weights: Tensor, uniform: Tensor) -> Tensor:
    """One point per row, with probability proportional to exp(log_weights)."""
    total = log_weights.double().softmax(1).cumsum(1)
    index = torch.searchsorted(total, uniform.double() * total[:, -1:], right=True)
    return points.gather(1, index.clamp_(max=points.shape[1] - 1))
