"""``gibbsprune suite``: from the command line to results."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import fake_results
from gibbsprune.cli import main
from gibbsprune.experiments import drive, paper, planner, runner, store, suite
from gibbsprune.experiments.engines.processes import worker_command
from gibbsprune.experiments.orders import Orders
from gibbsprune.experiments.paper import Cell
from gibbsprune.training.folder import RunFolder
from gibbsprune.training.recipes import RECIPES
from gibbsprune.training.spec import RunSpec

RECIPE = RECIPES["digits"].replace(epochs=2, anneal_epochs=1, batch=128)


def tiny() -> list[Cell]:
    """A dense run, a Gibbs run, and one that starts from the latter."""

    def run(method, **options):
        return RunSpec("digits", "resnet8", method, recipe=RECIPE, **options)

    gibbs = run("gibbs", sparsity=0.75)
    again = run("reinit", sparsity=0.75, settings={"from": gibbs.name()})
    return [Cell(again, 1), Cell(run("dense"), 2), Cell(gibbs, 2)]


@pytest.fixture(autouse=True)
def small(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(suite.SUITES, "tiny", tiny)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def said(capsys, line: str) -> list[str]:
    assert main(["suite", *line.split()]) == 0
    return capsys.readouterr().out.splitlines()


def test_list_shows_cells_with_their_state(capsys):
    lines = said(capsys, "list paper --table III --arch resnet20")
    assert len(lines) == 12
    assert (
        lines[0] == "1  ready    cifar10-resnet20-gibbs-weight-square-0.9-s0  (Table II, Table III, Figure 3, Figure 4)"
    )
    assert sum(line.startswith("1  waiting") for line in lines) == 4


def test_what_follows_from_results_is_listed_and_counted(capsys, tmp_path):
    """A stretched run that did not converge is run once more; plan, list and status agree about it."""
    spec = paper.run("resnet20", stretch=2)
    before = said(capsys, "status paper --step 3")[2].split("|")
    store.write(tmp_path / "results" / "paper", spec, fake_results.result(spec) | {"agreement": 0.9})
    after = said(capsys, "status paper --step 3")[2].split("|")
    assert [int(b) - int(a) for a, b in zip(before[2:5], after[2:5])] == [1, 1, 0], "one cell more, one of them done"
    hot = f"3  ready    {paper.hotter(spec).name()}"
    assert any(line.startswith(hot) for line in said(capsys, "list paper --step 3 --max-stretch 2"))


def test_the_plan_is_shown_with_times_and_nothing_is_written(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(drive.pace, "device_name", lambda device: "NVIDIA H200")
    lines = said(capsys, "run paper --dry-run --budget 10m --step 1")
    assert "runs of resnet20, 200 epochs, about" in lines[0]
    assert lines[1] == "  cifar10-resnet20-dense-s0"
    assert lines[-1].endswith("cells do not fit")
    whole = said(capsys, "run paper --dry-run")[-1]
    assert re.fullmatch(rf"{len(paper.cells())} cells in \d+ fleets, about \d:\d\d:\d\d on NVIDIA H200", whole)
    table = said(capsys, "status paper --step 1,3")
    assert [line.split("|")[1].strip() for line in table[2:4]] == ["step 1", "step 3"]
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert main(["suite", "run", "paper", "--dry-run", "--on", "NVIDIA H200"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == whole, "the plan for another device"
    assert main(["suite", "run", "paper", "--dry-run", "--on", "abacus"]) == 2
    assert capsys.readouterr().err == "gibbsprune: nothing was measured on 'abacus'; it must be one of NVIDIA H200\n"
    assert list(tmp_path.iterdir()) == []


def test_a_suite_runs_in_the_order_of_its_sources_and_is_then_complete(capsys, tmp_path):
    specs = [cell.spec for cell in tiny()]
    lines = said(capsys, "run tiny --revision r7 --evaluate-every 2 --at-most 1 --export-state out")
    results = [line.partition(":")[0] for line in lines if " % (recal." in line]
    assert results == [specs[i].name() for i in (2, 0, 1)], "the source of the most important cell first"
    assert lines[-1] == "nothing is missing"
    for spec in specs:
        record = store.read(store.path(tmp_path / "results" / "tiny", spec))
        assert (record["revision"], record["fleet"]) == ("r7", 1)
    assert said(capsys, "run tiny") == ["nothing is missing"]
    assert said(capsys, "run tiny --dry-run") == ["3 cells are done, nothing is missing"]
    assert "| step 2 |     2 |    2 |" in said(capsys, "status tiny")[3]
    assert said(capsys, "import tiny out --results there --work w") == [
        "3 results into there, 0 files of unfinished work into w"
    ]
    assert len(list((tmp_path / "there").iterdir())) == 3
    assert main(["suite", "import", "paper", "out"]) == 2
    assert capsys.readouterr().err == "gibbsprune: out holds the state of the suite 'tiny', not of 'paper'\n"
    assert "--dry-run" not in said(capsys, "status tiny")[-1], "there is no rest"
    assert main(["suite", "run", "tiny", "--on", "abacus"]) == 2
    assert "--on abacus is for --dry-run" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["list", "status", "run"])
def test_a_damaged_result_is_not_taken_for_one(capsys, action):
    cell = tiny()[1]
    Path("results/tiny").mkdir(parents=True)
    Path("results/tiny", "other.json").write_text("{}")  # not of this suite
    Path("results/tiny", f"{cell.name}.json").write_text("")
    assert main(["suite", action, "tiny"]) == 2
    assert re.fullmatch(f"gibbsprune: {cell.name}.json cannot be read: .*; move it away: .*\n", capsys.readouterr().err)


def test_a_plan_does_not_promise_what_the_run_would_not_do(capsys):
    assert main(["suite", "run", "tiny", "--dry-run", "--on", "NVIDIA H200"]) == 2
    assert "resnet8 was not measured on NVIDIA H200; measured are resnet20, resnet56" in capsys.readouterr().err
    assert main(["suite", "run", "tiny", "--dry-run", "--device", "cpu,cpu"]) == 2
    assert "unknown device 'cpu,cpu'" in capsys.readouterr().err
    line = ["suite", "run", "paper", "--dry-run", "--on", "NVIDIA H200"]
    for more, ending in (([], "on NVIDIA H200"), (["--workers", "4"], "on NVIDIA H200 one after another")):
        assert main([*line, *more]) == 0
        assert capsys.readouterr().out.splitlines()[-1].endswith(ending)


def test_a_budget_cuts_and_the_rest_follows(capsys, tmp_path, monkeypatch):
    assert said(capsys, "run tiny --budget 1s")[-1].startswith("3 cells do not fit into the 0:0")
    assert said(capsys, "run tiny --budget 7s")[-1].startswith("3 cells do not fit"), "nothing is begun in vain"
    assert not (tmp_path / "runs" / "tiny").exists()
    with monkeypatch.context() as patch:
        patch.setattr(runner, "MARGIN", 100.0)
        lines = said(capsys, "run tiny --budget 20s --leave-unfinished --export-state out --export-limit 2")
    assert re.fullmatch(r"stopped after epoch 0 of 2: no more fits into the 0:(20|19) it had", lines[-1])
    assert [line[:8] for line in said(capsys, "list tiny")] == ["1  waiti", "2  begun", "2  begun"]
    assert re.fullmatch(
        r"2 files of together 0\.\d MiB in again", said(capsys, "export tiny again --export-limit 2")[-1]
    )
    assert {file.name for file in (tmp_path / "again").iterdir()} == {
        file.name for file in (tmp_path / "out").iterdir()
    }
    lines = said(capsys, "run tiny --budget 1s --export-state small --export-limit 1")
    assert lines[-1].startswith("left out of the state, which would be too large: work/fleet-")
    assert "from epoch" not in said(capsys, "run tiny --dry-run")[0]
    assert said(capsys, "import tiny out --results r --work w") == [
        "0 results into r, 2 files of unfinished work into w"
    ]
    assert said(capsys, "run tiny --results r --work w")[-1] == "nothing is missing"


def test_what_another_process_trains_is_left_to_it(capsys, tmp_path):
    """The rest is trained."""
    gibbs = tiny()[2].spec
    folder = tmp_path / "runs" / "tiny" / planner.fleet_key([gibbs])
    planner.begin(folder, [gibbs])
    held = RunFolder(folder)
    held.lock()
    lines = said(capsys, "run tiny")
    held.unlock()
    assert f"{folder.name} is being trained by another process: it is left to that one" in lines
    assert [line[:8] for line in said(capsys, "list tiny")] == ["1  waiti", "2  done ", "2  begun"]


def test_a_result_is_written_once(capsys, tmp_path):
    """A run whose weights are gone is trained again for them; what was published stays."""
    said(capsys, "run tiny")
    gibbs, reinit = tiny()[2].spec, tiny()[0].spec
    file = store.path(tmp_path / "results" / "tiny", gibbs)
    before = file.read_bytes()
    (tmp_path / "runs" / "tiny" / planner.FINISHED / f"{gibbs.name()}.safetensors").unlink()
    store.path(tmp_path / "results" / "tiny", reinit).unlink()
    lines = said(capsys, "run tiny --revision another")
    assert f"{gibbs.name()} was trained once more; its result, which was there, stays" in lines
    assert file.read_bytes() == before
    assert store.read(store.path(tmp_path / "results" / "tiny", reinit))["revision"] == "another"


@pytest.mark.parametrize(
    "content", ["null", "[1]", "[{}]", '[{"device": "cpu", "model": "m", "seconds": 1, "expected": 0}]']
)
def test_times_that_are_none_are_refused(capsys, tmp_path, content):
    (tmp_path / "runs" / "tiny").mkdir(parents=True)
    (tmp_path / "runs" / "tiny" / "pace.json").write_text(content)
    assert main(["suite", "run", "tiny", "--dry-run"]) == 2
    assert capsys.readouterr().err.endswith("pace.json does not hold the times of fleets; remove it\n")


def test_workers_end_when_the_command_does(tmp_path):
    """The time that a worker needs to start is the budget's, too."""
    orders = Orders(tmp_path, tmp_path, budget=100.0)
    command = worker_command(tmp_path / "fleet-x", orders, "cpu", 50.0, 1)
    assert 40 < float(command[command.index("--until") + 1]) - time.time() < 51


