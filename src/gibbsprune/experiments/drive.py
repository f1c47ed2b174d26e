"""Runs what a suite lacks, fleet after fleet, within a time budget, on the engine that was ordered."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from .. import data
from ..data.arrays import Arrays
from ..errors import UserError
from ..files import Busy, make_folder
from ..text import clock
from ..training.environment import resolve_device
from ..training.places import Place
from ..training.spec import RunSpec
from . import pace, planner, suite
from .engines import Engine, engine_of
from .orders import Orders
from .paper import Cell
from .planner import Planned
from .runner import MARGIN

POLL = 0.2  # seconds between two looks at what runs


def survey(chosen: Sequence[Cell], everything: Sequence[Cell], orders: Orders) -> planner.Survey:
    """Where the suite stands now, follow-ups included."""
    chosen = suite.with_follow_ups(chosen, orders.results)
    return planner.survey(chosen, suite.with_follow_ups(everything, orders.results), orders.results, orders.work)


def run(
    chosen: Sequence[Cell],
    everything: Sequence[Cell],
    orders: Orders,
    after: Callable[[], None] = lambda: None,
    prepare: Callable[[Arrays], Arrays] = lambda arrays: arrays,
    say: Callable[[str], None] = print,
) -> planner.Survey:
    """Trains until nothing is left that fits into the budget; returns where the suite stands then.

    ``after`` is called after every fleet; ``prepare`` changes the data before they are used (by this process alone).
    """
    ends = time.monotonic() + orders.budget
    state = survey(chosen, everything, orders)
    names = {spec.data for specs in state.begun.values() for spec in specs}
    names |= {cell.spec.data for cell in state.queue}
    if len(names) > 1:
        raise UserError(f"the cells of one suite share their data, but these have {' and '.join(sorted(names))}")
    if not names:
        say("nothing is missing")
        return state
    make_folder(orders.results)  # an unwritable one is told now, not after the first fleet
    arrays = prepare(data.load(names.pop()))
    keep = suite.sources(suite.with_follow_ups(everything, orders.results))
    engine = engine_of(orders, arrays, keep, say)
    try:
        return _drive(engine, chosen, everything, orders, ends, after, say)
    finally:
        engine.close()


def _drive(
    engine: Engine,
    chosen: Sequence[Cell],
    everything: Sequence[Cell],
    orders: Orders,
    ends: float,
    after: Callable[[], None],
    say: Callable[[str], None],
) -> planner.Survey:
    """Gives the engine a fleet whenever it has room for one, until one fails or the budget ends."""
    stopped, failed = False, ""
    elsewhere: set[Place] = set()  # what other commands train
    while True:
        state, left = survey(chosen, everything, orders), ends - time.monotonic()
        fleets = planner.plan(
            state, orders.work, engine.pace(), left - MARGIN, orders.at_most, orders.leave_unfinished,
            busy={*engine.running, *elsewhere},
        )  # fmt: skip
        more = bool(fleets) and not (stopped or failed)
        if more and engine.room():
            try:
                say(describe(fleets[0], state) + engine.remark(left))
                engine.submit(fleets[0], left)
            except Busy:
                say(f"{fleets[0].folder.name} is being trained by another process: it is left to that one")
                elsewhere.add(fleets[0].folder)
            continue
        if not engine.running:
            break
        while not (ended := engine.poll()) and not (more and engine.room()):
            time.sleep(POLL)
        for fleet in ended:
            failed = failed or (f"{fleet.folder.name} failed: {fleet.failed}" if fleet.failed else "")
            stopped = stopped or not (fleet.finished or fleet.failed)
            after()
    if failed:
        raise UserError(f"the fleet {failed}")
    if not (stopped or elsewhere):
        _say_rest(state, left, say)
    return state


def describe(fleet: Planned, state: planner.Survey) -> str:
    """A fleet in one line."""
    first, again = fleet.specs[0], {cell.name for cell in state.again}
    what = f"{len(fleet.specs)} runs" if len(fleet.specs) > 1 else "1 run"
    text = f"{fleet.folder.name}: {what} of {first.model}, {max(s.own_epochs for s in fleet.specs)} epochs"
    if fleet.done:
        text += f", from epoch {fleet.done}"
    if repeated := sum(spec.name() in again for spec in fleet.specs):
        text += f", {repeated} of them again for their weights"
    return f"{text}, about {clock(fleet.seconds)}"


def _say_rest(state: planner.Survey, left: float, say: Callable[[str], None]) -> None:
    if state.queue:
        say(f"{len(state.queue)} cells do not fit into the {clock(max(0.0, left))} left")
    else:
        say("nothing is missing")


def _pace_on(on: str | None, specs: Sequence[RunSpec], orders: Orders) -> pace.Pace:
    if on is not None and on not in pace.MEASURED:
        raise UserError(f"nothing was measured on {on!r}; it must be one of {', '.join(pace.MEASURED)}")
    device, *_ = map(resolve_device, orders.device.split(",") if orders.several else [orders.device])
    known = pace.Pace(on) if on is not None else pace.of_device(device, None, orders.work)
    known.learn(orders.work)
    unknown = [spec.model for spec in specs if spec.model not in pace.MEASURED.get(known.device, {})]
    if not unknown:
        return known
    if on is not None:
        raise UserError(f"{unknown[0]} was not measured on {on}; measured are {', '.join(pace.MEASURED[on])}")
    return pace.of_device(device, data.load(specs[0].data), orders.work)


def plan_lines(state: planner.Survey, orders: Orders, on: str | None = None) -> list[str]:
    """The plan in words: one line per fleet, its cells, and the time of it all; ``on`` another, measured device."""
    specs = [spec for fleet in state.begun.values() for spec in fleet] + [cell.spec for cell in state.queue]
    if not specs:
        return [f"{len(state.done)} cells are done, nothing is missing"]
    known = _pace_on(on, specs, orders)
    fleets = planner.plan(state, orders.work, known, orders.budget - MARGIN, orders.at_most, orders.leave_unfinished)
    lines = []
    for fleet in fleets:
        lines.append(describe(fleet, state))
        lines += [f"  {spec.name()}" for spec in fleet.specs]
    taken = sum(len(fleet.specs) for fleet in fleets)
    rest = sum(map(len, state.begun.values())) + len(state.queue) - taken
    lines.append(
        f"{taken} cells in {len(fleets)} fleets, about {clock(sum(fleet.seconds for fleet in fleets))} on "
        f"{known.device}"
        + (" one after another" if orders.several else "")
        + (f"; {rest} cells do not fit" if rest else "")
    )
    return lines
