"""Raw results: one small JSON file per run, written once and never edited, and what each test image was taken for."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from ..errors import UserError
from ..files import Missing, ReadError, make_folder, write_atomic
from ..training import result
from ..training.places import Place, files
from ..training.spec import RunSpec

#: What to do about a result that is no longer what was written.
AGAIN = "move it away: gibbsprune sweep run makes its own runs anew"
PREDICTIONS = "predictions"


def path(folder: Place, spec: RunSpec) -> Place:
    """The file of a run's result."""
    return folder / f"{spec.name()}.json"


def write(folder: Place, record: Mapping[str, Any], predictions: Tensor | None = None) -> Place:
    """Writes a run's result (:func:`gibbsprune.training.result.make`), and the class it saw in each test image."""
    make_folder(folder)
    if predictions is not None:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, classes=predictions.cpu().numpy())
        make_folder(folder / PREDICTIONS)
        write_atomic(folder / PREDICTIONS / f"{record['name']}.npz", buffer.getvalue())
    target = folder / f"{record['name']}.json"
    write_atomic(target, result.text({name: value for name, value in record.items() if name not in result.BESIDE}))
    return target


def read(file: Place) -> dict[str, Any]:
    """One result, checked against the schema and against its file's name."""
    try:
        record = result.read(file)
    except Missing:
        raise
    except ReadError as error:
        raise ReadError(f"{error}; {AGAIN}") from None
    if file.name != f"{record['name']}.json":
        raise ReadError(f"{file} does not hold the run that its name says; {AGAIN}")
    return record


def read_all(folder: Place) -> list[dict[str, Any]]:
    """Every result of a folder, by name."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder of results")
    return [read(file) for file in files(folder, "*.json")]


def missing(folder: Place, specs: Iterable[RunSpec]) -> list[RunSpec]:
    """The runs that have no result yet."""
    found = names(folder)
    return [spec for spec in specs if spec.name() not in found]


def names(folder: Place) -> set[str]:
    """The names of the runs that have a result, from one look into the folder."""
    return {file.stem for file in files(folder, "*.json")}


class Found(Mapping[str, dict[str, Any]]):
    """The results of a folder by the names of their runs, each read when it is asked for, and once."""

    def __init__(self, folder: Place) -> None:
        self.folder = folder
        self.known: dict[str, dict[str, Any]] = {}
        self.there = names(folder)

    def look(self) -> Found:
        """Takes in what was written since."""
        self.there = names(self.folder)
        return self

    def __getitem__(self, name: str) -> dict[str, Any]:
        if name not in self.there:
            raise KeyError(name)
        if name not in self.known:
            self.known[name] = read(self.folder / f"{name}.json")
        return self.known[name]

    def __contains__(self, name: object) -> bool:
        return name in self.there

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.there))

    def __len__(self) -> int:
        return len(self.there)
