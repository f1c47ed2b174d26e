"""``gibbsprune export``: a finished run as C, ONNX, a torch.export program, a packed file or safetensors."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..checks import bad, check_one_of, listed
from ..errors import UserError
from .values import add_trust, trusting

#: The formats: the types of stored weights that each can have, and how its file's name begins and ends.
FORMATS = {
    "c": (("float32", "float16", "int8"), "c", ""),
    "onnx": (("float32", "float16", "int8"), "model", ".onnx"),
    "pt2": (("float32",), "model", ".pt2"),
    "compact": (("float32",), "network", ".safetensors"),
    "packed": (("float32", "float16", "int8"), "model", ".packed"),
    "safetensors": (("float32", "float16"), "model-export", ".safetensors"),
}
GRAPHS = ("c", "onnx", "pt2", "compact")  # which carry the network and not only its weights


def add_parser(commands: Any, meaning: str) -> None:
    """Add ``export`` to the commands."""
    parser = commands.add_parser(
        "export",
        help=meaning,
        description="Write the network of a finished run to a file, and check that file on the run's test images. "
        "C, ONNX, pt2 and compact files take raw pixels, bytes of (rows, columns, channels); see the page beside them.",
        allow_abbrev=False,
    )
    parser.add_argument("run", metavar="RUN", help="the folder of a finished run")
    formats = "c, onnx, pt2, compact, packed or safetensors (onnx)"
    parser.add_argument("--format", default="onnx", metavar="NAME", help=formats)
    parser.add_argument("--compact", action="store_true", help="leave out pruned channels first; the same function")
    parser.add_argument("--fold", action="store_true", help="with --compact: fold batch norms into convolutions")
    parser.add_argument("--dtype", default="float32", metavar="NAME", help="float32, float16 or int8 (float32)")
    bare = "c, onnx, pt2, compact: take standardised images (channels, rows, columns) instead of raw pixels"
    parser.add_argument("--bare", action="store_true", help=bare)
    parser.add_argument("--out", metavar="FILE", help="where to write (in the run's folder); for c a folder")
    add_trust(parser)
    parser.set_defaults(handler=handle, parser=parser)


def file_name(options: argparse.Namespace) -> str:
    """The name that options give a file, so that one does not take another's place: model-compact-float16.onnx."""
    _, begin, end = FORMATS[options.format]
    parts = [begin, *(name for name in ("compact", "fold", "bare") if getattr(options, name))]
    return "-".join(parts + [options.dtype] * (options.dtype != "float32")) + end


def is_export(name: str) -> bool:
    """Whether a file or folder of a run has a name that :func:`file_name` gives, or is the page beside it."""
    return any(
        name.removesuffix(".md").endswith(end) and (name == begin or name.startswith((f"{begin}-", f"{begin}.")))
        for _, begin, end in FORMATS.values()
    )


def handle(options: argparse.Namespace) -> int:
    """Load, make smaller on request, write, check, and tell."""
    check_one_of("--format", options.format, FORMATS)
    options.compact = options.compact or options.format == "compact"
    dtypes, *_ = FORMATS[options.format]
    if options.dtype not in dtypes:
        raise bad("--dtype", options.dtype, f"{listed(dtypes)} with --format {options.format}")
    if options.fold and not options.compact:
        raise UserError("--fold is a part of compaction; use it together with --compact")
    if options.bare and options.format not in GRAPHS:
        raise UserError(f"--bare is for {', '.join(GRAPHS)}; a {options.format} file has weights alone")
    from ..export.card import card
    from ..export.runs import load_run
    from ..files import write_atomic
    from ..training.folder import check_not_own

    run = trusting(options, lambda trust: load_run(options.run, trust=trust))
    out = Path(options.out) if options.out else run.path / file_name(options)
    page = out / "README.md" if options.format == "c" else out.with_name(out.name + ".md")
    check_not_own(out)
    model = _compacted(options, run) if options.compact else run.model
    written, command = _written(options, run, model, out)
    left = sum(p.numel() for p in model.parameters()) if options.compact else None
    write_atomic(page, card(run, options.format, out.name, options.bare, written, command, left))
    print(f"{out}: {written}")
    print(f"See {page}: what it takes, and how to use it.")
    return 0


def _compacted(options: argparse.Namespace, run: Any) -> Any:
    """The compact network, with a word on what it is."""
    from ..export.compaction import compact

    prefer = "speed" if options.format in GRAPHS else "size"
    model = compact(run.model, run.images[:2], fold_batch_norm=options.fold, prefer=prefer)
    print(model.report)
    if run.spec.structure != "filter":
        print(
            f"This run is pruned {run.spec.structure}-wise: hardly any channel is gone as a whole, so there is little "
            "to leave out. --format c computes with the remaining weights alone, --format packed stores them alone."
        )
    elif prefer == "speed":
        print(
            "Made to be fast: it computes some constant channels where that costs less than leaving them out. packed "
            "and safetensors files are made to be small, and have fewer parameters."
        )
    else:
        print(
            "Made to be small: c, onnx and pt2 files are made to be fast, and have more parameters. The file's weights "
            "fit gp.compact of this run's network; onnx and pt2 carry the network itself."
        )
    return model


