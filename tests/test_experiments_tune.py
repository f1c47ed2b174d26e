"""Tuning on held-out training images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from gibbsprune import data
from gibbsprune.cli import main
from gibbsprune.errors import UserError
from gibbsprune.experiments import paper, planner, store, tune
from gibbsprune.hamiltonians import Binary, Linear
from gibbsprune.training.methods.gibbs import schedule


def test_everything_the_paper_tuned_by_hand_is_tried():
    assert set(tune.CANDIDATES) == {
        ("weight", "abs"),
        *((kind, name) for kind in ("weight", "kernel", "filter") for name in ("binary", "sign")),
        ("kernel", "quadratic"),
        ("filter", "quadratic"),
    }
    for pair, changes in tune.CANDIDATES.items():
        assert changes[0] == {}, "the default is a candidate"
        runs = [tune.Trial().run(pair, change, 0) for change in changes]
        assert len({run.name() for run in runs}) == len(changes)


def test_ranges_are_those_of_the_schedules():
    trial = tune.Trial(epochs=200)
    abs_ = schedule(trial.run(("weight", "abs"), {"beta_end": 1e4}, 0), [10])
    assert (abs_(0), abs_(128)) == (Linear("abs").default_schedule(128)(0), pytest.approx(1e4))
    binary = schedule(trial.run(("weight", "binary"), {"beta_end": 10.0}, 0), [10])
    assert type(binary) is type(Binary("offset").default_schedule(128))
    assert (binary(0), binary(64), binary(128)) == (-10, 0, 10)


def test_the_test_set_is_not_looked_at():
    whole = data.load("digits")
    split = tune.Trial(holdout=200).split(whole)
    assert (len(split.x_train), len(split.x_test)) == (len(whole.x_train) - 200, 200)
    train = {image.numpy().tobytes() for image in whole.x_train}
    assert all(image.numpy().tobytes() in train for image in split.x_test)


def test_a_candidate_must_be_clearly_better():
    def rows(default, other, agreement=1.0):
        same = {"structure": "weight", "hamiltonian": "abs", "agreement": agreement}
        return [{**same, "change": {}, "mean": default}, {**same, "change": {"beta_end": 1e4}, "mean": other}]

    assert tune.choice(rows(0.80, 0.802), ("weight", "abs")) == {}
    assert tune.choice(rows(0.80, 0.804), ("weight", "abs")) == {"beta_end": 1e4}
    assert tune.choice(rows(0.80, 0.70), ("weight", "abs")) == {}
    assert tune.choice(rows(0.80, 0.90, agreement=0.95), ("weight", "abs")) == {}, "it has not converged"


def test_tuning_writes_the_choice_and_its_evidence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(tune.CANDIDATES, ("weight", "abs"), [{}, {"beta_end": 10.0}])
    line = "suite tune --data digits --model resnet8 --epochs 1 --seeds 0 --holdout 200 --only weight-abs --revision r"
    assert main([*line.split(), "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("2 cells in 1 fleets, about")
    assert main([*line.split(), "--budget", "1s"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 of 2 runs are missing; run the same command again"
    assert main([*line.replace("200", "100").split(), "--dry-run"]) == 0, "nothing has been compared yet"
    capsys.readouterr()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    assert main(line.split()) == 0
    torch.set_num_threads(threads)
    assert "the choice and its evidence are in" in capsys.readouterr().out
    record = json.loads((tmp_path / "results" / "tune" / "digits-resnet8.json").read_text())
    assert record["held_out_training_images"] == 200
    assert record["revision"] == "r"
    assert set(record["choice"]) == {"weight-abs"}
    assert [row["change"] for row in record["evidence"]] == [{}, {"beta_end": 10.0}]
    for more in (["--dry-run"], []):
        assert main([*line.replace("200", "100").split(), *more]) == 2
        assert "--holdout is 100, but the runs on digits in runs/tune were compared on 200" in capsys.readouterr().err
    for row in record["evidence"]:
        assert row["mean"] == row["accuracies"][0]
        assert row["mean"] * 200 == pytest.approx(round(row["mean"] * 200))


def test_a_fleet_of_a_tuning_is_tested_on_held_out_images(tmp_path, monkeypatch, capsys):
    """Also by the worker's command, which gets nothing but its folder; and no other suite works in that folder."""
    monkeypatch.chdir(tmp_path)
    trial = tune.Trial("digits", "resnet8", 1, (0,), 200, ("weight-abs",))
    specs = [cell.spec for cell in trial.cells()][:1]
    folder = Path("runs/tune") / planner.fleet_key(specs)
    planner.begin(folder, specs)
    assert main(["suite", "tune", "--holdout", "200", "--data", "digits", "--model", "resnet8", "--dry-run"]) == 2
    assert capsys.readouterr().err == "gibbsprune: runs/tune holds the work of another suite; give another --work\n"
    (folder.parent / tune.SPLIT).write_text('{"digits": 200}')
    assert main(["suite", "fleet", str(folder), "--results", "results"]) == 0
    accuracy = store.read(store.path(Path("results"), specs[0]))["accuracy"]
    assert accuracy * 200 == pytest.approx(round(accuracy * 200))
    assert main(["suite", "run", "rehearsal", "--work", "runs/tune"]) == 2
    assert "runs/tune holds the work of gibbsprune suite tune; give another --work" in capsys.readouterr().err


