"""One fleet after the other, in this process."""

from __future__ import annotations

import gc
from collections.abc import Collection
from functools import lru_cache

import torch

from ... import data
from ...training.environment import resolve_device, suitable_threads
from ...training.places import Place
from ...training.spec import RunSpec
from .. import fleets
from ..display import Display
from ..pace import Pace, device_name, trial_epoch
from ..planner import Planned
from . import Ended, Jobs

load = lru_cache(maxsize=2)(data.load)


class Here:
    """``submit`` trains at once; its exceptions are the caller's."""

    def __init__(self, jobs: Jobs, display: Display) -> None:
        self.jobs, self.display = jobs, display
        several = jobs.orders.device.split(",") if jobs.orders.several else [jobs.orders.device]
        self.device, *_ = map(resolve_device, several)
        self.known = Pace(device_name(self.device), self._trial)
        self.ended: list[Ended] = []

    def _trial(self, spec: RunSpec) -> float:
        arrays = load(spec.data)
        with suitable_threads(arrays, self.device):
            return trial_epoch(spec, arrays, self.device)

    @property
    def running(self) -> Collection[Place]:
        return [ended.folder for ended in self.ended]

    def pace(self) -> Pace:
        return self.known

    def count(self) -> int:
        return 1

    def room(self) -> bool:
        return not self.ended

    def submit(self, fleet: Planned, seconds: float) -> None:
        job = self.jobs.job(fleet, str(self.device), seconds)
        finished = fleets.train(job, load(fleet.specs[0].data), self.display.tell)
        clear(self.device)
        self.ended.append(Ended(fleet.folder, fleet.specs, finished))

    def poll(self) -> list[Ended]:
        ended, self.ended = self.ended, []
        return ended

    def close(self) -> None:
        """Nothing runs between two calls."""
        load.cache_clear()


def clear(device: torch.device) -> None:
    """Forgets the last fleet: its memory, and what was compiled for it, of which there may be only so much."""
    gc.collect()
    if device.type == "cuda":
        torch.compiler.reset()
        torch.cuda.empty_cache()
