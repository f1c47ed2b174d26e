"""Really faster, really smaller: a filter-pruned network compact against dense, in one run.

Aim: ResNet-56, 75 % of the filters of every block convolution pruned, latency at most 0.35 of dense at batch 128 and
0.5 at batch 1, on a CPU, under PyTorch and under ONNX Runtime. Beside it the same number of filters removed by
Torch-Pruning, and what that does to the output. With ``--packed`` the sizes of packed files, and nothing else.

    python benchmarks/compaction.py [--model resnet56] [--clock cpu|wall] [--threads 1] [--rounds 9] [--out FILE]
    python benchmarks/compaction.py --packed [--out FILE]

All forms are timed in interleaved rounds; medians are printed, and ratios to the faster of the two memory formats of
the dense network. ``--clock cpu`` counts the processor time of one thread, which other work on the machine disturbs
least; ``--clock wall`` counts seconds. Torch-Pruning is optional: the extra ``bench``.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gibbsprune as gp
from gibbsprune.models import build

BATCHES = (1, 128)
CLOCKS = {"cpu": time.process_time, "wall": time.perf_counter}


def network(name: str, structure: str, sparsity: float) -> nn.Module:
    """A pruned network with random batch norms: latency does not depend on what it has learnt."""
    generator = torch.Generator().manual_seed(0)
    model = build(name, 10, 3, generator)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.5, generator=generator)
            module.running_var.uniform_(0.3, 2, generator=generator)
            module.weight.data.uniform_(0.5, 1.5, generator=generator)
            module.bias.data.normal_(0, 0.5, generator=generator)
    exclude = ["conv", "*.shortcut", "dense"] if structure == "filter" else ["conv", "dense"]
    return (
        gp.GibbsPruner(model, sparsity=sparsity, structure=structure, law="annealed", exclude=exclude)
        .finalize("converged")
        .eval()
    )


def by_torch_pruning(model: nn.Module, sparsity: float, x: Tensor) -> nn.Module | None:
    """The same share of filters removed by Torch-Pruning, by magnitude, in groups of coupled layers."""
    try:
        import torch_pruning as tp
    except ImportError:
        return None
    pruned = copy.deepcopy(model)
    importance = tp.importance.GroupMagnitudeImportance(p=2)
    tp.pruner.BasePruner(
        pruned, x, importance=importance, pruning_ratio=sparsity, ignored_layers=[pruned.dense], round_to=None
    ).step()
    return pruned.eval()


def medians(ways: dict[str, Callable[[], Any]], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Median milliseconds of each way, in interleaved rounds after one to warm up."""
    took: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            start = clock()
            way()
            if turn:
                took[name].append(1e3 * (clock() - start))
    return {name: round(statistics.median(values), 3) for name, values in took.items()}


def with_torch(forms: dict[str, nn.Module], options: Any) -> dict[str, dict[str, float]]:
    """Milliseconds under PyTorch by batch size and form, in both memory formats."""
    found = {}
    for batch in BATCHES:
        ways: dict[str, Callable[[], Any]] = {}
        x = torch.randn(batch, 3, options.size, options.size, generator=torch.Generator().manual_seed(1))
        for name, model in forms.items():
            for label, kind in (("", torch.contiguous_format), (", channels last", torch.channels_last)):
                moved = copy.deepcopy(model).to(memory_format=kind)
                ways[name + label] = partial(moved, x.contiguous(memory_format=kind))
        with torch.inference_mode():
            found[str(batch)] = medians(ways, options.rounds * (4 if batch == 1 else 1), CLOCKS[options.clock])
    return found


def with_onnx(forms: dict[str, nn.Module], options: Any) -> dict[str, dict[str, float]]:
    """Milliseconds under ONNX Runtime by batch size and form."""
    import onnxruntime

    sessions = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, model in forms.items():
            path = Path(folder) / "net.onnx"
            gp.export_onnx(model, torch.randn(2, 3, options.size, options.size), path)
            settings = onnxruntime.SessionOptions()
            settings.intra_op_num_threads = options.threads
            sessions[name] = onnxruntime.InferenceSession(path.read_bytes(), settings, ["CPUExecutionProvider"])
    found = {}
    for batch in BATCHES:
        x = {"input": torch.randn(batch, 3, options.size, options.size).numpy()}
        ways = {name: partial(s.run, None, x) for name, s in sessions.items()}
        found[str(batch)] = medians(ways, options.rounds * (4 if batch == 1 else 1), CLOCKS[options.clock])
    return found


