"""The pruner in its owner's training loop: masks, evaluation, saving, compiling, and the end."""

import copy
import io
import itertools
import math
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import gibbsprune as gp
from gibbsprune.attaching import stored_weight
from gibbsprune.law import Law
from gibbsprune.structures import ALLOWED
from gibbsprune.threshold import kept_count

ALL = ["3", "6", "8"]


def small_net(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Conv2d(6, 8, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8 * 4, 12),
            nn.ReLU(),
            nn.Linear(12, 4),
        )


def batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(10, 1, 4, 4, generator=generator), torch.randint(0, 4, (10,), generator=generator)


def train_step(model, optimizer, seed=0):
    x, y = batch(seed)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def masks_of(pruner):
    return {name: masked.mask.clone() for name, masked in pruner.masks.items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def pruned_layers(model, pruner):
    return {name: model.get_submodule(name) for name in pruner.masks}


# -- masks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("structure", ["weight", "kernel", "filter"])
def test_each_step_draws_new_masks_and_leaves_the_stored_weights(structure):
    model = small_net()
    pruner = gp.GibbsPruner(model, 0.5, structure, schedule=gp.ConstantSchedule(0.5))
    stored = {name: stored_weight(layer).detach().clone() for name, layer in pruned_layers(model, pruner).items()}
    seen = [masks_of(pruner)]
    for _ in range(3):
        pruner.step()
        seen.append(masks_of(pruner))
    for first, second in itertools.pairwise(seen):
        assert not any(torch.equal(first[name], second[name]) for name in first)
    for name, layer in pruned_layers(model, pruner).items():
        assert torch.equal(stored_weight(layer), stored[name])
        assert torch.equal(layer.weight, stored[name] * pruner.masks[name].mask)


def test_same_seed_same_masks():
    runs = []
    for seed in (3, 3, 4):
        pruner = gp.GibbsPruner(small_net(), 0.5, schedule=gp.ConstantSchedule(1.0), seed=seed)
        for _ in range(3):
            pruner.step()
        runs.append(masks_of(pruner))
    assert same(runs[0], runs[1])
    assert not same(runs[0], runs[2])


def test_masks_follow_the_law_of_their_layer():
    """The share of draws that keep each weight is σ(−2β(Q − w²)/Q), Q of its own layer."""
    model, beta = small_net(), 0.5
    pruner = gp.GibbsPruner(model, {"3": 0.9, "6": 0.3, "8": 0.6}, include=ALL, schedule=gp.ConstantSchedule(beta))
    total = {name: torch.zeros(mask.shape) for name, mask in masks_of(pruner).items()}
    for _ in range(1000):
        pruner.step()
        for name, mask in masks_of(pruner).items():
            total[name] += mask
    for name, sparsity in (("3", 0.9), ("6", 0.3), ("8", 0.6)):
        weight = stored_weight(model.get_submodule(name)).detach()
        expected = torch.sigmoid(-2 * beta * (1 - weight.square() / gp.threshold(weight, sparsity)))
        assert float((total[name] / 1000 - expected).abs().max()) < 5.5 * 0.5 / math.sqrt(1000)


def test_global_random_states_are_untouched():
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    model = small_net()
    pruner = gp.GibbsPruner(model, 0.5, "kernel", schedule=gp.ConstantSchedule(1e9))
    pruner.step()
    model.eval()(batch()[0])
    pruner.finalize(draw="converged")
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1]  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert before[1] == after[1]
    assert (before[2] == after[2]).all()


def test_epochs_set_beta():
    pruner = gp.GibbsPruner(small_net(), 0.5, schedule=gp.LogSchedule(1, 100, 2))
    betas = []
    for epoch in range(4):
        pruner.set_epoch(epoch)
        betas.append(pruner.beta)
    assert betas == pytest.approx([1, 10, 100, 100])
    plain = gp.GibbsPruner(small_net(), 0.5, schedule=lambda epoch: 2.0 * epoch)
    plain.set_epoch(3)
    assert plain.beta == 6.0


def test_default_schedule_lasts_64_per_cent_of_the_training():
    pruner = gp.GibbsPruner(small_net(), law="annealed")
    assert pruner.schedule == gp.LogSchedule(3.0, 1e4, 128)  # in units of the threshold
    assert gp.GibbsPruner(small_net(), law="annealed", epochs=50).schedule == gp.LogSchedule(3.0, 1e4, 32)
    assert gp.GibbsPruner(small_net(), hamiltonian="square").schedule == gp.LogSchedule(0.7, 1e4, 128)  # the paper's


def test_infinite_beta_draws_the_converged_masks():
    model = small_net()
    pruner = gp.GibbsPruner(model, 0.5, schedule=gp.ConstantSchedule(math.inf))
    assert pruner.agreement() == 1.0
    for name, layer in pruned_layers(model, pruner).items():
        assert torch.equal(pruner.masks[name].mask, gp.converged_mask(stored_weight(layer), 0.5))


