"""The options of ``gibbsprune suite``."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path

from gibbsprune.cli.values import number, seed_list, whole


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Which cells."""
    which = parser.add_argument_group("which cells (all, unless given)")
    which.add_argument("--table", metavar="N", help="II, III or IV")
    which.add_argument("--figure", metavar="N", help="3, 4, 5 or 6")
    which.add_argument("--arch", metavar="NAME", help="resnet20 or resnet56")
    which.add_argument("--seed", type=seed_list, metavar="A-B", help="0, 0-2 or 0,2")
    which.add_argument("--recipe", metavar="NAME", help="paper or modern")
    which.add_argument("--method", type=words, metavar="A,B", help="gibbs, dense, lottery …; or several: dense,l1")
    which.add_argument("--max-stretch", type=whole, metavar="S", help="no longer schedules than that")
    which.add_argument("--step", type=steps, metavar="A-B", help="steps of the plan: 1, 1-2 …; 1 is due first")


def add_places(parser: argparse.ArgumentParser) -> None:
    """Where results and work lie."""
    parser.add_argument("--results", metavar="PLACE", help="raw results: a folder or s3://… (results/<suite>)")
    parser.add_argument("--work", metavar="PLACE", help="checkpoints, weights: the same (runs/<suite>)")


def add_how(parser: argparse.ArgumentParser) -> None:
    """On what, for how long, by which engine."""
    how = parser.add_argument_group("how")
    how.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu, cuda; with workers cuda:0,cuda:1 …")
    how.add_argument("--at-most", type=whole, default=16, metavar="N", help="runs in one fleet (16)")
    how.add_argument("--budget", type=duration, default=math.inf, metavar="TIME", help="90s, 25m or 2h (no limit)")
    how.add_argument("--leave-unfinished", action="store_true", help="begin fleets that the budget will cut, too")
    how.add_argument("--workers", type=whole, metavar="N", help="fleets at the same time (1; ray: what fits)")
    add_checkpoints(how)
    how.add_argument("--evaluate-every", type=whole, default=10, metavar="N", help="epochs between tests (10)")
    how.add_argument("--autotune", action="store_true", help="cuDNN times its kernels: faster, last bits may differ")
    how.add_argument("--engine", default="local", metavar="NAME", help="local, or ray: fleets on a Ray cluster (local)")
    how.add_argument(
        "--address", metavar="HOST:PORT", help="of the Ray cluster (RAY_ADDRESS, one running here, a new one)"
    )
    how.add_argument("--cpus", type=number, metavar="N", help="ray: CPUs of each fleet, such as 0.5 (1)")
    how.add_argument(
        "--gpus", type=number, metavar="N", help="ray: GPUs of each fleet, such as 0.5 (1 where there are any)"
    )


def add_checkpoints(parser: argparse._ActionsContainer) -> None:
    """How often a fleet is saved."""
    parser.add_argument(
        "--checkpoint-every", type=duration, default=60.0, metavar="TIME", help="between two checkpoints (60s)"
    )


def add_run(parser: argparse.ArgumentParser) -> None:
    """What only a suite can be asked."""
    parser.add_argument("--dry-run", action="store_true", help="show the plan with its times; train nothing")
    parser.add_argument("--on", metavar="NAME", help="with --dry-run, times on another device, such as 'NVIDIA H200'")
    parser.add_argument("--revision", metavar="TEXT", help="of the source, for the record (asked of git)")
    parser.add_argument(
        "--export-state", type=Path, metavar="FOLDER", help="leave results and unfinished work in a few small files"
    )
    add_export_limit(parser)


def add_export_limit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--export-limit", type=whole, default=60, metavar="MIB", help="of these files together, in MiB (60)"
    )


def words(text: str) -> list[str]:
    """Names between commas."""
    return [word.strip() for word in text.split(",")]


def steps(text: str) -> list[int]:
    """Steps of a plan, such as ``1`` or ``1-3``."""
    try:
        return seed_list(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"must be steps such as 1, 1-3 or 1,4, but {text!r} was given") from None


def duration(text: str) -> float:
    """Seconds from ``90s``, ``25m``, ``2h`` or plain seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a time such as 90s, 25m or 2h, but {text!r} was given")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
