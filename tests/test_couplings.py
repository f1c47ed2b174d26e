"""Energies with pairs of their own: every sampler against enumeration, chains with their bias, bad pairs.

The statistics and their error rate are those of tests/test_sampler_contract.py.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import sparse, special

import gibbsprune as gp
from gibbsprune.couplings import WITHIN
from gibbsprune.errors import UserError
from gibbsprune.graphs import Graph
from gibbsprune.samplers import Pairs, Rows, Source, coloured, draw
from gibbsprune.site import Site
from gibbsprune.structures import as_structure
from test_sampler_contract import (
    BETAS,
    DRAWS,
    all_masks,
    check_counts,
    check_means,
    check_two_samples,
    codes,
    gibbs,
    histogram,
    neighbourhoods,
    seeded,
    source,
)

# -- laws by hand ------------------------------------------------------------------------------------------------------


def blocks_by_hand(within, structure, shape):
    """The elements that interact, row by row: each is a list of flat weight indices."""
    cut = {"kernel": "kernel", "filter": "filter", "layer": "layer", "neighbourhood": structure}[within]
    groups = [np.arange(math.prod(shape))] if cut == "layer" else neighbourhoods(cut, shape)
    if within == "neighbourhood":
        return [[[i] for i in group] for group in groups]
    own = neighbourhoods(structure, shape)
    return [[list(members) for members in own if set(members) <= set(group)] for group in groups]


def energies_by_hand(weight, structure, sparsity, blocks, pairs, strengths, centred=False, relative=False):
    """H of all masks, pair by pair; infinite where an element of several weights is neither kept nor pruned."""
    w = weight.double().numpy().ravel()
    means = np.array([(w[list(g)] ** 2).mean() for g in neighbourhoods(structure, weight.shape)])
    q, count = np.quantile(means, sparsity), len(means)
    kept = count - 1 - math.floor(sparsity * (count - 1) + 1e-12)
    m = 2 * kept / count - 1 if centred else 0.0
    x = np.where(all_masks(w.size), 1.0, -1.0)
    unit = q * max(len(blocks[0][0]), 1) if relative else 1.0
    total = x @ (q - w**2) / unit
    for row, elements in enumerate(blocks):
        spins = [x[:, members[0]] for members in elements]
        for (i, j), a in zip(pairs, strengths[row]):
            total = total + a * (spins[i] - m) * (spins[j] - m)
        for members in elements:
            total[(x[:, members] != x[:, members[:1]]).any(1)] = np.inf
    return total


def law_of(energies, beta):
    """p ∝ exp(−βH) of the masks that are possible at all."""
    law = np.zeros_like(energies)
    law[np.isfinite(energies)] = gibbs(energies[np.isfinite(energies)], beta)
    return law


CASES = {  # structure, within, shape, pairs
    "a chain in each kernel": ("kernel", "neighbourhood", (2, 1, 1, 5), [(0, 1), (1, 2), (3, 2), (4, 3)]),
    "a star in each filter": ("filter", "neighbourhood", (2, 5), [(2, 0), (2, 1), (2, 3), (4, 2)]),
    "a ring with a chord": ("filter", "neighbourhood", (1, 3, 2), [(i, (i + 1) % 6) for i in range(6)] + [(1, 4)]),
    "weights in a kernel": ("weight", "kernel", (2, 1, 2, 2), [(0, 1), (0, 2), (1, 3), (2, 3)]),
    "weights in a filter": ("weight", "filter", (2, 2, 1, 2), [(0, 2), (1, 3), (0, 3)]),
    "weights of a layer": ("weight", "layer", (2, 3), [(0, 4), (4, 5), (5, 0), (1, 3)]),
    "kernels in a filter": ("kernel", "filter", (2, 3, 1, 2), [(0, 1), (1, 2)]),
    "kernels of a layer": ("kernel", "layer", (2, 2, 1, 2), [(0, 3), (1, 2), (0, 1)]),
    "filters of a layer": ("filter", "layer", (4, 3), [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]),
}  # fmt: skip
EXACT = [
    (case, sampler)
    for case, (structure, within, shape, pairs) in CASES.items()
    for sampler in ("transfer", "enumeration")
]


def test_every_structure_and_within_is_a_case():
    assert {(structure, within) for structure, within, *_ in CASES.values()} >= {
        (structure, within) for within, structures in WITHIN.items() for structure in structures
    } - {(structure, "network") for structure in WITHIN["network"]}  # tests/test_joined.py


@pytest.mark.parametrize(("case", "sampler"), EXACT)
def test_exact_laws_against_enumeration(case, sampler):
    structure, within, shape, pairs = CASES[case]
    blocks, generator = blocks_by_hand(within, structure, shape), seeded(len(case))
    masks = torch.from_numpy(all_masks(math.prod(shape))).reshape(-1, *shape)
    for scale, centred in ((0.05, False), (1.0, True)):
        weight = torch.randn(shape, generator=generator, dtype=torch.float64) * math.sqrt(scale)
        strengths = torch.randn(len(pairs), generator=generator, dtype=torch.float64) * scale * 0.5  # either sign
        energy = gp.Pairwise(pairs, strengths, within, centred=centred)
        by_hand = energies_by_hand(weight, structure, 0.45, blocks, pairs, [strengths.numpy()] * len(blocks), centred)
        np.testing.assert_allclose(gp.energy(masks, weight, energy, structure, 0.45).numpy(), by_hand, atol=1e-12)
        for beta in (0.0, *BETAS):
            drawn = gp.sample(weight, energy, structure, 0.45, beta, sampler, draws=DRAWS, generator=generator)
            counts = np.bincount(codes(drawn), minlength=len(masks))
            check_counts(counts, law_of(by_hand, beta), f"{case} {sampler} scale {scale} beta {beta}")


def test_neighbourhoods_without_pairs_are_kept_or_pruned_whole():
    weight = torch.randn(6, 4, generator=seeded(0))
    drawn = gp.sample(weight, gp.Pairwise([], 0.0, "layer"), "filter", 0.5, 0.5, draws=50, generator=seeded(1))
    assert torch.equal(drawn, drawn[:, :, :1].expand_as(drawn))
    assert 0.2 < float(drawn.float().mean()) < 0.8


@pytest.mark.parametrize("case", CASES)
def test_a_chain_of_many_sweeps_against_enumeration(case):
    """60 sweeps at temperatures where they suffice; the bias of fewer is what the next test states."""
    structure, within, shape, pairs = CASES[case]
    blocks, generator = blocks_by_hand(within, structure, shape), seeded(len(case))
    weight = torch.randn(shape, generator=generator, dtype=torch.float64)
    strengths = torch.randn(len(pairs), generator=generator, dtype=torch.float64) * 0.5
    energy = gp.Pairwise(pairs, strengths, within)
    by_hand = energies_by_hand(weight, structure, 0.45, blocks, pairs, [strengths.numpy()] * len(blocks))
    for beta in (0.0, 0.7):
        drawn = gp.sample(weight, energy, structure, 0.45, beta, "coloured", 60, DRAWS // 2, generator)
        counts = np.bincount(codes(drawn), minlength=len(by_hand))
        check_counts(counts, law_of(by_hand, beta), f"{case} coloured beta {beta}")


# -- the bias of finitely many sweeps ----------------------------------------------------------------------------------


def sweep_matrix(field, graph, strengths):
    """The transition matrix of one sweep, colour by colour, from the pairs themselves."""
    size = len(field)
    x = np.where(all_masks(size), 1.0, -1.0)
    coupling = np.zeros((size, size))
    for (i, j), a in zip(graph.pairs, strengths):
        coupling[i, j] = coupling[j, i] = a
    matrix = np.eye(1 << size)
    for colour in range(graph.colouring.max() + 1):
        mine = graph.colouring == colour
        local = field + x @ coupling
        chance = special.expit(-2 * x[None, :, mine] * local[:, None, mine])
        same = (x[:, None, ~mine] == x[None, :, ~mine]).all(2)
        matrix = matrix @ np.where(same, chance.prod(2), 0.0)
    return matrix


RING = [(i, (i + 1) % 7) for i in range(7)] + [(0, 3)]  # odd, so that two colours do not do


@pytest.mark.parametrize("sweeps", [1, 2, 5])
@pytest.mark.parametrize("strength", [-1.0, 0.4])
def test_a_chain_after_so_many_sweeps(sweeps, strength):
    """From the law without pairs, sweep by sweep, against matrix products; then how far that is from the Gibbs law."""
    field = np.random.default_rng(0).normal(0, 0.4, 7)
    graph, strengths = Graph(7, RING), np.full(len(RING), strength)
    assert graph.colouring.max() == 2
    x = np.where(all_masks(7), 1.0, -1.0)
    start = special.expit(-2 * x * field).prod(1)
    matrix = sweep_matrix(field, graph, strengths)
    law = start @ np.linalg.matrix_power(matrix, sweeps)
    pairs = Pairs(graph, torch.from_numpy(strengths)[None])
    rows = torch.from_numpy(field).repeat(100_000, 1)
    mask = coloured.draw(Rows(rows, torch.ones(len(rows), 1), source(len(rows), 7), sweeps=sweeps, pairs=pairs))
    check_counts(np.bincount(codes(mask), minlength=128), law, f"{sweeps} sweeps at {strength}")
    target = gibbs(x @ field + strength * sum(x[:, i] * x[:, j] for i, j in RING), 1.0)
    np.testing.assert_allclose(target @ matrix, target, atol=1e-12)  # which the chain leaves as it is
    bias = [abs(start @ np.linalg.matrix_power(matrix, n) - target).sum() / 2 for n in (0, sweeps, 50)]
    assert bias[0] > bias[1] > bias[2]
    # What docs/how_to/diagnostics.md states: 50 cold sweeps are within 1e-6 where pairs are weak, 5 % where J is 1.
    assert bias[2] < (0.05 if strength == -1.0 else 1e-6)
    assert strength > 0 or bias[2] > 1e-4


def test_a_warm_chain_goes_on_from_the_mask_before():
    """Its law after one sweep is one step of the matrix from where it was; from the Gibbs law, the Gibbs law again."""
    field, graph = np.random.default_rng(1).normal(0, 0.4, 7), Graph(7, RING)
    strengths = np.full(len(RING), -0.5)
    x = np.where(all_masks(7), 1.0, -1.0)
    target = gibbs(x @ field - 0.5 * sum(x[:, i] * x[:, j] for i, j in RING), 1.0)
    rng = np.random.default_rng(2)
    before = torch.from_numpy(all_masks(7)[rng.choice(128, 100_000, p=target)])
    pairs = Pairs(graph, torch.from_numpy(strengths)[None])
    rows, ones = torch.from_numpy(field).repeat(100_000, 1), torch.ones(100_000, 1)
    after = coloured.draw(Rows(rows, ones, source(100_000, 7), sweeps=1, pairs=pairs, start=before))
    check_counts(np.bincount(codes(after), minlength=128), target, "warm from the law")
    assert not torch.equal(before, after)
    one = all_masks(7)[5]
    start = torch.from_numpy(one).repeat(100_000, 1)
    after = coloured.draw(Rows(rows, ones, source(100_000, 7), sweeps=1, pairs=pairs, start=start))
    law = sweep_matrix(field, graph, strengths)[5]
    check_counts(np.bincount(codes(after), minlength=128), law, "warm from one mask")


@pytest.mark.parametrize(("strength", "few", "many"), [(-0.1, 0.0171, 0.0032), (-0.5, 0.415, 0.313)])
def test_the_error_of_a_warm_chain_while_it_is_annealed(strength, few, many):
    """One sweep per step, β from 0.1 to 10: its greatest distance from the Gibbs law of the step, by matrix products.

    docs/how_to/diagnostics.md states these numbers: more steps help, but a coupling that orders freezes what there is.
    """
    graph, field = Graph(7, RING), np.random.default_rng(1).normal(0, 0.4, 7)
    x = np.where(all_masks(7), 1.0, -1.0)
    energies = x @ field + strength * sum(x[:, i] * x[:, j] for i, j in RING)
    for steps, stated in ((20, few), (100, many)):
        law, error = np.full(128, 1 / 128), 0.0
        for beta in np.geomspace(0.1, 10, steps):
            law = law @ sweep_matrix(beta * field, graph, np.full(len(RING), strength * beta))
            error = max(error, abs(law - gibbs(energies, beta)).sum() / 2)
        assert error == pytest.approx(stated, rel=0.02)


# -- large rows against independent long chains ------------------------------------------------------------------------


def single_site(field, vectors, chains, sweeps, seed):
    """Plain Gibbs sampling of a sum of squares, one spin after another, half of the chains from each uniform state."""
    rng = np.random.default_rng(seed)
    x = np.where(np.arange(chains)[:, None] % 2, 1.0, -1.0).repeat(len(field), 1)
    sums = x @ vectors.T
    for _ in range(sweeps):
        for i, u in enumerate(rng.random((len(field), chains))):
            others = sums - x[:, i : i + 1] * vectors[:, i]
            x[:, i] = np.where(u < special.expit(2 * (others @ vectors[:, i] - field[i])), 1.0, -1.0)
            sums = others + x[:, i : i + 1] * vectors[:, i]
    return x


def tree_pairs(size, seed):
    """A random tree: each joins one that came before."""
    rng = np.random.default_rng(seed)
    return [(int(rng.integers(max(0, i - 4), i)), i) for i in range(1, size)]


def check_large(mask, reference, pairs, label):
    """Magnetisations, single means and correlations of pairs of two samples."""
    spins = np.where(mask.numpy(), 1.0, -1.0)
    check_two_samples(histogram(spins), histogram(reference), label)
    check_means(spins, reference, label)
    products = [np.stack([s[:, i] * s[:, j] for i, j in pairs], 1) for s in (spins, reference)]
    check_means(*products, f"{label}, pairs")


@pytest.mark.parametrize(("size", "kind"), [(30, "chain"), (30, "tree"), (144, "tree"), (600, "chain"), (600, "tree")])
def test_trees_and_chains_against_long_chains(size, kind):
    rng = np.random.default_rng(size)
    pairs = [(i, i + 1) for i in range(size - 1)] if kind == "chain" else tree_pairs(size, size)
    field, strengths = rng.normal(0, 0.3, size), rng.normal(-0.2, 0.5, size - 1)
    graph, chains = Graph(size, pairs), 1000
    assert graph.width == 1
    rows = torch.from_numpy(field).repeat(chains, 1)
    held = Pairs(graph, torch.from_numpy(strengths)[None])
    mask = draw("transfer", Rows(rows, torch.ones(chains, 1), source(chains, size), pairs=held))
    one, two = np.array(pairs).T
    half = sparse.coo_array((strengths, (one, two)), (size, size))
    reference = coloured_by_hand(field, (half + half.T).tocsc(), graph.colouring, chains, 80, size)
    check_large(mask, reference, pairs, f"{kind} of {size}")


def coloured_by_hand(field, coupling, colouring, chains, sweeps, seed):
    """A long chain in numpy, all spins of a colour at a time, for graphs whose colours are few."""
    rng = np.random.default_rng(seed)
    x = np.where(np.arange(chains)[:, None] % 2, 1.0, -1.0).repeat(len(field), 1)
    for _ in range(sweeps):
        for colour in range(colouring.max() + 1):
            mine = np.flatnonzero(colouring == colour)
            chance = special.expit(-2 * (field[mine] + x @ coupling[:, mine]))
            x[:, mine] = np.where(rng.random(chance.shape) < chance, 1.0, -1.0)
    return x


@pytest.mark.parametrize(("size", "rank"), [(30, 1), (30, 2), (30, 3), (600, 1), (600, 2)])
def test_squares_against_long_chains(size, rank):
    """Vectors of either sign around the ordering transition, where a single spin's chain still mixes."""
    rng = np.random.default_rng(size + rank)
    vectors = rng.normal(0, 1, (rank, size)) * math.sqrt(0.6 / size)
    field, chains = rng.normal(0.05, 0.3, size), 300 if rank * size > 600 or rank == 3 else 1000
    rows = torch.from_numpy(field).repeat(chains, 1)
    energy = gp.Pairwise.low_rank(vectors)
    held = Pairs(Graph(size, energy.given), energy.A[None], energy.vectors)
    mask = draw("low_rank", Rows(rows, torch.ones(chains, 1), source(chains, size), pairs=held))
    reference = single_site(field, vectors, chains, 40, size)
    some = list(itertools.islice(itertools.combinations(range(size), 2), 300))
    check_large(mask, reference, some, f"{rank} squares of {size}")


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_squares_against_enumeration_at_all_temperatures(rank):
    rng = np.random.default_rng(rank)
    size, rows = 8, (20_000, 2000, 300)[rank - 1]
    vectors, field = rng.normal(0, 0.3, (rank, size)), rng.normal(0, 0.2, size)
    energy = gp.Pairwise.low_rank(vectors)
    x = np.where(all_masks(size), 1.0, -1.0)
    by_hand = x @ field - ((x @ vectors.T) ** 2).sum(1) / 2
    held = Pairs(Graph(size, energy.given), energy.A[None], energy.vectors)
    for beta in (0.0, 0.1, 1.0, 5.0, 50.0, 1e3, 1e4):
        h = torch.from_numpy(field * beta).repeat(rows, 1)
        mask = draw(
            "low_rank", Rows(h, torch.full((rows, 1), beta, dtype=torch.float64), source(rows, size), pairs=held)
        )
        check_counts(np.bincount(codes(mask), minlength=256), gibbs(by_hand, beta), f"{rank} squares at beta {beta}")


