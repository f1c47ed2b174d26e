"""A finished run: what its folder says, that it is read whole or refused, and that nobody's code is run unasked."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gibbsprune as gp
from gibbsprune import data
from gibbsprune.cli import main
from gibbsprune.data.augment import standardise
from gibbsprune.errors import UserError
from gibbsprune.training import RECIPES, RunSpec, result, run
from gibbsprune.training.finished import Untrusted, find, read_finished
from gibbsprune.training.places import place
from sweep_bench import plain_result, write_grid

RECIPE = RECIPES["digits"].replace(epochs=2, anneal_epochs=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, one_thread) -> Path:
    """A fleet of two finished runs of a user's own data and network."""
    home = tmp_path_factory.mktemp("finished")
    write_grid(home)
    sys.path.insert(0, str(home))
    spec = RunSpec(str(home / "own.npz"), "own_network:small", sparsity=0.5, recipe=RECIPE)
    yield run.start([spec, spec.replace(seed=1)], home / "fleet", "cpu").folder
    sys.path.remove(str(home))


def test_a_run_is_its_spec_its_metrics_and_its_pruned_network(folder):
    found = gp.load_run(folder / "seed-1", trust=True)
    assert found.spec.seed == 1
    assert found.metrics == json.loads((folder / "seed-1" / "result.json").read_text())
    assert not found.model.training
    for name, mask in found.masks.items():
        assert not found.model.get_submodule(name).weight[~mask].any()
    arrays, told = data.load(found.spec.data), found.metrics["images"]
    assert (told["classes"], told["channels"], told["size"]) == (10, 1, [8, 8])
    x = standardise(arrays.x_test, torch.tensor(told["mean"]), torch.tensor(told["std"]), torch.float32)
    with torch.no_grad():
        right = (found.model(x.permute(0, 3, 1, 2)).argmax(1) == arrays.y_test).float().mean()
    assert float(right) == pytest.approx(found.metrics["accuracy"], abs=1e-6)


def test_the_network_does_not_need_the_data(folder, tmp_path):
    """What it must know of its images is in its record."""
    shutil.copytree(folder / "seed-0", tmp_path / "run")
    record = json.loads((tmp_path / "run" / "result.json").read_text())
    record["spec"]["data"] = "/nowhere/own.npz"
    (tmp_path / "run" / "result.json").write_text(json.dumps(record))
    assert sum(p.numel() for p in gp.load_run(tmp_path / "run", trust=True).model.parameters()) == record["parameters"]


def test_a_run_of_a_fleet_is_named_by_its_folder_or_its_seed(folder):
    assert find(folder, 1) == find(folder / "seed-1") == folder / "seed-1"
    assert read_finished(folder, 0).spec.seed == 0
    assert read_finished("seed-1", root=folder).spec.seed == 1
    for text, seed, sentence in (
        (folder, None, "holds 2 runs; name one of them, such as .*seed-0"),
        (folder, 7, "has no run with seed 7; it has seeds 0, 1"),
        (folder / "seed-7", None, "has no run seed-7; its runs: seed-0, seed-1"),
        (folder.parent, None, r"holds no run \(it has no run.json\)"),
    ):
        with pytest.raises(UserError, match=sentence):
            find(text, seed)


