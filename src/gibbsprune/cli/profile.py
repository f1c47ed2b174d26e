"""``gibbsprune profile``: what a network costs, dense against pruned against compact."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

from ..checks import bad
from ..errors import UserError
from .values import add_trust, check_counts, number, trusting, whole


def add_parser(commands: Any, meaning: str) -> None:
    """Add ``profile`` to the commands."""
    parser = commands.add_parser(
        "profile",
        help=meaning,
        description="Count and time a network, layer by layer: dense, pruned and compact, in interleaved rounds.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "target", metavar="MODEL_OR_RUN", help="a run's folder, or resnet8 … or package.module:function"
    )
    parser.add_argument("--sparsity", type=number, metavar="P", help="of a model: prune it, untrained, by this much")
    parser.add_argument("--structure", metavar="NAME", help="with --sparsity: weight, kernel, filter, 2:4 … (filter)")
    parser.add_argument("--size", type=whole, metavar="N", help="of a model: images of N × N pixels (32)")
    parser.add_argument("--rounds", type=whole, default=15, metavar="N", help="how often each form is timed (15)")
    parser.add_argument("--threads", type=whole, metavar="N", help="torch's threads (as torch has it)")
    parser.add_argument("--layers", action="store_true", help="print the table of layers too")
    parser.add_argument("--out", metavar="FILE", help="the picture (profile.png in the run's folder, or here)")
    add_trust(parser)
    parser.set_defaults(handler=handle, parser=parser)


def handle(options: argparse.Namespace) -> int:
    """Measure, print and draw."""
    import torch

    from ..training.folder import check_not_own

    check_counts(options, "threads", "rounds", "size")
    if options.out:
        check_not_own(Path(options.out))
        if Path(options.out).suffix != ".png":
            raise bad("--out", options.out, "names ending in .png")
    path = Path(options.target)
    if any((folder / name).exists() for folder in (path, path.parent) for name in ("run.json", "result.json")):
        for name in ("sparsity", "structure", "size"):
            if getattr(options, name) is not None:
                raise UserError(f"--{name} is for a model by name; a run is profiled as it was trained and pruned")
        title, forms, x, folder = trusting(options, lambda trust: run_forms(path, trust))
    elif path.is_dir() or len(path.parts) > 1:
        raise UserError(f"{path} holds no run (it has no run.json)")
    else:
        if options.structure is not None and options.sparsity is None:
            raise UserError("--structure says what to prune; give --sparsity, too")
        structure, size = options.structure or "filter", options.size or 32
        title, forms, x = model_forms(options.target, options.sparsity, structure, size)
        folder = Path()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(options.threads or before)
        report(title, forms, x, Path(options.out) if options.out else folder / "profile.png", options)
    finally:
        torch.set_num_threads(before)
    return 0


def run_forms(path: Path, trust: bool = False) -> tuple[str, dict[str, Any], Any, Path]:
    """A run's title, its network dense, pruned and compact, images, and its folder.

    Batch norms are folded in all three. The dense one is the run's own, with values in the place of its zeros.
    """
    from ..export.compaction import compact, folded
    from ..export.runs import load_run, refilled

    run = load_run(path, images=128, trust=trust)
    x = run.images[:2]
    forms = {"dense": folded(refilled(run.model), x), "pruned": folded(run.model, x)}
    forms["compact"] = compact(run.model, x, fold_batch_norm=True, prefer="speed")
    if run.spec.method == "dense":
        del forms["pruned"]
    return f"{run.path.name}: {run.spec.model}", forms, run.images, run.path


def model_forms(name: str, sparsity: float | None, structure: str, size: int) -> tuple[str, dict[str, Any], Any]:
    """An untrained network by name, dense and, where a sparsity is given, pruned and compact."""
    import torch

    from ..export.compaction import compact, folded
    from ..export.onnx import first_line
    from ..export.runs import refilled
    from ..models import build
    from ..pruner import GibbsPruner
    from ..structures import as_structure

    generator = torch.Generator().manual_seed(0)
    forms = {"dense": build(name, 10, 3, generator)}
    x = torch.randn(8, 3, size, size, generator=generator)
    try:
        with torch.no_grad():
            forms["dense"].eval()(x[:1])
    except Exception as error:  # whatever the network's own code raises
        raise UserError(
            f"{name} does not take images of 3 × {size} × {size} (--size is {size}): {first_line(error)}"
        ) from error
    if sparsity is None:
        return f"{name}, untrained", forms, x
    pruned = build(name, 10, 3, torch.Generator().manual_seed(0))
    forms["dense"] = folded(refilled(forms["dense"]), x[:2])
    first = next((n for n, m in pruned.named_modules() if isinstance(m, torch.nn.Conv2d)), None)
    pruner = GibbsPruner(pruned, sparsity=sparsity, structure=structure, exclude=[first] if first else None)
    pruned = pruner.finalize()
    forms["pruned"] = folded(pruned, x[:2])
    forms["compact"] = compact(pruned, x[:2], fold_batch_norm=True, prefer="speed")
    return f"{name}, untrained, {as_structure(structure).plural} pruned at {sparsity:.0%}", forms, x


def report(title: str, forms: dict[str, Any], x: Any, picture: Path, options: Any) -> None:
    """Measure, tell, and draw where matplotlib is at hand."""
    import torch

    from ..export.profile import profile
    from ..export.profile_report import draw_profile, layers_table, totals_table

    found = profile(forms, x, rounds=options.rounds, in_c="pruned" if "pruned" in forms else "dense")
    threads = torch.get_num_threads()
    images = "×".join(map(str, x.shape[1:]))
    lines = [f"{title}, images of {images}, {threads} thread{'s' if threads > 1 else ''}", ""]
    lines.append(totals_table(found))
    if len(forms) > 1:
        lines += [
            "",
            "Batch norms are folded in every row, so that there are fewer parameters than the run was trained with.",
        ]
    if options.layers:
        lines += ["", layers_table(found)]
    print("\n".join([*lines, ""]), flush=True)  # before the picture, which may not be writable
    if importlib.util.find_spec("matplotlib") is None:
        print("No picture: matplotlib is not installed (pip install 'gibbsprune[report]').")
        return
    draw_profile(picture, found, title)
    print(f"See {picture}.")
