"""Made-up results of all cells, to see tables, figures and the page when they are full."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

from gibbsprune.models import build
from gibbsprune.sweeps import results
from gibbsprune.threshold import kept_count
from gibbsprune.training.sites import run_sites
from gibbsprune.training.spec import RunSpec
from paper import cells


def plain_result(**changes) -> dict:
    """A result as the runner makes it, less the cell that it is of."""
    return {
        "accuracy": 0.9, "accuracy_converged": 0.9, "accuracy_recalibrated": 0.91, "loss": 0.3, "agreement": 1.0,
        "sparsity": 0.9, "parameters": 100, "nonzero": 10, "layers": [], "epochs": 200, "curve": [], "fleet": 2,
        "seconds": 12.5, "environment": {}, "revision": "abc", **changes,
    }  # fmt: skip


def accuracy(spec: RunSpec) -> float:
    """Plausible: falls with sparsity, rises with epochs and size, differs by method."""
    chance = random.Random(spec.name())
    base = 0.912 if spec.model == "resnet20" else 0.928
    if not spec.how.prunes:
        return base + chance.gauss(0, 0.002)
    lost = 0.006 / (1 - spec.sparsity) ** 0.6
    lost *= {"weight": 1.0, "kernel": 2.2, "filter": 3.0}[spec.structure] * (1 if spec.model == "resnet20" else 0.7)
    lost *= {"gibbs": 1.0, "random-mask": 2.5, "reinit": 2.7, "l1": 2.2}.get(spec.method, 1.6)
    lost *= (200 / max(200, spec.total_epochs)) ** 0.5
    lost *= {"binary": 1.15, "sign": 1.3}.get(str(spec.hamiltonian), 1.0) if spec.method == "gibbs" else 1.0
    return round(base - lost + chance.gauss(0, 0.002), 4)


@cache
def shape(spec: RunSpec) -> tuple[list[dict], int]:
    """The layers of a run, and all parameters of its network."""
    model, layers = build(spec.model, 10, 3), []
    for name, site in run_sites(spec, model).items():
        kept = kept_count(site.sparsity, site.count) * site.size
        weights = site.count * site.size
        layers.append({"name": name, "weights": weights, "kept": kept, "sparsity": 1 - kept / weights,
                       "neighbourhoods": site.count, "target": spec.sparsity})  # fmt: skip
    return layers, sum(p.numel() for p in model.parameters())


def result(spec: RunSpec) -> dict:
    plain = "thinet" if spec.method == "thinet" else "gibbs" if spec.how.prunes else "dense"
    layers, total = shape(RunSpec("cifar10", spec.model, plain, spec.structure, sparsity=spec.sparsity))
    prunable, kept = sum(layer["weights"] for layer in layers), sum(layer["kept"] for layer in layers)
    value = accuracy(spec)
    return {
        "accuracy": value, "accuracy_converged": value, "accuracy_recalibrated": value + 0.001, "loss": 0.4,
        "agreement": 1.0, "sparsity": 1 - kept / prunable if prunable else 0.0, "parameters": total,
        "nonzero": total - prunable + kept, "layers": layers, "epochs": spec.total_epochs, "curve": [], "fleet": 16,
        "seconds": 600.0, "revision": "made up",
        "environment": {"hardware": {"cpu": "none"}, "versions": {"torch": "2"}, "system": "none"},
    }  # fmt: skip


def record(spec: RunSpec, accuracy: float, **changes) -> dict:
    """A result as it is read."""
    values = {**result(spec), "accuracy": accuracy, **changes}
    return {"version": 1, "name": spec.name(), "spec": spec.as_dict(), **values}


def run_twice(**options) -> tuple[dict, dict]:
    """A stretched run that did not converge, and the one that takes its place."""
    spec = cells.run("resnet20", stretch=2, **options)
    return record(spec, 0.8012, agreement=0.9321), record(cells.hotter(spec), 0.8934, agreement=0.9995)


def write(folder: Path, spec: RunSpec, **changes) -> None:
    """The made-up result of one run."""
    values = result(spec) | changes
    results.write(folder, record(spec, **values))


def write_all(folder: Path) -> None:
    """Every cell of the paper's evaluation."""
    for cell in cells.cells():
        write(folder, cell.spec)
