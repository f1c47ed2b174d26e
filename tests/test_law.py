"""The law of many layers at once: its limits, its independence of grouping, its memory, its refusals."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gibbsprune as gp
from gibbsprune import law as law_module
from gibbsprune.hamiltonians import as_hamiltonian
from gibbsprune.law import Law, independent_kind
from gibbsprune.site import Site, off_edge
from gibbsprune.structures import ALLOWED, as_structure
from gibbsprune.threshold import kept_count, position


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def beta_tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


COMBINATIONS = [
    ("weight", gp.Binary()),
    ("kernel", gp.Binary("ratio")),
    ("filter", gp.Binary("offset")),
    ("weight", gp.Linear("sign")),
    ("kernel", gp.Linear("sign")),
    ("filter", gp.Linear("sign")),
    ("weight", gp.Linear("square")),
    ("weight", gp.Linear("abs")),
    ("kernel", gp.Quadratic(5.0)),
    ("filter", gp.Quadratic(5.0)),
]


@pytest.mark.parametrize(("structure", "hamiltonian"), COMBINATIONS)
@pytest.mark.parametrize("beta", [math.inf, 1e8])
def test_the_limit_is_the_converged_mask(structure, hamiltonian, beta):
    weight = torch.randn(12, 7, 3, 3, generator=seeded(0))
    drawn = gp.sample(weight, hamiltonian, structure, 0.83, beta, draws=5, generator=seeded(1))
    assert torch.equal(drawn, gp.converged_mask(weight, 0.83, structure).expand(5, -1, -1, -1, -1))


def test_beta_infinity_keeps_exact_counts_with_ties():
    weight = torch.ones(10)
    assert gp.sample(weight, sparsity=0.6, beta=math.inf)[0].tolist() == [True] * 4 + [False] * 6


@pytest.mark.parametrize(("structure", "hamiltonian"), COMBINATIONS)
def test_small_beta_is_nearly_uniform(structure, hamiltonian):
    """Each weight is kept half of the time, within five standard errors of 2 000 draws."""
    weight = torch.randn(6, 3, 3, 3, generator=seeded(0)) * 0.1
    beta = -1e6 if isinstance(hamiltonian, gp.Binary) and hamiltonian.relative == "offset" else 1e-6
    kept = gp.sample(weight, hamiltonian, structure, 0.9, beta, draws=2000, generator=seeded(1)).float().mean(0)
    assert float((kept - 0.5).abs().max()) < 5 * 0.5 / math.sqrt(2000)


@given(st.floats(0.001, 0.999), st.integers(2, 300))
def test_off_edge_keeps_as_many_and_leaves_none_on_the_threshold(sparsity, count):
    for p in (sparsity, round(sparsity * (count - 1)) / (count - 1)):
        if not 0 < p < 1:
            continue
        shifted = off_edge(p, count)
        assert kept_count(shifted, count) == kept_count(p, count)
        assert 1e-9 < position(shifted, count)[1] < 1 - 1e-9 or position(p, count)[1] != 0
        if position(p, count)[1] == 0:
            weight = torch.arange(1.0, count + 1, dtype=torch.float64)
            assert not bool((weight.square() == gp.threshold(weight, shifted)).any())


def test_off_edge_leaves_zero_alone():
    assert off_edge(0.0, 16) == 0.0
    assert off_edge(0.9, 16) == 0.9


def test_a_neighbourhood_on_the_threshold_never_freezes_unless_it_is_moved_off():
    """16 filters at 0.8: p(M − 1) = 12, the thirteenth lies on Q, feels no field and is a fair coin at any β."""
    weight = torch.arange(1.0, 17)[:, None].repeat(1, 3)
    kept = gp.sample(weight, gp.Linear("sign"), "filter", 0.8, 1e3, draws=400, generator=seeded(0)).float().mean((0, 2))
    assert 0.35 < float(kept[12]) < 0.65
    moved = off_edge(0.8, 16)
    drawn = gp.sample(weight, gp.Linear("sign"), "filter", moved, 1e3, draws=400, generator=seeded(0))
    assert torch.equal(drawn, gp.converged_mask(weight, 0.8, "filter").expand_as(drawn))


def test_same_generator_same_masks():
    weight = torch.randn(20, 20, generator=seeded(0))
    first = gp.sample(weight, beta=1.0, draws=3, generator=seeded(5))
    again = gp.sample(weight, beta=1.0, draws=3, generator=seeded(5))
    other = gp.sample(weight, beta=1.0, draws=3, generator=seeded(6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first[0], first[1])
    assert first.shape == (3, 20, 20)
    assert first.dtype == torch.bool


def test_global_random_state_is_used_only_without_a_generator():
    weight = torch.randn(20, 20, generator=seeded(0))
    before = torch.get_rng_state()
    gp.sample(weight, beta=1.0, generator=seeded(5))
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        first = gp.sample(weight, beta=1.0)
        torch.manual_seed(3)
        assert torch.equal(gp.sample(weight, beta=1.0), first)


def test_weights_are_neither_changed_nor_tracked():
    weight = torch.randn(8, 8, requires_grad=True)
    before = weight.detach().clone()
    mask = gp.sample(weight, beta=1.0)
    assert not mask.requires_grad
    assert torch.equal(weight, before)


SITES = [
    Site((6, 4, 3, 3), gp.Kernel(), gp.Quadratic(), 0.9),
    Site((8, 6, 3, 3), gp.Kernel(), gp.Quadratic(), 0.5),
    Site((8, 6, 3, 3), gp.Filter(), gp.Quadratic(), 0.5),
    Site((6, 4, 3, 3), gp.Filter(), gp.Quadratic(), 0.65, "chromatic"),
    Site((5, 4, 2), gp.Filter(transposed=True), gp.Linear("sign"), 0.6),
    Site((6, 7), gp.Weight(), gp.Linear("square"), 0.7),
    Site((9, 7), gp.Weight(), gp.Linear("square"), 0.2),
    Site((9, 7), gp.Weight(), gp.Binary(), 0.2),
    Site((4, 5), gp.Weight(), gp.Binary(), 0.4),
]


def weights_of(sites, seed=0):
    generator = seeded(seed)
    return [torch.randn(site.shape, generator=generator) for site in sites]


def test_layers_sampled_together_follow_their_own_laws():
    """At large β every site has its own converged mask; at β 0 every site is uniform."""
    weights, many = weights_of(SITES), Law(SITES)
    strong = [Site(s.shape, s.structure, _strong(s.hamiltonian), s.sparsity, s.sampler) for s in SITES]
    for site, weight, mask in zip(SITES, weights, Law(strong).draw(weights, beta_tensor(1e7), [seeded(1)])):
        assert torch.equal(mask, gp.converged_mask(weight, site.sparsity, site.structure))
    for site, weight, mask in zip(SITES, weights, many.converged(weights)):
        assert torch.equal(mask, gp.converged_mask(weight, site.sparsity, site.structure))
    kept = torch.stack([torch.cat([m.flatten() for m in many.draw(weights, beta_tensor(0.0), [seeded(k)])]).float()
                        for k in range(100)]).mean(0)  # fmt: skip
    assert float((kept - 0.5).abs().max()) < 5.5 * 0.5 / math.sqrt(100)


def _strong(hamiltonian):
    return gp.Quadratic(100.0) if isinstance(hamiltonian, gp.Quadratic) else hamiltonian


def test_each_layer_has_its_own_threshold_and_coin():
    """The frequencies of a layer drawn among others are those of its own law."""
    weights, generator = weights_of(SITES)[5:], seeded(2)
    many = Law(SITES[5:])
    draws = [many.draw(weights, beta_tensor(0.3), [generator]) for _ in range(1000)]
    for k, sparsity in enumerate((0.7, 0.2)):
        kept = sum(masks[k].float() for masks in draws) / len(draws)
        expected = torch.sigmoid(-2 * 0.3 * (gp.threshold(weights[k], sparsity) - weights[k].square()))
        assert float((kept - expected).abs().max()) < 5.5 * 0.5 / math.sqrt(len(draws))
    draws = [many.draw(weights, beta_tensor(20 * math.log(2)), [generator]) for _ in range(400)]
    switched = [torch.equal(masks[3], gp.converged_mask(weights[3], 0.4)) for masks in draws]
    assert 150 < sum(switched) < 250  # N = 20: β = N ln 2 is an even chance
    assert not any(torch.equal(masks[2], gp.converged_mask(weights[2], 0.2)) for masks in draws)  # N = 63: hopeless


def test_runs_drawn_together_draw_what_they_draw_alone():
    shifted = [Site(s.shape, s.structure, s.hamiltonian, s.sparsity, s.sampler, run=1) for s in SITES]
    ours, theirs = weights_of(SITES, 0), weights_of(SITES, 1)
    together = Law([*SITES, *shifted]).draw([*ours, *theirs], beta_tensor(0.5, 3.0), [seeded(1), seeded(2)])
    first = Law(SITES).draw(ours, beta_tensor(0.5), [seeded(1)])
    second = Law(SITES).draw(theirs, beta_tensor(3.0), [seeded(2)])
    assert all(torch.equal(a, b) for a, b in zip(together, [*first, *second]))


@pytest.mark.parametrize("runs", [1, 2])
def test_groups_past_the_chunk_are_drawn_in_pieces(monkeypatch, runs):
    """Pieces have their own thresholds and β; a run that needs none draws the same as without."""
    sites = [Site((40, 30), gp.Weight(), gp.Linear("square"), p, run=r) for r in range(runs) for p in (0.2, 0.9)]
    sites.append(Site((7, 5), gp.Weight(), gp.Linear("square"), 0.4, run=runs))
    weights, generators = weights_of(sites), [seeded(k) for k in range(runs + 1)]
    whole = Law(sites).draw(weights, beta_tensor(*[1e9] * runs, 0.1), generators)
    monkeypatch.setattr(law_module, "CHUNK", 1000)
    generators = [seeded(k) for k in range(runs + 1)]
    pieces = Law(sites).draw(weights, beta_tensor(*[1e9] * runs, 0.1), generators)
    assert all(torch.equal(a, b) for a, b in zip(whole, pieces))


def test_kernels_are_told_the_field_only_where_they_know_it():
    class Own(gp.Linear):
        def field(self, squares, means, threshold):
            return squares - threshold

    for kind in ("sign", "square", "abs"):
        assert independent_kind(gp.Linear(kind), "independent", 1) == kind
        assert independent_kind(gp.Linear(kind), "enumeration", 1) == kind
    assert independent_kind(gp.Linear("sign"), "independent", 9) == "sign"
    assert independent_kind(gp.Linear("sign"), "enumeration", 9) is None
    assert independent_kind(gp.Quadratic(), "exact", 1) == "square"
    assert independent_kind(gp.Quadratic(), "exact", 9) is None
    assert independent_kind(gp.Binary(), "two_point", 1) is None
    assert independent_kind(Own("square"), "independent", 1) is None


def test_many_layers_that_are_large_together():
    """Twenty million weights in five layers, none of which is large by itself."""
    sites = [Site((2000, 2000), gp.Weight(), gp.Linear("square"), 0.9)] * 5
    weights = [torch.randn(2000, 2000, generator=seeded(k)) * (k + 1) for k in range(5)]
    for weight, mask in zip(weights, Law(sites).draw(weights, beta_tensor(1e7), [seeded(0)])):
        assert float((mask != gp.converged_mask(weight, 0.9)).float().mean()) < 1e-5


def test_more_draws_than_fit_at_once(monkeypatch):
    monkeypatch.setattr(law_module, "LARGE", 500)
    weight = torch.randn(10, 10, generator=seeded(0))
    drawn = gp.sample(weight, sparsity=0.5, beta=0.5, draws=33, generator=seeded(0))
    assert len({tuple(mask.flatten().tolist()) for mask in drawn}) == 33


MEMORY = """
import resource, torch, gibbsprune as gp
torch.set_num_threads(1)
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
gp.sample(torch.randn(1000), beta=1.0)
weight = torch.empty(10**8).uniform_(-1, 1)
before = peak()
mask = gp.sample(weight, {hamiltonian!r}, "weight", 0.9, {beta}, generator=torch.Generator().manual_seed(0))
print(peak() - before, int(mask.sum()) / 10**8)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("hamiltonian", "beta"), [("square", 1e8), ("binary", 1e9)])
def test_a_hundred_million_weights_need_less_than_three_gib(hamiltonian, beta):
    code = MEMORY.format(hamiltonian=hamiltonian, beta=beta)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    extra, kept = map(float, done.stdout.split())
    assert extra < 3.0
    assert kept == pytest.approx(0.1, abs=1e-4)


