"""Tuning on held-out training images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gibbsprune import data
from gibbsprune.cli import main
from gibbsprune.errors import UserError
from gibbsprune.hamiltonians import Binary, Linear
from gibbsprune.sweeps import tuning
from gibbsprune.training.methods.gibbs import schedule


def test_everything_the_paper_tuned_by_hand_is_tried():
    assert set(tuning.CANDIDATES) == {
        ("weight", "abs"),
        *((kind, name) for kind in ("weight", "kernel", "filter") for name in ("binary", "sign")),
        ("kernel", "quadratic"),
        ("filter", "quadratic"),
    }
    for pair, changes in tuning.CANDIDATES.items():
        assert changes[0] == {}, "the default is a candidate"
        runs = [tuning.Trial().run(pair, change, 0) for change in changes]
        assert len({run.name() for run in runs}) == len(changes)


def test_ranges_are_those_of_the_schedules():
    trial = tuning.Trial(epochs=200)
    abs_ = schedule(trial.run(("weight", "abs"), {"beta_end": 1e4}, 0), [10])
    assert (abs_(0), abs_(128)) == (Linear("abs").default_schedule(128)(0), pytest.approx(1e4))
    binary = schedule(trial.run(("weight", "binary"), {"beta_end": 10.0}, 0), [10])
    assert type(binary) is type(Binary("offset").default_schedule(128))
    assert (binary(0), binary(64), binary(128)) == (-10, 0, 10)


def test_the_test_set_is_not_looked_at():
    whole, split = (
        data.load("digits"),
        data.load(tuning.Trial("digits", holdout=200).run(("weight", "abs"), {}, 0).data),
    )
    assert (len(split.x_train), len(split.x_test)) == (len(whole.x_train) - 200, 200)
    train = {image.numpy().tobytes() for image in whole.x_train}
    assert all(image.numpy().tobytes() in train for image in split.x_test)


def test_a_candidate_must_be_clearly_better():
    def rows(default, other, agreement=1.0):
        same = {"structure": "weight", "hamiltonian": "abs", "agreement": agreement}
        return [{**same, "change": {}, "mean": default}, {**same, "change": {"beta_end": 1e4}, "mean": other}]

    assert tuning.choice(rows(0.80, 0.802), ("weight", "abs")) == {}
    assert tuning.choice(rows(0.80, 0.804), ("weight", "abs")) == {"beta_end": 1e4}
    assert tuning.choice(rows(0.80, 0.70), ("weight", "abs")) == {}
    assert tuning.choice(rows(0.80, 0.90, agreement=0.95), ("weight", "abs")) == {}, "it has not converged"


def test_tuning_writes_the_choice_and_its_evidence(tmp_path, monkeypatch, capsys, one_thread):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(tuning.CANDIDATES, ("weight", "abs"), [{}, {"beta_end": 10.0}])
    line = "tune --data digits --model resnet8 --epochs 1 --seeds 0 --holdout 200 --only weight-abs --revision r"
    assert main([*line.split(), "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("2 runs in 1 fleets, about")
    assert main([*line.split(), "--budget", "1s"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 of 2 runs are missing; run the same command again"
    assert main(line.split()) == 0
    assert "the choice and its evidence are in" in capsys.readouterr().out
    record = json.loads((tmp_path / "results" / "tune" / "digits-resnet8.json").read_text())
    assert record["held_out_training_images"] == 200
    assert record["revision"] == "r"
    assert set(record["choice"]) == {"weight-abs"}
    assert [row["change"] for row in record["evidence"]] == [{}, {"beta_end": 10.0}]
    assert main([*line.replace("200", "100").split(), "--dry-run"]) == 2
    assert "was tuned with held_out_training_images 200, not 100; give another --out" in capsys.readouterr().err
    for row in record["evidence"]:
        assert row["mean"] == row["accuracies"][0]
        assert row["mean"] * 200 == pytest.approx(round(row["mean"] * 200))


def test_evidence_of_other_pairs_is_kept_and_of_other_runs_refused(tmp_path):
    out, trial = tmp_path / "choice.json", tuning.Trial(seeds=(0,), only=("weight-abs",))
    kept = {"structure": "weight", "hamiltonian": "sign", "change": {}, "accuracies": [0.8], "mean": 0.8}
    record = {"data": trial.data, "model": trial.model, "epochs": trial.epochs, "seeds": [0],
              "held_out_training_images": trial.holdout,
              "evidence": [kept, {**kept, "hamiltonian": "abs"}]}  # fmt: skip
    assert tuning.earlier(trial, out) == []
    out.write_text(json.dumps(record))
    assert tuning.earlier(trial, out) == [kept]
    out.write_text(json.dumps({**record, "epochs": 77}))
    with pytest.raises(UserError, match=rf"was tuned with epochs 77, not {trial.epochs}; give another --out"):
        tuning.earlier(trial, out)
    out.write_text("[1]")
    with pytest.raises(UserError, match=r"holds no choice of a tuning; give another --out$"):
        tuning.earlier(trial, out)


def test_the_stored_choice_is_what_its_evidence_says():
    record = json.loads((Path(__file__).parents[1] / "results" / "tune" / "cifar10-resnet20.json").read_text())
    limit = record["converged"]
    chosen = {"-".join(pair): tuning.choice(record["evidence"], pair, limit) for pair in tuning.CANDIDATES}
    assert chosen == record["choice"]


def test_a_tuning_of_ones_own_data(tmp_path):
    trial = tuning.Trial(str(tmp_path / "x.npz"), "own:net", 5, (0,), 30, ("weight-abs",), "modern", 0.5)
    spec = trial.run(("weight", "abs"), {"coupling": 0.1}, 3)
    assert (spec.data, spec.recipe.name, spec.sparsity, spec.seed) == (f"{tmp_path}/x.npz:heldout=30", "modern", 0.5, 3)


def test_mistakes_are_told():
    with pytest.raises(UserError, match=r"--only is 'kernel-abs': allowed are 'weight-binary'"):
        tuning.Trial(only=("kernel-abs",))


def test_a_refused_number_of_images_leaves_nothing_behind(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    line = "tune --data digits --model resnet8 --epochs 1 --seeds 0 --only weight-abs"
    assert main(line.split()) == 2
    assert "holdout is 5000: allowed are whole numbers from 1 to" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())
    assert main([*line.split(), "--holdout", "0", "--dry-run"]) == 2
    assert "--holdout is 0: allowed are whole numbers from 1" in capsys.readouterr().err
    assert main([*line.split(), "--holdout", "300", "--dry-run"]) == 0
