"""Raw results: one small JSON file per cell, written once and never edited by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ..errors import UserError
from ..files import make_folder, write_atomic
from ..training.places import Place, files
from ..training.spec import RunSpec

VERSION = 1
#: What to do about a result that is no longer what was written.
AGAIN = "move it away: gibbsprune suite run makes its own cells anew"
FIELDS = {
    "version": int, "name": str, "spec": dict, "accuracy": float, "accuracy_converged": float,
    "accuracy_recalibrated": float, "loss": float, "agreement": float, "sparsity": float, "parameters": int,
    "nonzero": int, "layers": list, "epochs": int, "curve": list, "fleet": int, "seconds": float, "environment": dict,
    "revision": str,
}  # fmt: skip
#: What each pruned layer and each tested epoch says.
LAYER = {"name": str, "weights": int, "kept": int, "sparsity": float, "neighbourhoods": int, "target": float}
POINT = {"epoch": int, "loss": float, "train_accuracy": float, "lr": float, "test_accuracy": float, "test_loss": float}


def path(folder: Place, spec: RunSpec) -> Place:
    return folder / f"{spec.name()}.json"


def write(folder: Place, spec: RunSpec, result: dict[str, Any]) -> Place:
    """Writes a cell's result, checked first."""
    record = {"version": VERSION, "name": spec.name(), "spec": spec.as_dict(), **result}
    check(record)
    make_folder(folder)
    target = path(folder, spec)
    write_atomic(target, json.dumps(record, indent=1) + "\n")
    return target


def read(file: Place) -> dict[str, Any]:
    """One result, checked against the schema and against its own name."""
    try:
        return parse(file.name, file.read_bytes())
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from None


def parse(name: str, content: bytes) -> dict[str, Any]:
    """The result in the bytes of the file ``name``."""
    try:
        record = json.loads(content)
    except ValueError as error:
        raise UserError(f"{name} cannot be read: {error}; {AGAIN}") from None
    try:
        check(record)
        cell = RunSpec.from_dict(record["spec"]).name()
    except (UserError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{name}: {error}; {AGAIN}") from None
    if cell != record["name"] or name != f"{cell}.json":
        raise UserError(f"{name} does not hold the cell that its name says; {AGAIN}")
    return record


def check(record: dict[str, Any]) -> None:
    """Refuses a record with a field missing, unknown or of another type, or of another version."""
    _check_fields("a result", record, FIELDS)
    for layer in record["layers"]:
        _check_fields("a layer of a result", layer, LAYER)
    for point in record["curve"]:
        _check_fields("a point of a result's curve", point, POINT)
    for name in ("accuracy", "accuracy_converged", "accuracy_recalibrated", "agreement", "sparsity"):
        if not 0 <= record[name] <= 1:
            raise UserError(f"a result's {name!r} is {record[name]!r}, which is not between 0 and 1")
    if record["version"] != VERSION:
        raise UserError(f"a result's version is {record['version']}, which is not {VERSION}")
    if unknown := sorted(set(record) - set(FIELDS)):
        raise UserError(f"a result has no field {unknown[0]!r}; its fields are {', '.join(FIELDS)}")


def _check_fields(what: str, record: Any, fields: dict[str, type]) -> None:
    if not isinstance(record, dict):
        raise UserError(f"{what} is a JSON object, not a {type(record).__name__}")
    for name, kind in fields.items():
        if name not in record:
            raise UserError(f"{what} lacks the field {name!r}")
        value = record[name]
        if isinstance(value, bool) or not isinstance(value, (float, int) if kind is float else kind):
            raise UserError(f"{what}'s {name!r} is {value!r}, which is not a {kind.__name__}")


def read_all(folder: Place) -> list[dict[str, Any]]:
    """Every result of a folder, by name."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder of results")
    return [read(file) for file in files(folder, "*.json")]


def check_own(folder: Place, cells: Iterable[RunSpec]) -> None:
    """Refuses a folder in which the result of one of these cells is damaged or of another version."""
    own = {spec.name() for spec in cells}
    for file in files(folder, "*.json"):
        if file.stem in own:
            read(file)


def missing(folder: Place, cells: Iterable[RunSpec]) -> list[RunSpec]:
    """The cells that have no result yet."""
    found = names(folder)
    return [spec for spec in cells if spec.name() not in found]


def names(folder: Place) -> set[str]:
    """The names of the cells that have a result, from one look into the folder."""
    return {file.stem for file in folder.glob("*.json")}
