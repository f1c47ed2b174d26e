"""The quadratic law sampled exactly, at any neighbourhood size, with neither 2^n states nor a Markov chain.

Inside a neighbourhood Σ_{pairs} x_i x_j = (S² − n)/2 with S = Σ x_i, so with J = βc and h = βb

    p(x) ∝ exp(J S²/2 − Σ h_i x_i).

exp(J S²/2) is a Gaussian integral over an auxiliary field u (Hubbard–Stratonovich), so that

    p(u) ∝ exp(−u²/2J) Π 2cosh(u − h_i),    p(x | u) = Π σ(2 x_i (u − h_i)):

given u all spins are independent, and a row needs one number u. It is drawn in one of three exact ways:

* **Two states.** Where J n > 40 + 2 max|h_i|, or J > max(h_i, 0) + (20 + log n)/(n − 1) for all i, or the same with
  −h_i, all but the two uniform states together have less mass than n·e^−40: the row is kept whole with probability
  σ(−2 Σ h_i), and u is not needed. (Fields h = β(Q − w²) have no lower bound, but the upper bound βQ.)
* **Recursion over S** for small n. Given S the coupling is constant, so S is drawn from e_s(y)·exp(J S²/2) with e_s the
  elementary symmetric polynomials of the odds y_i = exp(−2 h_i), and then u from the normal law N(J S, J).
* **Lattice** for large n. On a lattice of spacing δ the sum over u equals the integral up to a factor
  1 ± 2 exp(−2π² J/δ²) (Poisson summation): 5·10^−11 at δ = 0.9 √J. Σ log cosh(u − h_i) is replaced by its Taylor
  polynomial in the h_i around their mean, which costs O(n + lattice), and that proposal is accepted or rejected with
  the one exact value at the drawn u. A row whose proposal is rejected is drawn again from the exact density on the
  lattice, so the law stays exact. From J = 81 on, p(u) is a comb of normal laws N(J S, J) that do not touch, and only
  the lattice's points around its teeth are looked at: 17 for each S that can have mass, however large J is.

docs/theory.md derives all of it. Everything about u is in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .rows import Rows

RECURSION_LIMIT = 32
SPACING = 0.9  # of the lattice, in units of √J
REACH = 6.5  # of the lattice beyond ±Jn, in units of √J
CERTAIN = 40.0  # what has less than e^−40 of the mass is left out
APART = 81.0  # J from which the normal laws N(J S, J) do not touch on the lattice
TOOTH = 8  # points of the lattice on each side of JS that such a law covers
ROOM = 650.0  # exponents that float64 holds
BLOCK = 1 << 17  # numbers worked on at once: small enough to stay in the cache


def draw(rows: Rows) -> Tensor:
    """A mask (rows, n) from the law of every row, n > 1."""
    field, coupling, source = rows.field, rows.coupling, rows.source
    size = field.shape[1]
    uniform, spins = source.uniform(3), source.uniform(size)
    if size <= RECURSION_LIMIT:  # few columns: a row is a column of the transpose, so that memory is walked along rows
        # Each run's random numbers are only laid out anew, so that it has the same ones alone as among others.
        spins = torch.cat([part.reshape(size, -1) for part in spins.split(source.rows)], 1)
        return _draw(field.T.contiguous(), coupling.T, uniform.T.contiguous(), spins, 0, by_recursion).T
    return _draw(field, coupling, uniform, spins, 1, by_lattice)


def _draw(
    field: Tensor,
    coupling: Tensor,
    uniform: Tensor,
    spins: Tensor,
    along: int,
    auxiliary: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Tensor:
    """A mask, with a neighbourhood's elements ``along`` that dimension of all arguments."""
    size, rows = field.shape[along], 1 - along
    total = field.sum(along, keepdim=True)
    ordered = uniform.narrow(along, 0, 1) < (-2 * total).sigmoid_()
    two = two_states(coupling, field.amax(along, keepdim=True), -field.amin(along, keepdim=True), size)
    open_rows = (~two).flatten().nonzero().flatten()
    if len(open_rows) == field.shape[rows]:
        u = auxiliary(field, coupling, uniform.double())
        return spins < (u.to(field.dtype) - field).mul_(2).sigmoid_()
    mask = ordered.expand(field.shape).clone()
    if len(open_rows):
        field, coupling, uniform, spins = (t.index_select(rows, open_rows) for t in (field, coupling, uniform, spins))
        u = auxiliary(field, coupling, uniform.double())
        mask.index_copy_(rows, open_rows, spins < (u.to(field.dtype) - field).mul_(2).sigmoid_())
    return mask


def two_states(coupling: Tensor, above: Tensor, below: Tensor, size: int) -> Tensor:
    """Whether only the two uniform states have mass; ``above`` is the largest field, ``below`` the largest −field."""
    extreme, room = torch.maximum(above, below), slack(size)
    one_sided = coupling > torch.minimum(above.clamp_min(0), below.clamp_min(0)) + room
    return (coupling * size > CERTAIN + 2 * extreme) | one_sided


