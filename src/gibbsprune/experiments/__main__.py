"""``python -m gibbsprune.experiments``: run cells of the paper's evaluation as one fleet."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from .. import data
from . import cells, runner, store


def main() -> None:
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
    args = parser.parse_args()
    wanted = []
    for part in args.sets.split("+"):
        name, _, seeds = part.partition(":")
        wanted += getattr(cells, name)(args.model, *([[int(s) for s in seeds.split(",")]] if seeds else []))
    todo = store.missing(args.results, cells.unique(wanted))[: args.at_most]
    for spec in todo:
        print(spec.name())
    if not todo or args.dry_run:
        return
    arrays = data.load("cifar10")
    runner.run(todo, arrays, args.results, args.work, args.device, args.budget, revision=args.revision)


if __name__ == "__main__":
    main()
