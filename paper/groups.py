"""Results that differ in nothing but their seed, taken together."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gibbsprune.errors import UserError
from gibbsprune.experiments import store
from gibbsprune.training.spec import RunSpec

from . import cells

#: The deviation between seeds, in points, that is assumed where there is one: about that of kinds with three, pooled.
ASSUMED_DEVIATION = {"weight": 0.25, "kernel": 0.25, "filter": 0.35}
LEAST_DEVIATION = 0.2
TASKS = {"cifar10": "CIFAR-10"}


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
    def error(self) -> float:
        """The standard error of the mean accuracy; few seeds say little about their deviation, so it has a floor."""
        deviation = self.deviation()
        return max(LEAST_DEVIATION, self.assumed if deviation is None else deviation) / math.sqrt(len(self.records))

    @property
    def assumed(self) -> float:
        """The deviation of a single run of this kind, also of one whose accuracy the paper prints."""
        return ASSUMED_DEVIATION[self.spec.structure]

    @property
    def epochs(self) -> int:
        return self.spec.total_epochs

    @property
    def hot(self) -> list[int]:
        """The seeds of the runs up to the final β of those that did not converge."""
        specs = [record["spec"] for record in self.records]
        return [spec["seed"] for spec in specs if spec["recipe"]["beta_end"] == cells.FINAL_BETA]


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

    @property
    def tasks(self) -> list[str]:
        """The names of the data that the results are of."""
        return sorted({TASKS.get(group.spec.data, group.spec.data) for group in self})

    def __iter__(self) -> Any:
        return iter(self.groups.values())


def load(folder: Path) -> Results:
    return Results(store.read_all(folder))


def read_text(file: Path) -> str:
    """The text of a file beside the results; one that cannot be read is told."""
    try:
        return file.read_bytes().decode().replace("\r\n", "\n")
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None


def family(spec: RunSpec) -> str:
    """A key of everything but the seed, and but whether another run's training was made use of."""
    values = spec.as_dict()
    del values["seed"]
    values["settings"] = {name: value for name, value in values["settings"].items() if name != "from"}
    return json.dumps(values, sort_keys=True)


def clearly(one: Group, other: Group) -> int:
    """1 if the first is more accurate than the second beyond two standard errors, −1 if less, else 0."""
    return beyond_chance(one.mean() - other.mean(), one.error, other.error)


def beyond_chance(difference: float, *errors: float) -> int:
    """The sign of a difference beyond two standard errors, else 0."""
    return 0 if abs(difference) <= 2 * math.hypot(*errors) else (1 if difference > 0 else -1)
