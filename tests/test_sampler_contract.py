"""The contract of every sampler: it draws from the law it claims to draw from.

Empirical frequencies are held against probabilities from enumeration by chi-square tests. States whose expected
count is under 20 are pooled, and the pool is held against the Poisson law, so that a state that must not occur is
noticed. A single comparison fails where its p-value is under ALPHA = 1e-10. There are fewer than 5 000 comparisons
in this file, so that all of them together raise a false alarm with probability under 5e-7 (and seeds are fixed).
"""

import copy
import itertools
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import special, stats

import gibbsprune as gp
from gibbsprune.errors import UserError
from gibbsprune.hamiltonians import log_p_converged
from gibbsprune.samplers import NAMES, Rows, Source, chromatic, conditional, draw, enumeration, exact, independent
from gibbsprune.site import Site
from gibbsprune.structures import STRUCTURES, as_structure

ALPHA = 1e-10
DRAWS = 30_000


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def source(rows, size, seed=0):
    return Source([seeded(seed)], [rows], size)


# -- the statistics --------------------------------------------------------------------------------------------------


def check_counts(counts, probabilities, label):
    """Observed counts of states against their probabilities."""
    counts, expected = np.asarray(counts, float), np.asarray(probabilities, float) * np.sum(counts)
    assert math.isclose(expected.sum(), counts.sum(), rel_tol=1e-9), label
    common = expected >= 20
    rare, due = counts[~common].sum(), expected[~common].sum()
    p_rare = min(1.0, 2 * min(stats.poisson.sf(rare - 1, due), stats.poisson.cdf(rare, due)))
    assert p_rare > ALPHA, f"{label}: {rare:.0f} draws of rare states, {due:.3g} expected"
    if common.sum() > 1:
        seen, due = counts[common], expected[common] * counts[common].sum() / expected[common].sum()
        p = stats.chi2.sf(((seen - due) ** 2 / due).sum(), len(due) - 1)
        assert p > ALPHA, f"{label}: chi-square p-value {p:.3g}"


def check_two_samples(first, second, label):
    """Two histograms of the same law, cells pooled until each holds 40."""
    first, second = np.asarray(first, float), np.asarray(second, float)
    group, edges = 0.0, [0]
    for i, both in enumerate(first + second):
        group += both
        if group >= 40:
            edges.append(i + 1)
            group = 0.0
    table = np.array([np.add.reduceat(x, edges[:-1]) for x in (first, second)])
    if table.shape[1] > 1:
        p = stats.chi2_contingency(table).pvalue
        assert p > ALPHA, f"{label}: two-sample p-value {p:.3g}"


def check_means(sample, reference, label):
    """Means over the rows of two samples of spins, spin by spin."""
    variance = sample.var(0) / len(sample) + reference.var(0) / len(reference)
    z = (sample.mean(0) - reference.mean(0)) / np.sqrt(variance + 1 / len(sample) ** 2)
    p = 2 * stats.norm.sf(np.abs(z).max())
    assert p > ALPHA, f"{label}: a single-spin mean is {np.abs(z).max():.1f} standard errors off"


def codes(masks):
    """Each mask of a stack as a number, its first element the lowest bit."""
    flat = masks.reshape(len(masks), -1).numpy()
    return flat @ (1 << np.arange(flat.shape[1]))


def all_masks(count):
    """All masks of ``count`` elements, in the order of their codes."""
    return (np.arange(1 << count)[:, None] >> np.arange(count)) & 1 == 1


# -- laws by hand, from nothing but the weights ------------------------------------------------------------------------


def neighbourhoods(structure, shape):
    """The flat indices of each neighbourhood."""
    index = np.arange(math.prod(shape)).reshape(shape)
    if structure == "weight":
        return index.reshape(-1, 1)
    if structure == "kernel":
        return index.reshape(shape[0] * shape[1], -1)
    if structure == "column":
        return np.swapaxes(index, 0, 1).reshape(shape[1], -1)
    if structure == "1x2":
        return index.reshape(-1, 2)
    if structure == "2x2":  # all of two outputs and two inputs, at each place of a kernel
        return index.reshape(4, -1).T
    return index.reshape(shape[0], -1)


