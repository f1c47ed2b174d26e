"""ThiNet: contributions against the convolution, the greedy choice against brute force, factors against lstsq."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from gibbsprune.errors import UserError
from gibbsprune.threshold import kept_count
from gibbsprune.training.fleet import Fleet
from gibbsprune.training.methods import METHODS
from gibbsprune.training.methods.thinet import PLACES, choose, contributions, inputs_of, rescale, turns
from method_bench import SMALL, few, spec


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def layer_and_input(**options) -> tuple[nn.Conv2d, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Conv2d(6, 4, 3, **options), torch.randn(7, 6, 9, 8, generator=seeded(1))


# -- contributions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"padding": 1}, {"padding": 2, "dilation": 2}, {"stride": 2, "padding": 1}, {"stride": (1, 2)}],
    ids=str,
)
def test_contributions_sum_to_the_convolutions_output(options):
    """At the sampled places and filters, which come from the same stream; the bias is no channel's."""
    layer, x = layer_and_input(**options)
    parts = contributions(layer, x, seeded(3))
    assert parts.shape == (7 * PLACES, 6)
    with torch.no_grad():
        out = (layer(x) - layer.bias[:, None, None]).flatten(2)  # (N, filters, places)
    generator, images = seeded(3), torch.arange(7).repeat_interleave(PLACES)
    places = torch.randint(out.shape[2], images.shape, generator=generator)
    filters = torch.randint(4, images.shape, generator=generator)
    torch.testing.assert_close(parts.sum(1), out[images, filters, places].double(), rtol=1e-4, atol=1e-5)
    assert len(set(zip(images.tolist(), places.tolist()))) > 30  # many places, not one


def test_a_channels_contribution_is_the_output_of_that_channel_alone():
    layer, x = layer_and_input(padding=1)
    parts = contributions(layer, x, seeded(3))
    for channel in range(6):
        alone = torch.zeros_like(x)
        alone[:, channel] = x[:, channel]
        only = contributions(layer, alone, seeded(3))
        torch.testing.assert_close(only.sum(1), parts[:, channel])


def test_inputs_are_what_the_layer_sees():
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.ReLU(), nn.Conv2d(3, 4, 1))
    x = torch.randn(5, 2, 4, 4, generator=seeded())
    assert torch.equal(inputs_of(model, model[2], x), model[1](model[0](x)))
    assert not model[2]._forward_pre_hooks


# -- the greedy choice -------------------------------------------------------------------------------------------------


def greedy(parts: torch.Tensor, keep: int) -> list[int]:
    """As Luo et al. write it: add to the removed set the channel that leaves Σ (Σ_removed a)² smallest."""
    removed: list[int] = []
    while parts.shape[1] - len(removed) > keep:
        left = [c for c in range(parts.shape[1]) if c not in removed]
        removed.append(min(left, key=lambda c: float(parts[:, [*removed, c]].sum(1).square().sum())))
    return sorted(set(range(parts.shape[1])) - set(removed))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("keep", [1, 3, 6])
def test_the_choice_is_the_greedy_one_by_brute_force(seed, keep):
    mixing = torch.randn(7, 7, generator=seeded(seed + 100), dtype=torch.float64)
    parts = (
        torch.randn(40, 7, generator=seeded(seed), dtype=torch.float64) @ mixing
    )  # channels that are not independent
    assert choose(parts, keep).nonzero().flatten().tolist() == greedy(parts, keep)


def test_channels_that_cancel_each_other_go_together():
    """By size channel 3 would be the first to go; but 0 and 1 undo each other, and so do not matter."""
    signal = torch.randn(50, generator=seeded(), dtype=torch.float64)
    other = torch.randn(50, 2, generator=seeded(1), dtype=torch.float64)
    parts = torch.stack([signal, -signal, 1.5 * other[:, 0], 1.2 * other[:, 1]], dim=1)
    assert parts.square().sum(0).argmin() in (0, 1)
    assert choose(parts, 2).tolist() == [False, False, True, True]
    assert choose(parts, 4).all()


def test_a_silent_channel_goes_first():
    parts = torch.randn(30, 5, generator=seeded(), dtype=torch.float64)
    parts[:, 3] = 0
    assert choose(parts, 4).tolist() == [True, True, True, False, True]


# -- the factors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_the_factors_are_the_least_squares_solution(seed):
    parts = torch.randn(60, 8, generator=seeded(seed), dtype=torch.float64) + 0.5
    kept = choose(parts, 3)
    expected = torch.linalg.lstsq(parts[:, kept], parts.sum(1, keepdim=True)).solution.flatten()
    torch.testing.assert_close(rescale(parts, kept), expected, rtol=1e-8, atol=1e-10)
    assert (expected - 1).abs().max() > 0.05  # there was something to rescale


