"""What a finished run says of itself: one record, the same in a run's folder and among the results of a sweep."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..errors import UserError
from ..files import ReadError, plain, read_json
from .places import Place
from .spec import RunSpec

VERSION = 1
NAME = "result.json"  # in a run's folder; it is written last
FIELDS = {
    "version": int, "name": str, "spec": dict, "accuracy": float, "accuracy_converged": float,
    "accuracy_recalibrated": float, "loss": float, "agreement": float, "sparsity": float, "parameters": int,
    "nonzero": int, "layers": list, "epochs": int, "curve": list, "fleet": int, "seconds": float, "environment": dict,
    "revision": str,
}  # fmt: skip
#: What a run's folder says as well: the SHA-256 of its other files, and what its images are (:func:`images_of`).
BESIDE = {"files": dict, "images": dict}
#: What is said of batch norms that lagged behind a sparsity, where they did.
LAGGED = {"steps": int, "accuracy": float}
#: What each pruned layer and each tested epoch says.
LAYER = {"name": str, "weights": int, "kept": int, "sparsity": float, "neighbourhoods": int, "target": float}
POINT = {"epoch": int, "loss": float, "train_accuracy": float, "lr": float, "test_accuracy": float, "test_loss": float}
#: What is null where a run has diverged.
LOSSES = ("loss", "test_loss")


def make(spec: RunSpec, values: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a run, checked."""
    record = plain({"version": VERSION, "name": spec.name(), "spec": spec.as_dict(), **values})
    check(record)
    return record


def text(record: Mapping[str, Any]) -> str:
    """The record as it is written."""
    return json.dumps(record, indent=1) + "\n"


def read(file: Place) -> dict[str, Any]:
    """The record in a file, checked against the schema and against its own name."""
    record = read_json(file)
    try:
        check(record)
        own = RunSpec.from_dict(record["spec"]).name()
    except (UserError, TypeError, ValueError, AttributeError) as error:
        raise ReadError(f"{file}: {error}") from None
    if own != record["name"]:
        raise ReadError(f"{file} does not hold the run that it names")
    return record


def check(record: Mapping[str, Any]) -> None:
    """Refuses a record with a field missing, unknown or of another type, or of another version."""
    _check_fields("a result", record, FIELDS)
    _check_fields("a result", record, {name: kind for name, kind in BESIDE.items() if name in record})
    if "lagged" in record:
        _check_fields("what a result says of batch norms that lagged", record["lagged"], LAGGED)
    for layer in record["layers"]:
        _check_fields("a layer of a result", layer, LAYER)
    for point in record["curve"]:
        _check_fields("a point of a result's curve", point, POINT)
    for name in ("accuracy", "accuracy_converged", "accuracy_recalibrated", "agreement", "sparsity"):
        if not 0 <= record[name] <= 1:
            raise UserError(f"a result's {name!r} is {record[name]!r}, which is not between 0 and 1")
    if record["version"] != VERSION:
        raise UserError(f"a result's version is {record['version']}, which is not {VERSION}")
    if unknown := sorted(set(record) - {*FIELDS, *BESIDE, "lagged"}):
        raise UserError(f"a result has no field {unknown[0]!r}; its fields are {', '.join(FIELDS)}")


def _check_fields(what: str, record: Any, fields: Mapping[str, type]) -> None:
    if not isinstance(record, Mapping):
        raise UserError(f"{what} is a JSON object, not a {type(record).__name__}")
    for name, kind in fields.items():
        if name not in record:
            raise UserError(f"{what} lacks the field {name!r}")
        value = record[name]
        if value is None and name in LOSSES:
            continue
        if isinstance(value, bool) or not isinstance(value, (float, int) if kind is float else kind):
            raise UserError(f"{what}'s {name!r} is {value!r}, which is not a {kind.__name__}")
