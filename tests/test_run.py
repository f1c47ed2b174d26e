"""Runs and their folders: what is written and refused, resuming bit for bit, signals, damage, bad disks."""

import contextlib
import copy
import io
import json
import math
import os
import random
import re
import shutil
import signal
import sys
import warnings

import numpy as np
import pytest
from safetensors.numpy import load_file

from fake_fleet import LAYER, FakeFleet
from gibbsprune import data
from gibbsprune.errors import UserError
from gibbsprune.training import checkpoint, pictures, run
from gibbsprune.training.finished import Untrusted
from gibbsprune.training.folder import RunFolder, fleet_name, read_metrics, remove
from gibbsprune.training.interrupt import Interrupt, Interrupted
from gibbsprune.training.progress import PlainProgress
from gibbsprune.training.recipes import RECIPES
from gibbsprune.training.snapshots import load_snapshots, snapshot_epochs
from gibbsprune.training.spec import RunSpec


@pytest.fixture
def fleet(monkeypatch, tmp_path):
    """A fresh fake fleet class, in a working folder of its own."""
    fresh = type("Fresh", (FakeFleet,), {})
    monkeypatch.setattr(run, "Fleet", fresh)
    monkeypatch.setattr(pictures, "available", lambda: False)
    monkeypatch.chdir(tmp_path)
    return fresh


SPEC = RunSpec(model="resnet8", hamiltonian="square", epochs=6)


