"""Batch-norm statistics re-estimated: the plain average over batches, and nothing else changes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from gibbsprune.errors import UserError
from gibbsprune.recalibration import recalibrate


def batches(count: int = 5, size: int = 6) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [2 + 3 * torch.randn(size, 3, 4, 4, generator=generator) for _ in range(count)]


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.BatchNorm2d(3, momentum=0.3),
            nn.Conv2d(3, 4, 3),
            nn.Dropout(0.5),
            nn.BatchNorm2d(4),
            nn.Flatten(),
            nn.Linear(16, 5),
            nn.BatchNorm1d(5, affine=False),
        )
        for parameter in model.parameters():
            nn.init.uniform_(parameter, 0.1, 1)
        for norm in (model[0], model[3], model[6]):
            nn.init.uniform_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 1, 2)
    return model


def average(inputs: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance per channel, averaged over batches."""
    over = [0, *range(2, inputs[0].dim())]
    means = torch.stack([x.mean(over) for x in inputs]).mean(0)
    return means, torch.stack([x.transpose(0, 1).flatten(1).var(1) for x in inputs]).mean(0)


def test_statistics_are_the_plain_average_over_batches():
    """Layer by layer by hand, dropout off: each norm's input is made with the batch statistics of those before it."""
    model, inputs = network(), batches()
    assert recalibrate(model, inputs) is model
    x = inputs
    for layer in model.children():
        if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
            mean, variance = average(x)
            torch.testing.assert_close(layer.running_mean, mean, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(layer.running_var, variance, rtol=1e-4, atol=1e-5)
            assert layer.num_batches_tracked == len(inputs)
            with torch.no_grad():
                x = [copy.deepcopy(layer).train()(part) for part in x]
        elif not isinstance(layer, nn.Dropout):
            with torch.no_grad():
                x = [layer(part) for part in x]


def test_modes_momenta_and_parameters_are_put_back():
    model = network().train()
    model[2].eval()
    model[3].eval()
    modes = [m.training for m in model.modules()]
    parameters = copy.deepcopy(dict(model.named_parameters()))
    recalibrate(model, batches())
    assert [m.training for m in model.modules()] == modes
    assert (model[0].momentum, model[3].momentum) == (0.3, 0.1)
    torch.testing.assert_close(dict(model.named_parameters()), parameters, rtol=0, atol=0)
    assert all(p.grad is None for p in model.parameters())


def test_they_are_put_back_after_an_error_too():
    model = network().train()
    with pytest.raises(RuntimeError):
        recalibrate(model, [torch.zeros(2, 7, 4, 4)])
    assert all(m.training for m in model.modules())
    assert model[0].momentum == 0.3


def test_a_batch_that_fails_leaves_the_statistics_as_they_were():
    model = network()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        recalibrate(model, [batches()[0], torch.zeros(1, 3, 4, 4)])
    with pytest.raises(UserError, match=r"^a batch is a dict: allowed are inputs, and tuples whose first element"):
        recalibrate(model, [{"x": batches()[0]}])
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_batches_may_be_pairs_and_come_from_an_iterator():
    plain, pairs = network(), network()
    recalibrate(plain, batches())
    recalibrate(pairs, ((x, torch.zeros(6)) for x in batches()))
    torch.testing.assert_close(plain.state_dict(), pairs.state_dict(), rtol=0, atol=0)


def test_the_old_statistics_are_forgotten():
    one, other = network(), network()
    with torch.no_grad():
        other[0].running_mean += 100
        other[0].num_batches_tracked += 7
    for model in (one, other):
        recalibrate(model, batches())
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=0)


def test_without_batch_norm_nothing_is_touched_or_run():
    class Refusing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise AssertionError("was run")

    model = nn.Sequential(Refusing(3, 3), nn.BatchNorm1d(3, track_running_stats=False))
    before = copy.deepcopy(model.state_dict())
    assert recalibrate(model, [torch.zeros(2, 3)]) is model
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_no_batches_is_an_error_that_costs_nothing():
    """An iterator that is used up must not leave statistics of 0 and 1 behind."""
    model = network()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(UserError, match="no batches"):
        recalibrate(model, iter(()))
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
