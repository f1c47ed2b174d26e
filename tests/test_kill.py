"""The kill test: a run killed with SIGKILL six times ends with the same bits as one left in peace."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from gibbsprune.data import load
from gibbsprune.training import checkpoint
from gibbsprune.training.folder import read_metrics

KILLS = 6
EPOCHS = 22  # more than six kills, each after at most three epochs, can use up


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a small piece of digits."""
    folder = tmp_path_factory.mktemp("kill")
    digits = load("digits")
    np.savez(
        folder / "few.npz",
        x_train=digits.x_train[:192].numpy(),
        y_train=digits.y_train[:192].numpy(),
        x_test=digits.x_test[:64].numpy(),
        y_test=digits.y_test[:64].numpy(),
    )
    return folder


def begin(place, *arguments):
    """Start the command line as a user would, in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "gibbsprune", "train", *arguments]
    return subprocess.Popen(
        command, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process):
    text, _ = process.communicate(timeout=80)
    assert process.returncode == 0, text


def lines(folder):
    return len(read_metrics(folder / "metrics.jsonl"))


def final(folder):
    """What a run ends with, times left out."""
    records = read_metrics(folder / "metrics.jsonl")
    result = json.loads((folder / "result.json").read_text())
    for record in [*records, result]:
        del record["seconds"]
    return {
        "model": (folder / "model.safetensors").read_bytes(),
        "masks": (folder / "masks.safetensors").read_bytes(),
        "metrics": records,
        "result": result,
        "snapshots": [path.read_bytes() for path in sorted((folder / "snapshots").iterdir())],
    }


@pytest.mark.slow
def test_six_kills_change_no_bit(place):
    run = ["--data", "few.npz", "--model", "resnet8", "--recipe", "digits", "--epochs", str(EPOCHS), "--device", "cpu"]
    started = time.monotonic()
    whole = begin(place, *run, "--out", "whole")
    assert any(line.strip() == "whole" for line in iter(whole.stdout.readline, ""))
    startup = time.monotonic() - started
    finish(whole)
    epoch_time = np.median([record["seconds"] for record in read_metrics(place / "whole" / "metrics.jsonl")])

    chance = random.Random(0)
    moments = []
    for kill in range(KILLS):
        fresh = not (place / "cut" / "run.json").exists()
        process = begin(place, *([*run, "--out", "cut"] if fresh else ["--resume", "cut"]))
        if kill % 4 == 3:  # while it starts, or soon after where it starts faster than the first time
            until, before = time.monotonic() + chance.uniform(0, startup), lines(place / "cut")
            while time.monotonic() < until and lines(place / "cut") < before + 2 and process.poll() is None:
                time.sleep(0.002)
        else:  # within some epoch, or while that is being saved
            assert any(line.strip() == "cut" for line in iter(process.stdout.readline, ""))
            target = lines(place / "cut") + chance.randint(0, 2)
            while lines(place / "cut") < target and process.poll() is None:
                time.sleep(0.002)
            time.sleep(chance.uniform(0, epoch_time))
        assert process.poll() is None, "the run ended before it could be killed"
        process.send_signal(signal.SIGKILL)
        process.communicate()
        moments.append(lines(place / "cut"))
    assert max(moments) > KILLS / 2, f"hardly anything was trained between the kills: {moments}"

    finish(begin(place, "--resume", "cut"))
    assert final(place / "cut") == final(place / "whole")
    states = [checkpoint.load_latest(place / name / "checkpoints")[1]["fleet"] for name in ("whole", "cut")]
    assert_same(*states)


def assert_same(one, other):
    """Nested states are equal, tensors bit for bit."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other):
            assert_same(a, b)
    elif hasattr(one, "numpy"):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.contiguous().numpy().tobytes() == other.contiguous().numpy().tobytes()
    else:
        assert one == other
