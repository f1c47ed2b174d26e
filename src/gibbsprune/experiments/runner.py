"""Runs a fleet of cells within a time budget, from where it was: a cut run loses minutes, not runs."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..data.arrays import Arrays
from ..training import checkpoint
from ..training.environment import describe_environment
from ..training.fleet import Fleet
from ..training.spec import RunSpec
from . import store


def run(
    specs: Sequence[RunSpec],
    arrays: Arrays,
    results: Path,
    work: Path,
    device: str = "cpu",
    budget: float = float("inf"),
    evaluate_every: int = 10,
    checkpoint_seconds: float = 60.0,
    revision: str = "unknown",
    say: Callable[[str], None] = print,
) -> bool:
    """Trains ``specs`` as one fleet and writes their results; False if the budget (seconds) ended first.

    ``work`` keeps the fleet's checkpoints, in a folder named by a hash of the cells.
    """
    began = time.monotonic()
    folder = work / fleet_key(specs)
    folder.mkdir(parents=True, exist_ok=True)
    fleet = Fleet(specs, arrays, device)
    curves: list[list[dict[str, Any]]] = [[] for _ in specs]
    spent = 0.0
    found = checkpoint.load_latest(folder, warn=say)
    if found is not None:
        state = found[1]
        fleet.load_state_dict(state["fleet"])
        curves, spent = state["curves"], state["spent"]
        say(f"continuing {len(specs)} runs from epoch {fleet.epoch}")
    saved = time.monotonic()
    epoch_seconds = 0.0
    while fleet.epoch < fleet.epochs:
        start = time.monotonic()
        if start - began + 1.5 * epoch_seconds + 3 > budget:
            _save(folder, fleet, curves, spent + start - began)
            say(f"stopped before epoch {fleet.epoch} of {fleet.epochs}: the budget of {budget:.0f} s is spent")
            return False
        metrics = fleet.train_epoch()
        if fleet.epoch % evaluate_every == 0 or fleet.epoch == fleet.epochs:
            for curve, train, test in zip(curves, metrics, fleet.evaluate()):
                curve.append({"epoch": fleet.epoch, **train, **{f"test_{key}": v for key, v in test.items()}})
            shown = " ".join(f"{100 * curve[-1]['test_accuracy']:.1f}" for curve in curves)
            left = (fleet.epochs - fleet.epoch) * (time.monotonic() - start)
            say(f"epoch {fleet.epoch}/{fleet.epochs} {time.monotonic() - began:.0f}s (left {left:.0f}s): {shown}")
        epoch_seconds = max(epoch_seconds * 0.9, time.monotonic() - start) if fleet.epoch > 1 else 0.0
        if time.monotonic() - saved > checkpoint_seconds:
            _save(folder, fleet, curves, spent + time.monotonic() - began)
            saved = time.monotonic()
    _save(folder, fleet, curves, spent + time.monotonic() - began)
    finals = fleet.finish()
    seconds = spent + time.monotonic() - began
    environment = describe_environment(torch.device(device))
    for spec, final, curve in zip(specs, finals, curves):
        store.write(results, spec, {
            **final, "epochs": spec.total_epochs, "curve": curve, "fleet": len(specs), "seconds": seconds,
            "environment": environment, "revision": revision,
        })  # fmt: skip
        say(f"{spec.name()}: {100 * final['accuracy']:.2f} % (recal. {100 * final['accuracy_recalibrated']:.2f}), "
            f"sparsity {final['sparsity']:.4f}, agreement {final['agreement']:.6f}")  # fmt: skip
    return True


def fleet_key(specs: Sequence[RunSpec]) -> str:
    """A name for the fleet's work folder, from all its cells."""
    text = json.dumps([spec.as_dict() for spec in specs], sort_keys=True)
    return f"fleet-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _save(folder: Path, fleet: Fleet, curves: list[list[dict[str, Any]]], spent: float) -> None:
    state = {"fleet": fleet.state_dict(), "curves": curves, "spent": spent}
    checkpoint.save(folder, fleet.epoch, state, keep=2)
