"""A run's folder on the disk: who may write there, what the run is, and one line of metrics per epoch.

One run lies directly in its folder; a fleet has one sub-folder per run (``seed-<s>``) with that run's
metrics, result and model, beside the shared ``run.json`` and ``checkpoints``.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import Lock, Missing, clean, plain, read_json, write_atomic, write_json, writing
from .spec import RunSpec

FORMAT = 1
#: What a run writes into its folder.
OWN_FILES = ("run.json", "result.json", "metrics.jsonl", "model.safetensors", "masks.safetensors", "kept.safetensors",
             "summary.md")  # fmt: skip
OWN_FOLDERS = ("checkpoints", "snapshots", "tensorboard")
PICTURES = ("curves.png", "annealing.png", "layers.png", "masks.png", "profile.png")


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
        self._lock: Lock | None = None

    @classmethod
    def create(cls, path: str | os.PathLike[str], specs: Sequence[RunSpec], about: dict[str, Any]) -> RunFolder:
        """Make a new folder; one that already holds anything is refused, so that two runs never mix."""
        folder = cls(path)
        with writing(folder.path):
            folder.path.mkdir(parents=True, exist_ok=True)
            taken = [entry for entry in folder.path.iterdir() if not entry.name.startswith(".")]
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
            folder.record = read_json(folder.path / "run.json")
        except Missing:
            raise UserError(f"{folder.path} holds no run (it has no run.json)") from None
        found = folder.record.get("format")
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
        with writing(self.path):
            for run in self.runs:
                run.mkdir(exist_ok=True)

    def lock(self) -> None:
        """Hold the folder for this process; the system releases it when the process ends, however it ends."""
        self._lock = Lock(self.path / ".lock", busy=f"another process is working in {self.path}")
        clean(self.path)

    def unlock(self) -> None:
        """Let other processes in."""
        if self._lock is not None:
            self._lock.release()

    def write_record(self) -> None:
        """Write ``run.json`` as it stands."""
        write_json(self.path / "run.json", self.record)

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
            with writing(path), open(path, "a") as file:
                file.write(json.dumps(plain(record)) + "\n")
                file.flush()
                os.fsync(file.fileno())

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
    found: dict[str, Any] = read_json(path)
    if not {"accuracy", "sparsity", "seconds", "layers"} <= found.keys():
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
