"""The flat optimisers against torch.optim, parameter by parameter and run by run."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gibbsprune.training.fuse import share
from gibbsprune.training.optimizers import FlatOptimizer
from gibbsprune.training.recipes import RECIPES, Recipe

RUNS, STEPS = 3, 20
SHAPES = [(6, 4, 3, 3), (6,), (6, 5), (3,)]
CONVOLUTIONS = [True, False, True, False]
RATES = [1e-3, 1e-2, 3e-2]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def recipe(**changes) -> Recipe:
    return RECIPES["paper"].replace(weight_decay=0.05, **changes)


def fused_parameters() -> list[nn.Parameter]:
    generator = seeded(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def flat(chosen: Recipe) -> FlatOptimizer:
    return FlatOptimizer(fused_parameters(), CONVOLUTIONS, [chosen] * RUNS)


def gradients(step: int) -> list[torch.Tensor]:
    """Gradients of all sizes, some of them zero as under a mask."""
    generator = seeded(100 + step)
    scale = [torch.exp(3 * torch.randn(shape, generator=generator)) for shape in SHAPES]
    kept = [torch.rand(shape, generator=generator) < 0.7 for shape in SHAPES]
    return [s * k * torch.randn(s.shape, generator=generator) for s, k in zip(scale, kept)]


def rates(step: int) -> list[float]:
    return [rate * (0.1 if step >= STEPS // 2 else 1.0) for rate in RATES]


def theirs(chosen: Recipe, run: int) -> list[nn.Parameter]:
    """One run's parameters after the same steps with torch.optim."""
    parameters = [nn.Parameter(share(p.detach(), run, RUNS).clone()) for p in fused_parameters()]
    decayed = [chosen.decay_on == "all" or one for one in CONVOLUTIONS]
    groups = [{"params": [p], "weight_decay": chosen.weight_decay if on else 0.0} for p, on in zip(parameters, decayed)]
    if chosen.optimizer != "sgd":
        kind = torch.optim.Adam if chosen.optimizer == "adam" else torch.optim.AdamW
        betas = (chosen.beta1, chosen.beta2)
        optimizer: torch.optim.Optimizer = kind(groups, betas=betas, eps=chosen.eps)
    else:
        optimizer = torch.optim.SGD(groups, momentum=chosen.momentum, nesterov=chosen.nesterov)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rates(step)[run]
        for parameter, grad in zip(parameters, gradients(step)):
            parameter.grad = share(grad, run, RUNS).clone()
        optimizer.step()
    return parameters


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "adam"},
        {"optimizer": "adam", "beta1": 0.8, "beta2": 0.95, "eps": 1e-3},
        {"optimizer": "adam", "beta1": 0.0},
        {"optimizer": "adamw"},
        {"optimizer": "adamw", "beta2": 0.95, "eps": 1e-3},
        {"optimizer": "sgd", "nesterov": True},
        {"optimizer": "sgd", "nesterov": False},
        {"optimizer": "sgd", "nesterov": False, "momentum": 0.0},
    ],
    ids=lambda changes: "-".join(f"{key}={value}" for key, value in changes.items()),
)
def test_equal_to_torch_optim(changes):
    """Learning rates per run that change half-way, weight decay on some tensors only: equal to float rounding."""
    chosen = recipe(**changes)
    optimizer = flat(chosen)
    for step in range(STEPS):
        optimizer.set_rates(rates(step))
        optimizer.step(gradients(step))
    for run in range(RUNS):
        for ours, other in zip(optimizer.parameters, theirs(chosen, run)):
            torch.testing.assert_close(share(ours.detach(), run, RUNS), other.detach(), rtol=2e-6, atol=1e-6)


def test_the_recipes_weight_decay_and_rates_matter():
    """The comparison above sees each of its ingredients."""
    reference = theirs(recipe(optimizer="sgd"), 1)
    for change in ({"weight_decay": 0.04}, {"momentum": 0.8}, {"nesterov": False}):
        other = theirs(recipe(optimizer="sgd").replace(**change), 1)
        assert not torch.allclose(reference[0], other[0], rtol=1e-4), change
        undecayed = torch.equal(reference[1], other[1])
        assert undecayed is ("weight_decay" in change)


def test_parameters_are_views_of_one_buffer():
    parameters = fused_parameters()
    before = [p.detach().clone() for p in parameters]
    optimizer = FlatOptimizer(parameters, CONVOLUTIONS, [recipe()] * RUNS)
    assert all(a is b for a, b in zip(optimizer.parameters, parameters))
    for parameter, value in zip(parameters, before):
        assert torch.equal(parameter, value)
        assert parameter.untyped_storage().data_ptr() == optimizer.values.untyped_storage().data_ptr()
    optimizer.values.zero_()
    assert not any(p.any() for p in parameters)


def test_state_round_trip_continues_bit_for_bit():
    for kind in ("adam", "sgd"):
        chosen = recipe(optimizer=kind)
        whole, first, second = flat(chosen), flat(chosen), flat(chosen)
        for optimizer in (whole, first, second):
            optimizer.set_rates(RATES)
        for step in range(6):
            whole.step(gradients(step))
        for step in range(3):
            first.step(gradients(step))
        places = {name: tensor.data_ptr() for name, tensor in second.state_dict().items()}
        second.load_state_dict(first.state_dict())
        assert {name: tensor.data_ptr() for name, tensor in second.state_dict().items()} == places
        for step in range(3, 6):
            second.step(gradients(step))
        for name, tensor in whole.state_dict().items():
            assert torch.equal(tensor, second.state_dict()[name]), name


def test_a_run_with_rate_zero_stands_still():
    optimizer = flat(recipe(optimizer="adam"))
    before = [p.detach().clone() for p in optimizer.parameters]
    optimizer.set_rates([0.0, 1e-2, 0.0])
    optimizer.step(gradients(0))
    for parameter, value in zip(optimizer.parameters, before):
        moved = [not torch.equal(share(parameter, k, RUNS), share(value, k, RUNS)) for k in range(RUNS)]
        assert moved == [False, True, False]


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_runs_beside_each_other_have_decays_of_their_own(kind):
    ways = [{"weight_decay": 0.05}, {"weight_decay": 0.0, "decay_on": "all"}, {"weight_decay": 0.4, "decay_on": "all"}]
    recipes = [recipe(optimizer=kind).replace(**way) for way in ways]
    fused = FlatOptimizer(fused_parameters(), CONVOLUTIONS, recipes)
    for step in range(STEPS):
        fused.set_rates(rates(step))
        fused.step(gradients(step))
    for run, own in enumerate(recipes):
        for parameter, expected in zip(fused.parameters, theirs(own, run)):
            torch.testing.assert_close(share(parameter.detach(), run, RUNS), expected.detach(), rtol=2e-6, atol=1e-6)
