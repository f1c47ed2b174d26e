"""What runs on the nodes of a cluster: one task trains one fleet; a board collects the lines of all."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from typing import Any

import torch

from ... import __version__
from ...data.arrays import Arrays
from ...errors import UserError
from ...files import Busy
from ...training.environment import resolve_device
from ...training.places import place
from ...training.spec import RunSpec
from .. import fleets, pace
from .here import clear

LEAVING = 60.0  # seconds in which the worker of a lost node may still hold its fleet's folder


class Board:
    """What fleets tell, in the order in which it came, each taken once."""

    def __init__(self) -> None:
        self.events: list[fleets.Event] = []

    def tell(self, event: fleets.Event) -> None:
        self.events.append(event)

    def take(self) -> list[fleets.Event]:
        events, self.events = self.events, []
        return events


def train(job: fleets.Job, arrays: Arrays, board: Any, threads: int, wanted: str) -> bool:
    """Trains a fleet from where it was; False if its budget ended first."""
    import ray

    host, folder = socket.gethostname(), place(job.folder)
    if __version__ != wanted:
        raise UserError(f"gibbsprune is {__version__} on {host}, but {wanted} where the sweep is run")
    if not (folder / "run.json").exists():
        raise UserError(f"{host} does not see {folder}; results and work must lie where every node reaches them")
    torch.set_num_threads(threads)
    said: list[Any] = []

    def tell(event: fleets.Event) -> None:
        said[:] = [board.tell.remote(event)]

    tell({"fleet": fleets.short(folder), "text": f"on {host}, process {os.getpid()}"})
    began = time.monotonic()
    try:
        while True:
            with contextlib.suppress(Busy) if time.monotonic() < began + LEAVING else contextlib.nullcontext():
                return fleets.train(job, arrays, tell)
            time.sleep(1)
    finally:
        clear(resolve_device(job.device))
        ray.wait(said, timeout=10)  # so that the last line is there before the result


def device_name(device: str) -> str:
    """What a worker trains on."""
    return pace.device_name(resolve_device(device))


def trial(spec: dict[str, Any], arrays: Arrays, device: str, path: str | None) -> float:
    """Seconds of one epoch of one run."""
    if path is not None and path not in sys.path:
        sys.path.insert(0, path)
    return pace.trial_epoch(RunSpec.from_dict(spec), arrays, resolve_device(device))
