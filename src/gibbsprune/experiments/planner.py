"""What to run next: half-done fleets first, then fleets of ready cells that fit into the time left."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import UserError
from ..files import make_folder, write_atomic
from ..training import checkpoint
from ..training.fleet import SHARED
from ..training.places import Place, files
from ..training.spec import RunSpec
from . import store
from .pace import Pace
from .paper import Cell
from .suite import source

CELLS = "cells.json"
FINISHED = "finished"
FULL = 8  # runs that together leave little of a GPU idle
USEFUL = 1.5  # of a fleet's start, the least time in which to begin or continue one that will not end


@dataclass(frozen=True)
class Planned:
    """A fleet to train: its runs, where, from which epoch on, and the seconds it is expected to take."""

    specs: tuple[RunSpec, ...]
    folder: Place
    done: int
    seconds: float


@dataclass
class Survey:
    """Where a suite stands. ``again`` are cells with a result whose weights or masks are needed once more."""

    chosen: list[Cell] = field(default_factory=list)  # what was asked for
    done: list[Cell] = field(default_factory=list)
    begun: dict[Place, list[RunSpec]] = field(default_factory=dict)  # half-done fleets
    ready: list[Cell] = field(default_factory=list)
    waiting: list[Cell] = field(default_factory=list)  # their source is not there yet
    again: list[Cell] = field(default_factory=list)
    queue: list[Cell] = field(default_factory=list)  # ready and waiting ones, in order
    blocked: dict[Place, set[str]] = field(default_factory=dict)  # half-done fleets that lack the named sources

    def state(self, cell: Cell) -> str:
        """One word for a cell."""
        if cell.name in {spec.name() for specs in self.begun.values() for spec in specs}:
            return "begun"
        kinds = {"again": self.again, "done": self.done, "ready": self.ready, "waiting": self.waiting}
        return next((word for word, cells in kinds.items() if cell in cells), "not chosen")


def survey(chosen: Sequence[Cell], everything: Sequence[Cell], results: Place, work: Place) -> Survey:
    """Sorts the chosen cells, and the sources that they need from among ``everything``, by their state."""
    by_name = {cell.name: cell for cell in everything}
    have, kept = store.names(results), saved(work)
    fleets = begun(work)
    past = over(fleets, everything, have, kept)
    found = Survey(list(chosen), begun={folder: specs for folder, specs in fleets.items() if folder not in past})
    running = {spec.name() for specs in found.begun.values() for spec in specs}
    seen: set[str] = set()

    def sort(cell: Cell, as_source: bool) -> None:
        """A source comes right before the first cell that needs it."""
        has_result = cell.name in have
        if cell.name in seen or cell.name in running:
            return
        if has_result and not as_source:
            if cell not in found.done:
                found.done.append(cell)
            return
        if has_result and cell.name in kept:
            return
        seen.add(cell.name)
        if has_result:
            found.again.append(cell)
        wanted = source(cell.spec)
        if wanted is not None and wanted not in kept:
            if wanted not in by_name:
                raise UserError(f"{cell.name} starts from {wanted}, which is no cell of the suite")
            sort(by_name[wanted], True)
            found.waiting.append(cell)
            found.queue.append(cell)
            return
        found.ready.append(cell)
        found.queue.append(cell)

    wished = {cell.name for cell in chosen}
    for folder, specs in found.begun.items():
        lacking = {name for spec in specs if (name := source(spec)) is not None and name not in kept}
        if lacking and any(spec.name() in wished for spec in specs):
            found.blocked[folder] = lacking
            for name in sorted(lacking & by_name.keys()):
                sort(by_name[name], True)
    for cell in chosen:
        sort(cell, False)
    found.done = [cell for cell in found.done if cell.name not in seen]
    names = wished | seen
    found.begun = {
        folder: specs for folder, specs in found.begun.items() if any(spec.name() in names for spec in specs)
    }
    return found


def needed(everything: Sequence[Cell], have: Collection[str], kept: Collection[str]) -> list[str]:
    """The runs that cells without a result start from; of those that are not at hand also what they start from."""
    by_name = {cell.name: cell for cell in everything}
    found: dict[str, None] = {}

    def need(spec: RunSpec) -> None:
        wanted = source(spec)
        if wanted is not None and wanted not in found:
            found[wanted] = None
            if wanted not in kept and wanted in by_name:
                need(by_name[wanted].spec)

    for cell in everything:
        if cell.name not in have:
            need(cell.spec)
    return list(found)


def over(
    fleets: Mapping[Place, Sequence[RunSpec]], everything: Sequence[Cell], have: Collection[str], kept: Collection[str]
) -> list[Place]:
    """The fleets from which nothing is to be had: all their results are there, and nobody waits for weights."""
    lacking = set(needed(everything, have, kept)) - set(kept)
    return [
        folder
        for folder, specs in fleets.items()
        if all(spec.name() in have and spec.name() not in lacking for spec in specs)
    ]


def saved(work: Place) -> set[str]:
    """The names of the finished cells whose weights and masks are at hand."""
    return {file.stem for file in (work / FINISHED).glob("*.safetensors")}


def plan(
    state: Survey,
    work: Place,
    pace: Pace,
    budget: float = float("inf"),
    at_most: int = 16,
    leave_unfinished: bool = False,
    busy: Collection[Place] = (),
) -> list[Planned]:
    """Fleets in the order in which to train them, within ``budget`` seconds.

    Half-done fleets come first, whether they will end in time or not, if there is time for some epochs. A new fleet
    takes the most important cell and those that can be trained with it, as many as fit into the time; with
    ``leave_unfinished`` the last one may be longer than that. Cells wait for the fleet that trains their source.
    ``busy`` fleets are trained by other processes.
    """
    fleets: list[Planned] = []
    trained: set[str] = set()

    def continue_(folders: Collection[Place]) -> None:
        nonlocal budget, trained
        for folder in folders:
            specs = state.begun[folder]
            if folder not in busy and budget > USEFUL * pace.start(specs):
                done = epochs_done(folder)
                fleets.append(Planned(tuple(specs), folder, done, pace.seconds(specs, done)))
                budget -= fleets[-1].seconds
                trained |= {spec.name() for spec in specs}

    continue_([folder for folder in state.begun if folder not in state.blocked])
    waiting = {cell.name for cell in state.waiting}
    left, urgency = [cell.spec for cell in state.queue], _urgency(state.queue)
    while budget > 0:
        if leave_unfinished:
            left = [spec for spec in left if budget > USEFUL * pace.start([spec])]
        else:
            left = [spec for spec in left if pace.seconds([spec]) <= budget]
        ready = [spec for spec in left if spec.name() not in waiting or source(spec) in trained]
        if not ready:
            break
        specs, first = _group(ready, at_most, urgency), ready[0]
        late = first not in specs and pace.seconds(specs) + pace.seconds([first]) > budget
        if late or (pace.seconds(specs) > budget and not leave_unfinished):
            specs = _group([spec for spec in ready if spec.own_epochs <= first.own_epochs], at_most, urgency)
        while len(specs) > 1 and pace.seconds(specs) > budget and not leave_unfinished:
            specs = specs[:-1]
        fleets.append(Planned(tuple(specs), work / fleet_key(specs), 0, pace.seconds(specs)))
        budget -= fleets[-1].seconds
        taken = {spec.name() for spec in specs}
        trained |= taken
        left = [spec for spec in left if spec.name() not in taken]
    continue_([folder for folder, lacking in state.blocked.items() if lacking <= trained])
    return fleets


def _urgency(queue: Sequence[Cell]) -> dict[str, tuple[int, int]]:
    """By which to choose among cells: their step, then how many trainings, one after another, wait for their end."""
    chain: dict[str, int] = {}
    for cell in reversed(queue):  # in the queue a source precedes what starts from it
        wanted = source(cell.spec)
        if wanted is not None:
            chain[wanted] = max(chain.get(wanted, 0), 1 + chain.get(cell.name, 0))
    return {cell.name: (cell.step, -chain.get(cell.name, 0)) for cell in queue}


def _group(ready: Sequence[RunSpec], at_most: int, urgency: Mapping[str, tuple[int, int]]) -> list[RunSpec]:
    """The first run and those to train with it: of as many epochs, then shorter ones, which work beside them.

    Where not all find room, those come first for which others wait: a lottery's rounds can only follow each other. Runs
    too few of which are equal in length to fill a GPU work beside longer ones of their step, but not beside those that
    others wait for: they then work beside the others, which would be alone.
    """
    first, step = ready[0], urgency[ready[0].name()][0]
    alike = [spec for spec in ready if kind(spec) == kind(first)]
    longest = first.own_epochs
    if sum(spec.own_epochs == longest for spec in alike) < FULL:
        longest = max(spec.own_epochs for spec in alike if urgency[spec.name()][0] <= step)
    others = [spec for spec in alike if spec.own_epochs <= longest and spec is not first]
    others.sort(key=lambda spec: (-spec.own_epochs, *urgency[spec.name()]))
    equal = [spec for spec in (first, *others) if spec.own_epochs == longest][:at_most]
    if any(urgency[spec.name()][1] for spec in equal):
        return equal
    return sorted([first, *others[: at_most - 1]], key=lambda spec: -spec.own_epochs)


def kind(spec: RunSpec) -> tuple[object, ...]:
    """What the runs of one fleet share: data, network, precision and the recipe's shared fields."""
    return spec.data, spec.model, spec.precision, *(getattr(spec.recipe, name) for name in SHARED)