@pytest.mark.parametrize(("structure", "sampler"), [("weight", "auto"), ("filter", "chromatic")])
def test_counts_of_numpy(structure, sampler):
    weight = torch.randn(4, 3, 3, 3, generator=torch.Generator().manual_seed(0))
    masks = gp.sample(weight, structure=structure, sparsity=0.5, sampler=sampler, draws=np.int64(3), sweeps=np.int32(2))
    assert masks.shape == (3, 4, 3, 3, 3)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"beta": -1}, "beta is -1: allowed are numbers from 0 up, infinity included"),
        ({"beta": math.nan}, "beta is nan: allowed are numbers from 0 up, infinity included"),
        ({"beta": "hot"}, "beta is 'hot': allowed are numbers from 0 up, infinity included"),
        ({"draws": 0}, "draws is 0: allowed are whole numbers from 1"),
        ({"sweeps": 0}, "sweeps is 0: allowed are whole numbers from 1"),
        ({"draws": 1.5}, "draws is 1.5: allowed are whole numbers from 1"),
        (
            {"sampler": "gibbs"},
            "sampler is 'gibbs': allowed are 'auto', 'independent', 'two_point', 'enumeration', 'chromatic', 'exact', "
            "'transfer', 'low_rank', 'coloured', 'conditional'",
        ),
        (
            {"sampler": "exact"},
            "sampler is 'exact': allowed are 'auto', 'independent', 'enumeration' with Linear('square', relative=True)",
        ),
        (
            {"sampler": "independent", "structure": "filter"},
            "sampler is 'independent': allowed are 'auto', 'exact', 'chromatic', 'enumeration' with "
            "Quadratic(coupling=1.05, relative=True)",
        ),
        (
            {"sampler": "enumeration", "structure": "filter"},
            "sampler is 'enumeration': allowed are 'exact', 'chromatic' with neighbourhoods of 17 elements, "
            "more than 16",
        ),
        (
            {"sampler": "enumeration", "hamiltonian": "binary"},
            "sampler is 'enumeration': allowed are 'auto', 'two_point' with Binary(relative='offset')",
        ),
        ({"structure": "row"}, f"structure is 'row': allowed are {ALLOWED}"),
    ],
)
@pytest.mark.parametrize("beta", [1.0, math.inf])
def test_refusals(arguments, sentence, beta):
    with pytest.raises(gp.UserError) as error:
        gp.sample(torch.ones(3, 17), **{"beta": beta, **arguments})
    assert str(error.value) == sentence


