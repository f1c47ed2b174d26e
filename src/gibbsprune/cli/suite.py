"""``gibbsprune suite``: the paper's evaluation as cells: list them, see what is missing, run it."""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path
from typing import Any

from gibbsprune.cli.suite_options import (
    add_checkpoints,
    add_export_limit,
    add_filters,
    add_how,
    add_places,
    add_run,
    duration,
)
from gibbsprune.cli.values import check_counts, seed_list, whole

COUNTS = ("workers", "at_most", "evaluate_every", "export_limit", "holdout")


def add_parser(commands: Any) -> None:
    """Add ``suite`` to the commands."""
    parser = commands.add_parser(
        "suite",
        help="the paper's evaluation: list, run, see where it stands",
        description="The paper's evaluation, cell by cell. Suites: paper, and rehearsal (embedded digits, a minute).",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    for name, handler, meaning in (
        ("list", show_list, "every cell with its step, its state and where the paper shows it"),
        ("status", show_status, "how much is done, step by step"),
        ("run", run, "run what is missing"),
    ):
        action = actions.add_parser(name, help=meaning, description=meaning.capitalize() + ".", allow_abbrev=False)
        action.add_argument("suite", metavar="SUITE", help="paper or rehearsal")
        add_filters(action)
        add_places(action)
        if name == "run":
            add_how(action)
            add_run(action)
        action.set_defaults(handler=handler, parser=action)
    _add_tune(actions)
    _add_fleet(actions)
    _add_carry(actions)


def _add_tune(actions: Any) -> None:
    meaning = "tune β ranges and the coupling on held-out training images"
    tune = actions.add_parser("tune", help=meaning, description=meaning.capitalize() + ".", allow_abbrev=False)
    tune.add_argument("--data", default="cifar10", metavar="NAME", help="cifar10 or digits (cifar10)")
    tune.add_argument("--model", default="resnet20", metavar="NAME", help="network (resnet20)")
    tune.add_argument("--epochs", type=whole, default=40, metavar="N", help="of each short run (40)")
    tune.add_argument("--seeds", type=seed_list, default=[0, 1], metavar="A-B", help="runs of each candidate (0-1)")
    tune.add_argument("--holdout", type=whole, default=5000, metavar="N", help="training images held out (5000)")
    tune.add_argument("--only", action="append", default=[], metavar="NAME", help="weight-abs, kernel-quadratic …")
    tune.add_argument("--out", type=Path, metavar="FILE", help="choice and evidence (results/tune/<data>-<model>.json)")
    tune.add_argument("--work", default="runs/tune", metavar="PLACE", help="(runs/tune)")
    add_how(tune)
    tune.add_argument("--dry-run", action="store_true", help="show the plan with its times; train nothing")
    tune.add_argument("--revision", metavar="TEXT", help="of the source, for the record (asked of git)")
    tune.set_defaults(handler=run_tune, parser=tune)


def _add_fleet(actions: Any) -> None:
    fleet = actions.add_parser("fleet", help="continue one fleet of a work folder", allow_abbrev=False)
    fleet.add_argument("folder", metavar="PLACE")
    fleet.add_argument("--results", required=True, metavar="PLACE")
    fleet.add_argument("--device", default="auto", metavar="NAME")
    fleet.add_argument("--budget", type=duration, default=math.inf, metavar="TIME")
    fleet.add_argument("--until", type=float, default=math.inf, metavar="TIME")  # as a budget, seconds since 1970
    fleet.add_argument("--revision", default="unknown", metavar="TEXT")
    fleet.add_argument("--evaluate-every", type=whole, default=10, metavar="N")
    fleet.add_argument("--autotune", action="store_true")
    fleet.add_argument("--sharing", type=whole, default=1, metavar="N")
    add_checkpoints(fleet)
    fleet.set_defaults(handler=run_fleet, parser=fleet)


def _add_carry(actions: Any) -> None:
    for name, handler, meaning in (
        ("export", export_state, "leave results and unfinished work in a few small files, while it runs or not"),
        ("import", import_state, "take in what export or --export-state left"),
    ):
        action = actions.add_parser(name, help=meaning, description=meaning.capitalize() + ".", allow_abbrev=False)
        action.add_argument("suite", metavar="SUITE", help="paper or rehearsal")
        action.add_argument("folder", type=Path, metavar="FOLDER", help="where the files lie")
        add_places(action)
        if name == "export":
            add_export_limit(action)
        action.set_defaults(handler=handler, parser=action)


def _cells(options: argparse.Namespace) -> tuple[list[Any], list[Any], Any]:
    """The chosen cells, all cells, and the orders."""
    from gibbsprune.experiments.suite import Choice, check_results, suite

    everything = suite(options.suite)
    names = ("table", "figure", "arch", "seed", "recipe", "method", "max_stretch", "step")
    chosen = Choice(**{name: getattr(options, name) for name in names}).of(everything)
    results, work = _places(options)
    check_results(everything, results)
    return chosen, everything, _orders(options, results, work)


def _orders(options: argparse.Namespace, results: Any, work: Any) -> Any:
    """The orders, as far as the command has options for them."""
    from gibbsprune.errors import UserError
    from gibbsprune.experiments.orders import Orders

    check_counts(options, *COUNTS)
    for name, least in (("cpus", "above 0"), ("gpus", "0 or more")):
        given = getattr(options, name, None)
        if given is not None and (given < 0 or (given == 0 and name == "cpus")):
            raise UserError(f"--{name} must be {least}, but {given:g} was given")
    names = ("device", "budget", "workers", "at_most", "leave_unfinished", "evaluate_every", "autotune", "engine",
             "address", "cpus", "gpus")  # fmt: skip
    values = {name: value for name in names if (value := getattr(options, name, None)) is not None}
    for name in ("address", "cpus", "gpus"):
        if name in values and values["engine"] != "ray":
            raise UserError(f"--{name} {values[name]} is of a Ray cluster; give --engine ray as well")
    if "checkpoint_every" in options:
        values["checkpoint_seconds"] = options.checkpoint_every
    return Orders(results, work, revision=getattr(options, "revision", None) or _revision(), **values)


def _places(options: argparse.Namespace) -> tuple[Any, Any]:
    from gibbsprune.errors import UserError
    from gibbsprune.training.places import place

    found = place(options.results or f"results/{options.suite}"), place(options.work or f"runs/{options.suite}")
    for name, where in zip(("--results", "--work"), found):
        if isinstance(where, Path) and where.exists() and not (where.is_dir() and os.access(where, os.R_OK | os.X_OK)):
            raise UserError(f"{name} is {where}, which is not a folder that can be read")
    return found


def show_list(options: argparse.Namespace) -> int:
    """One line per cell."""
    from gibbsprune.experiments import drive

    state = drive.survey(*_cells(options))
    for cell in state.chosen:
        places = ", ".join(cell.places)
        print(f"{cell.step}  {state.state(cell):<8} {cell.name}{'  (' + places + ')' if places else ''}")
    return 0


def show_status(options: argparse.Namespace) -> int:
    """Counts by step."""
    from gibbsprune.experiments import drive
    from gibbsprune.text import table

    state = drive.survey(*_cells(options))
    words = ("done", "begun", "ready", "waiting", "again")
    rows = []
    for step in sorted({cell.step for cell in state.chosen}):
        found = [state.state(cell) for cell in state.chosen if cell.step == step]
        rows.append([f"step {step}", len(found), *(found.count(word) for word in words)])
    print(table(["", "cells", *words], rows))
    if any(state.state(cell) != "done" for cell in state.chosen):
        print(f"gibbsprune suite run {options.suite} --dry-run shows the plan for the rest, with times")
    return 0


def run(options: argparse.Namespace) -> int:
    """Run what is missing, or show how that would go."""
    from gibbsprune.errors import UserError
    from gibbsprune.experiments import carry, drive, tune
    from gibbsprune.files import make_folder
    from gibbsprune.training.interrupt import terminable

    chosen, everything, orders = _cells(options)
    if tune.held_out(orders.work):
        raise UserError(f"{orders.work} holds the work of gibbsprune suite tune; give another --work")
    if options.dry_run:
        for line in drive.plan_lines(drive.survey(chosen, everything, orders), orders, options.on):
            print(line)
        return 0
    if options.on is not None:
        raise UserError(f"--on {options.on} is for --dry-run; training runs on --device")
    if options.export_state is not None:
        make_folder(options.export_state)  # one that cannot be written to is told now, not after the first fleet

    def leave() -> None:
        if options.export_state is not None:
            limit = options.export_limit * 2**20
            carry.pack(everything, orders.results, orders.work, options.export_state, total=limit, of=options.suite)

    try:
        with terminable():
            drive.run(chosen, everything, orders, leave, say=lambda text: print(text, flush=True))
    except KeyboardInterrupt:
        print("stopped; the same gibbsprune suite command continues it", flush=True)
        raise
    finally:
        leave()
    return 0


def run_tune(options: argparse.Namespace) -> int:
    """Compare the candidates."""
    from gibbsprune.errors import UserError
    from gibbsprune.experiments import drive, tune
    from gibbsprune.training.interrupt import terminable
    from gibbsprune.training.places import place

    if options.engine == "local" and (options.workers or 1) > 1:
        raise UserError(f"--workers is {options.workers}, but tuning runs in one process: leave it out")
    seeds, only = tuple(options.seeds), tuple(options.only)
    trial = tune.Trial(options.data, options.model, options.epochs, seeds, options.holdout, only)
    work = place(options.work)
    orders = _orders(options, work / "results", work)
    out = options.out or Path("results") / "tune" / f"{options.data}-{options.model}.json"
    if options.dry_run:
        tune.check_split(trial, work, orders.results)
        tune.earlier(trial, out)
        cells = trial.cells()
        for line in drive.plan_lines(drive.survey(cells, cells, orders), orders):
            print(line)
        return 0
    with terminable():
        chosen = tune.tune(trial, orders, out, say=lambda text: print(text, flush=True))
    if chosen:
        print(f"the choice and its evidence are in {out}")
    return 0


def run_fleet(options: argparse.Namespace) -> int:
    """What a worker does."""
    from gibbsprune import data
    from gibbsprune.experiments import planner, runner, tune
    from gibbsprune.training.environment import resolve_device
    from gibbsprune.training.places import place

    folder = place(options.folder)
    specs = planner.cells_of(folder)
    arrays = tune.split_as(folder.parent, specs[0].data, data.load(specs[0].data))
    short = folder.name.removeprefix("fleet-")[:4]
    runner.run(
        specs, arrays, place(options.results), folder.parent, str(resolve_device(options.device)),
        min(options.budget, options.until - time.time()), evaluate_every=options.evaluate_every,
        checkpoint_seconds=options.checkpoint_every, revision=options.revision, autotune=options.autotune,
        sharing=options.sharing, say=lambda text: print(f"[{short}] {text}", flush=True),
    )  # fmt: skip
    return 0


def export_state(options: argparse.Namespace) -> int:
    """Pack what is there now; checkpoints are whole files, so that a running suite is not disturbed."""
    from gibbsprune.experiments import carry
    from gibbsprune.experiments.suite import suite

    check_counts(options, *COUNTS)
    limit = options.export_limit * 2**20
    written = carry.pack(suite(options.suite), *_places(options), options.folder, total=limit, of=options.suite)
    size = sum(file.stat().st_size for file in written)
    print(f"{len(written)} files of together {size / 2**20:.1f} MiB in {options.folder}")
    return 0


def import_state(options: argparse.Namespace) -> int:
    """Take a carried state apart."""
    from gibbsprune.experiments import carry
    from gibbsprune.experiments.suite import suite

    everything, (results, work) = suite(options.suite), _places(options)
    written = carry.unpack(everything, options.folder, results, work, options.suite)
    found = sum(name.startswith("results/") for name in written)
    print(f"{found} results into {results}, {len(written) - found} files of unfinished work into {work}")
    return 0


def _revision() -> str:
    """The source's revision, if git knows it."""
    import subprocess

    here = Path(__file__).parent
    try:
        found = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return found.stdout.strip() or "unknown"