@pytest.mark.parametrize("beta", [1e4, 1e12, 1e30, 1e300])
def test_three_squares_at_the_end_of_a_schedule(beta):
    """A lattice of 10^10 points and more, of which a few have mass: the state of least energy, at once."""
    rng = np.random.default_rng(5)
    energy = gp.Pairwise.low_rank(rng.normal(0, 0.3, (3, 12)))
    weight = torch.from_numpy(rng.normal(0, 1, (6, 12)))
    drawn = gp.sample(weight, energy, "filter", 0.5, beta, "low_rank", draws=5, generator=seeded(1))
    masks = torch.from_numpy(all_masks(12))
    for row, kept in enumerate(drawn.unbind(1)):
        stack = drawn[:1].repeat(len(masks), 1, 1)
        stack[:, row] = masks
        best = masks[gp.energy(stack, weight, energy, "filter", 0.5).argmin()]
        assert torch.equal(kept, best.expand_as(kept))


def test_squares_of_equal_vectors_are_the_quadratic_law():
    weight = torch.randn(3, 12, generator=seeded(3), dtype=torch.float64)
    masks = torch.rand(50, 3, 12, generator=seeded(4)) < 0.5
    squares = gp.Pairwise.low_rank(np.full((1, 12), math.sqrt(0.1)))
    ours, plain = (gp.energy(masks, weight, h, "filter", 0.5) for h in (squares, gp.Quadratic(0.1)))
    torch.testing.assert_close(ours, plain)


