"""A comparison of methods: which runs it needs, in which fleets they are trained, and in which folders they lie.

Runs of equally many epochs are one fleet. Those that start from others come after them: ``magnitude``, ``filter-l1``
and ``thinet`` from the comparison's dense run of the same seed, ``reinit`` from the masks of its Gibbs run. A fleet's
folder is named after a hash of its runs, so that the same command finds what is finished and continues what is not.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from . import run
from .folder import RunFolder, read_result, run_names
from .methods import METHODS, method
from .spec import RunSpec

#: At most so many runs are fused into one fleet.
LARGEST = 32

#: Trained besides the methods themselves.
VARIANTS = {"targeted-dropout": ("targeted-dropout:ramping",)}

#: Methods that can share the dense run.
FROM_DENSE = ("magnitude", "filter-l1", "thinet")


@dataclass(frozen=True)
class Entry:
    """One line of a comparison: a method with its settings, such as ``lottery:rounds=1`` or ``gibbs:stretch=2``."""

    label: str
    method: str
    stretch: int = 1
    settings: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def read(text: str) -> Entry:
        """From ``name:setting=value:…``; a setting without a value is ``yes``."""
        name, *parts = [part.strip() for part in text.split(":")]
        method(name)  # refuses an unknown one
        given = {key.replace("-", "_"): value if equals else "yes" for key, equals, value in
                 (part.partition("=") for part in parts)}  # fmt: skip
        stretch = given.pop("stretch", "1")
        if not stretch.isdecimal() or int(stretch) < 1:
            raise UserError(f"stretch is {stretch!r} in {text!r}; it must be a whole number from 1")
        return Entry(text.strip(), name, int(stretch), tuple(given.items()))


def choose(structure: str, wanted: Sequence[str] | None = None) -> list[Entry]:
    """The lines of a comparison: those wanted, else all methods that have the structure.

    ``dense`` is always among them, as the baseline, and where ``reinit`` is, ``gibbs`` is.
    """
    if wanted is None:
        names = [name for name, how in METHODS.items() if structure in how.structures or not how.prunes]
        wanted = [text for name in names for text in (name, *VARIANTS.get(name, ()))]
    entries = [Entry.read(text) for text in wanted]
    for i, entry in enumerate(entries):
        if entry in entries[:i]:
            raise UserError(f"{entry.label} is named twice")
    names = [entry.method for entry in entries]
    if "reinit" in names and "gibbs" not in names:
        entries.insert(0, Entry.read("gibbs"))
    if not any((entry.method, entry.stretch) == ("dense", 1) for entry in entries):
        entries.insert(0, Entry.read("dense"))
    return entries


@dataclass(frozen=True)
class Cell:
    """One run of a comparison: where it lies, and the run that it starts from."""

    entry: Entry
    spec: RunSpec
    fleet: Path
    folder: Path
    source: Cell | None = None

    @property
    def where(self) -> str:
        """The run's folder as seen from the comparison's."""
        return self.folder.relative_to(self.fleet.parents[1]).as_posix()

    def result(self) -> dict[str, Any]:
        """What came out; ``seconds`` are the run's share of its fleet's, and those of the run that it continues."""
        if not (self.folder / "result.json").exists():
            raise UserError(
                f"{self.fleet} has no {self.folder.name}: the comparison was moved, or its runs were; move it back, or "
                "choose another folder with --out"
            )
        found = read_result(self.folder)
        seconds = found["seconds"] / len(RunFolder.open(self.fleet).specs)
        if self.source is not None and self.entry.method in FROM_DENSE:
            seconds += self.source.result()["seconds"]
        return {**found, "seconds": seconds}


def plan(entries: Sequence[Entry], base: RunSpec, seeds: Sequence[int], out: Path) -> list[list[Cell]]:
    """The runs of every entry and seed, one list per fleet, in the order of training.

    ``base`` has the data, network, structure, sparsity and recipe.
    """
    out, fleets = Path(os.path.abspath(out)), []
    cells: dict[tuple[Entry, int], Cell] = {}
    for later in (False, True):
        wave: list[tuple[Entry, RunSpec, Cell | None]] = []
        for seed in seeds:
            for entry in entries:
                needed = _needs(entry, entries)
                if (needed is not None) == later:
                    source = None if needed is None else cells[needed, seed]
                    settings = {**dict(entry.settings), **({} if source is None else {"from": str(source.folder)})}
                    changes = {"method": entry.method, "stretch": entry.stretch, "seed": seed, "settings": settings}
                    wave.append((entry, base.replace(**changes), source))
        for epochs in dict.fromkeys(spec.own_epochs for _, spec, _ in wave):
            alike = [cell for cell in wave if cell[1].own_epochs == epochs]
            for start in range(0, len(alike), LARGEST):
                fleets.append(_fleet(alike[start : start + LARGEST], out))
                cells |= {(cell.entry, cell.spec.seed): cell for cell in fleets[-1]}
    return fleets


def _fleet(members: Sequence[tuple[Entry, RunSpec, Cell | None]], out: Path) -> list[Cell]:
    specs = [spec for _, spec, _ in members]
    path = out / "runs" / _name(specs, out)
    folders = [path / name for name in run_names(specs)]
    return [Cell(entry, spec, path, folder, source) for (entry, spec, source), folder in zip(members, folders)]


def train(fleets: Sequence[Sequence[Cell]], device: str, command: str | None, tell: Callable[[str], None]) -> None:
    """Train what is not trained yet, fleet by fleet."""
    for number, cells in enumerate(fleets, start=1):
        path, specs = cells[0].fleet, [cell.spec for cell in cells]
        labels = ", ".join(dict.fromkeys(cell.entry.label for cell in cells))
        epochs = specs[0].own_epochs
        head = f"[{number}/{len(fleets)}] {labels}: {len(specs)} runs of {epochs} epochs"
        if (path / "run.json").exists():
            done = RunFolder.open(path).finished()
            tell(f"{head}, {'finished before' if done else 'continued'}")
            if not done:
                _check_place(path, specs)
                run.resume(path, device=device, command=command)
            continue
        tell(head)
        _clear(path)
        run.start(specs, path, device, run.Options(checkpoint_seconds=10.0), command)


def _check_place(path: Path, specs: Sequence[RunSpec]) -> None:
    """Refuses to go on with runs that start from others which lie elsewhere now."""
    for old, new in zip(RunFolder.open(path).specs, specs):
        if old.setting("from") != new.setting("from"):
            raise UserError(
                f"{path} starts from {old.setting('from')}: the comparison was moved; move it back, or choose another "
                "folder with --out"
            )


def _needs(entry: Entry, entries: Sequence[Entry]) -> Entry | None:
    """The entry whose runs this one starts from."""
    if "from" in dict(entry.settings):
        return None
    if entry.method == "reinit":
        return next(other for other in entries if other.method == "gibbs")
    if entry.method in FROM_DENSE and entry.stretch == 1:
        return next(other for other in entries if (other.method, other.stretch) == ("dense", 1))
    return None


def _name(specs: Sequence[RunSpec], out: Path) -> str:
    """The same for the same runs, wherever the comparison lies."""
    told = json.dumps([spec.as_dict() for spec in specs], sort_keys=True).replace(json.dumps(str(out))[1:-1], "")
    return f"epochs-{specs[0].own_epochs}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"


def _clear(path: Path) -> None:
    """A folder that a process made and was killed before it could say what for: empty ones go."""
    if path.is_dir():
        for inside in path.iterdir():
            if inside.is_dir() and not any(inside.iterdir()):
                inside.rmdir()