def files(folder):
    """Everything in a folder but times, as bytes."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in (".safetensors", ".npz", ".jsonl"):
            content = path.read_bytes()
            if path.suffix == ".jsonl":
                records = [json.loads(line) for line in content.decode().splitlines()]
                content = [{k: v for k, v in record.items() if k != "seconds"} for record in records]
            found[str(path.relative_to(folder))] = content
    return found


def test_a_run_folder_holds_everything(fleet, monkeypatch):
    monkeypatch.setattr(pictures, "available", lambda: True)
    outcome = run.start([SPEC], device="cpu", command="gibbsprune train")
    assert outcome.folder == run.Path("runs/digits-resnet8-gibbs-weight-square-0.9-converged-e6-annealed-s0")
    inside = set(os.listdir(outcome.folder)) - {".lock"}
    assert inside == {
        "annealing.png",
        "checkpoints",
        "curves.png",
        "layers.png",
        "masks.png",
        "masks.safetensors",
        "metrics.jsonl",
        "model.safetensors",
        "result.json",
        "run.json",
        "snapshots",
        "summary.md",
    }
    record = json.loads((outcome.folder / "run.json").read_text())
    assert RunSpec.from_dict(record["runs"][0]) == SPEC
    assert record["command"] == "gibbsprune train"
    assert record["seeds"] == [0]
    assert {"python", "torch", "numpy", "gibbsprune"} <= set(record["versions"])
    assert {"device", "cpu", "cores", "threads"} <= set(record["hardware"])
    metrics = read_metrics(outcome.folder / "metrics.jsonl")
    assert [entry["epoch"] for entry in metrics] == [1, 2, 3, 4, 5, 6]
    assert {
        "loss",
        "train_accuracy",
        "beta",
        "lr",
        "agreement",
        "test_accuracy",
        "test_loss",
        "seconds",
    } <= set(metrics[0])
    masks = load_file(outcome.folder / "masks.safetensors")
    assert masks[LAYER].dtype == bool
    result = json.loads((outcome.folder / "result.json").read_text())
    assert result["accuracy"] == 0.97
    assert result["epochs"] == 6
    shots = load_snapshots(outcome.folder / "snapshots")
    assert [shot.epoch for shot in shots] == sorted(snapshot_epochs(4, 6))
    assert shots[0].picture.shape == (24, 24)
    assert shots[0].picture.mean() > 0.4  # the hot mask as drawn, not the converged one used in tests
    assert shots[-1].picture.mean() < 0.15


def test_an_existing_run_is_never_overwritten(fleet, tmp_path):
    run.start([SPEC], out="r")
    before = files(tmp_path / "r")
    with pytest.raises(UserError) as caught:
        run.start([SPEC.replace(seed=1)], out="r")
    assert str(caught.value) == (
        "r already holds a run; continue it with --resume r, or choose another folder with --out"
    )
    assert files(tmp_path / "r") == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match=r"mine is not empty \(thesis.tex\)"):
        run.start([SPEC], out="mine")


def stop_at(epoch, step=1, signals=1, number=signal.SIGINT):
    def on_step(fleet, now):
        if (fleet.epoch, now) == (epoch, step):
            for _ in range(signals):
                os.kill(os.getpid(), number)

    return on_step


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_epoch_saves_and_says_how_to_resume(fleet, tmp_path, capsys, number):
    run.start([SPEC], out="whole")
    fleet.on_step = stop_at(2, number=number)
    with pytest.raises(Interrupted):
        run.start([SPEC], out="cut")
    assert capsys.readouterr().out.endswith(
        "stopped, saved after epoch 3 of 6; continue with: gibbsprune train --resume cut\n"
    )
    fleet.on_step = None
    run.resume("cut")
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_a_second_signal_stops_at_once(fleet, tmp_path):
    run.start([SPEC], out="whole")
    fleet.on_step = stop_at(2, signals=2)
    with pytest.raises(Interrupted):
        run.start([SPEC], out="cut")
    assert checkpoint.checkpoints(tmp_path / "cut" / "checkpoints")[-1][0] == 2
    fleet.on_step = None
    run.resume("cut")
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_a_signal_far_from_the_end_of_the_epoch_does_not_wait(monkeypatch):
    with Interrupt(patience=-1) as interrupt, interrupt.waiting():
        interrupt.begin_epoch()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            interrupt.step(1, 10)
    with Interrupt() as interrupt, pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)  # before training: at once
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_before_the_first_checkpoint_a_resumed_run_starts_over(fleet, tmp_path, capsys):
    run.start([SPEC], out="whole")
    fleet.on_step = stop_at(0, signals=2)
    with pytest.raises(Interrupted):
        run.start([SPEC], out="cut")
    assert "stopped, nothing saved yet; continue with" in capsys.readouterr().out
    fleet.on_step = None
    run.resume("cut")
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_a_fleet_has_one_folder_per_seed_and_resumes(fleet, tmp_path):
    specs = [SPEC.replace(seed=seed) for seed in (0, 1, 2)]
    assert fleet_name(specs).endswith("-s0-2")
    run.start(specs, out="whole")
    for seed in (0, 1, 2):
        inside = set(os.listdir(tmp_path / "whole" / f"seed-{seed}"))
        assert {"metrics.jsonl", "result.json", "model.safetensors", "masks.safetensors"} <= inside
    fleet.on_step = stop_at(3, signals=2)
    with pytest.raises(Interrupted):
        run.start(specs, out="cut")
    fleet.on_step = None
    outcome = run.resume("cut")
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
    assert [result["accuracy"] for result in outcome.results] == [0.97, 0.98, 0.99]
    assert "97.00 %" in (tmp_path / "whole" / "summary.md").read_text()
    assert "98.00 %** ± 1.00 (3 seeds)" in (tmp_path / "whole" / "summary.md").read_text()


def test_damage_to_the_newest_checkpoint_costs_one_epoch(fleet, tmp_path, capsys):
    run.start([SPEC], out="whole")
    fleet.on_step = stop_at(4)
    with pytest.raises(Interrupted):
        run.start([SPEC], out="cut")
    fleet.on_step = None
    newest = checkpoint.checkpoints(tmp_path / "cut" / "checkpoints")[-1][1]
    newest.write_bytes(newest.read_bytes()[:-100])
    run.resume("cut")
    assert "warning: checkpoint cut/checkpoints/epoch-000005.ckpt is damaged" in capsys.readouterr().out
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_a_line_cut_off_by_a_crash_is_dropped(fleet, tmp_path):
    run.start([SPEC], out="whole")
    fleet.on_step = stop_at(3)
    with pytest.raises(Interrupted):
        run.start([SPEC], out="cut")
    fleet.on_step = None
    with open(tmp_path / "cut" / "metrics.jsonl", "a") as file:
        file.write('{"epoch": 5, "loss": 1.0}\n{"epoch": 6, "lo')
    run.resume("cut")
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_death_before_the_result_is_written_is_repaired(fleet, tmp_path, monkeypatch):
    run.start([SPEC], out="whole")
    with monkeypatch.context() as patch:
        patch.setattr(run, "write_outputs", lambda *a, **k: (_ for _ in ()).throw(RuntimeError("killed")))
        with pytest.raises(RuntimeError):
            run.start([SPEC], out="cut")
    assert not RunFolder.open("cut").finished()
    run.resume("cut")
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


def test_resuming_a_finished_run_changes_nothing(fleet, tmp_path, capsys):
    run.start([SPEC], out="r")
    before = (tmp_path / "r" / "run.json").read_bytes()
    assert run.resume("r").results[0]["accuracy"] == 0.97
    assert capsys.readouterr().out.endswith("r is already finished\n")
    assert (tmp_path / "r" / "run.json").read_bytes() == before


def test_resuming_a_finished_run_notices_weights_that_are_damaged(fleet, tmp_path):
    run.start([SPEC, SPEC.replace(seed=3)], out="r")
    assert len(run.resume("r").results) == 2
    file = RunFolder.open("r").runs[1] / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        run.resume("r")


def test_two_processes_cannot_share_a_folder(fleet, tmp_path):
    fleet.on_step = stop_at(2)
    with pytest.raises(Interrupted):
        run.start([SPEC], out="r")
    holder = RunFolder.open("r")
    holder.lock()
    with pytest.raises(UserError, match="another process is working in r"):
        run.resume("r")
    holder.unlock()
    fleet.on_step = None
    run.resume("r")


@pytest.mark.parametrize(("every", "seconds", "saved"), [(1, 0.0, [5, 6]), (4, 0.0, [4, 6]), (1, 999.0, [6])])
def test_how_often_checkpoints_are_written(fleet, tmp_path, every, seconds, saved):
    run.start([SPEC], out="r", options=run.Options(every, seconds))
    assert [number for number, _ in checkpoint.checkpoints(tmp_path / "r" / "checkpoints")] == saved


def test_a_diverged_run_stops_with_a_sentence(fleet, tmp_path):
    fleet.diverges_at = 2
    with pytest.raises(UserError) as caught:
        run.start([SPEC], out="r")
    assert str(caught.value) == ("the loss is no longer finite after epoch 3 of r; try a smaller learning rate (--lr)")
    assert checkpoint.checkpoints(tmp_path / "r" / "checkpoints")[-1][0] == 2


def test_changed_data_is_refused(fleet, tmp_path):
    def write(value):
        x = np.full((4, 8, 8, 1), value, dtype=np.uint8)
        np.savez(tmp_path / "d.npz", x_train=x, y_train=[0, 1, 0, 1], x_test=x, y_test=[0, 1, 0, 1])

    write(0)
    fleet.on_step = stop_at(1)
    with pytest.raises(Interrupted):
        run.start([SPEC.replace(data="d.npz")], out="r")
    write(1)
    with pytest.raises(UserError, match=r"the data .* is not what the run in r was started with"):
        run.resume("r")


def test_other_versions_are_told(fleet, tmp_path, capsys):
    fleet.on_step = stop_at(1)
    with pytest.raises(Interrupted):
        run.start([SPEC], out="r")
    record = json.loads((tmp_path / "r" / "run.json").read_text())
    record["versions"]["torch"] = "1.0"
    (tmp_path / "r" / "run.json").write_text(json.dumps(record))
    fleet.on_step = None
    run.resume("r")
    assert "warning: torch was 1.0 when this run started and is" in capsys.readouterr().out


def test_a_missing_package_is_told_before_training(fleet, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(UserError) as caught:
        run.start([SPEC], out="r")
    expected = "a run needs the package safetensors; install it with: pip install 'gibbsprune[demo]'"
    assert str(caught.value) == expected


def test_bad_folders_are_one_sentence(fleet, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"cannot write file/r: Not a directory"):
        run.start([SPEC], out="file/r")
    with pytest.raises(UserError, match=r"nowhere holds no run \(it has no run.json\)"):
        run.resume("nowhere")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    with pytest.raises(UserError, match=r"broken/run.json cannot be read"):
        run.resume("broken")
    with pytest.raises(UserError, match="holds no run"):
        remove(tmp_path / "nowhere")


def test_a_disk_that_fills_up_loses_nothing(fleet, tmp_path, monkeypatch, capsys):
    def full(handle):
        raise OSError(28, "No space left on device")

    run.start([SPEC], out="whole")
    with monkeypatch.context() as patch:
        fleet.on_step = lambda fleet, step: fleet.epoch == 3 and patch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match=r"cannot write .*: No space left on device; what was saved"):
            run.start([SPEC], out="cut")
    fleet.on_step = None
    assert checkpoint.checkpoints(tmp_path / "cut" / "checkpoints")[-1][0] == 3
    assert capsys.readouterr().out.endswith("continue with: gibbsprune train --resume cut\n")
    run.resume("cut")
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


@pytest.mark.usefixtures("one_thread")
def test_a_run_without_a_temperature_tells_how_its_sparsity_rises(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    recipe = RECIPES["digits"].replace(law="rising", epochs=3, batch=256)
    folder = run.start([RunSpec(model="resnet8", recipe=recipe)], out="rising", device="cpu").folder
    told = [float(number) for number in re.findall(r"sparsity +([0-9.]+) %", capsys.readouterr().out)]
    assert told == pytest.approx([0, 78.75, 90], abs=0.05)
    metrics = read_metrics(folder / "metrics.jsonl")
    assert [(entry["beta"], entry["agreement"]) for entry in metrics] == [(None, None)] * 3
    assert [100 * entry["sparsity"] for entry in metrics] == pytest.approx(told, abs=0.01)
    assert (folder / "rising.png").exists()
    assert not (folder / "annealing.png").exists()
    assert [shot.beta for shot in load_snapshots(folder / "snapshots")] == [math.inf] * 3
    layers = json.loads((folder / "result.json").read_text())["layers"]
    assert len({round(layer["target"], 2) for layer in layers}) > 1
    assert all(layer["sparsity"] == pytest.approx(layer["target"], abs=1e-3) for layer in layers)  # its own share


@pytest.mark.usefixtures("one_thread")
def test_the_real_fleet_resumes_bit_for_bit(tmp_path, monkeypatch):
    """Two runs of a real network, cut within an epoch and resumed, against the same two left in peace."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pictures, "available", lambda: False)
    digits = data.load("digits")
    few = {name: getattr(digits, name)[:96].numpy() for name in ("x_train", "y_train", "x_test", "y_test")}
    np.savez("few.npz", **few)
    spec = RunSpec(data="few.npz", model="resnet8", recipe=RECIPES["digits"], epochs=4)
    specs = [spec, spec.replace(seed=1)]
    run.start(specs, out="whole", device="cpu")

    class Cut(Exception):
        pass

    class Cutting(PlainProgress):
        def step(self, done, total):
            if self.epochs_done == 2:
                raise Cut

        def epoch(self, number, records):
            self.epochs_done = number

        epochs_done = 0

    with pytest.raises(Cut):
        run.start(specs, out="cut", device="cpu", progress=Cutting())
    assert checkpoint.checkpoints(tmp_path / "cut" / "checkpoints")[-1][0] == 2
    outcome = run.resume("cut")
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
    masks = load_file(tmp_path / "cut" / "seed-1" / "masks.safetensors")
    model = load_file(tmp_path / "cut" / "seed-1" / "model.safetensors")
    for name, mask in masks.items():
        assert not model[f"{name}.weight"][~mask].any()
    assert sum(int(mask.sum()) for mask in masks.values()) == sum(
        layer["kept"] for layer in outcome.results[1]["layers"]
    )


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("[1]", r"run\.json cannot be read: it holds no JSON object"),
        ("{}", r"r was written in format None; this version reads format 1"),
        ('{"format": 1}', r"run\.json has been changed and tells of no run any more"),
        ('{"format": 1, "runs": 3}', r"run\.json has been changed"),
        ('{"format": 1, "runs": [{"sparsity": 7}]}', r"sparsity is 7: allowed are numbers from 0"),
        ('{"format"', r"run\.json cannot be read"),
    ],
)
def test_a_changed_record_is_told_in_a_sentence(tmp_path, content, sentence):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "run.json").write_text(content)
    with pytest.raises(UserError, match=sentence):
        RunFolder.open(tmp_path / "r")