# -- runs, rows and layers together ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["transfer", "enumeration", "coloured", "low_rank"])
def test_a_run_draws_the_same_alone_as_among_others(sampler):
    energy = gp.Pairwise.low_rank(torch.randn(2, 6, generator=seeded(8)) * 0.4)
    pairs = gp.grid_pairs((2, 3)) if sampler == "transfer" else energy.given
    held = Pairs(Graph(6, pairs), torch.randn(8, len(pairs), generator=seeded(4)), energy.vectors)
    field, beta = torch.randn(8, 6, generator=seeded(3)), torch.linspace(0.5, 2, 8)[:, None]
    both = draw(sampler, Rows(field, beta, Source([seeded(1), seeded(2)], [3, 5], 6), sweeps=4, pairs=held))
    mine = held._replace(strengths=held.strengths[3:])
    one = draw(sampler, Rows(field[3:], beta[3:], Source([seeded(2)], [5], 6), sweeps=4, pairs=mine))
    assert torch.equal(both[3:], one)


def test_the_law_of_one_layer_does_not_depend_on_others():
    """Strengths that differ from row to row reach the row's own law, also through a whole model's layers."""
    from gibbsprune.law import Law

    kind = as_structure("filter")
    energy = gp.Redundancy(repulsion=3.0)
    weights = [torch.randn(5, 4, generator=seeded(s)) for s in (1, 2)]
    sites = [Site((5, 4), kind, energy, 0.5, run=run) for run in (0, 1)]
    together = Law(sites).draw(weights, torch.tensor([2.0, 3.0]), [seeded(5), seeded(6)])
    alone = Law([Site((5, 4), kind, energy, 0.5)]).draw(weights[1:], torch.tensor([3.0]), [seeded(6)])
    assert torch.equal(together[1], alone[0])