def change(model: nn.Module, other: nn.Module, size: int) -> float:
    """max |difference| / max |output| of two networks on random images."""
    x = torch.randn(64, 3, size, size, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        a, b = model(x), other(x)
    return float((a - b).abs().max() / a.abs().max())


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def filters(model: nn.Module) -> tuple[int, int]:
    """Filters in the blocks' convolutions, projections not counted: all that are stored, and those not zero."""
    stored = live = 0
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d) and name.startswith("blocks.") and not name.endswith("shortcut"):
            stored += len(module.weight)
            live += int(module.weight.flatten(1).ne(0).any(1).sum())
    return stored, live


def packed(options: Any) -> dict[str, Any]:
    """Packed files of the 95 % weight-wise pruned network and of the compact one, against dense ones and gzip."""
    x = torch.randn(2, 3, options.size, options.size)
    compact = gp.compact(network(options.model, "filter", options.sparsity), x, fold_batch_norm=True)
    forms = {
        "packed, 95 % weight-wise": network(options.model, "weight", 0.95),
        f"packed, compact at {options.sparsity:.0%} of the filters": compact,
    }
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, model in forms.items():
            found[name] = {}
            for dtype in ("float32", "float16", "int8"):
                gp.save_packed(model, Path(folder) / dtype, dtype)
                size = gp.packed_size(Path(folder) / dtype, model)
                row = {"packed": size.packed, "dense": size.dense, "gzip": size.gzip}
                found[name][dtype] = {**row, "times": round(size.dense / size.packed, 2)}
    return found


def show(title: str, found: dict[str, dict[str, float]], bases: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Print milliseconds and ratios to the fastest of ``bases``; give the ratios back."""
    print(f"\n{title}")
    ratios: dict[str, dict[str, float]] = {}
    for batch, took in found.items():
        base = min(took[name] for name in bases)
        ratios[batch] = {name: round(value / base, 3) for name, value in took.items()}
        for name, value in took.items():
            print(f"  batch {batch:>3}  {name:42} {value:10.2f} ms  {ratios[batch][name]:6.3f}")
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet56")
    parser.add_argument("--sparsity", type=float, default=0.75)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--clock", default="cpu", choices=CLOCKS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--packed", action="store_true", help="the sizes of packed files alone, no times")
    parser.add_argument("--out", help="write the table as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.packed:
        write({"model": options.model, **packed(options), "torch": torch.__version__}, options.out)
        return
    x = torch.randn(2, 3, options.size, options.size)
    pruned = network(options.model, "filter", options.sparsity)
    forms = {
        "dense": pruned,
        "dense, folded": gp.compact(network(options.model, "filter", 0.0), x, fold_batch_norm=True),
        "compact for size": gp.compact(pruned, x, fold_batch_norm=True),
        "compact for speed": gp.compact(pruned, x, fold_batch_norm=True, prefer="speed"),
    }
    theirs = by_torch_pruning(pruned, options.sparsity, x)
    if theirs is not None:
        forms["torch-pruning"] = theirs
    networks = {}
    for name, model in forms.items():
        if name != "dense, folded":
            stored, live = filters(model)
            row = {"parameters": parameters(model), "filters stored": stored, "filters not zero": live}
            networks[name] = {**row, "output changed by": change(pruned, model, options.size)}
    for name, row in networks.items():
        print(f"{name:20}", row)
    table: dict[str, Any] = {"model": options.model, "sparsity": options.sparsity, "networks": networks}
    table["torch ms"] = with_torch(forms, options)
    table["torch ratio"] = show("PyTorch", table["torch ms"], ("dense", "dense, channels last"))
    table["onnx ms"] = with_onnx(forms, options)
    table["onnx ratio"] = show("ONNX Runtime", table["onnx ms"], ("dense",))
    table |= {"clock": options.clock, "threads": options.threads, "rounds": options.rounds}
    table |= {"torch": torch.__version__, "cpu": _cpu(), "machine": platform.machine()}
    write(table, options.out)


def write(table: dict[str, Any], out: str | None) -> None:
    """To a file, or where people look."""
    text = json.dumps(table, indent=2, ensure_ascii=False) + "\n"
    if out:
        Path(out).write_text(text)
    else:
        print(text)


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


if __name__ == "__main__":
    main()
