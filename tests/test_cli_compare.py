"""``gibbsprune compare``: the runs that it makes of its options, what it writes, that it goes on after being killed."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from gibbsprune import data
from gibbsprune.checks import listed
from gibbsprune.cli import main
from gibbsprune.cli.compare import default_name
from gibbsprune.errors import UserError
from gibbsprune.structures import ALLOWED
from gibbsprune.sweeps.comparison import Entry, choose, runs
from gibbsprune.sweeps.comparison_report import STYLES, Row, draw_comparison, result_table, spread, title, write_report
from gibbsprune.training import pictures
from gibbsprune.training.methods import METHODS
from gibbsprune.training.recipes import RECIPES
from gibbsprune.training.spec import RunSpec
from method_bench import SMALL

HERE = Path(__file__).parent
BASE = RunSpec(model="resnet8")


def labels(entries) -> list[str]:
    return [entry.label for entry in entries]


# -- what is compared --------------------------------------------------------------------------------------------------


def test_all_methods_that_have_the_structure_are_compared():
    assert labels(choose("weight")) == [
        "gibbs", "gibbs:law=annealed", "dense", "l1", "magnitude", "lottery", "targeted-dropout",
        "targeted-dropout:ramping", "targeted-dropout:ramp=authors", "random-mask", "reinit",
        "gradual", "feedback", "rigl", "lr-rewinding", "str",
    ]  # fmt: skip
    assert labels(choose("kernel")) == [
        "gibbs", "gibbs:law=annealed", "dense", "targeted-dropout", "targeted-dropout:ramping",
        "targeted-dropout:ramp=authors", "filter-l1", "random-mask", "reinit",
        "gradual", "feedback",
    ]  # fmt: skip
    assert set(labels(choose("filter"))) == {*labels(choose("kernel")), "thinet"}


def test_the_baseline_is_always_there_and_what_reinit_needs():
    assert labels(choose("weight", ["l1"])) == ["dense", "l1"]
    assert labels(choose("weight", ["reinit", "dense"])) == ["gibbs", "reinit", "dense"]
    assert labels(choose("weight", ["reinit", "gibbs:stretch=2"])) == ["dense", "reinit", "gibbs:stretch=2"]


def test_methods_with_settings():
    assert Entry.read("lottery:rounds=1:rewind-step=9") == Entry(
        "lottery:rounds=1:rewind-step=9", "lottery", 1, (("rounds", "1"), ("rewind_step", "9"))
    )
    assert Entry.read(" targeted-dropout:ramping ").settings == (("ramping", "yes"),)
    assert Entry.read("gibbs:stretch=3").stretch == 3
    assert Entry.read("gibbs:law=rising:stretch=3") == Entry("gibbs:law=rising:stretch=3", "gibbs", 3, law="rising")


def test_both_laws_are_compared_whichever_the_recipe_has():
    for name in ("digits", "paper"):
        base = RunSpec(model="resnet8", recipe=RECIPES[name])
        named = runs(choose("weight", ["gibbs", "gibbs:law=annealed", "gibbs:law=rising"]), base, [0])
        found = {one.entry.label: one.spec.recipe.law for one in named if one.entry.method == "gibbs"}
        other = "annealed" if name == "digits" else "rising"
        assert found == {"gibbs": base.recipe.law, f"gibbs:law={other}": other}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--methods", "gibbs,magic"], f"method is 'magic': allowed are {listed(METHODS)}"),
        (["--methods", "l1,l1"], "l1 is named twice"),
        (["--methods", ","], "--methods is ',': allowed are names separated by commas"),
        (["--methods", "l1", "--structure", "filter"], "structure is 'filter': allowed are 'weight' with method 'l1'"),
        (["--methods", "l1:rounds=3"], "method 'l1' has no setting 'rounds': allowed are penalty, from, weights"),
        (["--methods", "l1:penalty=-1"], "penalty is '-1': allowed are numbers from 0"),
        (["--methods", "gibbs:law=cold"], "law in 'gibbs:law=cold' is 'cold': allowed are 'annealed', 'rising'"),
        (["--methods", "gibbs:stretch=0"], "stretch in 'gibbs:stretch=0' is '0': allowed are whole numbers from 1"),
        (["--structure", "row"], f"structure is 'row': allowed are {ALLOWED}"),
        (["--sparsity", "1"], "sparsity is 1.0: allowed are numbers from 0 up to but not 1"),
        (["--seeds", "2-1"], "--seeds is '2-1': allowed are different seeds such as 0-15 or 0,3,7"),
        (["--recipe", "soup"], "recipe is 'soup': allowed are 'paper', 'modern', 'best', 'digits', 'plain'"),
        (["--method", "l1"], "unknown option --method; did you mean --methods?"),
        (["--data", "/nowhere.npz"], "/nowhere.npz does not exist"),
        (["--model", "resnet9"], "model is 'resnet9': allowed are depths of 6n + 2, such as 8, 14, 20, 32, 56, 110"),
    ],
)
def test_refusals_are_one_sentence_before_anything_is_trained(options, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *options]) == 2
    assert capsys.readouterr().err == f"gibbsprune: {sentence}\n"
    assert not any(tmp_path.iterdir())


# -- its runs ----------------------------------------------------------------------------------------------------------


def test_runs_start_from_the_comparisons_own():
    compared = {(one.entry.label, one.spec.seed): one.spec for one in runs(choose("weight"), BASE, [0, 1])}
    assert len(compared) == len({spec.name() for spec in compared.values()}) == 2 * len(choose("weight"))
    for seed in (0, 1):
        assert compared["magnitude", seed].setting("from") == compared["dense", seed].name()
        assert compared["lr-rewinding", seed].setting("from") == compared["dense", seed].name()
        assert compared["reinit", seed].setting("from") == compared["gibbs", seed].name()
        assert compared["magnitude", seed].total_epochs == 25 + 9


def test_filters_and_stretched_methods():
    for one in runs(choose("filter"), BASE.replace(structure="filter"), [0]):
        source = {"thinet": "dense", "filter-l1": "dense", "reinit": "gibbs"}.get(one.entry.method)
        assert (one.source.method if one.source else None) == source
    entries = choose("weight", ["magnitude:stretch=2", "gibbs:stretch=2"])
    (dense, longer, gibbs) = runs(entries, BASE, [0])
    assert [one.spec.own_epochs for one in (dense, longer, gibbs)] == [25, 50 + 9, 50]
    assert longer.source is None  # no dense run of the same length: it trains its own


def test_a_run_costs_its_share_of_the_fleet_and_the_run_that_it_continues():
    dense, tuned, gibbs, again = runs(choose("weight", ["dense", "magnitude", "gibbs", "reinit"]), BASE, [0])
    took = {
        one.spec.name(): {"seconds": 10.0 * (i + 1), "fleet": 2} for i, one in enumerate((dense, tuned, gibbs, again))
    }
    assert [one.seconds(took) for one in (dense, tuned, gibbs, again)] == [5, 10 + 5, 15, 20]


def test_the_folder_tells_what_is_compared():
    assert default_name(BASE) == "compare-digits-resnet8-weight-0.9"
    assert default_name(BASE.replace(structure="filter", sparsity=0.75, epochs=5)) == (
        "compare-digits-resnet8-filter-0.75-e5"
    )


# -- table and picture -------------------------------------------------------------------------------------------------

ROWS = [
    Row(Entry.read("dense"), [0.98, 0.97, 0.99], [0.98, 0.98, 0.98], 0.0, 25, 61.0, ["a", "b", "c"]),
    Row(Entry.read("lottery:rounds=1"), [0.97, 0.96, 0.98], [0.97, 0.97, 0.97], 0.9, 50, 124.2, ["d", "e", "f"]),
    Row(Entry.read("gibbs"), [0.96, 0.96, 0.96], [0.95, 0.96, 0.97], 0.9004, 25, 70.0, ["g", "h", "i"]),
    Row(Entry.read("l1"), [0.1, 0.12, 0.11], [0.9, 0.8, 0.85], 0.9, 25, 3700.0, ["j", "k", "l"]),
]
TABLE = """\
| method           |  accuracy, % | recalibrated, % | sparsity | epochs |    time |
| ---------------- | -----------: | --------------: | -------: | -----: | ------: |
| dense            | 98.00 ± 1.00 |    98.00 ± 0.00 |   0.00 % |     25 |    1:01 |
| lottery:rounds=1 | 97.00 ± 1.00 |    97.00 ± 0.00 |  90.00 % |     50 |    2:04 |
| gibbs            | 96.00 ± 0.00 |    96.00 ± 1.00 |  90.04 % |     25 |    1:10 |
| l1               | 11.00 ± 1.00 |    85.00 ± 5.00 |  90.00 % |     25 | 1:01:40 |"""


def test_the_table():
    assert result_table(ROWS) == TABLE
    assert spread([0.5]) == "50.00"
    assert title(BASE, [0, 1, 2]) == "resnet8 on digits, weight-wise at a sparsity of 0.9, 3 seeds"


def test_the_report_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "available", lambda: False)
    written = write_report(tmp_path, BASE, [0, 1, 2], ROWS, "gibbsprune compare")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in written)
    text = (tmp_path / "compare.md").read_text()
    assert TABLE in text
    assert "matplotlib is not installed" in text
    assert "Made by `gibbsprune compare`." in text


def colours(path: Path) -> set[tuple[int, ...]]:
    pixels = (255 * matplotlib.image.imread(path)[..., :3]).round().astype(int)
    return set(map(tuple, pixels.reshape(-1, 3)))


def test_the_picture_shows_every_method(tmp_path):
    """Each in its colour, also one that lies far below and is only named."""
    draw_comparison(tmp_path / "p.png", ROWS, "a task")
    drawn = colours(tmp_path / "p.png")
    for row in ROWS:
        shade = STYLES[row.entry.method][0]
        assert tuple(int(shade[i : i + 2], 16) for i in (1, 3, 5)) in drawn, row.entry.label
    assert STYLES.keys() == METHODS.keys()


# -- all of it ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Few digits as a user's file, in a folder to work in."""
    folder, digits = tmp_path_factory.mktemp("compare"), data.load("digits")
    np.savez(folder / "few.npz", x_train=digits.x_train[:192].numpy(), y_train=digits.y_train[:192].numpy(),
             x_test=digits.x_test[:64].numpy(), y_test=digits.y_test[:64].numpy())  # fmt: skip
    return folder


