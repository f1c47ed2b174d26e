"""``gibbsprune sweep``: from the command line to results."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from gibbsprune.cli import main
from gibbsprune.files import Lock
from gibbsprune.sweeps import drive, planner, results
from gibbsprune.training.folder import RunFolder
from sweep_bench import EPOCHS, begin, command, found, write_grid

REHEARSAL = str(Path(__file__).parents[1] / "examples" / "rehearsal.yaml")
TINY = "base: {model: resnet8, epochs: 1}\ngrid: {method: [dense, gibbs], seed: [0, 1]}\n"


@pytest.fixture(autouse=True)
def tiny(tmp_path, monkeypatch, one_thread):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)


def said(capsys, line: str) -> list[str]:
    assert main(["sweep", *line.split()]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_sweep_runs_is_told_of_and_is_then_complete(capsys, tmp_path):
    assert said(capsys, "status tiny.yaml") == [
        "4 runs: 4 ready",
        "gibbsprune sweep run tiny.yaml --dry-run shows the plan for the rest, with times",
    ]
    assert re.fullmatch(
        r"4 runs in 1 fleets, about 0:\d\d on cpu", said(capsys, "run tiny.yaml --dry-run --device cpu")[-1]
    )
    assert not (tmp_path / "results").exists()
    assert "nothing is missing" in said(capsys, "run tiny.yaml --only *-s0 --revision r7")
    assert said(capsys, "status tiny.yaml --list") == [
        "done     digits-resnet8-dense-e1-s0",
        "ready    digits-resnet8-dense-e1-s1",
        "done     digits-resnet8-gibbs-weight-square-0.9-converged-e1-s0",
        "ready    digits-resnet8-gibbs-weight-square-0.9-converged-e1-s1",
    ]
    said(capsys, "run tiny.yaml")
    assert said(capsys, "status tiny.yaml") == ["4 runs: 4 done"]
    assert said(capsys, "run tiny.yaml --dry-run") == ["4 runs are done, nothing is missing"]
    assert said(capsys, "run tiny.yaml")[0] == "nothing is missing"
    assert {record["revision"] for record in results.read_all(tmp_path / "results" / "tiny")} >= {"r7"}


def test_the_page_of_a_sweep(capsys, tmp_path):
    pytest.importorskip("plotly", reason="needs plotly")
    assert said(capsys, "run tiny.yaml")[-1] == "Open report/tiny/index.html in a browser."
    assert "digits" in (tmp_path / "report" / "tiny" / "index.html").read_text()
    said(capsys, "report results/tiny --out page")
    assert (tmp_path / "page" / "index.html").exists()


def test_ctrl_c_says_how_to_go_on(capsys, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(drive.Driver, "run", stopped)
    assert main(["sweep", "run", "tiny.yaml"]) == 130
    assert capsys.readouterr().out == "stopped; the same gibbsprune sweep command continues it\n"


def test_sigterm_ends_it_as_ctrl_c_does(capsys, monkeypatch):
    monkeypatch.setattr(drive.Driver, "run", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    assert main(["sweep", "run", "tiny.yaml"]) == 130
    assert capsys.readouterr().out == "stopped; the same gibbsprune sweep command continues it\n"
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("run nowhere.yaml", "nowhere.yaml cannot be read: No such file"),
        ("run tiny.yaml --budget soon", "--budget is 'soon': allowed are times such as 90s, 25m or 2h"),
        ("run tiny.yaml --workers 0", "--workers is 0: allowed are whole numbers from 1"),
        ("run tiny.yaml --at-most 0", "--at-most is 0: allowed are whole numbers from 1"),
        ("run tiny.yaml --results file/r", "cannot write file/r: Not a directory"),
        ("run tiny.yaml --work file/w", "cannot write file/w: Not a directory"),
        ("run tiny.yaml --results file", "--results is file, which is not a folder that can be read"),
        ("run tiny.yaml --device abacus", "device is 'abacus'"),
        ("run tiny.yaml --only nothing", "no run of tiny has a name like nothing; sweep status shows all"),
        ("report nowhere", "nowhere is not a folder of results"),
        ("report empty", "empty holds no results"),
    ],
)
def test_mistakes_are_told_in_one_sentence(capsys, line, sentence, tmp_path):
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "empty").mkdir()
    assert main(["sweep", *line.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"gibbsprune: {sentence}")
    assert error.count("\n") == 1
    assert not (tmp_path / "results").exists() or "--work" in line


# -- killed ------------------------------------------------------------------------------------------------------------


def epochs(work: Path) -> int:
    """Up to which epoch the fleets of a work folder are saved, together."""
    return sum(map(planner.epochs_done, (file.parent for file in work.glob("fleet-*/run.json"))))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, one_thread) -> tuple[Path, dict]:
    """A user's own sweep, and its results when it is left in peace."""
    folder = tmp_path_factory.mktemp("whole")
    file = write_grid(folder)
    assert main(command(file, str(folder), "--at-most", "3")[3:]) == 0
    return file, found(str(folder))


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--workers", "2", "--device", "cpu,cpu"]], ids=["alone", "workers"])
def test_a_sweep_that_is_killed_goes_on_where_it_was_and_ends_the_same(tmp_path, whole, options):
    """The command itself with SIGKILL, in the middle; its workers do not outlive it."""
    file, results_in_peace = whole
    options = ["--at-most", "3", "--checkpoint-every", "0", *options]
    first = begin(file, str(tmp_path), *options)
    until, work = time.monotonic() + 60, tmp_path / "work"
    while epochs(work) < 2 and time.monotonic() < until:
        assert first.poll() is None, first.stdout.read()
        time.sleep(0.002)
    first.kill()
    first.communicate()
    for folder in [file.parent for file in work.glob("fleet-*/run.json")]:
        Lock(folder / ".lock").release()  # waits: workers see that the sweep is gone, save where they are, and end
    second = begin(file, str(tmp_path), *options)
    said, _ = second.communicate(timeout=180)
    assert second.returncode == 0, said
    resumed = [int(line.rpartition(" ")[2]) for line in said.splitlines() if "] continuing 3 runs from epoch" in line]
    assert resumed
    assert 1 <= min(resumed) <= EPOCHS
    assert found(str(tmp_path)) == results_in_peace
    assert not list(work.glob("fleet-*"))
    assert {row["model"] for row in json.loads((work / "pace.json").read_text())} == {"own_network:small"}


@pytest.mark.slow
def test_stopped_workers_save_where_they_are(tmp_path, whole):
    """A SIGTERM to the sweep stops its workers once, at the end of their epoch."""
    with begin(whole[0], str(tmp_path), "--workers", "2", "--at-most", "3") as process:
        assert any(f"] epoch 1/{EPOCHS}" in text for text in process.stdout)
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
    assert process.returncode == 130, rest
    assert "stopped; the same gibbsprune sweep command continues it" in rest
    assert epochs(tmp_path / "work") >= 1
    for folder in map(RunFolder, planner.begun(tmp_path / "work")):
        folder.lock()  # nobody works there any more
        folder.unlock()
