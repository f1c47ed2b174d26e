"""What a pruner says of its masks, and whether a chain has mixed."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import gibbsprune as gp
from gibbsprune.diagnostics import diagnose
from gibbsprune.errors import UserError
from gibbsprune.site import Site
from gibbsprune.structures import as_structure


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 6, 1))


def pruner_at(beta, hamiltonian=None, structure="weight", **options):
    return gp.GibbsPruner(network(), 0.75, structure, hamiltonian, lambda epoch: beta, ["0", "2"], **options)


def test_autocorrelation_of_a_known_series():
    """x_t = a x_{t−1} + noise has ρ(t) = a^t and the time (1 + a)/(1 − a)."""
    rng, x = np.random.default_rng(0), [0.0]
    for noise in rng.normal(size=60_000):
        x.append(0.6 * x[-1] + noise)
    rho = gp.autocorrelation(x[:20_000])
    np.testing.assert_allclose(rho[:4], [1.0, 0.6, 0.36, 0.216], atol=0.03)
    assert gp.autocorrelation_time(x) == pytest.approx(4.0, rel=0.1)
    assert gp.autocorrelation_time(rng.normal(size=2000)) < 1.2
    assert gp.autocorrelation_time([1.0] * 10) == 1.0


@pytest.mark.parametrize("hamiltonian", [gp.Linear("square", relative=True), gp.Neighbours(0.2, across=True)])
def test_numbers_of_independent_weights_are_those_of_the_formulas(hamiltonian):
    """P = σ(2β(w² − Q)/Q) where nothing is coupled: Σ 4P(1 − P) undecided, 2P(1 − P) turning over."""
    beta = 2.0
    if isinstance(hamiltonian, gp.Neighbours):
        hamiltonian = gp.Neighbours(0.0, across=True)  # pairs of no strength: the chain is independent, too
    pruner = pruner_at(beta, hamiltonian, sweeps=60)
    found = pruner.diagnostics(draws=60)
    for layer in found.layers:
        w = pruner.model[int(layer.name)].parametrizations.weight.original.detach().double()
        q = torch.quantile(w.square().flatten(), pruner._drawing.sites[layer.name].sparsity)
        p = torch.sigmoid(2 * beta * (w.square() / q - 1))
        chance = 4 * p * (1 - p)
        assert layer.undecided == pytest.approx(float(chance.sum()), rel=0.1)
        assert layer.acceptance == pytest.approx(float(chance.mean()) / 2, rel=0.1)
        assert layer.magnetisation == pytest.approx(float((2 * p - 1).mean()), abs=0.03)
        assert layer.energy == pytest.approx(float(((1 - w.square() / q) * (2 * p - 1)).mean()), rel=0.1, abs=0.03)
        assert layer.time < 3
        assert layer.mixed
    assert found.by_size == {1: pytest.approx(sum(x.magnetisation * x.weights for x in found.layers) / 720)}
    assert found.scalars()["gibbsprune/undecided"] == found.undecided


def test_everything_is_decided_in_the_end_and_nothing_at_the_beginning():
    assert pruner_at(0.0).diagnostics().undecided == pytest.approx(720, rel=0.02)
    end = pruner_at(1e9, gp.Neighbours(across=True), sweeps=10).diagnostics()
    assert end.undecided < 10
    assert "coloured" in str(end)


def test_training_is_not_touched():
    one, two = (pruner_at(3.0, gp.Neighbours(across=True), sweeps=4) for _ in range(2))
    two.diagnostics()
    for pruner in (one, two):
        pruner.step()
    assert all(torch.equal(one.masks[name].mask, two.masks[name].mask) for name in one.masks)


def test_a_chain_that_has_not_mixed_is_seen():
    """A strong ferromagnet without a field: from opposite ends 20 sweeps never meet; above its transition they do."""
    weight = torch.full((1, 1, 16, 16), 0.5)
    kind = as_structure("kernel")
    for strength, mixed in ((-0.1, True), (-1.0, False)):
        energy = gp.Pairwise(gp.grid_pairs, strength)
        site = Site((1, 1, 16, 16), kind, energy, 0.5, "coloured").checked()
        found = diagnose({"sheet": site}, [weight], 1.0, 8, 40, 0)
        assert found.mixed is mixed, str(found)
        assert ("not mixed" in str(found)) is not mixed


def test_magnetisation_by_neighbourhood_size():
    found = pruner_at(5.0, gp.Quadratic(0.01), "filter").diagnostics()
    assert set(found.by_size) == {18, 72}
    assert all(layer.gap is None and layer.sampler == "exact" for layer in found.layers)
    assert math.isfinite(found.scalars("x/")["x/energy"])


def test_refused():
    with pytest.raises(UserError, match="draws is 1: allowed are whole numbers from 2"):
        pruner_at(1.0).diagnostics(draws=1)


def test_the_energy_of_a_unit_is_that_of_its_rows_side_by_side():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    pruner = gp.GibbsPruner(model, 0.5, structure="neuron", schedule=lambda epoch: 1e6)
    rows = torch.cat([pruner.layers["0"].stored, pruner.layers["2"].stored.T], 1).detach()
    mask = gp.converged_mask(rows, pruner.masks["0"].sparsity, "filter")
    expected = gp.energy(mask, rows, None, "filter", pruner.masks["0"].sparsity) / rows.numel()
    found = pruner.diagnostics().layers
    assert [layer.energy for layer in found] == pytest.approx([float(expected)] * 2, rel=1e-5)
