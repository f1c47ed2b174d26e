"""A user's own data and network, 2 × 3 runs, on a Ray cluster of two nodes: the results of this machine."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading

import pytest

from ray_cluster import two_nodes
from sweep_bench import begin, found, write_grid

EPOCHS = 24  # some seconds, so that a worker is killed in the middle
PATIENCE = 180  # seconds, many times what one sweep takes
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None or not sys.platform.startswith("linux"), reason="needs Ray, on Linux"
)


def watch(process: subprocess.Popen, kill: str = "") -> list[str]:
    """What it said; the worker that says the line ``kill`` first is killed at once."""
    said, pids, killed = [], {}, not kill
    watchdog = threading.Timer(PATIENCE, process.kill)
    watchdog.start()
    with process.stdout as lines:
        for line in lines:
            said.append(line.rstrip())
            if named := re.match(r"\[(\w+)\] on .*, process (\d+)", line):
                pids[named[1]] = int(named[2])
            if not killed and (named := re.match(r"\[(\w+)\] " + re.escape(kill), line)):
                os.kill(pids[named[1]], signal.SIGKILL)
                killed = True
    watchdog.cancel()
    assert process.wait(timeout=60) == 0, "\n".join(said)
    return said


@needs_ray
@pytest.mark.slow
def test_a_cluster_gives_the_results_of_this_machine_also_when_a_worker_is_killed(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # whatever token lies in the home of whoever runs the tests
    file = write_grid(tmp_path, EPOCHS)
    here, hurt = f"{tmp_path}/here", f"local://{tmp_path}/hurt"
    local = begin(file, here, "--at-most", "2")
    with two_nodes() as address:
        local_said = watch(local)
        cluster = [
            "--at-most",
            "2",
            "--engine",
            "ray",
            "--address",
            address,
            "--cpus",
            "0.5",
            "--checkpoint-every",
            "0",
        ]
        killed = watch(begin(file, hurt, *cluster), kill=f"epoch 2/{EPOCHS} ")  # the first is saved then
    assert killed[0] == "2 nodes, room for 4 fleets of 0.5 CPUs at a time"
    for lines in (local_said, killed):
        assert "nothing is missing" in lines[-3:]
    lost = [line for line in killed if "its worker was lost" in line]
    assert len(lost) == 1
    assert "its worker was lost (WorkerCrashedError); it is taken up again" in lost[0]
    resumed = [int(line.rpartition(" ")[2]) for line in killed if "continuing 2 runs from epoch" in line]
    assert len(resumed) == 1
    assert 1 <= resumed[0] <= EPOCHS
    assert len(found(here)) == 6
    assert found(here) == found(hurt)
    shown = sorted(line for line in local_said if " % (recal." in line)
    assert sorted(line for line in killed if " % (recal." in line) == shown, "one display shows all"
    assert not list((tmp_path / "hurt" / "work").glob("fleet-*"))
