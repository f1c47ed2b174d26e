"""The store of results, a runner that can be cut off at any moment, and the results that are stored."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from fake_results import plain_result
from gibbsprune import data
from gibbsprune.errors import UserError
from gibbsprune.experiments import pace, paper, planner, runner, store
from gibbsprune.models import build
from gibbsprune.threshold import kept_count
from gibbsprune.training import checkpoint
from gibbsprune.training.finished import read_finished
from gibbsprune.training.folder import RunFolder
from gibbsprune.training.interrupt import Interrupt
from gibbsprune.training.recipes import RECIPES
from gibbsprune.training.sites import run_sites
from gibbsprune.training.spec import RunSpec

pytestmark = pytest.mark.usefixtures("one_thread")
RESULTS = sorted((Path(__file__).parent.parent / "results" / "paper").glob("*.json"))

# -- the store ---------------------------------------------------------------------------------------------------------


SPEC = paper.run("resnet20", seed=1)


def test_what_is_written_is_read(tmp_path):
    file = store.write(tmp_path / "new" / "folder", SPEC, plain_result())
    assert file == store.path(tmp_path / "new" / "folder", SPEC)
    assert file.name == "cifar10-resnet20-gibbs-weight-square-0.9-s1.json"
    record = store.read(file)
    assert RunSpec.from_dict(record["spec"]) == SPEC
    assert {key: record[key] for key in plain_result()} == plain_result()
    assert store.read(store.write(file.parent, SPEC, plain_result(accuracy=0.91)))["accuracy"] == 0.91


def test_missing_cells_are_those_without_a_file(tmp_path):
    specs = paper.table2("resnet20", [0, 1])
    for spec in specs[::2]:
        store.write(tmp_path, spec, plain_result())
    assert store.missing(tmp_path, specs) == specs[1::2]


@pytest.mark.parametrize("field", list(plain_result()))
def test_a_result_lacks_nothing(tmp_path, field):
    values = plain_result()
    del values[field]
    with pytest.raises(UserError, match=f"^a result lacks the field '{field}'$"):
        store.write(tmp_path, SPEC, values)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"accuracy": "0.9"}, "a result's 'accuracy' is '0.9', which is not a float"),
        ({"parameters": 1.5}, "a result's 'parameters' is 1.5, which is not a int"),
        ({"nonzero": True}, "a result's 'nonzero' is True, which is not a int"),
        ({"layers": {}}, "a result's 'layers' is {}, which is not a list"),
        ({"accuracy_recalibrated": None}, "a result's 'accuracy_recalibrated' is None, which is not a float"),
        ({"accuracy": 91.2}, "a result's 'accuracy' is 91.2, which is not between 0 and 1"),
        ({"layers": [{"name": "a"}]}, "a layer of a result lacks the field 'weights'"),
        ({"curve": [3]}, "a point of a result's curve is a JSON object, not a int"),
        ({"version": 2}, "a result's version is 2, which is not 1"),
        ({"comment": "?"}, "a result has no field 'comment'; its fields are version, name"),
    ],
)
def test_a_result_of_another_shape_is_refused(tmp_path, changes, sentence):
    with pytest.raises(UserError) as caught:
        store.write(tmp_path, SPEC, plain_result(**changes))
    assert str(caught.value).startswith(sentence)
    assert list(tmp_path.iterdir()) == []


def test_files_that_do_not_hold_what_they_say_are_refused(tmp_path):
    file = store.write(tmp_path, SPEC, plain_result())
    renamed = file.rename(tmp_path / "cifar10-resnet20-dense-s1.json")
    with pytest.raises(UserError, match=r"cifar10-resnet20-dense-s1\.json does not hold the cell that its name says"):
        store.read(renamed)
    record = json.loads(renamed.read_text())
    record["spec"]["seed"] = 5
    file.write_text(json.dumps(record))
    with pytest.raises(UserError, match="does not hold the cell"):
        store.read(file)
    wrong = r"-s\d\.json: a result is a JSON object, not a list; move it away"
    for content, sentence in (("{", "cannot be read"), ("[]", wrong)):
        file.write_text(content)
        with pytest.raises(UserError, match=sentence):
            store.read(file)
    with pytest.raises(UserError, match="cannot be read"):
        store.read(tmp_path / "nothing.json")


# -- the runner --------------------------------------------------------------------------------------------------------

RECIPE = RECIPES["digits"].replace(epochs=6, anneal_epochs=4, batch=24, lr=3e-3)
PAIR = [
    RunSpec("digits", "own_networks:smooth", recipe=RECIPE, seed=1, sparsity=0.5),
    RunSpec("digits", "own_networks:smooth", structure="kernel", recipe=RECIPE, seed=2, sparsity=0.5),
]


class Clock:
    """A clock on which every look takes a second, so that a budget cuts at the same place on every machine."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture(scope="module")