def test_offset_takes_negative_beta_and_the_others_do_not():
    weight = torch.randn(5, 5)
    gp.sample(weight, gp.Binary("offset"), beta=-3.0)
    with pytest.raises(gp.UserError, match=r"^beta is -3.0: "):
        gp.sample(weight, gp.Binary("ratio"), beta=-3.0)
    with pytest.raises(gp.UserError, match=r"^beta is nan: "):
        gp.sample(weight, gp.Binary("offset"), beta=math.nan)


def test_a_hamiltonian_of_ones_own_with_a_negative_coupling_is_refused():
    class Repelling(gp.Hamiltonian):
        coupling = -0.1

        def field(self, squares, means, threshold):
            return threshold - squares

    with pytest.raises(gp.UserError, match=r"^coupling is -0.1: allowed are numbers from 0 up$"):
        gp.sample(torch.ones(2, 3), Repelling(), "filter")


def test_a_sparsity_of_nothing_keeps_all_at_every_beta():
    for structure in ("weight", "kernel", "filter"):
        assert gp.sample(torch.randn(4, 3, 3, 3), structure=structure, sparsity=0, beta=0.1, draws=3).all()


@pytest.mark.parametrize("structure", ["weight", "kernel", "filter"])
def test_beta_may_be_greater_than_float32_can_hold(structure):
    weight = 0.1 * torch.randn(20, 7, 3, 3, generator=seeded(0))
    mask = gp.sample(weight, structure=structure, sparsity=0.53, beta=1e39, generator=seeded(1))[0]
    assert torch.equal(mask, gp.converged_mask(weight, 0.53, structure))


