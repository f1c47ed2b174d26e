"""Tunes what the paper calls manually tuned: β ranges of the binary, sign and abs Hamiltonians, and the coupling c.

Short runs are compared on images held out of the *training* set; the test set is never looked at. A candidate takes
the default's place only if its masks converge and it is better by a margin. Short runs of few seeds differ by more
than that by chance: what they choose is a candidate for runs of full length, not a result.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.arrays import Arrays
from ..errors import UserError
from ..files import make_folder, write_atomic
from ..training.places import Place
from ..training.spec import RunSpec, default_recipe, scale_recipe
from . import drive, planner, store
from .paper import SPARSITY, Cell, changed

MARGIN = 0.003  # of accuracy, by which a candidate must beat the default
CONVERGED = 0.99  # the least agreement of its final draw with the converged mask: otherwise it has not pruned
SPLIT_SEED = 0
SPLIT = "split.json"  # in the work folder: how many images its runs left for their comparison

#: What is tried beside the default (empty), by structure and Hamiltonian. The binary β is the distance from N ln 2 and
#: rises linearly from −10, so that its last value says how early the layers switch.
_BINARY: list[dict[str, float]] = [{}, {"beta_end": 5.0}, {"beta_end": 10.0}, {"beta_end": 40.0}]
_SIGN: list[dict[str, float]] = [{}, {"beta_start": 1e-3}, {"beta_start": 0.1}, {"beta_end": 3.0}]
_ABS: list[dict[str, float]] = [{}, {"beta_start": 0.01}, {"beta_start": 0.7}, {"beta_end": 1e4}]
_C: list[dict[str, float]] = [{}, {"coupling": 1e-3}, {"coupling": 3e-3}, {"coupling": 0.03}, {"coupling": 0.1}]
CANDIDATES: dict[tuple[str, str], list[dict[str, float]]] = {
    ("weight", "binary"): _BINARY, ("weight", "sign"): _SIGN, ("weight", "abs"): _ABS,
    ("kernel", "binary"): _BINARY, ("kernel", "sign"): _SIGN, ("kernel", "quadratic"): _C,
    ("filter", "binary"): _BINARY, ("filter", "sign"): _SIGN, ("filter", "quadratic"): _C,
}  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """How candidates are compared."""

    data: str = "cifar10"
    model: str = "resnet20"
    epochs: int = 40
    seeds: tuple[int, ...] = (0, 1)
    holdout: int = 5000
    only: tuple[str, ...] = ()  # such as weight-abs; none: all

    def __post_init__(self) -> None:
        known = ["-".join(pair) for pair in CANDIDATES]
        for name in self.only:
            if name not in known:
                raise UserError(f"{name!r} is not tuned; it must be one of {', '.join(known)}")

    def pairs(self) -> list[tuple[str, str]]:
        return [pair for pair in CANDIDATES if not self.only or "-".join(pair) in self.only]

    def run(self, pair: tuple[str, str], change: dict[str, float], seed: int) -> RunSpec:
        structure, hamiltonian = pair
        plain = RunSpec(
            self.data, self.model, "gibbs", structure, hamiltonian, sparsity=SPARSITY[structure],
            recipe=scale_recipe(default_recipe(self.data), self.epochs), seed=seed,
        )  # fmt: skip
        return changed(plain, change)

    def cells(self) -> list[Cell]:
        return [Cell(self.run(pair, change, seed), 1)
                for seed in self.seeds for pair in self.pairs() for change in CANDIDATES[pair]]  # fmt: skip

    def split(self, arrays: Arrays) -> Arrays:
        """Training images only, some of which take the place of the test set."""
        return arrays.holdout(self.holdout, SPLIT_SEED)


def tune(trial: Trial, orders: drive.Orders, out: Path, say: Callable[[str], None] = print) -> bool:
    """Runs what is missing within the budget and writes choice and evidence; False if runs are missing still."""
    cells = trial.cells()
    known = check_split(trial, orders.work, orders.results)
    earlier(trial, out)  # a file of other runs is refused before anything is trained

    def prepare(arrays: Arrays) -> Arrays:
        held = trial.split(arrays)  # before anything is written down: it may be refused
        make_folder(orders.work)
        write_atomic(orders.work / SPLIT, json.dumps(known, indent=1) + "\n")
        return held

    drive.run(cells, cells, orders, prepare=prepare, say=say)
    missing = store.missing(orders.results, [cell.spec for cell in cells])
    if missing:
        say(f"{len(missing)} of {len(cells)} runs are missing; run the same command again")
        return False
    write(trial, orders.results, out)
    return True


def held_out(work: Place) -> dict[str, int]:
    """How many images the runs of a work folder leave for their comparison, by data; empty if it is no tuning's."""
    file = work / SPLIT
    try:
        return {str(name): int(count) for name, count in json.loads(file.read_text()).items()}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None