def test_ctrl_c_says_how_to_go_on(capsys, monkeypatch):
    def stopped(*orders, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(drive, "run", stopped)
    assert main(["suite", "run", "tiny"]) == 130
    assert capsys.readouterr().out == "stopped; the same gibbsprune suite command continues it\n"


def test_sigterm_leaves_the_state_behind_as_ctrl_c_does(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(drive, "run", lambda *orders, **options: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    assert main(["suite", "run", "tiny", "--export-state", "out"]) == 130
    assert capsys.readouterr().out == "stopped; the same gibbsprune suite command continues it\n"
    assert (tmp_path / "out" / "suite-state.json").exists()
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.slow
def test_stopped_workers_save_where_they_are(tmp_path):
    """A SIGTERM to the suite stops its workers once, at the end of their epoch."""
    script = Path(__file__).parent / "small_suite.py"
    line = f"run small --workers 2 --at-most 1 --evaluate-every 1 --results {tmp_path}/r --work {tmp_path}/w"
    with subprocess.Popen([sys.executable, script, *line.split()], stdout=subprocess.PIPE, text=True) as process:
        assert any("] epoch 1/6" in text for text in process.stdout)
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
    assert process.returncode == 130, rest
    assert "stopped; the same gibbsprune suite command continues it" in rest
    begun = planner.begun(tmp_path / "w")
    assert max(map(planner.epochs_done, begun)) >= 1
    for folder in map(RunFolder, begun):
        folder.lock()  # nobody works there any more
        folder.unlock()


@pytest.mark.slow
def test_workers_train_side_by_side(capfd, tmp_path):
    line = "suite run tiny --step 2 --workers 2 --at-most 1 --revision r7 --budget 1h"
    assert main(line.split()) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [", on auto" in line for line in lines[:2]] == [True, True]
    assert lines[-1] == "nothing is missing"
    for cell in tiny()[1:]:
        assert store.read(store.path(tmp_path / "results" / "tiny", cell.spec))["revision"] == "r7"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("run papers", "unknown suite 'papers'; suites are paper, rehearsal, tiny"),
        ("run paper --table V", "unknown table 'V'; it must be one of II, III, IV"),
        ("run paper --budget soon", "--budget: must be a time such as 90s, 25m or 2h, but 'soon' was given"),
        ("run paper --workers 0", "--workers must be at least 1, but 0 was given"),
        ("run paper --at-most 0", "--at-most must be at least 1, but 0 was given"),
        ("run paper --export-limit 0", "--export-limit must be at least 1, but 0 was given"),
        ("export paper out --export-limit 0", "--export-limit must be at least 1, but 0 was given"),
        ("import paper nowhere", "nowhere holds no whole state of a suite"),
        ("run rehearsal --results file/r", "cannot write file/r: Not a directory"),
        ("run rehearsal --work file/w", "file/w/pace.json cannot be read"),
        ("list rehearsal --arch vgg", "unknown arch 'vgg'; it must be one of resnet8"),
        ("fleet nowhere --results r", "nowhere/cells.json cannot be read"),
    ],
)
def test_mistakes_are_told_in_one_sentence(capsys, line, sentence, tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert main(["suite", *line.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"gibbsprune: {sentence}")
    assert error.count("\n") == 1


def test_the_rehearsal_has_every_kind_of_dependency():
    kinds = {cell.spec.method: suite.source(cell.spec) for cell in suite.rehearsal()}
    assert kinds["magnitude"] is not None
    assert kinds["reinit"] is not None
    assert all(cell.spec.data == "digits" for cell in suite.rehearsal())
    assert paper.cells() == suite.suite("paper")