def test_transposed_convolutions_interact_by_filters():
    """(inputs, outputs, kernel) stores the filters across; what interacts is as in the weight laid out anew."""
    layer = torch.nn.ConvTranspose2d(3, 2, (1, 2))
    kind = as_structure("weight", layer)
    weight = torch.randn(3, 2, 1, 2, generator=seeded(0), dtype=torch.float64)
    energy, masks = gp.Neighbours(0.4, across=True), torch.rand(200, 3, 2, 1, 2, generator=seeded(1)) < 0.5
    turned = gp.energy(masks.transpose(1, 2), weight.transpose(0, 1).contiguous(), energy, "weight", 0.5)
    torch.testing.assert_close(gp.energy(masks, weight, energy, kind, 0.5), turned)
    few = gp.sample(weight, energy, kind, 0.5, 1.5, draws=DRAWS, generator=seeded(2))
    blocks = [[[i * 4 + o * 2 + k] for i in range(3) for k in range(2)] for o in range(2)]
    pairs = gp.grid_pairs((3, 1, 2)).tolist()
    by_hand = energies_by_hand(weight, "weight", 0.5, blocks, pairs, [[-0.4 / 3] * len(pairs)] * 2, True, True)
    check_counts(np.bincount(codes(few), minlength=1 << 12), law_of(by_hand, 1.5), "transposed")


