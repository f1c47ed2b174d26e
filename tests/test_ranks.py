"""Runs of two processes: the same masks on both, saved runs that do not depend on their number, and how they fail."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import rank_steps
from gibbsprune import cli
from gibbsprune.cli import launch
from gibbsprune.data import load
from gibbsprune.errors import UserError
from gibbsprune.models import build
from gibbsprune.training import environment, ranks, run
from gibbsprune.training.folder import read_metrics
from gibbsprune.training.progress import PlainProgress

HERE = Path(__file__).parent
EPOCHS = 4
RUN = ["--data", "few.npz", "--model", "resnet8", "--recipe", "digits", "--epochs", str(EPOCHS), "--device", "cpu"]
SETTINGS = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


def two_ranks(*command, cwd=None):
    """Starts two processes as torchrun would, without its own report when they fail."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **SETTINGS}
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [
        subprocess.Popen(
            [sys.executable, *command], cwd=cwd, env={**os.environ, **shared, "RANK": r, "LOCAL_RANK": r}, **pipe
        )
        for r in "01"
    ]


def finish(processes, codes=(0, 0)):
    """What two processes said, once they have ended as they should."""
    said = []
    for process in processes:
        try:
            said.append(process.communicate(timeout=200))
        finally:
            process.kill()
    assert [process.returncode for process in processes] == list(codes), said
    return said


def train(*arguments, cwd):
    return two_ranks("-m", "gibbsprune", "train", *arguments, cwd=cwd)


# -- steps -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_ranks_take_the_same_steps(tmp_path):
    (said, error), (other, silence) = finish(two_ranks(HERE / "rank_steps.py", tmp_path, cwd=HERE), codes=(2, 2))
    sentence = "gibbsprune: a batch of 3 cannot be divided among 2 processes: each needs two images\n"
    assert error + silence == sentence, "what is wrong for both is told once"
    assert other == ""
    assert said.endswith("is already finished\n")
    first, second = (torch.load(tmp_path / f"rank-{rank}.pt", weights_only=True) for rank in range(2))
    for case in rank_steps.CASES:
        one, other = first[case], second[case]
        assert len(one["masks"]) >= 4 * rank_steps.EPOCHS
        for mine, theirs in zip(one["masks"], other["masks"], strict=True):
            assert mine.keys() == theirs.keys()
            assert all(torch.equal(mine[name], theirs[name]) for name in mine), f"{case}: masks at every step"
        assert one["records"] == other["records"]
        assert one["results"] == other["results"]
        assert_equal(without_layers(one["state"]), without_layers(other["state"]))
        assert_equal(one["final"], other["final"])
    drop = [found["dropout"]["state"]["engines"][0]["layer_state"] for found in (first, second)]
    assert not torch.equal(*drop), "each rank drops other activations"

    # Against one process: the same global batches, and without batch norm the same training up to rounding.
    alone = rank_steps.train("own")
    for whole, mine, theirs in zip(alone["images"], first["own"]["images"], second["own"]["images"], strict=True):
        assert [len(whole), len(mine), len(theirs)] == [51, 26, 25]
        assert torch.equal(torch.stack([mine[:25], theirs], 1).flatten(), whole[:50])
    values = [found["state"]["engines"][0]["optimizer"]["values"] for found in (alone, first["own"])]
    assert float((values[0] - values[1]).abs().mean()) < 1e-4
    for whole, mine in zip(alone["masks"], first["own"]["masks"]):
        same = torch.cat([(whole[name] == mine[name]).flatten() for name in whole])
        assert float(same.float().mean()) > 0.998
    for whole, mine in zip(alone["records"], first["own"]["records"]):
        assert mine[0]["loss"] == pytest.approx(whole[0]["loss"], rel=1e-3)
        assert mine[0]["beta"] == whole[0]["beta"]
        assert mine[1]["accuracy"] == pytest.approx(whole[1]["accuracy"], abs=0.01)

    for found in (first, second):
        for name, sentence in found["refusals"].items():
            assert sentence == (
                f"the processes of this run differ in the {name} before epoch 1: all of them need the same hardware, "
                "versions and data"
            )
        assert found["refusals"].keys() == {"weights", "masks", "streams"}
        assert_equal(found["shared"], {"of": [0, torch.ones(3)]})
        assert found["any"] == [True, False]
        assert found["finished"][0][0]["accuracy"] == found["finished"][1][0]["accuracy"]


