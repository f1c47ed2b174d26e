"""``gibbsprune train``: one run, or a fleet of runs, into a folder, so that nothing is lost however it ends.

Each epoch is trained, tested, written to ``metrics.jsonl`` and checkpointed, in that order. Resuming loads the last
checkpoint, which knows the epochs before it, and goes on bit for bit. Of several processes (``ranks``) the first does
all that; the others train along.
"""

from __future__ import annotations

import datetime
import math
import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from .. import data
from ..data.arrays import Arrays
from ..errors import UserError, needed
from ..files import ReadError, WriteError
from ..text import command as as_typed
from . import checkpoint
from .environment import describe_environment, fingerprint, resolve_device, suitable_threads
from .finished import check_trust, identified, images_of, read_finished
from .fleet import Fleet
from .folder import RunFolder, fleet_name
from .interrupt import Interrupt
from .logs import Logs, check_packages
from .outputs import write_outputs
from .progress import PlainProgress, make_progress
from .ranks import ALONE, LostRank, Ranks, compare_data
from .session import Record, Session, Watch, all_diverged
from .snapshots import save_snapshot, snapshot_epochs
from .spec import RunSpec


@dataclass(frozen=True)
class Options:
    """How a run is kept and carried out, which has no influence on its result but for the last bits (``autotune``).

    A checkpoint is written after every ``checkpoint_epochs`` epochs, but not sooner than
    ``checkpoint_seconds`` after the one before; the last epoch always has one.
    """

    checkpoint_epochs: int = 1
    checkpoint_seconds: float = 0.0
    log: tuple[str, ...] = ()  # of :data:`gibbsprune.training.logs.LOGS`
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
    """Trains runs into a new folder.

    Args:
        specs: the runs; several are trained as one fleet.
        out: the folder, by default ``runs/<name>``.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:<number>``.
        options: how it is kept and carried out.
        command: the command line, for the record.
        progress: what shows how it goes on.
        ranks: the processes that train it together.
    """
    options, specs = options or Options(), [identified(spec) for spec in specs]
    if len({spec.data for spec in specs}) != 1:
        raise UserError("the runs of a fleet must share one data set")
    _check_packages(options)
    where = resolve_device(device) if ranks.size == 1 else ranks.device
    path = Path(out) if out is not None else Path("runs") / fleet_name(specs)
    if not ranks.first:
        return Outcome(path, _follow(specs, ranks, options.autotune))
    if (path / "run.json").exists():
        RunFolder.create(path, specs, {})  # refuses, before anything is loaded
    progress = progress or make_progress()
    if specs[0].data.partition(data.HELD_OUT)[0].endswith(".npz"):
        how = specs[0].recipe
        progress.note(f"recipe {how.name}: training images {how.images} (--shift, --flip, --cutout)")
    with Interrupt(tell=progress.note) as interrupt:
        arrays = data.load(specs[0].data)
        compare_data(ranks, arrays)
        with suitable_threads(arrays, where):
            fleet = Fleet(specs, arrays, device=where, autotune=options.autotune, ranks=ranks)
            about: dict[str, Any] = {"command": command, "started": _now(), "seeds": [spec.seed for spec in specs]}
            about |= {"device": str(where), "ranks": ranks.size, "data_sha256": fingerprint(arrays)}
            about |= {"images": images_of(arrays, specs[0]), "options": asdict(options)}
            about |= {**describe_environment(where), "resumed": []}
            folder = RunFolder.create(path, specs, about)
            try:
                return _drive(fleet, folder, options, interrupt, progress, ranks, None)
            finally:
                folder.unlock()


