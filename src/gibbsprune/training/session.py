"""One training session: a fleet through its epochs, tested, saved, and stopped only where nothing is lost.

    train an epoch ─► test it ─► tell of it ─► save it ─► the next, unless the time is up or a signal came

``gibbsprune train``, the other processes of a run on several, and every fleet of a sweep are sessions. They differ in
what watches them (:class:`Watch`), where they are saved, and how long they may last.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..files import ReadError
from . import checkpoint
from .fleet import Fleet
from .interrupt import Interrupt, Interrupted
from .places import Place
from .ranks import ALONE, Ranks

MARGIN = 5.0  # seconds of a session's time that are not planned with

Record = dict[str, Any]


def start_seconds(kind: str) -> float:
    """How long a fleet takes to its first step on a kind of device, before one was seen there: a GPU's compiles."""
    return 60.0 if kind == "cuda" else 2.0


class Watch:
    """What is told of a session as it goes on; this one hears nothing of it."""

    def step(self, done: int, total: int) -> None:
        """Within an epoch."""

    def drawn(self, fleet: Fleet) -> None:
        """After an epoch, with the masks as they were drawn; a test puts the converged ones in their place."""

    def tested(self, session: Session, records: Sequence[Record | None]) -> None:
        """After a test, with a record of each run; None where it has not started."""

    def passed(self, session: Session, records: Sequence[Record | None]) -> None:
        """After a tested epoch was saved, where that was due."""