def digits():
    whole = data.load("digits")
    few = {"x_train": whole.x_train[:192], "y_train": whole.y_train[:192]}
    return dataclasses.replace(whole, **few, x_test=whole.x_test[:100], y_test=whole.y_test[:100])


def run(digits, place: Path, say=lambda text: None, **options) -> bool:
    return runner.run(PAIR, digits, place / "results", place / "work", evaluate_every=2, say=say, **options)


def written(place: Path) -> list[dict]:
    """The pair's results, less how long they took."""
    records = [store.read(store.path(place / "results", spec)) for spec in PAIR]
    for record in records:
        assert record.pop("seconds") > 0
    return records


@pytest.fixture(scope="module")
def undisturbed(digits, one_thread, tmp_path_factory) -> list[dict]:
    place = tmp_path_factory.mktemp("whole")
    said = []
    assert run(digits, place, said.append, revision="r1")
    assert [line.partition(" ")[0] for line in said] == ["epoch"] * 3 + [f"{spec.name()}:" for spec in PAIR]
    return written(place)


def test_results_are_those_of_the_fleet(undisturbed):
    for spec, record in zip(PAIR, undisturbed):
        assert (record["name"], record["epochs"], record["fleet"], record["revision"]) == (spec.name(), 6, 2, "r1")
        assert [point["epoch"] for point in record["curve"]] == [2, 4, 6]
        assert record["accuracy_converged"] == record["curve"][-1]["test_accuracy"]
        assert [layer["name"] for layer in record["layers"]] == ["second", "third", "skip.0", "depthwise"]
        assert record["curve"][0]["loss"] > record["curve"][-1]["loss"]
        assert 0.2 < record["accuracy"] < 1
        assert set(record["environment"]) == {"versions", "hardware", "system", "training"}
        assert record["environment"]["training"] == {"precision": "float32", "compiled": False, "autotune": False}


def test_a_run_cut_by_its_budget_and_continued_is_the_same(digits, tmp_path, monkeypatch, undisturbed):
    said, epochs, folder = [], [], tmp_path / "work" / planner.fleet_key(PAIR)
    for _ in range(20):
        monkeypatch.setattr(runner, "time", Clock())
        if run(digits, tmp_path, said.append, budget=18.0, revision="r1"):
            break
        epochs.append(checkpoint.checkpoints(folder)[-1][0])
        assert not (tmp_path / "results").exists()
        assert said[-1] == f"stopped after epoch {epochs[-1]} of 6: no more fits into the 0:18 it had"
        assert planner.begun(tmp_path / "work") == {folder: PAIR}
    assert len(set(epochs)) > 1, "the budget did not cut"
    assert epochs == sorted(epochs)
    assert f"continuing 2 runs from epoch {epochs[0]}" in said
    assert written(tmp_path) == undisturbed
    assert not folder.exists()


def test_a_budget_of_nothing_trains_nothing_and_loses_nothing(digits, tmp_path):
    said = []
    assert run(digits, tmp_path, said.append, budget=0.0) is False
    assert said == ["stopped after epoch 0 of 6: no more fits into the 0:00 it had"]