def test_factors_of_a_silent_channel_are_finite():
    parts = torch.randn(30, 4, generator=seeded(), dtype=torch.float64)
    parts[:, 1] = 0
    assert rescale(parts, torch.ones(4, dtype=torch.bool)).tolist() == pytest.approx([1, 0, 1, 1])


# -- a whole network ---------------------------------------------------------------------------------------------------


def test_layers_are_pruned_one_after_another_and_rescaled():
    """By hand, on a copy: the second layer is chosen on the activations that the pruned first one leaves."""
    fleet = Fleet([spec("thinet", "filter", model=SMALL, sparsity=0.6, settings={"images": 40})], few(64))
    run = fleet.engines[0].replicas[0]
    stream = run.stream("masks")
    model, images = fleet.model(0), run.images(40, stream)
    METHODS["thinet"].begin_phase(run, 1)
    for name in ("second", "third"):
        layer = model.get_submodule(name)
        with torch.no_grad():
            parts = contributions(layer, inputs_of(model, layer, images), stream)
            stay = greedy(parts, kept_count(0.6, layer.in_channels))
            factors = torch.linalg.lstsq(parts[:, stay], parts.sum(1, keepdim=True)).solution.flatten().float()
            weight = torch.zeros_like(layer.weight)
            weight[:, stay] = layer.weight[:, stay] * factors[:, None, None]
            layer.weight.copy_(weight)
        channels = run.masks[name].flatten(2).all(2)
        assert run.masks[name].any(0).flatten(1).all(1).nonzero().flatten().tolist() == stay
        assert all(torch.equal(one, other) for one, other in pairwise(channels))  # whole input channels
        torch.testing.assert_close(run.weights[name] * run.masks[name], layer.weight, rtol=1e-4, atol=1e-6)


def test_layers_take_turns_while_the_network_is_tuned():
    """Two layers over two epochs: the second is chosen after one of fine-tuning, and both are pruned in the end."""
    assert [turns(3, epochs) for epochs in (0, 2, 3, 7.5)] == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [0, 2, 5]]
    settings = {"images": 40, "tune_epochs": 4, "spread": 0.5}
    fleet = Fleet([spec("thinet", "filter", model=SMALL, sparsity=0.6, settings=settings)], few(64))
    run, shares = fleet.engines[0].replicas[0], []
    while fleet.epoch < fleet.epochs:
        fleet.train_epoch()
        shares.append([bool(run.masks[name].all()) for name in ("second", "third")])
    assert shares == [[True, True]] * 2 + [[False, True]] + [[False, False]] * 3
    assert all(layer["kept"] < layer["weights"] for layer in fleet.finish()[0]["layers"])


def test_pruning_by_thinet_changes_the_outputs_less_than_by_chance():
    fleet = Fleet([spec("thinet", "filter", model=SMALL, sparsity=0.5, settings={"images": 64})], few(64))
    run = fleet.engines[0].replicas[0]
    x = run.images(64, seeded())
    whole = fleet.model(0)
    seen = inputs_of(whole, whole.second, x)
    METHODS["thinet"].begin_phase(run, 1)
    with torch.no_grad():
        before, after = whole.second(seen), fleet.model(0).second(seen)
        errors = []
        for seed in range(20):
            chosen = torch.zeros(8).index_fill(0, torch.randperm(8, generator=seeded(seed))[: kept_count(0.5, 8)], 1)
            errors.append(float((whole.second(seen * chosen[:, None, None]) - before).square().mean()))
    assert float((after - before).square().mean()) < min(errors)


def test_thinet_needs_plain_convolutions():
    with pytest.raises(UserError, match=r"^method 'thinet' prunes layers of Conv2d, not 1, 3$"):
        Fleet([spec("thinet", "filter", model="own_networks:perceptron")], few(32))
    with pytest.raises(UserError, match=r"^method 'thinet' prunes plain two-dimensional convolutions, not Linear\("):
        Fleet([spec("thinet", "filter", model="own_networks:perceptron", include="1")], few(32))
    with pytest.raises(UserError, match=r"^method 'thinet' needs zero padding given as numbers, not Conv2d\("):
        contributions(nn.Conv2d(2, 2, 3, padding="same"), torch.zeros(1, 2, 4, 4), seeded())


def test_thinets_epochs_and_rate():
    one = spec("thinet", "filter")
    assert (one.own_epochs, one.total_epochs) == (2 + 1, 2 + 1)
    assert one.learning_rate(2) == pytest.approx(0.3 * 0.02)
    started = spec("thinet", "filter", settings={"from": "somewhere", "tune_epochs": 4})
    assert (started.own_epochs, started.total_epochs) == (4, 6)