def test_a_folder_with_anything_in_it_can_be_resumed(fleet, tmp_path, monkeypatch):
    """However early a fleet is killed: what it writes first is what resuming needs."""

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_metrics", killed)
        with pytest.raises(KeyboardInterrupt):
            run.start([SPEC, SPEC.replace(seed=1)], out="r")
    assert set(os.listdir("r")) == {".lock", "run.json"}
    assert len(run.resume("r").results) == 2


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", r"^r/result\.json cannot be read: Expecting"),
        ('{"a": 1}', r"^r/result\.json: a result lacks the field 'version'$"),
    ],
)
def test_a_damaged_result_is_told_in_a_sentence(fleet, tmp_path, content, sentence):
    run.start([SPEC], out="r")
    (tmp_path / "r" / "result.json").write_text(content)
    with pytest.raises(UserError, match=sentence):
        run.resume("r")


def test_a_result_lost_from_a_fleet_is_made_again(fleet, tmp_path):
    run.start([SPEC, SPEC.replace(seed=1)], out="r")
    before = json.loads((tmp_path / "r" / "seed-1" / "result.json").read_text())
    (tmp_path / "r" / "seed-1" / "result.json").unlink()
    run.resume("r")
    assert json.loads((tmp_path / "r" / "seed-1" / "result.json").read_text())["files"] == before["files"]


