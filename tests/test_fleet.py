"""Fleets: a run among others is the run alone, whatever they are; nothing is lost between save and load.

Rounding. Convolutions of a fused network sum in another order than separate ones, so that weights differ in their last
bits after the first step. What amplifies that is avoided here, or allowed for:

* Adam with ε = 1e-8 divides gradients of 1e-9 by their own size, so that a rounding error becomes a full step. Here
  training is by SGD, or by Adam with ε = 1e-3.
* A ReLU's input of 1e-8 may have either sign, and then its pixel counts in the gradient or does not. Among the million
  inputs of 20 steps of a ResNet there are a few such. So the strict comparison is of a network with smooth activations,
  and ResNets are compared at a learning rate so small that a flipped sign stays an error of 1e-3 of the way travelled.

Distances are between weights after 20 steps, relative to how far they travelled. A few 1e-6 are seen in the smooth
network and 1e-4 is allowed; 2e-2 in the ResNet. A wrong mask, batch, β or learning rate makes more than 0.05.
"""

from __future__ import annotations

import copy
import dataclasses
import io
import re

import pytest
import torch
from torch import nn

from gibbsprune import data
from gibbsprune.errors import UserError
from gibbsprune.recalibration import recalibrate
from gibbsprune.threshold import kept_count
from gibbsprune.training import engine as engines
from gibbsprune.training.batches import Batches
from gibbsprune.training.fleet import SHARED, Fleet
from gibbsprune.training.recipes import RECIPES
from gibbsprune.training.spec import RunSpec

SGD = RECIPES["digits"].replace(
    law="annealed", optimizer="sgd", lr=0.01, batch=32, epochs=2, anneal_epochs=2, lr_schedule="steps"
)
ADAM = SGD.replace(optimizer="adam", lr=1e-3, eps=1e-3)
SMOOTH = "own_networks:smooth"
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def digits():
    """320 training images, so that two epochs of batches of 32 are 20 steps."""
    whole = data.load("digits")
    few = {"x_train": whole.x_train[:320], "y_train": whole.y_train[:320]}
    return dataclasses.replace(whole, **few, x_test=whole.x_test[:150], y_test=whole.y_test[:150])


def spec(seed: int = 0, recipe=SGD, **options) -> RunSpec:
    return RunSpec(**{"data": "digits", "model": SMOOTH, "seed": seed, "recipe": recipe, **options})


def distance(one: nn.Module, other: nn.Module, start: nn.Module) -> float:
    """The largest distance between two networks' tensors, relative to how far they have travelled from their start."""
    apart = []
    for a, b, origin in zip(*(m.state_dict().values() for m in (one, other, start))):
        way = (b.double() - origin).norm().item()
        apart.append((a.double() - b).norm().item() / way if way else float(not torch.equal(a, b)))
    return max(apart)


def same_record(one: dict, other: dict, rel: float = 1e-4) -> None:
    """What two runs did in an epoch, or how they did in a test; a dense run has no β."""
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert value == (None if other[key] is None else pytest.approx(other[key], rel=rel)), key


def same_bits(one, other, where: str = "state") -> None:
    """Nested states are equal, tensors bit for bit."""
    assert type(one) is type(other), where
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            same_bits(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), where
        for number, (a, b) in enumerate(zip(one, other)):
            same_bits(a, b, f"{where}.{number}")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    else:
        assert one == other, where


