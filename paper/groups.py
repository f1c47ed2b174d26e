"""Results that differ in nothing but their seed, taken together."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gibbsprune.errors import UserError
from gibbsprune.files import read_bytes
from gibbsprune.sweeps import results as stored
from gibbsprune.training.spec import RunSpec

from . import cells


@dataclass(frozen=True)
class Group:
    """The results of one kind of run, by seed."""

    spec: RunSpec
    records: tuple[dict[str, Any], ...]

    def values(self, key: str = "accuracy") -> list[float]:
        """In percent."""
        return [100 * record[key] for record in self.records]

    def mean(self, key: str = "accuracy") -> float:
        return statistics.fmean(self.values(key))

    def deviation(self, key: str = "accuracy") -> float | None:
        """Between seeds; None for a single one."""
        values = self.values(key)
        return statistics.stdev(values) if len(values) > 1 else None

    @property
    def epochs(self) -> int:
        return self.spec.total_epochs


class Results:
    """All stored results, found by what a run is, whatever its seed."""

    def __init__(self, records: Iterable[dict[str, Any]]) -> None:
        found: dict[str, list[dict[str, Any]]] = {}
        for record in records:
            found.setdefault(family(RunSpec.from_dict(record["spec"])), []).append(record)
        self.by_name = {record["name"]: record for members in found.values() for record in members}
        self.groups: dict[str, Group] = {}
        for key, members in found.items():
            members.sort(key=lambda record: record["spec"]["seed"])
            self.groups[key] = Group(RunSpec.from_dict(members[0]["spec"]), tuple(members))

    def of(self, spec: RunSpec) -> Group | None:
        """The results of runs like this one; of each stretched run that did not converge that with a higher final β."""
        plain, hot = self.groups.get(family(spec)), self.groups.get(family(cells.follow_up(spec) or spec))
        if plain is None or hot is None or plain is hot:
            return hot or plain
        again = {record["spec"]["seed"] for record in hot.records}
        members = [*hot.records, *(record for record in plain.records if record["spec"]["seed"] not in again)]
        return Group(plain.spec, tuple(sorted(members, key=lambda record: record["spec"]["seed"])))

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups.values())


def load(folder: Path) -> Results:
    return Results(stored.read_all(folder))


def read_text(file: Path) -> str:
    """The text of a file beside the results; one that cannot be read is told."""
    try:
        return read_bytes(file).decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} cannot be read: {error}") from None


def family(spec: RunSpec) -> str:
    """A key of everything but the seed, and but whether another run's training was made use of."""
    values = spec.as_dict()
    del values["seed"]
    values["settings"] = {name: value for name, value in values["settings"].items() if name != "from"}
    return json.dumps(values, sort_keys=True)