def resume(
    path: str | os.PathLike[str],
    device: str | None = None,
    command: str | None = None,
    progress: PlainProgress | None = None,
    ranks: Ranks = ALONE,
    trust: bool = False,
) -> Outcome:
    """Continues the run in ``path`` from its last checkpoint, or from the beginning where it has none yet.

    Args:
        path: the run's folder.
        device: another device than it was started on.
        command: the command line, for the record.
        progress: what shows how it goes on.
        ranks: the processes that train it together.
        trust: import a network that the folder names as ``package.module:function``.
    """
    if not ranks.first:
        given = ranks.shared()
        specs = [RunSpec.from_dict(values) for values in given["runs"]]
        return Outcome(Path(path), given["results"] or _follow(specs, ranks, given["autotune"], given["state"]))
    folder = RunFolder.open(path)
    check_trust(folder.specs, folder.path, trust)
    progress = progress or make_progress()
    shared: dict[str, Any] = {"runs": folder.record["runs"], "results": None, "state": None}
    with folder.held():
        if folder.finished():
            for run in folder.runs:
                read_finished(str(run))  # which refuses one that is not as it was written
            progress.note(f"{folder.path} is already finished")
            shared["results"] = folder.results()
            ranks.shared(shared)
            return Outcome(Path(path), shared["results"])
        options = _options(folder)
        _check_packages(options)
        where = resolve_device(device or str(folder.told("device"))) if ranks.size == 1 else ranks.device
        with Interrupt(tell=progress.note) as interrupt:
            found = checkpoint.load_latest(folder.checkpoints, warn=lambda text: progress.note(f"warning: {text}"))
            epoch, state = found if found is not None else (0, None)
            ranks.shared({**shared, "autotune": options.autotune, "state": state and state.get("fleet")})
            arrays = data.load(folder.specs[0].data)
            compare_data(ranks, arrays)
            with suitable_threads(arrays, where):
                if ranks.size == _ranks_before(folder):
                    _take_threads(folder)
                _check_same(folder, arrays, describe_environment(where), ranks, progress)
                fleet = Fleet(folder.specs, arrays, device=where, autotune=options.autotune, ranks=ranks)
                again = {"time": _now(), "epoch": epoch, "command": command, "ranks": ranks.size}
                folder.record["resumed"] = [*folder.told("resumed"), again]
                return _drive(fleet, folder, options, interrupt, progress, ranks, state)


def _drive(
    fleet: Fleet,
    folder: RunFolder,
    options: Options,
    interrupt: Interrupt,
    progress: PlainProgress,
    ranks: Ranks,
    state: dict[str, Any] | None,
) -> Outcome:
    """Trains what is left of the epochs, then writes the final files."""
    every, seconds = options.checkpoint_epochs, options.checkpoint_seconds
    session = Session(fleet, folder.checkpoints, save_every=every, save_seconds=seconds, ranks=ranks)
    if state is not None:
        session.load(state)
    logs = Logs(options.log, folder, fleet.epoch, progress.note)
    folder.write_record()
    folder.write_metrics(session.history)
    runs = "" if len(folder.specs) == 1 else f" ({len(folder.specs)} runs)"
    session.watch = _Writing(folder, progress, logs)
    progress.begin(f"{folder.path}{runs}", fleet.epochs, fleet.epoch)
    results = None
    try:
        session.train(interrupt)
        progress.close()
        results = write_outputs(folder, session, fleet.finish())
    except (KeyboardInterrupt, WriteError, LostRank):
        progress.close()
        progress.note(how_to_resume(folder))
        raise
    finally:
        progress.close()
        logs.end(results)
    return Outcome(Path(str(folder.path)), results)


class _Writing(Watch):
    """Puts every epoch into the run's folder, and on the display."""

    def __init__(self, folder: RunFolder, progress: PlainProgress, logs: Logs) -> None:
        self.folder, self.progress, self.logs = folder, progress, logs
        self.masks: list[dict[str, torch.Tensor]] = []

    def step(self, done: int, total: int) -> None:
        self.progress.step(done, total)

    def drawn(self, fleet: Fleet) -> None:
        spec = fleet.specs[0]
        recipe, until = spec.recipe, spec.setting("until")
        rises = round(until * recipe.epochs) if spec.how.cold(spec) and until else recipe.anneal_epochs or recipe.epochs
        shown = fleet.epoch in snapshot_epochs(rises * spec.stretch, fleet.epochs)
        self.masks = [fleet.masks(k) for k in range(len(fleet.specs))] if shown else []

    def tested(self, session: Session, records: Sequence[Record | None]) -> None:
        if all_diverged(records):  # the checkpoints stay as they are
            raise UserError(
                f"the loss is no longer finite after epoch {session.fleet.epoch} of {self.folder.path}; try a smaller "
                "learning rate (--lr)"
            )
        self.folder.append_metrics(records)
        self.logs.add(records)
        for run, spec, masks, record in zip(self.folder.runs, self.folder.specs, self.masks, records):
            if record is not None and spec.method == "gibbs":  # others have no picture of how they freeze
                beta = math.inf if record["beta"] is None else record["beta"]
                save_snapshot(run / "snapshots", masks, record["epoch"], beta)

    def passed(self, session: Session, records: Sequence[Record | None]) -> None:
        self.progress.epoch(session.fleet.epoch, [record for record in records if record is not None])


