"""How long fleets take: what epochs took here before, remembered in the work folder, or a few steps to begin with."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..data.arrays import Arrays
from ..errors import UserError
from ..files import read_json, write_atomic
from ..training.fleet import Fleet
from ..training.places import Place
from ..training.session import Allowance, start_seconds
from ..training.spec import RunSpec

RECORD = "pace.json"
TESTING = 1.05  # tests and checkpoints on the way
Kind = tuple[str, str]  # data and network


def kind_of(spec: RunSpec) -> Kind:
    return spec.data, spec.model


@dataclass
class Pace:
    """Estimates seconds; what is not known is not a number.

    ``trial`` gives the seconds of an epoch of one run, from a few steps.
    """

    device: str  # the GPU's name, or "cpu"
    trial: Callable[[RunSpec], float] | None = None
    epochs: dict[Kind, dict[int, float]] = field(default_factory=dict)  # seconds by the number of runs that train
    starts: dict[Kind, float] = field(default_factory=dict)
    tried: dict[Kind, dict[int, float]] = field(default_factory=dict)

    def learn(self, work: Place) -> Pace:
        """Takes in what the fleets of a work folder took on this device."""
        found: dict[Kind, dict[int, list[float]]] = {}
        starts: dict[Kind, list[float]] = {}
        for row in records(work):
            if row["device"] == self.device:
                kind = row["data"], row["model"]
                found.setdefault(kind, {}).setdefault(row["runs"], []).append(row["seconds"])
                starts.setdefault(kind, []).append(row["start"])
        self.epochs = {
            kind: {runs: statistics.median(seconds) for runs, seconds in points.items()}
            for kind, points in found.items()
        }
        self.starts = {kind: statistics.median(seconds) for kind, seconds in starts.items()}
        return self

    def try_out(self, specs: Sequence[RunSpec], planning: bool = False) -> None:
        """Tries a few steps of each network that was not seen here; for a plan, what cannot be tried stays unknown."""
        for spec in specs:
            kind = kind_of(spec)
            if self.trial is not None and kind not in self.epochs and kind not in self.tried:
                try:
                    self.tried[kind] = {1: TESTING * self.trial(spec)}
                except UserError:
                    if not planning:
                        raise
                    self.tried[kind] = {}

    def epoch(self, kind: Kind, runs: int) -> float:
        """Seconds of an epoch in which so many runs train together."""
        points = self.epochs.get(kind) or self.tried.get(kind)
        return between(points, runs) if points else math.nan

    def start(self, specs: Sequence[RunSpec]) -> float:
        """Seconds until a fleet's first step."""
        return self.starts.get(kind_of(specs[0]), start_seconds("cpu" if self.device == "cpu" else "cuda"))

    def seconds(self, specs: Sequence[RunSpec], done: int = 0) -> float:
        """A whole fleet, of which some epochs may be done. Shorter runs start later, so that all end together."""
        kind, longest = kind_of(specs[0]), max(spec.own_epochs for spec in specs)
        begins = sorted({longest - spec.own_epochs for spec in specs})
        total = 0.0
        for begin, end in zip(begins, [*begins[1:], longest]):
            active = sum(longest - spec.own_epochs <= begin for spec in specs)
            total += self.epoch(kind, active) * max(0, end - max(begin, done))
        return self.start(specs) + total


def between(points: dict[int, float], at: int) -> float:
    """On the line through the two nearest points, of which the outer ones go on; one point: in proportion."""
    known = sorted(points)
    if len(known) == 1:
        return points[known[0]] * at / known[0]
    right = next((i for i in range(1, len(known) - 1) if known[i] >= at), len(known) - 1)
    low, high = known[right - 1], known[right]
    return max(0.0, points[low] + (points[high] - points[low]) * (at - low) / (high - low))


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def trial_epoch(spec: RunSpec, arrays: Arrays, device: torch.device) -> float:
    """Seconds of an epoch of one run, from a few steps that are not kept."""
    fleet = Fleet([spec.replace(method="dense", settings={}, stretch=1)], arrays, device)
    return fleet.trial_steps(3) * fleet.steps_per_epoch


def records(work: Place) -> list[dict[str, Any]]:
    """What epochs took: device, data, model, runs that trained, seconds of an epoch, and of the start.

    A file that is damaged says nothing: it holds only times.
    """
    try:
        rows = read_json(work / RECORD, list)
    except UserError:
        return []
    return [row for row in rows if _is_record(row)]


def _is_record(row: Any) -> bool:
    try:
        words = isinstance(row["device"], str) and isinstance(row["data"], str) and isinstance(row["model"], str)
        return words and isinstance(row["runs"], int) and row["runs"] > 0 and row["seconds"] > 0 and row["start"] >= 0
    except (TypeError, KeyError):
        return False


def note(work: Place, device: str, kind: Kind, seen: Allowance, tests: float = TESTING) -> None:
    """Adds what the epochs of a session took."""
    usual = min((statistics.fmean(took) for took in seen.seen.values()), default=0.0)
    start = max(0.0, (seen.started or 0.0) - usual)
    rows = []
    for runs, took in seen.seen.items():
        shared = {"device": device, "data": kind[0], "model": kind[1], "runs": runs, "epochs": len(took)}
        rows.append({**shared, "seconds": round(tests * statistics.fmean(took), 4), "start": round(start, 2)})
    if rows:
        write_atomic(work / RECORD, json.dumps([*records(work), *rows], indent=1) + "\n")
