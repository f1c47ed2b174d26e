"""One fleet of a sweep, trained from where it was: a cut fleet loses minutes, not runs."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..data.arrays import Arrays
from ..text import clock
from ..training import outputs, session
from ..training.environment import resolve_device, suitable_threads
from ..training.finished import images_of, save_finished
from ..training.fleet import Fleet
from ..training.folder import RunFolder
from ..training.interrupt import Interrupt
from ..training.places import Place, place, remove_folder
from . import pace, results
from .planner import RUNS

#: What a fleet tells: its name, and either a text or where it is (epoch, epochs, accuracies, seconds, left).
Event = dict[str, Any]
Tell = Callable[[Event], None]


@dataclass(frozen=True)
class Job:
    """A fleet by its work folder, and how to train it; plain values, which travel."""

    folder: str
    results: str
    device: str
    ends: float  # by the clock of the day
    evaluate_every: int
    checkpoint_seconds: float
    revision: str
    keep: list[str] | None  # the runs whose folders are kept; None: all
    autotune: bool
    path: str | None  # where the modules of networks lie


def short(folder: Place) -> str:
    """A fleet's name before each of its lines."""
    return folder.name.removeprefix("fleet-")[:4]


def train(job: Job, arrays: Arrays, tell: Tell) -> bool:
    """Trains a fleet and writes its results; False if its time was up first."""
    if job.path is not None and job.path not in sys.path:
        sys.path.insert(0, job.path)
    folder, device = RunFolder.open(place(job.folder)), resolve_device(job.device)
    say = Saying(short(folder.path), tell)
    with folder.held(), suitable_threads(arrays, device):
        fleet = Fleet(folder.specs, arrays, device, finished=folder.path.parent / RUNS, autotune=job.autotune)
        if not _train(fleet, folder, job, say):
            return False
    with contextlib.suppress(OSError):
        (folder.path / "run.json").unlink(missing_ok=True)  # first, so that what cannot be removed is not continued
    remove_folder(folder.path)
    return True


def _train(fleet: Fleet, folder: RunFolder, job: Job, say: Saying) -> bool:
    work, allowed = folder.path.parent, job.ends - time.time()
    with Interrupt(tell=say.note) as interrupt:
        how: dict[str, Any] = {"test_every": job.evaluate_every, "save_seconds": job.checkpoint_seconds}
        on_its_way = session.Session(fleet, folder.checkpoints, **how, seconds=allowed, watch=say)
        if session.resume(on_its_way, say.note):
            say.note(f"continuing {len(fleet.specs)} runs from epoch {fleet.epoch}")
        finished = on_its_way.train(interrupt)
    pace.note(work, pace.device_name(fleet.device), pace.kind_of(fleet.specs[0]), on_its_way.allowed)
    if not finished:
        say.note(
            f"stopped after epoch {fleet.epoch} of {fleet.epochs}: no more fits into the {clock(max(0.0, allowed))} "
            "it had"
        )
        return False
    for k, record in enumerate(outputs.records(on_its_way, fleet.finish(), job.revision)):
        _write(fleet, k, record, job, work, say)
    return True


def _write(fleet: Fleet, k: int, record: dict[str, Any], job: Job, work: Place, say: Saying) -> None:
    """A run's folder, if it is to be kept, and its result, if it has none yet."""
    spec, name, target = fleet.specs[k], record["name"], place(job.results)
    if job.keep is None or name in job.keep:
        save_finished(work / RUNS / name, fleet.finished(k), {**record, "images": images_of(fleet.arrays, spec)})
    if results.path(target, spec).exists():
        say.note(f"{name} was trained once more; its result, which was there, stays")
        return
    results.write(target, record, fleet.predictions[k])
    say.note(
        f"{name}: {100 * record['accuracy']:.2f} % (recal. {100 * record['accuracy_recalibrated']:.2f}), sparsity "
        f"{record['sparsity']:.4f}, agreement {record['agreement']:.6f}"
    )


class Saying(session.Watch):
    """Tells of a fleet, under its name."""

    def __init__(self, name: str, tell: Tell) -> None:
        self.name, self.tell = name, tell

    def note(self, message: str) -> None:
        self.tell({"fleet": self.name, "text": message})

    def passed(self, on_its_way: session.Session, records: Sequence[session.Record | None]) -> None:
        fleet, seen = on_its_way.fleet, on_its_way.allowed.seen
        took = [seconds for some in seen.values() for seconds in some]
        each = sum(took) / len(took) if took else math.nan
        where = {"fleet": self.name, "epoch": fleet.epoch, "epochs": fleet.epochs, "seconds": on_its_way.spent}
        accuracies = [None if record is None else record["test_accuracy"] for record in records]
        self.tell({**where, "left": each * (fleet.epochs - fleet.epoch), "accuracies": accuracies})
