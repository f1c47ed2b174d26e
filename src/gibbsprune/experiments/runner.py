"""Trains one fleet of cells within a time budget, from where it was: a cut run loses minutes, not runs."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch

from ..data.arrays import Arrays
from ..errors import UserError
from ..text import clock
from ..training import checkpoint
from ..training.environment import describe_environment
from ..training.finished import save_finished
from ..training.fleet import Fleet
from ..training.folder import RunFolder
from ..training.interrupt import Interrupt
from ..training.places import Place, remove_folder
from ..training.spec import RunSpec
from . import pace, planner, store

MARGIN = 5.0  # seconds of a budget that are not planned with


def run(
    specs: Sequence[RunSpec],
    arrays: Arrays,
    results: Place,
    work: Place,
    device: str = "cpu",
    budget: float = math.inf,
    evaluate_every: int = 10,
    checkpoint_seconds: float = 60.0,
    revision: str = "unknown",
    keep: Collection[str] | None = None,
    autotune: bool = False,
    sharing: int = 1,
    say: Callable[[str], None] = print,
) -> bool:
    """Trains ``specs`` as one fleet and writes their results; False if the budget (seconds) ended first.

    ``work`` keeps the fleet's cells and checkpoints until it is finished, in a folder named by a hash of the cells, and
    under ``finished`` the weights and masks of the cells named in ``keep`` (None: all), which others start from.
    ``sharing`` fleets train on the device at the same time.
    """
    began = time.monotonic()
    folder = work / planner.fleet_key(specs)
    planner.begin(folder, specs)
    held = RunFolder(folder) if isinstance(folder, Path) else None  # an object store has no locks
    if held is not None:
        held.lock()
    try:
        with Interrupt(tell=say) as interrupt:
            fleet = Fleet(specs, arrays, device, finished=work / planner.FINISHED, autotune=autotune)
            training = _Training(fleet, folder, began, budget, sharing, say)
            training.resume()
            if not training.train(interrupt, evaluate_every, checkpoint_seconds):
                return False
        finals = fleet.finish()
        _keep(fleet, work / planner.FINISHED, keep)
        shared = {
            "fleet": len(specs), "seconds": training.spent + time.monotonic() - began,
            "environment": {**describe_environment(torch.device(device)), "training": fleet.how}, "revision": revision,
        }  # fmt: skip
        for spec, final, curve in zip(specs, finals, training.curves):
            if store.path(results, spec).exists():
                say(f"{spec.name()} was trained once more; its result, which was there, stays")
                continue
            store.write(results, spec, {**final, "epochs": spec.total_epochs, "curve": curve, **shared})
            say(f"{spec.name()}: {100 * final['accuracy']:.2f} % (recal. {100 * final['accuracy_recalibrated']:.2f}), "
                f"sparsity {final['sparsity']:.4f}, agreement {final['agreement']:.6f}")  # fmt: skip
        training.note_pace(work)
    finally:
        if held is not None:
            held.unlock()
    with contextlib.suppress(OSError):
        (folder / planner.CELLS).unlink(missing_ok=True)  # first, so that what cannot be removed is not continued
    remove_folder(folder)
    return True


class _Training:
    """The epochs of a fleet: tested now and then, saved often, stopped before the budget ends."""

    def __init__(
        self, fleet: Fleet, folder: Place, began: float, budget: float, sharing: int, say: Callable[[str], None]
    ) -> None:
        self.fleet, self.folder, self.began, self.budget, self.say = fleet, folder, began, budget, say
        self.known = pace.Pace(pace.device_name(fleet.device), fleet.steps_per_epoch, sharing=sharing)
        self.late = 0.0  # seconds of starting engines after the first epoch
        self.curves: list[list[dict[str, Any]]] = [[] for _ in fleet.specs]
        self.spent = 0.0  # by earlier processes
        self.paced: tuple[int, float] | None = None  # the epoch after the first one here, and when it was reached

    def resume(self) -> None:
        found = checkpoint.load_latest(self.folder, warn=self.say)
        if found is not None:
            if not {"fleet", "curves", "spent"} <= found[1].keys():
                raise UserError(f"{self.folder} holds checkpoints of something else; without it its runs begin anew")
            self.fleet.load_state_dict(found[1]["fleet"])
            self.curves, self.spent = found[1]["curves"], found[1]["spent"]
            self.say(f"continuing {len(self.curves)} runs from epoch {self.fleet.epoch}")

    def train(self, interrupt: Interrupt, evaluate_every: int, checkpoint_seconds: float) -> bool:
        fleet, saved, longest, testing = self.fleet, time.monotonic(), 0.0, 0.0
        while fleet.epoch < fleet.epochs:
            start = time.monotonic()
            starting = self.paced is None or fleet.starts_engine()  # which compiles
            due = 1.5 * longest + (self.known.start(fleet.specs) if starting else 0.0)
            if start - self.began + due + testing + MARGIN > self.budget:
                return self._stop()
            interrupt.begin_epoch()
            metrics = fleet.train_epoch(interrupt.step)
            now = time.monotonic()
            if not starting:
                longest = max(0.9 * longest, now - start)
            elif self.paced is not None:
                self.late += max(0.0, now - start - longest)
            self.paced = self.paced or (fleet.epoch, now)
            if fleet.epoch % evaluate_every == 0 or fleet.epoch == fleet.epochs:
                self._test(metrics)
                testing = max(testing, time.monotonic() - now)
            if interrupt.requested or time.monotonic() - saved > checkpoint_seconds:
                self.save()
                saved = time.monotonic()
            interrupt.end_epoch()
        self.save()
        if time.monotonic() - self.began + 4 * testing + MARGIN > self.budget:  # the last tests would not be ready
            return self._stop()
        return True

    def _test(self, metrics: Sequence[dict[str, Any]]) -> None:
        fleet = self.fleet
        for curve, train, test, wait in zip(self.curves, metrics, fleet.evaluate(), fleet.waits):
            if fleet.epoch > wait:
                curve.append({"epoch": fleet.epoch - wait, **train, **{f"test_{key}": v for key, v in test.items()}})
        shown = " ".join(f"{100 * curve[-1]['test_accuracy']:.1f}" if curve else "–" for curve in self.curves)
        took = clock(time.monotonic() - self.began)
        self.say(f"epoch {fleet.epoch}/{fleet.epochs} {took} ({clock(self.left())} left): {shown}")

    def left(self) -> float:
        """Seconds until the last epoch, at the pace since the first one here, which compiled."""
        if self.paced is None or self.fleet.epoch <= self.paced[0]:
            return math.nan
        each = (time.monotonic() - self.paced[1]) / (self.fleet.epoch - self.paced[0])
        return each * (self.fleet.epochs - self.fleet.epoch)

    def note_pace(self, work: Place) -> None:
        """Leaves what the epochs here took, for the next estimate."""
        if self.paced is None or self.fleet.epoch <= self.paced[0]:
            return
        device, specs = self.known.device, self.fleet.specs
        if specs[0].model in pace.MEASURED.get(device, {}):
            epochs = self.fleet.epoch - self.paced[0]
            expected = self.known.training(specs, self.paced[0])
            pace.record(work, device, specs, epochs, time.monotonic() - self.paced[1] - self.late, expected)

    def save(self) -> None:
        state = {
            "fleet": self.fleet.state_dict(), "curves": self.curves, "spent": self.spent + time.monotonic() - self.began
        }  # fmt: skip
        checkpoint.save(self.folder, self.fleet.epoch, state, keep=2)

    def _stop(self) -> bool:
        self.save()
        fleet = self.fleet
        had = clock(self.budget)
        self.say(f"stopped after epoch {fleet.epoch} of {fleet.epochs}: no more fits into the {had} it had")
        return False


def _keep(fleet: Fleet, folder: Place, names: Collection[str] | None) -> None:
    """Saves the weights and masks of finished runs that others start from."""
    for k, spec in enumerate(fleet.specs):
        if names is None or spec.name() in names:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(parents=True)
            save_finished(folder / f"{spec.name()}.safetensors", fleet.finished(k))
