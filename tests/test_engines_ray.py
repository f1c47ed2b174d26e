"""Suites on a Ray cluster of two nodes: the same results as here, also when a worker is killed."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gibbsprune.experiments import store
from gibbsprune.training.places import place
from ray_cluster import two_nodes
from small_suite import EPOCHS, small

HERE = Path(__file__).parent
PATIENCE = 180  # seconds, many times what one suite takes
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None or not sys.platform.startswith("linux"), reason="needs Ray, on Linux"
)


def begin(results: str, *options: str) -> subprocess.Popen:
    """The suite as a user runs it, in a process of its own."""
    command = [sys.executable, str(HERE / "small_suite.py"), "run", "small", "--at-most", "1", "--evaluate-every", "1"]
    command += ["--results", f"{results}/results", "--work", f"{results}/work", "--revision", "r1", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def results(where: str) -> list[dict]:
    """All results, less how long and where they were trained."""
    found = [store.read(store.path(place(where) / "results", cell.spec)) for cell in small()]
    for record in found:
        assert record.pop("seconds") > 0
        assert record.pop("environment")["hardware"]["device"] == "cpu"
    return found


def watch(process: subprocess.Popen, kill: str = "") -> list[str]:
    """What it said; the worker that says the line ``kill`` first is killed at once."""
    said, pids, killed = [], {}, not kill
    watchdog = threading.Timer(PATIENCE, process.kill)
    watchdog.start()
    with process.stdout as lines:
        for line in lines:
            said.append(line.rstrip())
            if found := re.match(r"\[(\w+)\] on .*, process (\d+)", line):
                pids[found[1]] = int(found[2])
            if not killed and (found := re.match(r"\[(\w+)\] " + re.escape(kill), line)):
                os.kill(pids[found[1]], signal.SIGKILL)
                killed = True
    watchdog.cancel()
    assert process.wait(timeout=60) == 0, "\n".join(said)
    return said


@needs_ray
@pytest.mark.slow
def test_a_cluster_gives_the_results_of_this_machine_also_when_a_worker_is_killed(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # whatever token lies in the home of whoever runs the tests
    here, there, hurt = f"{tmp_path}/here", f"{tmp_path}/there", f"local://{tmp_path}/hurt"
    local = begin(here)
    with two_nodes() as address:
        local_said = watch(local)
        cluster = ["--engine", "ray", "--address", address, "--cpus", "0.5", "--checkpoint-every", "0"]
        said = watch(begin(there, *cluster))
        killed = watch(begin(hurt, *cluster), kill=f"epoch 2/{EPOCHS} ")  # the first is saved then
    assert said[0] == killed[0] == "2 nodes, room for 4 fleets of 0.5 CPUs at a time"
    assert said[-1] == killed[-1] == "nothing is missing"
    assert sum("its worker was lost" in line for line in said) == 0
    assert sum("its worker was lost (WorkerCrashedError); starting it again" in line for line in killed) == 1
    resumed = [int(line.rpartition(" ")[2]) for line in killed if "continuing 1 runs from epoch" in line]
    assert len(resumed) == 1
    assert 1 <= resumed[0] <= EPOCHS
    assert results(here) == results(there) == results(hurt)
    shown = sorted(line for line in local_said if " % (recal." in line)
    assert sorted(line.partition("] ")[2] for line in said if " % (recal." in line) == shown, "one display shows all"
    assert not list((tmp_path / "hurt" / "work").glob("fleet-*"))
