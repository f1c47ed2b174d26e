"""``gibbsprune compare``: all methods on one task, in one table and one picture."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checks import bad
from ..training.recipes import RECIPES
from .values import number, seed_list, whole

if TYPE_CHECKING:
    from ..training.spec import RunSpec

EPILOG = """\
A method may be named with settings, and several times with different ones:
  gibbsprune compare --methods gibbs,gibbs:law=annealed,gibbs:stretch=2,lottery:rounds=3,l1:penalty=0.01
The same command continues a comparison that was stopped, and takes what it finished before."""


def add_parser(commands: Any, meaning: str) -> None:
    """Add ``compare`` to the commands."""
    parser = commands.add_parser(
        "compare",
        help=meaning,
        description="Train all methods that have a structure, over several seeds, and compare them: accuracy,\n"
        "sparsity, epochs and time in one table, and accuracy against epochs in a picture.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = parser.add_argument_group("what is compared")
    what.add_argument("--data", metavar="NAME", help="digits (default), cifar10, or your own path.npz")
    what.add_argument("--model", metavar="NAME", help="as in train (resnet8 for digits, else resnet20)")
    what.add_argument("--structure", default="weight", metavar="NAME", help="as in train (weight)")
    what.add_argument("--sparsity", type=number, metavar="P", help="the fraction removed (0.9; filters 0.75)")
    what.add_argument("--methods", metavar="A,B", help="some of the methods (all that have the structure)")
    what.add_argument("--seeds", type=seed_list, default=[0, 1, 2], metavar="A-B", help="runs of each method (0-2)")

    how = parser.add_argument_group("how")
    how.add_argument("--recipe", metavar="NAME", help=f"{', '.join(RECIPES)} (the data's own; plain for your .npz)")
    how.add_argument("--epochs", type=whole, metavar="N", help="scales the recipe: milestones and annealing too")
    how.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu, cuda or cuda:<number> (auto)")
    how.add_argument("--out", metavar="FOLDER", help="for tables and runs (runs/compare-<data>-<model>-…)")
    parser.set_defaults(handler=handle, parser=parser)


def handle(options: argparse.Namespace) -> int:
    """Train what is missing, then tell."""
    from ..sweeps import comparison, comparison_report
    from ..training.interrupt import terminable

    base = chosen_base(options)
    wanted = None if options.methods is None else [name for name in options.methods.split(",") if name.strip()]
    if wanted == []:
        raise bad("--methods", options.methods, "names separated by commas")
    compared = comparison.runs(comparison.choose(base.structure, wanted), base, options.seeds)
    out = Path(options.out) if options.out is not None else Path("runs") / default_name(base)
    print(f"{comparison_report.title(base, options.seeds)}: {len(compared)} runs", flush=True)
    try:
        with terminable():
            found = comparison.train(compared, out, options.device)
    except KeyboardInterrupt:
        print("The same gibbsprune compare command continues this comparison.", flush=True)
        raise
    rows = comparison_report.rows(compared, found)
    written = comparison_report.write_report(out, base, options.seeds, rows, options.command_line)
    print(f"\n{comparison_report.result_table(rows)}\n")
    print(f"See {', '.join(map(str, written))}.")
    return 0


def chosen_base(options: argparse.Namespace) -> RunSpec:
    """What all runs share."""
    from ..data import absolute
    from ..training.spec import RunSpec
    from .train import chosen_recipe

    data = absolute(options.data or "digits")  # a continued comparison may start in another folder
    model = options.model or ("resnet8" if data.startswith("digits") else "resnet20")
    sparsity = 0.75 if options.sparsity is None and options.structure == "filter" else options.sparsity
    options.data = data
    recipe = chosen_recipe(options)
    return RunSpec(data=data, model=model, structure=options.structure, sparsity=sparsity, recipe=recipe)


def default_name(base: RunSpec) -> str:
    """A folder's name from all that is compared: ``compare-digits-resnet8-weight-0.9``."""
    dense = base.replace(method="dense").name(with_seed=False)
    return "compare-" + dense.replace("-dense", f"-{base.structure.replace(':', 'of')}-{base.sparsity:g}", 1)