# -- the energies that are ready made ----------------------------------------------------------------------------------


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("beta", [0.5, 3.0, 50.0])
def test_neighbours_against_enumeration(across, beta):
    shape = (2, 2, 1, 3)
    weight = torch.randn(shape, generator=seeded(7), dtype=torch.float64)
    blocks = blocks_by_hand("filter" if across else "kernel", "weight", shape)
    pairs = gp.grid_pairs((2, 1, 3) if across else (1, 3)).tolist()
    each = -0.6 / (3 if across else 2)  # the middle one of three has two neighbours, and one in the other channel
    by_hand = energies_by_hand(weight, "weight", 0.45, blocks, pairs, [[each] * len(pairs)] * len(blocks), True, True)
    drawn = gp.sample(weight, gp.Neighbours(0.6, across), "weight", 0.45, beta, draws=DRAWS, generator=seeded(8))
    check_counts(np.bincount(codes(drawn), minlength=1 << 12), law_of(by_hand, beta), f"neighbours {across} {beta}")


@pytest.mark.parametrize("beta", [0.5, 3.0, 50.0])
def test_redundancy_against_enumeration(beta):
    weight = torch.randn(5, 2, generator=seeded(9), dtype=torch.float64)
    unit = weight / weight.norm(dim=1, keepdim=True)
    pairs = list(itertools.combinations(range(5), 2))
    strengths = [float(abs(unit[i] @ unit[j])) * 2.0 / 4 for i, j in pairs]
    blocks = blocks_by_hand("layer", "filter", (5, 2))
    by_hand = energies_by_hand(weight, "filter", 0.45, blocks, pairs, [strengths], True, True)
    drawn = gp.sample(weight, gp.Redundancy(2.0), "filter", 0.45, beta, draws=DRAWS, generator=seeded(8))
    check_counts(np.bincount(codes(drawn), minlength=1 << 10), law_of(by_hand, beta), f"redundancy {beta}")


