"""Small sweeps to test with: a user's own data and network, made-up results, and runs that cost nothing to plan."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from gibbsprune import data
from gibbsprune.sweeps import results
from gibbsprune.training import RECIPES, RunSpec, result
from gibbsprune.training.finished import Finished, save_finished
from gibbsprune.training.places import place

EPOCHS = 6
NETWORK = """
from torch import nn

def small(classes, channels):
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes),
    )
"""
GRID = """
base: {data: own.npz, model: "own_network:small", recipe: digits, epochs: EPOCHS, batch: 24, lr: 3e-3}
grid:
  structure: [weight, kernel]
  sparsity: [0.25, 0.5, 0.75]
"""


def write_grid(folder: Path, epochs: int = EPOCHS) -> Path:
    """A user's own data, network and sweep of 2 × 3 runs; the sweep's file."""
    digits = data.load("digits")
    few = {name: getattr(digits, name)[:192].numpy() for name in ("x_train", "y_train")}
    few |= {name: getattr(digits, name)[:100].numpy() for name in ("x_test", "y_test")}
    np.savez(folder / "own.npz", **few)
    (folder / "own_network.py").write_text(NETWORK)
    (folder / "grid.yaml").write_text(GRID.replace("EPOCHS", str(epochs)))
    return folder / "grid.yaml"


def command(file: Path, where: str, *options: str) -> list[str]:
    """``gibbsprune sweep run`` of a file, with results and work below a place."""
    line = [sys.executable, "-m", "gibbsprune", "sweep", "run", str(file), "--results", f"{where}/results"]
    return [*line, "--work", f"{where}/work", "--revision", "r1", "--evaluate-every", "1", *options]


def begin(file: Path, where: str, *options: str) -> subprocess.Popen:
    """The command as a user runs it, in a process of its own and another folder."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command(file, where, *options), cwd="/", env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip


def found(where: str) -> dict[str, dict]:
    """All results by name, less how long and where they were trained, with what each image was taken for."""
    there = {}
    for record in results.read_all(place(where) / "results"):
        assert record.pop("seconds") > 0
        assert record.pop("environment")["hardware"]["device"] == "cpu"
        there[record["name"]] = record
    return there


def run(method: str = "gibbs", epochs: int = 4, **options) -> RunSpec:
    """A run on digits that is only planned."""
    recipe = RECIPES["digits"].replace(epochs=epochs, anneal_epochs=epochs)
    return RunSpec("digits", options.pop("model", "resnet8"), method, recipe=recipe, **options)


def plain_result(**changes) -> dict:
    """A result as a session makes it, less the run that it is of."""
    return {
        "accuracy": 0.9, "accuracy_converged": 0.9, "accuracy_recalibrated": 0.91, "loss": 0.3, "agreement": 1.0,
        "sparsity": 0.9, "parameters": 100, "nonzero": 10, "layers": [], "epochs": 200, "curve": [], "fleet": 2,
        "seconds": 12.5, "environment": {}, "revision": "abc", **changes,
    }  # fmt: skip


def keep(folder: Path, finished: Finished) -> str:
    """A finished run's folder, with a made-up result; its path."""
    save_finished(folder, finished, result.make(finished.spec, plain_result()))
    return str(folder)