def slack(size: int) -> float:
    """By how much J must exceed the fields on one side (docs/theory.md): (20 + log n)/(n − 1)."""
    return (CERTAIN / 2 + math.log(size)) / (size - 1)


# -- recursion over S ------------------------------------------------------------------------------------------------


def by_recursion(field: Tensor, coupling: Tensor, uniform: Tensor) -> Tensor:
    """u of every row by way of S, (1, rows): ``field`` is (n, rows), ``coupling`` (1, rows), ``uniform`` (3, rows)."""
    size = len(field)
    u = torch.empty_like(uniform[:1])
    step = max(1, BLOCK // size)
    for h, j, chance, out in zip(*(t.split(step, 1) for t in (field.double(), coupling.double(), uniform, u))):
        total = _magnetisation(h, j[0]).cumsum(0)
        kept = (total <= chance[0] * total[-1]).sum(0, keepdim=True).clamp_(max=size)
        out.copy_(j * (2 * kept - size) + j.sqrt() * torch.special.ndtri(chance[1:2]))
    return u


def _magnetisation(h: Tensor, j: Tensor) -> Tensor:
    """p(S) of every column up to a factor, (n + 1, rows), in the way that float64 can hold."""
    fits = 2 * h.abs().sum(0) + j * (len(h) ** 2 / 2) < ROOM
    if bool(fits.all()):
        return _by_products(h, j)
    weights = h.new_empty(len(h) + 1, len(j))
    weights[:, ~fits] = _by_logarithms(h[:, ~fits], j[~fits])
    if bool(fits.any()):
        weights[:, fits] = _by_products(h[:, fits], j[fits])
    return weights


def _by_products(h: Tensor, j: Tensor) -> Tensor:
    """e_s(y) exp(J S²/2) up to a factor, by products and sums as they are."""
    size, rows = h.shape
    odds = (-2 * h).exp_()
    table = h.new_zeros(size + 1, rows)
    table[0] = 1.0
    for k in range(size):
        table[1 : k + 2] += odds[k] * table[: k + 1]
    return table.mul_(_pull(size, j).exp_())


def _by_logarithms(h: Tensor, j: Tensor) -> Tensor:
    """The same on logarithms, for fields whose products float64 cannot hold."""
    size, rows = h.shape
    table = h.new_full((size + 1, rows), -math.inf)
    table[0] = 0.0
    for k in range(size):
        table[1 : k + 2] = torch.logaddexp(table[1 : k + 2], table[: k + 1] - 2 * h[k])
    return table.add_(_pull(size, j)).softmax(0)


def _pull(size: int, j: Tensor) -> Tensor:
    """J S²/2 of every S, less its largest value."""
    magnetisation = torch.arange(-size, size + 1, 2, device=j.device, dtype=j.dtype)[:, None]
    return (magnetisation.square() - size * size) * (j / 2)


# -- lattice ---------------------------------------------------------------------------------------------------------


def by_lattice(field: Tensor, coupling: Tensor, uniform: Tensor) -> Tensor:
    """u of every row, (rows, 1), from the lattice; ``uniform`` is (rows, 3)."""
    apart = (coupling > APART).flatten()
    if not bool(apart.any()):
        return _from_lattice(field, coupling, uniform)
    u = torch.empty_like(uniform[:, :1])
    for draw_some, rows in ((_from_comb, apart), (_from_lattice, ~apart)):
        if bool(rows.any()):
            u[rows] = draw_some(field[rows], coupling[rows], uniform[rows])
    return u


def _from_lattice(field: Tensor, coupling: Tensor, uniform: Tensor) -> Tensor:
    size = field.shape[1]
    u = torch.empty_like(uniform[:, :1])
    reach = math.ceil((size * math.sqrt(float(coupling.max())) + REACH) / SPACING)
    step = max(1, BLOCK // max(size, 2 * reach + 1))
    for h, j, chance, out in zip(*(t.split(step) for t in (field, coupling, uniform, u))):
        h, j = h.double(), j.double()
        moments, error = expansion(h)
        points = lattice(j, reach)
        accepted = error < 1.0
        if bool(accepted.any()):
            drawn = _pick(points, taylor(points, j, size, moments), chance[:, :1])
            excess = log_density(drawn, h, j) - taylor(drawn, j, size, moments)
            accepted &= chance[:, 1:2].log() < excess - error
            out.copy_(drawn)
        rejected = (~accepted).flatten().nonzero().flatten()
        if len(rejected):
            h, j = h[rejected], j[rejected]
            out[rejected] = _from_density(_window(points[rejected], h, j), h, j, chance[rejected, 2:])
    return u


def _from_comb(field: Tensor, coupling: Tensor, uniform: Tensor) -> Tensor:
    u = torch.empty_like(uniform[:, :1])
    step = max(1, BLOCK // field.shape[1])
    for h, j, chance, out in zip(*(t.split(step) for t in (field, coupling, uniform, u))):
        h, j = h.double(), j.double()
        out.copy_(_from_density(comb(h, j), h, j, chance[:, 2:]))
    return u


def lattice(coupling: Tensor, reach: int) -> Tensor:
    """2 · reach + 1 points of u around 0, (rows, points)."""
    steps = torch.arange(-reach, reach + 1, device=coupling.device, dtype=coupling.dtype)
    return SPACING * coupling.sqrt() * steps


def log_density(u: Tensor, field: Tensor, coupling: Tensor) -> Tensor:
    """log p(u) + constant = −u²/2J + Σ log 2cosh(u − h_i), the sum over the last dimension."""
    return _log_cosh(u - field).sum(-1, keepdim=True) - _cost(u, coupling)


def expansion(field: Tensor) -> tuple[Tensor, Tensor]:
    """The fields' mean, Σ(h − mean)², Σ(h − mean)³ as (rows, 3), and a bound on what the polynomial leaves out."""
    mean = field.mean(1, keepdim=True)
    away = field - mean
    second = away.square()
    moments = torch.cat([mean, second.sum(1, keepdim=True), (second * away).sum(1, keepdim=True)], 1)
    return moments, second.square().sum(1, keepdim=True) / 12  # the fourth derivative of log cosh is within ±2


def taylor(u: Tensor, coupling: Tensor, size: int, moments: Tensor) -> Tensor:
    """log p(u) + constant with log 2cosh expanded to third order in h_i − mean."""
    mean, second, third = moments.split(1, 1)
    v = u - mean
    t = v.tanh()
    return size * _log_cosh(v) + (1 - t * t) * (second / 2 + t * third / 3) - _cost(u, coupling)


def _cost(u: Tensor, coupling: Tensor) -> Tensor:
    """u²/2J, which is 0 on the lattice of J = 0 (all its points are 0)."""
    return u.square() / (2 * coupling).clamp_min(torch.finfo(u.dtype).tiny)


def _log_cosh(x: Tensor) -> Tensor:
    """log 2cosh x without overflow."""
    size = x.abs()
    return size + torch.log1p((-2 * size).exp_())


def _pick(points: Tensor, log_weights: Tensor, uniform: Tensor) -> Tensor:
    """One point per row, with probability proportional to exp(log_weights)."""
    total = log_weights.softmax(1).cumsum(1)
    index = torch.searchsorted(total, uniform * total[:, -1:], right=True)
    return points.gather(1, index.clamp_(max=points.shape[1] - 1))


def comb(field: Tensor, coupling: Tensor) -> Tensor:
    """The lattice's points around every u = JS that can have mass, the same number for each row.

    Of all states with s elements kept the best keeps those with the smallest fields, and there are fewer than 2^n.
    """
    size = field.shape[1]
    kept = torch.nn.functional.pad(field.sort(1).values.cumsum(1), (1, 0))
    magnetisation = torch.arange(-size, size + 1, 2, device=field.device, dtype=field.dtype)
    best = coupling * magnetisation.square() / 2 - 2 * kept
    teeth = magnetisation[_likely(best, size)]
    offsets = torch.arange(-TOOTH, TOOTH + 1, device=field.device, dtype=field.dtype)
    root = coupling.sqrt()[:, :, None]
    return (SPACING * root * ((teeth[:, :, None] * root / SPACING).round() + offsets)).flatten(1)


def _likely(least: Tensor, size: int) -> Tensor:
    """The places of each row, in order, where exp(least) to 2^n exp(least) is not negligible; equally many of each."""
    possible = least >= least.amax(1, keepdim=True) - size * math.log(2.0) - CERTAIN
    count = max(1, int(possible.sum(1).max()))  # of NaN, after a training that diverged, nothing is possible
    if count == least.shape[1]:
        return torch.arange(count, device=least.device).expand(least.shape)
    return least.topk(count, 1).indices.sort(1).values  # in order, as if all were there


def _from_density(points: Tensor, field: Tensor, coupling: Tensor, uniform: Tensor) -> Tensor:
    """One of the points from the density itself."""
    size = field.shape[1]
    step = max(1, 2 * BLOCK // (size * points.shape[1]))
    columns = max(1, 2 * BLOCK // size)
    exact = [
        torch.cat([log_density(some[:, :, None], h[:, None, :], j[:, :, None]) for some in u.split(columns, 1)], 1)
        for u, h, j in zip(*(t.split(step) for t in (points, field, coupling)))
    ]
    return _pick(points, torch.cat(exact).squeeze(2), uniform)


def _window(points: Tensor, field: Tensor, coupling: Tensor) -> Tensor:
    """Those points that can have mass, the same number for each row.

    Σ|u − h_i| ≤ Σ log 2cosh(u − h_i) ≤ Σ|u − h_i| + n log 2, and Σ|u − h_i| needs only the sorted fields.
    """
    size = field.shape[1]
    order = field.sort(1).values
    below = torch.searchsorted(order, points)
    partial = torch.nn.functional.pad(order.cumsum(1), (1, 0))
    distance = (2 * below - size) * points + partial[:, -1:] - 2 * partial.gather(1, below)
    return points.gather(1, _likely(distance - _cost(points, coupling), size))
