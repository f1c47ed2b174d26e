"""``python -m gibbsprune.experiments``: run cells of the paper's evaluation as one fleet."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from .. import data
from ..errors import UserError
from ..training.spec import RunSpec
from . import cells, runner, store

SETS = {"headline": cells.headline, "hamiltonians": cells.hamiltonians, "rates": cells.rates}


def chosen(sets: str, model: str) -> list[RunSpec]:
    """The cells of sets like ``headline:0,1,2+rates``: names, some with seeds."""
    wanted: list[RunSpec] = []
    for part in sets.split("+"):
        name, _, seeds = part.partition(":")
        if name not in SETS or not all(seed.isdecimal() for seed in seeds.split(",") if seeds):
            raise UserError(f"unknown set {part!r}; sets are {', '.join(SETS)}, with seeds like headline:0,1,2")
        wanted += SETS[name](model, *([[int(seed) for seed in seeds.split(",")]] if seeds else []))
    return cells.unique(wanted)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m gibbsprune.experiments", description=__doc__)
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--sets", default="headline", help="headline, hamiltonians, rates; with seeds: headline:0,1,2")
    parser.add_argument("--results", type=Path, default=Path("results/paper"))
    parser.add_argument("--work", type=Path, default=Path("runs/experiments"))
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds")
    parser.add_argument("--at-most", type=int, default=16, help="runs in one fleet")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--revision", default="unknown")
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args(arguments)
    try:
        todo = store.missing(args.results, chosen(args.sets, args.model))[: args.at_most]
        for spec in todo:
            print(spec.name())
        if todo and not args.dry_run:
            arrays = data.load("cifar10")
            runner.run(todo, arrays, args.results, args.work, args.device, args.budget, revision=args.revision)
    except UserError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
