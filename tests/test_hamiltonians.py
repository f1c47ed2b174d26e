"""Hamiltonians: the properties of Section III that make the law end in the converged mask, by enumeration."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import gibbsprune as gp
from gibbsprune.hamiltonians import as_hamiltonian
from gibbsprune.samplers import enumeration

SHAPES = st.sampled_from([(2, 5), (3, 1, 3), (2, 2, 2), (1, 3, 3), (4, 2), (2, 1, 2, 2)])
SPARSITIES = st.floats(0.05, 0.95)
SEEDS = st.integers(0, 10**6)


def random_weight(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def all_masks(shape):
    states = list(itertools.product([False, True], repeat=math.prod(shape)))
    return torch.tensor(states).reshape(-1, *shape)


@given(SHAPES, SEEDS, SPARSITIES, st.sampled_from(["sign", "square", "abs"]))
def test_converged_mask_minimises_a_linear_energy(shape, seed, sparsity, kind):
    """Among all masks, so also among those of its count."""
    weight, masks = random_weight(shape, seed), all_masks(shape)
    energies = gp.energy(masks, weight, gp.Linear(kind), "weight", sparsity)
    converged = gp.converged_mask(weight, sparsity)
    lowest = gp.energy(converged, weight, gp.Linear(kind), "weight", sparsity)
    assert float(lowest) <= float(energies.min()) + 1e-12
    same_count = masks.flatten(1).sum(1) == converged.sum()
    unique = (energies[same_count] <= lowest + 1e-12).sum()
    if kind != "sign":
        assert int(unique) == 1


@given(SHAPES, SEEDS, SPARSITIES, st.sampled_from(["kernel", "filter"]))
def test_converged_mask_minimises_a_quadratic_energy_above_the_bound(shape, seed, sparsity, structure):
    """Proposition 2: with c > max bᵀx − min bᵀx = 2 Σ|b_i| the lowest state is uniform in every neighbourhood."""
    weight, masks = random_weight(shape, seed), all_masks(shape)
    q = gp.threshold(weight, sparsity, structure)
    bound = 2 * float((q - weight.square()).abs().sum())
    assume(bound > 1e-6)
    hamiltonian = gp.Quadratic(bound * 1.001)
    converged = gp.converged_mask(weight, sparsity, structure)
    energies = gp.energy(masks, weight, hamiltonian, structure, sparsity)
    lowest = gp.energy(converged, weight, hamiltonian, structure, sparsity)
    assert float(lowest) <= float(energies.min()) + 1e-9 * bound
    best = masks[energies.argmin()]
    kind = gp.Kernel() if structure == "kernel" else gp.Filter()
    rows = kind.rows(best.double())
    assert bool((rows == rows[:, :1]).all())


@given(SHAPES, SEEDS, SPARSITIES, st.sampled_from(["kernel", "filter"]))
def test_every_broken_state_is_above_every_whole_one(shape, seed, sparsity, structure):
    """The inequality in the proof of Proposition 2."""
    weight, masks = random_weight(shape, seed), all_masks(shape)
    kind = gp.Kernel() if structure == "kernel" else gp.Filter()
    assume(kind.size(shape) > 1)
    q = gp.threshold(weight, sparsity, structure)
    bound = 2 * float((q - weight.square()).abs().sum())
    energies = gp.energy(masks, weight, gp.Quadratic(bound * 1.001 + 1e-9), structure, sparsity)
    rows = torch.stack([kind.rows(mask) for mask in masks])
    whole = (rows == rows[:, :, :1]).flatten(1).all(1)
    assert float(energies[whole].max()) < float(energies[~whole].min())


@given(SHAPES, SEEDS, SPARSITIES, st.sampled_from(["kernel", "filter"]))
def test_a_smaller_coupling_is_enough(shape, seed, sparsity, structure):
    """c > (2/n) max|b_i| of docs/theory.md: the lowest state is uniform in every neighbourhood, and converged."""
    weight, masks = random_weight(shape, seed), all_masks(shape)
    kind = gp.Kernel() if structure == "kernel" else gp.Filter()
    q = gp.threshold(weight, sparsity, structure)
    enough = 2 / kind.size(shape) * float((q - weight.square()).abs().max())
    assume(enough > 1e-6)
    energies = gp.energy(masks, weight, gp.Quadratic(enough * 1.001), structure, sparsity)
    rows = kind.rows(masks[energies.argmin()].double())
    assert bool((rows == rows[:, :1]).all())
    converged = gp.converged_mask(weight, sparsity, structure)
    lowest = gp.energy(converged, weight, gp.Quadratic(enough * 1.001), structure, sparsity)
    assert float(lowest) <= float(energies.min()) + 1e-9


@given(SEEDS, SPARSITIES, st.booleans())
def test_neighbourhoods_of_the_default_end_whole_whatever_their_weights_are(seed, sparsity, alone):
    """Weights of all sizes, and in each filter one beside zeros, where a coupling of 1 leaves the others undecided."""
    generator = torch.Generator().manual_seed(seed)
    weight = random_weight((3, 4), seed) * 10 ** (4 * torch.rand(3, 4, generator=generator, dtype=torch.float64) - 2)
    weight[:, 1:] *= not alone
    masks = all_masks((3, 4))
    energies = gp.energy(masks, weight, None, "filter", sparsity)
    broken = (masks.any(2) & ~masks.all(2)).any(1)
    rounding = 1e-13 * float(energies.abs().max())
    assert float(energies[broken].min() - energies[~broken].min()) >= 0.05 * 2 * 3 / 4 - rounding
    lowest = gp.energy(gp.converged_mask(weight, sparsity, "filter"), weight, None, "filter", sparsity)
    assert float(lowest) <= float(energies.min()) + rounding
    if alone:
        energies = gp.energy(masks, weight, gp.Quadratic(1.0, relative=True), "filter", sparsity)
        assert float(energies[broken].min()) == pytest.approx(float(energies[~broken].min()))


def test_a_coupling_far_below_the_bound_does_not_hold_a_neighbourhood_together():
    weight = torch.tensor([[3.0, 0.1, 0.1], [1.0, 1.0, 1.0]], dtype=torch.float64)
    energies = gp.energy(all_masks((2, 3)), weight, gp.Quadratic(1e-4), "filter", 0.5)
    best = all_masks((2, 3))[energies.argmin()]
    assert best.tolist()[0] == [True, False, False]


@given(SHAPES, SEEDS, st.floats(0.01, 3.0), st.floats(0.01, 1.0))
def test_constants_do_not_matter(shape, seed, beta, coupling):
    """What the samplers use instead of −βH differs from it by the same constant for all states."""
    weight = random_weight((1, math.prod(shape)), seed)
    field = beta * (gp.threshold(weight, 0.5, "filter") - weight.square())
    spins = enumeration.states(weight.numel(), weight.device, torch.float64)
    logs = enumeration.log_weights(field, torch.tensor([[beta * coupling]], dtype=torch.float64), spins)[0]
    energies = gp.energy((spins > 0)[:, None], weight, gp.Quadratic(coupling), "filter", 0.5)
    difference = logs + beta * energies
    torch.testing.assert_close(difference, difference[0].expand_as(difference), rtol=0, atol=1e-9)
    torch.testing.assert_close(logs.softmax(0), (-beta * (energies + 123.0)).softmax(0), rtol=1e-9, atol=1e-12)


@given(SEEDS, SPARSITIES, st.sampled_from([gp.Linear("sign"), gp.Quadratic(0.3)]))
def test_energy_is_a_sum_over_neighbourhoods(seed, sparsity, hamiltonian):
    """Block independence: changing one block changes H by the same amount, whatever the other blocks are."""
    weight = random_weight((3, 2, 2), seed)
    masks = torch.rand(3, 3, 2, 2, generator=torch.Generator().manual_seed(seed)) < 0.5
    steps = []
    for others in masks[:2]:
        pair = others.repeat(2, 1, 1, 1)
        pair[0, 1], pair[1, 1] = masks[2, 1], ~masks[2, 1]
        before, after = gp.energy(pair, weight, hamiltonian, "filter", sparsity)
        steps.append(float(after - before))
    assert steps[0] == pytest.approx(steps[1], abs=1e-9)


@given(SHAPES, SEEDS, SPARSITIES, st.sampled_from(["weight", "kernel", "filter"]))
def test_binary_energy_is_zero_at_the_converged_mask_alone(shape, seed, sparsity, structure):
    weight = random_weight(shape, seed).float()
    energies = gp.energy(all_masks(shape), weight, gp.Binary(), structure, sparsity)
    assert energies.sum() == len(energies) - 1
    assert (
        float(gp.energy(gp.converged_mask(weight, sparsity, structure), weight, gp.Binary(), structure, sparsity)) == 0
    )


def test_binary_energy_where_squares_tie_in_single_precision_only():
    """Two weights whose squares are both 0 in float32, but not in float64: there is one converged mask, not two."""
    weight = torch.tensor([1e-23, 1.0, 2e-23, 3.0])
    converged = gp.converged_mask(weight, 0.3)
    assert converged.tolist() == [True, True, False, True]
    assert float(gp.energy(converged, weight, gp.Binary(), sparsity=0.3)) == 0.0


def test_fields_by_formula():
    w2, means, q = torch.tensor([[0.04, 0.16]]), torch.tensor([[0.10]]), torch.tensor([[0.09]])
    assert gp.Linear("sign").field(w2, means, q).tolist() == [[-1.0, -1.0]]
    torch.testing.assert_close(gp.Linear("square").field(w2, means, q), torch.tensor([[0.05, -0.07]]))
    torch.testing.assert_close(gp.Linear("abs").field(w2, means, q), torch.tensor([[0.1, -0.1]]))
    torch.testing.assert_close(gp.Quadratic().field(w2, means, q), torch.tensor([[0.05, -0.07]]))
    with pytest.raises(TypeError, match=r"^the binary Hamiltonian has no field$"):
        gp.Binary().field(w2, means, q)


def test_each_pair_counts_once():
    """Three spins up: three pairs; one of them down: one pair minus two."""
    weight = torch.ones(2, 3, dtype=torch.float64)  # all on Q, so that no field acts
    masks = torch.tensor([[[True, True, True]] * 2, [[True, True, False], [True, True, True]]])
    energies = gp.energy(masks, weight, gp.Quadratic(0.5), "filter", 0.5)
    assert energies.tolist() == [-0.5 * 6, -0.5 * (3 - 1)]


def test_energy_takes_stacks_of_any_depth():
    weight = random_weight((2, 3), 0)
    masks = all_masks((2, 3)).reshape(8, 8, 2, 3)
    energies = gp.energy(masks, weight)
    assert energies.shape == (8, 8)
    assert float(energies[3, 4]) == float(gp.energy(masks[3, 4], weight))


@pytest.mark.parametrize(
    ("hamiltonian", "structure"),
    [
        (gp.Linear("square"), "kernel"),
        (gp.Linear("square"), "filter"),
        (gp.Linear("abs"), "kernel"),
        (gp.Linear("abs"), "filter"),
        (gp.Quadratic(), "weight"),
    ],
)
def test_impossible_combinations_say_which_are_possible(hamiltonian, structure):
    possible = {
        "weight": "'square', 'abs', 'sign', 'binary', 'neighbours', 'channels'",
        "kernel": "'quadratic', 'sign', 'binary'",
        "filter": "'quadratic', 'sign', 'binary', 'redundancy'",
    }[structure]
    sentence = f"hamiltonian is {hamiltonian!r}: allowed are {possible} with structure {structure!r}"
    for call in (
        lambda: gp.sample(torch.ones(2, 2), hamiltonian, structure),
        lambda: gp.energy(torch.ones(2, 2), torch.ones(2, 2), hamiltonian, structure),
        lambda: gp.GibbsPruner(torch.nn.Linear(2, 2), 0.5, structure, hamiltonian),
    ):
        with pytest.raises(gp.UserError) as error:
            call()
        assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: gp.Linear("cube"), "kind is 'cube': allowed are 'sign', 'square', 'abs'"),
        (lambda: gp.Quadratic(0), "coupling is 0: allowed are numbers above 0"),
        (lambda: gp.Quadratic(math.nan), "coupling is nan: allowed are numbers above 0"),
        (lambda: gp.Quadratic("0.1"), "coupling is '0.1': allowed are numbers above 0"),
        (lambda: gp.Binary("ratios"), "relative is 'ratios': allowed are None, 'ratio', 'offset'"),
        (
            lambda: as_hamiltonian("cubic", gp.Weight()),
            "hamiltonian is 'cubic': allowed are 'quadratic', 'square', 'abs', 'sign', 'binary', 'neighbours', "
            "'channels', 'redundancy' and Hamiltonian "
            "objects",
        ),
    ],
)
def test_refusals(make, sentence):
    with pytest.raises(gp.UserError) as error:
        make()
    assert str(error.value) == sentence


def test_defaults_are_what_the_paper_found_best_in_units_of_the_threshold():
    assert as_hamiltonian(None, gp.Weight()) == gp.Linear("square", relative=True)
    assert as_hamiltonian(None, gp.Kernel()) == as_hamiltonian(None, gp.Filter()) == gp.Quadratic(1.05, relative=True)
    assert as_hamiltonian("square", gp.Weight()) == gp.Linear("square")  # the paper's, by their names
    assert as_hamiltonian("quadratic", gp.Filter()) == gp.Quadratic(0.01)


@pytest.mark.parametrize(
    ("hamiltonian", "typical"),
    [(gp.Linear("square"), 1e-3), (gp.Linear("abs"), 1e-2), (gp.Linear("sign"), 1.0), (gp.Quadratic(), 1e-3)],
)
def test_default_schedules_go_from_disorder_to_order(hamiltonian, typical):
    """For fields of trained networks: nearly fair coins at first, frozen at the end."""
    beta = hamiltonian.default_schedule(100)
    assert math.tanh(beta(0) * typical) < 0.02
    assert math.tanh(beta(100) * typical) > 0.9999


@pytest.mark.parametrize("relative", [None, "ratio", "offset"])
def test_default_binary_schedule_takes_the_largest_layer_along(relative):
    hamiltonian, sizes = gp.Binary(relative), [100, 36_864]
    beta = hamiltonian.default_schedule(100, sizes)
    for epoch, frozen in ((0, False), (100, True)):
        value = hamiltonian.absolute(torch.tensor([beta(epoch)]).double(), torch.tensor(sizes[1:]).double())
        assert (float(value) > sizes[1] * math.log(2) + 10) == frozen


def test_energies_of_float32_weights_are_worked_out_in_float64():
    weight = random_weight((3, 4), 1).float()
    energy = gp.energy(torch.ones(3, 4), weight, gp.Linear("square"))
    expected = (np.quantile(weight.double().numpy() ** 2, 0.9) - weight.double().numpy() ** 2).sum()
    assert energy.dtype == torch.float64
    assert float(energy) == pytest.approx(expected, rel=1e-12)
