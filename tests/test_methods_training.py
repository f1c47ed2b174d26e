"""Methods as they train: l1 against autograd, rewinding and rates phase by phase, runs among others and alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from gibbsprune.errors import UserError
from gibbsprune.threshold import kept_count
from gibbsprune.training.finished import Finished
from gibbsprune.training.fleet import Fleet
from gibbsprune.training.fuse import share
from gibbsprune.training.optimizers import FlatOptimizer
from method_bench import RECIPE, SMALL, few, spec
from sweep_bench import keep


@pytest.fixture(scope="module")
def digits():
    return few()


def small(method: str, structure: str = "weight", **options):
    return spec(method, structure, model=SMALL, **options)


def unmasked(fleet: Fleet, k: int) -> nn.Module:
    engine, i = fleet.home[k]
    return engine.network.extract(i, fleet.arrays, {})


# -- l1 ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_l1_penalty_is_that_of_a_term_in_the_loss(optimizer):
    """Two runs in every tensor with their own λ, on one of three tensors, against autograd and torch.optim."""
    recipe = RECIPE.replace(optimizer=optimizer, weight_decay=0.03, eps=1e-6)
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(4, 3, generator=generator), torch.randn(6, 2, generator=generator), torch.zeros(4)]
    start[1][0, 0] = 0.0  # where |w| has no slope
    slopes = [[torch.randn(t.shape, generator=generator) for t in start] for _ in range(12)]
    penalties = [0.2, 0.05]
    ours = FlatOptimizer([nn.Parameter(t.clone()) for t in start], [True, False, False], [recipe] * 2)
    ours.set_penalties(ours.parameters[1], penalties)
    ours.set_rates([0.01, 0.02])
    for slope in slopes:
        ours.step(slope)
    for run, (rate, penalty) in enumerate(zip([0.01, 0.02], penalties)):
        own = [nn.Parameter(share(t, run, 2).clone()) for t in start]
        groups = [{"params": [p], "weight_decay": 0.03 if i == 0 else 0.0} for i, p in enumerate(own)]
        if optimizer == "adam":
            theirs: torch.optim.Optimizer = torch.optim.Adam(groups, rate, (recipe.beta1, recipe.beta2), recipe.eps)
        else:
            theirs = torch.optim.SGD(groups, rate, momentum=recipe.momentum, nesterov=recipe.nesterov)
        for slope in slopes:
            theirs.zero_grad()
            loss = sum((share(s, run, 2) * p).sum() for s, p in zip(slope, own)) + penalty * own[1].abs().sum()
            loss.backward()
            theirs.step()
        for a, b in zip(ours.parameters, own):
            torch.testing.assert_close(share(a.detach(), run, 2), b.detach(), rtol=1e-5, atol=1e-6)


def test_the_penalty_is_on_the_layers_that_the_run_prunes(digits):
    """Not on the first convolution, batch norm or dense layer, nor on what other runs of the fleet prune."""
    specs = [
        small("l1", exclude=("third",), settings={"penalty": 0.01}),
        small("gibbs", include=("first", "third")),
        small("l1", seed=1),
    ]
    engine = Fleet(specs, digits).engines[0]
    names = {id(p): name for name, p in engine.network.model.named_parameters()}
    sizes = [p.numel() for p in engine.optimizer.parameters]
    found = {}
    for parameter, part in zip(engine.optimizer.parameters, engine.optimizer.penalty.split(sizes)):
        values = [sorted(set(v.tolist())) for v in part.view(3, -1)]
        if any(value != [0.0] for value in values):
            found[names[id(parameter)].split(".")[0]] = values
    assert found == {
        "second": [[pytest.approx(0.01)], [0.0], [pytest.approx(0.001)]],
        "third": [[0.0], [0.0], [pytest.approx(0.001)]],
    }


def test_l1_makes_weights_smaller(digits):
    """At the same seed, λ = 0 being plain training."""
    sizes = []
    for penalty in (0.0, 0.01):
        fleet = Fleet([small("l1", settings={"penalty": penalty})], digits)
        for _ in range(2):
            fleet.train_epoch()
        sizes.append(float(unmasked(fleet, 0).third.weight.detach().abs().sum()))
        if penalty == 0:
            dense = Fleet([small("dense")], digits)
            for _ in range(2):
                dense.train_epoch()
            assert torch.equal(unmasked(dense, 0).third.weight, unmasked(fleet, 0).third.weight)
    assert sizes[1] < 0.95 * sizes[0]


# -- phases ------------------------------------------------------------------------------------------------------------


def test_survivors_of_the_lottery_are_back_at_their_early_values_exactly(digits):
    """In a fleet, beside a run that rewinds to another step and one that does not at all."""
    specs = [
        small("lottery", sparsity=0.875, settings={"rounds": 3, "rewind_step": 13}),
        small("lottery", sparsity=0.6, seed=1, settings={"rounds": 3, "rewind_step": 4}),
        small("dense", recipe=RECIPE.replace(epochs=8)),
    ]
    fleet = Fleet(specs, digits)
    engine = fleet.engines[0]
    early: dict[int, dict[str, torch.Tensor]] = {}

    def watch(step: int, steps: int) -> None:
        for k, at in ((0, 13), (1, 4)):
            if fleet.epoch * steps + step == at:
                early[k] = {name: value.clone() for name, value in engine.network.run_state(k).items()}

    masks = [fleet.masks(k) for k in range(2)]
    for sparsities in ((0.5, 1 - 0.4 ** (1 / 3)), (0.75, 1 - 0.4 ** (2 / 3)), (0.875, 0.6)):
        fleet.train_epoch(watch)
        fleet.train_epoch(watch)
        trained = [{name: value.clone() for name, value in engine.network.run_state(k).items()} for k in range(3)]
        moments = engine.optimizer.state["velocity"].clone()
        engine.enter(fleet.epoch)
        for k, sparsity in enumerate(sparsities):
            for name, mask in engine.replicas[k].masks.items():
                weight, before = engine.network.run_state(k)[f"{name}.weight"], trained[k][f"{name}.weight"]
                assert int(mask.sum()) == kept_count(sparsity, mask.numel())
                assert bool((mask <= masks[k][name]).all()), "a pruned weight came back"
                smallest = before[mask].abs().min()
                assert bool((before[masks[k][name] & ~mask].abs() <= smallest).all())  # the smallest went
                assert torch.equal(weight[mask], early[k][f"{name}.weight"][mask])
                assert not torch.equal(weight[mask], before[mask])
                masks[k][name] = mask.clone()
            for name, value in engine.network.run_state(k).items():
                if value.dim():
                    assert torch.equal(value, early[k][name]), name
        own = engine.optimizer.run.long()
        assert not engine.optimizer.state["velocity"][own < 2].any()
        assert torch.equal(engine.optimizer.state["velocity"][own == 2], moments[own == 2])
        for name, value in engine.network.run_state(2).items():
            if value.dim():
                assert torch.equal(value, trained[2][name]), name
    fleet.train_epoch()
    fleet.train_epoch()
    for k, result in enumerate(fleet.finish()[:2]):
        for layer in result["layers"]:
            assert layer["kept"] == kept_count(specs[k].sparsity, layer["neighbourhoods"])
            assert torch.equal(fleet.model(k).get_submodule(layer["name"]).weight != 0, masks[k][layer["name"]])


@pytest.mark.parametrize(
    ("method", "structure"), [("magnitude", "weight"), ("filter-l1", "kernel"), ("filter-l1", "filter")]
)
def test_rates_after_each_phase_and_pruned_ones_stay_pruned(digits, method, structure):
    recipe = RECIPE.replace(epochs=1)
    fleet = Fleet([small(method, structure, recipe=recipe, sparsity=0.55, settings={"tune_epochs": 1})], digits)
    assert fleet.epochs == 1 + 6
    fleet.train_epoch()
    before = fleet.masks(0)
    assert all(mask.all() for mask in before.values())
    for sparsity in (0.1, 0.2, 0.3, 0.4, 0.5, 0.55):
        fleet.train_epoch()
        fleet.evaluate()
        for name, site in fleet.engines[0].network.names[0].items():
            mask = fleet.masks(0)[name]
            assert int(mask.sum()) == kept_count(sparsity, site.count) * site.size
            assert bool((mask <= before[name]).all())
            assert torch.equal(fleet.model(0).get_submodule(name).weight != 0, mask)
        before = fleet.masks(0)
    finals = fleet.finish()[0]
    assert finals["agreement"] == 1.0
    assert finals["accuracy"] == finals["accuracy_converged"]


def test_without_fine_tuning_all_phases_are_done_at_the_end(digits):
    recipe = RECIPE.replace(epochs=1)
    fleet = Fleet([small("magnitude", recipe=recipe, sparsity=0.55, settings={"tune_epochs": 0})], digits)
    assert fleet.epochs == 1
    fleet.train_epoch()
    largest = {name: weight.clone() for name, weight in fleet.engines[0].replicas[0].weights.items()}
    result = fleet.finish()[0]
    for layer in result["layers"]:
        weight = fleet.model(0).get_submodule(layer["name"]).weight
        assert layer["kept"] == kept_count(0.55, layer["neighbourhoods"]) == int((weight != 0).sum())
        assert bool((largest[layer["name"]][weight == 0].abs() <= weight[weight != 0].abs().min()).all())


# -- runs among others and alone ---------------------------------------------------------------------------------------


def test_a_lottery_starts_after_the_first_training_of_another(digits, tmp_path):
    """Its first masks are those of the other's trained weights, its values the other's early ones, exactly."""
    first = small("lottery", sparsity=0.75, settings={"rounds": 1, "rewind_step": 4})
    fleet = Fleet([first, small("dense", recipe=RECIPE.replace(epochs=4))], digits)
    states = {}

    def watch(step: int, steps: int) -> None:
        if fleet.epoch * steps + step == 4:
            states["early"] = {name: value.clone() for name, value in fleet.engines[0].network.run_state(0).items()}

    for epoch in range(4):
        if epoch == 2:
            trained = {name: value.clone() for name, value in fleet.engines[0].network.run_state(0).items()}
        fleet.train_epoch(watch)
    fleet.finish()
    file = tmp_path / "first"
    keep(file, fleet.finished(0))
    second = small("lottery", sparsity=0.875, settings={"rounds": 3, "rewind_step": 4, "from": str(file)})
    assert (second.own_epochs, second.total_epochs) == (6, 8)
    other = Fleet([second], digits)
    engine = other.engines[0]
    engine.enter(0)
    for name, mask in engine.replicas[0].masks.items():
        before = trained[f"{name}.weight"].abs()
        assert int(mask.sum()) == kept_count(0.5, mask.numel())
        assert before[mask].min() >= before[~mask].max()
    for name, value in engine.network.run_state(0).items():
        if value.dim():
            assert torch.equal(value, states["early"][name]), name
    for _ in range(6):
        other.train_epoch()
    (result,) = other.finish()
    assert result["sparsity"] == pytest.approx(0.875, abs=0.01)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 1}, "would start from a lottery .* seed 1, .* is a lottery .* seed 0"),
        ({"settings": {"rewind_step": 5}}, "rewound to step 5, but .* rewound to step 4"),
        ({"recipe": RECIPE.replace(epochs=3)}, "of 3 epochs a round"),
        ({"recipe": RECIPE.replace(lr=0.5)}, "was trained with lr 0.02, but this run's recipe has 0.5"),
    ],
)
def test_a_lottery_does_not_start_from_another_training(digits, tmp_path, changes, said):
    first = small("lottery", settings={"rounds": 1, "rewind_step": 4})
    file = tmp_path / "first"
    keep(file, Fleet([first], digits).finished(0))
    settings = {"rewind_step": 4, **changes.get("settings", {}), "from": str(file)}
    wanted = small("lottery", **{**changes, "settings": settings})
    with pytest.raises(UserError, match=said):
        Fleet([wanted], digits)
    bare = Fleet([first], digits).finished(0)
    keep(file, Finished(bare.spec, bare.model, bare.masks))
    with pytest.raises(UserError, match="holds the end of its training alone"):
        Fleet([small("lottery", settings={"rewind_step": 4, "from": str(file)})], digits)


def test_the_rounds_of_a_lottery_one_run_at_a_time(digits, tmp_path):
    """Each among other runs; masks and early values go from one to the next, and the last one ends at the sparsity."""
    same = {"rounds": 3, "rewind_step": 4}
    sources, before, early = [None], None, None
    for number, sparsity in enumerate((0.0, 0.5, 0.75, 0.875)):
        settings = {**same, "round": number, **({"from": sources[-1]} if number else {})}
        spec = small("lottery", sparsity=0.875, settings=settings)
        assert (spec.own_epochs, spec.total_epochs) == (2, 2 * (number + 1))
        fleet = Fleet([small("dense", seed=5), spec], digits)
        engine = fleet.engines[0]
        engine.enter(0)
        if before is not None:
            for name, mask in engine.replicas[1].masks.items():
                weight = before.model[f"{name}.weight"]
                assert int(mask.sum()) == kept_count(sparsity, mask.numel())
                assert bool((mask <= before.masks[name]).all()), "a pruned weight came back"
                assert weight[mask].abs().min() >= weight[~mask].abs().max()
            for name, value in engine.network.run_state(1).items():
                if value.dim():
                    assert torch.equal(value, early[f"early/{name}"]), name
        fleet.train_epoch()
        fleet.train_epoch()
        result = fleet.finish()[1]
        assert result["sparsity"] == pytest.approx(sparsity, abs=0.01)
        before = fleet.finished(1)
        early = early or before.kept
        assert all(torch.equal(value, before.kept[name]) for name, value in early.items())
        sources.append(str(tmp_path / f"round{number}"))
        keep(Path(sources[-1]), before)
    whole = small("lottery", settings={**same, "from": sources[1]})
    Fleet([whole], digits).engines[0].enter(0)  # the first training serves all rounds together as well
    for number, source in ((3, 2), (2, 1)):
        said = f"round {number} .* goes on from round {number - 1} of 3 to .* 0.875, but .* is round {source - 1} of 3"
        wrong = small("lottery", sparsity=0.875, settings={**same, "round": number, "from": sources[source]})
        with pytest.raises(UserError, match=said):
            Fleet([wrong], digits)


@pytest.fixture(scope="module")
def sources(digits, tmp_path_factory):
    """Files of a dense run and of a Gibbs run of two epochs."""
    folder = tmp_path_factory.mktemp("sources")
    specs = [small("dense"), small("gibbs", "kernel", sparsity=0.5)]
    fleet = Fleet(specs, digits)
    for _ in range(2):
        fleet.train_epoch()
    fleet.finish()
    for k, one in enumerate(specs):
        keep(folder / one.method, Finished(one, fleet.model(k).state_dict(), fleet.final[k]))
    return folder


def test_runs_of_all_methods_in_one_fleet_are_what_they_are_alone(digits, sources):
    """Distances are relative to the way that weights have travelled, as in test_fleet.py: 1e-4 is allowed as rounding,
    and another seed, mask or learning rate is a hundred times as much."""
    long, brief = RECIPE.replace(epochs=4, anneal_epochs=3), RECIPE.replace(epochs=1, anneal_epochs=1)
    specs = [
        small("gibbs", recipe=long),
        small("dense", recipe=long),
        small("l1", recipe=long, seed=1, settings={"penalty": 0.01}),
        small("targeted-dropout", recipe=long),
        small("targeted-dropout", "kernel", recipe=long, settings={"ramping": True}),
        small("targeted-dropout", "filter", recipe=long, seed=2, sparsity=0.75),
        small("random-mask", recipe=long),
        small("gradual", "filter", recipe=long, sparsity=0.5),
        small("lr-rewinding", sparsity=0.5, settings={"repeat": 0.5, "rounds": 2}),
        small("str", recipe=long, sparsity=0.5, settings={"start": -3, "level_decay": 0.1}),
        small("rigl", recipe=long, sparsity=0.5, settings={"every": 3}),
        small("lottery", seed=3, settings={"rounds": 1, "rewind_step": 7}),
        small("lottery", recipe=brief, settings={"rounds": 3}),
        small("magnitude", sparsity=0.15, settings={"tune_epochs": 1}),
        small("filter-l1", "kernel", sparsity=0.2, settings={"tune_epochs": 2, "from": "dense"}),
        small("thinet", "filter", seed=4, sparsity=0.4, settings={"tune_epochs": 2, "images": 30}),
        small("thinet", "filter", sparsity=0.4, settings={"tune_epochs": 4, "from": "dense"}),
        small("reinit", "kernel", recipe=long, sparsity=0.5, settings={"from": "gibbs"}),
    ]
    fleet = Fleet(specs, digits, finished=sources)
    assert len(fleet.engines) == 1, "the runs were not fused"
    assert fleet.epochs == 4
    together = [fleet.train_epoch() for _ in range(4)]
    finals = fleet.finish()
    for k, one in enumerate(specs):
        alone = Fleet([one], digits, finished=sources)
        start = unmasked(alone, 0)
        for records in together:
            for key, value in alone.train_epoch()[0].items():
                assert records[k][key] == (None if value is None else pytest.approx(value, rel=1e-4)), (one.name(), key)
        final = alone.finish()[0]
        assert final["layers"] == finals[k]["layers"], one.name()
        assert {name: mask.tolist() for name, mask in alone.final[0].items()} == {
            name: mask.tolist() for name, mask in fleet.final[k].items()
        }
        assert finals[k]["loss"] == pytest.approx(final["loss"], rel=1e-3)
        pairs = zip(*(m.state_dict().values() for m in (unmasked(fleet, k), unmasked(alone, 0), start)))
        for ours, theirs, origin in pairs:
            if ours.dim():
                way = (theirs - origin).norm()
                assert (ours - theirs).norm() < 1e-4 * way, one.name()
