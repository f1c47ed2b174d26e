"""``gibbsprune export``: a finished run as ONNX, a torch.export program, a packed file or safetensors."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gibbsprune.cli.values import add_trust, trusting
from gibbsprune.errors import UserError

#: The formats, the types of stored weights that each can have, and its file's name.
FORMATS = {
    "onnx": (("float32", "float16"), "model.onnx"),
    "pt2": (("float32",), "model.pt2"),
    "packed": (("float32", "float16", "int8"), "model.packed"),
    "safetensors": (("float32", "float16"), "model-export.safetensors"),
}


def add_parser(commands: Any) -> None:
    """Add ``export`` to the commands."""
    parser = commands.add_parser(
        "export",
        help="write a run's network for use elsewhere, checked",
        description="Write the network of a finished run to a file, and check that file on the run's test images.",
        allow_abbrev=False,
    )
    parser.add_argument("run", metavar="RUN", help="the folder of a finished run")
    parser.add_argument("--format", default="onnx", metavar="NAME", help="onnx, pt2, packed or safetensors (onnx)")
    parser.add_argument("--compact", action="store_true", help="leave out pruned channels first; the same function")
    parser.add_argument("--fold", action="store_true", help="with --compact: fold batch norms into convolutions")
    parser.add_argument("--dtype", default="float32", metavar="NAME", help="float32, float16 or int8 (float32)")
    parser.add_argument("--out", metavar="FILE", help="where to write (a file in the run's folder)")
    add_trust(parser)
    parser.set_defaults(handler=handle, parser=parser)


def handle(options: argparse.Namespace) -> int:
    """Load, make smaller on request, write, check, and tell."""
    if options.format not in FORMATS:
        raise UserError(f"unknown format {options.format!r}; it must be one of {', '.join(FORMATS)}")
    dtypes, name = FORMATS[options.format]
    if options.dtype not in dtypes:
        allowed = ", ".join(dtypes)
        raise UserError(f"dtype {options.dtype!r} is not possible for {options.format}; possible are {allowed}")
    if options.fold and not options.compact:
        raise UserError("--fold is a part of compaction; use it together with --compact")
    from gibbsprune.export.compaction import compact
    from gibbsprune.export.runs import load_run
    from gibbsprune.training.folder import check_not_own

    run = trusting(options, lambda trust: load_run(options.run, trust=trust))
    out = Path(options.out) if options.out else run.path / name
    check_not_own(out)
    model = run.model
    if options.compact:
        carries_graph = options.format in ("onnx", "pt2")
        prefer = "speed" if carries_graph else "size"
        model = compact(model, run.images[:2], fold_batch_norm=options.fold, prefer=prefer)
        print(model.report)
        if not carries_graph:
            print("The file's weights fit gp.compact of this run's network; onnx and pt2 carry the network itself.")
    print(_written(options, run, model, out))
    return 0


def _written(options: argparse.Namespace, run: Any, model: Any, out: Path) -> str:
    """Write the file; what is in it and how well it does, in a sentence or two."""
    from gibbsprune.export.onnx import export_onnx, export_pt2
    from gibbsprune.export.packed import load_packed, packed_size, save_packed
    from gibbsprune.export.runs import accuracy

    before = accuracy(run.model, run.images, run.labels)
    if options.format in ("onnx", "pt2"):
        images = run.images[:32]
        if options.format == "onnx":
            report, judge = export_onnx(model, images, out, options.dtype), "ONNX Runtime"
        else:
            report, judge = export_pt2(model, images, out), "the program read back"
        return (
            f"{out}: {report.size:,} bytes; {judge} differs from PyTorch by {report.difference:.1e} of the "
            f"output's scale on {len(images)} test images, at batch sizes 1, {len(images)} and {len(images) + 3}."
        )
    import copy

    again = copy.deepcopy(model)
    if options.format == "packed":
        save_packed(model, out, options.dtype)
        load_packed(out, again)
        size = str(packed_size(out, model))
    else:
        size = _write_safetensors(model, again, out, options.dtype)
    after = accuracy(again, run.images, run.labels)
    return f"{out}: {size}. Accuracy on {len(run.labels)} test images {before:.2%}, read back {after:.2%}."


def _write_safetensors(model: Any, again: Any, out: Path, dtype: str) -> str:
    """Write the state with its weights as ``dtype``, and read it into ``again``."""
    import torch
    from safetensors.torch import load

    from gibbsprune.files import save_tensors

    kind = getattr(torch, dtype)
    state = {
        name: value.to(kind) if value.is_floating_point() and value.dim() > 1 else value
        for name, value in model.state_dict().items()
    }
    save_tensors(out, state, {"format": "pt"})
    content = out.read_bytes()
    again.load_state_dict(load(content))
    return f"{len(content):,} bytes"
