"""Where a sweep stands, and what to train next: half-done fleets first, then ready runs that fit into the time."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UserError
from ..files import make_folder, write_json
from ..training import checkpoint, result
from ..training.fleet import SHARED
from ..training.folder import FORMAT, RunFolder
from ..training.methods.method import is_file
from ..training.places import Place, files
from ..training.spec import RunSpec
from .pace import Pace

RUNS = "runs"  # in the work folder: the folders of finished runs
USEFUL = 1.5  # of a fleet's start, the least time in which to begin or continue one that will not end


# -- where it stands ---------------------------------------------------------------------------------------------------


@dataclass
class Survey:
    """Where a sweep stands. ``queue`` is what is to be trained, a source before what starts from it."""

    chosen: list[RunSpec] = field(default_factory=list)  # what was asked for
    done: list[RunSpec] = field(default_factory=list)
    begun: dict[Place, list[RunSpec]] = field(default_factory=dict)  # half-done fleets
    queue: list[RunSpec] = field(default_factory=list)
    again: set[str] = field(default_factory=set)  # of the queue, those whose result is there and whose weights are not
    lacking: set[str] = field(default_factory=set)  # sources that are not there yet

    def ready(self, spec: RunSpec) -> bool:
        """Whether nothing keeps a run from being trained."""
        return source(spec) not in self.lacking

    def state(self, spec: RunSpec) -> str:
        """One word for a run."""
        if any(spec in specs for specs in self.begun.values()):
            return "begun"
        if spec not in self.queue:
            return "done"
        return "again" if spec.name() in self.again else "ready" if self.ready(spec) else "waiting"


def source(spec: RunSpec) -> str | None:
    """The run that a run starts from, by its name or folder."""
    named = spec.setting("from")
    return None if named is None else str(named)


def survey(chosen: Sequence[RunSpec], everything: Sequence[RunSpec], have: Collection[str], work: Place) -> Survey:
    """Sorts the chosen runs, and the sources that they need, by their state.

    Args:
        chosen: what was asked for.
        everything: all runs of the sweep.
        have: the names of the runs with a result.
        work: where half-done fleets and finished runs lie.
    """
    by_name, kept = {spec.name(): spec for spec in everything}, saved(work)
    fleets = {folder: specs for folder, specs in begun(work).items() if _is_own(specs, by_name)}
    homes = {spec.name(): folder for folder, specs in fleets.items() for spec in specs}
    found = Survey(list(chosen))

    def want(spec: RunSpec, weights: bool) -> None:
        """Puts a run, its source right before it, or its half-done fleet, among what is to be trained, unless what is
        wanted of it is there."""
        name = spec.name()
        if name in have and (name in kept or not weights):
            return
        if name not in homes and spec not in found.queue:
            need(spec)
            found.queue.append(spec)
            if name in have:
                found.again.add(name)
        elif name in homes and (folder := homes[name]) not in found.begun:
            found.begun[folder] = fleets[folder]
            for one in fleets[folder]:
                need(one)

    def need(spec: RunSpec) -> None:
        named = source(spec)
        if named is None or named in kept or (named not in by_name and _is_folder(named)):
            return
        if named not in by_name:
            raise UserError(
                f"{spec.name()} starts from {named}, which is no run of the sweep and no finished run's folder"
            )
        found.lacking.add(named)
        want(by_name[named], True)

    for spec in chosen:
        want(spec, False)
    found.begun = {folder: specs for folder, specs in fleets.items() if folder in found.begun}
    busy = {spec.name() for specs in (found.queue, *found.begun.values()) for spec in specs}
    found.done = [spec for spec in chosen if spec.name() not in busy]
    return found


def _is_own(specs: Sequence[RunSpec], by_name: Mapping[str, RunSpec]) -> bool:
    """Whether a half-done fleet is of this sweep, and has no network that is not: that may be somebody's code."""
    networks = {spec.model for spec in by_name.values()}
    mine = any(by_name.get(spec.name()) == spec for spec in specs)
    return mine and all(spec.model in networks for spec in specs)


def _is_folder(named: str) -> bool:
    path = Path(named)
    return (is_file(named) and path.is_file()) or (path / result.NAME).exists() or (path / "run.json").exists()


def saved(work: Place) -> set[str]:
    """The names of the finished runs whose weights and masks are at hand."""
    return {file.parent.name for file in files(work, f"{RUNS}/*/{result.NAME}")}


# -- fleets ------------------------------------------------------------------------------------------------------------


def fleet_key(specs: Sequence[RunSpec]) -> str:
    """A name for the fleet's work folder, from all its runs."""
    text = json.dumps([spec.as_dict() for spec in specs], sort_keys=True)
    return f"fleet-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def begin(folder: Place, specs: Sequence[RunSpec]) -> None:
    """Notes a fleet's runs in its folder, so that it is continued with the same ones."""
    make_folder(folder)
    if not (folder / "run.json").exists():
        write_json(folder / "run.json", {"format": FORMAT, "runs": [spec.as_dict() for spec in specs]})


