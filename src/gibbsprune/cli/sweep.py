"""``gibbsprune sweep``: any set of runs, declared in a file: run what is missing, see where it stands, show it."""

from __future__ import annotations

import argparse
import math
import os
import re
from pathlib import Path
from typing import Any

from ..errors import UserError
from .values import number, refused, whole

EPILOG = """\
FILE is YAML:                              or Python:
  base: {data: digits, model: resnet8}       from gibbsprune.training import RunSpec
  grid:                                      def runs():
    sparsity: [0.5, 0.75, 0.9]                   for seed in range(3):
    seed: [0, 1, 2]                                  yield RunSpec(model="resnet8", seed=seed)
The same command continues a sweep that was stopped."""

#: Of the options, those that are fields of the orders as they stand.
_ORDERS = ("device", "budget", "workers", "at_most", "leave_unfinished", "drop_models", "revision", "evaluate_every",
           "autotune", "engine", "address", "cpus", "gpus")  # fmt: skip


def add_parser(commands: Any, meaning: str) -> None:
    """Add ``sweep`` to the commands."""
    parser = commands.add_parser(
        "sweep",
        help=meaning,
        description="Run any set of runs, here or on a cluster: one result file per run, and one page.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    for name, handler, meaning in (
        ("run", run, "train what is missing, and write the page"),
        ("status", status, "how much is done"),
    ):
        action = actions.add_parser(name, help=meaning, description=meaning.capitalize() + ".", allow_abbrev=False)
        action.add_argument("file", metavar="FILE", help="the sweep: a .yaml or .py file")
        action.add_argument("--only", action="append", default=[], metavar="PATTERN", help="runs of such names: '*-s0'")
        action.add_argument("--results", metavar="PLACE", help="raw results: a folder or s3://… (results/<file>)")
        action.add_argument("--work", metavar="PLACE", help="checkpoints, finished runs: the same (runs/<file>)")
        if name == "run":
            add_how(action)
            action.add_argument("--dry-run", action="store_true", help="show the plan with its times; train nothing")
        else:
            action.add_argument("--list", action="store_true", help="every run with its state")
        action.set_defaults(handler=handler, parser=action)
    action = actions.add_parser(
        "report", help="write the page again", description="Write the page of a sweep's results."
    )
    action.add_argument("results", metavar="PLACE", help="raw results: a folder or s3://…")
    action.add_argument("--out", type=Path, metavar="FOLDER", help="where index.html goes (report/<results>)")
    action.set_defaults(handler=report, parser=action)


def add_how(parser: argparse.ArgumentParser) -> None:
    """On what, for how long, by which workers."""
    how = parser.add_argument_group("how")
    how.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu, cuda; with workers cuda:0,cuda:1 …")
    how.add_argument("--at-most", type=whole, default=16, metavar="N", help="runs in one fleet (16)")
    how.add_argument("--budget", type=duration, default=math.inf, metavar="TIME", help="90s, 25m or 2h (no limit)")
    how.add_argument("--leave-unfinished", action="store_true", help="begin fleets that the budget will cut, too")
    how.add_argument("--workers", type=whole, metavar="N", help="fleets at the same time (1; ray: what fits)")
    how.add_argument("--checkpoint-every", type=duration, default=60.0, metavar="TIME", help="of each fleet (60s)")
    how.add_argument("--evaluate-every", type=whole, default=10, metavar="N", help="epochs between tests (10)")
    how.add_argument("--drop-models", action="store_true", help="keep the networks only that other runs start from")
    how.add_argument("--autotune", action="store_true", help="cuDNN times its kernels: faster, last bits may differ")
    how.add_argument("--revision", metavar="TEXT", help="of the source, for the record (asked of git)")
    how.add_argument("--engine", default="local", metavar="NAME", help="local, or ray: fleets on a Ray cluster (local)")
    how.add_argument(
        "--address", metavar="HOST:PORT", help="of the Ray cluster (RAY_ADDRESS, one running here, a new one)"
    )
    how.add_argument("--cpus", type=number, metavar="N", help="ray: CPUs of each fleet, such as 0.5 (1)")
    how.add_argument(
        "--gpus", type=number, metavar="N", help="ray: GPUs of each fleet, such as 0.5 (1 where there are any)"
    )


def duration(text: str) -> float:
    """Seconds from ``90s``, ``25m``, ``2h`` or plain seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if match is None:
        raise refused(text, "times such as 90s, 25m or 2h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def orders_of(options: argparse.Namespace, results: str, work: str) -> Any:
    """The orders, as far as the command has options for them."""
    from ..sweeps.orders import Orders
    from ..training.places import place

    places = place(results), place(work)
    for name, where in zip(("--results", "--work"), places):
        if isinstance(where, Path) and where.exists() and not (where.is_dir() and os.access(where, os.R_OK | os.X_OK)):
            raise UserError(f"{name} is {where}, which is not a folder that can be read")
    values = {name: value for name in _ORDERS if (value := getattr(options, name, None)) is not None}
    if "checkpoint_every" in options:
        values["checkpoint_seconds"] = options.checkpoint_every
    orders = Orders(*places, **values)
    for name in ("address", "cpus", "gpus"):
        if name in values and orders.engine != "ray":
            raise UserError(f"--{name} {values[name]} is of a Ray cluster; give --engine ray as well")
    return orders


def _driver(options: argparse.Namespace) -> Any:
    """The sweep, and what is to be done with it."""
    from ..sweeps import declare
    from ..sweeps.drive import Driver

    sweep = declare.read(options.file, options.only)
    orders = orders_of(options, options.results or f"results/{sweep.name}", options.work or f"runs/{sweep.name}")
    return Driver(sweep, orders)


def run(options: argparse.Namespace) -> int:
    """Train what is missing, or show how that would go."""
    driver = _driver(options)
    if options.dry_run:
        for line in driver.plan_lines():
            print(line)
        return 0
    finish(driver, "sweep")
    try:
        _write_page(driver.orders.results, None)
    except UserError as error:  # the results are there, whatever is wrong with their page
        print(f"no page: {error}")
    return 0


def finish(driver: Any, command: str) -> None:
    """Trains what is missing; a stop says how to go on."""
    from ..training.interrupt import terminable

    try:
        with terminable():
            driver.run()
    except KeyboardInterrupt:
        print(f"stopped; the same gibbsprune {command} command continues it", flush=True)
        raise


def status(options: argparse.Namespace) -> int:
    """Counts by state, or every run with its state."""
    driver = _driver(options)
    state = driver.survey()
    if options.list:
        for spec in state.chosen:
            print(f"{state.state(spec):<8} {spec.name()}")
        return 0
    found = [state.state(spec) for spec in state.chosen]
    words = [f"{found.count(word)} {word}" for word in ("done", "begun", "ready", "waiting", "again") if word in found]
    print(f"{len(found)} runs: {', '.join(words)}")
    if set(found) != {"done"}:
        print(f"gibbsprune sweep run {options.file} --dry-run shows the plan for the rest, with times")
    return 0


def report(options: argparse.Namespace) -> int:
    """Write the page."""
    from ..training.places import place

    _write_page(place(options.results), options.out)
    return 0


def _write_page(results: Any, out: Path | None) -> None:
    from ..files import make_folder
    from ..sweeps.page import write_page
    from ..sweeps.results import read_all

    if not (found := read_all(results)):
        raise UserError(f"{results} holds no results")
    folder = out or Path("report") / results.name
    make_folder(folder)
    write_page(folder / "index.html", found, title=results.name)
    print(f"Open {folder / 'index.html'} in a browser.")
