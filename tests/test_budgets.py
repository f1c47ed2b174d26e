"""Budgets: totals, the allocations against their definitions, floors and multiples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gibbsprune as gp
from gibbsprune import UserError
from gibbsprune.budgets import ALLOCATIONS, Budget, Share, erdos_renyi, sparsity_keeping
from gibbsprune.threshold import kept_count

SHAPES = [(16, 16, 3, 3), (32, 16, 3, 3), (32, 32, 3, 3), (32, 16, 1, 1)]


def weights(seed: int = 0, shapes: list[tuple[int, ...]] = SHAPES) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) * (1 + k) for k, shape in enumerate(shapes)]


def single(shapes: list[tuple[int, ...]] = SHAPES, places: tuple[int, ...] = ()) -> list[Share]:
    costs = places or (1,) * len(shapes)
    return [Share(shape, math.prod(shape), 1, cost) for shape, cost in zip(shapes, costs)]


def squares(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [w.flatten().square() for w in tensors]


@given(st.floats(0.0, 0.995), st.sampled_from(ALLOCATIONS), st.integers(0, 5))
def test_the_budget_is_spent_and_not_exceeded(target: float, allocation: str, seed: int) -> None:
    layers = single()
    keeps = Budget(target, allocation=allocation).keeps(layers, squares(weights(seed)))
    total = sum(layer.count for layer in layers)
    assert all(1 <= keep <= layer.count for keep, layer in zip(keeps, layers))
    slack = len(layers) if allocation in ("uniform", "erk") else 1  # each layer of those is rounded by itself
    assert (1 - target) * total - slack <= sum(keeps) <= max((1 - target) * total + slack, len(layers))


@given(st.floats(0.05, 0.99), st.integers(0, 5))
def test_global_keeps_the_largest_weights_of_all_layers(target: float, seed: int) -> None:
    values = squares(weights(seed))
    keeps = Budget(target, allocation="global").keeps(single(), values)
    cut = torch.cat(values).sort(descending=True).values[sum(keeps) - 1]
    if all(keep > 1 for keep in keeps):  # a layer that would be empty keeps one all the same
        assert keeps == [int((v >= cut).sum()) for v in values]


def test_lamp_is_its_definition() -> None:
    values = squares(weights(3))
    keeps = Budget(0.9, allocation="lamp").keeps(single(), values)
    scores = []
    for v in values:
        order = v.double().sort().values.numpy()
        scores.append(np.array([order[j] / order[j:].sum() for j in range(len(order))]))
    cut = np.sort(np.concatenate(scores))[::-1][sum(keeps) - 1]
    assert keeps == [int((s >= cut).sum()) for s in scores]


def test_erk_has_the_ratios_of_its_formula_and_the_density_asked_for() -> None:
    layers = single()
    shares = erdos_renyi(layers, 0.9)
    total = sum(layer.count for layer in layers)
    assert sum(s * layer.count for s, layer in zip(shares, layers)) == pytest.approx(0.1 * total)
    assert shares[0] / shares[2] == pytest.approx((38 / 2304) / (70 / 9216))
    dense = erdos_renyi(layers, 0.2)
    assert max(dense) == 1.0
    assert sum(s * layer.count for s, layer in zip(dense, layers)) == pytest.approx(0.8 * total)


@given(st.floats(0.0, 0.99), st.integers(2, 300))
def test_uniform_is_what_every_layer_keeps_by_itself(target: float, count: int) -> None:
    layers = [Share((count,), count, 1, 1.0), Share((7,), 7, 1, 1.0)]
    keeps = Budget(target, allocation="uniform").keeps(layers, [torch.rand(count), torch.rand(7)])
    assert keeps == [max(1, kept_count(target, layer.count)) for layer in layers]


@given(st.integers(1, 400), st.data())
def test_a_sparsity_keeps_the_number_it_was_made_for(count: int, data: st.DataObject) -> None:
    keep = data.draw(st.integers(1, count))
    assert kept_count(sparsity_keeping(keep, count), count) == keep


def test_multiply_adds_are_spared_where_they_are_many() -> None:
    layers, values = single(places=(1024, 256, 64, 256)), squares(weights(1))
    by_weights = Budget(0.8, allocation="global").keeps(single(), values)
    by_macs = Budget(macs=0.8, allocation="global").keeps(layers, values)
    macs = sum(keep * layer.cost for keep, layer in zip(by_macs, layers))
    assert macs <= 0.2 * sum(layer.count * layer.cost for layer in layers)
    assert by_macs[0] < by_weights[0]  # the costly layer gives more than its size says
    assert by_macs[2] > by_weights[2]


@pytest.mark.parametrize("allocation", ALLOCATIONS)
def test_floors_and_multiples(allocation: str) -> None:
    layers = [Share((64, 16, 3, 3), 64, 144, 144.0), Share((32, 64, 3, 3), 32, 576, 576.0), Share((20, 8), 20, 8, 8.0)]
    means = [torch.rand(layer.count, generator=torch.Generator().manual_seed(k)) for k, layer in enumerate(layers)]
    keeps = Budget(0.75, allocation=allocation, round_to=8).keeps(layers, means)
    assert all(keep % 8 == 0 or keep == layer.count for keep, layer in zip(keeps, layers))
    assert min(keeps) >= 8
    floored = Budget(0.95, allocation=allocation, floor=0.25).keeps(layers, means)
    assert all(keep >= 0.25 * layer.count for keep, layer in zip(floored, layers))


def test_a_budget_that_rises() -> None:
    budget, values = Budget(gp.LinearSchedule(0.0, 0.8, epochs=10), allocation="global"), squares(weights())
    total = sum(layer.count for layer in single())
    for epoch, target in ((0, 0.0), (5, 0.4), (10, 0.8), (math.inf, 0.8)):
        assert sum(budget.keeps(single(), values, epoch)) == pytest.approx((1 - target) * total, abs=1)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: Budget(1.0), "sparsity is 1.0"),
        (lambda: Budget(0.9, macs=0.5), "macs is 0.5"),
        (lambda: Budget(0.9, allocation="best"), "allocation is 'best'"),
        (lambda: Budget(0.9, floor=1.5), "floor is 1.5"),
        (lambda: Budget(0.9, round_to=0), "round_to is 0"),
    ],
)
def test_bad_budgets_are_told_in_a_sentence(made: object, told: str) -> None:
    with pytest.raises(UserError, match=told):
        made()  # type: ignore[operator]