def halves(structure, shape):
    """True for the elements of each neighbourhood's first half: by input channel, or inside a single one."""
    if structure == "filter" and shape[1] > 1:
        first = np.zeros(shape, bool)
        first[:, : (shape[1] + 1) // 2] = True
        return first.ravel()
    first = np.zeros(math.prod(shape), bool)
    for members in neighbourhoods(structure, shape):
        first[members[: (len(members) + 1) // 2]] = True
    return first


def energies_by_hand(kind, weight, structure, sparsity, coupling, bipartite=False):
    """H of all masks, pair by pair."""
    w = weight.double().numpy()
    groups = neighbourhoods(structure, w.shape)
    squares = w.ravel() ** 2
    means = np.array([squares[g].mean() for g in groups])
    q = np.quantile(means, sparsity)
    masks = all_masks(squares.size)
    x = np.where(masks, 1.0, -1.0)
    if kind == "binary":
        kept = np.zeros(squares.size, bool)
        kept[np.concatenate([g for g, m in zip(groups, means) if m > q])] = True
        return (masks != kept).any(1).astype(float)
    if kind == "sign":
        field = np.empty(squares.size)
        for g, m in zip(groups, means):
            field[g] = np.sign(q - m)
    elif kind == "abs":
        field = np.sqrt(q) - np.abs(w.ravel())
    else:
        field = q - squares
    total = x @ field
    if kind == "quadratic":
        first = halves(structure, w.shape)
        for g in groups:
            for i, j in itertools.combinations(g, 2):
                if not bipartite or first[i] != first[j]:
                    total -= coupling * x[:, i] * x[:, j]
    return total


def gibbs(energies, beta):
    """p ∝ exp(−βH) of the masks of finite energy."""
    possible = np.isfinite(energies)
    weights = np.where(possible, np.exp(-beta * np.where(possible, energies - energies.min(), 0.0)), 0.0)
    return weights / weights.sum()


# -- every possible combination ----------------------------------------------------------------------------------------

HAMILTONIANS = {
    "binary": gp.Binary(),
    "sign": gp.Linear("sign"),
    "square": gp.Linear("square"),
    "abs": gp.Linear("abs"),
    "quadratic": gp.Quadratic(),
}
SHAPES = {  # at most 12 spins in all
    "weight": [(2, 4), (2, 1, 2, 2)],
    "kernel": [(3, 1, 2, 2), (2, 2, 3), (2, 1, 2, 3), (2, 3)],
    "filter": [(2, 5), (3, 2, 2, 1), (2, 2, 1, 3), (5, 1, 2)],
    "column": [(3, 4), (2, 3, 2)],
    "1x2": [(3, 4)],
    "2x2": [(2, 2, 3)],
}
TILES = ("1x2", "2x2")
COMBINATIONS = [
    ("binary", "weight", "two_point"),
    ("binary", "kernel", "two_point"),
    ("binary", "filter", "two_point"),
    ("sign", "weight", "independent"),
    ("sign", "weight", "enumeration"),
    ("sign", "kernel", "independent"),
    ("sign", "kernel", "enumeration"),
    ("sign", "filter", "independent"),
    ("sign", "filter", "enumeration"),
    ("square", "weight", "independent"),
    ("square", "weight", "enumeration"),
    ("abs", "weight", "independent"),
    ("abs", "weight", "enumeration"),
    ("quadratic", "kernel", "exact"),
    ("quadratic", "kernel", "enumeration"),
    ("quadratic", "kernel", "chromatic"),
    ("quadratic", "filter", "exact"),
    ("quadratic", "filter", "enumeration"),
    ("quadratic", "filter", "chromatic"),
]
COMBINATIONS += [(kind, other, by) for kind, one, by in COMBINATIONS if one == "filter" for other in ("column", *TILES)]
BETAS = (0.1, 0.7, 3.0, 20.0, 150.0, 1e3, 1e4)


def test_the_list_of_combinations_is_complete():
    possible = []
    names = [*STRUCTURES, *TILES, *LIMITED_SHAPES]
    for (kind, hamiltonian), structure in itertools.product(HAMILTONIANS.items(), names):
        for sampler in NAMES:
            try:
                Site((2, 2, 3), as_structure(structure), hamiltonian, None, sampler).checked()
            except UserError:
                continue
            if sampler != "auto":
                possible.append((kind, structure, sampler))
    limited = itertools.product(("sign", "square", "abs"), LIMITED_SHAPES, ("conditional",))
    switching = itertools.product(("binary",), LIMITED_SHAPES, ("two_point",))
    assert sorted(possible) == sorted([*COMBINATIONS, *limited, *switching])


@pytest.mark.parametrize(
    ("kind", "structure", "sampler", "shape"),
    [(k, s, a, shape) for k, s, a in COMBINATIONS if a != "chromatic" for shape in SHAPES[s]],
)
def test_law_against_enumeration(kind, structure, sampler, shape):
    generator = seeded(sum(shape) + len(sampler))
    masks = torch.from_numpy(all_masks(math.prod(shape))).reshape(-1, *shape)
    quadratic = ((0.15, 0.001), (0.15, 0.03), (1.0, 0.03), (1.0, 0.4))
    for scale, coupling in quadratic if kind == "quadratic" else ((0.15, 0.0), (1.0, 0.0)):
        weight = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
        hamiltonian = gp.Quadratic(coupling) if kind == "quadratic" else HAMILTONIANS[kind]
        by_hand = energies_by_hand(kind, weight, structure, 0.45, coupling)
        ours = gp.energy(masks, weight, hamiltonian, structure, 0.45).numpy()
        np.testing.assert_allclose(ours, by_hand, atol=1e-12)
        for beta in BETAS:
            drawn = gp.sample(weight, hamiltonian, structure, 0.45, beta, sampler, draws=DRAWS, generator=generator)
            counts = np.bincount(codes(drawn), minlength=len(masks))
            label = f"{kind} {structure} {sampler} {shape} scale {scale} coupling {coupling} beta {beta}"
            check_counts(counts, gibbs(by_hand, beta), label)


@pytest.mark.parametrize(
    ("kind", "structure"), [(k, s) for k, s, a in COMBINATIONS if a in ("two_point", "independent", "exact")]
)
def test_auto_draws_from_the_same_law_in_float32(kind, structure):
    shape = SHAPES[structure][0]
    weight = torch.randn(shape, generator=seeded(5)) * 0.15
    by_hand = energies_by_hand(kind, weight, structure, 0.45, 0.01)
    for beta in (2.0, 40.0):
        drawn = gp.sample(weight, HAMILTONIANS[kind], structure, 0.45, beta, draws=DRAWS, generator=seeded(6))
        counts = np.bincount(codes(drawn), minlength=len(by_hand))
        check_counts(counts, gibbs(by_hand, beta), f"{kind} {structure} auto beta {beta}")


RELATIVE = [("square", "weight"), ("abs", "weight"), ("sign", "weight"), ("sign", "kernel"), ("sign", "filter"),
            ("quadratic", "kernel"), ("quadratic", "filter")]  # fmt: skip


@pytest.mark.parametrize(("kind", "structure"), RELATIVE)
def test_relative_laws_against_enumeration_at_any_scale_of_the_weights(kind, structure):
    """The field in units of Q (√Q, 1) times n and the coupling of 1 / n, whatever the weights are multiplied by."""
    shape, coupling = SHAPES[structure][0], 0.8
    hamiltonian = gp.Quadratic(coupling, relative=True) if kind == "quadratic" else gp.Linear(kind, relative=True)
    plain = torch.randn(shape, generator=seeded(21), dtype=torch.float64)
    groups = neighbourhoods(structure, shape)
    masks = torch.from_numpy(all_masks(math.prod(shape))).reshape(-1, *shape)
    for scale in (1e-3, 1.0, 30.0):
        weight = plain * scale
        q = float(gp.threshold(weight, 0.45, structure))
        unit = len(groups[0]) * {"abs": math.sqrt(q), "sign": 1.0}.get(kind, q)
        alone = energies_by_hand(kind, weight, structure, 0.45, 0.0)
        pairs = energies_by_hand(kind, weight, structure, 0.45, 1.0) - alone
        by_hand = alone / unit + pairs * coupling / len(groups[0])
        np.testing.assert_allclose(
            gp.energy(masks, weight, hamiltonian, structure, 0.45), by_hand, rtol=1e-9, atol=1e-9
        )
        for beta in (0.3, 3.0, 30.0):
            drawn = gp.sample(weight, hamiltonian, structure, 0.45, beta, draws=DRAWS, generator=seeded(22))
            counts = np.bincount(codes(drawn), minlength=len(masks))
            check_counts(counts, gibbs(by_hand, beta), f"relative {kind} {structure} scale {scale} beta {beta}")


# Of 9 weights none lies on the threshold at any of these epochs: p(M − 1) is never whole.
RISING = {
    "constant": gp.ConstantSchedule(0.45),
    "linear": gp.LinearSchedule(0.0, 0.7, 4),
    "cubic": gp.CubicSchedule(0.0, 0.7, 4),
    "stretched": gp.CubicSchedule(0.0, 0.7, 2, stretch=2),
    "joined": gp.Join((gp.ConstantSchedule(0.2), gp.LinearSchedule(0.2, 0.7, 2)), (2,)),
}


@pytest.mark.parametrize("rises", RISING)
@pytest.mark.parametrize("law", ["relative", "paper"])
def test_the_law_of_every_epoch_while_the_sparsity_rises(rises, law):
    """The pruner draws from the law at p(n) and β(n). Its limits: at a constant p the paper's law; at β = ∞ the mask of
    the largest weights, which is gradual pruning's; at p = 0 everything is kept."""
    schedule = RISING[rises]
    weight = torch.randn(1, 9, generator=seeded(31), dtype=torch.float64)
    model = torch.nn.Sequential(torch.nn.Linear(9, 1, bias=False, dtype=torch.float64))
    model[0].weight.data.copy_(weight)
    cold = gp.GibbsPruner(copy.deepcopy(model), schedule, schedule=lambda epoch: math.inf, include="0")
    beta = gp.LogSchedule(0.5, 8.0, 4)
    hamiltonian = gp.Linear("square", relative=law == "relative")
    pruner = gp.GibbsPruner(model, schedule, "weight", hamiltonian, beta, include="0")
    for epoch in (0, 1, 3):
        pruner.set_epoch(epoch)
        cold.set_epoch(epoch)
        p = schedule(epoch)
        keep = 9 if p == 0 else 8 - math.floor(p * 8)
        largest = weight.abs().flatten().argsort(descending=True)[:keep]
        assert set(cold.masks["0"].mask.flatten().nonzero().flatten().tolist()) == set(largest.tolist())
        drawn = []
        for _ in range(1000):
            pruner.step()
            drawn.append(pruner.masks["0"].mask.clone())
        if p == 0:
            assert all(bool(mask.all()) for mask in drawn)
            continue
        by_hand = energies_by_hand("square", weight, "weight", p, 0.0)
        unit = np.quantile(weight.numpy().ravel() ** 2, p) if law == "relative" else 1.0
        counts = np.bincount(codes(torch.stack(drawn)), minlength=len(by_hand))
        check_counts(counts, gibbs(by_hand / unit, beta(epoch)), f"{rises} {law} epoch {epoch}")


@pytest.mark.parametrize(
    ("kind", "sampler"), [("quadratic", "exact"), ("quadratic", "enumeration"), ("sign", "independent"),
                          ("binary", "two_point")],
)  # fmt: skip
def test_tiles_over_the_edge_are_filled_up_with_weights_of_zero(kind, sampler):
    """Which have spins of their own in the law: what is drawn is the mask of the others, whatever theirs is."""
    weight = torch.randn(2, 3, generator=seeded(3), dtype=torch.float64)
    filled = torch.nn.functional.pad(weight, (0, 1))
    hamiltonian = gp.Quadratic(0.15) if kind == "quadratic" else HAMILTONIANS[kind]
    by_hand = energies_by_hand(kind, filled, "1x2", 0.45, 0.15)
    masks = torch.from_numpy(all_masks(8)).reshape(-1, 2, 4)
    real, beyond_kept = codes(masks[:, :, :3]), masks[:, :, 3].any(1).numpy()
    stated = gp.energy(masks[~beyond_kept][:, :, :3], weight, hamiltonian, "1x2", 0.45).numpy()
    if kind != "binary":  # which counts them as pruned
        np.testing.assert_allclose(stated, by_hand[~beyond_kept], atol=1e-12)
    for beta in (0.0, *BETAS):
        law = np.bincount(real, gibbs(by_hand, beta), 64)
        drawn = gp.sample(weight, hamiltonian, "1x2", 0.45, beta, sampler, draws=DRAWS, generator=seeded(4))
        check_counts(np.bincount(codes(drawn), minlength=64), law, f"{kind} over the edge by {sampler}, beta {beta}")


def test_filters_of_a_transposed_convolution():
    structure = gp.Filter(transposed=True, groups=2)  # (inputs, outputs / groups, kernel): 4 outputs of 2 × 1 × 1
    weight = torch.randn(4, 2, 1, generator=seeded(7), dtype=torch.float64) * 0.3
    rows = weight.reshape(2, 2, 2).transpose(1, 2).reshape(4, 2, 1)
    by_hand = energies_by_hand("quadratic", rows, "filter", 0.4, 0.05)
    drawn = gp.sample(weight, gp.Quadratic(0.05), structure, 0.4, 8.0, draws=DRAWS, generator=seeded(8))
    outputs_first = drawn.reshape(-1, 2, 2, 2).transpose(2, 3).reshape(-1, 4, 2, 1)
    counts = np.bincount(codes(outputs_first), minlength=len(by_hand))
    check_counts(counts, gibbs(by_hand, 8.0), "transposed filters")


def test_beta_zero_is_uniform_for_every_sampler():
    for kind, structure, sampler in COMBINATIONS:
        weight = torch.randn(SHAPES[structure][0], generator=seeded(1))
        drawn = gp.sample(weight, HAMILTONIANS[kind], structure, 0.45, 0.0, sampler, draws=DRAWS, generator=seeded(2))
        count = 1 << weight.numel()
        counts = np.bincount(codes(drawn), minlength=count)
        check_counts(counts, np.full(count, 1 / count), f"{kind} {structure} {sampler} at beta 0")
    wide = gp.sample(torch.randn(3, 50), None, "filter", beta=0.0, draws=DRAWS // 4, generator=seeded(3))
    check_counts(np.bincount(codes(wide[:, 0, :10]), minlength=1024), np.full(1024, 1 / 1024), "a wide row at beta 0")


# -- given counts: N of M, at most k --------------------------------------------------------------------------------

LIMITED_SHAPES = {
    "2:4": [(3, 4), (2, 6), (1, 4, 3), (2, 5)],  # the last input channels of some are a smaller group
    "1:4": [(2, 6)],
    "3:4": [(2, 5)],
    "2:3": [(2, 4, 1)],
    "5:10": [(1, 12)],  # by recursion
    "at-most-2": [(2, 1, 5), (2, 2, 3), (1, 2, 2, 3)],
    "at-most-3": [(1, 2, 4)],
}


def limited_by_hand(kind, weight, structure, sparsity, relative=False):
    """H of all masks, infinite for those of other counts, from nothing but what the structure's name says."""
    w = weight.double().numpy()
    squares, size, index = w.ravel() ** 2, w.size, np.arange(w.size).reshape(w.shape)
    masks = all_masks(size)
    if ":" in structure:
        n, m = map(int, structure.split(":"))
        by_position = index.reshape(*w.shape[:2], -1)
        groups = [
            by_position[o, first : first + m, k]
            for o in range(w.shape[0]) for first in range(0, w.shape[1], m) for k in range(by_position.shape[2])
        ]  # fmt: skip
        counts = [min(n, len(g)) for g in groups]
        allowed = np.all([masks[:, g].sum(1) == c for g, c in zip(groups, counts)], axis=0)
        q = np.empty(size)
        for g, c in zip(groups, counts):  # filled up with zeros
            down = np.sort(np.append(squares[g], np.zeros(m)))[::-1]
            q[g] = 0 if c == m else (down[n - 1] + down[n]) / 2
        values = squares
    else:
        k = int(structure.removeprefix("at-most-"))
        groups = index.reshape(w.shape[0] * w.shape[1], -1)
        allowed = np.all([masks[:, g].sum(1) <= k for g in groups], axis=0)
        values = np.zeros(size)
        for g in groups:
            largest = g[np.argsort(squares[g])[-k:]]
            values[largest] = squares[largest]
        q = np.full(size, np.quantile(values, sparsity))
    if kind == "binary":
        kept = values > q
        for g in groups if ":" in structure else ():
            kept[g] |= len(g) <= n
        energies = (masks != kept).any(1).astype(float)
    else:
        field = {"sign": np.sign(q - values), "square": q - squares, "abs": np.sqrt(q) - np.sqrt(squares)}[kind]
        unit = {"sign": as_structure(structure).size(w.shape), "square": q, "abs": np.sqrt(q)}[kind] if relative else 1
        energies = np.where(masks, 1.0, -1.0) @ (field / np.maximum(unit, 1e-300))
    return np.where(allowed, energies, np.inf)


@pytest.mark.parametrize(
    ("kind", "structure", "shape"),
    [(k, s, shape) for k in ("square", "abs", "sign", "binary") for s in LIMITED_SHAPES for shape in LIMITED_SHAPES[s]],
)
def test_limited_laws_against_enumeration(kind, structure, shape):
    generator, sparsity = seeded(sum(shape)), 0.7 if structure.startswith("at") else None
    masks = torch.from_numpy(all_masks(math.prod(shape))).reshape(-1, *shape)
    for scale in (0.15, 1.0):
        weight = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
        by_hand = limited_by_hand(kind, weight, structure, sparsity)
        ours = gp.energy(masks, weight, HAMILTONIANS[kind], structure, sparsity).numpy()
        np.testing.assert_allclose(ours, by_hand, atol=1e-12)
        best = codes(gp.converged_mask(weight, sparsity, structure)[None])[0]
        if kind != "sign":
            assert by_hand.argmin() == best
        for beta in (0.0, 0.7, 20.0, 1e3, 1e4):
            drawn = gp.sample(weight, HAMILTONIANS[kind], structure, sparsity, beta, draws=DRAWS, generator=generator)
            counts = np.bincount(codes(drawn), minlength=len(masks))
            assert not counts[np.isinf(by_hand)].any()
            check_counts(counts, gibbs(by_hand, beta), f"{kind} {structure} {shape} scale {scale} beta {beta}")


@pytest.mark.parametrize("kind", ["square", "abs", "sign"])
@pytest.mark.parametrize("structure", ["2:4", "at-most-2"])
def test_relative_limited_laws_at_any_scale_of_the_weights(kind, structure):
    shape, sparsity = ((2, 4), None) if structure == "2:4" else ((2, 1, 5), 0.7)
    plain = torch.randn(shape, generator=seeded(23), dtype=torch.float64)
    for scale in (1e-3, 1.0, 30.0):
        by_hand = limited_by_hand(kind, plain * scale, structure, sparsity, relative=True)
        law = gp.Linear(kind, relative=True)
        for beta in (0.3, 3.0, 30.0):
            drawn = gp.sample(plain * scale, law, structure, sparsity, beta, draws=DRAWS, generator=seeded(24))
            counts = np.bincount(codes(drawn), minlength=len(by_hand))
            check_counts(counts, gibbs(by_hand, beta), f"relative {kind} {structure} scale {scale} beta {beta}")


@pytest.mark.parametrize("limits", [(1, 1), (3, 3), (7, 7), (10, 10), (0, 2), (0, 9)])
def test_both_ways_to_draw_given_counts(limits):
    """By patterns where they are few, and by recursion, in strong fields too."""
    size, (least, most) = 10, limits
    for strength in (0.3, 2.0, 400.0):
        field = torch.randn(1, size, generator=seeded(31), dtype=torch.float64) * strength
        rows = Rows(field.expand(DRAWS, -1), torch.zeros(1, 1), source(DRAWS, size, 1), limits=limits)
        counts = np.bincount(codes(conditional.draw(rows)), minlength=1 << size)
        masks = all_masks(size)
        allowed = (masks.sum(1) >= least) & (masks.sum(1) <= most)
        energy = np.where(allowed, np.where(masks, 1.0, -1.0) @ field[0].numpy(), np.inf)
        check_counts(counts, gibbs(energy, 1.0), f"{limits} at strength {strength}")
        if least == most and math.comb(size, most) > 1:
            u = source(DRAWS, size, 2).uniform(size)
            other = conditional.by_recursion(field.expand(DRAWS, -1), u, most, most)
            check_counts(np.bincount(codes(other), minlength=1 << size), gibbs(energy, 1.0), f"recursion {limits}")


def test_a_large_group_against_single_flips():
    """32 of 64, which nobody can enumerate: single-spin means and pair means against a long chain of swaps."""
    size, keep, rows = 64, 32, 4000
    field = torch.randn(1, size, generator=seeded(41), dtype=torch.float64) * 0.8
    drawn = conditional.draw(Rows(field.expand(rows, -1), torch.zeros(1, 1), source(rows, size), limits=(keep, keep)))
    assert bool((drawn.sum(1) == keep).all())
    rng, h = np.random.default_rng(0), field[0].numpy()
    state = np.argsort(rng.random((rows, size)), axis=1) < keep
    at = np.arange(rows)
    for _ in range(6000):  # of each row two places, which exchange what they hold if one of them is kept
        i, j = rng.integers(size, size=(2, rows))
        kept_i, kept_j = state[at, i], state[at, j]
        change = 2 * np.where(kept_i & ~kept_j, h[j] - h[i], np.where(kept_j & ~kept_i, h[i] - h[j], 0.0))
        go = rng.random(rows) < np.exp(-np.maximum(change, 0))
        state[at, i], state[at, j] = np.where(go, kept_j, kept_i), np.where(go, kept_i, kept_j)
    check_means(drawn.numpy().astype(float), state.astype(float), "32 of 64")
    pairs = lambda x: (x[:, :-1] & x[:, 1:]).astype(float)  # noqa: E731
    check_means(pairs(drawn.numpy()), pairs(state), "neighbours of 32 of 64")


@pytest.mark.parametrize("beta", [1e12, 1e30, 1e300])
@pytest.mark.parametrize("structure", ["2:4", "8:16", "at-most-3"])
def test_limited_laws_are_safe_at_any_beta(structure, beta):
    weight = torch.randn(6, 10, 3, 3, generator=seeded(51))
    drawn = gp.sample(weight, None, structure, beta=beta, generator=seeded(52))[0]
    assert torch.equal(drawn, gp.converged_mask(weight, None, structure))


# -- the chromatic chain -----------------------------------------------------------------------------------------------


def chain_law(field, coupling, first, sweeps):
    """The law of one neighbourhood after ``sweeps`` sweeps from the paper's initial law, by matrix products."""
    size = len(field)
    x = np.where(all_masks(size), 1.0, -1.0)
    law = np.zeros(1 << size)
    law[-1], law[0] = special.expit(-2 * field.sum()), special.expit(2 * field.sum())
    sweep = np.eye(1 << size)
    for half in (first, ~first):
        pull = coupling * x[:, ~half].sum(1)  # of the other half on this one
        chance = special.expit(2 * x[None, :, half] * (pull[:, None, None] - field[half]))
        same = (x[:, None, ~half] == x[None, :, ~half]).all(2)
        sweep = sweep @ np.where(same, chance.prod(2), 0.0)
    for _ in range(sweeps):
        law = law @ sweep
    return law


@pytest.mark.parametrize("shape", [(2, 4), (1, 2, 3), (1, 3, 2), (1, 1, 5)])
@pytest.mark.parametrize("sweeps", [1, 2, 50])
def test_chromatic_chain_after_so_many_sweeps(shape, sweeps):
    """From the paper's initial law, sweep by sweep: one sweep still shows where the chain started."""
    generator = seeded(sweeps)
    size, first = math.prod(shape[1:]), halves("filter", (1, *shape[1:]))
    for strength in (0.02, 0.3, 1.0):
        field = torch.randn(1, size, generator=generator, dtype=torch.float64) * 0.4
        draws = source(DRAWS, size, sweeps)
        split = gp.Filter().split(shape)
        assert split == first.sum()
        coupling = torch.full((DRAWS, 1), strength, dtype=torch.float64)
        drawn = chromatic.draw(Rows(field.repeat(DRAWS, 1), coupling, draws, split, sweeps))
        law = chain_law(field[0].numpy(), strength, first, sweeps)
        counts = np.bincount(codes(drawn), minlength=1 << size)
        check_counts(counts, law, f"chromatic {shape} after {sweeps} sweeps at J = {strength}")


@pytest.mark.parametrize(("structure", "shape"), [(s, shape) for s in ("kernel", "filter") for shape in SHAPES[s]])
def test_chromatic_against_the_bipartite_law(structure, shape):
    """Where 100 sweeps mix, which matrix products tell, the bipartite law; where they do not, the chain's own law."""
    generator, sweeps, mixed = seeded(11), 100, 0
    weight = torch.randn(shape, generator=generator, dtype=torch.float64) * 0.15
    masks, groups, first = all_masks(weight.numel()), neighbourhoods(structure, shape), halves(structure, shape)
    for coupling, beta in itertools.product((0.001, 0.01), (0.1, 3.0, 20.0, 70.0, 300.0, 1e4)):
        law = gibbs(energies_by_hand("quadratic", weight, structure, 0.45, coupling, bipartite=True), beta)
        squares = weight.numpy().ravel() ** 2
        field = beta * (np.quantile([squares[g].mean() for g in groups], 0.45) - squares)
        chain = np.ones(len(masks))
        for g in groups:
            chain *= chain_law(field[g], beta * coupling, first[g], sweeps)[masks[:, g] @ (1 << np.arange(len(g)))]
        if close := np.abs(chain - law).sum() < 1e-4:
            mixed += 1
        drawn = gp.sample(
            weight, gp.Quadratic(coupling), structure, 0.45, beta, "chromatic", sweeps, DRAWS // 3, generator
        )
        counts = np.bincount(codes(drawn), minlength=len(masks))
        label = f"chromatic {structure} {shape} coupling {coupling} beta {beta}"
        check_counts(counts, law if close else chain, label)
    assert mixed >= 6, f"only {mixed} of 12 chains mix"


def test_a_frozen_chain_keeps_the_initial_law():
    """Where no spin can flip, what is drawn is the all-or-nothing law P(all kept) = σ(−2 Σ h)."""
    field = torch.tensor([[0.3, -0.1, 0.2, -0.05]])
    drawn = chromatic.draw(Rows(field.repeat(DRAWS, 1), torch.full((DRAWS, 1), 50.0), source(DRAWS, 4), 2))
    counts = np.bincount(codes(drawn), minlength=16)
    chance = 1 / (1 + math.exp(2 * 0.35))
    assert counts[0] + counts[15] == DRAWS
    check_counts(counts[[0, 15]], [1 - chance, chance], "frozen chain")


def test_the_frozen_shortcut_does_not_change_the_law():
    """A chain that is swept although it cannot move draws the same as the shortcut."""
    field = torch.randn(64, 6, generator=seeded(1))
    coupling = torch.full((64, 1), 20.0)
    short = chromatic.draw(Rows(field, coupling, source(64, 6, 4), 3, 5))
    swept = chromatic._sweep(field, coupling, short[:, :1], 3, 5, source(64, 6, 5).fills[0])
    assert torch.equal(short, swept)


# -- the exact sampler at sizes that nobody can enumerate ---------------------------------------------------------


def log_masses(field):
    """log Σ exp(−Σ h_i x_i) over the states with the same S = −n, −n + 2, …, n, by adding spin after spin."""
    size = len(field)
    table = np.full(size + 1, -np.inf)
    table[0] = 0.0
    for h in field:
        table[1:] = np.logaddexp(table[1:] + h, table[:-1] - h)
        table[0] += h
    return table


def magnetisation_law(field, coupling):
    """p(S), by nothing but sums of positive numbers."""
    s = np.arange(-len(field), len(field) + 1, 2.0)
    return special.softmax(log_masses(field) + coupling * s**2 / 2)


def single_site_gibbs(field, coupling, chains, sweeps, start, seed):
    """Plain Gibbs sampling, one spin at a time in ``chains`` parallel chains; their last states as ±1."""
    rng = np.random.default_rng(seed)
    x = np.array(start, dtype=np.float32)
    total = x.sum(0)
    for _ in range(sweeps):
        uniform = rng.random((len(field), chains), dtype=np.float32)
        for i, h in enumerate(field):
            rest = total - x[i]
            new = np.where(uniform[i] < 1 / (1 + np.exp(-2 * (coupling * rest - h))), np.float32(1), np.float32(-1))
            total = rest + new
            x[i] = new
    return x.T


def draw_exactly(field, coupling, count, seed=0):
    """Spins ±1 of ``count`` draws from the exact sampler."""
    h = torch.as_tensor(field, dtype=torch.float32)
    parts = []
    for k in range(0, count, 5000):
        rows = min(5000, count - k)
        mask = exact.draw(Rows(h.repeat(rows, 1), torch.full((rows, 1), coupling), source(rows, len(h), seed + k)))
        parts.append(mask.numpy())
    return np.where(np.concatenate(parts), 1.0, -1.0)


def histogram(spins):
    size = spins.shape[1]
    return np.bincount(((spins.sum(1) + size) / 2).astype(int), minlength=size + 1)


@pytest.mark.parametrize("size", [27, 144, 576])
@pytest.mark.parametrize(
    ("strength", "sweeps"), [(0.3, 20), (1.0, 120), (1.8, 40)], ids=["disorder", "critical", "bimodal"]
)
def test_exact_against_long_run_gibbs_sampling(size, strength, sweeps):
    """Magnetisation and every single-spin mean, at J n below, at and above the transition."""
    chains, rng = 1500, np.random.default_rng(size)
    field = rng.normal(0, 0.12, size).astype(np.float32)
    field -= field.mean() - 0.1 / size
    coupling = strength / size
    ours = draw_exactly(field, coupling, 6000)
    label = f"n = {size}, J n = {strength}"
    law = magnetisation_law(field.astype(float), coupling)
    check_counts(histogram(ours), law, label)
    if strength < 1.5:
        start = rng.choice([-1.0, 1.0], (size, chains))
        theirs = single_site_gibbs(field, coupling, chains, sweeps, start, size)
        check_two_samples(histogram(ours), histogram(theirs), label)
        check_means(ours, theirs, label)
        return
    # Two modes, between which single spins do not jump: each mode by itself, and their weights from p(S).
    sign = np.where(np.arange(chains) % 2, 1.0, -1.0)
    theirs = single_site_gibbs(field, coupling, chains, sweeps, np.tile(sign, (size, 1)), size)
    for up in (True, False):
        mine, other = (x[(x.sum(1) > 0) == up] for x in (ours, theirs))
        check_two_samples(histogram(mine), histogram(other), f"{label}, up {up}")
        check_means(mine, other, f"{label}, up {up}")
    weight_up = law[(size + 2) // 2 :].sum()
    check_counts([(ours.sum(1) > 0).sum(), (ours.sum(1) <= 0).sum()], [weight_up, 1 - weight_up], f"{label}, modes")


FAR = np.concatenate([[30_000.0, -29_999.6], np.random.default_rng(3).normal(0, 0.6, 150)])
FAR -= FAR.mean()  # two frozen spins keep the row out of the two-state shortcut, and the modes have equal weight


def ladder(size, coupling, seed=0):
    """Fields with which no S is far from the best: each step up costs about what the coupling gains."""
    steps = np.arange(1 - size, size, 2.0) * coupling + np.random.default_rng(seed).normal(0, 0.3, size)
    return np.random.default_rng(seed).permutation(steps)


@pytest.mark.parametrize(
    ("field", "coupling", "uses"),
    [
        (np.full(9, 0.05), 5.0, set()),  # J n = 45: two states
        (np.full(144, 0.002), 0.3, set()),
        (np.linspace(-0.5, 0.6, 9), 0.1, {"_by_products"}),
        (np.linspace(-1, 1, 27) ** 3 * 9, 0.6, {"_by_products"}),
        (np.concatenate([[300.0, -299.8], np.linspace(-0.2, 0.2, 7)]), 0.15, {"_by_logarithms"}),
        (np.concatenate([[900.0, -899.5], np.zeros(25)]), 60.0, {"_by_logarithms"}),  # J n = 1620
        (np.linspace(-0.02, 0.021, 144), 0.007, {"taylor"}),
        (np.linspace(-1, 1, 144) ** 3 * 0.4, 0.02, {"taylor", "_from_density"}),  # some proposals are rejected
        (np.linspace(-1, 1, 144) ** 9 * 5, 0.05, {"_from_density"}),  # none is made
        (np.tile([0.74, -0.74], 18)[:33], 0.05, {"taylor", "_from_density"}),  # the polynomial is off by a factor of 2
        (FAR, 20_000 / 152, {"comb", "_from_density"}),  # beyond float32
        (ladder(40, 80.0), 80.0, {"_from_density"}),  # the lattice as a whole, of 800 points
        (ladder(40, 82.0), 82.0, {"comb", "_from_density"}),  # and its points around all 41 S
        (ladder(40, 1e5), 1e5, {"comb", "_from_density"}),  # as a whole it would have 28 000
    ],
)
def test_each_way_of_the_exact_sampler(field, coupling, uses, monkeypatch):
    used = set()

    def watched(name, function):
        def call(*args):
            used.add(name)
            return function(*args)

        return call

    for name in ("_by_products", "_by_logarithms", "taylor", "comb", "_from_density"):
        monkeypatch.setattr(exact, name, watched(name, getattr(exact, name)))
    spins = draw_exactly(field, coupling, 12_000 if len(field) <= 144 and coupling < 80 else 3_000)
    assert used == uses
    label = f"n = {len(field)}, J n = {coupling * len(field):.3g}"
    h = np.asarray(field, np.float32).astype(float)
    check_counts(histogram(spins), magnetisation_law(h, coupling), label)
    for i in {0, 1, len(h) // 2, len(h) - 1}:  # single spins: p(x_i) from the masses of the others
        others, s = log_masses(np.delete(h, i)), np.arange(1 - len(h), len(h), 2.0)
        logs = [special.logsumexp(others + coupling * (s + x) ** 2 / 2) - x * h[i] for x in (1, -1)]
        up = special.expit(logs[0] - logs[1])
        check_counts([(spins[:, i] > 0).sum(), (spins[:, i] < 0).sum()], [up, 1 - up], f"{label}, spin {i}")


def test_products_and_logarithms_agree():
    h = torch.randn(20, 500, generator=seeded(3), dtype=torch.float64) * 3
    j = torch.rand(500, generator=seeded(4), dtype=torch.float64)
    products = exact._by_products(h, j)
    torch.testing.assert_close(products / products.sum(0), exact._by_logarithms(h, j), rtol=1e-10, atol=1e-14)


def test_rows_that_need_different_ways_are_drawn_together():
    """Two-state rows, products and logarithms mixed in one call: each row keeps its own law."""
    fields = torch.tensor([[0.02] * 6, [0.4, -0.3, 0.1, 0.0, 0.2, -0.5], [400.0, -399.7, 0.1, 0.2, -0.3, 0.0]])
    couplings = torch.tensor([[20.0], [0.2], [0.3]])
    rows = 20_000
    mask = exact.draw(Rows(fields.repeat(rows, 1), couplings.repeat(rows, 1), source(3 * rows, 6)))
    x = np.where(all_masks(6), 1.0, -1.0)
    for k in range(3):
        h, j = fields[k].double().numpy(), float(couplings[k])
        law = gibbs(x @ h - j * x.sum(1) ** 2 / 2, 1.0)
        check_counts(np.bincount(codes(mask[k::3]), minlength=64), law, f"row {k}")


@pytest.mark.parametrize("sampler", ["independent", "enumeration", "exact", "chromatic"])
def test_a_small_law_to_three_digits(sampler):
    """A million draws of four spins: an error of half a per cent in a probability is found."""
    field, coupling = torch.tensor([0.5, -0.8, 0.1, 0.3]), 0.0 if sampler == "independent" else 0.6
    rows = 1_000_000
    h, j, numbers = field.repeat(rows, 1), torch.full((rows, 1), coupling), source(rows, 4)
    if sampler == "chromatic":
        mask, law = (
            chromatic.draw(Rows(h, j, numbers, 2, 1)),
            chain_law(field.double().numpy(), coupling, np.arange(4) < 2, 1),
        )
    else:
        mask, x = draw(sampler, Rows(h, j, numbers)), np.where(all_masks(4), 1.0, -1.0)
        law = gibbs(x @ field.double().numpy() - coupling * x.sum(1) ** 2 / 2, 1.0)
    check_counts(np.bincount(codes(mask), minlength=16), law, sampler)


def test_a_large_law_to_three_digits():
    """The magnetisation of 200 000 rows of 40 spins, by the lattice."""
    field = np.linspace(-0.2, 0.25, 40)
    counts = sum(histogram(draw_exactly(field, 0.03, 50_000, seed)) for seed in range(4))
    check_counts(counts, magnetisation_law(field.astype(np.float32).astype(float), 0.03), "40 spins")


@pytest.mark.parametrize("way", ["by_recursion", "by_lattice"])
def test_auxiliary_field_follows_its_density(way):
    """p(u) ∝ exp(−u²/2J) Π 2cosh(u − h_i): u's distribution function, and on the lattice its probabilities."""
    rows, j, h = 1_000_000, 0.5, np.linspace(-0.8, 1.0, 7)
    uniform = source(rows, 3).uniform(3).double()
    field, coupling = torch.from_numpy(h), torch.full((rows, 1), j, dtype=torch.float64)
    grid = np.linspace(-12, 12, 24_001)
    density = np.exp(-(grid**2) / (2 * j) + np.log(2 * np.cosh(grid[:, None] - h)).sum(1))
    if way == "by_recursion":
        u = exact.by_recursion(field[:, None].repeat(1, rows), coupling.T, uniform.T)[0].numpy()
        cumulative = np.cumsum(density) / density.sum()
        assert stats.kstest(u, lambda v: np.interp(v, grid, cumulative)).pvalue > ALPHA
    else:
        u = exact.by_lattice(field.repeat(rows, 1), coupling, uniform)[:, 0].numpy()
        steps = np.round(u / (exact.SPACING * math.sqrt(j))).astype(int)
        at = np.arange(-12, 13)
        law = np.interp(at * exact.SPACING * math.sqrt(j), grid, density)
        check_counts(np.bincount(steps + 12, minlength=25), law / law.sum(), "u on the lattice")


# -- the derivation of docs/theory.md in numbers -----------------------------------------------------------------------


def test_lattice_sum_equals_the_integral():
    """Σ over the lattice of exp(−u²/2J + uS) against √(2πJ) exp(JS²/2), within 6e-11 for every S."""
    size = 40
    for strength in (0.001, 0.02, 0.9):
        reach = math.ceil((size * math.sqrt(strength) + exact.REACH) / exact.SPACING)
        points = exact.lattice(torch.tensor([[strength]], dtype=torch.float64), reach)[0].numpy()
        spacing = points[1] - points[0]
        for s in range(-size, size + 1):
            total = spacing * np.exp(-((points - strength * s) ** 2) / (2 * strength)).sum()
            assert abs(total / math.sqrt(2 * math.pi * strength) - 1) < 2 * math.exp(-2 * math.pi**2 / 0.81) + 1e-10
    assert 2 * math.exp(-2 * math.pi**2 / exact.SPACING**2) < 5.3e-11


def test_poisson_summation():
    """Where the spacing is coarse, the first terms of (4) in docs/theory.md are what the lattice sum is off by."""
    for strength, spacing, s in ((0.5, 2.0, 3), (0.5, 2.4, 0), (0.1, 0.9, -5), (2.0, 4.0, 1)):
        points = spacing * np.arange(-200, 201)
        total = spacing * np.exp(-((points - strength * s) ** 2) / (2 * strength)).sum()
        terms = [
            math.cos(2 * math.pi * m * strength * s / spacing) * math.exp(-2 * (math.pi * m / spacing) ** 2 * strength)
            for m in range(1, 9)
        ]
        assert math.isclose(total / math.sqrt(2 * math.pi * strength), 1 + 2 * sum(terms), rel_tol=1e-12)
        assert abs(sum(terms)) > 1e-6


def test_derivatives_of_log_cosh():
    v = np.linspace(-4, 4, 8001)
    t, step = np.tanh(v), v[1] - v[0]
    derivatives = [t, 1 - t**2, -2 * t * (1 - t**2), -2 * (1 - t**2) * (1 - 3 * t**2)]
    before = np.log(2 * np.cosh(v))
    for formula in derivatives:
        np.testing.assert_allclose(np.gradient(before, step)[2:-2], formula[2:-2], atol=1e-5)
        before = formula
    assert derivatives[3].min() == pytest.approx(-2)
    assert derivatives[3].max() == pytest.approx(2 / 3, abs=1e-5)
    assert bool((np.abs(v) <= np.log(2 * np.cosh(v))).all())
    assert bool((np.log(2 * np.cosh(v)) <= np.abs(v) + math.log(2) + 1e-12).all())


def test_taylor_polynomial_is_within_its_bound():
    generator = seeded(0)
    for spread in (0.01, 0.1, 0.5):
        field = torch.randn(50, 64, generator=generator, dtype=torch.float64) * spread + 0.2
        coupling = torch.full((50, 1), 0.03, dtype=torch.float64)
        moments, error = exact.expansion(field)
        for u in (-2.0, -0.3, 0.0, 0.7, 3.0):
            at = torch.full((50, 1), u, dtype=torch.float64)
            excess = exact.log_density(at, field, coupling) - exact.taylor(at, coupling, 64, moments)
            assert bool((excess.abs() <= error + 1e-9).all())
    assert float(error.max()) > 1.0 > float(excess.abs().min())


def test_two_state_bound():
    """Where J n > 40 + 2 max|h| the states that are not uniform have less than n e^−40 of the mass."""
    rng = np.random.default_rng(0)
    x = np.where(all_masks(10), 1.0, -1.0)
    for _ in range(50):
        h = rng.normal(0, rng.choice([0.1, 3, 20]), 10)
        coupling = (40 + 2 * np.abs(h).max()) / 10 * 1.0001
        law = gibbs(x @ h - coupling * x.sum(1) ** 2 / 2, 1.0)
        assert law[1:-1].sum() < 10 * math.exp(-40)
        assert math.isclose(law[-1], 1 / (1 + math.exp(2 * h.sum())), rel_tol=1e-9, abs_tol=1e-300)


@pytest.mark.parametrize("size", [2, 3, 5, 9, 12])
@pytest.mark.parametrize("sign", [1, -1])
def test_one_sided_two_state_bound(size, sign):
    """Also where J exceeds the fields on one side by (20 + log n)/(n − 1), however large they are on the other."""
    rng = np.random.default_rng(size)
    x = np.where(all_masks(size), 1.0, -1.0)
    narrower = 0
    for _ in range(60):
        h = sign * np.minimum(rng.standard_t(1, size) * rng.choice([0.1, 3, 100]), rng.choice([0.0, 0.5, 20]))
        bound = max(0.0, (sign * h).max()) + exact.slack(size)
        law = gibbs(x @ h - 1.0001 * bound * x.sum(1) ** 2 / 2, 1.0)
        assert law[1:-1].sum() < size * math.exp(-40)
        assert math.isclose(law[-1], 1 / (1 + math.exp(min(700.0, 2 * h.sum()))), rel_tol=1e-9, abs_tol=1e-300)
        least = [torch.tensor([[value]]) for value in (1.0001 * bound, h.max(), (-h).max())]
        assert bool(exact.two_states(*least, size))
        narrower += bound < (40 + 2 * np.abs(h).max()) / size
        assert not bool(exact.two_states(torch.zeros(1, 1), *least[1:], size))
    assert narrower  # rows that the two-sided bound alone would not see


def test_window_leaves_nothing_out():
    generator = seeded(2)
    field = torch.randn(6, 40, generator=generator, dtype=torch.float64) * torch.tensor([[1.0], [30], [200]]).repeat(
        2, 1
    )
    coupling = torch.full((6, 1), 8.0, dtype=torch.float64)
    points = exact.lattice(coupling, 140)
    full = exact.log_density(points[:, :, None], field[:, None], coupling[:, :, None]).squeeze(2)
    chosen = exact._window(points, field, coupling)
    assert chosen.shape[1] < points.shape[1] / 2
    for row in range(6):
        left_out = ~torch.isin(points[row], chosen[row])
        assert float(full[row, left_out].max()) < float(full[row].max()) - 39.9


# -- the same on a GPU, where Triton kernels draw ---------------------------------------------------------------------

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@on_a_gpu
@pytest.mark.parametrize(("kind", "structure", "sampler"), COMBINATIONS)
def test_law_on_a_gpu(kind, structure, sampler):
    generator, sweeps = torch.Generator("cuda").manual_seed(0), 100
    for shape, beta in itertools.product(SHAPES[structure], (0.7, 20.0, 150.0)):
        weight = torch.randn(shape, generator=seeded(1)) * 0.15
        bipartite = sampler == "chromatic"
        law = gibbs(energies_by_hand(kind, weight, structure, 0.45, 0.003, bipartite), beta)
        hamiltonian = gp.Quadratic(0.003) if kind == "quadratic" else HAMILTONIANS[kind]
        drawn = gp.sample(weight.cuda(), hamiltonian, structure, 0.45, beta, sampler, sweeps, DRAWS, generator).cpu()
        counts = np.bincount(codes(drawn), minlength=len(law))
        check_counts(counts, law, f"{kind} {structure} {sampler} {shape} beta {beta} on a GPU")


@on_a_gpu
@pytest.mark.parametrize("size", [9, 27, 144, 576])
@pytest.mark.parametrize("strength", [0.3, 1.0, 1.8, 30.0, 60.0])
@pytest.mark.parametrize("spread", [0.05, 0.5])
def test_exact_on_a_gpu(size, strength, spread):
    field = np.random.default_rng(size).normal(0, spread, size).astype(np.float32)
    field -= field.mean()
    rows, device = 20_000, torch.device("cuda")
    numbers = Source([torch.Generator(device).manual_seed(0)], [rows], size, device)
    coupling = torch.full((rows, 1), strength / size, device=device)
    mask = draw("exact", Rows(torch.from_numpy(field).to(device).repeat(rows, 1), coupling, numbers))
    spins = np.where(mask.cpu().numpy(), 1.0, -1.0)
    law = magnetisation_law(field.astype(float), strength / size)
    check_counts(histogram(spins), law, f"n = {size}, J n = {strength}, spread {spread} on a GPU")


# -- the binary law ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 10, 40, 60])
def test_p_converged_in_rational_arithmetic(count):
    """β = ln k makes e^−β = 1/k rational, so that Lemma 1 is a fraction."""
    for k in (2, 3, 10, 1000, 10**9, 2**count):
        expected = Fraction(k - 1, 2**count - 1 + k)
        ours = log_p_converged(torch.tensor([math.log(k)], dtype=torch.float64), torch.tensor([count]))
        # The rounding of ln k itself, a few 1e-16 of it, moves log p by as much.
        assert math.isclose(float(ours), math.log(expected), rel_tol=0, abs_tol=2e-14)


def test_p_converged_of_ten_million_weights():
    """Within 1e-8 of the exact logarithm where the layer switches, which is at β = N ln 2 = 6 931 471.8."""
    count = 10**7
    with localcontext() as context:
        context.prec = 60
        for offset in (-50.0, -3.0, -0.5, 0.0, 0.25, 2.0, 30.0):
            beta = Decimal(count * math.log(2) + offset)
            states = (Decimal(count) * Decimal(2).ln() - beta).exp()  # 2^N e^−β; the −1 of 2^N − 1 is 10^−3010300 of it
            expected = float(-(1 + states).ln())
            ours = log_p_converged(torch.tensor([float(beta)], dtype=torch.float64), torch.tensor([count]))
            assert math.isclose(float(ours), expected, rel_tol=1e-8, abs_tol=1e-8)


@pytest.mark.parametrize(
    ("relative", "beta", "chance"),
    [
        ("offset", 0.4, 1 / (1 + math.exp(-0.4))),
        ("offset", -1.0, 1 / (1 + math.exp(1.0))),
        ("offset", 50.0, 1.0),
        ("offset", -50.0, 0.0),
        ("ratio", 1.0, 0.5),
        ("ratio", 1.01, 1.0),
        ("ratio", 0.99, 0.0),
        (None, 500 * math.log(2) + 0.4 + math.log(20), 1 / (1 + math.exp(-0.4) / 20)),
    ],
)
def test_binary_switches_where_it_is_told_to(relative, beta, chance):
    weight = torch.randn(20, 25, generator=seeded(0))
    if relative == "ratio":
        weight = torch.randn(100, 200, generator=seeded(0))
        draws = 1000
    else:
        draws = 5000
    drawn = gp.sample(weight, gp.Binary(relative), beta=beta, draws=draws, generator=seeded(1))
    converged = (drawn == gp.converged_mask(weight, 0.9)).flatten(1).all(1).sum()
    check_counts([int(converged), draws - int(converged)], [chance, 1 - chance], f"binary {relative} {beta}")


def test_binary_layer_of_ten_million_weights():
    weight = torch.randn(10**7, generator=seeded(0))
    converged = gp.converged_mask(weight, 0.9)
    above = gp.sample(weight, "binary", beta=1e7 * math.log(2) + 40, generator=seeded(1))[0]
    below = gp.sample(weight, gp.Binary("offset"), beta=-40, generator=seeded(1))[0]
    assert torch.equal(above, converged)
    check_counts([int(below.sum()), int((~below).sum())], [0.5, 0.5], "uniform over ten million weights")


# -- the pieces that all samplers share ------------------------------------------------------------------------------


def test_enumeration_lists_every_state_once():
    states = enumeration.states(5, torch.device("cpu"), torch.float64)
    assert len({tuple(s) for s in states.tolist()}) == 32
    assert set(states.unique().tolist()) == {-1.0, 1.0}


def test_uniform_numbers_are_uniform_and_never_0_or_1():
    numbers = source(1000, 1000).uniform(1000)
    assert 0 < float(numbers.min()) < 1e-5
    assert 1 - 1e-5 < float(numbers.max()) < 1
    counts = np.bincount((numbers.flatten() * 64).long().numpy(), minlength=64)
    check_counts(counts, np.full(64, 1 / 64), "uniform numbers")
    low_bits = np.bincount(((numbers.flatten().double() * 2**18) % 1 * 16).long().numpy(), minlength=16)
    check_counts(low_bits, np.full(16, 1 / 16), "the low bits of uniform numbers")


def test_a_run_draws_the_same_numbers_alone_as_among_others():
    together = Source([seeded(1), seeded(2)], [3, 5], 7)
    alone = Source([seeded(2)], [5], 7)
    assert torch.equal(together.uniform(7)[3:], alone.uniform(7))
    for sampler, size in (("exact", 7), ("exact", 40), ("chromatic", 7), ("enumeration", 7), ("independent", 7)):
        field = torch.randn(8, size, generator=seeded(3))
        coupling = torch.full((8, 1), 0.1)
        both = draw(sampler, Rows(field, coupling, Source([seeded(1), seeded(2)], [3, 5], size), 3, 4))
        one = draw(sampler, Rows(field[3:], coupling[3:], Source([seeded(2)], [5], size), 3, 4))
        assert torch.equal(both[3:], one)


def test_independent_spins_of_a_strong_field_are_certain():
    field = torch.tensor([[60.0, -60.0]]).repeat(1000, 1)
    assert torch.equal(independent.draw(Rows(field, torch.zeros(1000, 1), source(1000, 2))), field < 0)