@pytest.mark.parametrize("moment", ["epoch 4", PAIR[1].name()])
def test_a_run_that_dies_and_is_continued_is_the_same(digits, tmp_path, undisturbed, moment):
    """Within training, and after all of it with one of two results written."""

    class Death(Exception):
        pass

    def die(text: str) -> None:
        if text.startswith(moment):
            raise Death

    with pytest.raises(Death):
        run(digits, tmp_path, die, checkpoint_seconds=0.0, revision="r1")
    said = []
    assert run(digits, tmp_path, said.append, checkpoint_seconds=0.0, revision="r1")
    assert said[0] == f"continuing 2 runs from epoch {3 if moment == 'epoch 4' else 6}"
    assert written(tmp_path) == undisturbed


def test_what_others_start_from_is_kept(digits, tmp_path):
    short = [spec.replace(epochs=1) for spec in PAIR]
    runner.run(short, digits, tmp_path / "r", tmp_path / "w", keep=[short[1].name()], say=lambda text: None)
    assert [file.stem for file in (tmp_path / "w" / "finished").iterdir()] == [short[1].name()]
    found = read_finished(short[1].name(), root=tmp_path / "w" / "finished")
    record = store.read(store.path(tmp_path / "r", short[1]))
    assert found.spec == short[1]
    assert {name: int(mask.sum()) for name, mask in found.masks.items()} == {
        layer["name"]: layer["kept"] for layer in record["layers"]
    }
    assert all((found.model[f"{name}.weight"][~mask] == 0).all() for name, mask in found.masks.items())


def test_runs_of_fewer_epochs_have_their_own_curve(digits, tmp_path):
    pair = [PAIR[0].replace(epochs=1), PAIR[1].replace(epochs=3)]
    runner.run(pair, digits, tmp_path / "r", tmp_path / "w", evaluate_every=2, say=lambda text: None)
    curves = [store.read(store.path(tmp_path / "r", spec))["curve"] for spec in pair]
    assert [[point["epoch"] for point in curve] for curve in curves] == [[1], [2, 3]]


class Scripted:
    """A fleet whose epochs take the seconds that are written down; its second engine starts with the fourth."""

    specs, device, steps_per_epoch, epochs, waits = PAIR, torch.device("cpu"), 8, 6, [0, 3]

    def __init__(self) -> None:
        self.epoch, self.now, self.seconds = 0, 0.0, [3.0, 1.0, 1.0, 2.9, 1.0, 1.0]

    def monotonic(self) -> float:
        return self.now

    def starts_engine(self) -> bool:
        return self.epoch == 3

    def train_epoch(self, step) -> list[dict]:
        self.now += self.seconds[self.epoch]
        self.epoch += 1
        return [{}, {}]

    def evaluate(self) -> list[dict]:
        return [{"accuracy": 0.5}] * 2

    def state_dict(self) -> dict:
        return {"x": torch.zeros(1)}


@pytest.mark.parametrize(("budget", "reached"), [(15.5, 6), (13.4, 3), (7.0, 1), (6.9, 0)])
def test_starting_engines_are_reckoned_with_once(tmp_path, monkeypatch, budget, reached):
    """A start takes 2 s on the CPU; every moment has 1.5 epochs and a margin of 5 s to go."""
    fleet = Scripted()
    monkeypatch.setattr(runner, "time", fleet)
    training = runner._Training(fleet, tmp_path / "f", 0.0, budget, 1, lambda text: None)
    with Interrupt() as interrupt:
        assert training.train(interrupt, 6, 1e9) == (reached == 6)
    assert fleet.epoch == reached
    assert training.late == pytest.approx(1.9 if reached > 3 else 0.0)


