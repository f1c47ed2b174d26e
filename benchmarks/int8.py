"""Eight bits after pruning: a run's network as float32 and as int8, before and after fine-tuning for it.

Claim: pruned weights stay exact zeros, the file is less than 0.4 times as large, and accuracy falls by less than two
points; the table says by how much.

    python benchmarks/int8.py [RUN] [--epochs 2] [--lr 1e-4] [--rounds 9] [--out FILE]

RUN is the folder of a finished run, for example one of ``gibbsprune train --data cifar10 --model resnet20 --sparsity
0.9``; without it the digits network (ResNet-8, 90 % of the weights removed, 12 epochs) is trained first. The files are
ONNX, calibrated on 512 training images, and judged by ONNX Runtime on all test images. Fine-tuning is SGD with
``gp.QuantizationAware`` at a learning rate that falls linearly to zero, on images shifted and flipped as the run's
recipe says; the same fine-tuning without rounding is a row of its own, so that the two can be told apart. Times are of
one thread, medians of interleaved rounds at batch 1 and 32.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import platform
import tempfile
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import onnxruntime
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gibbsprune as gp
from compaction import CLOCKS, medians
from gibbsprune import data
from gibbsprune.data.augment import crop_flip, pad, standardise
from gibbsprune.export.runs import TrainedRun, load_run, training_images
from gibbsprune.training import RunSpec, run
from gibbsprune.training.progress import PlainProgress

BATCHES = (1, 32)


def digits(folder: Path) -> Path:
    spec = RunSpec("digits", "resnet8", sparsity=0.9, epochs=12)
    return run.start([spec], folder, "cpu", progress=PlainProgress()).folder


def batches(found: TrainedRun, epochs: int, size: int = 128) -> Iterator[tuple[float, Tensor, Tensor]]:
    """All training images, once an epoch, in a random order, shifted and flipped by the run's recipe; what is left."""
    arrays, recipe, draw = data.load(found.spec.data), found.spec.recipe, torch.Generator().manual_seed(0)
    shift, count = int(recipe.shift), len(arrays.y_train)
    padded = pad(arrays.x_train, shift)
    for epoch in range(epochs):
        for start, index in enumerate(torch.randperm(count, generator=draw).split(size)):
            dy, dx = (torch.randint(0, 2 * shift + 1, (len(index),), generator=draw) for _ in range(2))
            flip = (torch.rand(len(index), generator=draw) < 0.5) & bool(recipe.flip)
            left = 1 - (epoch + start * size / count) / epochs
            yield left, crop_flip(padded, index, dy, dx, flip, tuple(arrays.x_train.shape[1:3])), arrays.y_train[index]


def tuned(found: TrainedRun, rounded: bool, epochs: int, lr: float, device: str) -> nn.Module:
    """The network after fine-tuning, its zeros held, with or without the rounding of int8."""
    model = gp.hold_zeros(copy.deepcopy(found.model)).to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    aware = gp.QuantizationAware(model) if rounded else None
    mean, std = (torch.tensor(found.about[key], device=device) for key in ("mean", "std"))
    for left, pixels, labels in batches(found, epochs):
        optimizer.param_groups[0]["lr"] = lr * left
        optimizer.zero_grad()
        x = standardise(pixels.to(device), mean, std).permute(0, 3, 1, 2).contiguous()
        F.cross_entropy(model(x), labels.to(device)).backward()
        optimizer.step()
    return (aware.finalize() if aware is not None else model).cpu().eval()


def row(found: TrainedRun, model: nn.Module, dtype: str) -> tuple[dict[str, Any], Any]:
    """Accuracy, size and zeros of a file, and the session that runs it."""
    given = {"calibration": training_images(found)} if dtype == "int8" else {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "net.onnx"
        gp.export_onnx(model, found.images[:8], path, dtype, **given)  # refused where a zero would not stay one
        content = path.read_bytes()
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, settings, ["CPUExecutionProvider"])
    right = 0
    for x, y in zip(found.images.split(256), found.labels.split(256)):
        right += int((torch.from_numpy(session.run(None, {"input": x.numpy()})[0]).argmax(1) == y).sum())
    weights = [p for p in model.parameters() if p.dim() > 1]
    zeros = sum(int((p == 0).sum()) for p in weights) / sum(p.numel() for p in weights)
    return {
        "accuracy": round(100 * right / len(found.labels), 2),
        "bytes": len(content),
        "bytes, gzip": len(gzip.compress(content, mtime=0)),
        "zeros": round(zeros, 4),
    }, session


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path, help="the folder of a finished run (else the digits network)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--clock", default="cpu", choices=CLOCKS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="of the fine-tuning")
    parser.add_argument("--trust", action="store_true", help="import the network's code that the run names")
    parser.add_argument("--out", help="write the table as JSON")
    options = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        found = load_run(options.run or digits(Path(folder) / "run"), images=10**9, trust=options.trust)
    table: dict[str, Any] = {
        "machine": platform.processor() or platform.machine(),
        "versions": {"torch": torch.__version__, "onnxruntime": onnxruntime.__version__},
        "run": found.spec.name(),
        "test images": len(found.labels),
        "fine-tuning": {"epochs": options.epochs, "lr": options.lr},
        "clock": options.clock,
        "forms": {},
    }
    tune = partial(tuned, found, epochs=options.epochs, lr=options.lr, device=options.device)
    plain, aware = tune(rounded=False), tune(rounded=True)
    forms = {
        "float32": (found.model, "float32"),
        "int8": (found.model, "int8"),
        "float32, fine-tuned": (plain, "float32"),
        "int8, fine-tuned as float32": (plain, "int8"),
        "int8, fine-tuned for it": (aware, "int8"),
    }
    sessions = {}
    for name, (model, dtype) in forms.items():
        table["forms"][name], sessions[name] = row(found, model, dtype)
    for batch in BATCHES:
        x = {"input": found.images[:batch].numpy()}
        ways = {name: partial(session.run, None, x) for name, session in sessions.items()}
        for name, took in medians(ways, options.rounds, CLOCKS[options.clock]).items():
            table["forms"][name][f"ms at batch {batch}"] = took
    print(f"{table['run']}, {table['test images']} test images")
    print("| | accuracy, % | bytes | gzip | ms at batch 1 | at 32 |\n|---|---|---|---|---|---|")
    for name, values in table["forms"].items():
        times = " | ".join(f"{values[f'ms at batch {batch}']:.2f}" for batch in BATCHES)
        print(f"| {name} | {values['accuracy']:.2f} | {values['bytes']:,} | {values['bytes, gzip']:,} | {times} |")
    if options.out:
        Path(options.out).write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