def test_it_says_how_much_is_masked_now():
    net = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 10), nn.ReLU(), nn.Linear(10, 2))
    pruner = gp.GibbsPruner(net, gp.Budget(gp.LinearSchedule(0.0, 0.8, 4)))
    for epoch, sparsity in enumerate((0.0, 0.2, 0.4, 0.6, 0.8, 0.8)):
        pruner.set_epoch(epoch)
        assert pruner.sparsity() == pytest.approx(sparsity, abs=1 / 400)
    pruner.finalize()
    with pytest.raises(gp.UserError, match=r"sparsity\(\) after finalize"):
        pruner.sparsity()


def test_agreement_counts_the_same_weights():
    pruner = gp.GibbsPruner(small_net(), 0.5, schedule=gp.ConstantSchedule(math.inf))
    mask = pruner.masks["6"].mask
    mask[0, :10] = ~mask[0, :10]
    weights = sum(m.mask.numel() for m in pruner.masks.values())
    assert pruner.agreement() == pytest.approx(1 - 10 / weights)


@pytest.mark.parametrize("given", [{"3": 0.5, "6": 0.9, "8": 0.0}, {"3": 0.5, "6": 0.9, "8": 0.0}.get])
def test_sparsity_per_layer(given):
    model = small_net()
    pruner = gp.GibbsPruner(model, given, include=ALL, schedule=gp.ConstantSchedule(math.inf))
    pruner.finalize()
    for name, sparsity in (("3", 0.5), ("6", 0.9), ("8", 0.0)):
        weight = model.get_submodule(name).weight
        assert int((weight != 0).sum()) == kept_count(sparsity, weight.numel())


def test_a_layer_of_sparsity_zero_is_never_masked():
    model = small_net()
    pruner = gp.GibbsPruner(model, {"3": 0.5, "6": 0.5, "8": 0.0}, include=ALL, schedule=gp.ConstantSchedule(0.1))
    for _ in range(3):
        pruner.step()
        assert bool(pruner.masks["8"].mask.all())


def test_a_structure_of_ones_own():
    """Columns of a Linear: its inputs are pruned."""

    @dataclass(frozen=True)
    class Column(gp.Structure):
        name = "filter"

        def size(self, shape):
            return shape[0]

        def rows(self, weight):
            return weight.T

        def unrows(self, rows, shape):
            return rows.mT

    model = nn.Sequential(nn.Linear(8, 5, bias=False))
    pruner = gp.GibbsPruner(model, 0.5, Column(), "sign", gp.ConstantSchedule(100.0), include="0")
    inputs = stored_weight(model[0]).detach().square().sum(0).argsort(descending=True)[:4].sort().values
    for weight in (model.train()[0].weight, model.eval()[0].weight, pruner.finalize()[0].weight):
        assert weight.any(0).nonzero().flatten().tolist() == inputs.tolist()


# -- evaluation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("structure", ["weight", "kernel", "filter"])
def test_eval_is_deterministic_and_follows_training(structure):
    model = small_net()
    pruner = gp.GibbsPruner(model, 0.6, structure, schedule=gp.ConstantSchedule(1.0))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = batch(9)[0]
    for step in range(3):
        train_step(model, optimizer, step)
        pruner.step()
        model.eval()
        first = model(x)
        pruner.step()
        assert torch.equal(model(x), first), "a sampled mask does not matter in eval"
        for layer in pruned_layers(model, pruner).values():
            expected = gp.converged_mask(stored_weight(layer), 0.6, structure)
            assert torch.equal(layer.weight, stored_weight(layer) * expected)
        model.train()


def test_averages_evaluate_with_the_converged_masks_of_their_own_weights():
    model = small_net()
    pruner = gp.GibbsPruner(model, 0.6, schedule=gp.ConstantSchedule(1.0))
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    averages = [AveragedModel(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))]
    by_data = copy.deepcopy(model)
    for step in range(4):
        train_step(model, optimizer, step)
        pruner.step()
        for average in averages:
            average.update_parameters(model)
        for mean, new in zip(by_data.parameters(), model.parameters()):
            mean.data.mul_(0.5).add_(new.data, alpha=0.5)
        for average in (averages[0].module, averages[1].module, by_data):
            average.eval()
            for layer in pruned_layers(average, pruner).values():
                assert torch.equal(layer.weight != 0, gp.converged_mask(stored_weight(layer), 0.6))


@pytest.mark.parametrize("how", [{}, {"multi_avg_fn": get_ema_multi_avg_fn(0.5)}])
@pytest.mark.parametrize("survivors", ["whole", "shrunk"])
def test_averages_of_buffers_too_end_as_the_model(how, survivors):
    model = small_net()
    pruner = gp.GibbsPruner(model, 0.6, schedule=gp.ConstantSchedule(1.0), survivors=survivors)
    optimizer, average = torch.optim.SGD(model.parameters(), 0.3), AveragedModel(model, use_buffers=True, **how)
    for step in range(4):
        train_step(model, optimizer, step)
        pruner.step()
        average.update_parameters(model)
    masks = [mask for name, mask in average.module.named_buffers() if name.endswith(".mask")]
    assert masks
    assert all(int(mask.min()) >= 0 and int(mask.max()) <= 1 for mask in masks)
    x = batch(5)[0]
    wanted = average.eval()(x)
    model.load_state_dict(average.module.state_dict())
    model = pruner.finalize().eval()
    torch.testing.assert_close(model(x), wanted)
    average = AveragedModel(model.train(), use_buffers=True, **how)
    for step in range(4):
        train_step(model, optimizer, step)
        average.update_parameters(model)
    for name in pruner.layers:
        zero = model.get_submodule(name).weight == 0
        assert bool(zero.any())
        assert torch.equal(average.module.get_submodule(name).weight == 0, zero)