def begun(work: Place) -> dict[Place, list[RunSpec]]:
    """The fleets that were begun and are not finished, the one that is furthest first."""
    found = {}
    for folder in sorted((file.parent for file in files(work, "fleet-*/run.json")), key=epochs_done, reverse=True):
        try:
            found[folder] = RunFolder.open(folder).specs
        except UserError as error:
            if (folder / "run.json").exists():  # else it was finished meanwhile, by another process
                raise UserError(f"{error}; without the folder {folder.name} its runs begin anew") from None
    return found


def epochs_done(folder: Place) -> int:
    """Up to which epoch a fleet is saved."""
    done = checkpoint.checkpoints(folder / "checkpoints")
    return done[-1][0] if done else 0


def kind(spec: RunSpec) -> tuple[object, ...]:
    """What the runs of one fleet share: data, network, precision and the recipe's shared fields."""
    return spec.data, spec.model, spec.precision, *(getattr(spec.recipe, name) for name in SHARED)


# -- what to train next ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planned:
    """A fleet to train: its runs, where, from which epoch on, and the seconds it is expected to take."""

    specs: tuple[RunSpec, ...]
    folder: Place
    done: int
    seconds: float


def plan(
    state: Survey,
    work: Place,
    pace: Pace,
    budget: float = math.inf,
    at_most: int = 16,
    leave_unfinished: bool = False,
    busy: Collection[Place] = (),
) -> list[Planned]:
    """Fleets in the order in which to train them, within a budget.

    Half-done fleets come first, whether they will end in time or not, if there is time for some epochs. A new fleet
    takes the most important run and those that can be trained with it, as many as fit into the time. Runs wait for the
    fleet that trains their source.

    Args:
        state: where the sweep stands.
        work: where fleets are kept.
        pace: how long they take; with a finite budget it must know.
        budget: seconds.
        at_most: runs in one fleet.
        leave_unfinished: the last fleet may be longer than the budget.
        busy: fleets that are being trained.
    """
    fleets: list[Planned] = []
    trained: set[str] = set()
    left = _Left(pace, budget, leave_unfinished)

    def take(specs: Sequence[RunSpec], folder: Place, done: int) -> None:
        fleets.append(Planned(tuple(specs), folder, done, pace.seconds(specs, done)))
        left.seconds -= fleets[-1].seconds if math.isfinite(left.seconds) else 0.0
        trained.update(spec.name() for spec in specs)

    def can(spec: RunSpec) -> bool:
        return state.ready(spec) or source(spec) in trained

    def go_on() -> None:
        for folder, specs in state.begun.items():
            new = folder not in busy and folder not in {fleet.folder for fleet in fleets}
            if new and all(map(can, specs)) and left.useful(specs):
                take(specs, folder, epochs_done(folder))

    go_on()
    queue, waiting = list(state.queue), _followers(state.queue)
    while ready := [spec for spec in queue if can(spec) and left.allows([spec])]:
        specs = _company(ready, at_most, waiting, left)
        take(specs, work / fleet_key(specs), 0)
        queue = [spec for spec in queue if spec not in specs]
    go_on()
    return fleets


@dataclass
class _Left:
    """The time that is left, and what it allows."""

    pace: Pace
    seconds: float
    unfinished: bool

    def useful(self, specs: Sequence[RunSpec]) -> bool:
        """Whether there is time for some epochs."""
        return math.isinf(self.seconds) or self.seconds > USEFUL * self.pace.start(specs)

    def allows(self, specs: Sequence[RunSpec]) -> bool:
        """Whether to begin these as a fleet."""
        if self.unfinished or math.isinf(self.seconds):
            return self.useful(specs)
        return self.pace.seconds(specs) <= self.seconds


def _followers(queue: Sequence[RunSpec]) -> dict[str, int]:
    """For each run, how many trainings, one after another, wait for its end."""
    chain: dict[str, int] = {}
    for spec in reversed(queue):  # in which a source precedes what starts from it
        if (wanted := source(spec)) is not None:
            chain[wanted] = max(chain.get(wanted, 0), 1 + chain.get(spec.name(), 0))
    return chain


def _company(ready: Sequence[RunSpec], at_most: int, waiting: Mapping[str, int], left: _Left) -> list[RunSpec]:
    """The first run and those to train with it: of as many epochs, then shorter ones, which work beside them.

    The longest of the next runs sets the length. Where not all find room, those come first for which others wait: the
    rounds of a lottery can only follow each other. Where not all fit into the time, the first run sets the length.
    """
    first = ready[0]
    alike = [spec for spec in ready if kind(spec) == kind(first)]

    def together(longest: int) -> list[RunSpec]:
        others = [spec for spec in alike[1:] if spec.own_epochs <= longest]
        others.sort(key=lambda spec: (-spec.own_epochs, -waiting.get(spec.name(), 0)))
        return sorted([first, *others[: at_most - 1]], key=lambda spec: -spec.own_epochs)

    specs = together(max(spec.own_epochs for spec in alike[:at_most]))
    if left.allows(specs):
        return specs
    specs = together(first.own_epochs)
    while len(specs) > 1 and not left.allows(specs):
        specs = [spec for spec in specs if spec is not next(s for s in reversed(specs) if s is not first)]
    return specs
