"""Tunes what the paper calls manually tuned: β ranges of the binary, sign and abs Hamiltonians, and the coupling c.

Short runs are a sweep over images held out of the *training* set; the test set is never looked at. A candidate takes
the default's place only if its masks converge and it is better by a margin. Short runs of few seeds differ by more
than that by chance: what they choose is a candidate for runs of full length, not a result.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checks import check_one_of
from ..data import HELD_OUT, SPLIT_SEED
from ..errors import UserError
from ..files import Missing, make_folder, read_json, write_atomic
from ..law import CONVERGED  # below it a setting's masks have not frozen: it has not pruned
from ..training.spec import RunSpec
from . import declare

MARGIN = 0.003  # of accuracy, by which a candidate must beat the default
SPARSITY = {"weight": 0.9, "kernel": 0.9, "filter": 0.75}

#: What is tried beside the default (empty), by structure and Hamiltonian. The binary β is the distance from N ln 2 and
#: rises linearly from −10, so that its last value says how early the layers switch.
_BINARY: list[dict[str, float]] = [{}, {"beta_end": 5.0}, {"beta_end": 10.0}, {"beta_end": 40.0}]
_SIGN: list[dict[str, float]] = [{}, {"beta_start": 1e-3}, {"beta_start": 0.1}, {"beta_end": 3.0}]
_ABS: list[dict[str, float]] = [{}, {"beta_start": 0.01}, {"beta_start": 0.7}, {"beta_end": 1e4}]
_C: list[dict[str, float]] = [{}, {"coupling": 1e-3}, {"coupling": 3e-3}, {"coupling": 0.03}, {"coupling": 0.1}]
CANDIDATES: dict[tuple[str, str], list[dict[str, float]]] = {
    (structure, hamiltonian): tried
    for structure, last in (("weight", "abs"), ("kernel", "quadratic"), ("filter", "quadratic"))
    for hamiltonian, tried in (("binary", _BINARY), ("sign", _SIGN), (last, _ABS if last == "abs" else _C))
}


@dataclass(frozen=True)
class Trial:
    """How candidates are compared; ``only`` are such as weight-abs, none: all."""

    data: str = "cifar10"
    model: str = "resnet20"
    epochs: int = 40
    seeds: tuple[int, ...] = (0, 1)
    holdout: int = 5000
    only: tuple[str, ...] = ()
    recipe: str | None = None
    sparsity: float | None = None

    def __post_init__(self) -> None:
        for name in self.only:
            check_one_of("--only", name, ("-".join(pair) for pair in CANDIDATES))

    def pairs(self) -> list[tuple[str, str]]:
        return [pair for pair in CANDIDATES if not self.only or "-".join(pair) in self.only]

    def run(self, pair: tuple[str, str], change: Mapping[str, float], seed: int) -> RunSpec:
        """A candidate's run of one seed."""
        structure, hamiltonian = pair
        sparsity = SPARSITY[structure] if self.sparsity is None else self.sparsity
        held = f"{self.data}{HELD_OUT}={self.holdout}"
        shared = {"data": held, "model": self.model, "recipe": self.recipe, "epochs": self.epochs, "seed": seed}
        drawn = {"law": "annealed", "units": "weights", "hamiltonian": hamiltonian}
        return declare.run_of({**shared, **drawn, "structure": structure, "sparsity": sparsity, **change})[-1]

    def sweep(self) -> declare.Sweep:
        """All its runs."""
        tried = [(pair, change) for pair in self.pairs() for change in CANDIDATES[pair]]
        return declare.of("the tuning", [self.run(*each, seed) for seed in self.seeds for each in tried])


def earlier(trial: Trial, out: Path) -> list[dict[str, Any]]:
    """What a file holds of pairs that are not tried now; one of other runs, or of something else, is refused."""
    try:
        found = read_json(out)
        theirs = {name: found[name] for name in ("data", "model", "epochs", "seeds", "held_out_training_images")}
        rows = [row for row in found["evidence"] if (row["structure"], row["hamiltonian"]) not in trial.pairs()]
    except Missing:
        return []
    except (UserError, TypeError, KeyError):
        raise UserError(f"{out} is there and holds no choice of a tuning; give another --out") from None
    ours = dict(zip(theirs, (trial.data, trial.model, trial.epochs, list(trial.seeds), trial.holdout)))
    for name, value in theirs.items():
        if value != ours[name]:
            raise UserError(f"{out} was tuned with {name} {value}, not {ours[name]}; give another --out")
    return rows


def write(trial: Trial, found: Mapping[str, dict[str, Any]], out: Path) -> None:
    """The choice with its evidence, as JSON, from the results by the names of the runs."""
    rows = [*earlier(trial, out), *evidence(trial, found)]
    pairs = [pair for pair in CANDIDATES if any((row["structure"], row["hamiltonian"]) == pair for row in rows)]
    first = found[trial.run(trial.pairs()[0], {}, trial.seeds[0]).name()]
    record = {
        "data": trial.data, "model": trial.model, "epochs": trial.epochs, "seeds": list(trial.seeds),
        "held_out_training_images": trial.holdout, "split_seed": SPLIT_SEED, "margin": MARGIN, "converged": CONVERGED,
        "choice": {"-".join(pair): choice(rows, pair) for pair in pairs}, "evidence": rows,
        "environment": first["environment"], "revision": first["revision"],
    }  # fmt: skip
    make_folder(out.parent)
    write_atomic(out, json.dumps(record, indent=1) + "\n")


def evidence(trial: Trial, found: Mapping[str, dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """One row per candidate: its accuracies on held-out training images, and how far its masks converged."""
    for pair in trial.pairs():
        for change in CANDIDATES[pair]:
            runs = [found[trial.run(pair, change, seed).name()] for seed in trial.seeds]
            accuracies = [run["accuracy"] for run in runs]
            yield {
                "structure": pair[0], "hamiltonian": pair[1], "change": change, "accuracies": accuracies,
                "mean": statistics.fmean(accuracies), "agreement": min(run["agreement"] for run in runs),
            }  # fmt: skip


def choice(rows: Sequence[dict[str, Any]], pair: tuple[str, str], converged: float = CONVERGED) -> dict[str, float]:
    """The change of the best candidate that converged, or none where the default is about as good."""
    mine = [row for row in rows if (row["structure"], row["hamiltonian"]) == pair]
    default = next(row for row in mine if not row["change"])
    best = max((row for row in mine if row["agreement"] >= converged or row is default), key=lambda row: row["mean"])
    return dict(best["change"]) if best["mean"] > default["mean"] + MARGIN else {}