def test_the_way_to_resume_can_be_pasted(fleet, tmp_path):
    run.start([SPEC], out="my run")
    assert run.how_to_resume(RunFolder.open("my run")).endswith("gibbsprune train --resume 'my run'")


# -- damage ------------------------------------------------------------------------------------------------------------


def cut(fleet, out, epoch=4):
    """A run stopped after some epochs."""
    fleet.on_step = stop_at(epoch)
    with pytest.raises(Interrupted):
        run.start([SPEC], out=out)
    fleet.on_step = None


def test_a_damaged_picture_never_costs_a_run(fleet, tmp_path, monkeypatch):
    """Any one bit of a snapshot, or all of it: the run ends as it would have, and shows the others."""
    monkeypatch.setattr(pictures, "available", lambda: True)
    cut(fleet, "r")
    shot = sorted((tmp_path / "r" / "snapshots").iterdir())[1]
    whole, chance = shot.read_bytes(), random.Random(0)
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        shot.write_bytes(damaged)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load_snapshots(shot.parent)
    shot.write_bytes(b"nothing of the kind")
    with pytest.warns(UserWarning, match=f"{shot.name} is damaged and not shown"):
        run.resume("r")
    assert RunFolder.open("r").finished()
    assert "masks.png" in (tmp_path / "r" / "summary.md").read_text()


