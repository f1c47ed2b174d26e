"""Zeros that last: under every optimiser, with gradients or momentum of any kind, and for as long as a model lives."""

import copy
import gc
import io
import subprocess
import sys
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import gibbsprune as gp
from gibbsprune.holding import held, hold, hold_zeros

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


def a_layer(values):
    layer = nn.Linear(len(values), 1, bias=False)
    layer.weight = nn.Parameter(torch.tensor([values]))
    return layer


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
    layer = a_layer([0.0, 1.0])
    parameter = layer.weight
    hold(layer, torch.tensor([[False, True]]))
    optimizer = torch.optim.SGD([parameter], 0.1, momentum=0.9)
    optimizer.state[parameter]["momentum_buffer"] = torch.tensor([[float("nan"), 0.0]])
    parameter.square().sum().backward()
    optimizer.step()
    assert parameter.detach()[0, 0] == 0.0
    (parameter * torch.tensor([float("inf"), 1.0])).sum().backward()
    assert torch.isfinite(parameter.grad).all()


def test_a_copy_takes_its_zeros_along():
    model = small_net()
    gp.GibbsPruner(model, sparsity=0.5).finalize(draw="converged")
    twin, frozen = copy.deepcopy(model), {name: p.detach().clone() for name, p in model.named_parameters()}
    zeros = zeros_of(twin)
    assert int(zeros["2.weight"].sum()) == 64
    optimizer = torch.optim.SGD(twin.parameters(), 0.1, momentum=0.9)
    optimizer.state[twin[2].weight]["momentum_buffer"] = torch.ones_like(twin[2].weight)
    train(copy.deepcopy(twin), optimizer, 1)  # another copy, whose gradients are not its own
    train(twin, optimizer)
    assert all(torch.equal(mask, zeros_of(twin)[name]) for name, mask in zeros.items())
    assert not twin[2].weight.grad[zeros["2.weight"]].any()
    assert all(torch.equal(p, frozen[name]) for name, p in model.named_parameters())
    assert not torch.equal(twin[2].weight, model[2].weight)


def test_a_copy_of_other_weights_is_not_held():
    model = small_net()
    dense = copy.deepcopy(model.state_dict())
    gp.GibbsPruner(model, sparsity=0.5).finalize(draw="converged")
    model.load_state_dict(dense)
    twin = copy.deepcopy(model)
    train(twin, torch.optim.SGD(twin.parameters(), 0.01))
    assert not any(bool(now.any()) for now in zeros_of(twin).values())


def test_importing_touches_no_optimiser():
    """The hook on all optimisers is set by the first layer that is held."""
    script = """
import gibbsprune, torch
from torch.optim import optimizer
assert not optimizer._global_optimizer_pre_hooks and not optimizer._global_optimizer_post_hooks
layer = torch.nn.Linear(3, 3)
layer.weight.data[0] = 0
gibbsprune.hold_zeros(layer)
gibbsprune.hold_zeros(layer)
assert len(optimizer._global_optimizer_pre_hooks) == len(optimizer._global_optimizer_post_hooks) == 1
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def zeroed():
    layer = nn.Linear(4, 4)
    with torch.no_grad():
        layer.weight[0] = 0
    return layer


def test_threads_train_and_hold_at_the_same_time():
    """Each with models of its own, while others come and go."""
    failures, switch = [], sys.getswitchinterval()

    def work(seed):
        try:
            for _ in range(30):
                layer = hold_zeros(zeroed())
                optimizer = torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9)
                for _ in range(3):
                    layer(torch.ones(2, 4)).sum().backward()
                    optimizer.step()
                assert not layer.weight[0].any()
        except Exception as error:
            failures.append(error)

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
    assert not failures


def test_a_held_layer_may_be_written_by_its_thread_while_others_step():
    """Every step of any optimiser looks at all held layers, whatever their owners do to them."""
    layer, switch, done = hold_zeros(zeroed()), sys.getswitchinterval(), threading.Event()

    def write():
        for turn in range(10**9):
            setattr(layer, f"note{turn % 40}", turn)
            layer.__dict__.pop(f"note{7 * turn % 40}", None)
            if done.is_set():
                return

    thread = threading.Thread(target=write)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for _ in range(8_000):
            assert held()
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(switch)


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
    layer = a_layer([0.0, 0.0, 0.0])
    held = layer.weight
    hold(layer, torch.zeros(1, 3, dtype=torch.bool))
    optimizer = torch.optim.SGD([free, held], 0.1)
    (free.sum() + held.sum()).backward()
    optimizer.step()
    assert bool((free == -0.1).all())
    assert not held.any()


def test_a_new_mask_takes_the_place_of_the_old():
    layer = a_layer([1.0, 1.0, 1.0])
    hold(layer, torch.tensor([[True, False, False]]))
    hold(layer, torch.tensor([[True, True, False]]))
    optimizer = torch.optim.SGD([layer.weight], 0.1)
    layer.weight.sum().backward()
    assert layer.weight.grad.tolist() == [[1.0, 1.0, 0.0]]
    optimizer.step()
    torch.testing.assert_close(layer.weight.detach(), torch.tensor([[0.9, 0.9, 0.0]]))


def test_a_held_layer_can_die():
    gc.collect()
    layer = a_layer([0.0, 0.0])
    hold(layer, torch.zeros(1, 2, dtype=torch.bool))
    gone, weight, count = weakref.ref(layer), weakref.ref(layer.weight), len(held())
    del layer
    assert gone() is None
    assert weight() is None
    assert len(held()) == count - 1


@pytest.fixture
def swapping():
    """torch's other way to change a parameter's type, which it always takes for shards."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