def test_a_device_that_was_shared_is_not_thought_slow(tmp_path, monkeypatch):
    fleet = Scripted()
    fleet.specs = [paper.run("resnet20"), paper.run("resnet20", seed=1)]
    monkeypatch.setattr(runner, "time", fleet)
    monkeypatch.setattr(pace, "device_name", lambda device: "NVIDIA H200")
    training = runner._Training(fleet, tmp_path / "f", 0.0, 1e9, 2, lambda text: None)
    fleet.epoch, training.paced = 5, (1, 0.0)
    fleet.now = pace.Pace("NVIDIA H200", 8, sharing=2).training(fleet.specs, done=1)
    training.note_pace(tmp_path)
    known = pace.Pace("NVIDIA H200")
    known.learn(tmp_path)
    assert known.correction["resnet20"] == pytest.approx(1.0, abs=0.01)


def test_a_fleet_is_trained_by_one_process_at_a_time(digits, tmp_path):
    folder = RunFolder(tmp_path / "work" / planner.fleet_key(PAIR))
    folder.path.mkdir(parents=True)
    folder.lock()
    with pytest.raises(UserError, match="another process is working in"):
        run(digits, tmp_path)
    folder.unlock()


def test_other_cells_have_another_work_folder():
    keys = {planner.fleet_key(specs) for specs in (PAIR, PAIR[::-1], PAIR[:1], [PAIR[0], PAIR[1].replace(seed=3)])}
    assert len(keys) == 4
    assert planner.fleet_key(list(PAIR)) == planner.fleet_key([spec.replace() for spec in PAIR])


# -- what was measured -------------------------------------------------------------------------------------------------


def test_there_are_results():
    assert len(RESULTS) >= 16


def test_nothing_else_lies_among_them():
    assert [file.name for file in RESULTS[0].parent.iterdir() if file not in RESULTS] == []


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_a_stored_result_agrees_with_itself(file):
    """Its layers are those that its spec prunes, and its sparsity, sizes and curve follow from one another."""
    record = store.read(file)
    spec = RunSpec.from_dict(record["spec"])
    model = build(spec.model, 10, 3)
    sites = run_sites(spec, model)
    layers = record["layers"]
    assert [layer["name"] for layer in layers] == list(sites)
    due, sparsity = 0, spec.sparsity
    if spec.method == "lottery" and spec.setting("round") is not None:  # each round leaves the same share of the rest
        sparsity = 1 - (1 - spec.sparsity) ** (spec.setting("round") / spec.setting("rounds"))
    for layer, site in zip(layers, sites.values()):
        assert (layer["weights"], layer["neighbourhoods"]) == (site.count * site.size, site.count)
        assert layer["sparsity"] == pytest.approx(1 - layer["kept"] / layer["weights"])
        assert layer["target"] == spec.sparsity
        due += kept_count(sparsity, site.count) * site.size
    prunable, kept = sum(layer["weights"] for layer in layers), sum(layer["kept"] for layer in layers)
    if spec.method == "reinit":  # its masks are the last draw of another run, layer by layer
        assert layers == store.read(file.with_name(f"{spec.setting('from')}.json"))["layers"]
        due = kept
    assert record["sparsity"] == pytest.approx(1 - kept / prunable if prunable else 0.0)
    assert abs(kept - due) <= (1 - record["agreement"]) * prunable + 0.5  # masks that agree keep as many
    assert abs(record["sparsity"] - (sparsity if prunable else 0)) < 0.02
    assert record["parameters"] == sum(p.numel() for p in model.parameters())
    assert record["nonzero"] == record["parameters"] - prunable + kept
    for key in ("accuracy", "accuracy_converged", "accuracy_recalibrated"):
        assert record[key] * 10_000 == pytest.approx(round(record[key] * 10_000))  # of 10 000 images
        assert 0.05 < record[key] < 1
    assert record["epochs"] == spec.total_epochs
    assert record["curve"][-1]["epoch"] == spec.own_epochs
    assert record["accuracy_converged"] == record["curve"][-1]["test_accuracy"]
