"""Drive a run, or a fleet of runs, through its epochs into a folder, so that nothing is lost however it ends.

Each epoch is trained, tested, written to ``metrics.jsonl`` and checkpointed, in that order. Resuming loads
the last checkpoint, drops the lines written after it, and goes on bit for bit.

Of several processes (``ranks``) the first does all that; the others train along (:mod:`gibbsprune.training.follow`).
"""

from __future__ import annotations

import datetime
import math
import os
import shlex
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from gibbsprune import data
from gibbsprune.data.arrays import Arrays
from gibbsprune.errors import UserError
from gibbsprune.files import WriteError
from gibbsprune.training import checkpoint
from gibbsprune.training.environment import (
    describe_environment,
    fingerprint,
    require,
    resolve_device,
    suitable_threads,
)
from gibbsprune.training.fleet import Fleet
from gibbsprune.training.folder import RunFolder, fleet_name
from gibbsprune.training.follow import follow
from gibbsprune.training.interrupt import Interrupt
from gibbsprune.training.outputs import EventLog, write_outputs
from gibbsprune.training.progress import PlainProgress, make_progress
from gibbsprune.training.ranks import ALONE, LostRank, Ranks, compare_data
from gibbsprune.training.snapshots import save_snapshot, snapshot_epochs
from gibbsprune.training.spec import RunSpec


@dataclass(frozen=True)
class Options:
    """How a run is kept and carried out, which has no influence on its result but for the last bits (``autotune``).

    A checkpoint is written after every ``checkpoint_epochs`` epochs, but not sooner than
    ``checkpoint_seconds`` after the one before; the last epoch always has one.
    """

    checkpoint_epochs: int = 1
    checkpoint_seconds: float = 0.0
    tensorboard: bool = False
    autotune: bool = False


@dataclass(frozen=True)
class Outcome:
    """A finished run: its folder, and the final result of each of its runs."""

    folder: Path
    results: list[dict[str, Any]]


def start(
    specs: Sequence[RunSpec],
    out: str | os.PathLike[str] | None = None,
    device: str = "auto",
    options: Options | None = None,
    command: str | None = None,
    progress: PlainProgress | None = None,
    ranks: Ranks = ALONE,
) -> Outcome:
    """Train ``specs`` (several: as one fleet) into a new folder, by default ``runs/<name>``."""
    options = options or Options()
    specs = list(specs)
    if len({spec.data for spec in specs}) != 1:
        raise UserError("the runs of a fleet must share one data set")
    _check_packages(options)
    where = resolve_device(device) if ranks.size == 1 else ranks.device
    path = Path(out) if out is not None else Path("runs") / fleet_name(specs)
    if not ranks.first:
        return Outcome(path, follow(specs, ranks, options.autotune))
    if (path / "run.json").exists():
        RunFolder.create(path, specs, {})  # refuses, before anything is loaded
    progress = progress or make_progress()
    with Interrupt(tell=progress.note) as interrupt:
        arrays = data.load(specs[0].data)
        compare_data(ranks, arrays)
        with suitable_threads(arrays, where):
            fleet = Fleet(specs, arrays, device=where, autotune=options.autotune, ranks=ranks)
            about = {
                "command": command,
                "started": _now(),
                "seeds": [spec.seed for spec in specs],
                "device": str(where),
                "ranks": ranks.size,
                "data_sha256": fingerprint(arrays),
                "options": asdict(options),
                **describe_environment(where),
                "resumed": [],
            }
            folder = RunFolder.create(path, specs, about)
            try:
                return _drive(fleet, folder, options, interrupt, progress, ranks, elapsed=0.0)
            finally:
                folder.unlock()


def resume(
    path: str | os.PathLike[str],
    device: str | None = None,
    command: str | None = None,
    progress: PlainProgress | None = None,
    ranks: Ranks = ALONE,
) -> Outcome:
    """Continue the run in ``path`` from its last checkpoint, or from the beginning where it has none yet."""
    if not ranks.first:
        given = ranks.shared()
        specs = [RunSpec.from_dict(values) for values in given["runs"]]
        return Outcome(Path(path), given["results"] or follow(specs, ranks, given["autotune"], given["state"]))
    folder = RunFolder.open(path)
    folder.lock()
    progress = progress or make_progress()
    shared: dict[str, Any] = {"runs": folder.record["runs"], "results": None, "state": None}
    try:
        if folder.finished():
            progress.note(f"{folder.path} is already finished")
            shared["results"] = folder.results()
            ranks.shared(shared)
            return Outcome(folder.path, shared["results"])
        options = Options(**folder.record["options"])
        _check_packages(options)
        where = resolve_device(device or folder.record["device"]) if ranks.size == 1 else ranks.device
        with Interrupt(tell=progress.note) as interrupt:
            found = checkpoint.load_latest(folder.checkpoints, warn=lambda text: progress.note(f"warning: {text}"))
            epoch, state = found if found is not None else (0, None)
            ranks.shared({**shared, "autotune": options.autotune, "state": state and state["fleet"]})
            arrays = data.load(folder.specs[0].data)
            compare_data(ranks, arrays)
            with suitable_threads(arrays, where):
                if ranks.size == _ranks_before(folder):
                    torch.set_num_threads(folder.record["hardware"]["threads"])  # sums depend on how they are divided
                _check_same(folder, arrays, describe_environment(where), ranks, progress)
                fleet = Fleet(folder.specs, arrays, device=where, autotune=options.autotune, ranks=ranks)
                if state is not None:
                    fleet.load_state_dict(state["fleet"])
                folder.truncate_metrics(epoch)
                again = {"time": _now(), "epoch": epoch, "command": command, "ranks": ranks.size}
                folder.record["resumed"].append(again)
                folder.write_record()
                elapsed = state["elapsed"] if state is not None else 0.0
                return _drive(fleet, folder, options, interrupt, progress, ranks, elapsed)
    finally:
        folder.unlock()