# -- living with the rest of torch -----------------------------------------------------------------------------------


def test_compiled_training_and_evaluation_are_the_eager_ones_without_graph_breaks():
    eager, compiled = small_net(), small_net()
    counter = CompileCounterWithBackend("aot_eager")
    fast = torch.compile(compiled, fullgraph=True, backend=counter)
    pruners = [gp.GibbsPruner(m, 0.5, schedule=gp.ConstantSchedule(1.0), seed=1) for m in (eager, compiled)]
    optimizers = [torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in (eager, compiled)]
    x = batch(5)[0]
    frames = set()
    for step in range(4):
        losses = [train_step(m, o, step) for m, o in zip((eager, fast), optimizers)]
        torch.testing.assert_close(*losses)
        for pruner in pruners:
            pruner.step()
        assert same(masks_of(pruners[0]), masks_of(pruners[1]))
        eager.eval()
        fast.eval()
        with torch.no_grad():
            torch.testing.assert_close(fast(x), eager(x))
        eager.train()
        fast.train()
        frames.add(counter.frame_count)
    assert len(frames) == 1, "compiled once for training and once for evaluation"


def test_a_draw_inside_a_compiled_function_is_the_eager_one():
    eager, compiled = small_net(), small_net()
    pruners = [gp.GibbsPruner(m, 0.5, schedule=gp.ConstantSchedule(1.0), seed=1) for m in (eager, compiled)]

    def step(model, pruner):
        pruner.step()
        return model(batch()[0])

    fast = torch.compile(step, backend="aot_eager")
    for _ in range(2):
        torch.testing.assert_close(fast(compiled, pruners[1]), step(eager, pruners[0]))
    assert same(masks_of(pruners[0]), masks_of(pruners[1]))


def test_autocast():
    model = small_net()
    pruner = gp.GibbsPruner(model, 0.5, schedule=gp.ConstantSchedule(1.0))
    x, y = batch()
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    for name, layer in pruned_layers(model, pruner).items():
        gradient = stored_weight(layer).grad
        assert gradient.dtype == torch.float32
        assert not gradient[~pruner.masks[name].mask].any()
        assert gradient.any()


def test_gradient_accumulation():
    """Two backward passes under one mask add up, and only then comes the next mask."""
    model, whole = small_net().eval(), small_net().eval()
    pruners = [gp.GibbsPruner(m, 0.5, schedule=gp.ConstantSchedule(1.0)) for m in (model, whole)]
    for m in (model, whole):
        for name in pruners[0].masks:
            m.get_submodule(name).train()
    x, y = batch()
    for part in (slice(0, 5), slice(5, 10)):
        (F.cross_entropy(model(x[part]), y[part]) / 2).backward()
    F.cross_entropy(whole(x), y).backward()
    for first, second in zip(model.parameters(), whole.parameters()):
        torch.testing.assert_close(first.grad, second.grad)
    assert same(masks_of(pruners[0]), masks_of(pruners[1]))


def test_an_optimiser_made_before_the_pruner_trains_the_same_parameters():
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    pruner = gp.GibbsPruner(model, 0.5, schedule=gp.ConstantSchedule(1.0))
    before = stored_weight(model[6]).detach().clone()
    train_step(model, optimizer)
    assert {id(p) for p in model.parameters()} == {id(p) for p in optimizer.param_groups[0]["params"]}
    assert not torch.equal(stored_weight(model[6]), before)
    pruner.finalize(draw="converged")
    assert {id(p) for p in model.parameters()} == {id(p) for p in optimizer.param_groups[0]["params"]}


def test_a_model_moved_after_wrapping():
    model = small_net()
    pruner = gp.GibbsPruner(model, 0.5, schedule=gp.ConstantSchedule(1.0))
    model.double()
    pruner.step()
    x = batch()[0].double()
    assert model(x).dtype == torch.float64
    model.eval()(x)
    assert pruner.finalize(draw="converged") is model
    assert int((model[6].weight == 0).sum()) == 192
    model = small_net()
    pruner = gp.GibbsPruner(model, 0.5, schedule=gp.ConstantSchedule(1.0))
    model.to(torch.bfloat16)
    pruner.step()
    assert model(batch()[0].bfloat16()).dtype == torch.bfloat16