class Session:
    """A fleet on its way; ``history`` has the records of its tested epochs, run by run.

    Args:
        fleet: what is trained.
        folder: where checkpoints go; None writes none.
        test_every: epochs between two tests; the last one is always tested.
        save_every: epochs between two checkpoints, which are also at least ``save_seconds`` apart.
        save_seconds: see above; the last epoch is always saved.
        seconds: how long it may last; it stops, saved, before that.
        watch: what is told of it.
        ranks: the processes that train together; all stop after the same epoch.
    """

    def __init__(
        self,
        fleet: Fleet,
        folder: Place | None = None,
        *,
        test_every: int = 1,
        save_every: int = 1,
        save_seconds: float = 0.0,
        seconds: float = math.inf,
        watch: Watch | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.fleet, self.folder, self.ranks = fleet, folder, ranks
        self.test_every, self.save_every, self.save_seconds = test_every, save_every, save_seconds
        self.watch = watch or Watch()
        self.history: list[list[Record]] = [[] for _ in fleet.specs]
        self.earlier = 0.0  # seconds spent by processes before this one
        self.began = self._saved = time.monotonic()
        self.allowed = Allowance(seconds, start_seconds(fleet.device.type))

    @property
    def spent(self) -> float:
        """Seconds of this session, those of earlier processes included."""
        return self.earlier + time.monotonic() - self.began

    def load(self, state: dict[str, Any]) -> None:
        """Goes on from a checkpoint's state."""
        sound = {"fleet", "history", "spent"} <= state.keys() and isinstance(state["spent"], (int, float))
        if not sound or not _is_history(state["history"], len(self.fleet.specs)):
            raise ReadError(f"{self.folder} holds checkpoints of something else than a run")
        self.fleet.load_state_dict(state["fleet"])
        self.history, self.earlier = state["history"], state["spent"]

    def save(self) -> None:
        """Writes a checkpoint."""
        if self.folder is not None:
            state = {"fleet": self.fleet.state_dict(), "history": self.history, "spent": self.spent}
            checkpoint.save(self.folder, self.fleet.epoch, state)
        self._saved = time.monotonic()

    def train(self, interrupt: Interrupt) -> bool:
        """Trains what is left; False if the time was up first. The last state is saved either way."""
        fleet = self.fleet
        with interrupt.waiting():
            while fleet.epoch < fleet.epochs:
                if not self.allowed.epoch(fleet.starts_engine()):
                    self.save()
                    return False
                interrupt.begin_epoch()
                records = self._epoch(interrupt)
                stop = self.ranks.any(interrupt.requested)
                if self._due() or stop:
                    self.save()
                if records:
                    self.watch.passed(self, records)
                if stop:  # a signal that comes too late for this epoch to be saved waits for the next
                    raise Interrupted("stopped after an epoch")
            return self.allowed.end()

    def _epoch(self, interrupt: Interrupt) -> list[Record | None]:
        """Trains and, where that is due, tests; what the test said."""
        fleet, began = self.fleet, time.monotonic()

        def step(done: int, total: int) -> None:
            self.watch.step(done, total)
            interrupt.step(done, total)

        active = sum(wait <= fleet.epoch for wait in fleet.waits)
        trained = fleet.train_epoch(step)
        self.allowed.trained(active)
        if fleet.epoch % self.test_every and fleet.epoch < fleet.epochs:
            return []
        self.watch.drawn(fleet)
        tested = fleet.evaluate()
        self.allowed.tested()
        took, records = round(time.monotonic() - began, 4), list[Record | None]()
        for past, train, test, wait in zip(self.history, trained, tested, fleet.waits):
            told = {f"test_{key}": value for key, value in test.items()}
            record = {"epoch": fleet.epoch - wait, **train, **told, "seconds": took} if fleet.epoch > wait else None
            records.append(record)
            past.extend([record] if record is not None else [])
        self.watch.tested(self, records)
        return records

    def _due(self) -> bool:
        """Whether to save now."""
        epoch, waited = self.fleet.epoch, time.monotonic() - self._saved
        return epoch == self.fleet.epochs or (epoch % self.save_every == 0 and waited >= self.save_seconds)

    def curves(self) -> list[list[Record]]:
        """The tested epochs of each run, less their times."""
        return [[{key: record[key] for key in record if key != "seconds"} for record in past] for past in self.history]


class Allowance:
    """Whether one more epoch fits into the time that a session has, and what its epochs took.

    ``seen`` are the seconds of epochs by the number of runs that trained in them; those that started an engine do not
    count.
    """

    def __init__(self, seconds: float, start: float) -> None:
        self.began = self.last = time.monotonic()
        self.seconds, self.start = seconds, start
        self.starting = True
        self.longest = self.test = 0.0
        self.seen: dict[int, list[float]] = {}
        self.started: float | None = None  # seconds of the first epoch

    def left(self) -> float:
        return self.seconds - (time.monotonic() - self.began)

    def epoch(self, starting: bool) -> bool:
        """Whether the next epoch, which may start an engine, would end in time."""
        self.starting = starting or self.started is None
        self.last = time.monotonic()
        return 1.5 * self.longest + self.starting * self.start + self.test + MARGIN <= self.left()

    def trained(self, runs: int) -> None:
        """An epoch of so many runs has ended."""
        took = time.monotonic() - self.last
        if not self.starting:
            self.longest = max(0.9 * self.longest, took)
            self.seen.setdefault(runs, []).append(took)
        elif self.started is None:
            self.started = took
        self.last = time.monotonic()

    def tested(self) -> None:
        """A test after that has ended."""
        self.test = max(self.test, time.monotonic() - self.last)

    def end(self) -> bool:
        """Whether there is time for the last tests."""
        return 4 * self.test + MARGIN <= self.left()


def _is_history(found: Any, runs: int) -> bool:
    """Whether it is one list of tested epochs per run, each with plain values by name."""
    if not isinstance(found, list) or len(found) != runs or not all(isinstance(past, list) for past in found):
        return False
    records, plain = [record for past in found for record in past], (int, float, str, type(None))
    sound = all(isinstance(record, dict) and isinstance(record.get("epoch"), int) for record in records)
    return sound and all(isinstance(value, plain) for record in records for value in record.values())


def all_diverged(records: Sequence[Record | None]) -> bool:
    """Whether no run has a finite loss any more."""
    return not any(record is None or math.isfinite(record["loss"]) for record in records)


def resume(session: Session, say: Callable[[str], object]) -> bool:
    """Loads the newest whole checkpoint of a session's folder; whether there was one."""
    assert session.folder is not None
    found = checkpoint.load_latest(session.folder, warn=say)
    if found is not None:
        session.load(found[1])
    return found is not None
