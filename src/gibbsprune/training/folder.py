"""The folder of a run, or of a fleet of runs: what they are, who may write there, one line of metrics per epoch.

One run lies directly in its folder; a fleet has one sub-folder per run (``seed-<s>``) with that run's metrics, result
and model, beside the shared ``run.json`` and ``checkpoints``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import Lock, Missing, ReadError, clean, parse_json, plain, read_json, write_atomic, write_json, writing
from . import result
from .places import Place, place
from .spec import RunSpec

FORMAT = 1
#: What ``run.json`` says beside the runs.
ABOUT: dict[str, type] = dict.fromkeys(("versions", "hardware", "options", "logs"), dict)
ABOUT |= {"resumed": list, "device": str, "data_sha256": str, "ranks": int}
#: What a run writes into its folder.
TENSORS = ("model.safetensors", "masks.safetensors", "kept.safetensors")
OWN_FILES = ("run.json", "result.json", "metrics.jsonl", "summary.md", *TENSORS)
OWN_FOLDERS = ("checkpoints", "snapshots", "tensorboard", "wandb")
PICTURES = ("curves.png", "annealing.png", "rising.png", "layers.png", "masks.png", "profile.png")


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

    def __init__(self, path: str | os.PathLike[str] | Place, specs: Sequence[RunSpec] = ()) -> None:
        self.path = place(path)
        self.record: dict[str, Any] = {}
        self.specs = list(specs)
        self._lock: Lock | None = None

    @property
    def runs(self) -> list[Place]:
        """The folder of each run."""
        return [self.path / name if name else self.path for name in run_names(self.specs)]

    @property
    def checkpoints(self) -> Place:
        return self.path / "checkpoints"

    @classmethod
    def create(cls, path: str | os.PathLike[str], specs: Sequence[RunSpec], about: dict[str, Any]) -> RunFolder:
        """Makes a new folder; one that already holds anything is refused, so that two runs never mix."""
        folder, here = cls(path, specs), Path(path)
        run_names(specs)  # refuses runs that are the same
        with writing(here):
            here.mkdir(parents=True, exist_ok=True)
            taken = [entry for entry in here.iterdir() if not entry.name.startswith(".")]
        if (here / "run.json").exists():
            raise UserError(
                f"{here} already holds a run; continue it with --resume {shlex.quote(str(here))}, "
                "or choose another folder with --out"
            )
        if taken:
            raise UserError(f"{here} is not empty ({taken[0].name}); choose another folder with --out")
        folder.lock()
        folder.record = {"format": FORMAT, "runs": [spec.as_dict() for spec in specs], **about}
        folder.write_record()  # first: a folder that holds anything can be resumed
        return folder

    @classmethod
    def open(cls, path: str | os.PathLike[str] | Place) -> RunFolder:
        """An existing run, to resume or to read it."""
        folder = cls(path)
        file = folder.path / "run.json"
        try:
            folder.record = read_json(file)
        except Missing:
            raise UserError(f"{folder.path} holds no run (it has no run.json)") from None
        if (found := folder.record.get("format")) != FORMAT:
            raise UserError(f"{folder.path} was written in format {found!r}; this version reads format {FORMAT}")
        try:
            folder.specs = [RunSpec.from_dict(values) for values in folder.record["runs"]]
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, UserError):
                raise ReadError(f"{file}: {error}") from None
            raise ReadError(f"{file} has been changed and tells of no run any more") from error
        if not folder.specs:
            raise ReadError(f"{file} has been changed and tells of no run any more")
        for name, kind in ABOUT.items():
            if name in folder.record and not isinstance(folder.record[name], kind):
                raise ReadError(f"{file} has been changed: {name} is {str(folder.record[name])[:40]!r}")
        return folder

    def told(self, *names: str) -> Any:
        """What the record says under a chain of names, such as ``"hardware", "threads"``."""
        found: Any = self.record
        for name in names:
            if not isinstance(found, dict) or name not in found:
                raise ReadError(f"{self.path / 'run.json'} has been changed: it does not say {'.'.join(names)}")
            found = found[name]
        return found

    def lock(self) -> None:
        """Holds the folder for this process, and clears what a killed one left; an object store has no locks."""
        if isinstance(self.path, Path):
            self._lock = Lock(self.path / ".lock", f"another process is working in {self.path}")
            clean(self.path)

    def unlock(self) -> None:
        """Lets other processes in."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Locked within; what another process holds is :class:`Busy`."""
        self.lock()
        try:
            yield
        finally:
            self.unlock()

    def write_record(self) -> None:
        """Writes ``run.json`` as it stands."""
        write_json(self.path / "run.json", self.record)

    def finished(self) -> bool:
        """Whether every run has its result, which is written last."""
        return all((run / result.NAME).exists() for run in self.runs)

    def results(self) -> list[dict[str, Any]]:
        """The result of each run of a finished folder."""
        return [result.read(run / result.NAME) for run in self.runs]

    def append_metrics(self, records: Sequence[dict[str, Any] | None]) -> None:
        """Appends one line for one epoch to each run's ``metrics.jsonl``, and forces it to the disk."""
        for run, record in zip(self.runs, records):
            if record is not None:
                assert isinstance(run, Path)
                with writing(run / "metrics.jsonl"), open(run / "metrics.jsonl", "a") as file:
                    file.write(json.dumps(plain(record)) + "\n")
                    file.flush()
                    os.fsync(file.fileno())

    def write_metrics(self, history: Sequence[Sequence[dict[str, Any]]]) -> None:
        """Writes each run's ``metrics.jsonl`` anew, from what its checkpoint knows: however it was damaged."""
        for run, records in zip(self.runs, history):
            run.mkdir(parents=True, exist_ok=True)
            write_atomic(run / "metrics.jsonl", "".join(json.dumps(plain(record)) + "\n" for record in records))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The epochs of one ``metrics.jsonl``; lines that are not whole are left out."""
    records = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        with contextlib.suppress(ReadError):
            record = parse_json(line, path.name)
            records += [record] if isinstance(record.get("epoch"), int) else []
    return records


def check_not_own(path: Path) -> None:
    """Refuses a path that is, or would be, one of the files that make a run, in its folder or that of its fleet."""
    path = path.resolve()
    named, inside = path.name in OWN_FILES, path.parent.name in OWN_FOLDERS
    folder = path.parent.parent if inside else path.parent
    if (named or inside) and any((folder / name).exists() for name in ("run.json", "result.json", "metrics.jsonl")):
        raise UserError(f"--out is {path}, a file of a run, which would be lost; choose another name")


def strangers(path: Path) -> list[str]:
    """The names in a run's folder that the run did not write."""
    found = {entry.name for entry in path.iterdir() if not entry.name.startswith(".")}
    return sorted(found - {*OWN_FILES, *OWN_FOLDERS, *PICTURES})


def remove(path: str | os.PathLike[str]) -> None:
    """Deletes a run's folder; anything that is not one is refused."""
    with RunFolder.open(path).held():
        pass
    shutil.rmtree(os.fspath(path))