def test_a_model_whose_parameters_are_swapped_is_still_held(swapping):
    test_a_model_moved_to_another_dtype_is_still_held()


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
    torch._dynamo.reset()  # what other tests compiled counts towards its limit
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


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_pruned_weights_stay_zero_in_steps_with_a_closure(search, when):
    """LBFGS writes weights and evaluates them within one step, from a history that knows no zeros."""
    model = small_net()
    pruner = gp.GibbsPruner(model, 0.5)
    x, seen = torch.randn(20, 1, 4, 4), []

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        seen.append(zeros_of(model))
        return loss

    def lbfgs():
        return torch.optim.LBFGS(model.parameters(), 0.1, max_iter=5, line_search_fn=search)

    optimizer = lbfgs()
    optimizer.step(closure)
    pruner.finalize("converged")
    zeros, before = zeros_of(model), closure().item()
    if when == "after":
        optimizer = lbfgs()
    seen.clear()
    optimizer.step(closure)
    optimizer.step(closure=closure)
    assert len(seen) > 4
    for found in (*seen, zeros_of(model)):
        assert all(torch.equal(found[name], mask) for name, mask in zeros.items())
    assert closure().item() < before


def test_a_closure_may_go_back_through_a_loss_from_before_the_step():
    model = small_net()
    gp.GibbsPruner(model, 0.5).finalize("converged")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loss = model(torch.randn(6, 1, 4, 4)).square().sum()
    optimizer.step(loss.backward)
    assert model[2].weight.grad.any()


@pytest.mark.parametrize("frozen", ["after", "before"])
def test_other_weights_in_a_frozen_layer_are_left_alone(frozen):
    """Frozen after the zeros were held, and never again trained; or before, and trained later."""
    model = small_net()
    dense = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    model[2].requires_grad_(frozen != "before")
    gp.GibbsPruner(model, 0.5).finalize("converged")
    model.load_state_dict(dense)
    model[2].requires_grad_(frozen == "before")
    with pytest.warns(UserWarning, match="other weights were written over zeros that were held"):
        train(model, optimizer)
    assert not any(bool(now.any()) for now in zeros_of(model).values())
    assert torch.equal(model[2].weight, dense["2.weight"]) == (frozen == "after")


def test_a_layer_that_was_frozen_is_held_when_it_is_trained():
    model = small_net().requires_grad_(False)
    gp.GibbsPruner(model, 0.5).finalize("converged")
    zeros, optimizer = zeros_of(model), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model.requires_grad_(True)
    train(model, optimizer)
    for name, mask in zeros.items():
        parameter = model.get_parameter(name)
        assert torch.equal(parameter == 0, mask)
        assert not parameter.grad[mask].any()


def test_weights_that_take_the_place_of_others_are_held_if_they_have_the_zeros():
    model = small_net()
    dense = copy.deepcopy(model.state_dict())
    gp.GibbsPruner(model, 0.5).finalize("converged")
    zeros = zeros_of(model)
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    train(model, optimizer)
    assert all(torch.equal(now, zeros[name]) for name, now in zeros_of(model).items())
    model.load_state_dict(dense, assign=True)
    with pytest.warns(UserWarning, match="other weights were written over zeros that were held"):
        train(model, torch.optim.SGD(model.parameters(), 0.01))
    assert not any(bool(now.any()) for now in zeros_of(model).values())


def test_a_weight_of_another_shape_is_trained_freely():
    model = small_net()
    gp.GibbsPruner(model, 0.5, include="*").finalize("converged")
    model[4].weight = nn.Parameter(torch.ones(5, 8))
    model[4].bias = nn.Parameter(torch.ones(5))
    with pytest.warns(UserWarning, match="other weights were written over zeros that were held"):
        train(model, torch.optim.SGD(model.parameters(), 0.01))
    assert not torch.equal(model[4].weight, torch.ones(5, 8))
