"""Runs what a suite lacks, fleet after fleet, within a time budget; with several workers, fleets side by side."""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from .. import data
from ..data.arrays import Arrays
from ..errors import UserError
from ..training.environment import resolve_device
from ..training.progress import clock
from ..training.spec import RunSpec
from . import pace, planner, runner, suite
from .paper import Cell
from .planner import Planned


@dataclass(frozen=True)
class Orders:
    """Where results and work lie, on what to train, for how long, and how."""

    results: Path
    work: Path
    device: str = "auto"
    budget: float = math.inf
    workers: int = 1
    at_most: int = 16
    leave_unfinished: bool = False
    revision: str = "unknown"
    evaluate_every: int = 10
    autotune: bool = False


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
    arrays = prepare(data.load(names.pop()))
    keep = suite.sources(suite.with_follow_ups(everything, orders.results))
    if orders.workers > 1:
        return _side_by_side(chosen, everything, orders, arrays, ends, after, say)
    device = resolve_device(orders.device)
    while True:
        state = survey(chosen, everything, orders)
        known = pace.of_device(device, arrays, orders.work)
        left = ends - time.monotonic()
        fleets = planner.plan(state, orders.work, known, left, orders.at_most, orders.leave_unfinished)
        if not fleets:
            _say_rest(state, left, say)
            return state
        say(describe(fleets[0], state) + ("" if math.isinf(left) else f"; {clock(left)} of the budget left"))
        finished = runner.run(
            fleets[0].specs, arrays, orders.results, orders.work, str(device), left,
            evaluate_every=orders.evaluate_every, revision=orders.revision, keep=keep,
            autotune=orders.autotune, say=say,
        )  # fmt: skip
        _clear(device)
        after()
        if not finished:
            return survey(chosen, everything, orders)


def _clear(device: torch.device) -> None:
    """Forgets the last fleet: its memory, and what was compiled for it, of which there may be only so much."""
    gc.collect()
    if device.type == "cuda":
        torch.compiler.reset()
        torch.cuda.empty_cache()


def _side_by_side(
    chosen: Sequence[Cell],
    everything: Sequence[Cell],
    orders: Orders,
    arrays: Arrays,
    ends: float,
    after: Callable[[], None],
    say: Callable[[str], None],
) -> planner.Survey:
    """One process per fleet, at most ``workers`` at a time, on the devices in turn."""
    devices = orders.device.split(",")
    known = pace.of_device(resolve_device(devices[0]), arrays, orders.work)
    known.sharing = math.ceil(orders.workers / len(devices))
    environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // orders.workers)), **os.environ}
    running: dict[Path, tuple[subprocess.Popen[bytes], str]] = {}
    stopped = failed = ""
    try:
        while True:
            state, left = survey(chosen, everything, orders), ends - time.monotonic()
            fleets = planner.plan(
                state, orders.work, known, left, orders.at_most, orders.leave_unfinished, busy=running
            )  # fmt: skip
            if fleets and len(running) < orders.workers and not (stopped or failed):
                device = min(devices, key=[device for _, device in running.values()].count)
                folder = fleets[0].folder
                planner.begin(folder, fleets[0].specs)
                say(f"{describe(fleets[0], state)}, on {device}")
                process = subprocess.Popen(worker_command(folder, orders, device, left), env=environment)
                running[folder] = process, device
                continue
            if not running:
                break
            for folder in [folder for folder, (process, _) in running.items() if process.poll() is not None]:
                process, _ = running.pop(folder)
                failed = folder.name if process.returncode != 0 else failed
                stopped = folder.name if folder.exists() else stopped  # by its budget
                after()
            time.sleep(0.2)
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.wait()
    if failed:
        raise UserError(f"the fleet {failed} failed; its last lines above say why")
    if not stopped:
        _say_rest(state, left, say)
    return state


def worker_command(folder: Path, orders: Orders, device: str, budget: float) -> list[str]:
    """The command of a worker, which trains the fleet of one folder."""
    command = [sys.executable, "-m", "gibbsprune", "suite", "fleet", str(folder), "--results", str(orders.results)]
    command += ["--device", device, "--revision", orders.revision, "--evaluate-every", str(orders.evaluate_every)]
    command += ["--autotune"] if orders.autotune else []
    return command if math.isinf(budget) else [*command, "--budget", f"{budget:.0f}s"]


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
    device = resolve_device(orders.device.split(",")[0])
    known = pace.Pace(on) if on is not None else pace.of_device(device, None, orders.work)
    known.learn(orders.work)
    if all(spec.model in pace.MEASURED.get(known.device, {}) for spec in specs):
        return known
    return pace.of_device(device, data.load(specs[0].data), orders.work)


def plan_lines(state: planner.Survey, orders: Orders, on: str | None = None) -> list[str]:
    """The plan in words: one line per fleet, its cells, and the time of it all; ``on`` another, measured device."""
    specs = [spec for fleet in state.begun.values() for spec in fleet] + [cell.spec for cell in state.queue]
    if not specs:
        return [f"{len(state.done)} cells are done, nothing is missing"]
    known = _pace_on(on, specs, orders)
    fleets = planner.plan(state, orders.work, known, orders.budget, orders.at_most, orders.leave_unfinished)
    lines = []
    for fleet in fleets:
        lines.append(describe(fleet, state))
        lines += [f"  {spec.name()}" for spec in fleet.specs]
    taken = sum(len(fleet.specs) for fleet in fleets)
    rest = sum(map(len, state.begun.values())) + len(state.queue) - taken
    lines.append(
        f"{taken} cells in {len(fleets)} fleets, about {clock(sum(fleet.seconds for fleet in fleets))} on "
        f"{known.device}" + (f"; {rest} cells do not fit" if rest else "")
    )
    return lines