def without_layers(state):
    """The state of a fleet but for the stream of its dropout layers, which is each rank's own."""
    return [{**engine, "layer_state": 0} for engine in state["engines"]]


def assert_equal(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0)


# -- runs ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a small piece of digits."""
    folder, digits = tmp_path_factory.mktemp("ranks"), load("digits")
    few = {name: getattr(digits, name)[:192].numpy() for name in ("x_train", "y_train", "x_test", "y_test")}
    np.savez(folder / "few.npz", **few)
    return folder


def final(folder):
    """What a run ends with, times left out."""
    result = json.loads((folder / "result.json").read_text())
    return {"metrics": metrics(folder), **{k: v for k, v in result.items() if k != "seconds"},
            "model": (folder / "model.safetensors").read_bytes()}  # fmt: skip


def metrics(folder):
    return [{k: v for k, v in record.items() if k != "seconds"} for record in read_metrics(folder / "metrics.jsonl")]


def check_finished(folder):
    """All epochs, and a model that loads and has the zeros of its masks."""
    assert [record["epoch"] for record in metrics(folder)] == list(range(1, EPOCHS + 1))
    model = build("resnet8", classes=10, channels=1)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    for name, mask in load_file(folder / "masks.safetensors").items():
        assert not model.get_submodule(name).weight[~mask.bool()].any()
    assert json.loads((folder / "result.json").read_text())["sparsity"] == pytest.approx(0.9, abs=0.01)