@pytest.mark.parametrize("beta", [1e10, 1e28, 1e38, 1e300])
@pytest.mark.parametrize(
    ("structure", "sampler"),
    [("kernel", "enumeration"), ("kernel", "exact"), ("filter", "exact"), ("filter", "chromatic")],
)
@pytest.mark.parametrize("scale", [1e-4, 1.0])
def test_a_coupling_that_is_strong_enough_converges_at_a_great_beta(structure, sampler, scale, beta):
    weight = scale * torch.randn(8, 8, 3, 3, generator=seeded(0))
    mask = gp.sample(weight, gp.Quadratic(5.0), structure, 0.7, beta, sampler, generator=seeded(1))[0]
    assert torch.equal(mask, gp.converged_mask(weight, 0.7, structure))


def test_long_rows_are_drawn_at_the_given_beta():
    """25 088 weights to a filter, as in VGG: each is kept whole or not, with the odds that β gives it."""
    weight = torch.randn(64, 25088, generator=seeded(0)) * 0.0003
    fields = weight.double().square().sum(1)
    odds = 2e5 * 2 * (fields - fields.quantile(0.5))
    masks = gp.sample(weight, "quadratic", "filter", 0.5, 2e5, draws=40, generator=seeded(1))
    assert torch.equal(masks.all(2), masks.any(2))
    expected = odds.sigmoid()
    wrong = (masks[:, :, 0] != (odds > 0)).sum()
    likely = 40 * torch.minimum(expected, 1 - expected).sum()
    assert abs(wrong - likely) < 5 * likely.sqrt()


