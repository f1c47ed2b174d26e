"""Raw results: one small JSON file per cell, written once and never edited by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..training.checkpoint import write_atomic
from ..training.spec import RunSpec

VERSION = 1
FIELDS = {
    "version": int, "name": str, "spec": dict, "accuracy": float, "accuracy_converged": float,
    "accuracy_recalibrated": float, "loss": float, "agreement": float, "sparsity": float, "parameters": int,
    "nonzero": int, "layers": list, "epochs": int, "curve": list, "fleet": int, "seconds": float, "environment": dict,
    "revision": str,
}  # fmt: skip


def path(folder: Path, spec: RunSpec) -> Path:
    return folder / f"{spec.name()}.json"


def write(folder: Path, spec: RunSpec, result: dict[str, Any]) -> Path:
    """Writes a cell's result, checked first."""
    record = {"version": VERSION, "name": spec.name(), "spec": spec.as_dict(), **result}
    check(record)
    folder.mkdir(parents=True, exist_ok=True)
    target = path(folder, spec)
    write_atomic(target, json.dumps(record, indent=1) + "\n")
    return target


def read(file: Path) -> dict[str, Any]:
    """One result, checked against the schema and against its own name."""
    try:
        record = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{file.name} cannot be read: {error}") from None
    check(record)
    if RunSpec.from_dict(record["spec"]).name() != record["name"] or file.stem != record["name"]:
        raise UserError(f"{file.name} does not hold the cell that its name says")
    return record


def check(record: dict[str, Any]) -> None:
    """Refuses a record with a field missing, unknown or of another type, or of another version."""
    if not isinstance(record, dict):
        raise UserError(f"a result is a JSON object, not a {type(record).__name__}")
    for name, kind in FIELDS.items():
        if name not in record:
            raise UserError(f"a result lacks the field {name!r}")
        value = record[name]
        if isinstance(value, bool) or not isinstance(value, (float, int) if kind is float else kind):
            raise UserError(f"a result's {name!r} is {value!r}, which is not a {kind.__name__}")
    if record["version"] != VERSION:
        raise UserError(f"a result's version is {record['version']}, which is not {VERSION}")
    if unknown := sorted(set(record) - set(FIELDS)):
        raise UserError(f"a result has no field {unknown[0]!r}; its fields are {', '.join(FIELDS)}")


def missing(folder: Path, cells: Iterable[RunSpec]) -> list[RunSpec]:
    """The cells that have no result yet."""
    return [spec for spec in cells if not path(folder, spec).exists()]
