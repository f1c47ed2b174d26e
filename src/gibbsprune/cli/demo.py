"""``gibbsprune demo``: the method on the embedded digits, beside the dense network, in minutes of CPU."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gibbsprune.errors import UserError

MODEL, DATA, SPARSITY, METHODS = "resnet8", "digits", 0.9, ("dense", "gibbs")


def add_parser(commands: Any) -> None:
    """Add ``demo`` to the commands."""
    parser = commands.add_parser(
        "demo",
        help="a first look: prune a small network on digits, under three minutes on a CPU",
        description=f"Train {MODEL} on {DATA}, dense and pruned to {SPARSITY:.0%}, and compare the two.",
        allow_abbrev=False,
    )
    parser.add_argument("--out", default="runs", metavar="FOLDER", help="where demo-dense and demo-gibbs go (runs)")
    parser.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu, cuda or cuda:<number> (auto)")
    parser.add_argument("--epochs", type=int, metavar="N", help="fewer or more epochs than the recipe's")
    parser.set_defaults(handler=handle, parser=parser)


def handle(options: argparse.Namespace) -> int:
    """Train both, compare, and point at what to look at."""
    import torch

    from gibbsprune.training.environment import resolve_device
    from gibbsprune.training.spec import RunSpec

    print(f"{MODEL} on {DATA}, trained twice: dense, and with Gibbs pruning at {SPARSITY:.0%} while it trains.")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # images of 8×8 pixels give several threads nothing to do but wait for each other
    try:
        resolve_device(options.device)
        specs = [RunSpec(DATA, MODEL, method, sparsity=SPARSITY, epochs=options.epochs) for method in METHODS]
        for method in METHODS:
            _check_replaceable(_folder(method, options))
        dense, gibbs = (_run(spec, options) for spec in specs)
        print()
        print(comparison(dense.results[0], gibbs.results[0]))
        print()
        print(_profile(gibbs.folder))
    finally:
        torch.set_num_threads(threads)
    print(closing(gibbs.folder))
    return 0


def _profile(folder: Path) -> str:
    """What the pruned network costs, beside the dense one; why not, where it cannot be measured."""
    from gibbsprune.cli.profile import report, run_forms

    try:
        title, forms, images, path = run_forms(folder)
        options = argparse.Namespace(rounds=15, layers=False)
        return report(title, forms, images, path / "profile.png", options)
    except UserError as error:
        return f"No profile: {error}"


def _run(spec: Any, options: argparse.Namespace) -> Any:
    """One of the two runs, in a folder of its own."""
    from gibbsprune.training import run
    from gibbsprune.training.folder import remove

    path = _folder(spec.method, options)
    if (path / "run.json").exists():
        remove(path)
    print()
    return run.start([spec], path, options.device, command=options.command_line)


def _folder(method: str, options: argparse.Namespace) -> Path:
    return Path(options.out) / f"demo-{method}"


def _check_replaceable(path: Path) -> None:
    """A new demo takes the place of an earlier one and of what was exported from it, and of nothing else."""
    from gibbsprune.cli.export import is_export
    from gibbsprune.training.folder import RunFolder, strangers

    if not (path / "run.json").exists():
        return
    command = RunFolder.open(path).record.get("command") or ""
    if "demo" not in command.split():
        raise UserError(f"{path} holds a run that is not the demo's; choose another folder with --out")
    if others := [name for name in strangers(path) if not is_export(name)]:
        raise UserError(f"{path} holds {others[0]}, which is not the demo's; move it, or choose another --out")


def comparison(dense: dict[str, Any], gibbs: dict[str, Any]) -> str:
    """The two results side by side."""
    from gibbsprune.text import clock, percent, table

    rows = [
        [
            label,
            percent(result["accuracy"]),
            percent(result["sparsity"]),
            f"{result['nonzero']:,}",
            clock(result["seconds"]),
        ]
        for label, result in (("dense", dense), ("Gibbs", gibbs))
    ]
    return table(["", "test accuracy", "sparsity", "weights left", "time"], rows)


def closing(folder: Path) -> str:
    """What to look at and what to try next."""
    return f"""
Look at   {folder / "summary.md"}      the run in words, tables and pictures
          {folder / "masks.png"}       one layer's mask as it freezes
          {folder / "annealing.png"}   β rises, the drawn masks settle
          {folder / "profile.png"}     what the pruned network costs, beside the dense one
Try next  gibbsprune train --model resnet8 --sparsity 0.95              prune harder
          gibbsprune train --model resnet8 --structure filter --sparsity 0.75   remove whole filters
          gibbsprune train --model resnet8 --seeds 0-3                  four runs as one fleet
          gibbsprune export {folder} --format onnx --compact            take the network elsewhere
          gibbsprune data get cifar10                                   then train on the real thing"""