def test_a_great_beta_is_drawn_at_soon_also_where_the_coupling_is_too_weak():
    """Where the lattice would have 10^15 points and more; what is drawn is a minimum of the energy."""
    weight = 0.3 * torch.randn(6, 16, 3, 3, generator=seeded(0))
    best = gp.sample(weight, structure="filter", sparsity=0.73, beta=1e6, generator=seeded(1))[0]
    for beta in (1e20, 1e38):
        mask = gp.sample(weight, structure="filter", sparsity=0.73, beta=beta, generator=seeded(1))[0]
        energies = [gp.energy(m, weight, structure="filter", sparsity=0.73) for m in (mask, best)]
        assert energies[0] <= energies[1] + 1e-3


@pytest.mark.parametrize("structure", ["weight", "kernel", "filter"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e20])
def test_weights_of_a_training_that_diverged_are_drawn_from(structure, bad):
    """Masks of a lost training mean nothing, but its loop comes to its end, and finalize says what has happened."""
    weight = torch.randn(16, 8, 3, 3, generator=seeded(0))
    weight[3, 2, 1, 1] = bad
    kind = as_structure(structure)
    site = Site(tuple(weight.shape), kind, as_hamiltonian(None, kind), 0.5)
    (mask,) = Law([site]).draw([weight], beta_tensor(2.0), [seeded(1)])
    assert mask.shape == weight.shape


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("structure", ["weight", "kernel", "filter"])
def test_draws_do_not_depend_on_the_default_dtype(structure, dtype):
    weight = torch.randn(20, 7, 3, 3, generator=seeded(0))
    usual = gp.sample(weight, structure=structure, sparsity=0.5, beta=0.7, generator=seeded(1))
    torch.set_default_dtype(dtype)
    try:
        other = gp.sample(weight, structure=structure, sparsity=0.5, beta=0.7, generator=seeded(1))
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(usual, other)