def fleet_key(specs: Sequence[RunSpec]) -> str:
    """A name for the fleet's work folder, from all its cells."""
    text = json.dumps([spec.as_dict() for spec in specs], sort_keys=True)
    return f"fleet-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def begin(folder: Place, specs: Sequence[RunSpec]) -> None:
    """Notes a fleet's cells in its folder, so that it is continued with the same ones."""
    make_folder(folder)
    if not (folder / CELLS).exists():
        write_atomic(folder / CELLS, json.dumps([spec.as_dict() for spec in specs], indent=1) + "\n")


def cells_of(folder: Place) -> list[RunSpec]:
    """The cells of a fleet that was begun."""
    try:
        return [RunSpec.from_dict(values) for values in json.loads((folder / CELLS).read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"{folder / CELLS} cannot be read: {error}; without the folder {folder.name} its runs begin anew"
        ) from None


def begun(work: Place) -> dict[Place, list[RunSpec]]:
    """The fleets that were begun and are not finished, the one that is furthest first."""
    folders = [file.parent for file in files(work, f"fleet-*/{CELLS}")]
    folders.sort(key=epochs_done, reverse=True)
    found = {}
    for folder in folders:
        try:
            found[folder] = cells_of(folder)
        except UserError:
            if (folder / CELLS).exists():  # else it was finished meanwhile, by another process
                raise
    return found


def epochs_done(folder: Place) -> int:
    """Up to which epoch a fleet is saved."""
    saved = checkpoint.checkpoints(folder)
    return saved[-1][0] if saved else 0