def command(place: Path, *options: str) -> list[str]:
    return [
        "compare",
        "--data",
        str(place / "few.npz"),
        "--model",
        SMALL,
        "--recipe",
        "digits",
        "--device",
        "cpu",
        *options,
    ]


def without_times(out: Path) -> list[dict]:
    rows = json.loads((out / "compare.json").read_text())["rows"]
    return [{key: value for key, value in row.items() if key not in ("seconds", "runs")} for row in rows]


def test_a_comparison_of_all_methods(place, capsys):
    out = place / "all"
    words = command(place, "--epochs", "2", "--seeds", "0-1", "--sparsity", "0.5", "--out", str(out))
    assert main(words) == 0
    said = capsys.readouterr().out
    assert f"0.5, 2 seeds: {2 * len(choose('weight'))} runs\n" in said
    made = {"runs", "results", "pace.json", "compare.md", "compare.json", "compare.png"}
    assert {path.name for path in out.iterdir()} == made
    told = json.loads((out / "compare.json").read_text())
    assert (told["recipe"]["name"], told["recipe"]["epochs"], told["seeds"]) == ("digits", 2, [0, 1])
    rows = told["rows"]
    assert {row["label"] for row in rows} == set(labels(choose("weight")))
    assert [row["accuracy"] for row in rows] == sorted((row["accuracy"] for row in rows), reverse=True)
    for row in rows:
        results = [json.loads((out / run / "result.json").read_text()) for run in row["runs"]]
        assert row["accuracies"] == [result["accuracy"] for result in results]
        assert row["accuracy"] == pytest.approx(statistics.fmean(row["accuracies"]))
        assert row["accuracies_recalibrated"] == [result["accuracy_recalibrated"] for result in results]
        assert row["sparsity"] == pytest.approx(statistics.fmean(result["sparsity"] for result in results))
        wanted = {"lottery": 8, "magnitude": 2 + 5, "lr-rewinding": 4}.get(row["method"], 2)
        assert {row["epochs"]} == {result["epochs"] for result in results} == {wanted}
        deviation = 100 * statistics.stdev(row["accuracies"])
        assert f"| {row['label']} " in said
        assert f"{100 * row['accuracy']:.2f} ± {deviation:.2f}" in said
    homes = {row["label"]: [out / run for run in row["runs"]] for row in rows}
    for gibbs, reinit in zip(homes["gibbs"], homes["reinit"]):
        ours, theirs = load_file(reinit / "masks.safetensors"), load_file(gibbs / "masks.safetensors")
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)

    before = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*") if path.is_file()}
    assert main(words) == 0
    again = capsys.readouterr().out
    assert again.splitlines()[1] == "nothing is missing"
    assert again[again.index("| method") :] == said[said.index("| method") :]
    assert before == {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*") if path.is_file()}


def test_a_comparison_that_is_killed_goes_on_and_ends_the_same(place, capsys):
    """Killed within the second fleet, the one that starts from the first."""
    options = ["--epochs", "8", "--seeds", "3", "--structure", "filter", "--sparsity", "0.5", "--methods", "filter-l1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    words = command(place, *options, "--out", str(place / "cut"))
    process = subprocess.Popen(
        [sys.executable, "-m", "gibbsprune", *words], cwd=place, env=environment, stdout=subprocess.PIPE, text=True
    )
    lines = (line for line in process.stdout)
    assert any(": 1 run of" in line for line in lines)
    assert any(": 1 run of" in line for line in lines)
    assert any("epoch 2/" in line for line in lines)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (place / "cut" / "compare.json").exists()
    assert main(words) == 0
    said = capsys.readouterr().out
    assert said.count(": 1 run of") == 1, "the first was finished before"
    assert main(command(place, *options, "--out", str(place / "whole"))) == 0
    assert without_times(place / "cut") == without_times(place / "whole")


def test_a_comparison_may_be_moved(place, capsys):
    options = command(place, "--epochs", "1", "--seeds", "0", "--methods", "magnitude", "--out")
    assert main([*options, str(place / "before")]) == 0
    (place / "before").rename(place / "after")
    capsys.readouterr()
    assert main([*options, str(place / "after")]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "nothing is missing"


def test_a_file_in_the_way_is_told(place, capsys):
    (place / "file").write_text("mine")
    assert main(command(place, "--methods", "dense", "--out", str(place / "file"))) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_unreadable_entry_names_what_is_allowed():
    with pytest.raises(UserError, match=r"^method is '': allowed are 'gibbs', 'dense'"):
        Entry.read(":rounds=2")
