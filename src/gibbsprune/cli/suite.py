"""``gibbsprune suite``: the paper's evaluation as cells: list them, see what is missing, run it."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import Any

from gibbsprune.cli.values import seed_list, whole


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
        _add_filters(action)
        _add_places(action)
        if name == "run":
            _add_how(action)
            _add_run(action)
        action.set_defaults(handler=handler, parser=action)
    _add_tune(actions)
    _add_fleet(actions)
    _add_import(actions)


def _add_filters(parser: argparse.ArgumentParser) -> None:
    which = parser.add_argument_group("which cells (all, unless given)")
    which.add_argument("--table", metavar="N", help="II, III or IV")
    which.add_argument("--figure", metavar="N", help="3, 4, 5 or 6")
    which.add_argument("--arch", metavar="NAME", help="resnet20 or resnet56")
    which.add_argument("--seed", type=seed_list, metavar="A-B", help="0, 0-2 or 0,2")
    which.add_argument("--recipe", metavar="NAME", help="paper or modern")
    which.add_argument("--method", metavar="NAME", help="gibbs, dense, lottery …")
    which.add_argument("--max-stretch", type=whole, metavar="S", help="no longer schedules than that")
    which.add_argument("--step", type=seed_list, metavar="A-B", help="steps of the plan: 1, 1-2 …; 1 is due first")


def _add_places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="raw results (results/<suite>)")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="checkpoints, weights (runs/<suite>)")


def _add_how(parser: argparse.ArgumentParser) -> None:
    how = parser.add_argument_group("how")
    how.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu, cuda; with workers cuda:0,cuda:1 …")
    how.add_argument("--at-most", type=whole, default=16, metavar="N", help="runs in one fleet (16)")
    how.add_argument("--budget", type=duration, default=math.inf, metavar="TIME", help="90s, 25m or 2h (no limit)")
    how.add_argument("--leave-unfinished", action="store_true", help="begin fleets that the budget will cut, too")
    how.add_argument("--workers", type=whole, default=1, metavar="N", help="fleets at the same time (1)")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="show the plan with its times; train nothing")
    parser.add_argument("--on", metavar="NAME", help="with --dry-run, times on another device, such as 'NVIDIA H200'")
    parser.add_argument("--revision", metavar="TEXT", help="of the source, for the record (asked of git)")
    parser.add_argument("--evaluate-every", type=whole, default=10, metavar="N", help="epochs between tests (10)")
    parser.add_argument("--autotune", action="store_true", help="cuDNN times its kernels: faster, last bits may differ")
    parser.add_argument(
        "--export-state", type=Path, metavar="FOLDER", help="leave results and unfinished work in a few small files"
    )


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
    tune.add_argument("--work", type=Path, default=Path("runs/tune"), metavar="FOLDER", help="(runs/tune)")
    _add_how(tune)
    tune.add_argument("--dry-run", action="store_true", help="show the plan with its times; train nothing")
    tune.add_argument("--revision", metavar="TEXT", help="of the source, for the record (asked of git)")
    tune.set_defaults(handler=run_tune, parser=tune)


def _add_fleet(actions: Any) -> None:
    fleet = actions.add_parser("fleet", help="continue one fleet of a work folder", allow_abbrev=False)
    fleet.add_argument("folder", type=Path, metavar="FOLDER")
    fleet.add_argument("--results", type=Path, required=True, metavar="FOLDER")
    fleet.add_argument("--device", default="auto", metavar="NAME")
    fleet.add_argument("--budget", type=duration, default=math.inf, metavar="TIME")
    fleet.add_argument("--revision", default="unknown", metavar="TEXT")
    fleet.add_argument("--evaluate-every", type=whole, default=10, metavar="N")
    fleet.add_argument("--autotune", action="store_true")
    fleet.set_defaults(handler=run_fleet, parser=fleet)


def _add_import(actions: Any) -> None:
    take = actions.add_parser("import", help="take in what --export-state left", allow_abbrev=False)
    take.add_argument("suite", metavar="SUITE", help="paper or rehearsal")
    take.add_argument("folder", type=Path, metavar="FOLDER", help="where the files of --export-state lie")
    _add_places(take)
    take.set_defaults(handler=import_state, parser=take)


def duration(text: str) -> float:
    """Seconds from ``90s``, ``25m``, ``2h`` or plain seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a time such as 90s, 25m or 2h, but {text!r} was given")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def _cells(options: argparse.Namespace) -> tuple[list[Any], list[Any], Any]:
    """The chosen cells, all cells, and the orders."""
    from gibbsprune.errors import UserError
    from gibbsprune.experiments.drive import Orders
    from gibbsprune.experiments.suite import Choice, suite

    everything = suite(options.suite)
    names = ("table", "figure", "arch", "seed", "recipe", "method", "max_stretch", "step")
    chosen = Choice(**{name: getattr(options, name) for name in names}).of(everything)
    values = {name: getattr(options, name) for name in ("device", "budget", "workers", "at_most") if name in options}
    for name in ("workers", "at_most", "evaluate_every"):
        if getattr(options, name, 1) < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, but {getattr(options, name)} was given")
    results, work = _places(options)
    return chosen, everything, Orders(
        results=results, work=work, leave_unfinished=getattr(options, "leave_unfinished", False),
        revision=getattr(options, "revision", None) or _revision(),
        evaluate_every=getattr(options, "evaluate_every", 10), autotune=getattr(options, "autotune", False), **values,
    )  # fmt: skip