def test_neighbours_come_in_patches_and_copies_of_a_filter_go():
    weight = torch.randn(32, 8, 3, 3, generator=seeded(1))
    joined = [
        gp.sample(weight, gp.Neighbours(a, across=True), "weight", 0.75, 30.0, generator=seeded(2))[0]
        for a in (0.0, 0.6)
    ]
    alike = [float((mask[:, 1:] & mask[:, :-1]).float().mean()) for mask in joined]
    assert alike[1] > 1.1 * alike[0]
    assert all(abs(1 - float(mask.float().mean()) - 0.75) < 0.03 for mask in joined)  # centred: as sparse as before
    filters = torch.randn(12, 20, generator=seeded(3))
    filters[6:] = filters[:6] * 1.02  # each twice
    for repulsion, copies in ((0.0, 6), (8.0, 0)):
        mask = gp.sample(filters, gp.Redundancy(repulsion), "filter", 0.5, 100.0, generator=seeded(4))[0][:, 0]
        both = int((mask[:6] & mask[6:]).sum())
        assert both <= 1 if copies == 0 else both >= 2


# -- which sampler, and what is refused --------------------------------------------------------------------------------


def chosen(energy, structure, shape):
    return Site(shape, as_structure(structure), energy, 0.5).checked().sampler


def test_auto_takes_the_fastest_exact_way_else_the_chain():
    assert chosen(gp.Neighbours(), "weight", (8, 8, 3, 3)) == "transfer"
    assert chosen(gp.Neighbours(), "weight", (8, 8, 1, 1)) == "independent"
    assert chosen(gp.Neighbours(across=True), "weight", (8, 64, 3, 3)) == "coloured"
    assert chosen(gp.Neighbours(across=True), "weight", (8, 64, 1, 1)) == "transfer"
    assert chosen(gp.Redundancy(), "filter", (8, 4)) == "enumeration"
    assert chosen(gp.Redundancy(), "filter", (64, 4)) == "coloured"
    assert chosen(gp.Pairwise.low_rank(np.ones((2, 40))), "filter", (8, 40)) == "low_rank"


