"""Soft thresholds that are learned: what they do to a weight, its gradient, and what a run with them leaves."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gibbsprune.attaching import attach, stored_weight
from gibbsprune.training.fleet import Fleet
from gibbsprune.training.soft import OFF, Soft, softened
from method_bench import RECIPE, SMALL, few, spec


@given(st.floats(-3, 3, width=32), st.floats(-8, 2, width=32))
def test_a_weight_comes_closer_to_zero_by_the_threshold_or_is_zero(weight, level):
    w, s = torch.tensor(weight, dtype=torch.float64), torch.tensor(level, dtype=torch.float64)
    threshold = float(s.sigmoid())
    found = float(softened(w, s))
    assert found == pytest.approx(0 if abs(weight) <= threshold else weight - threshold * (1 if weight > 0 else -1))


def test_the_gradients_are_those_of_the_formula():
    """∂/∂w is that at the shrunk weight where it is not zero, ∂/∂s = −σ′(s) Σ g·sign(w) over the same weights."""
    layer = nn.Linear(6, 4, bias=False).double()
    attach(layer, soft := Soft(layer.weight, "masked", torch.tensor([-1.5, OFF])))
    weight = stored_weight(layer)
    with torch.no_grad():
        weight[3, 0] = 0.0
    g = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (layer.weight * g).sum().backward()
    assert weight.grad is not None
    threshold = torch.tensor(-1.5, dtype=torch.float64).sigmoid()
    stays = weight[:2].abs() > threshold
    assert 0 < int(stays.sum()) < 12
    torch.testing.assert_close(weight.grad[:2], g[:2] * stays)
    torch.testing.assert_close(weight.grad[2:], g[2:])  # the run without: also where the weight is zero
    slope = threshold * (1 - threshold)
    assert soft.level.grad is not None
    expected = -slope * (g[:2] * weight[:2].sign() * stays).sum()
    torch.testing.assert_close(soft.level.grad, torch.stack([expected.detach(), torch.zeros_like(expected)]))
    torch.testing.assert_close(layer.weight[2:], weight[2:], rtol=0, atol=0)


def fleet(**settings) -> Fleet:
    one = spec("str", model=SMALL, sparsity=0.3, recipe=RECIPE.replace(epochs=3), settings=settings)
    return Fleet([one, spec("dense", model=SMALL, recipe=RECIPE.replace(epochs=3))], few())


def test_a_run_ends_with_what_it_was_trained_with():
    """Its network has the shrunk weights, zeros where they are masked, and is tested as such."""
    found = fleet(start=-3, level_decay=0.3)
    run = found.engines[0].replicas[0]
    start = found.engines[0].network.levels["second"][0].item()
    while found.epoch < found.epochs:
        found.train_epoch()
    assert found.engines[0].network.levels["second"][0].item() > start  # decay raises the threshold
    before = found.evaluate()[0]
    result, dense = found.finish()
    model, masks = found.model(0), found.final[0]
    for name, weight in run.softened.items():
        assert torch.equal(model.get_submodule(name).weight, weight * masks[name])
        assert bool((model.get_submodule(name).weight[masks[name]] != 0).all())
    assert result["sparsity"] >= 0.3 - 1e-3
    if result["sparsity"] > 0.3:  # nothing was removed beyond what thresholds removed
        assert result["accuracy"] == before["accuracy"]
    assert result["parameters"] == dense["parameters"] == sum(p.numel() for p in model.parameters())
    assert all(level[1].item() == OFF for level in found.engines[0].network.levels.values())


def test_more_is_removed_where_less_than_was_asked_for_is_zero():
    found = fleet(start=-100, level_decay=0.0)
    while found.epoch < found.epochs:
        found.train_epoch()
    result = found.finish()[0]
    assert result["sparsity"] == pytest.approx(0.3, abs=1e-3)
    weights, masks = found.engines[0].replicas[0].softened, found.final[0]
    left = torch.cat([weights[name][mask].abs() for name, mask in masks.items()])
    gone = torch.cat([weights[name][~mask].abs() for name, mask in masks.items()])
    assert gone.max() <= left.min()  # by magnitude, in the whole network