def saved(fleet: Fleet) -> dict:
    """The state as it comes back from a file."""
    buffer = io.BytesIO()
    torch.save(fleet.state_dict(), buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


# -- a run among others and alone --------------------------------------------------------------------------------------

MIXED = [
    spec(0),
    spec(0, method="dense"),
    spec(1, sparsity=0.5, recipe=SGD.replace(lr=0.003, beta_start=1.0, beta_end=500.0)),
    spec(2, structure="kernel"),
    spec(2, structure="filter", sparsity=0.75, recipe=SGD.replace(epochs=1, anneal_epochs=1), stretch=2),
    spec(3, structure="filter", sparsity=0.75, sampler="chromatic", coupling=0.02),
    spec(4, hamiltonian="abs", recipe=SGD.replace(milestones=(1,), anneal="linear")),
    spec(5, structure="kernel", hamiltonian="sign", exclude=("second", "skip.*")),
    spec(6, hamiltonian="binary", sparsity=0.8),
    spec(7, structure="kernel", sampler="enumeration", include=("*d", "dense")),
]


def unmasked(fleet: Fleet, k: int) -> nn.Module:
    """Run k with its stored weights, pruned ones included."""
    engine, i = fleet.home[k]
    return engine.network.extract(i, fleet.arrays, {})


def follow(specs, digits, allowed: float = 1e-4, rel: float = 1e-4) -> None:
    """Trains the specs together and each alone, and compares every epoch and the ends."""
    fleet = Fleet(specs, digits)
    assert len(fleet.engines) == 1, "the runs were not fused"
    together = [fleet.train_epoch() for _ in range(fleet.epochs)]
    assert fleet.steps_per_epoch * fleet.epochs == 20
    masks = [fleet.masks(k) for k in range(len(specs))]
    tests = fleet.evaluate()
    for k, one in enumerate(specs):
        alone = Fleet([one], digits)
        start = unmasked(alone, 0)
        for records in together:
            same_record(records[k], alone.train_epoch()[0], rel)
        same_bits(masks[k], alone.masks(0), one.name())
        assert distance(unmasked(fleet, k), unmasked(alone, 0), start) < allowed, one.name()
        same_record(tests[k], alone.evaluate()[0], rel)


def test_runs_of_all_kinds_are_what_they_are_alone(digits):
    follow(MIXED, digits)


def test_also_with_adam(digits):
    follow([one.replace(recipe=ADAM) for one in (MIXED[0], MIXED[1], MIXED[3], MIXED[5])], digits)


def test_also_residual_networks(digits):
    slow = SGD.replace(lr=1e-4)
    chosen = (MIXED[0], MIXED[1], MIXED[3], MIXED[5], MIXED[8])
    follow([one.replace(model="resnet8", recipe=slow) for one in chosen], digits, allowed=2e-2, rel=1e-3)


def test_also_beside_a_run_that_prunes_other_layers(digits):
    """The run's kernels of 9 come before those of 1; the other run's layers must not turn that round."""
    follow([spec(0, structure="kernel", include=("skip.*",)), spec(1, structure="kernel")], digits)


SHORT = SGD.replace(epochs=1, anneal_epochs=1)
UNEVEN = [
    spec(0),
    spec(1, recipe=SHORT),
    spec(2, recipe=SHORT, method="lottery", settings={"rounds": 1, "rewind_step": 4}),
    spec(3, recipe=SHORT, method="targeted-dropout", structure="kernel"),
    spec(4, recipe=SHORT, method="magnitude", sparsity=0.1, settings={"tune_epochs": 0}),
]


def test_runs_of_fewer_epochs_wait_and_are_what_they_are_alone(digits):
    """While they wait they learn nothing and use up no random numbers."""
    fleet = Fleet(UNEVEN, digits)
    assert (fleet.epochs, fleet.waits) == (2, [0, 1, 0, 1, 1])
    first, again = fleet.train_epoch(), saved(fleet)
    assert [record["lr"] for record in first] == [0.01, 0.0, 0.01, 0.0, 0.0]
    records, results = fleet.train_epoch(), fleet.finish()
    for k, one in enumerate(UNEVEN):
        alone = Fleet([one], digits)
        start = unmasked(alone, 0)
        own = [alone.train_epoch()[0] for _ in range(alone.epochs)]
        same_record(records[k], own[-1])
        same_record({"accuracy": results[k]["accuracy"]}, {"accuracy": alone.finish()[0]["accuracy"]})
        for pair in zip(*(m.parameters() for m in (unmasked(fleet, k), unmasked(alone, 0), start))):
            a, b, origin = (p.detach().double() for p in pair)
            assert (a - b).norm() <= 1e-4 * (b - origin).norm()
    other = Fleet(UNEVEN, digits)
    other.load_state_dict(again)
    other.train_epoch()
    other.finish()
    same_bits(saved(fleet), saved(other))


def test_a_run_that_waits_alone_does_nothing(digits):
    """Networks that cannot be fused have an engine each, which then has nothing to do at all."""
    dropout = "own_networks:dropping"
    fleet = Fleet([spec(0, model=dropout), spec(1, model=dropout, recipe=SHORT)], digits)
    assert len(fleet.engines) == 2
    before = saved(fleet)["engines"][1]
    fleet.train_epoch()
    same_bits(before, saved(fleet)["engines"][1])
    fleet.train_epoch()
    alone = Fleet([spec(1, model=dropout, recipe=SHORT)], digits)
    alone.train_epoch()
    same_bits(saved(fleet)["engines"][1], saved(alone)["engines"][0])


@pytest.mark.filterwarnings("ignore")  # of torch's compiler
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("least", [engines.WORTH_COMPILING, 0], ids=["as it is", "compiled"])
def test_on_cuda_a_resumed_fleet_is_the_undisturbed_one_bit_for_bit(digits, monkeypatch, least):
    monkeypatch.setattr(engines, "WORTH_COMPILING", least)
    specs = [MIXED[0], MIXED[3], *UNEVEN]
    fleet = Fleet(specs, digits, "cuda")
    fleet.train_epoch()
    state = saved(fleet)
    fleet.train_epoch()
    other = Fleet(specs, digits, "cuda")
    other.load_state_dict(state)
    other.train_epoch()
    assert all(engine.step.graph is not None for engine in fleet.engines + other.engines)
    same_bits(saved(fleet), saved(other))


@pytest.mark.parametrize(("model", "lr", "allowed"), [(SMOOTH, 0.01, 1e-4), ("resnet8", 1e-4, 2e-2)])
def test_the_comparison_would_notice(digits, model, lr, allowed):
    """Another seed, learning rate, β, sparsity or method is far outside what is allowed as rounding."""
    recipe = SGD.replace(lr=lr)
    plain = Fleet([spec(1, recipe).replace(model=model)], digits)
    start = unmasked(plain, 0)
    plain.train_epoch()
    changes = [{"recipe": recipe.replace(lr=1.1 * lr)}, {"sparsity": 0.85}, {"method": "dense"},
               {"recipe": recipe.replace(beta_start=2.0, beta_end=1e4)}, {"hamiltonian": "abs"}]  # fmt: skip
    for change in changes:
        other = Fleet([spec(1, recipe).replace(model=model, **change)], digits)
        other.train_epoch()
        assert distance(unmasked(other, 0), unmasked(plain, 0), start) > 2.5 * allowed, change


def test_a_sparsity_of_nothing_prunes_nothing(digits):
    specs = [spec(sparsity=0.0), spec(1, sparsity=0.0, structure="filter"), spec(2, sparsity=0.5)]
    fleet = Fleet(specs, digits)
    fleet.train_epoch()
    whole = [all(mask.all() for mask in fleet.masks(k).values()) for k in range(3)]
    assert whole == [True, True, False]
    results = fleet.finish()
    assert [result["sparsity"] for result in results[:2]] == [0, 0]
    assert [result["agreement"] for result in results[:2]] == [1, 1]
    assert results[2]["sparsity"] > 0.2


def test_the_order_of_the_runs_is_that_of_the_specs(digits):
    specs = [spec(3, sparsity=0.5), spec(1, method="dense"), spec(2, structure="kernel")]
    records = Fleet(specs, digits).train_epoch()
    turned = Fleet(specs[::-1], digits).train_epoch()
    for one, other in zip(records, turned[::-1]):
        same_record(one, other)


def test_schedules_are_each_runs_own(digits):
    slow = SGD.replace(epochs=2, anneal_epochs=2, milestones=(1,), beta_start=1.0, beta_end=100.0, anneal="linear")
    fast = slow.replace(epochs=4, anneal_epochs=4, milestones=(3,), lr=0.02, beta_end=41.0)
    tiny = dataclasses.replace(digits, x_train=digits.x_train[:32], y_train=digits.y_train[:32])
    fleet = Fleet([spec(0, slow, stretch=2), spec(0, fast), spec(0, fast, method="dense")], tiny)
    records = [fleet.train_epoch() for _ in range(4)]
    assert [r[0]["lr"] for r in records] == pytest.approx([0.01, 0.01, 0.001, 0.001])
    assert [r[1]["lr"] for r in records] == pytest.approx([0.02, 0.02, 0.02, 0.002])
    assert [r[0]["beta"] for r in records] == pytest.approx([1.0, 1.0, 50.5, 50.5])
    assert [r[1]["beta"] for r in records] == pytest.approx([1.0, 11.0, 21.0, 31.0])
    assert [(r[2]["beta"], r[2]["agreement"]) for r in records] == [(None, None)] * 4


# -- networks of a user ------------------------------------------------------------------------------------------------


def test_a_users_network_that_cannot_be_fused_is_trained_beside(digits):
    """With its dropout from the run's own stream, and bit for bit as alone, since nothing is fused."""
    specs = [
        spec(seed, structure=structure).replace(model="own_networks:dropping")
        for seed, structure in ((0, "weight"), (1, "kernel"), (1, "filter"))
    ]
    before = torch.get_rng_state()
    fleet = Fleet(specs, digits)
    assert len(fleet.engines) == 3
    together = [fleet.train_epoch() for _ in range(fleet.epochs)]
    finals = fleet.finish()
    assert torch.equal(torch.get_rng_state(), before), "the caller's random numbers are used up"
    torch.manual_seed(123)  # what a caller draws elsewhere makes no difference
    for k, one in enumerate(specs):
        alone = Fleet([one], digits)
        for records in together:
            assert records[k] == alone.train_epoch()[0]
        assert finals[k] == alone.finish()[0]
        same_bits(dict(fleet.model(k).state_dict()), dict(alone.model(0).state_dict()))
        same_bits(fleet.masks(k), alone.masks(0))
    assert [row["run"] for row in fleet.plan()] == [0, 1, 1]


def test_dropout_goes_on_bit_for_bit_after_loading(digits):
    specs = [spec(seed).replace(model="own_networks:dropping") for seed in (0, 1)]
    whole, first, second = (Fleet(specs, digits) for _ in range(3))
    for _ in range(2):
        whole.train_epoch()
    first.train_epoch()
    second.load_state_dict(saved(first))
    second.train_epoch()
    same_bits(second.state_dict(), whole.state_dict())


def test_lazy_layers_are_refused_with_a_sentence(digits):
    with pytest.raises(UserError, match=r"own_networks:lazy: 1\.weight has no size yet"):
        Fleet([spec(0).replace(model="own_networks:lazy")], digits)


def test_frozen_parameters_are_not_trained(digits):
    specs = [spec(seed, include=("3",)).replace(model="own_networks:frozen") for seed in (0, 1)]
    fleet = Fleet(specs, digits)
    before = [fleet.model(k)[1].weight.clone() for k in range(2)]
    fleet.train_epoch()
    for k, result in enumerate(fleet.finish()):
        assert torch.equal(fleet.model(k)[1].weight, before[k])
        assert result["parameters"] == 64 * 20 + 20 + 20 * 10 + 10
        assert result["nonzero"] == result["parameters"] - 200 + result["layers"][0]["kept"]


# -- what comes out ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(digits):
    """A fleet at the end of training, annealed so far that its masks have converged, and what it said."""
    cold = {"recipe": SGD.replace(beta_end=1e9), "model": "resnet8"}
    specs = [
        spec(0, **cold),
        spec(1, **cold, structure="kernel", coupling=1.0),  # so strong that single large weights follow their kernel
        spec(2, **cold, structure="filter", sparsity=0.8),
        spec(3, **cold, method="dense"),
    ]
    fleet = Fleet(specs, digits)
    for _ in range(fleet.epochs):
        fleet.train_epoch()
    for engine in fleet.engines:
        engine.masks.betas.fill_(1e9)  # as after the last epoch of a longer run
    before = {"state": saved(fleet), "tested": fleet.evaluate(), "converged": [fleet.masks(k) for k in range(4)]}
    results = fleet.finish()
    return fleet, before, results


def seen(model: nn.Module, fleet: Fleet, digits) -> torch.Tensor:
    """What a network makes of the test images, by hand."""
    made = fleet.engines[0].batches
    x = ((digits.x_test.float() / 255 - made.mean) / made.std).permute(0, 3, 1, 2)
    with torch.no_grad():
        return model.eval()(x)


def accuracy(model: nn.Module, fleet: Fleet, digits) -> dict[str, float]:
    """Test accuracy and loss by hand."""
    logits = seen(model, fleet, digits)
    right = (logits.argmax(1) == digits.y_test).double().mean().item()
    return {"accuracy": right, "loss": nn.functional.cross_entropy(logits, digits.y_test).item()}


def test_an_extracted_model_is_the_masked_network(finished, digits):
    """Run k's share of the fused network's outputs is what ``model(k)`` computes, and it holds exact zeros."""
    fleet, _, _ = finished
    engine = fleet.engines[0]
    x = torch.randn(5, 4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    engine.network.model.eval()
    with torch.no_grad():
        together = engine.network.model(x.flatten(1, 2)).unflatten(1, (4, -1))
        for k in range(4):
            model = fleet.model(k)
            assert not model.training
            torch.testing.assert_close(model(x[:, k]), together[:, k], rtol=1e-4, atol=1e-5)
            for name, mask in fleet.masks(k).items():
                assert torch.equal(model.get_submodule(name).weight != 0, mask)
    engine.network.model.train()


def test_accuracies_are_those_of_the_extracted_models(finished, digits):
    fleet, before, results = finished
    for k, result in enumerate(results):
        by_hand = accuracy(fleet.model(k), fleet, digits)
        assert result["accuracy"] == pytest.approx(by_hand["accuracy"])
        assert result["loss"] == pytest.approx(by_hand["loss"], rel=1e-4)
        assert before["tested"][k] == pytest.approx(by_hand, rel=1e-4)  # the masks have converged
        assert result["accuracy_converged"] == before["tested"][k]["accuracy"]


def test_recalibrated_accuracy_is_that_of_training_batches(finished, digits):
    """By hand: statistics of the extracted model over an epoch of the run's own augmented batches."""
    fleet, before, results = finished
    for k in (0, 2):
        generator = torch.Generator()
        generator.set_state(before["state"]["engines"][0]["data_streams"][k])
        batches = Batches(digits, [SGD], [generator], torch.device("cpu"))
        batches.draw_epoch()
        model = recalibrate(fleet.model(k), [batches.next()[0] for _ in range(batches.steps)])
        by_hand = accuracy(model, fleet, digits)
        assert results[k]["accuracy_recalibrated"] == pytest.approx(by_hand["accuracy"])
    assert any(r["accuracy_recalibrated"] != r["accuracy"] for r in results)


def test_converged_masks_have_exactly_their_sparsity(finished):
    fleet, before, results = finished
    for k, (one, result) in enumerate(zip(fleet.specs, results)):
        assert result["agreement"] == 1.0
        same_bits(fleet.masks(k), before["converged"][k])
        layers = {layer["name"]: layer for layer in result["layers"]}
        assert layers.keys() == fleet.masks(k).keys()
        for name, mask in fleet.masks(k).items():
            weights, neighbourhoods = mask.numel(), layers[name]["neighbourhoods"]
            kept = kept_count(one.sparsity, neighbourhoods) * (weights // neighbourhoods)
            assert (layers[name]["weights"], layers[name]["kept"]) == (weights, kept)
            assert int(mask.sum()) == kept
            assert layers[name]["sparsity"] == pytest.approx(1 - kept / weights)
            assert layers[name]["target"] == one.sparsity
        total, left = sum(m.numel() for m in fleet.masks(k).values()), sum(x["kept"] for x in result["layers"])
        assert result["sparsity"] == pytest.approx(1 - left / total if total else 0.0)
        model = fleet.model(k)
        assert result["parameters"] == sum(p.numel() for p in model.parameters())
        assert result["nonzero"] == result["parameters"] - total + left
    assert [len(result["layers"]) for result in results] == [8, 8, 6, 0]
    assert results[3]["sparsity"] == 0.0


def test_finishing_leaves_weights_statistics_and_data_streams_alone(finished):
    """Recalibration puts back what it changed; one more mask is drawn, which the masks' streams tell."""
    fleet, before, _ = finished
    state = fleet.state_dict()
    for own, old in zip(state["engines"], before["state"]["engines"]):
        for what in ("optimizer", "buffers", "data_streams", "layer_state"):
            same_bits(own[what], old[what], what)
        moved = [not torch.equal(a, b) for a, b in zip(own["mask_streams"], old["mask_streams"])]
        assert moved == [True, True, True, False]
    for engine in fleet.engines:
        norms = [m for m in engine.network.model.modules() if isinstance(m, nn.BatchNorm2d)]
        assert all(norm.momentum == SGD.bn_momentum for norm in norms)


def test_batch_norms_that_lag_behind_the_sparsity_are_estimated_anew(digits):
    """In the runs where they do, whose networks and accuracies have the new statistics."""
    short = SGD.replace(epochs=4, law="rising")
    ways = ({}, {"method": "dense"}, {"method": "gradual", "settings": {"until": 0.25}})
    specs = [spec(seed, short, model="resnet8", **way) for seed, way in enumerate(ways)]
    fleet = Fleet(specs, digits)
    for _ in range(4):
        fleet.train_epoch()
    before, kept = fleet.evaluate(), saved(fleet)
    models = [fleet.model(k).state_dict() for k in range(3)]
    results = fleet.finish()
    lagged = [result.get("lagged") for result in results]
    assert lagged == [{"steps": 10, "accuracy": before[0]["accuracy"]}, None, None]
    for k, result in enumerate(results):
        by_hand = accuracy(fleet.model(k), fleet, digits)
        assert result["accuracy"] == pytest.approx(by_hand["accuracy"])
        assert result["loss"] == pytest.approx(by_hand["loss"], rel=1e-4)
        own = fleet.model(k).state_dict()
        moved = [name for name in own if not torch.equal(own[name], models[k][name])]
        assert {name.rpartition(".")[2] for name in moved} == ({"running_mean", "running_var"} if k == 0 else set())
    assert results[0]["accuracy"] == results[0]["accuracy_converged"] == results[0]["accuracy_recalibrated"]
    assert results[1]["accuracy"] == before[1]["accuracy"] != results[1]["accuracy_recalibrated"]
    classes = [seen(fleet.model(k), fleet, digits).argmax(1) for k in range(3)]
    assert all(torch.equal(told, own) for told, own in zip(fleet.predictions, classes))
    same_bits(fleet.state_dict()["engines"][0]["data_streams"], kept["engines"][0]["data_streams"])


def test_the_final_mask_is_a_draw_from_the_law(digits):
    """At a temperature where masks still fluctuate it is not the converged one, and both accuracies are told."""
    warm = SGD.replace(epochs=1, anneal="constant", beta_end=30.0, final="sample")
    cold = warm.replace(final="converged")
    fleet = Fleet([spec(0, warm), spec(1, warm, structure="kernel"), spec(0, cold)], digits)
    fleet.train_epoch()
    fleet.evaluate()
    converged = [fleet.masks(k) for k in range(3)]
    *drawn, limit = fleet.finish()
    assert all(torch.equal(mask, converged[2][name]) for name, mask in fleet.masks(2).items())
    assert limit["accuracy"] == limit["accuracy_converged"] == drawn[0]["accuracy_converged"]
    assert limit["agreement"] == drawn[0]["agreement"], "of one more draw, all the same"
    for k, result in enumerate(drawn):
        same = total = 0
        for name, mask in fleet.masks(k).items():
            same, total = same + int((mask == converged[k][name]).sum()), total + mask.numel()
        assert 0.5 < result["agreement"] < 1
        assert result["agreement"] == pytest.approx(same / total)
        assert result["accuracy"] == pytest.approx(accuracy(fleet.model(k), fleet, digits)["accuracy"])


def test_training_on_makes_the_final_masks_void(digits):
    """After more training, ``model`` has converged masks again, until the next finish."""
    warm = SGD.replace(epochs=2, anneal="constant", beta_end=30.0)
    fleet = Fleet([spec(0, warm)], digits)
    fleet.train_epoch()
    fleet.finish()
    drawn = fleet.masks(0)["second"]
    assert torch.equal(fleet.model(0).second.weight != 0, drawn)
    fleet.train_epoch()
    weight = fleet.model(0).second.weight
    assert int((weight != 0).sum()) == kept_count(0.9, weight.numel())


def test_evaluation_in_parts_is_evaluation(digits, monkeypatch):
    """Also where the last part is smaller."""
    fleet = Fleet([spec(0), spec(1, structure="kernel")], digits)
    whole = fleet.evaluate()
    monkeypatch.setattr("gibbsprune.training.engine.EVALUATION_BATCH", 64)
    for one, other in zip(whole, fleet.evaluate()):
        assert one == pytest.approx(other, rel=1e-5)


# -- state -------------------------------------------------------------------------------------------------------------


def test_a_loaded_fleet_continues_bit_for_bit(digits):
    recipe = ADAM.replace(epochs=4, anneal_epochs=4)
    specs = [one.replace(recipe=recipe) for one in (MIXED[0], MIXED[1], MIXED[3], MIXED[5])]
    whole, first, second = (Fleet(specs, digits) for _ in range(3))
    for _ in range(2):
        whole.train_epoch()
        first.train_epoch()
    first.evaluate()
    second.load_state_dict(saved(first))
    assert second.epoch == 2
    for _ in range(2):
        assert second.train_epoch() == whole.train_epoch()
    same_bits(second.state_dict(), whole.state_dict())
    last = Fleet(specs, digits)
    last.load_state_dict(saved(second))
    assert whole.finish() == last.finish()
    for k in range(len(specs)):
        same_bits(dict(whole.model(k).state_dict()), dict(last.model(k).state_dict()))


def test_loading_makes_the_final_masks_void(digits):
    fleet = Fleet([spec(0)], digits)
    state = saved(fleet)
    untrained = fleet.model(0)
    fleet.train_epoch()
    fleet.finish()
    fleet.load_state_dict(state)
    same_bits(dict(fleet.model(0).state_dict()), dict(untrained.state_dict()))


def test_trial_steps_leave_no_trace(digits):
    plain = [spec(0, SGD.replace(law="rising")), spec(1, structure="kernel")]
    dropping = [one.replace(model="own_networks:dropping") for one in plain]
    for specs in (plain, dropping):
        quiet, tried = Fleet(specs, digits), Fleet(specs, digits)
        for _ in range(2):
            assert tried.trial_steps(2) > 0
            same_bits(tried.state_dict(), quiet.state_dict())
            assert quiet.train_epoch() == tried.train_epoch()
        assert quiet.finish() == tried.finish()
        masks, models = [tried.masks(k) for k in (0, 1)], [tried.model(k) for k in (0, 1)]
        tried.trial_steps(1)
        same_bits([tried.masks(k) for k in (0, 1)], masks)
        for k in (0, 1):
            same_bits(dict(tried.model(k).state_dict()), dict(models[k].state_dict()))


def test_the_state_of_another_fleet_is_refused_untouched(digits):
    fleet = Fleet([spec(0), spec(1)], digits)
    before = copy.deepcopy(saved(fleet))
    others = [
        Fleet([spec(0)], digits).state_dict(),
        Fleet([spec(seed, SGD.replace(optimizer="adam")) for seed in (0, 1)], digits).state_dict(),
        Fleet([spec(seed).replace(model="resnet14") for seed in (0, 1)], digits).state_dict(),
        {**saved(fleet), "version": 1},
        {"version": 2, "epoch": 0},
        {},
    ]
    for state in others:
        with pytest.raises(UserError, match=r"^the saved state is of other runs, another network or another kind of"):
            fleet.load_state_dict(state)
        same_bits(saved(fleet), before)


def test_progress_is_told_after_every_step(digits):
    told = []
    Fleet([spec(0)], digits).train_epoch(lambda done, total: told.append((done, total)))
    assert told == [(n, 10) for n in range(1, 11)]


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model": "resnet14"}, "the runs of a fleet must share model: 'own_networks:smooth' and 'resnet14' differ"),
        ({"data": "cifar10"}, "the runs of a fleet must share data: 'digits' and 'cifar10' differ"),
        ({"precision": "bfloat16"}, "the runs of a fleet must share precision: 'auto' and 'bfloat16' differ"),
    ],
)
def test_a_spec_that_does_not_fit_is_refused(digits, change, sentence):
    with pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        Fleet([spec(0), spec(1).replace(**change)], digits)


@pytest.mark.parametrize("field", SHARED)
def test_recipe_fields_that_must_be_shared(digits, field):
    value = getattr(SGD, field)
    other = {"optimizer": "adam", "standardise": "channel"}.get(field)
    if other is None:
        other = not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else value / 2 + 1e-4
    with pytest.raises(UserError, match=f"^the runs of a fleet must share the recipe's {field}: .* differ$"):
        Fleet([spec(0), spec(1, SGD.replace(**{field: other}))], digits)


def test_an_empty_fleet_is_refused(digits):
    with pytest.raises(UserError, match=r"^a fleet needs at least one run$"):
        Fleet([], digits)


def test_the_plan_names_every_layer_of_every_run(digits):
    specs = [spec(0), spec(1, method="dense"), spec(2, structure="filter", sparsity=0.8)]
    fleet = Fleet([one.replace(model="resnet8") for one in specs], digits)
    rows = fleet.plan()
    assert [row["run"] for row in rows] == [0] * 8 + [2] * 6
    assert rows[8] == {
        "run": 2, "name": "blocks.0.conv1", "kind": "Conv2d", "weights": 2304, "neighbourhoods": 16,
        "target": 0.8, "kept": 3 * 144, "sparsity": 1 - 3 / 16,
    }  # fmt: skip
