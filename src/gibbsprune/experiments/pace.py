"""How long fleets take: measured on known devices, from trial steps elsewhere, corrected by what fleets took here."""

from __future__ import annotations

import itertools
import json
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..data.arrays import Arrays
from ..errors import UserError
from ..files import write_atomic
from ..training.fleet import Fleet
from ..training.places import Place
from ..training.spec import RunSpec

#: Milliseconds per model and step by device, network and number of runs (benchmarks/README.md).
MEASURED: dict[str, dict[str, dict[int, float]]] = {
    "NVIDIA H200": {
        "resnet20": {1: 1.73, 4: 0.674, 8: 0.525, 16: 0.447, 32: 0.422},
        "resnet56": {1: 4.58, 4: 1.839, 8: 1.426, 16: 1.216, 32: 1.15},
    },
}
#: Of drawing masks at every step, relative to weight-wise ones; measured for one run, and a guess for the chain.
SAMPLING = {"weight": 1.0, "kernel": 1.14, "filter": 1.07, "chromatic": 1.3}
#: Seconds until the first step of a fleet, on a GPU (compiling) and elsewhere; where a network was measured, its own.
START = {"cuda": 60.0, "cpu": 2.0}
STARTS = {"NVIDIA H200": {"resnet20": 40.0, "resnet56": 98.0}}
TESTING = 1.05  # evaluations and checkpoints on the way
RECORD = "pace.json"


@dataclass
class Pace:
    """Estimates seconds. ``trial`` gives the seconds of one step of one run where nothing was measured before."""

    device: str  # the GPU's name, or "cpu"
    steps: int = 390  # of one epoch
    trial: Callable[[RunSpec], float] | None = None
    correction: dict[str, float] = field(default_factory=dict)  # by network
    tried: dict[str, float] = field(default_factory=dict)
    sharing: int = 1  # fleets on the device at the same time

    def step_seconds(self, specs: Sequence[RunSpec]) -> float:
        """One step of all runs of a fleet together."""
        model, count = specs[0].model, len(specs)
        table = MEASURED.get(self.device, {}).get(model)
        if table is not None:
            seconds = between({runs: runs * ms / 1000 for runs, ms in table.items()}, count)
        else:
            seconds = count * self._tried(specs[0])
        seconds *= statistics.fmean(sampling(spec) for spec in specs)
        return seconds * self.correction.get(model, 1.0)

    def _tried(self, spec: RunSpec) -> float:
        if spec.model not in self.tried:
            if self.trial is None:
                raise UserError(f"the pace of {spec.model} on {self.device} is not known; no trial steps were possible")
            self.tried[spec.model] = self.trial(spec)
        return self.tried[spec.model]

    def seconds(self, specs: Sequence[RunSpec], done: int = 0) -> float:
        """A whole fleet, of which some epochs may be done already: its epochs, and the start of its engines.

        Of engines with as many runs as each other only the first compiles.
        """
        sizes = set(Counter(spec.own_epochs for spec in specs).values())
        return self.start(specs) * len(sizes) + self.training(specs, done)

    def training(self, specs: Sequence[RunSpec], done: int = 0) -> float:
        """A fleet's epochs after those done.

        Its engines, one for each length, start one after another and end together. Side by side they take about as long
        as halfway between one after another and fused into one.
        """
        longest, total = max(spec.own_epochs for spec in specs), 0.0
        starts = sorted({longest - spec.own_epochs for spec in specs})
        for begin, end in zip(starts, [*starts[1:], longest]):
            active = [
                [spec for spec in specs if longest - spec.own_epochs == start] for start in starts if start <= begin
            ]
            apart = sum(self.step_seconds(group) for group in active)
            fused = self.step_seconds(list(itertools.chain(*active)))
            total += (apart + fused) / 2 * max(0, end - max(begin, done))
        return self.sharing * TESTING * self.steps * total

    def start(self, specs: Sequence[RunSpec]) -> float:
        """Seconds until the first step of one of a fleet's engines."""
        usual = START["cpu" if self.device == "cpu" else "cuda"]
        return STARTS.get(self.device, {}).get(specs[0].model, usual)

    def learn(self, work: Place) -> None:
        """Corrects the estimates by what the fleets of this work folder took on this device."""
        ratios: dict[str, list[float]] = {}
        for row in records(work):
            if row["device"] == self.device:
                ratios.setdefault(row["model"], []).append(row["seconds"] / row["expected"])
        self.correction = {model: statistics.median(values) for model, values in ratios.items()}


def sampling(spec: RunSpec) -> float:
    """The relative cost of a run's masks."""
    if spec.method != "gibbs":
        return SAMPLING["weight"]
    return SAMPLING["chromatic" if spec.sampler == "chromatic" else spec.structure]


def between(points: dict[int, float], at: int) -> float:
    """On the line through the two nearest points, of which the outer ones go on; one point: in proportion."""
    known = sorted(points)
    if len(known) == 1:
        return points[known[0]] * at / known[0]
    right = next((i for i in range(1, len(known) - 1) if known[i] >= at), len(known) - 1)
    low, high = known[right - 1], known[right]
    return points[low] + (points[high] - points[low]) * (at - low) / (high - low)


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def of_device(device: torch.device, arrays: Arrays | None = None, work: Place | None = None) -> Pace:
    """The pace on a device; with ``arrays`` unknown networks are tried out, on nothing else than a few steps."""

    def trial(spec: RunSpec) -> float:
        assert arrays is not None
        plain = spec.replace(method="dense", settings={}, stretch=1)
        return Fleet([plain], arrays, device).trial_steps(3)

    images = 50_000 if arrays is None else len(arrays.x_train)
    pace = Pace(device_name(device), images // 128, trial if arrays is not None else None)
    if work is not None:
        pace.learn(work)
    return pace


def records(work: Place) -> list[dict[str, Any]]:
    """What fleets took: device, model, runs, epochs, seconds, and the seconds expected without correction."""
    file = work / RECORD
    try:
        rows = json.loads(file.read_text())
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}; it only holds times, and can be removed") from None
    if not isinstance(rows, list) or not all(map(_is_record, rows)):
        raise UserError(f"{file} does not hold the times of fleets; remove it")
    return rows


def _is_record(row: Any) -> bool:
    try:
        return isinstance(row["device"], str) and isinstance(row["model"], str) and row["seconds"] / row["expected"] > 0
    except (TypeError, KeyError, ZeroDivisionError):
        return False


def record(work: Place, device: str, specs: Sequence[RunSpec], epochs: int, seconds: float, expected: float) -> None:
    """Adds what some epochs of a fleet took, its start not counted."""
    row = {
        "device": device, "model": specs[0].model, "runs": len(specs), "epochs": epochs,
        "seconds": round(seconds, 2), "expected": round(expected, 2),
    }  # fmt: skip
    write_atomic(work / RECORD, json.dumps([*records(work), row], indent=1) + "\n")
