"""``gibbsprune train``: train and prune a network into a run folder, or resume one."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from ..checks import listed
from ..data import absolute
from ..errors import UserError
from ..hamiltonians import HAMILTONIANS, possible
from ..samplers import NAMES
from ..structures import EXAMPLES, JOINT, as_structure
from ..training import methods
from ..training.recipes import RECIPES, Recipe, recipe
from ..training.spec import COUPLED, PRECISIONS, RunSpec, default_recipe, scale_recipe
from .launch import speaks
from .values import (
    add_recipe_options,
    add_setting_options,
    add_trust,
    check_counts,
    every,
    number,
    recipe_changes,
    seed_list,
    setting_values,
    trusting,
    whole,
)

#: Options that are fields of a run as they stand.
_FIELDS = (
    "model",
    "method",
    "structure",
    "hamiltonian",
    "coupling",
    "sampler",
    "sparsity",
    "stretch",
    "include",
    "exclude",
    "precision",
)


def add_parser(commands: Any, meaning: str) -> None:
    """Add ``train`` to the commands."""
    parser = commands.add_parser(
        "train",
        help=meaning,
        description="Train and prune a network, by Gibbs pruning or another method. All of it lands in a run folder.",
        epilog=_methods(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    hamiltonians, samplers = ", ".join(HAMILTONIANS), ", ".join(NAMES)
    defaults = ", ".join(f"{possible(as_structure(structure))[0]} for {structure}" for structure in EXAMPLES)

    what = parser.add_argument_group("what to train")
    what.add_argument("--data", metavar="NAME", help="digits (default), cifar10, or your own path.npz")
    what.add_argument("--model", metavar="NAME", help="resnet8 … resnet110, or package.module:function (resnet20)")
    what.add_argument("--seed", type=whole, metavar="N", help="seed of everything random (0)")
    what.add_argument("--seeds", type=seed_list, metavar="A-B", help="several runs as one fleet: 0-15 or 0,3,7")

    how = parser.add_argument_group("how to prune")
    how.add_argument("--method", metavar="NAME", help="one of the methods below (gibbs)")
    how.add_argument(
        "--structure", metavar="NAME", help=f"what is kept or removed: {', '.join((*EXAMPLES, *JOINT))} (weight)"
    )
    how.add_argument("--hamiltonian", metavar="NAME", help=f"{hamiltonians} ({defaults})")
    how.add_argument("--coupling", type=number, metavar="C", help="of the quadratic Hamiltonian (0.01)")
    how.add_argument("--sampler", metavar="NAME", help=f"{samplers} (auto)")
    how.add_argument(
        "--sparsity", type=number, metavar="P", help="the fraction of weights removed (0.9; N:M has its own)"
    )
    how.add_argument("--include", action="append", metavar="PATTERN", help="prune only layers of such names")
    how.add_argument("--exclude", action="append", metavar="PATTERN", help="leave out layers of such names")

    long = parser.add_argument_group("how long and how")
    long.add_argument("--recipe", metavar="NAME", help=f"{', '.join(RECIPES)} (the data's own; plain for your .npz)")
    long.add_argument("--epochs", type=whole, metavar="N", help="scales the recipe: milestones and annealing too")
    long.add_argument("--stretch", type=whole, metavar="S", help="every epoch of the schedules S times (1)")
    long.add_argument("--device", metavar="NAME", help="auto, cpu, cuda or cuda:<number> (auto)")
    waiting = "several processes: give up on one that does not answer for so long (1800)"
    long.add_argument("--rank-timeout", type=number, metavar="SECONDS", help=waiting)
    long.add_argument("--precision", metavar="NAME", help=f"{', '.join(PRECISIONS)} (auto)")

    timed = "cuda: cuDNN times its kernels; faster, but a resumed run may differ in the last bits"
    long.add_argument("--autotune", action="store_true", help=timed)

    kept = parser.add_argument_group("what is kept")
    kept.add_argument("--out", metavar="FOLDER", help="the run's folder (runs/<name>)")
    kept.add_argument("--resume", metavar="FOLDER", help="continue the run in this folder, bit for bit")
    add_trust(kept)
    kept.add_argument("--checkpoint-every", type=every, metavar="N", help="epochs (1), or seconds such as 60s")
    kept.add_argument(
        "--log", action="append", metavar="NAME", help="tell every epoch to tensorboard, mlflow or wandb, too"
    )
    kept.add_argument("--dry-run", action="store_true", help="two steps, then the plan; nothing is written")
    kept.add_argument("--show-recipe", action="store_true", help="print the recipe as it would be used")
    add_setting_options(parser)
    add_recipe_options(parser)
    parser.set_defaults(handler=handle, parser=parser)


def _methods() -> str:
    """One entry per method: what it does, and to which structures."""
    lines = []
    for how in methods.METHODS.values():
        kinds = f" [{', '.join(how.structures)}]" if how.prunes else ""
        first, *rest = textwrap.wrap(how.about + kinds, 76)
        lines += [f"  {how.name:<18}{first}", *(f"{'':<20}{line}" for line in rest)]
    return "\n".join(["methods:", *lines])


def handle(options: argparse.Namespace) -> int:
    """Carry the command out."""
    if options.resume is not None:
        return _resume(options)
    chosen = chosen_recipe(options)
    if options.show_recipe:
        if speaks():
            print(chosen.show())
        return 0
    specs = chosen_specs(options, chosen)
    if options.dry_run:
        from .dry_run import show_plan

        if speaks():
            show_plan(specs, options.device or "auto")
        return 0
    from ..training import ranks, run

    epochs, seconds = options.checkpoint_every or (1, 0.0)
    device = options.device or "auto"
    with ranks.join(device, options.rank_timeout) as joined:
        outcome = run.start(
            specs,
            out=options.out,
            device=device,
            options=run.Options(epochs, seconds, tuple(options.log or ()), options.autotune),
            command=options.command_line,
            ranks=joined,
        )
        if joined.first:
            _report(specs, outcome)
    return 0


def chosen_recipe(options: argparse.Namespace) -> Recipe:
    """The recipe by name, scaled to ``--epochs``, with the fields given on the command line."""
    chosen = default_recipe(options.data or "digits") if options.recipe is None else recipe(options.recipe)
    if options.epochs is not None:
        check_counts(options, "epochs")
        chosen = scale_recipe(chosen, options.epochs)
    return chosen.replace(**recipe_changes(options))


def chosen_specs(options: argparse.Namespace, chosen: Recipe) -> list[RunSpec]:
    """One run per seed."""
    if options.seed is not None and options.seeds is not None:
        raise UserError("give --seed or --seeds, not both")
    fields = {name: getattr(options, name) for name in _FIELDS if getattr(options, name) is not None}
    data = absolute(options.data or "digits")  # a resumed run may start in another folder
    seeds = options.seeds if options.seeds is not None else [options.seed or 0]
    method = options.method or "gibbs"
    for name in ("hamiltonian", "coupling", "sampler"):
        if name in fields and method != "gibbs":
            raise UserError(f"--{name} is for method 'gibbs', not for {method!r}")
    for name in ("structure", "sparsity", "include", "exclude"):
        if name in fields and method == "dense":
            raise UserError(f"--{name} is for methods that prune, not for 'dense'")
    settings = setting_values(options)
    made = [RunSpec(data=data, recipe=chosen, seed=seed, settings=settings, **fields) for seed in seeds]
    if "coupling" in fields and made[0].hamiltonian not in COUPLED:
        raise UserError(f"--coupling is for hamiltonian {listed(COUPLED)}, not for {made[0].hamiltonian!r}")
    return made


def _resume(options: argparse.Namespace) -> int:
    """Continue a run as it was started; only the device may change."""
    free = ("resume", "trust", "device", "rank_timeout", "handler", "parser", "command", "command_line")
    for name, value in vars(options).items():
        if name not in free and value is not None and value is not False:
            bare = name if name == "recipe" else name.removeprefix("recipe_").removeprefix("setting_")
            flag = "--" + bare.replace("_", "-")
            raise UserError(f"--resume continues a run as it was started; leave out {flag}")
    from ..training import ranks, run
    from ..training.folder import RunFolder

    with ranks.join(options.device or "auto", options.rank_timeout) as joined:
        outcome = trusting(
            options,
            lambda trust: run.resume(
                options.resume, device=options.device, command=options.command_line, ranks=joined, trust=trust
            ),
        )
        if joined.first:
            _report(RunFolder.open(outcome.folder).specs, outcome)
    return 0


def _report(specs: list[RunSpec], outcome: Any) -> None:
    """The last words of a finished run."""
    from ..summary import covers
    from ..training.account import headline

    if layers := outcome.results[0]["layers"]:
        print(f"Pruning {covers(sum(layer['weights'] for layer in layers), outcome.results[0]['parameters'])}.")
    print(headline(specs[0], outcome.results).replace("*", ""))
    print(f"See {outcome.folder / 'summary.md'}.")