@pytest.mark.slow
def test_start_on_two_die_and_resume_on_two_or_on_one(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    whole = subprocess.run(
        [*torchrun, "-m", "gibbsprune", "train", *RUN, "--out", "whole"],
        cwd=place, env={**os.environ, **SETTINGS}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert whole.returncode == 0, whole.stderr
    assert whole.stdout.count("epoch 1/4") == whole.stdout.count("See whole/summary.md.") == 1, "one process speaks"
    check_finished(place / "whole")
    assert json.loads((place / "whole" / "run.json").read_text())["ranks"] == 2

    processes = train(*RUN, "--out", "cut", cwd=place)
    while len(metrics(place / "cut")) < 2:
        assert processes[1].poll() is None
        time.sleep(0.002)
    processes[1].send_signal(signal.SIGKILL)
    (said, error), _ = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [2, -9], error
    assert error.startswith("gibbsprune: another process of this run has ended (")
    assert error.count("\n") == 1
    assert said.splitlines()[-1].endswith("gibbsprune train --resume cut")
    shutil.copytree(place / "cut", place / "one")

    finish(train("--resume", "cut", "--device", "cpu", cwd=place))
    assert final(place / "cut") == final(place / "whole"), "two, killed, two: bit for bit"

    assert cli.main(["train", "--resume", "one", "--device", "cpu"]) == 0
    assert "this run goes on in 1 process after 2; batch norm sees" in capsys.readouterr().out
    check_finished(place / "one")
    before = json.loads((place / "one" / "run.json").read_text())["resumed"][0]["epoch"]
    assert before >= 1
    assert metrics(place / "one")[:before] == metrics(place / "whole")[:before]


@pytest.mark.slow
def test_start_on_one_and_resume_on_two(place, monkeypatch):
    class Cutting(PlainProgress):
        def epoch(self, number, records):
            if number == 2:
                raise KeyboardInterrupt

    monkeypatch.chdir(place)
    options = cli.build_parser().parse_args(["train", *RUN])
    specs = cli.train.chosen_specs(options, cli.train.chosen_recipe(options))
    with pytest.raises(KeyboardInterrupt):
        run.start(specs, out="single", device="cpu", progress=Cutting())
    before = metrics(place / "single")
    (said, _), (other, _) = finish(train("--resume", "single", cwd=place))
    assert "this run goes on in 2 processes after 1" in said
    assert other == ""
    check_finished(place / "single")
    assert metrics(place / "single")[:2] == before


# -- wrong use -------------------------------------------------------------------------------------------------------


def test_ranks_that_make_no_sense(monkeypatch, capsys):
    assert ranks.launched() == (0, 1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "x")
    with pytest.raises(UserError, match=r"^RANK='x' and WORLD_SIZE='2' must be whole numbers, as torchrun sets them$"):
        ranks.launched()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with (
        pytest.raises(UserError, match=r"process 0 of 2 cannot reach the others; start them with torchrun \(.*MASTER_"),
        ranks.join("cpu"),
    ):
        pass
    assert cli.main(["demo"]) == 2
    assert capsys.readouterr().err == (
        "gibbsprune: gibbsprune demo is one process; only gibbsprune train works under torchrun\n"
    )
    monkeypatch.setenv("RANK", "1")
    waited = []
    monkeypatch.setattr(launch.time, "sleep", waited.append)
    assert cli.main(["train", "--sparsity", "1.5"]) == 2
    assert waited == [launch.PATIENCE], "torchrun would end rank 0 before it has spoken"
    assert cli.main(["train", "--show-recipe"]) == 0
    assert cli.main([]) == 0
    with pytest.raises(SystemExit, match="0"):
        cli.main(["train", "--help"])
    assert capsys.readouterr() == ("", ""), "rank 0 says it"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert ranks.rank_device("auto") == torch.device("cuda:1")
    with pytest.raises(UserError, match=r"device 'cuda:0' is one GPU; of several processes each takes its own"):
        ranks.rank_device("cuda:0")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UserError, match=r"device 'cuda:2' is not available: torch sees 2 CUDA devices here"):
        ranks.rank_device("cuda")


LACKING = """
import os, sys
from gibbsprune import cli
from gibbsprune.errors import UserError
from gibbsprune.training import ranks

def resolve(name):
    raise UserError("device 'cuda:1' is not available")

if os.environ["RANK"] == "1":
    ranks.resolve_device = resolve
sys.exit(cli.main(["train"]))
"""


def test_a_rank_without_a_device_says_so(tmp_path):
    waiting, lacking = two_ranks("-c", LACKING, cwd=tmp_path)
    try:
        said = lacking.communicate(timeout=60)
    finally:
        lacking.kill()
        waiting.kill()  # as torchrun does
        waiting.communicate()
    assert said == ("", "gibbsprune: device 'cuda:1' is not available\n")
    assert lacking.returncode == 2


HANGING = """
import time
from gibbsprune.training.ranks import join

with join("cpu", 10) as ranks:
    if ranks.rank == 1:
        time.sleep(200)
    ranks.any(True)
"""


def test_a_rank_that_does_not_answer_is_given_up(tmp_path):
    waiting, hanging = two_ranks("-c", HANGING, cwd=tmp_path)
    try:
        said = waiting.communicate(timeout=200)
    finally:
        waiting.kill()
        hanging.kill()
        hanging.communicate()
    sentence = "another process of this run has not answered for 10 seconds (--rank-timeout); it hangs or was stopped"
    assert said == ("", f"gibbsprune: {sentence}\n")
    assert waiting.returncode == 2


def test_small_images_take_one_thread(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before, digits = torch.get_num_threads(), load("digits")
    torch.set_num_threads(2)
    try:
        with environment.suitable_threads(digits, torch.device("cpu")):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        with environment.suitable_threads(digits, torch.device("cpu")):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