def split_as(work: Place, name: str, arrays: Arrays) -> Arrays:
    """The data as the runs of a work folder have them: of a tuning training images only."""
    count = held_out(work).get(name)
    return arrays if count is None else arrays.holdout(count, SPLIT_SEED)


def check_split(trial: Trial, work: Place, results: Place) -> dict[str, int]:
    """Refuses a folder whose runs on the same data were compared on other images; images held out, by data."""
    known = held_out(work)
    if not known and (planner.begun(work) or (work / planner.FINISHED).exists()):
        raise UserError(f"{work} holds the work of another suite; give another --work")
    if not planner.begun(work) and not store.names(results):
        known = {}  # nothing has been compared yet
    if known.setdefault(trial.data, trial.holdout) != trial.holdout:
        raise UserError(
            f"--holdout is {trial.holdout}, but the runs on {trial.data} in {work} were compared on "
            f"{known[trial.data]} images; give the same number or another --work"
        )
    return known


def earlier(trial: Trial, out: Path) -> list[dict[str, Any]]:
    """What a file holds of pairs that are not tried now; one of other runs, or of something else, is refused."""
    try:
        found = json.loads(out.read_text())
        theirs = {name: found[name] for name in ("data", "model", "epochs", "seeds", "held_out_training_images")}
        rows = [row for row in found["evidence"] if (row["structure"], row["hamiltonian"]) not in trial.pairs()]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{out} is there and holds no choice of a tuning ({error!r}); give another --out") from None
    ours = dict(zip(theirs, (trial.data, trial.model, trial.epochs, list(trial.seeds), trial.holdout)))
    for name, value in theirs.items():
        if value != ours[name]:
            raise UserError(f"{out} was tuned with {name} {value}, not {ours[name]}; give another --out")
    return rows


def write(trial: Trial, results: Place, out: Path) -> None:
    """The choice with its evidence, as JSON."""
    rows = [*earlier(trial, out), *evidence(trial, results)]
    pairs = [pair for pair in CANDIDATES if any((row["structure"], row["hamiltonian"]) == pair for row in rows)]
    first = store.read(store.path(results, trial.cells()[0].spec))
    record = {
        "data": trial.data, "model": trial.model, "epochs": trial.epochs, "seeds": list(trial.seeds),
        "held_out_training_images": trial.holdout, "split_seed": SPLIT_SEED, "margin": MARGIN, "converged": CONVERGED,
        "choice": {"-".join(pair): choice(rows, pair) for pair in pairs}, "evidence": rows,
        "environment": first["environment"], "revision": first["revision"],
    }  # fmt: skip
    make_folder(out.parent)
    write_atomic(out, json.dumps(record, indent=1) + "\n")


def evidence(trial: Trial, results: Place) -> Iterable[dict[str, Any]]:
    """One row per candidate: its accuracies on held-out training images, and how far its masks converged."""
    for pair in trial.pairs():
        for change in CANDIDATES[pair]:
            runs = [store.read(store.path(results, trial.run(pair, change, seed))) for seed in trial.seeds]
            accuracies = [run["accuracy"] for run in runs]
            yield {
                "structure": pair[0], "hamiltonian": pair[1], "change": change, "accuracies": accuracies,
                "mean": statistics.fmean(accuracies), "agreement": min(run["agreement"] for run in runs),
            }  # fmt: skip


def choice(rows: Sequence[dict[str, Any]], pair: tuple[str, str]) -> dict[str, float]:
    """The change of the best candidate that converged, or none where the default is about as good."""
    mine = [row for row in rows if (row["structure"], row["hamiltonian"]) == pair]
    default = next(row for row in mine if not row["change"])
    best = max((row for row in mine if row["agreement"] >= CONVERGED or row is default), key=lambda row: row["mean"])
    return dict(best["change"]) if best["mean"] > default["mean"] + MARGIN else {}
