"""``gibbsprune compare``: the runs that it makes of its options, what it writes, that it goes on after being killed."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
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
from gibbsprune.training import pictures
from gibbsprune.training.comparison import LARGEST, Entry, choose, plan, train
from gibbsprune.training.comparison_picture import STYLES, draw_comparison
from gibbsprune.training.comparison_report import Row, result_table, spread, title, write_report
from gibbsprune.training.folder import RunFolder, read_metrics
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
        "gibbs", "dense", "l1", "magnitude", "lottery", "targeted-dropout", "targeted-dropout:ramping", "random-mask",
        "reinit", "gradual",
    ]  # fmt: skip
    assert labels(choose("kernel")) == [
        "gibbs", "dense", "targeted-dropout", "targeted-dropout:ramping", "filter-l1", "random-mask", "reinit",
        "gradual",
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


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--methods", "gibbs,magic"], f"method is 'magic': allowed are {listed(METHODS)}"),
        (["--methods", "l1,l1"], "l1 is named twice"),
        (["--methods", ","], "--methods is ','; it must be names separated by commas"),
        (["--methods", "l1", "--structure", "filter"], "structure is 'filter': allowed are 'weight' with method 'l1'"),
        (["--methods", "l1:rounds=3"], "method 'l1' has no setting 'rounds': allowed are penalty"),
        (["--methods", "l1:penalty=-1"], "penalty is '-1': allowed are numbers from 0"),
        (["--methods", "gibbs:stretch=0"], "stretch is '0' in 'gibbs:stretch=0'; it must be a whole number from 1"),
        (["--structure", "row"], "structure is 'row': allowed are 'weight', 'kernel', 'filter'"),
        (["--sparsity", "1"], "sparsity is 1.0: allowed are numbers from 0 up to but not 1"),
        (["--seeds", "2-1"], "--seeds: must be different seeds such as 0-15 or 0,3,7, but '2-1' was given"),
        (["--recipe", "soup"], "recipe is 'soup': allowed are 'paper', 'modern', 'digits'"),
        (["--method", "l1"], "unknown option --method; did you mean --methods?"),
    ],
)
def test_refusals_are_one_sentence_before_anything_is_trained(options, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *options]) == 2
    assert capsys.readouterr().err == f"gibbsprune: {sentence}\n"
    assert not any(tmp_path.iterdir())


# -- its runs ----------------------------------------------------------------------------------------------------------


def test_runs_of_equally_many_epochs_are_a_fleet_and_those_that_start_from_others_come_later(tmp_path):
    fleets = plan(choose("weight"), BASE, [0, 1], tmp_path)
    assert [sorted({cell.entry.label for cell in fleet}) for fleet in fleets] == [
        ["dense", "gibbs", "gradual", "l1", "random-mask", "targeted-dropout", "targeted-dropout:ramping"],
        ["lottery"],
        ["magnitude"],
        ["reinit"],
    ]
    assert [len(fleet) for fleet in fleets] == [14, 2, 2, 2]
    assert [fleet[0].spec.own_epochs for fleet in fleets] == [25, 100, 9, 25]
    cells = {(cell.entry.label, cell.spec.seed): cell for fleet in fleets for cell in fleet}
    for seed in (0, 1):
        assert cells["magnitude", seed].spec.setting("from") == str(cells["dense", seed].folder)
        assert cells["reinit", seed].spec.setting("from") == str(cells["gibbs", seed].folder)
        assert cells["magnitude", seed].spec.total_epochs == 25 + 9
    assert len({cell.folder for cell in cells.values()}) == 20


def test_filters_and_stretched_methods(tmp_path):
    filters = [
        cell for fleet in plan(choose("filter"), BASE.replace(structure="filter"), [0], tmp_path) for cell in fleet
    ]
    for cell in filters:
        source = {"thinet": "dense", "filter-l1": "dense", "reinit": "gibbs"}.get(cell.entry.method)
        assert (cell.source.entry.label if cell.source else None) == source
    entries = choose("weight", ["magnitude:stretch=2", "gibbs:stretch=2"])
    (first, second, third) = plan(entries, BASE, [0], tmp_path)
    assert [cell.spec.own_epochs for cell in (*first, *second, *third)] == [25, 50 + 9, 50]
    assert second[0].source is None  # no dense run of the same length: it trains its own


def test_folders_are_named_after_the_runs_wherever_they_lie(tmp_path):
    one, other = (plan(choose("weight"), BASE, [0, 1], tmp_path / place) for place in ("here", "there"))
    assert [f[0].fleet.name for f in one] == [f[0].fleet.name for f in other]
    seeds = plan(choose("weight"), BASE, [0, 2], tmp_path / "here")
    assert not {f[0].fleet for f in one} & {f[0].fleet for f in seeds}


def test_fleets_do_not_grow_without_bound(tmp_path):
    fleets = plan(choose("weight", ["dense"]), BASE, range(LARGEST + 3), tmp_path)
    assert [len(fleet) for fleet in fleets] == [LARGEST, 3]


def test_the_folder_tells_what_is_compared():
    assert default_name(BASE) == "compare-digits-resnet8-weight-0.9"
    assert default_name(BASE.replace(structure="filter", sparsity=0.75, epochs=5)) == (
        "compare-digits-resnet8-filter-0.75-e5"
    )


# -- table and picture -------------------------------------------------------------------------------------------------

ROWS = [
    Row(Entry.read("dense"), [0.98, 0.97, 0.99], [0.98, 0.98, 0.98], 0.0, 25, False, 61.0, ["a", "b", "c"]),
    Row(Entry.read("lottery:rounds=1"), [0.97, 0.96, 0.98], [0.97, 0.97, 0.97], 0.9, 50, True, 124.2, ["d", "e", "f"]),
    Row(Entry.read("gibbs"), [0.96, 0.96, 0.96], [0.95, 0.96, 0.97], 0.9004, 25, False, 70.0, ["g", "h", "i"]),
    Row(Entry.read("l1"), [0.1, 0.12, 0.11], [0.9, 0.8, 0.85], 0.9, 25, False, 3700.0, ["j", "k", "l"]),
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
    assert "20 runs in 4 fleets" in said
    assert "[1/4] gibbs, dense, l1" in said
    assert {path.name for path in out.iterdir()} == {"runs", "compare.md", "compare.json", "compare.png"}
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
        wanted = {"lottery": 8, "magnitude": 2 + 5}.get(row["method"], 2)
        assert {row["epochs"]} == {result["epochs"] for result in results} == {wanted}
        deviation = 100 * statistics.stdev(row["accuracies"])
        assert f"| {row['label']} " in said
        assert f"{100 * row['accuracy']:.2f} ± {deviation:.2f}" in said
    runs = {row["label"]: [out / run for run in row["runs"]] for row in rows}
    for gibbs, reinit in zip(runs["gibbs"], runs["reinit"]):
        ours, theirs = load_file(reinit / "masks.safetensors"), load_file(gibbs / "masks.safetensors")
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)

    before = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*") if path.is_file()}
    assert main(words) == 0
    again = capsys.readouterr().out
    assert again.count("finished before") == 4
    assert again[again.index("| method") :] == said[said.index("| method") :]
    assert before == {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*") if path.is_file()}


def test_a_comparison_that_is_killed_goes_on_and_ends_the_same(place, capsys):
    """Killed within the second fleet, the one that starts from the first."""
    options = ["--epochs", "2", "--seeds", "3", "--structure", "filter", "--sparsity", "0.5", "--methods", "filter-l1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    words = command(place, *options, "--out", str(place / "cut"))
    process = subprocess.Popen(
        [sys.executable, "-m", "gibbsprune", *words], cwd=place, env=environment, stdout=subprocess.DEVNULL
    )
    (_, later) = plan(choose("filter", ["filter-l1"]), _base(place), [3], place / "cut")
    deadline = time.monotonic() + 120
    while len(read_metrics(later[0].folder / "metrics.jsonl")) < 2 and time.monotonic() < deadline:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (place / "cut" / "compare.json").exists()
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "[1/2] dense: 1 runs of 2 epochs, finished before" in said
    assert "[2/2] filter-l1: 1 runs of 5 epochs, continued" in said
    assert main(command(place, *options, "--out", str(place / "whole"))) == 0
    assert without_times(place / "cut") == without_times(place / "whole")


def _base(place: Path) -> RunSpec:
    return RunSpec(data=str(place / "few.npz"), model=SMALL, structure="filter", sparsity=0.5, recipe=RECIPES["digits"],
                   epochs=2)  # fmt: skip


def test_a_folder_left_by_a_process_that_was_killed_too_early_is_used(place):
    """Killed after the folders were made and before anything was said about them."""
    options = command(place, "--epochs", "1", "--seeds", "0-1", "--methods", "dense", "--out", str(place / "early"))
    base = _base(place).replace(structure="weight", sparsity=0.9, recipe=RECIPES["digits"], epochs=1)
    ((cell, _),) = plan(choose("weight", ["dense"]), base, [0, 1], place / "early")
    cell.folder.mkdir(parents=True)
    assert main(options) == 0
    assert (cell.folder / "result.json").exists()


def test_a_file_in_the_way_is_told(place, capsys):
    (place / "file").write_text("mine")
    assert main(command(place, "--methods", "dense", "--out", str(place / "file"))) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_unreadable_entry_names_what_is_allowed():
    with pytest.raises(UserError, match=r"^method is '': allowed are 'gibbs', 'dense'"):
        Entry.read(":rounds=2")


def test_an_unfinished_comparison_that_was_moved_is_told(tmp_path):
    def planned(folder):
        entries = [Entry.read("gibbs"), Entry.read("reinit")]
        return plan(entries, RunSpec(model="resnet8"), [0], tmp_path / folder)

    (_, (later,)) = planned("before")
    RunFolder.create(later.fleet, [later.spec], {}).unlock()
    (tmp_path / "before").rename(tmp_path / "after")
    fleets = planned("after")
    sentence = f"^{fleets[1][0].fleet} starts from {later.spec.setting('from')}: the comparison was moved; move it back"
    with pytest.raises(UserError, match=sentence):
        train(fleets[1:], "cpu", None, lambda text: None)


def test_a_comparison_that_was_moved_is_told(tmp_path):
    ((cell,),) = plan([Entry.read("dense")], RunSpec(model="resnet8"), [0], tmp_path)
    with pytest.raises(UserError, match="the comparison was moved, or its runs were; move it back, or choose another"):
        cell.result()
