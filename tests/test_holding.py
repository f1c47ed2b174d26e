"""Zeros that last: under every optimiser, with gradients or momentum of any kind, and for as long as a model lives."""

import copy
import gc
import io
import weakref

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import gibbsprune as gp
from gibbsprune.holding import _held, hold, hold_zeros

OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.01),
    "fused adam": lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.01, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.1, initial_accumulator_value=0.1),
}


def small_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))


def train(model, optimizer, steps=5):
    for _ in range(steps):
        loss = model(torch.randn(6, 1, 4, 4)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def zeros_of(model):
    return {name: p.detach() == 0 for name, p in model.named_parameters() if p.dim() > 1}


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_pruned_weights_stay_zero(name, when):
    """Also where the optimiser was made before and carries momentum for what is now pruned."""
    model = small_net()
    pruner = gp.GibbsPruner(model, sparsity=0.5)
    optimizer = OPTIMISERS[name](model.parameters())
    train(model, optimizer)
    pruner.finalize(draw="converged")
    zeros, before = zeros_of(model), {n: p.detach().clone() for n, p in model.named_parameters()}
    assert int(zeros["2.weight"].sum()) == 64
    if when == "after":
        optimizer = OPTIMISERS[name](model.parameters())
    train(model, optimizer)
    for key, parameter in model.named_parameters():
        if key in zeros:
            assert torch.equal(parameter.detach() == 0, zeros[key])
            assert not parameter.grad[zeros[key]].any()
        assert not torch.equal(parameter, before[key]), f"{key} is trained on"


def test_zeros_survive_a_poisoned_momentum():
    parameter = nn.Parameter(torch.tensor([0.0, 1.0]))
    hold(parameter, torch.tensor([False, True]))
    optimizer = torch.optim.SGD([parameter], 0.1, momentum=0.9)
    optimizer.state[parameter]["momentum_buffer"] = torch.tensor([float("nan"), 0.0])
    parameter.square().sum().backward()
    optimizer.step()
    assert parameter.detach()[0] == 0.0
    (parameter * torch.tensor([float("inf"), 1.0])).sum().backward()
    assert torch.isfinite(parameter.grad).all()


def test_a_copy_is_held_by_asking():
    model = small_net()
    gp.GibbsPruner(model, sparsity=0.5).finalize(draw="converged")
    twin = hold_zeros(copy.deepcopy(model))
    zeros = zeros_of(twin)
    train(twin, torch.optim.SGD(twin.parameters(), 0.1, momentum=0.9))
    assert all(torch.equal(mask, zeros_of(twin)[name]) for name, mask in zeros.items())


def test_a_pruned_model_from_disk_is_held_by_asking():
    model, loaded, file = small_net(), small_net(), io.BytesIO()
    gp.GibbsPruner(model, sparsity=0.5).finalize(draw="converged")
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    assert hold_zeros(loaded) is loaded
    train(loaded, torch.optim.AdamW(loaded.parameters(), 0.01))
    assert all(torch.equal(mask, zeros_of(loaded)[name]) for name, mask in zeros_of(model).items())


def test_average_of_a_finalized_model_keeps_the_zeros():
    model = small_net()
    gp.GibbsPruner(model, sparsity=0.5).finalize(draw="converged")
    zeros = zeros_of(model)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(4):
        train(model, optimizer, 1)
        average.update_parameters(model)
    assert all(torch.equal(mask, zeros_of(average.module)[name]) for name, mask in zeros.items())


def test_other_parameters_are_left_alone():
    free = nn.Parameter(torch.zeros(3))
    held = nn.Parameter(torch.zeros(3))
    hold(held, torch.zeros(3, dtype=torch.bool))
    optimizer = torch.optim.SGD([free, held], 0.1)
    (free.sum() + held.sum()).backward()
    optimizer.step()
    assert bool((free == -0.1).all())
    assert not held.any()


def test_a_new_mask_takes_the_place_of_the_old():
    parameter = nn.Parameter(torch.ones(3))
    hold(parameter, torch.tensor([True, False, False]))
    hold(parameter, torch.tensor([True, True, False]))
    optimizer = torch.optim.SGD([parameter], 0.1)
    parameter.sum().backward()
    assert parameter.grad.tolist() == [1.0, 1.0, 0.0]
    optimizer.step()
    torch.testing.assert_close(parameter.detach(), torch.tensor([0.9, 0.9, 0.0]))


def test_a_held_parameter_can_die():
    gc.collect()
    parameter = nn.Parameter(torch.ones(3))
    hold(parameter, torch.zeros(3, dtype=torch.bool))
    gone, count = weakref.ref(parameter), len(_held)
    del parameter
    gc.collect()
    assert gone() is None
    assert len(_held) == count - 1


def test_a_model_moved_to_another_dtype_is_still_held():
    model = small_net()
    gp.GibbsPruner(model, sparsity=0.5).finalize(draw="converged")
    model.double()
    zeros = zeros_of(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.randn(6, 1, 4, 4).double()).square().sum().backward()
    optimizer.step()
    assert all(torch.equal(mask, zeros_of(model)[name]) for name, mask in zeros.items())


def test_a_finalized_model_can_be_pickled_whole(tmp_path):
    model = small_net()
    gp.GibbsPruner(model, sparsity=0.5).finalize(draw="converged")
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    x = torch.randn(2, 1, 4, 4)
    assert torch.equal(loaded(x), model(x))


def test_a_finalized_model_trains_under_compile():
    model = small_net()
    gp.GibbsPruner(model, sparsity=0.5).finalize(draw="converged")
    zeros = zeros_of(model)
    train(torch.compile(model, fullgraph=True, backend="aot_eager"), torch.optim.SGD(model.parameters(), 0.01))
    assert all(torch.equal(mask, zeros_of(model)[name]) for name, mask in zeros.items())


def test_other_weights_written_over_the_zeros_are_trained_freely():
    model = small_net()
    dense = copy.deepcopy(model.state_dict())
    gp.GibbsPruner(model, 0.5).finalize("converged")
    optimizer, zeros = torch.optim.SGD(model.parameters(), 0.01), zeros_of(model)
    pruned = copy.deepcopy(model.state_dict())
    train(model, optimizer)
    model.load_state_dict(pruned)
    train(model, optimizer)
    assert all(torch.equal(now, zeros[name]) for name, now in zeros_of(model).items()), "the same zeros are held on"
    model.load_state_dict(dense)
    with pytest.warns(UserWarning, match="other weights were written over zeros that were held"):
        train(model, optimizer)
    assert not any(bool(now.any()) for now in zeros_of(model).values())
    hold_zeros(model)  # there are none
    train(model, optimizer)