def _written(options: argparse.Namespace, run: Any, model: Any, out: Path) -> tuple[str, str]:
    """Write the file; what is in it and how well it does, in a sentence or two, and the command that compiles it."""
    from ..export.card import metadata
    from ..export.packed import load_packed, packed_size, save_packed
    from ..export.runs import accuracy

    before = accuracy(run.model, run.images, run.labels)
    about = metadata(run, options.bare)
    pixels = {} if options.bare else {"mean": run.about["mean"], "std": run.about["std"]}
    if options.format == "c":
        return _write_c(run, model, out, options.dtype, pixels)
    if options.format in ("onnx", "pt2", "compact"):
        return _write_graph(options, run, model, out, before, {**pixels, "metadata": about}), ""
    import copy

    again = copy.deepcopy(model)
    if options.format == "packed":
        save_packed(model, out, options.dtype)
        load_packed(out, again)
        size = str(packed_size(out, model))
    else:
        size = _write_safetensors(model, again, out, options.dtype, about)
    after = accuracy(again, run.images, run.labels)
    return f"{size}. Accuracy on {len(run.labels)} test images {before:.2%}, read back {after:.2%}.", ""


def _write_graph(
    options: argparse.Namespace, run: Any, model: Any, out: Path, before: float, given: dict[str, Any]
) -> str:
    """Write an ONNX, pt2 or compact file, and try it on the test images as they are."""
    import torch

    from ..export.onnx import export_onnx, export_pt2, open_onnx
    from ..export.portable import load_compact
    from ..export.runs import accuracy, training_images

    examples = run.images[:32]
    again: Any
    if options.dtype == "int8":
        given["calibration"] = training_images(run)
    if options.format == "onnx":
        report, judge = export_onnx(model, examples, out, options.dtype, **given), "ONNX Runtime"
        function = open_onnx(out.read_bytes())
        again = lambda x: function(x)[0]  # noqa: E731
    elif options.format == "compact":
        report, judge = _write_compact(model, examples, out, given.get("mean"), given.get("std")), "the file read back"
        again = load_compact(out)
    else:
        report, judge = export_pt2(model, examples, out, **given), "the program read back"
        again = torch.export.load(out).module()
    after = accuracy(again, run.images if options.bare else run.pixels, run.labels)
    kind = "standardised" if options.bare else "raw"
    return (
        f"{report.size:,} bytes; {judge} differs from PyTorch by {report.difference:.1e} of the output's scale, at "
        f"batch sizes 1, {len(examples)} and {len(examples) + 3}, and labels {after:.2%} of {len(run.labels)} {kind} "
        f"test images rightly (the run {before:.2%})."
    )


def _write_compact(model: Any, examples: Any, out: Path, mean: Any, std: Any) -> Any:
    """Write the compact network, with its preprocessing unless there is none."""
    from ..export.compaction import compact
    from ..export.onnx import ExportReport, compared
    from ..export.pixels import with_pixels
    from ..export.portable import load_compact, save_compact

    whole, inputs = with_pixels(model, (examples,), mean, std)
    save_compact(model if whole is model else compact(whole, inputs), out)
    return ExportReport(out.stat().st_size, compared(whole, load_compact(out), inputs))


def _write_c(run: Any, model: Any, out: Path, dtype: str, pixels: dict[str, Any]) -> tuple[str, str]:
    """Write the source, its header and an example."""
    from ..export.c import export_c

    report = export_c(model, run.images[:2], out, dtype=dtype, class_names=run.about["class_names"], **pixels)
    return str(report).partition(": ")[2], report.command


def _write_safetensors(model: Any, again: Any, out: Path, dtype: str, about: dict[str, str]) -> str:
    """Write the state with its weights as ``dtype``, and read it into ``again``."""
    import json

    import torch
    from safetensors.torch import load

    from ..files import save_tensors

    kind = getattr(torch, dtype)
    state = {
        name: value.to(kind) if value.is_floating_point() and value.dim() > 1 else value
        for name, value in model.state_dict().items()
    }
    save_tensors(out, state, {"about": json.dumps(about)})  # one entry: safetensors keeps several in no fixed order
    content = out.read_bytes()
    again.load_state_dict(load(content))
    return f"{len(content):,} bytes"