def _drive(
    fleet: Fleet,
    folder: RunFolder,
    options: Options,
    interrupt: Interrupt,
    progress: PlainProgress,
    ranks: Ranks,
    elapsed: float,
) -> Outcome:
    """Train what is left of the epochs, then write the final files."""
    began = time.monotonic() - elapsed
    runs = "" if len(folder.specs) == 1 else f" ({len(folder.specs)} runs)"
    progress.begin(f"{folder.path}{runs}", fleet.epochs, fleet.epoch)
    try:
        _train(fleet, folder, options, interrupt, progress, ranks, began)
        progress.close()
        results = fleet.finish()
        write_outputs(folder, fleet, results, seconds=time.monotonic() - began)
    except (KeyboardInterrupt, WriteError, LostRank):
        progress.close()
        progress.note(how_to_resume(folder))
        raise
    finally:
        progress.close()
    return Outcome(folder.path, results)


def _train(
    fleet: Fleet,
    folder: RunFolder,
    options: Options,
    interrupt: Interrupt,
    progress: PlainProgress,
    ranks: Ranks,
    began: float,
) -> None:
    """Train, test, record and save, epoch by epoch."""
    spec = folder.specs[0]
    keep_masks = snapshot_epochs((spec.recipe.anneal_epochs or spec.recipe.epochs) * spec.stretch, fleet.epochs)
    saved = time.monotonic()

    def step(done: int, total: int) -> None:
        progress.step(done, total)
        interrupt.step(done, total)

    with EventLog(folder, fleet.epoch) if options.tensorboard else nullcontext() as events:
        while fleet.epoch < fleet.epochs:
            interrupt.begin_epoch()
            started = time.monotonic()
            trained = fleet.train_epoch(step)
            done = fleet.epoch
            masks = [fleet.masks(k) for k in range(len(folder.runs))] if done in keep_masks else []
            tested = fleet.evaluate()  # with the converged masks, which take the place of the drawn ones
            if ranks.any(interrupt.requested):
                interrupt.requested = True  # all stop after the same epoch
            now = time.monotonic()
            records = [
                {
                    "epoch": done,
                    **train,
                    "test_accuracy": test["accuracy"],
                    "test_loss": test["loss"],
                    "seconds": round(now - started, 4),
                }
                for train, test in zip(trained, tested)
            ]
            _check_finite(folder, done, records)
            folder.append_metrics(records)
            if events is not None:
                events.add(done, records)
            for run, drawn, record in zip(folder.runs, masks, records):
                if record["beta"] is None:
                    continue  # only annealed masks have a picture of how they freeze
                save_snapshot(run / "snapshots", drawn, done, record["beta"])
            due = done % options.checkpoint_epochs == 0 and now - saved >= options.checkpoint_seconds
            if due or done == fleet.epochs or interrupt.requested:
                state = {"elapsed": now - began, "fleet": fleet.state_dict()}
                checkpoint.save(folder.checkpoints, done, state)
                saved = now
            progress.epoch(done, records)
            interrupt.end_epoch()


def how_to_resume(folder: RunFolder) -> str:
    """The line a stopped run leaves behind."""
    saved = checkpoint.checkpoints(folder.checkpoints)
    state = (
        f"saved after epoch {saved[-1][0]} of {max(spec.own_epochs for spec in folder.specs)}"
        if saved
        else "nothing saved yet"
    )
    return f"stopped, {state}; continue with: gibbsprune train --resume {shlex.quote(str(folder.path))}"


def _check_packages(options: Options) -> None:
    require("safetensors", "to save the trained model")
    if options.tensorboard:
        require("tensorboard", "for --tensorboard")


def _ranks_before(folder: RunFolder) -> int:
    """On how many processes a run was trained last."""
    return [folder.record, *folder.record["resumed"]][-1].get("ranks", 1)


def _check_same(folder: RunFolder, arrays: Arrays, here: dict[str, Any], ranks: Ranks, progress: PlainProgress) -> None:
    """A resumed run must have the same data; on other hardware, processes or versions it only says so."""
    if fingerprint(arrays) != folder.record["data_sha256"]:
        raise UserError(f"the data {arrays.name} is not what the run in {folder.path} was started with")
    if (before := _ranks_before(folder)) != ranks.size:
        count = "1 process" if ranks.size == 1 else f"{ranks.size} processes"
        progress.note(
            f"this run goes on in {count} after {before}; batch norm sees batches of another size, so that the result "
            "is not the same as without the change"
        )
    for part in ("versions", "hardware"):
        for key, value in here[part].items():
            before = folder.record[part].get(key)
            if value != before:
                progress.note(
                    f"warning: {key} was {before} when this run started and is {value} now; "
                    "the result may differ in the last bits"
                )


def _check_finite(folder: RunFolder, epoch: int, records: Sequence[dict[str, Any]]) -> None:
    """Stop when every run has diverged; the checkpoints stay as they are."""
    if not any(math.isfinite(record["loss"]) for record in records):
        raise UserError(
            f"the loss is no longer finite after epoch {epoch} of {folder.path}; try a smaller learning rate (--lr)"
        )


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
