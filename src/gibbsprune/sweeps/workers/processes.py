"""Fleets side by side on this machine: one process per fleet, on the devices in turn.

A process reads its job from its standard input and tells of its fleet on its standard output, one JSON object per line;
anything else that it writes is shown as it is. When its input ends, the sweep is gone: it saves where it is, and ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...files import parse_json
from ...training.folder import RunFolder
from ...training.places import Place
from .. import fleets
from ..display import Display
from ..pace import Pace
from ..planner import Planned
from . import Ended, Jobs
from .here import Here


@dataclass
class _Running:
    fleet: Planned
    process: subprocess.Popen[str]
    reader: threading.Thread
    device: str
    outcome: dict[str, Any] = field(default_factory=dict)

    def close(self) -> None:
        """After its end: what it told is all there."""
        self.reader.join(10)
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()


class Processes:
    """At most ``workers`` at a time, each on the device that has the fewest."""

    def __init__(self, jobs: Jobs, display: Display) -> None:
        self.jobs, self.display, self.workers = jobs, display, jobs.orders.workers or 1
        self.devices = jobs.orders.device.split(",")
        self.here = Here(jobs, display)  # which tries steps
        threads = max(1, (os.cpu_count() or 1) // self.workers)
        self.environment = {"OMP_NUM_THREADS": str(threads), **os.environ}
        self.fleets: dict[Place, _Running] = {}
        self.events: queue.Queue[tuple[Place, str]] = queue.Queue()

    @property
    def running(self) -> Collection[Place]:
        return self.fleets.keys()

    def pace(self) -> Pace:
        return self.here.pace()

    def count(self) -> int:
        return self.workers

    def room(self) -> bool:
        return len(self.fleets) < self.workers

    def submit(self, fleet: Planned, seconds: float) -> None:
        if isinstance(fleet.folder, Path):
            with RunFolder(fleet.folder).held():  # or it is said to be busy now, and not by the worker
                pass
        device = min(self.devices, key=[running.device for running in self.fleets.values()].count)
        command = [sys.executable, "-m", "gibbsprune.sweeps.workers.processes"]
        how: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        how |= {"text": True, "encoding": "utf-8", "errors": "replace", "env": self.environment}
        # In a session of its own: a Ctrl-C is this process's; it stops them once.
        process = subprocess.Popen(command, **how, start_new_session=True)
        reader = threading.Thread(target=self._read, args=(fleet.folder, process), daemon=True)
        self.fleets[fleet.folder] = _Running(fleet, process, reader, device)
        reader.start()
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # one that has died at once is seen by poll
            print(json.dumps(asdict(self.jobs.job(fleet, device, seconds))), file=process.stdin, flush=True)

    def _read(self, folder: Place, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self.events.put((folder, line.rstrip("\n")))

    def _show(self) -> None:
        """Everything that was told since the last time."""
        while not self.events.empty():
            folder, line = self.events.get()
            try:
                event = json.loads(line)
                if "finished" in event or "failed" in event:
                    self.fleets[folder].outcome = event
                else:
                    self.display.tell(event)
            except (ValueError, TypeError, KeyError):
                self.display.tell({"fleet": fleets.short(folder), "text": line})

    def poll(self) -> list[Ended]:
        self._show()
        found = []
        for folder, running in list(self.fleets.items()):
            if running.process.poll() is None:
                continue
            running.close()
            self._show()
            del self.fleets[folder]
            found.append(_ended(running))
        return found

    def close(self) -> None:
        for running in self.fleets.values():
            running.process.terminate()
        for running in self.fleets.values():
            running.process.wait()
            running.close()
        self._show()
        self.here.close()


def _ended(running: _Running) -> Ended:
    fleet, outcome, status = running.fleet, running.outcome, running.process.returncode
    if status < 0:
        return Ended(fleet.folder, fleet.specs, lost=f"signal {-status}")
    if "finished" in outcome:
        return Ended(fleet.folder, fleet.specs, finished=outcome["finished"])
    return Ended(fleet.folder, fleet.specs, failed=outcome.get("failed") or "its last lines above say why")


def main() -> int:
    """What a worker does."""
    job = fleets.Job(**parse_json(sys.stdin.readline(), "the job"))
    threading.Thread(target=_stop_with_the_sweep, daemon=True).start()

    def tell(event: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # nobody listens any more
            print(json.dumps(event), flush=True)

    try:
        from .here import load

        specs = RunFolder.open(job.folder).specs
        tell({"finished": fleets.train(job, load(specs[0].data), tell)})
    except UserError as error:
        tell({"failed": str(error)})
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _stop_with_the_sweep() -> None:
    sys.stdin.read()  # which ends with the process that would write there
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
