"""What runs on the nodes of a cluster: one task trains one fleet; a board collects the lines of all."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch

from ...data.arrays import Arrays
from ...errors import UserError
from ...files import Busy
from ...training.environment import resolve_device
from ...training.places import Place, place
from ...training.spec import RunSpec
from .. import pace, planner, runner
from .inline import clear

LEAVING = 60.0  # seconds in which the worker of a lost node may still hold its fleet's folder


@dataclass(frozen=True)
class Job:
    """A fleet by its work folder, and how to train it."""

    folder: str
    results: str
    device: str
    threads: int
    ends: float  # by the clock of the day
    evaluate_every: int
    checkpoint_seconds: float
    revision: str
    keep: Sequence[str]
    autotune: bool
    version: str  # of gibbsprune where the suite is run


class Board:
    """Lines of text, in the order in which they came, each taken once."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def take(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines


def version() -> str:
    """The version of gibbsprune that is installed here."""
    try:
        return metadata.version("gibbsprune")
    except metadata.PackageNotFoundError:
        return "unknown"


def short(folder: Place) -> str:
    """A fleet's name before each of its lines."""
    return folder.name.removeprefix("fleet-")[:4]


def train(job: Job, arrays: Arrays, board: Any) -> bool:
    """Train a fleet from where it was; False if its budget ended first."""
    import ray

    host = socket.gethostname()
    if version() != job.version:
        raise UserError(f"gibbsprune is {version()} on {host}, but {job.version} where the suite is run")
    folder = place(job.folder)
    if not (folder / planner.CELLS).exists():
        raise UserError(f"{host} does not see {folder}; results and work must lie where every node reaches them")
    torch.set_num_threads(job.threads)
    device = resolve_device(job.device)
    said: list[Any] = []

    def say(text: str) -> None:
        said[:] = [board.say.remote(f"[{short(folder)}] {text}")]

    say(f"on {host}, process {os.getpid()}")
    began = time.monotonic()
    try:
        while True:
            with contextlib.suppress(Busy) if time.monotonic() < began + LEAVING else contextlib.nullcontext():
                left = job.ends - time.time()
                return runner.run(
                    planner.cells_of(folder), arrays, place(job.results), folder.parent, str(device), left,
                    evaluate_every=job.evaluate_every, checkpoint_seconds=job.checkpoint_seconds,
                    revision=job.revision, keep=job.keep, autotune=job.autotune, say=say,
                )  # fmt: skip
            time.sleep(1)
    finally:
        clear(device)
        ray.wait(said, timeout=10)  # so that the last line is there before the result


def device_name(device: str) -> str:
    """What a worker trains on."""
    return pace.device_name(resolve_device(device))


def trial(spec: dict[str, Any], arrays: Arrays, device: str) -> float:
    """Seconds of one step of one run."""
    known = pace.of_device(resolve_device(device), arrays)
    assert known.trial is not None
    return known.trial(RunSpec.from_dict(spec))