def test_a_deep_copy_goes_its_own_way():
    model = small_net()
    pruner = gp.GibbsPruner(model, 0.5, schedule=gp.ConstantSchedule(1.0))
    twin = copy.deepcopy(model)
    x = batch()[0]
    torch.testing.assert_close(twin(x), model(x))
    before = twin(x).detach()
    pruner.step()
    torch.testing.assert_close(twin(x), before)
    assert not torch.equal(model(x), before)


def test_model_state_dict_round_trip():
    model, other = small_net(0), small_net(1)
    first = gp.GibbsPruner(model, 0.5, schedule=gp.ConstantSchedule(1.0), seed=1)
    gp.GibbsPruner(other, 0.5, schedule=gp.ConstantSchedule(1.0), seed=2)
    first.step()
    other.load_state_dict(model.state_dict())
    x = batch()[0]
    assert torch.equal(other(x), model(x))
    assert torch.equal(other.eval()(x), model.eval()(x))


# -- saving and resuming ---------------------------------------------------------------------------------------------


def make_run(seed):
    model = small_net(seed)
    schedule = gp.LogSchedule(0.5, 1e4, 4)
    pruner = gp.GibbsPruner(model, 0.6, "kernel", gp.Quadratic(0.05), schedule, seed=seed)
    return model, torch.optim.Adam(model.parameters(), 1e-2), pruner


