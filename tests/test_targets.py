"""The sparsity of each layer at an epoch: when it is due, where it ends, what a pruner makes of it on its way."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import gibbsprune as gp
from export_zoo import MobileNet
from gibbsprune.budgets import Budget
from gibbsprune.structures import as_structure
from gibbsprune.targets import Targets, places, shares_of, sparsity_keeping, tied_to
from gibbsprune.threshold import kept_count


@given(st.integers(1, 400), st.data())
def test_a_sparsity_keeps_the_number_it_was_made_for(count: int, data: st.DataObject) -> None:
    keep = data.draw(st.integers(1, count))
    assert kept_count(sparsity_keeping(keep, count), count) == keep


def test_multiply_adds_of_an_attention_whose_last_layer_is_not_called() -> None:
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, enable_nested_tensor=False
    )
    model = nn.Sequential(model, nn.Linear(16, 4))
    pruner = gp.GibbsPruner(model, Budget(macs=0.5, allocation="uniform"), example_inputs=torch.zeros(2, 5, 16))
    uses = places(model, pruner.layers, torch.zeros(2, 5, 16))
    assert set(uses.values()) == {5.0}
    assert any(name.endswith("out_proj") for name in uses)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    body = [nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)]
    return nn.Sequential(*body)


def train(model: nn.Module, pruner: gp.GibbsPruner, epochs: range, steps: int = 20) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in epochs:
        pruner.set_epoch(epoch)
        for step in range(steps):
            generator = torch.Generator().manual_seed(steps * epoch + step)
            x = torch.randn(8, 16, generator=generator)
            F.cross_entropy(model(x), torch.randint(4, (8,), generator=generator)).backward()
            optimizer.step()
            optimizer.zero_grad()
            pruner.step()


def kept(pruner: gp.GibbsPruner) -> Tensor:
    return torch.cat([layer.mask.flatten() for layer in pruner.masks.values()])


@given(st.lists(st.floats(0, 12), min_size=2, max_size=60), st.sampled_from(["rising", "falling", "level"]))
def test_a_budget_is_due_whenever_it_has_moved_by_a_hundredth_and_when_it_arrives(
    epochs: list[float], way: str
) -> None:
    ends = {"rising": (0.0, 0.9), "falling": (0.9, 0.2), "level": (0.5, 0.5)}[way]
    budget = Budget(gp.LinearSchedule(*ends, 10))
    targets, reached, last = Targets(budget, {}), budget.target(0), 0.0
    for epoch in sorted(epochs):
        if targets.due(epoch, last):
            reached = budget.target(epoch)
        last = epoch
        assert abs(budget.target(epoch) - reached) <= 0.0101 * max(ends) / (min(ends) or 1)
        if epoch >= 10 and way == "rising":
            assert reached == budget.target()


@pytest.mark.parametrize(
    ("asked", "include"),
    [({"0": 0.9, "2": gp.CubicSchedule(0, 0.8, 100)}, ["0", "2"]),
     ({"0": 0.4, "2": 0.3, "4": 0.5}, {"0": "weight", "2": "weight", "4": "2:4"})],
)  # fmt: skip
@pytest.mark.parametrize("law", ["rising", "annealed"])
def test_every_layer_ends_where_it_was_to_go_and_says_so_if_it_was_not_there(
    asked: dict, include: Any, law: str
) -> None:
    model, early = network(), law == "rising" or "4" not in asked
    pruner = gp.GibbsPruner(model, asked, include=include, law=law, epochs=40)
    train(model, pruner, range(6))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pruner.finalize()
    assert any(str(warning.message).startswith("the sparsity has risen to") for warning in caught) == early
    ends = [value.end if isinstance(value, gp.CubicSchedule) else value for value in asked.values()]
    assert [layer.achieved for layer in pruner.summary().layers] == pytest.approx(ends, abs=0.01)


@pytest.mark.parametrize(
    ("sparsity", "structure", "include"),
    [({"0": 0.8, "2": gp.CubicSchedule(0, 0.5, 10)}, "weight", {"0": "weight", "2": "2:4"}),
     (gp.CubicSchedule(0, 0.5, 10), "2:4", None), (Budget(0.5), "2:4", None)],
)  # fmt: skip
def test_what_cannot_rise_is_refused_when_the_pruner_is_made(sparsity: Any, structure: str, include: Any) -> None:
    model = network()
    with pytest.raises(gp.UserError, match=r"sparsity is .*: allowed are numbers, .* with structure '2:4'"):
        gp.GibbsPruner(model, sparsity, structure, include=include)
    assert not any(hasattr(module, "parametrizations") for module in model.modules())


def test_layers_whose_sparsities_take_other_ways_are_no_unit() -> None:
    torch.manual_seed(0)
    model = MobileNet()
    ends = dict.fromkeys(gp.GibbsPruner(copy.deepcopy(model), 0.5, "filter").masks, 0.5)
    depth, first = "blocks.0.depth", "blocks.0.up.0"
    ways = ends | {depth: gp.CubicSchedule(0, 0.5, 10), first: gp.CubicSchedule(0, 0.5, 2)}
    pruner = gp.GibbsPruner(model, ways, "filter", schedule=gp.ConstantSchedule(math.inf))
    pruner.set_epoch(2)
    share = float(pruner.masks[depth].mask.float().mean())
    converged = float((model.eval().get_submodule(depth).weight != 0).float().mean())  # type: ignore[operator,union-attr]
    assert share == converged > 0.5


@pytest.mark.parametrize("epoch", [3, 3.5])
def test_a_pruner_resumed_within_an_epoch_goes_on_with_the_same_shares(epoch: float) -> None:
    model = network()
    pruner = gp.GibbsPruner(model, 0.9, law="rising", epochs=10)
    train(model, pruner, range(4))
    pruner.set_epoch(epoch)
    state, weights = pruner.state_dict(), copy.deepcopy(model.state_dict())
    other = network()
    resumed = gp.GibbsPruner(other, 0.9, law="rising", epochs=10)
    other.load_state_dict(weights)
    resumed.load_state_dict(state)
    with torch.no_grad():
        for both in zip(model.parameters(), other.parameters()):
            for weight in both:
                weight.mul_(1 + both[0].detach().abs())
    for now in (epoch, epoch + 0.005, math.floor(epoch) + 1):
        for each in (pruner, resumed):
            each.set_epoch(now)
            each.step()
        assert torch.equal(kept(pruner), kept(resumed))


def test_a_state_has_the_shares_of_a_budget_also_before_it_is_shared_out_again() -> None:
    model, other = network(), network()
    with torch.no_grad():
        other[0].weight.mul_(10)
    budget = Budget(gp.ConstantSchedule(0.9))
    pruner, fresh = (gp.GibbsPruner(each, budget, law="rising") for each in (model, other))
    fresh.load_state_dict(pruner.state_dict())
    fresh.step()
    shares = [[float(masked.mask.float().mean()) for masked in each.masks.values()] for each in (pruner, fresh)]
    assert shares[0] == pytest.approx(shares[1])


def test_only_a_sparsity_that_rose_leaves_statistics_behind() -> None:
    torch.manual_seed(0)

    def finalized(sparsity: Any, last: int = 20) -> list[str]:  # epochs of eight steps
        model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.Linear(32, 4))
        pruner = gp.GibbsPruner(model, sparsity, law="rising", include=["0", "3"], epochs=last)
        train(model, pruner, range(last), steps=8)
        pruner.set_epoch(last)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pruner.finalize()
        return [str(warning.message) for warning in caught]

    assert finalized(Budget(gp.ConstantSchedule(0.5))) == []
    assert finalized(0.9, 4)[0].startswith("the sparsity rose 8 steps ago")
    assert finalized(0.9) == []  # by less and less towards its end
    assert finalized(gp.CubicSchedule(0, 0.9, 10)) == []


def test_layers_with_structures_of_their_own_rise_and_share_by_these() -> None:
    own: dict = {"0": "weight", "2": "2:4"}
    pruner = gp.GibbsPruner(network(), {"0": 0.8, "2": 0.5}, "2:4", include=own, law="rising", epochs=10)
    assert [float(layer.mask.float().mean()) for layer in pruner.masks.values()] == [1.0, 0.5]
    pruner = gp.GibbsPruner(network(), 0.5, include={"0": "filter", "2": "filter"}, law="rising", epochs=10)
    assert pruner._plan.budget is not None
    assert pruner._plan.budget.allocation == "balanced"


def test_the_sparsity_of_all_layers_is_weighted_by_their_sizes() -> None:
    layers = gp.GibbsPruner(network(), 0.5).layers
    asked = {"0": 0.8, "2": gp.LinearSchedule(0.0, 0.5, 10), "4": 0.0}
    targets = Targets(asked, shares_of(network(), layers, as_structure("weight"), asked), tied_to(layers, asked))
    assert targets.total(5) == pytest.approx((0.8 * 512 + 0.25 * 1024) / 2560)
    assert targets.open(9.9)
    assert not targets.open(10)