def _follow(
    specs: Sequence[RunSpec], ranks: Ranks, autotune: bool, state: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """What the other processes do: the same training, and no files."""
    with Interrupt() as interrupt:
        arrays = data.load(specs[0].data)
        compare_data(ranks, arrays)
        with suitable_threads(arrays, ranks.device):
            fleet = Fleet(specs, arrays, device=ranks.device, autotune=autotune, ranks=ranks)
            if state is not None:
                fleet.load_state_dict(state)
            Session(fleet, ranks=ranks).train(interrupt)
            return fleet.finish()


def how_to_resume(folder: RunFolder) -> str:
    """The line a stopped run leaves behind."""
    saved = checkpoint.checkpoints(folder.checkpoints)
    epochs = max(spec.own_epochs for spec in folder.specs)
    state = f"saved after epoch {saved[-1][0]} of {epochs}" if saved else "nothing saved yet"
    trust = " --trust" if any(":" in spec.model for spec in folder.specs) else ""
    return f"stopped, {state}; continue with: {as_typed(f'train --resume {shlex.quote(str(folder.path))}{trust}')}"


def _options(folder: RunFolder) -> Options:
    """How the run was to be kept; what its record does not say, or says of another kind, is refused."""
    told = {field.name: folder.told("options", field.name) for field in fields(Options)}
    for field in fields(Options):
        kind: Any = {"int": int, "bool": bool, "float": (int, float)}.get(str(field.type), list)
        sound = isinstance(told[field.name], kind)
        if not sound or (field.name == "checkpoint_epochs" and told[field.name] < 1):
            raise ReadError(f"{folder.path / 'run.json'} has been changed: {field.name} is {told[field.name]!r}")
    return Options(**{**told, "log": tuple(told["log"])})


def _take_threads(folder: RunFolder) -> None:
    """As many as before: sums depend on how they are divided."""
    threads = folder.told("hardware", "threads")
    if type(threads) is not int or not 1 <= threads <= 4096:
        raise ReadError(f"{folder.path / 'run.json'} has been changed: hardware.threads is {threads!r}")
    torch.set_num_threads(threads)


def _check_packages(options: Options) -> None:
    needed("safetensors", "a run", "demo")
    check_packages(options.log)


def _ranks_before(folder: RunFolder) -> int:
    """On how many processes a run was trained last."""
    last = [folder.record, *folder.told("resumed")][-1]
    count = last.get("ranks", 1) if isinstance(last, dict) else None
    if not isinstance(count, int):
        raise ReadError(f"{folder.path / 'run.json'} has been changed: resumed ends with {str(last)[:40]!r}")
    return count


def _check_same(folder: RunFolder, arrays: Arrays, here: dict[str, Any], ranks: Ranks, progress: PlainProgress) -> None:
    """A resumed run must have the same data; on other hardware, processes or versions it only says so."""
    if fingerprint(arrays) != folder.told("data_sha256"):
        raise UserError(f"the data {arrays.name} is not what the run in {folder.path} was started with")
    if (before := _ranks_before(folder)) != ranks.size:
        count = "1 process" if ranks.size == 1 else f"{ranks.size} processes"
        progress.note(
            f"this run goes on in {count} after {before}; batch norm sees batches of another size, so that the result "
            "is not the same as without the change"
        )
    for part in ("versions", "hardware"):
        for key, value in here[part].items():
            before = folder.told(part).get(key)
            if value != before:
                progress.note(
                    f"warning: {key} was {before} when this run started and is {value} now; "
                    "the result may differ in the last bits"
                )


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