def test_evidence_of_other_pairs_is_kept_and_of_other_runs_refused(tmp_path):
    out, trial = tmp_path / "choice.json", tune.Trial(seeds=(0,), only=("weight-abs",))
    kept = {"structure": "weight", "hamiltonian": "sign", "change": {}, "accuracies": [0.8], "mean": 0.8}
    record = {"data": trial.data, "model": trial.model, "epochs": trial.epochs, "seeds": [0],
              "held_out_training_images": trial.holdout,
              "evidence": [kept, {**kept, "hamiltonian": "abs"}]}  # fmt: skip
    assert tune.earlier(trial, out) == []
    out.write_text(json.dumps(record))
    assert tune.earlier(trial, out) == [kept]
    out.write_text(json.dumps({**record, "epochs": 77}))
    with pytest.raises(UserError, match=rf"was tuned with epochs 77, not {trial.epochs}; give another --out"):
        tune.earlier(trial, out)
    out.write_text("[1]")
    with pytest.raises(UserError, match="holds no choice of a tuning"):
        tune.earlier(trial, out)


def test_the_variations_are_what_the_evidence_says():
    file = Path(__file__).parents[1] / "results" / "tune" / "cifar10-resnet20.json"
    record = json.loads(file.read_text())
    assert {"-".join(pair): change for pair, change in paper.CHOSEN.items()} == record["choice"]
    assert all(tune.choice(record["evidence"], pair) == change for pair, change in paper.CHOSEN.items())


def test_mistakes_are_told(capsys):
    with pytest.raises(UserError, match=r"'kernel-abs' is not tuned; it must be one of weight-binary"):
        tune.Trial(only=("kernel-abs",))
    assert main(["suite", "tune", "--workers", "2"]) == 2
    assert "--workers is 2, but tuning runs in one process" in capsys.readouterr().err


def test_a_refused_number_of_images_leaves_nothing_behind(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    line = "suite tune --data digits --model resnet8 --epochs 1 --seeds 0 --only weight-abs"
    assert main(line.split()) == 2
    assert "holdout is 5000; it must lie between 1 and" in capsys.readouterr().err
    assert main([*line.split(), "--holdout", "0", "--dry-run"]) == 2
    assert "--holdout must be at least 1, but 0 was given" in capsys.readouterr().err
    assert main([*line.split(), "--holdout", "300", "--dry-run"]) == 0
