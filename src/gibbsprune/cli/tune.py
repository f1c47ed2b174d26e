"""``gibbsprune tune``: β ranges and the coupling, on held-out training images."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .sweep import add_how, finish, orders_of
from .values import check_counts, number, seed_list, whole


def add_parser(commands: Any, meaning: str) -> None:
    """Add ``tune`` to the commands."""
    parser = commands.add_parser("tune", help=meaning, description=meaning.capitalize() + ".", allow_abbrev=False)
    parser.add_argument(
        "--data", default="cifar10", metavar="NAME", help="cifar10, digits, or your own path.npz (cifar10)"
    )
    parser.add_argument("--model", default="resnet20", metavar="NAME", help="network, as in train (resnet20)")
    parser.add_argument("--recipe", metavar="NAME", help="as in train (the data's own, else paper)")
    parser.add_argument("--sparsity", type=number, metavar="P", help="the fraction removed (0.9; filters 0.75)")
    parser.add_argument("--epochs", type=whole, default=40, metavar="N", help="of each short run (40)")
    parser.add_argument("--seeds", type=seed_list, default=[0, 1], metavar="A-B", help="runs of each candidate (0-1)")
    parser.add_argument("--holdout", type=whole, default=5000, metavar="N", help="training images held out (5000)")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="weight-abs, kernel-quadratic …")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="choice and evidence (results/tune/<data>-<model>.json)"
    )
    parser.add_argument("--work", default="runs/tune", metavar="PLACE", help="(runs/tune)")
    add_how(parser)
    parser.add_argument("--dry-run", action="store_true", help="show the plan with its times; train nothing")
    parser.set_defaults(handler=handle, parser=parser)


def handle(options: argparse.Namespace) -> int:
    """Compare the candidates."""
    from .. import data
    from ..sweeps import results, tuning
    from ..sweeps.drive import Driver

    check_counts(options, "epochs", "holdout")
    trial = tuning.Trial(
        data.absolute(options.data), options.model, options.epochs, tuple(options.seeds), options.holdout,
        tuple(options.only), options.recipe, options.sparsity,
    )  # fmt: skip
    named = f"{Path(options.data).stem}-{options.model.replace(':', '.')}.json"
    out = options.out or Path("results") / "tune" / named
    tuning.earlier(trial, out)  # a file of other runs is refused before anything is trained
    driver = Driver(sweep := trial.sweep(), orders_of(options, f"{options.work}/results", options.work))
    if options.dry_run:
        for line in driver.plan_lines():
            print(line)
        return 0
    finish(driver, "tune")
    specs = sweep.everything(driver.found)
    if missing := results.missing(driver.orders.results, specs):
        print(f"{len(missing)} of {len(specs)} runs are missing; run the same command again")
        return 0
    tuning.write(trial, driver.found.look(), out)
    print(f"the choice and its evidence are in {out}")
    return 0
