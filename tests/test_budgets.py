"""Budgets: totals, the allocations against their definitions, floors and multiples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gibbsprune as gp
from gibbsprune import UserError, latency
from gibbsprune.budgets import ALLOCATIONS, Budget
from gibbsprune.schedules import CubicSchedule
from gibbsprune.shares import Share, erdos_renyi, one_threshold
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


@given(st.data())
def test_one_threshold_is_that_of_the_sorted_neighbourhoods(data: st.DataObject) -> None:
    """Layers of unlike sizes, costs and scales, with a floor, and with values that are exactly alike."""
    layers, means = [], []
    for _ in range(data.draw(st.integers(1, 4))):
        count, size = data.draw(st.integers(1, 40)), data.draw(st.sampled_from([1, 9, 144]))
        layers.append(Share((count, size), count, size, size * data.draw(st.sampled_from([1, 1, 4, 64.0]))))
        most, scale = data.draw(st.sampled_from([2, 10**6])), data.draw(st.sampled_from([1e-6, 1.0]))
        values = data.draw(st.lists(st.integers(0, most), min_size=count, max_size=count))
        means.append(torch.tensor(values, dtype=torch.float32) * scale)
    floor, removed = data.draw(st.sampled_from([0.0, 0.25])), data.draw(st.floats(0.001, 0.999))
    least = [max(1, math.ceil(floor * layer.count)) for layer in layers]
    assert one_threshold(layers, means, least, removed) == Budget(removed)._greedy(layers, means, least, removed)


def test_one_threshold_of_a_layer_that_is_worked_on_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    values, layers = squares(weights(2)), single()
    whole = Budget(0.9).keeps(layers, values)
    monkeypatch.setattr("gibbsprune.shares.CHUNK", 1000)
    assert Budget(0.9).keeps(layers, values) == whole


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


@given(st.floats(0.05, 0.99), st.integers(0, 5))
def test_balanced_layers_keep_most_of_their_share_by_shape_and_the_largest_beyond(target: float, seed: int) -> None:
    layers, values = single(), [v * 100.0**k for k, v in enumerate(squares(weights(seed)))]  # of unlike scales
    keeps = Budget(target, allocation="balanced").keeps(layers, values)
    assured = [max(1, int(0.75 * (1 - target) * layer.count)) for layer in layers]
    assert all(keep >= least for keep, least in zip(keeps, assured))
    freely = [i for i, (keep, least) in enumerate(zip(keeps, assured)) if keep > least]
    kept = [values[i].sort(descending=True).values for i in freely]
    cut = min((float(v[keeps[i] - 1]) for i, v in zip(freely, kept)), default=math.inf)
    best_left = [float(v.sort(descending=True).values[keep]) for v, keep in zip(values, keeps) if keep < len(v)]
    assert not freely or max(best_left, default=0.0) <= cut  # one threshold, for all that none is assured of


@given(st.floats(0.0, 0.99), st.integers(2, 300))
def test_uniform_is_what_every_layer_keeps_by_itself(target: float, count: int) -> None:
    layers = [Share((count,), count, 1, 1.0), Share((7,), 7, 1, 1.0)]
    keeps = Budget(target, allocation="uniform").keeps(layers, [torch.rand(count), torch.rand(7)])
    assert keeps == [max(1, kept_count(target, layer.count)) for layer in layers]


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
    six = [Share((24, 16, 3, 3), 24, 144, 144.0)] * 6  # whose assured shares are no multiples
    spent = sum(Budget(0.5, allocation=allocation, round_to=8).keeps(six, [torch.rand(24) for _ in six]))
    assert spent == pytest.approx(6 * 12, abs=24 if allocation in ("uniform", "erk") else 8)
    floor = 0.06 if allocation == "balanced" else 0.2
    budget = Budget(0.75, allocation=allocation, floor=floor)
    floored = budget.keeps(layers, means)
    assert all(keep >= floor * layer.count for keep, layer in zip(floored, layers))
    assert keeps_to(budget, layers, floored)


def test_floors_of_an_erdos_renyi_graph_are_paid_for_by_the_other_layers() -> None:
    layers, values = single(), squares(weights(1))
    plain, floored = (Budget(0.8, allocation="erk", floor=floor).keeps(layers, values) for floor in (0.0, 0.18))
    low = [keep < 0.18 * layer.count for keep, layer in zip(plain, layers)]
    assert any(low)
    assert not all(low)
    for was, keep, layer, lifted in zip(plain, floored, layers, low):
        assert (keep == math.ceil(0.18 * layer.count)) if lifted else (keep < was or was == layer.count)
    assert sum(floored) == pytest.approx(sum(plain), abs=len(layers))


def keeps_to(budget: Budget, layers: Sequence[Share], keeps: Sequence[int]) -> bool:
    """Whether no more is kept than asked for, up to one neighbourhood of each layer."""
    costs = [layer.cost for layer in layers]
    kept, total = (sum(n * c for n, c in zip(ns, costs)) for ns in (keeps, [layer.count for layer in layers]))
    return kept <= (1 - budget.target()) * total + sum(costs)


def test_time_is_spared_where_filters_cost_it() -> None:
    """Two layers alike but that one takes three times as long, of which half stays however few its filters are."""
    rows = np.arange(1, 33)
    slow, fast = tuple(3.0 + 3.0 * rows / 32), tuple(2.0 * rows / 32)
    layers = [Share((32, 8, 3, 3), 32, 72, table[-1] / 32, table) for table in (slow, fast)]
    means = [torch.rand(32, generator=torch.Generator().manual_seed(0)).add(0.1) for _ in layers]
    for removed in (0.1, 0.3, 0.5):
        keeps = Budget(latency=removed).keeps(layers, means)
        took = [table[keep - 1] for table, keep in zip((slow, fast), keeps)]
        assert sum(took) <= (1 - removed) * 8 * (1 + 1e-9)
        assert sum(took) >= (1 - removed) * 8 - 3 / 32  # one filter more would not fit
        assert keeps[0] < keeps[1]
    with pytest.raises(UserError, match=r"^latency is 0\.7: allowed are fractions up to 0\.61, beyond which"):
        Budget(latency=0.7).keeps(layers, means)


def test_a_pruner_measures_how_long_layers_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that counts filters times places: of the convolution filters go, of the other layer hardly any."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 64, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    x = torch.randn(4, 3, 6, 6)
    monkeypatch.setattr(latency, "seconds", lambda call, device: 1e-6 * (50 + call().numel() / 4))
    found = latency.tables(model, {"2": model[2], "6": model[6]}, x)
    assert {name: table[::63] for name, table in found.items()} == {
        "2": (pytest.approx(86e-6), pytest.approx(2354e-6)), "6": (pytest.approx(51e-6), pytest.approx(114e-6)),
    }  # fmt: skip
    pruner = gp.GibbsPruner(model, gp.Budget(latency=0.5), "filter", example_inputs=x)
    kept = {layer.name: round((1 - layer.achieved) * 64) for layer in pruner.summary().layers}
    assert kept["6"] == 64
    assert sum(found[name][keep - 1] for name, keep in kept.items()) == pytest.approx(0.5 * 2468e-6, abs=36e-6)
    pruner.take_off()
    for made, told in (
        (lambda: gp.GibbsPruner(model, gp.Budget(latency=0.5), example_inputs=x), "structure is 'weight'"),
        (lambda: gp.GibbsPruner(model, gp.Budget(latency=0.5), "filter"), "example_inputs is None"),
        (lambda: latency.tables(model, {"c": nn.Conv2d(4, 4, 3, groups=4)}, x), "layer 'c' cannot be timed"),
    ):
        with pytest.raises(UserError, match=told):
            made()


@settings(max_examples=3, deadline=None)  # of some tenths of a second
@given(st.integers(1, 40), st.integers(1, 5))
def test_a_table_has_a_row_per_filter_and_never_falls(filters: int, inputs: int) -> None:
    (table,) = latency.tables(
        nn.Sequential(layer := nn.Linear(inputs, filters)), {"0": layer}, torch.randn(2, inputs)
    ).values()
    assert len(table) == filters
    assert all(one <= other for one, other in pairwise(table))
    assert table[0] > 0


def test_a_budget_that_rises() -> None:
    budget, values = Budget(gp.LinearSchedule(0.0, 0.8, epochs=10), allocation="global"), squares(weights())
    total = sum(layer.count for layer in single())
    for epoch, target in ((0, 0.0), (5, 0.4), (10, 0.8), (math.inf, 0.8)):
        assert sum(budget.keeps(single(), values, epoch)) == pytest.approx((1 - target) * total, abs=1)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: Budget(1.0), "weights is 1.0"),
        (lambda: Budget(macs=-1), "macs is -1: allowed are numbers from 0"),
        (lambda: Budget(lambda epoch: 0.5), "weights is .*, and schedules"),
        (lambda: Budget(CubicSchedule), "weights is .*, and schedules"),
        (lambda: Budget(0.9, floor=0.25), "floor is 0.25: allowed are numbers up to 0.1 where 0.9"),
        (lambda: Budget(0.9, macs=0.5), "macs is 0.5"),
        (lambda: Budget(0.9, allocation="best"), "allocation is 'best'"),
        (lambda: Budget(0.9, floor=1.5), "floor is 1.5"),
        (lambda: Budget(0.9, allocation="balanced", floor=0.05), "floor is 0.05: allowed are numbers up to 0.025"),
        (lambda: Budget(macs=0.9, latency=0.5), "latency is 0.5: allowed are None beside macs=0.9"),
        (lambda: Budget(latency=0.5, allocation="erk"), "allocation is 'erk': allowed are 'global', 'lamp' with"),
        (lambda: Budget(0.9, round_to=0), "round_to is 0"),
    ],
)
def test_bad_budgets_are_told_in_a_sentence(made: object, told: str) -> None:
    with pytest.raises(UserError, match=told):
        made()  # type: ignore[operator]