def advance(run, start, stop):
    model, optimizer, pruner = run
    for step in range(start, stop):
        pruner.set_epoch(step // 2)
        train_step(model, optimizer, step)
        pruner.step()


@pytest.mark.parametrize("at", [0, 3, 4])
def test_a_resumed_run_continues_bit_for_bit(at):
    straight = make_run(0)
    advance(straight, 0, 8)
    stopped = make_run(0)
    advance(stopped, 0, at)
    file = io.BytesIO()
    torch.save([part.state_dict() for part in stopped], file)
    file.seek(0)
    resumed = make_run(7)  # everything of it is overwritten
    for part, state in zip(resumed, torch.load(file, weights_only=True)):
        part.load_state_dict(state)
    assert resumed[2].beta == stopped[2].beta
    assert same(masks_of(resumed[2]), masks_of(stopped[2]))
    advance(resumed, at, 8)
    assert same(masks_of(resumed[2]), masks_of(straight[2]))
    for first, second in zip(resumed[0].parameters(), straight[0].parameters()):
        assert torch.equal(first, second)
    assert resumed[2].steps == straight[2].steps == 8


def test_an_optimiser_made_before_the_pruner_resumes_in_a_plain_model_too():
    """The order in which it saves its states is that of the plain model, masked or not."""

    def start():
        model = small_net()
        return model, torch.optim.Adam(model.parameters(), 1e-2)

    model, optimizer = start()
    pruner = gp.GibbsPruner(model, 0.5)
    train_step(model, optimizer)
    pruner.finalize("converged")
    train_step(model, optimizer, 1)
    resumed, other = start()
    resumed.load_state_dict(copy.deepcopy(model.state_dict()))
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    gp.hold_zeros(resumed)
    for part in ((model, optimizer), (resumed, other)):
        train_step(*part, 2)
    assert same(model.state_dict(), resumed.state_dict())


def test_saved_masks_are_one_bit_per_weight():
    pruner = make_run(0)[2]
    state = pruner.state_dict()
    assert {name: bits.numel() for name, bits in state["masks"].items()} == {"3": 54, "6": 48}


def test_a_state_of_another_kind_is_refused():
    with pytest.raises(gp.UserError, match=r"^the saved pruner's state has version None: allowed is 1$"):
        gp.GibbsPruner(small_net(), 0.5).load_state_dict({})


def test_a_state_of_other_layers_is_refused():
    pruner = gp.GibbsPruner(small_net(), 0.5)
    state = gp.GibbsPruner(small_net(), 0.5, exclude="6").state_dict()
    with pytest.raises(gp.UserError, match=r"^the saved pruner has other layers than this one: 6$"):
        pruner.load_state_dict(state)
    state = pruner.state_dict()
    state["masks"]["6"] = state["masks"]["3"]
    before = masks_of(pruner)
    with pytest.raises(gp.UserError, match=r"^the saved mask of layer '6' has another size than the layer$"):
        pruner.load_state_dict(state)
    assert same(masks_of(pruner), before)


# -- the end ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("structure", ["weight", "kernel", "filter"])
@pytest.mark.parametrize("draw", ["sample", "converged"])
def test_finalize_burns_the_masks_in(structure, draw):
    model = small_net()
    names = list(model.state_dict())
    pruner = gp.GibbsPruner(model, 0.6, structure, "sign", gp.ConstantSchedule(100.0))
    stored = {name: stored_weight(layer).detach().clone() for name, layer in pruned_layers(model, pruner).items()}
    x = batch()[0]
    expected = model.eval()(x).detach()
    assert pruner.finalize(draw=draw) is model
    assert list(model.state_dict()) == names
    assert not any(hasattr(layer, "parametrizations") for layer in model.modules())
    for name, weight in stored.items():
        mask = gp.converged_mask(weight, 0.6, structure)
        assert torch.equal(model.get_submodule(name).weight, weight * mask)
    torch.testing.assert_close(model(x), expected)
    assert type(model[3]) is nn.Conv2d


def test_the_sample_at_the_end_is_the_draw_after_the_last_step():
    model = small_net()
    pruner = gp.GibbsPruner(model, 0.5, schedule=gp.ConstantSchedule(0.1))
    first = masks_of(pruner)
    pruner.step()
    last = masks_of(pruner)
    with pytest.warns(
        UserWarning, match=r"^the masks have not converged: \d+\.\d\d% of them differ from the converged"
    ):
        pruner.finalize("sample")
    assert torch.equal(model[6].weight != 0, last["6"])
    assert not torch.equal(first["6"], last["6"])
    assert 0.4 < float((model[6].weight == 0).float().mean()) < 0.6


def test_ties_at_the_threshold_are_decided_as_the_converged_mask_does():
    """All weights equal: no field acts on any, and the count is exact all the same."""
    model = nn.Sequential(nn.Linear(8, 8, bias=False))
    nn.init.ones_(model[0].weight)
    gp.GibbsPruner(model, 0.75, schedule=gp.ConstantSchedule(1e9)).finalize("sample")
    assert model[0].weight.detach().flatten().tolist() == [1.0] * 16 + [0.0] * 48


def test_a_neighbourhood_on_the_threshold_freezes():
    """16 filters at 0.8: p(M − 1) is whole, and still the masks converge."""
    model = nn.Sequential(nn.Linear(5, 16, bias=False))
    pruner = gp.GibbsPruner(model, 0.8, "filter", "sign", gp.ConstantSchedule(50.0))
    assert pruner.agreement() == 1.0
    pruner.finalize()
    assert int(model[0].weight.any(1).sum()) == 3


def test_weights_that_are_not_finite_are_refused_at_the_end():
    for bad in (math.nan, math.inf):
        model = small_net()
        pruner = gp.GibbsPruner(model, 0.5)
        with torch.no_grad():
            stored_weight(model[6])[0, 0] = bad
        with pytest.raises(gp.UserError, match=r"^layer '6' holds NaN or infinite weights after 0 steps: the training"):
            pruner.finalize()
        assert hasattr(model[3], "parametrizations"), "nothing is burnt in"


def test_a_training_that_has_diverged_is_told_within_a_hundred_steps():
    model = small_net()
    pruner = gp.GibbsPruner(model, 0.5)
    pruner.step()
    with torch.no_grad():
        stored_weight(model[3])[0, 0] = math.nan
        stored_weight(model[6])[0, 0] = math.inf
    for _ in range(99):
        pruner.step()
    with pytest.raises(gp.UserError, match=r"^layers '3', '6' hold NaN or infinite weights after 100 steps: the"):
        pruner.step()


def test_after_the_end_the_pruner_is_done():
    pruner = gp.GibbsPruner(small_net(), 0.5)
    pruner.finalize(draw="converged")
    for name in ("finalize", "step", "state_dict", "agreement"):
        with pytest.raises(gp.UserError) as error:
            getattr(pruner, name)()
        assert str(error.value) == f"{name}() after finalize(): the masks are burnt in and the pruner is done"


def test_a_finalized_model_can_be_pruned_again():
    model = small_net()
    gp.GibbsPruner(model, lambda name: 0.5).finalize(draw="converged")
    first = model[6].weight.detach() == 0
    pruner = gp.GibbsPruner(model, lambda name: 0.8)
    train_step(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
    pruner.finalize(draw="converged")
    second = model[6].weight.detach() == 0
    assert bool(second[first].all())
    assert int((~second).sum()) == kept_count(0.8, second.numel())


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"sparsity": 1.0}, "sparsity is 1.0: allowed are numbers from 0 up to but not 1"),
        ({"sparsity": complex}, "sparsity is <class 'complex'>: allowed are numbers from 0 up to but not 1"),
        ({"sparsity": {"3": 0.5, "9": 0.5}}, "sparsity names layer '9', which is not pruned: there are 3, 6"),
        (
            {"sparsity": {"3": 0.5}},
            "sparsity says nothing of layer '6': give a value (0 keeps all), or leave it out with exclude='6'",
        ),
        (
            {"sparsity": lambda name: -1},
            "sparsity is -1: allowed are numbers from 0 up to but not 1",
        ),
        ({"structure": "channel"}, f"structure is 'channel': allowed are {ALLOWED}"),
        (
            {"hamiltonian": "cubic"},
            "hamiltonian is 'cubic': allowed are 'quadratic', 'square', 'abs', 'sign', 'binary', 'neighbours', "
            "'channels', 'redundancy' and Hamiltonian "
            "objects",
        ),
        (
            {"sampler": "wolff"},
            "sampler is 'wolff': allowed are 'auto', 'independent', 'two_point', 'enumeration', 'chromatic', 'exact', "
            "'transfer', 'low_rank', 'coloured', 'conditional'",
        ),
        (
            {"schedule": gp.ConstantSchedule(-1.0)},
            "the schedule gives beta -1.0 at epoch 0: allowed are numbers from 0 up",
        ),
        ({"schedule": lambda n: math.nan}, "the schedule gives beta nan at epoch 0: allowed are numbers from 0 up"),
        ({"schedule": 5.0}, "schedule is 5.0: allowed are schedules and functions from the epoch to beta"),
        ({"epochs": 0}, "epochs is 0: allowed are whole numbers from 1"),
        ({"sweeps": 2.5}, "sweeps is 2.5: allowed are whole numbers from 1"),
        ({"include": "conv*"}, "include rule 'conv*' matches no layer: there are 0, 3, 6, 8"),
        (
            {"include": 3},
            "include is 3: allowed are name patterns, types and functions of (name, module), one or several",
        ),
        (
            {"exclude": [None]},
            "exclude has the rule None: allowed are name patterns, types and functions of (name, module), one or "
            "several",
        ),
        ({"seed": "a"}, "seed is 'a': allowed are whole numbers"),
        ({"seed": 1.5}, "seed is 1.5: allowed are whole numbers"),
        ({"schedule": lambda n: None}, "the schedule gives beta None at epoch 0: allowed are numbers from 0 up"),
    ],
)
def test_refusals_leave_the_model_as_it_was(arguments, sentence):
    model = small_net()
    with pytest.raises(gp.UserError) as error:
        gp.GibbsPruner(model, **arguments)
    assert str(error.value) == sentence
    assert not any(hasattr(layer, "parametrizations") for layer in model.modules())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"device": "meta"}, "layer '0' is on the meta device and has no values: give it some before"),
        ({"dtype": torch.complex64}, "layer '0' has weights of torch.complex64: allowed are float32, "),
        (
            {"in_features": 0},
            "layer '0' has no weights (of shape (4, 0)): there is nothing to prune; leave it out with exclude='0'",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_layers_that_cannot_be_masked_are_refused(options, sentence):
    model = nn.Sequential(nn.Linear(**{"in_features": 4, "out_features": 4, **options}))
    with pytest.raises(gp.UserError) as error:
        gp.GibbsPruner(model, 0.5)
    assert str(error.value).startswith(sentence)
    assert type(model[0]) is nn.Linear


@pytest.mark.parametrize(("law", "way"), [("annealed", "draw"), ("rising", "converged")])
def test_a_first_draw_that_fails_leaves_the_model_as_it_was(law, way, monkeypatch):
    model = small_net()
    before = {name: id(parameter) for name, parameter in model.named_parameters()}
    with monkeypatch.context() as patch:
        patch.setattr(Law, way, lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            gp.GibbsPruner(model, 0.5, law=law)
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == before
    gp.GibbsPruner(model, 0.5, law=law)


def test_something_else_than_a_model():
    with pytest.raises(gp.UserError, match=r"^model is a NoneType: allowed are torch.nn.Module$"):
        gp.GibbsPruner(None, 0.5)


@pytest.mark.parametrize("epoch", [3.75, np.int64(3), np.float32(2.5)])
def test_epochs_of_other_kinds_are_saved_as_they_are(epoch):
    pruner, other = (gp.GibbsPruner(small_net(), 0.5, schedule=lambda n: 10 * (1 + n)) for _ in range(2))
    pruner.set_epoch(epoch)
    torch.save(pruner.state_dict(), file := io.BytesIO())
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert (other.epoch, other.beta) == (pruner.epoch, pruner.beta) == (float(epoch), 10 * (1 + float(epoch)))


def test_states_that_are_not_whole():
    pruner = gp.GibbsPruner(small_net(), 0.5)
    for state, sentence in ((None, "has version None"), ({"version": 1, "seed": 0}, "lacks epoch, steps, generators")):
        with pytest.raises(gp.UserError, match=sentence):
            pruner.load_state_dict(state)


def test_finalizing_leaves_copies_as_they_are():
    """torch gives copies the same class, and with it the property that is the masked weight."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    pruner = gp.GibbsPruner(model, 0.5, epochs=2)
    pruner.set_epoch(1)
    pruner.step()
    best, average, other = copy.deepcopy(model).eval(), AveragedModel(model).eval(), copy.deepcopy(pruner)
    x = torch.randn(3, 8)
    wanted = best(x)
    pruner.finalize("converged")
    assert type(model[0]) is nn.Linear
    torch.testing.assert_close(best(x), wanted)
    torch.testing.assert_close(average(x), wanted)
    torch.testing.assert_close(other.finalize("converged").eval()(x), wanted)
    torch.testing.assert_close(best(x), wanted)


def test_the_warning_names_the_line_that_finalizes():
    pruner = gp.GibbsPruner(small_net(), 0.5, schedule=gp.ConstantSchedule(0.1))
    with pytest.warns(UserWarning, match="have not converged") as caught:
        pruner.finalize("sample")
    assert caught[0].filename == __file__


def test_a_training_whose_beta_never_rose_is_told_of():
    """As where set_epoch is forgotten: the network ends with masks that it was hardly trained with."""
    model = small_net()
    pruner = gp.GibbsPruner(model, 0.5, schedule=gp.LogSchedule(0.1, 1e6, epochs=5))
    for _ in range(100):
        pruner.step()
    with pytest.warns(UserWarning, match=r"trained with other masks than it ends with; .* with set_epoch\(\)$"):
        pruner.finalize()
    assert int((model[6].weight == 0).sum()) == 192, "the sparsity is exact all the same"


def test_the_warning_of_a_coupled_law_names_the_coupling():
    torch.manual_seed(0)
    pruner = gp.GibbsPruner(nn.Conv2d(8, 8, 3), 0.5, "kernel", gp.Quadratic(1e-6), gp.ConstantSchedule(1e9))
    with pytest.warns(UserWarning, match="half pruned use a larger coupling than 1e-06, with"):
        pruner.finalize("sample")


def test_a_layer_of_one_filter_is_refused():
    with pytest.raises(
        gp.UserError,
        match=r"^layer '0' has a single filter: sparsity 0.5 would remove all of it; leave it out with exclude=.0.$",
    ):
        gp.GibbsPruner(nn.Sequential(nn.Linear(4, 1)), 0.5, "filter", law="annealed")


def test_the_masks_of_an_epochs_first_step_are_drawn_at_its_own_beta():
    """From the same random numbers: the masks are those of a pruner whose β was there from the beginning."""
    hot = gp.GibbsPruner(small_net(), 0.5, schedule=lambda epoch: 0.1 if epoch < 1 else 50.0)
    cold = gp.GibbsPruner(small_net(), 0.5, schedule=gp.ConstantSchedule(50.0))
    for pruner in (hot, cold):
        pruner.step()
    before = masks_of(hot)
    hot.set_epoch(0.5)
    assert same(before, masks_of(hot)), "β is as before"
    state = hot.state_dict()
    resumed = gp.GibbsPruner(small_net(), 0.5, schedule=hot.schedule)
    resumed.load_state_dict(state)
    for pruner in (hot, resumed):
        pruner.set_epoch(1)
        assert not same(before, masks_of(pruner))
        assert same(masks_of(pruner), masks_of(cold))
    for pruner in (hot, resumed, cold):
        pruner.step()
    assert same(masks_of(hot), masks_of(cold))
    assert same(masks_of(resumed), masks_of(cold))


BAD_STATES = [
    ({"steps": -5}, "the saved pruner's steps is -5: allowed are whole numbers from 0"),
    ({"steps": "many"}, "the saved pruner's steps is 'many': allowed are whole numbers from 0"),
    ({"seed": 0.5}, "the saved pruner's seed is 0.5: allowed are whole numbers"),
    ({"epoch": None}, "epoch is None: allowed are numbers, 0 for the first"),
    ({"epoch": -1}, "epoch is -1: allowed are numbers from 0"),
    ({"masks": None}, "the saved pruner has other layers than this one: 3, 6"),
    ({"masks": {"3": 1, "6": 2}}, "the saved mask of layer '3' is none"),
    ({"generators": {}}, "the saved pruner's state lacks its random stream"),
    ({"generators": None}, "the saved pruner's random stream is damaged: 'NoneType' object has no attribute 'items'"),
    ({"generators": {"abacus": torch.zeros(1)}}, "the saved pruner's random stream is damaged: Expected one of"),
    ({"generators": {"cpu": torch.zeros(3, dtype=torch.uint8)}}, "the saved pruner's random stream is damaged: "),
    ({"generators": {"cpu": "0"}}, "the saved pruner's random stream is damaged: 'str' object has no attribute 'cpu'"),
    ({"before": {"cpu": torch.zeros(3)}}, "the saved pruner's random stream is damaged: "),
]


@pytest.mark.parametrize(("change", "sentence"), BAD_STATES)
def test_a_bad_state_is_refused_and_changes_nothing(change, sentence):
    pruner = gp.GibbsPruner(small_net(), 0.5, law="annealed")
    good = gp.GibbsPruner(small_net(), 0.5, law="annealed", seed=7).state_dict()
    before, state = masks_of(pruner), pruner.state_dict()
    with pytest.raises(gp.UserError) as error:
        pruner.load_state_dict({**good, **change})
    assert str(error.value).startswith(sentence)
    assert same(before, masks_of(pruner))
    assert (pruner.seed, pruner.steps, pruner.epoch) == (state["seed"], state["steps"], state["epoch"])
    pruner.step()
    other = gp.GibbsPruner(small_net(), 0.5, law="annealed")
    other.step()
    assert same(masks_of(pruner), masks_of(other))


def test_a_bad_epoch_changes_nothing():
    pruner = gp.GibbsPruner(small_net(), 0.5, schedule=gp.LogSchedule(1, 10, 3))
    with pytest.raises(gp.UserError, match=r"^epoch is -1: allowed are numbers from 0$"):
        pruner.set_epoch(-1)
    assert (pruner.epoch, pruner.beta) == (0, 1.0)


def test_a_layer_that_was_exchanged_is_refused():
    model = small_net()
    pruner = gp.GibbsPruner(model, 0.5)
    model[6] = nn.Linear(32, 12)
    for refused in (pruner.step, pruner.summary, pruner.agreement, pruner.finalize):
        with pytest.raises(gp.UserError) as error:
            refused()
        assert str(error.value) == (
            "layer '6' is no longer in the model: exchange layers before the pruner is made, or after finalize()"
        )
    assert hasattr(model[3], "parametrizations"), "nothing is burnt in"


def test_layers_may_be_wrapped():
    class Wrapper(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x)

    model = small_net()
    pruner = gp.GibbsPruner(model, lambda name: 0.5)
    layers = pruned_layers(model, pruner)
    model[3], model[6] = Wrapper(model[3]), torch.compile(model[6], backend="aot_eager")
    pruner.step()
    assert pruner.summary().layers[0].name == "3"
    pruner.finalize("converged")
    assert all(int((layer.weight == 0).sum()) == layer.weight.numel() // 2 for layer in layers.values())


def test_another_parametrisation_over_a_mask_is_refused():
    model = small_net()
    pruner = gp.GibbsPruner(model, 0.5)
    nn.utils.parametrizations.spectral_norm(model[6])
    expected = model.eval()(batch()[0])
    for refused in (pruner.step, pruner.finalize):
        with pytest.raises(gp.UserError) as error:
            refused()
        assert str(error.value) == (
            "layer '6' has _SpectralNorm over its mask: add other parametrisations after finalize(), and remove none "
            "before"
        )
    assert torch.equal(model(batch()[0]), expected)
    nn.utils.parametrize.remove_parametrizations(model[6], "weight")
    with pytest.raises(gp.UserError, match=r"^layer '6' has lost its mask: "):
        pruner.finalize()


def test_an_unknown_last_draw():
    with pytest.raises(gp.UserError, match=r"^draw is 'best': allowed are 'sample', 'converged'$"):
        gp.GibbsPruner(small_net(), 0.5).finalize(draw="best")


# -- a network trained on digits -------------------------------------------------------------------------------------


class DigitsNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(12)
        self.conv2 = nn.Conv2d(12, 24, 3, padding=1, stride=2, bias=False)
        self.bn2 = nn.BatchNorm2d(24)
        self.conv3 = nn.Conv2d(24, 24, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(24)
        self.dense = nn.Linear(24, 10)

    def forward(self, x):
        for conv, norm in ((self.conv1, self.bn1), (self.conv2, self.bn2), (self.conv3, self.bn3)):
            x = F.relu(norm(conv(x)))
        return self.dense(x.mean((2, 3)))


def digits():
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.from_numpy(data.images).float()[:, None] / 16
    labels = torch.from_numpy(data.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:1437], order[1437:]
    return images[train], labels[train], images[test], labels[test]


@pytest.mark.parametrize(
    ("structure", "hamiltonian", "sampler", "schedule", "sparsity", "accuracy"),
    [
        ("weight", gp.Linear("square"), "auto", gp.LogSchedule(1, 1e8, 10), 0.9, 0.88),
        ("weight", gp.Binary("offset"), "auto", gp.LinearSchedule(-5, 20, 10), 0.9, 0.8),
        ("kernel", gp.Quadratic(0.1), "auto", gp.LogSchedule(0.3, 1e8, 10), 0.9, 0.8),
        ("filter", gp.Quadratic(0.02), "auto", gp.LogSchedule(0.1, 1e8, 10), 0.75, 0.8),
        ("filter", gp.Quadratic(0.02), "chromatic", gp.LogSchedule(0.1, 1e8, 10), 0.75, 0.8),
    ],
)
def test_digits_reach_their_sparsity_exactly_and_converge(
    structure, hamiltonian, sampler, schedule, sparsity, accuracy
):
    images, labels, test_images, test_labels = digits()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = DigitsNet()
    pruner = gp.GibbsPruner(
        model, sparsity, structure, hamiltonian, schedule, exclude="dense", sampler=sampler, sweeps=10, seed=1
    )
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    generator = torch.Generator().manual_seed(1)
    for epoch in range(16):
        pruner.set_epoch(epoch)
        for index in torch.randperm(len(labels), generator=generator).split(64):
            loss = F.cross_entropy(model(images[index]), labels[index])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            pruner.step()
    assert pruner.agreement() == 1.0, "the masks have converged"
    final = pruner.finalize().eval()
    for name in ("conv2", "conv3"):
        weight = final.get_submodule(name).weight
        kind = gp.structures.STRUCTURES[structure]()
        kept = kind.rows(weight.detach() != 0)
        assert int(kept.any(1).sum()) == kept_count(sparsity, kind.count(weight.shape))
        assert bool((kept == kept[:, :1]).all()), "whole neighbourhoods only"
    correct = (final(test_images).argmax(1) == test_labels).float().mean()
    assert float(correct) > accuracy