COMPLETE = gp.Pairwise(gp.all_pairs(40), 1.0)


def five(weights):
    return torch.zeros(len(weights), 5)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: gp.Pairwise([(0, 1, 2)], 1.0), r"pairs are int64 of shape \(1, 3\): allowed are whole numbers"),
        (lambda: gp.Pairwise([(0.5, 1.0)], 1.0), "pairs are float64 of shape"),
        (lambda: gp.Pairwise([(1, 1)], 1.0), "pairs couple element 1 with itself"),
        (lambda: gp.Pairwise([(0, 1), (1, 0)], 1.0), "pairs name 0 and 1 more than once"),
        (lambda: gp.Pairwise([(0, -1)], 1.0), "pairs name element -1: allowed are whole numbers from 0"),
        (lambda: gp.Pairwise([(0, 1), (2,)], 1.0), r"pairs is \[\(0, 1\), \(2,\)\]: allowed are whole"),
        (lambda: gp.Pairwise([(0, 1)], torch.tensor([1j])), "strengths is tensor.*: allowed are numbers"),
        (lambda: gp.all_pairs(-1), "size is -1: allowed are whole numbers from 0"),
        (lambda: gp.grid_pairs(3), "grid is 3: allowed are whole numbers from 0"),
        (lambda: gp.grid_pairs((3, -1)), "grid is .*: allowed are whole numbers from 0"),
        (lambda: gp.grid_pairs((3, 2), (2,)), "axes is .*: allowed are some of 0 to 1 on a grid of 2 axes"),
        (lambda: gp.kth_pairs(3), "counts is 3: allowed are whole numbers from 0"),
        (lambda: gp.Pairwise([(0, 1)], [1.0, 2.0]), r"strengths have shape \(2,\): allowed are one number and 1"),
        (lambda: gp.Pairwise([(0, 1)], math.nan), "strengths hold NaN"),
        (lambda: gp.Pairwise([(0, 1)], "strong"), "strengths is 'strong'"),
        (lambda: gp.Pairwise([(0, 1)], 1.0, "world"), "within is 'world': allowed are 'neighbourhood', 'kernel'"),
        (lambda: gp.Pairwise([(0, 1)], 1.0, base=gp.Quadratic()), "base is Quadratic"),
        (lambda: gp.Pairwise.low_rank(np.ones((4, 9))), r"vectors have shape \(4, 9\)"),
        (lambda: gp.Pairwise.low_rank("many"), "vectors is 'many': allowed are numbers of shape"),
        (lambda: gp.Pairwise.low_rank(None), "vectors is None: allowed are numbers of shape"),
        (lambda: gp.Pairwise.low_rank(1j * np.ones((1, 9))), "vectors is array.*: allowed are numbers of shape"),
        (lambda: gp.sample(torch.ones(2, 9), gp.Pairwise.low_rank(np.ones((1, 5))), "filter"),
         "vectors have 5 elements: allowed are 9, which interact"),
        (lambda: gp.Neighbours(-1.0), "attraction is -1.0: allowed are numbers from 0"),
        (lambda: gp.Redundancy(-1.0), "repulsion is -1.0: allowed are numbers from 0"),
        (lambda: gp.sample(torch.ones(2, 3), gp.Pairwise([(0, 7)], 1.0), "filter"),
         "pairs name element 7: allowed are 0 to 2 where 3 elements interact"),
        (lambda: gp.sample(torch.ones(2, 3), gp.Pairwise([(0, 1)], five), "filter"),
         r"the function of strengths gives \(2, 5\): allowed are tensors of shape \(2, 1\)"),
        (lambda: gp.sample(torch.ones(2, 3), gp.Pairwise([(0, 1)], lambda w: five(w)[:, :1] * 1j), "filter"),
         r"the function of strengths gives torch.complex64 of shape \(2, 1\)"),
        (lambda: gp.sample(torch.ones(2, 3), gp.Pairwise([(0, 1)], lambda w: five(w)[:, :1] / 0), "filter"),
         "the function of strengths gives NaN or infinite numbers: allowed are finite ones"),
        (lambda: gp.sample(torch.ones(2, 3), gp.Pairwise([(0, 1)], 1.0), "weight"), "hamiltonian is Pairwise"),
        (lambda: gp.sample(torch.ones(4, 8), gp.Neighbours(), "2:4"), "hamiltonian is Neighbours.* structure '2:4'"),
        (lambda: gp.sample(torch.ones(4, 8), COMPLETE, "4x4"), "hamiltonian is Pairwise.* with structure '4x4'"),
        (lambda: gp.sample(torch.ones(2, 40), COMPLETE, "filter", sampler="low_rank"),
         "sampler is 'low_rank': allowed are 'auto', 'coloured' with Pairwise"),
        (lambda: gp.sample(torch.ones(2, 40), COMPLETE, "filter", sampler="transfer"),
         "780 pairs of 40 elements, of width more than 6"),
    ],
)  # fmt: skip
def test_bad_pairs_are_refused_in_one_sentence(make, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_equal_energies_are_drawn_together():
    one, two = (gp.Pairwise(np.array([(0, 1)]), torch.tensor([0.5])) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert repr(one) == repr(two)
    assert one != gp.Pairwise([(0, 1)], 0.25)
    assert gp.Neighbours() == gp.Neighbours(0.4)


# -- in a pruner -------------------------------------------------------------------------------------------------------


def pruner_of(**options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 6, 3), torch.nn.ReLU(), torch.nn.Conv2d(6, 4, 3))
    energy = gp.Neighbours(0.5, across=True)
    return gp.GibbsPruner(model, 0.5, hamiltonian=energy, schedule=lambda epoch: 1.0 + epoch, include="2", **options)


def test_a_warm_pruner_moves_by_its_sweeps_and_resumes():
    """Near freezing a warm chain of one sweep stays near its mask, a cold one begins anew; both go on where saved."""
    warm, again = (pruner_of(warm=True, sweeps=1) for _ in range(2))
    for step in range(6):
        warm.set_epoch(step)
        warm.step()
    again.model.load_state_dict(warm.model.state_dict())
    again.load_state_dict(warm.state_dict())
    before = warm.masks["2"].mask.clone()
    for pruner in (warm, again):
        pruner.step()
    assert torch.equal(warm.masks["2"].mask, again.masks["2"].mask)
    cold = pruner_of(sweeps=1)
    cold.set_epoch(5)
    apart = [float((before != pruner.masks["2"].mask).float().mean()) for pruner in (warm, cold)]
    assert 0 < apart[0] < apart[1]
    assert "drawn by coloured (a chain) in 1 layer" in str(warm.summary())


def test_a_pruner_ends_in_its_own_law():
    pruner = pruner_of()
    pruner.set_epoch(1e7)
    pruner.step()
    with pytest.warns(UserWarning, match="masks have not converged"):
        model = pruner.finalize(draw="sample")
    kept = float((model[2].weight != 0).float().mean())
    assert 0.4 < kept < 0.6  # centred: about half, though not exactly