def test_a_file_of_a_run_is_not_the_run(folder, tmp_path):
    record = json.loads((folder / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(record | {"runs": record["runs"][:1]}))
    with pytest.raises(UserError, match=f"result.json holds no run, but {tmp_path} does$"):
        find(tmp_path / "result.json")


def test_a_run_that_is_not_finished_is_told(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "r")
    (tmp_path / "r" / "seed-0" / "result.json").unlink()
    with pytest.raises(UserError, match=r"seed-0 is not finished; continue it with: gibbsprune train --resume .*/r$"):
        gp.load_run(tmp_path / "r" / "seed-0")


@pytest.mark.parametrize("part", ["model", "masks"])
def test_no_bit_of_a_network_changes_unnoticed(folder, tmp_path, part):
    home = tmp_path / "run"
    shutil.copytree(folder / "seed-0", home)
    file, chance = home / f"{part}.safetensors", random.Random(part)
    whole = file.read_bytes()
    for _ in range(40):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        file.write_bytes(damaged)
        with pytest.raises(UserError, match=rf"{part}\.safetensors is damaged: its checksum is not the one in result"):
            gp.load_run(home, trust=True)
    file.unlink()
    with pytest.raises(UserError, match=rf"there is no .*{part}\.safetensors"):
        read_finished(home)


def test_a_changed_record_is_read_or_refused_in_a_sentence(folder, tmp_path):
    """Every value of result.json, left out or of another kind, and bits of it at random."""
    home = tmp_path / "run"
    shutil.copytree(folder / "seed-0", home)
    file, chance = home / "result.json", random.Random(0)
    whole = file.read_bytes()
    record = json.loads(whole)
    contents = [b"", b"[", b"[" * 100_000, b"9" * 5000, b"\xff", b'{"a":' * 50_000]
    for key in record:
        for change in (None, -1, "x", [], {}, [1], 1e300, True):
            contents.append(json.dumps({**record, key: change}).encode())
        contents.append(json.dumps({name: value for name, value in record.items() if name != key}).encode())
    for key in record["images"]:
        for change in (None, -1, "x", [], 1e300):
            other = copy.deepcopy(record)
            other["images"][key] = change
            contents.append(json.dumps(other).encode())
    for _ in range(400):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        contents.append(bytes(damaged))
    for content in contents:
        file.write_bytes(content)
        with contextlib.suppress(UserError):
            gp.load_run(home, trust=True)


# -- whose code --------------------------------------------------------------------------------------------------------


def test_a_network_named_by_a_received_folder_is_not_imported_unasked(folder, tmp_path, monkeypatch, capsys):
    home = tmp_path / "run"
    shutil.copytree(folder / "seed-0", home)
    record = json.loads((home / "result.json").read_text())
    record["spec"]["model"] = "evil:make"
    record["name"] = RunSpec.from_dict(record["spec"]).name()
    (home / "result.json").write_text(json.dumps(record))
    (tmp_path / "evil.py").write_text("__import__('pathlib').Path('harm').touch()")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        Untrusted, match="run names the network evil:make, which is code that would be run; give --trust"
    ):
        gp.load_run(home)
    for command in (["export", str(home)], ["profile", str(home), "--rounds", "1"]):
        assert main(command) == 2
        assert "names the network evil:make" in capsys.readouterr().err
    assert not (tmp_path / "harm").exists()
    assert main(["export", str(home), "--trust"]) == 2
    assert "has no function 'make'" in capsys.readouterr().err
    assert (tmp_path / "harm").exists(), "the user said so"


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 2), ("", 2)])
def test_a_person_at_a_terminal_is_asked(folder, monkeypatch, capsys, answer, status):
    asked = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda text: asked.append(text) or answer)
    assert main(["export", str(folder / "seed-0"), "--format", "packed"]) == status
    assert asked == ["Run it? [y/N] "]
    assert "names the network own_network:small" in capsys.readouterr().out


# -- the record --------------------------------------------------------------------------------------------------------

SPEC = RunSpec(model="resnet8", seed=1)


@pytest.mark.parametrize("field", list(plain_result()))
def test_a_result_lacks_nothing(field):
    values = plain_result()
    del values[field]
    with pytest.raises(UserError, match=f"^a result lacks the field '{field}'$"):
        result.make(SPEC, values)


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
        ({"lagged": {"steps": 3}}, "what a result says of batch norms that lagged lacks the field 'accuracy'"),
        ({"version": 2}, "a result's version is 2, which is not 1"),
        ({"comment": "?"}, "a result has no field 'comment'; its fields are version, name"),
    ],
)
def test_a_result_of_another_shape_is_refused(changes, sentence):
    with pytest.raises(UserError) as caught:
        result.make(SPEC, plain_result(**changes))
    assert str(caught.value).startswith(sentence)


def test_a_run_that_diverged_has_a_result(tmp_path):
    record = result.make(SPEC, plain_result(loss=float("nan")))
    (tmp_path / "result.json").write_text(result.text(record))
    assert result.read(place(tmp_path / "result.json"))["loss"] is None


def test_light_imports():
    """Neither the package nor what a sweep's file needs loads the engine."""
    script = (
        "import sys, gibbsprune\n"
        "assert not [name for name in sys.modules if name.startswith('gibbsprune.training')], 'the package'\n"
        "from gibbsprune.training import RunSpec\n"
        "assert 'gibbsprune.training.engine' not in sys.modules, 'a run'\n"
        "assert gibbsprune.load_run and gibbsprune.training.Fleet\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
