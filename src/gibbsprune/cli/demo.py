"""``gibbsprune demo``: a network much smaller and faster at nearly the same accuracy, in a minute of CPU."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import UserError
from .values import whole

MODEL, DATA, METHODS = "resnet8", "digits", ("dense", "gibbs")
#: What is pruned, and how far: weights where a C compiler makes use of them, else whole filters.
SPARSITY = {"weight": 0.9, "filter": 0.75}
BATCH, ROUNDS = 128, 30  # images at a time, and how often each form is timed


def add_parser(commands: Any, meaning: str) -> None:
    """Add ``demo`` to the commands."""
    parser = commands.add_parser(
        "demo",
        help=meaning,
        description=f"Train {MODEL} on {DATA}, dense and pruned, and compare what the two cost.",
        allow_abbrev=False,
    )
    parser.add_argument("--out", default="runs", metavar="FOLDER", help="where demo-dense and demo-gibbs go (runs)")
    parser.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu, cuda or cuda:<number> (auto)")
    parser.add_argument("--epochs", type=whole, metavar="N", help="fewer or more epochs than the recipe's")
    parser.set_defaults(handler=handle, parser=parser)


def handle(options: argparse.Namespace) -> int:
    """Train both, compare, and point at what to look at."""
    import torch

    from ..export.c.library import compiler
    from ..training.environment import resolve_device
    from ..training.spec import RunSpec

    structure = "filter" if compiler() is None else "weight"
    sparsity = SPARSITY[structure]
    print(f"{MODEL} on {DATA}, trained twice: dense, and losing {sparsity:.0%} of its {structure}s while it trains.")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # images of 8×8 pixels give several threads nothing to do but wait for each other
    try:
        resolve_device(options.device)
        specs = [
            RunSpec(DATA, MODEL, method, structure, sparsity=sparsity, epochs=options.epochs) for method in METHODS
        ]
        for method in METHODS:
            _check_replaceable(_folder(method, options))
        dense, gibbs = (_run(spec, options).folder for spec in specs)
        print("\nMeasuring …", flush=True)
        forms = measured(dense, gibbs, structure)
    finally:
        torch.set_num_threads(threads)
    print(f"\n{comparison(forms)}\n\n{in_a_line(forms)}")
    picture = gibbs / "demo.png"
    print(closing(gibbs, picture if _drawn(picture, forms) else None, structure))
    return 0


def measured(dense: Path, gibbs: Path, structure: str) -> dict[str, dict[str, float]]:
    """Accuracy, weights left, bytes of the packed file, and milliseconds for a batch, of each form of both networks.

    Like for like: batch norms are folded in all of them, files are packed alike, and each network runs in each way.
    """
    import tempfile

    from ..export.c import compile_c
    from ..export.compaction import compact, folded
    from ..export.packed import packed_size, save_packed
    from ..export.runs import accuracy, load_run

    found: dict[str, dict[str, float]] = {}
    modules: dict[str, Any] = {}
    for name, path in (("dense", dense), ("pruned", gibbs)):
        run = load_run(path)
        x = run.images[:BATCH]
        small = structure == "filter" and name == "pruned"
        whole = compact(run.model, x[:2], True, "speed") if small else folded(run.model, x[:2])
        ways = {f"{name}, PyTorch": whole}
        if structure == "weight":
            ways[f"{name}, C"] = compile_c(run.model, x)
        with tempfile.TemporaryDirectory() as folder:
            save_packed(whole, Path(folder) / "network")
            size = packed_size(Path(folder) / "network", whole).packed
        left = sum(int(p.count_nonzero()) for p in whole.parameters())
        for way, module in ways.items():
            right = accuracy(module, run.images, run.labels)
            found[way] = {"accuracy": right, "weights": left, "bytes": size}
        modules |= ways
    for way, milliseconds in _timed(modules, x).items():
        found[way]["ms"] = milliseconds
    return found


def _timed(modules: dict[str, Any], x: Any) -> dict[str, float]:
    """The least milliseconds of each, in interleaved rounds: what else the machine does only adds."""
    import time

    import torch

    took = dict.fromkeys(modules, float("inf"))
    with torch.no_grad():
        for _ in range(ROUNDS):
            for name, module in modules.items():
                given, start = x.clone(), time.perf_counter()
                module(given)
                took[name] = min(took[name], 1e3 * (time.perf_counter() - start))
    return took


def comparison(forms: dict[str, dict[str, float]]) -> str:
    """One row per form."""
    from ..text import percent, table

    rows = [
        [name, percent(f["accuracy"]), f"{f['weights']:,.0f}", f"{f['bytes'] / 1e3:.0f}", f"{f['ms']:.2f}"]
        for name, f in forms.items()
    ]
    return table(["", "test accuracy", "weights", "file (kB)", f"ms for {BATCH} images"], rows)


def in_a_line(forms: dict[str, dict[str, float]]) -> str:
    """The gist, each ratio of like with like."""
    (first, dense), (last, pruned) = next(iter(forms.items())), list(forms.items())[-1]
    alike = forms[f"dense,{last.partition(',')[2]}"]
    faster = f"{alike['ms'] / pruned['ms']:.1f} times faster"
    if alike is not dense:
        faster += f" in C ({dense['ms'] / pruned['ms']:.1f} times faster than {first})"
    points = 100 * (dense["accuracy"] - pruned["accuracy"])
    cost = f"{points:.1f} points of accuracy less" if points > 0 else "no less accuracy"
    return (
        f"The pruned network is {dense['bytes'] / pruned['bytes']:.1f} times smaller and {faster}, for {cost}: one "
        "training, nothing fine-tuned."
    )


def _drawn(path: Path, forms: dict[str, dict[str, float]]) -> bool:
    """Draw the comparison, where matplotlib is at hand."""
    import importlib.util
    import io

    if importlib.util.find_spec("matplotlib") is None:
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from ..files import write_atomic

    figure = Figure(figsize=(11, 0.9 + 0.55 * len(forms)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    names = list(forms)
    colours = ["#0072B2" if name.startswith("pruned") else "#9A9A9A" for name in names]
    panels = ("test accuracy (%)", "accuracy", 1e2), ("file (kB)", "bytes", 1e-3), (f"ms for {BATCH} images", "ms", 1)
    for axes, (title, key, scale) in zip(figure.subplots(1, 3, sharey=True), panels):
        values = [scale * forms[name][key] for name in names]
        axes.barh(range(len(names)), values, color=colours, height=0.66)
        for place, value in enumerate(values):
            text = f"{value:.1f}" if key == "accuracy" else f"{value:.3g}"
            axes.annotate(text, (value, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=10)
        axes.set_xlim(0, 1.2 * max(values))
        axes.set_title(title, loc="left", fontsize=11)
        axes.set_yticks(range(len(names)), names, fontsize=10)
        axes.set_xticks([])
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.tick_params(length=0)
    figure.axes[0].invert_yaxis()  # the axes share it
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomic(path, buffer.getvalue())
    return True


def _run(spec: Any, options: argparse.Namespace) -> Any:
    """One of the two runs, in a folder of its own."""
    from ..training import run
    from ..training.folder import remove

    path = _folder(spec.method, options)
    if (path / "run.json").exists():
        remove(path)
    print()
    return run.start([spec], path, options.device, command=options.command_line)


def _folder(method: str, options: argparse.Namespace) -> Path:
    return Path(options.out) / f"demo-{method}"


def _check_replaceable(path: Path) -> None:
    """A new demo takes the place of an earlier one and of what was exported from it, and of nothing else."""
    from ..training.folder import RunFolder, strangers
    from .export import is_export

    if not (path / "run.json").exists():
        return
    command = RunFolder.open(path).record.get("command") or ""
    if "demo" not in command.split():
        raise UserError(f"{path} holds a run that is not the demo's; choose another folder with --out")
    if others := [name for name in strangers(path) if not is_export(name) and name != "demo.png"]:
        raise UserError(f"{path} holds {others[0]}, which is not the demo's; move it, or choose another --out")


def closing(folder: Path, picture: Path | None, structure: str) -> str:
    """What to look at and what to try next, in lines that work as they are printed."""
    from ..text import command

    seen = [
        *([(picture, "this comparison as a picture")] if picture else []),
        (folder / "summary.md", "the run in words, tables and pictures"),
        (folder / "masks.png", "one layer's mask, from the first epoch to the last"),
    ]
    kind = "c" if structure == "weight" else "onnx --compact --fold"
    tries = [
        (f"export {folder} --format {kind}", "take it elsewhere, with its preprocessing"),
        (f"train --model {MODEL} --sparsity 0.95", "prune harder"),
        (f"train --model {MODEL} --structure filter --sparsity 0.5", "remove whole filters"),
        (f"train --model {MODEL} --seeds 0-3", "four runs at once"),
    ]
    lines = [f"  {path!s:<44} {meaning}" for path, meaning in seen]
    lines = ["", "Look at", *lines, "", "Try next"]
    for line, meaning in tries:
        lines += [f"  # {meaning}", f"  {command(line)}"]
    return "\n".join(lines)
