"""Inside the training step: gradients under masks, weight decay, precision, memory layout, random streams."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from gibbsprune import data
from gibbsprune.attaching import stored_weight
from gibbsprune.samplers import stream
from gibbsprune.training.engine import Engine
from gibbsprune.training.network import new_model, takes_channels_last
from gibbsprune.training.recipes import RECIPES
from gibbsprune.training.spec import RunSpec

CPU = torch.device("cpu")
PLAIN = RECIPES["digits"].replace(
    law="annealed", optimizer="sgd", lr=0.1, momentum=0.0, nesterov=False, weight_decay=0.0, batch=32, epochs=2, shift=0
)


@pytest.fixture(scope="module")
def digits():
    whole = data.load("digits")
    return dataclasses.replace(whole, x_train=whole.x_train[:64], y_train=whole.y_train[:64])


def spec(recipe=PLAIN, **options) -> RunSpec:
    return RunSpec(**{"data": "digits", "model": "resnet8", "recipe": recipe, **options})


def stepped(engine: Engine) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The sites' weights before and after one step."""
    engine.begin_epoch(0)
    before = [weight.clone() for weight in engine.network.weights()]
    engine.advance()
    return before, engine.network.weights()


@pytest.mark.parametrize("structure", ["weight", "kernel", "filter"])
def test_a_masked_weight_has_no_gradient_and_keeps_its_value(digits, structure):
    """Without momentum and decay exactly the kept weights move, by the rate times the masked network's gradient."""
    engine = Engine([spec(structure=structure), spec(structure=structure, seed=1)], digits, CPU)
    networks = [new_model(one, digits).train() for one in engine.specs]
    before, after = stepped(engine)
    x, y = first_batch(engine)
    for k, network in enumerate(networks):
        masks = {
            name: mask for (name, run, _), mask in zip(engine.network.sites, engine.network.mask_views()) if run == k
        }
        with torch.no_grad():
            for name, mask in masks.items():
                network.get_submodule(name).weight.mul_(mask)
        torch.nn.functional.cross_entropy(network(x[:, k : k + 1]), y[:, k]).backward()
        for (name, run, _), old, new in zip(engine.network.sites, before, after):
            if run == k:
                step = masks[name] * network.get_submodule(name).weight.grad * 0.1
                torch.testing.assert_close(new, old - step, rtol=1e-4, atol=1e-5)
                assert torch.equal(new[~masks[name]], old[~masks[name]])
                assert step[masks[name]].ne(0).any()


def first_batch(engine: Engine) -> tuple[torch.Tensor, torch.Tensor]:
    """The epoch's first batch once more."""
    engine.batches.cursor.zero_()
    return engine.batches.next()


def test_losses_and_right_answers_are_summed_over_the_epoch(digits):
    engine = Engine([spec(method="dense"), spec(method="dense", seed=1)], digits, CPU)
    engine.begin_epoch(0)
    expected = torch.zeros(2), torch.zeros(2)
    for step in range(engine.batches.steps):
        cursor = engine.batches.cursor.clone()
        x, y = engine.batches.next()
        with torch.no_grad():
            losses, right = engine.network.losses(x, y)  # in training mode: the same batch statistics
        engine.batches.cursor.copy_(cursor)
        expected[0].add_(losses / 2)
        expected[1].add_(right / 64)
        assert step < 2
        engine.advance()
    records = engine.end_epoch()
    assert [r["loss"] for r in records] == pytest.approx(expected[0].tolist(), rel=1e-5)
    assert [r["train_accuracy"] for r in records] == pytest.approx(expected[1].tolist())


def decayed(engine: Engine) -> set[str]:
    """The names of the parameters that shrink without any gradient."""
    names = {id(p): name for name, p in engine.network.model.named_parameters()}
    with torch.no_grad():
        engine.optimizer.values.fill_(1.0)
    engine.optimizer.set_rates([1.0] * engine.runs)
    engine.optimizer.step([torch.zeros_like(p) for p in engine.optimizer.parameters])
    return {names[id(p)] for p in engine.optimizer.parameters if p.detach().lt(1).all()}


def test_weight_decay_is_on_convolution_weights_alone_or_on_everything(digits):
    for specs in ([spec(model="own_networks:smooth")], [spec(model="own_networks:smooth", seed=k) for k in (0, 1)]):
        for where in ("convolutions", "all"):
            recipe = PLAIN.replace(weight_decay=0.01, decay_on=where)
            engine = Engine([one.replace(recipe=recipe) for one in specs], digits, CPU)
            everything = {name for name, _ in engine.network.model.named_parameters()}
            stored = "parametrizations.weight.original"
            convolutions = {"first.weight", f"second.{stored}", f"third.{stored}", f"skip.0.{stored}"}
            convolutions.add(f"depthwise.{stored}")
            assert {"first.bias", "depthwise.bias", "dense.weight", "norms.0.weight"} < everything
            assert decayed(engine) == (everything if where == "all" else convolutions)


def test_batch_norm_follows_the_recipe(digits):
    model = new_model(spec(PLAIN.replace(bn_momentum=0.25, bn_eps=1e-2)), digits)
    norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert len(norms) == 7
    assert {(norm.momentum, norm.eps) for norm in norms} == {(0.25, 1e-2)}


