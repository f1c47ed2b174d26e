"""A run's folder on the disk: who may write there, what the run is, and one line of metrics per epoch.

One run lies directly in its folder; a fleet has one sub-folder per run (``seed-<s>``) with that run's
metrics, result and model, beside the shared ``run.json`` and ``checkpoints``.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gibbsprune.errors import UserError
from gibbsprune.training.checkpoint import clean, unwritable, write_atomic
from gibbsprune.training.spec import RunSpec

FORMAT = 1
#: What a run writes into its folder.
OWN_FILES = ("run.json", "result.json", "metrics.jsonl", "model.safetensors", "masks.safetensors", "kept.safetensors",
             "summary.md")  # fmt: skip
OWN_FOLDERS = ("checkpoints", "snapshots", "tensorboard")
PICTURES = ("curves.png", "annealing.png", "layers.png", "masks.png", "profile.png")


class Busy(UserError):
    """A folder that another process holds."""


def fleet_name(specs: Sequence[RunSpec]) -> str:
    """The folder name of one run, or of several that differ in their seeds."""
    if len(specs) == 1:
        return specs[0].name()
    names = sorted({spec.name(with_seed=False) for spec in specs})
    seeds = sorted(spec.seed for spec in specs)
    unbroken = seeds == list(range(seeds[0], seeds[0] + len(seeds)))
    shown = f"{seeds[0]}-{seeds[-1]}" if unbroken else ",".join(map(str, seeds))
    return f"{names[0]}-s{shown}" if len(names) == 1 else f"{names[0]}-and-{len(specs) - 1}-more"


def run_names(specs: Sequence[RunSpec]) -> list[str]:
    """The sub-folder of each run: none for a single one, ``seed-<s>`` where seeds tell runs apart."""
    if len(specs) == 1:
        return [""]
    if len({spec.name(with_seed=False) for spec in specs}) == 1:
        names = [f"seed-{spec.seed}" for spec in specs]
    else:
        names = [spec.name() for spec in specs]
    if len(set(names)) < len(names):
        raise UserError("two runs of this fleet are the same; give each its own seed")
    return names


class RunFolder:
    """A folder that holds one run or one fleet and is written by one process at a time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.record: dict[str, Any] = {}
        self.specs: list[RunSpec] = []
        self.runs: list[Path] = []
        self._lock: Any = None

    @classmethod
    def create(cls, path: str | os.PathLike[str], specs: Sequence[RunSpec], about: dict[str, Any]) -> RunFolder:
        """Make a new folder; one that already holds anything is refused, so that two runs never mix."""
        folder = cls(path)
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            taken = [entry for entry in folder.path.iterdir() if not entry.name.startswith(".")]
        except OSError as error:
            raise unwritable(folder.path, error) from error
        if (folder.path / "run.json").exists():
            raise UserError(
                f"{folder.path} already holds a run; continue it with --resume {shlex.quote(str(folder.path))}, "
                "or choose another folder with --out"
            )
        if taken:
            raise UserError(f"{folder.path} is not empty ({taken[0].name}); choose another folder with --out")
        folder.lock()
        folder.specs = list(specs)
        folder.record = {"format": FORMAT, "runs": [spec.as_dict() for spec in specs], **about}
        folder.write_record()  # first: a folder that holds anything can be resumed
        folder._make_runs()
        return folder

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """Open an existing run, to resume or to read it."""
        folder = cls(path)
        try:
            folder.record = json.loads((folder.path / "run.json").read_text())
        except FileNotFoundError:
            raise UserError(f"{folder.path} holds no run (it has no run.json)") from None
        except (OSError, ValueError) as error:
            raise UserError(f"{folder.path / 'run.json'} cannot be read: {error}") from error
        found = folder.record.get("format") if isinstance(folder.record, dict) else None
        if found != FORMAT:
            raise UserError(f"{folder.path} was written in format {found!r}; this version reads format {FORMAT}")
        try:
            folder.specs = [RunSpec.from_dict(values) for values in folder.record["runs"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{folder.path / 'run.json'} has been changed and tells of no run any more") from error
        folder._make_runs()
        return folder

    def _make_runs(self) -> None:
        self.runs = [self.path / name if name else self.path for name in run_names(self.specs)]
        try:
            for run in self.runs:
                run.mkdir(exist_ok=True)
        except OSError as error:
            raise unwritable(self.path, error) from error

    def lock(self) -> None:
        """Hold the folder for this process; the system releases it when the process ends, however it ends."""
        try:
            import fcntl
        except ImportError:  # not a POSIX system: no lock to be had
            return
        try:
            self._lock = open(self.path / ".lock", "a")  # noqa: SIM115  held until unlock
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.unlock()
            raise Busy(f"another process is working in {self.path}") from None
        except OSError as error:
            raise unwritable(self.path / ".lock", error) from error
        for run in {self.path, *self.runs}:
            clean(run)

    def unlock(self) -> None:
        """Let other processes in."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def write_record(self) -> None:
        """Write ``run.json`` as it stands."""
        write_atomic(self.path / "run.json", dump(self.record))

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def finished(self) -> bool:
        """Whether the run is complete: its ``result.json`` is written last."""
        return (self.path / "result.json").exists()

    def results(self) -> list[dict[str, Any]]:
        """The final result of each run of a finished folder."""
        return [read_result(run) for run in self.runs]

    def append_metrics(self, records: Sequence[dict[str, Any]]) -> None:
        """Append one line for one epoch to each run's ``metrics.jsonl``, and force it to the disk."""
        for run, record in zip(self.runs, records):
            path = run / "metrics.jsonl"
            try:
                with open(path, "a") as file:
                    file.write(json.dumps(plain(record)) + "\n")
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise unwritable(path, error) from error

    def truncate_metrics(self, epochs: int) -> None:
        """Forget what was written after the first ``epochs`` epochs, so that no epoch appears twice."""
        for run, records in zip(self.runs, self.metrics()):
            kept = [record for record in records if record["epoch"] <= epochs]
            write_atomic(run / "metrics.jsonl", "".join(json.dumps(record) + "\n" for record in kept))

    def metrics(self) -> list[list[dict[str, Any]]]:
        """The metrics of each run; a last line that was cut off by a crash does not count."""
        return [read_metrics(run / "metrics.jsonl") for run in self.runs]


def read_result(run: Path) -> dict[str, Any]:
    """The result of one finished run."""
    path = run / "result.json"
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict) or not {"accuracy", "sparsity", "seconds", "layers"} <= found.keys():
        raise UserError(f"{path} has been changed and tells of no result any more")
    return found


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of one ``metrics.jsonl`` up to the first line that is not whole."""
    records: list[dict[str, Any]] = []
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                records.append(json.loads(line))
            except ValueError:
                break
    return records


def plain(value: Any) -> Any:
    """The value as JSON can hold it: NaN and infinities become null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def dump(value: Any) -> str:
    """Readable JSON text."""
    return json.dumps(plain(value), indent=2) + "\n"


def check_not_own(path: Path) -> None:
    """Refuses a path that is, or would be, one of the files that make a run, in its folder or that of its fleet."""
    path = path.resolve()
    named, inside = path.name in OWN_FILES, path.parent.name in OWN_FOLDERS
    folder = path.parent.parent if inside else path.parent
    if (named or inside) and any((folder / name).exists() for name in ("run.json", "metrics.jsonl")):
        raise UserError(f"--out is {path}, a file of a run, which would be lost; choose another name")


def strangers(path: Path) -> list[str]:
    """The names in a run's folder that the run did not write."""
    found = {entry.name for entry in path.iterdir() if not entry.name.startswith(".")}
    return sorted(found - {*OWN_FILES, *OWN_FOLDERS, *PICTURES})


def remove(path: str | os.PathLike[str]) -> None:
    """Delete a run's folder; anything that is not one is refused."""
    folder = RunFolder.open(path)
    folder.lock()
    folder.unlock()
    shutil.rmtree(folder.path)