def _places(options: argparse.Namespace) -> tuple[Path, Path]:
    return options.results or Path("results") / options.suite, options.work or Path("runs") / options.suite


def show_list(options: argparse.Namespace) -> int:
    """One line per cell."""
    from gibbsprune.experiments import drive

    chosen, everything, orders = _cells(options)
    state = drive.survey(chosen, everything, orders)
    for cell in chosen:
        places = ", ".join(cell.places)
        print(f"{cell.step}  {state.state(cell):<8} {cell.name}{'  (' + places + ')' if places else ''}")
    return 0


def show_status(options: argparse.Namespace) -> int:
    """Counts by step."""
    from gibbsprune.experiments import drive
    from gibbsprune.training.summary import table

    chosen, everything, orders = _cells(options)
    state = drive.survey(chosen, everything, orders)
    words = ("done", "begun", "ready", "waiting", "again")
    rows = []
    for step in sorted({cell.step for cell in chosen}):
        found = [state.state(cell) for cell in chosen if cell.step == step]
        rows.append([f"step {step}", len(found), *(found.count(word) for word in words)])
    print(table(["", "cells", *words], rows))
    print(f"gibbsprune suite run {options.suite} --dry-run shows the plan for the rest, with times")
    return 0


def run(options: argparse.Namespace) -> int:
    """Run what is missing, or show how that would go."""
    from gibbsprune.experiments import carry, drive

    chosen, everything, orders = _cells(options)
    if options.dry_run:
        for line in drive.plan_lines(drive.survey(chosen, everything, orders), orders, options.on):
            print(line)
        return 0

    def leave() -> None:
        if options.export_state is not None:
            carry.pack(everything, orders.results, orders.work, options.export_state)

    try:
        drive.run(chosen, everything, orders, leave, say=lambda text: print(text, flush=True))
    finally:
        leave()
    return 0


def run_tune(options: argparse.Namespace) -> int:
    """Compare the candidates."""
    from gibbsprune.errors import UserError
    from gibbsprune.experiments import drive, tune

    if options.workers > 1:
        raise UserError(f"--workers is {options.workers}, but tuning runs in one process: leave it out")
    seeds, only = tuple(options.seeds), tuple(options.only)
    trial = tune.Trial(options.data, options.model, options.epochs, seeds, options.holdout, only)
    orders = drive.Orders(
        options.work / "results", options.work, options.device, options.budget, 1, options.at_most,
        options.leave_unfinished, options.revision or _revision(),
    )  # fmt: skip
    if options.dry_run:
        cells = trial.cells()
        for line in drive.plan_lines(drive.survey(cells, cells, orders), orders):
            print(line)
        return 0
    out = options.out or Path("results") / "tune" / f"{options.data}-{options.model}.json"
    if tune.tune(trial, orders, out, say=lambda text: print(text, flush=True)):
        print(f"the choice and its evidence are in {out}")
    return 0


def run_fleet(options: argparse.Namespace) -> int:
    """What a worker does."""
    from gibbsprune import data
    from gibbsprune.experiments import planner, runner
    from gibbsprune.training.environment import resolve_device

    specs = planner.cells_of(options.folder)
    short = options.folder.name.removeprefix("fleet-")[:4]
    runner.run(
        specs, data.load(specs[0].data), options.results, options.folder.parent, str(resolve_device(options.device)),
        options.budget, evaluate_every=options.evaluate_every, revision=options.revision,
        autotune=options.autotune, say=lambda text: print(f"[{short}] {text}", flush=True),
    )  # fmt: skip
    return 0


def import_state(options: argparse.Namespace) -> int:
    """Take a carried state apart."""
    from gibbsprune.experiments import carry
    from gibbsprune.experiments.suite import suite

    suite(options.suite)  # refuses unknown names
    results, work = _places(options)
    written = carry.unpack(options.folder, results, work)
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