def test_bfloat16_computes_nearly_the_same_and_trains_float32_weights(digits):
    low, plain = (Engine([spec(precision=p, seed=k) for k in (0, 1)], digits, CPU) for p in ("bfloat16", "auto"))
    assert (low.network.dtype, plain.network.dtype) == (torch.bfloat16, torch.float32)
    for one, other in zip(low.evaluate(), plain.evaluate()):
        assert one["loss"] == pytest.approx(other["loss"], rel=0.02)
        assert one["loss"] != other["loss"]
    for engine in (low, plain):
        engine.begin_epoch(0)
        engine.advance()
    assert [r["loss"] for r in low.end_epoch()] == pytest.approx([r["loss"] for r in plain.end_epoch()], rel=0.02)
    assert {p.dtype for p in low.network.model.parameters()} == {torch.float32}


def test_streams_are_independent_of_each_other():
    kinds = ("weights", "data", "masks", "layers")
    drawn = {
        (seed, what): tuple(torch.randint(1 << 62, (4,), generator=stream(seed, what)).tolist())
        for seed, what in itertools.product(range(20), kinds)
    }
    assert len(set(drawn.values())) == len(drawn)
    assert tuple(torch.randint(1 << 62, (4,), generator=stream(7, "masks")).tolist()) == drawn[7, "masks"]


def test_runs_of_one_seed_start_from_the_same_weights_and_batches(digits):
    """Whatever their method: differences between them are the method's."""
    engine = Engine([spec(method="dense", seed=5), spec(structure="kernel", seed=5), spec(seed=6)], digits, CPU)
    first = stored_weight(engine.network.model.get_submodule("blocks.0.conv1")).detach().chunk(3)
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])
    engine.begin_epoch(0)
    x, y = engine.batches.next()
    assert torch.equal(y[:, 0], y[:, 1])
    assert torch.equal(x[:, 0], x[:, 1])
    assert not torch.equal(y[:, 0], y[:, 2])


def test_a_dense_run_is_never_masked(digits):
    engine = Engine([spec(method="dense"), spec(seed=1)], digits, CPU)
    engine.begin_epoch(0)
    engine.advance()
    engine.evaluate()
    for name, mask in engine.network.masks.items():
        dense, pruned = mask.chunk(2)
        assert dense.all(), name
        assert not pruned.all(), name


def test_agreement_is_the_share_of_equal_elements(digits):
    engine = Engine([spec(include=("blocks.0.conv1",)), spec(method="dense"), spec(seed=1)], digits, CPU)
    ones = [torch.ones_like(mask) for mask in engine.network.mask_views()]
    others = [mask.clone() for mask in ones]
    others[0].view(-1)[:576] = False
    assert engine.masks.agreement(ones, others) == [0.75, 1.0, 1.0]


def test_a_network_that_views_its_activations_gets_contiguous_images(digits):
    assert takes_channels_last(new_model(spec(), digits), 1, digits.size)
    viewing = new_model(spec(model="own_networks:dropping"), digits).train()
    viewing.dropout.eval()
    assert not takes_channels_last(viewing, 1, digits.size)
    assert viewing.training
    assert not viewing.dropout.training
    engine = Engine([spec(model="own_networks:dropping")], digits, CPU)
    assert not engine.network.channels_last
    engine.begin_epoch(0)
    engine.advance()
    assert 0 <= engine.evaluate()[0]["accuracy"] <= 1
    engine.recalibrate()


def test_state_is_loaded_in_place(digits):
    """A captured graph goes on using the same memory."""
    engine, other = (Engine([spec(seed=k), spec(seed=k + 1)], digits, CPU) for k in (0, 5))
    places = [t.data_ptr() for t in [*engine.network.model.parameters(), *engine.network.buffers().values()]]
    engine.load_state_dict(other.state_dict())
    assert [t.data_ptr() for t in [*engine.network.model.parameters(), *engine.network.buffers().values()]] == places
    for a, b in zip(engine.network.model.parameters(), other.network.model.parameters()):
        assert torch.equal(a, b)


def test_masks_are_burnt_into_a_layer_with_two_names(digits):
    engine = Engine([spec(model="own_networks:twice")], digits, CPU)
    mask = torch.rand(8, 8, 3, 3) < 0.5
    (pruned,) = {name for name, _, _ in engine.network.sites} & {"second", "again"}
    state = engine.network.extract(0, digits, {pruned: mask}).state_dict()
    for name in ("second", "again"):
        assert torch.equal(state[f"{name}.weight"] != 0, mask)


def test_layers_whose_weights_are_made_from_others_are_trained_and_extracted(digits):
    engine = Engine([spec(model="own_networks:normed", exclude=("1", "2"))], digits, CPU)
    stepped(engine)
    state = engine.network.extract(0, digits, {}).state_dict()
    trained = engine.network.model.state_dict()
    for name in ("1.parametrizations.weight.original", "2.parametrizations.weight.original0", "1.bias"):
        assert torch.equal(state[name], trained[name])
    assert torch.equal(state["3.weight"], trained["3.parametrizations.weight.original"])