def test_a_picture_that_cannot_be_drawn_never_costs_a_run(fleet, tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "available", lambda: True)
    monkeypatch.setattr(pictures, "draw_layers", lambda *_: 1 / 0)
    run.start([SPEC], out="r")
    assert RunFolder.open("r").finished()
    assert "The pictures could not be drawn (ZeroDivisionError" in (tmp_path / "r" / "summary.md").read_text()


def test_damaged_metrics_cost_nothing(fleet, tmp_path):
    """The checkpoint knows the epochs before it: whatever became of the file, a resumed run has all its lines."""
    run.start([SPEC], out="whole")
    chance = random.Random(1)
    for trial in range(12):
        cut(fleet, f"r{trial}")
        file = tmp_path / f"r{trial}" / "metrics.jsonl"
        damaged = bytearray(file.read_bytes())
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        file.write_bytes({0: b"", 1: b"\xff\xfe", 2: b"[" * 100_000}.get(trial, bytes(damaged)))
        run.resume(f"r{trial}")
        assert files(tmp_path / f"r{trial}") == files(tmp_path / "whole")


def test_good_lines_of_damaged_metrics_are_read(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"epoch": 1}\n{"epoch": \xff}\n[]\n' + b"[" * 100_000 + b'\n{"epoch": 3}\n{"epo')
    assert read_metrics(file) == [{"epoch": 1}, {"epoch": 3}]


def test_temporaries_of_killed_saves_are_cleared(fleet, tmp_path):
    cut(fleet, "r")
    left = [tmp_path / "r" / name / ".x.0123456789abcdef.tmp" for name in ("", "checkpoints", "snapshots")]
    for file in left:
        file.write_text("half")
    run.resume("r")
    assert not any(file.exists() for file in left)


def places_in(record, path=()):
    """The way to every value of a record, and of what is in it."""
    for key, value in record.items() if isinstance(record, dict) else enumerate(record):
        yield (*path, key)
        if isinstance(value, (dict, list)):
            yield from places_in(value, (*path, key))


@pytest.mark.parametrize("change", ["delete", None, -1, "x", [], 1e300])
def test_a_changed_record_is_resumed_or_refused_in_a_sentence(fleet, tmp_path, change):
    """Every value of run.json, left out or of another kind."""
    cut(fleet, "r")
    file = tmp_path / "r" / "run.json"
    record = json.loads(file.read_text())
    saved = tmp_path / "saved"
    shutil.copytree(tmp_path / "r", saved)
    for way in list(places_in(record)):
        if way[0] == "runs" and len(way) > 3:
            continue  # a recipe's fields are its own business
        changed = copy.deepcopy(record)
        inner = changed
        for key in way[:-1]:
            inner = inner[key]
        if change == "delete":
            del inner[way[-1]]
        else:
            inner[way[-1]] = change
        file.write_text(json.dumps(changed))
        with contextlib.suppress(UserError):
            run.resume("r", device="cpu", progress=PlainProgress(io.StringIO()), trust=True)
        shutil.rmtree(tmp_path / "r")
        shutil.copytree(saved, tmp_path / "r")


def test_a_network_named_by_a_folder_is_not_imported_unasked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("__import__('pathlib').Path('harm').touch()")
    (tmp_path / "r").mkdir()
    record = {"format": 1, "runs": [SPEC.replace(model="evil:make").as_dict()]}
    (tmp_path / "r" / "run.json").write_text(json.dumps(record))
    with pytest.raises(
        Untrusted, match=r"^r names the network evil:make, which is code that would be run; give --trust"
    ):
        run.resume("r")
    assert not (tmp_path / "harm").exists()
