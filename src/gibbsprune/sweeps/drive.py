"""Trains what a sweep lacks, fleet after fleet, within a time budget, with the workers that were ordered."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection
from pathlib import Path

from ..errors import UserError, needed
from ..files import Busy, clean, make_folder
from ..text import clock
from ..training.folder import RunFolder
from ..training.network import check_network
from ..training.places import Place, remove_folder
from ..training.session import MARGIN
from . import planner, results
from .declare import Sweep
from .display import Display, make_display
from .orders import Orders
from .planner import Planned, Survey
from .workers import Ended, Workers, workers_of
from .workers.here import load

POLL = 0.1  # seconds between two looks at what runs
OLD = 3600.0  # seconds after which a temporary file is nobody's: others may be at work in the same folders
RETRIES = 3  # of a fleet whose worker is lost before it has saved another epoch


class Driver:
    """A sweep and what is to be done with it."""

    def __init__(self, sweep: Sweep, orders: Orders, display: Display | None = None) -> None:
        self.sweep, self.orders = sweep, orders
        self.display = display or make_display()
        self.found = results.Found(orders.results)
        self.lost: dict[Place, tuple[int, int]] = {}  # at which epoch a fleet's worker was lost, and how often there

    def survey(self) -> Survey:
        """Where the sweep stands now."""
        found = self.found.look()
        everything = self.sweep.everything(found)
        for spec in everything:
            if spec.name() in found:
                found[spec.name()]  # a damaged one is refused, and not taken for a result
        return planner.survey(self.sweep.chosen(everything), everything, found.there, self.orders.work)

    def run(self, after: Callable[[], None] = lambda: None) -> Survey:
        """Trains until nothing is left that fits into the budget; where the sweep stands then.

        ``after`` is called after every fleet.
        """
        ends = time.monotonic() + self.orders.budget
        state = self.survey()
        if not (state.begun or state.queue):
            self.display.note("nothing is missing")
            return state
        needed("safetensors", "a sweep", "demo")
        self._try_networks(state)
        workers = workers_of(self.orders, self.sweep, self._keep(), self.display)
        with contextlib.closing(workers):
            self._make_folders()
            with self.display:
                state = self._drive(workers, ends, after)
        self._clear(state)
        return state

    def _try_networks(self, state: Survey) -> None:
        """Every network on two images of its data: what cannot be trained is told before a folder is made."""
        specs = [*state.queue, *(spec for begun in state.begun.values() for spec in begun)]
        for (name, _), spec in {(spec.data, spec.model): spec for spec in specs}.items():
            check_network(spec, load(name))

    def _make_folders(self) -> None:
        """For results and work; one that cannot be written is told now, not after the first fleet."""
        make_folder(self.orders.results)
        make_folder(self.orders.work)
        for folder in (self.orders.results, self.orders.work / planner.RUNS):
            if isinstance(folder, Path):
                clean(folder, older=OLD)

    def _keep(self) -> list[str] | None:
        """The runs whose folders are kept; None: all."""
        if not self.orders.drop_models:
            return None
        found = [planner.source(spec) for spec in self.sweep.everything(self.found)]
        return sorted({name for name in found if name is not None})

    def _drive(self, workers: Workers, ends: float, after: Callable[[], None]) -> Survey:
        """Gives the workers a fleet whenever they have room for one, until one fails or the budget ends."""
        stopped, failed = False, ""
        elsewhere: set[Place] = set()  # what other commands train
        while True:
            state, left = self.survey(), ends - time.monotonic()
            fleets = self._plan(state, workers, left, elsewhere)
            more = bool(fleets) and not (stopped or failed)
            starting = more and workers.room()
            self.display.stands(state, fleets[starting:], workers.count())
            if starting:
                try:
                    more_time = "" if math.isinf(left) else f"; {clock(left)} of the budget left"
                    self.display.note(describe(fleets[0], state) + more_time)
                    planner.begin(fleets[0].folder, fleets[0].specs)
                    workers.submit(fleets[0], left)
                except Busy:
                    self.display.note(
                        f"{fleets[0].folder.name} is being trained by another process: it is left to that one"
                    )
                    elsewhere.add(fleets[0].folder)
                continue
            if not workers.running:
                break
            while not (ended := workers.poll()) and not (more and workers.room()):
                time.sleep(POLL)
            for fleet in ended:
                failed = failed or self._ended(fleet)
                stopped = stopped or not (fleet.finished or fleet.failed or fleet.lost)
                after()
        if failed:
            raise UserError(f"the fleet {failed}")
        if not (stopped or elsewhere):
            self._say_rest(state, left)
        return state

    def _plan(
        self, state: Survey, workers: Workers, left: float, elsewhere: Collection[Place] = (), planning: bool = False
    ) -> list[Planned]:
        pace, orders = workers.pace().learn(self.orders.work), self.orders
        if planning or math.isfinite(orders.budget):
            pace.try_out([*state.queue, *(specs[0] for specs in state.begun.values())], planning)
        busy = {*workers.running, *elsewhere}
        return planner.plan(state, orders.work, pace, left - MARGIN, orders.at_most, orders.leave_unfinished, busy)

    def _ended(self, fleet: Ended) -> str:
        """What is wrong with a fleet that has ended; nothing if it is finished, or will be taken up again."""
        folder = fleet.folder
        if fleet.failed:
            return f"{folder.name} failed: {fleet.failed}"
        if fleet.finished and (lacking := results.missing(self.orders.results, fleet.specs)):
            return (
                f"{folder.name} failed: its result {lacking[0].name()} is not in {self.orders.results}; every node "
                "must see that place"
            )
        if not fleet.lost or not (folder / "run.json").exists():  # or lost after its last deed
            return ""
        epoch = planner.epochs_done(folder)
        before, times = self.lost.get(folder, (-1, 0))
        times = times + 1 if epoch <= before else 1
        self.lost[folder] = epoch, times
        if times > RETRIES:
            return f"{folder.name} failed: its worker was lost {times} times before it saved an epoch ({fleet.lost})"
        self.display.note(f"{folder.name}: its worker was lost ({fleet.lost}); it is taken up again from epoch {epoch}")
        return ""

    def _say_rest(self, state: Survey, left: float) -> None:
        if state.queue or state.begun:
            count = len(state.queue) + sum(map(len, state.begun.values()))
            self.display.note(f"{count} runs do not fit into the {clock(max(0.0, left))} left")
        else:
            self.display.note("nothing is missing")

    def _clear(self, state: Survey) -> None:
        """Removes the folders of fleets whose results are all there: they were killed while they cleaned up."""
        for folder, specs in planner.begun(self.orders.work).items():
            there = not results.missing(self.orders.results, specs) and {spec.name() for spec in specs} <= {
                spec.name() for spec in state.done
            }
            if there and isinstance(folder, Path):
                with contextlib.suppress(Busy):
                    with RunFolder(folder).held():
                        pass
                    remove_folder(folder)

    def plan_lines(self) -> list[str]:
        """The plan in words: one line per fleet, its runs, and the time of it all."""
        state, orders = self.survey(), self.orders
        if not (state.begun or state.queue):
            return [f"{len(state.done)} runs are done, nothing is missing"]
        with contextlib.closing(workers_of(orders, self.sweep, None, self.display, planning=True)) as workers:
            fleets, device = self._plan(state, workers, orders.budget, planning=True), workers.pace().device
        lines = [line for fleet in fleets for line in (describe(fleet, state), *(f"  {s.name()}" for s in fleet.specs))]
        taken = sum(len(fleet.specs) for fleet in fleets)
        rest = sum(map(len, state.begun.values())) + len(state.queue) - taken
        lines.append(
            f"{taken} runs in {len(fleets)} fleets, about {clock(sum(fleet.seconds for fleet in fleets))} on "
            + device
            + (" one after another" if orders.several else "")
            + (f"; {rest} runs do not fit" if rest else "")
        )
        return lines


def describe(fleet: Planned, state: Survey) -> str:
    """A fleet in one line."""
    first = fleet.specs[0]
    what = f"{len(fleet.specs)} runs" if len(fleet.specs) > 1 else "1 run"
    text = f"{fleet.folder.name}: {what} of {first.model}, {max(s.own_epochs for s in fleet.specs)} epochs"
    if fleet.done:
        text += f", from epoch {fleet.done}"
    if repeated := sum(spec.name() in state.again for spec in fleet.specs):
        text += f", {repeated} of them again for their weights"
    return text + ("" if math.isnan(fleet.seconds) else f", about {clock(fleet.seconds)}")
