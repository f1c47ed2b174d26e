"""Fleets side by side on this machine: one process per fleet, on the devices in turn."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

from ...data.arrays import Arrays
from ...training.environment import resolve_device
from ...training.folder import RunFolder
from ...training.places import Place
from .. import pace, planner
from ..orders import Orders
from ..planner import Planned
from . import Ended


class Processes:
    """At most ``workers`` at a time; each is a ``gibbsprune suite fleet``."""

    def __init__(self, orders: Orders, arrays: Arrays) -> None:
        self.orders, self.workers = orders, orders.workers or 1
        self.devices = orders.device.split(",")
        first, *_ = [resolve_device(name) for name in self.devices]
        self.known = pace.of_device(first, arrays, orders.work)
        self.known.sharing = math.ceil(self.workers / len(self.devices))
        threads = max(1, (os.cpu_count() or 1) // self.workers)
        self.environment = {"OMP_NUM_THREADS": str(threads), **os.environ}
        self.processes: dict[Place, tuple[subprocess.Popen[bytes], str]] = {}

    @property
    def running(self) -> Collection[Place]:
        return self.processes.keys()

    def pace(self) -> pace.Pace:
        return self.known

    def room(self) -> bool:
        return len(self.processes) < self.workers

    def _device(self) -> str:
        return min(self.devices, key=[device for _, device in self.processes.values()].count)

    def remark(self, left: float) -> str:
        return f", on {self._device()}"

    def submit(self, fleet: Planned, budget: float) -> None:
        device = self._device()
        planner.begin(fleet.folder, fleet.specs)
        if isinstance(fleet.folder, Path):
            held = RunFolder(fleet.folder)
            held.lock()  # or it is said to be busy now, and not by the worker
            held.unlock()
        process = subprocess.Popen(
            worker_command(fleet.folder, self.orders, device, budget, self.known.sharing),
            env=self.environment,
            start_new_session=True,  # a Ctrl-C is this process's; it stops them once
        )
        self.processes[fleet.folder] = process, device

    def poll(self) -> list[Ended]:
        found = []
        for folder in [folder for folder, (process, _) in self.processes.items() if process.poll() is not None]:
            process, _ = self.processes.pop(folder)
            failed = "" if process.returncode == 0 else "its last lines above say why"
            found.append(Ended(folder, not (folder / planner.CELLS).exists(), failed))
        return found

    def close(self) -> None:
        for process, _ in self.processes.values():
            process.terminate()
        for process, _ in self.processes.values():
            process.wait()


def worker_command(folder: Place, orders: Orders, device: str, budget: float, sharing: int) -> list[str]:
    """The command of a worker, which trains the fleet of one folder."""
    command = [sys.executable, "-m", "gibbsprune", "suite", "fleet", str(folder), "--results", str(orders.results)]
    command += ["--device", device, "--revision", orders.revision, "--evaluate-every", str(orders.evaluate_every)]
    command += ["--checkpoint-every", f"{orders.checkpoint_seconds:.0f}s"]
    command += ["--sharing", str(sharing)]
    command += ["--autotune"] if orders.autotune else []
    return command if math.isinf(budget) else [*command, "--until", f"{time.time() + budget:.1f}"]
