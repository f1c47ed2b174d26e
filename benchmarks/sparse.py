"""Zeros that pay: weight-pruned networks as C against the fastest that others make of them, all in one run.

Aims, ResNet-56 against the fastest of the others: 3.0 times as fast with 90 % of the weights gone, 5.5 times with
95 %, no slower with 70 %. The others are ONNX Runtime and OpenVINO, with the dense network and with the pruned one
(OpenVINO with its option for sparse weights), PyTorch in both memory formats, and PyTorch compiled with frozen weights.

    python benchmarks/sparse.py [--only resnet56 mlp/1 vgg16/128/2 …] [--seconds 15] [--run RUN …] [--quick] [--draw]

Every row of the table is a network, a batch size and a number of threads; ``--only`` names some of them, and what they
measure takes the place of the same rows in ``tables/sparse-cpu.json``, so that the whole can be run in parts. Beside
that file a table of ratios is written and the picture of the docs drawn; with ``--draw`` nothing is measured.

For one row all ways take turns, each for some calls at once; the least time of each counts, since whatever else the
machine does can only lengthen it: of processor time with one thread, of seconds with more. The others' times do not
depend on how many weights are zero, so they are measured once, with 90 %. Masks are random, but for those of
``trained``: a ResNet-56 trained on scikit-learn's digits for 20 epochs, with 90 and 95 % of its weights pruned; or the
finished runs of one network that ``--run`` names. Images smaller than 32 × 32 are made as large. OpenVINO is optional,
and so is ONNX Runtime: the extras ``bench`` and ``export``.
"""

from __future__ import annotations

import argparse
import copy
import functools
import io
import json
import platform
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gibbsprune as gp
from gibbsprune.export.runs import load_run
from gibbsprune.models import build
from gibbsprune.training import run as training
from gibbsprune.training.progress import PlainProgress
from gibbsprune.training.spec import RunSpec

SPARSITIES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
TABLES = Path(__file__).parent / "tables"
FIGURE = Path(__file__).parents[1] / "docs" / "img" / "sparse_c.png"


def conv_bn(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU())


def vgg() -> nn.Module:
    """VGG-16 for images of 32 × 32."""
    layers: list[nn.Module] = []
    inputs = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers.append(conv_bn(inputs, width))
            inputs = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def mobilenet() -> nn.Module:
    """Depthwise 3 × 3 and 1 × 1 convolutions in turn, for images of 32 × 32."""
    layers: list[nn.Module] = [conv_bn(3, 32)]
    shapes = ((32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1))
    for inputs, outputs, stride in shapes:
        layers += [conv_bn(inputs, inputs, 3, stride, inputs), conv_bn(inputs, outputs, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.one = conv_bn(inputs, outputs, 3, stride)
        self.two = conv_bn(outputs, outputs)[:2]
        self.side = nn.Identity() if stride == 1 and inputs == outputs else conv_bn(inputs, outputs, 1, stride)[:2]

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.two(self.one(x)) + self.side(x))


def resnet18() -> nn.Module:
    """ResNet-18 with its stem for large images, here of 64 × 64."""
    layers: list[nn.Module] = [conv_bn(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(inputs, width, stride), Block(width, width, 1)]
        inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet20": (lambda: build("resnet20", 10, 3), (3, 32, 32)),
    "resnet56": (lambda: build("resnet56", 10, 3), (3, 32, 32)),
    "vgg16": (vgg, (3, 32, 32)),
    "mobilenet": (mobilenet, (3, 32, 32)),
    "resnet18": (resnet18, (3, 64, 64)),
    "mlp": (mlp, (784,)),
}
NAMES = {"resnet20": "ResNet-20", "resnet56": "ResNet-56", "vgg16": "VGG-16", "mobilenet": "MobileNet-like"}
NAMES |= {"resnet18": "ResNet-18, 64 × 64", "mlp": "MLP", "trained": "trained masks"}


def network(name: str, sparsity: float) -> nn.Module:
    """Random weights, batch norms and masks; the last layer stays dense, and the first where it is a convolution."""
    torch.manual_seed(0)
    model = NETWORKS[name][0]().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
            module.weight.data.uniform_(0.5, 1.5)
    layers = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    for layer in layers[isinstance(layers[0], nn.Conv2d) : -1]:
        layer.weight.data *= torch.rand_like(layer.weight) >= sparsity
    return model


@torch.enable_grad()
def trained(runs: list[str] | None) -> tuple[dict[float, nn.Module], tuple[int, ...], str]:
    """Networks with masks from training, by sparsity, the shape of their images, and what they are."""
    with tempfile.TemporaryDirectory() as folder:
        if not runs:
            runs = [f"{folder}/{sparsity}" for sparsity in (0.9, 0.95)]
            for run, sparsity in zip(runs, (0.9, 0.95)):
                spec = RunSpec(data="digits", model="resnet56", structure="weight", sparsity=sparsity, epochs=20)
                training.start([spec], Path(run), "cpu", progress=PlainProgress(io.StringIO()))
        found = [load_run(run, images=1) for run in runs]
    first = found[0].spec
    channels, *sides = found[0].images.shape[1:]
    what = f"{NAMES.get(first.model, first.model)} trained on {first.data}"
    return {run.spec.sparsity: run.model.eval() for run in found}, (channels, *(max(32, n) for n in sides)), what


def others(dense: nn.Module, pruned: nn.Module, x: Tensor, threads: int) -> dict[str, Callable[[], Any]]:
    """Every other way that this machine has."""
    last = copy.deepcopy(pruned).to(memory_format=torch.channels_last) if x.dim() == 4 else pruned
    ways: dict[str, Callable[[], Any]] = {"PyTorch": lambda: pruned(x)}
    if x.dim() == 4:
        turned = x.contiguous(memory_format=torch.channels_last)
        ways["PyTorch, channels last"] = lambda: last(turned)
    ways["torch.compile, frozen"] = compiled_by_torch(pruned, x)
    for kind, model in (("dense", dense), ("pruned", pruned)):
        ways |= with_onnx_runtime(kind, model, x, threads) | with_openvino(kind, model, x, threads)
    return ways


def compiled_by_torch(model: nn.Module, x: Tensor) -> Callable[[], Any]:
    import torch._inductor.config as inductor

    inductor.freezing = True
    torch._dynamo.reset()
    found = torch.compile(copy.deepcopy(model))
    found(x)
    return lambda: found(x)


def onnx_file(model: nn.Module, x: Tensor) -> bytes | None:
    try:
        with tempfile.TemporaryDirectory() as folder:
            gp.export_onnx(model, x[:2], Path(folder) / "net.onnx")
            return (Path(folder) / "net.onnx").read_bytes()
    except gp.UserError as reason:
        print(f"without ONNX: {reason}")
        return None


def with_onnx_runtime(kind: str, model: nn.Module, x: Tensor, threads: int) -> dict[str, Callable[[], Any]]:
    content = onnx_file(model, x)
    if content is None:
        return {}
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    given = {"input": x.numpy()}
    return {f"ONNX Runtime, {kind}": lambda: session.run(None, given)}


def with_openvino(kind: str, model: nn.Module, x: Tensor, threads: int) -> dict[str, Callable[[], Any]]:
    try:
        import openvino
    except ImportError:
        print("without OpenVINO, which is not installed")
        return {}
    core = openvino.Core()
    found = openvino.convert_model(model, example_input=x, input=[list(x.shape)])
    settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    settings["INFERENCE_PRECISION_HINT"] = "f32"
    if kind == "pruned":
        settings["CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE"] = 0.5
    request = core.compile_model(found, "CPU", settings).create_infer_request()
    array = x.numpy()
    return {f"OpenVINO, {kind}": lambda: request.infer([array], share_inputs=True)}


def least(ways: dict[str, Callable[[], Any]], seconds: float, threads: int) -> dict[str, float]:
    """The least milliseconds of each way, in interleaved rounds for so many seconds, five at least.

    With more than one thread a turn is longer: the threads of the way before look for work for a while before they
    sleep, and take processors away as long as they do.
    """
    took, clock = dict.fromkeys(ways, float("inf")), time.process_time if threads == 1 else time.perf_counter
    start, rounds = time.perf_counter(), -1
    while rounds < 5 or time.perf_counter() < start + seconds:
        for name, way in ways.items():
            turn = time.perf_counter()
            while True:  # several calls, so that threads are awake and caches warm as in use
                begin = clock()
                way()
                if rounds >= 0:
                    took[name] = min(took[name], 1e3 * (clock() - begin))
                if time.perf_counter() > turn + (0.01 if threads == 1 else 0.1):
                    break
        rounds += 1
    return took


@torch.no_grad()
def measured(name: str, batch: int, threads: int, options: Any) -> dict[str, Any]:
    """One row of the table."""
    torch.set_num_threads(threads)
    if name == "trained":
        models, shape, what = options.trained()
    else:
        models, shape = {sparsity: network(name, sparsity) for sparsity in options.sparsities}, NETWORKS[name][1]
        what = NAMES[name]
    x = torch.randn(batch, *shape)
    pruned = models.get(0.9, next(iter(models.values())))
    dense = copy.deepcopy(pruned)
    for parameter in dense.parameters():
        parameter += 1e-3 * torch.randn_like(parameter) * (parameter == 0)
    ways = others(dense, pruned, x, threads)
    ours: dict[str, str] = {}
    for sparsity, model in models.items():
        compiled = gp.compile_c(model, x, threads=threads, rounds=3 if batch < 128 else 1)
        ours[f"C, {100 * sparsity:g}%"] = compiled.report.chosen
        ways[f"C, {100 * sparsity:g}%"] = lambda compiled=compiled: compiled(x)
    took = least(ways, options.seconds, threads)
    rival = min((way for way in took if way not in ours), key=lambda way: took[way])
    print(f"\n{name}/{batch}/{threads}: milliseconds, times the fastest other")
    for way, value in took.items():
        print(f"  {way:26} {value:9.3f}  {took[rival] / value:6.2f}  {ours.get(way, '')}", flush=True)
    times = {way: round(value, 4) for way, value in took.items()}
    row = {"model": name, "what": what, "batch": batch, "threads": threads}
    return {**row, "ms": times, "fastest": rival, "ways": ours}


def ratios(row: dict[str, Any]) -> dict[float, float]:
    """How many times as fast as the fastest other, by the percentage of weights that are gone."""
    best = row["ms"][row["fastest"]]
    return {float(way.removeprefix("C, ").rstrip("%")): best / row["ms"][way] for way in row["ways"]}


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table of ratios."""
    columns = sorted({percent for row in rows for percent in ratios(row)})
    lines = ["| | batch | threads | fastest other | " + " | ".join(f"{p:g} %" for p in columns) + " |"]
    lines.append("|---" * (4 + len(columns)) + "|")
    for row in rows:
        found = ratios(row)
        cells = [f"{found[p]:.2f}" if p in found else "" for p in columns]
        other = f"{row['fastest']}, {row['ms'][row['fastest']]:.3g} ms"
        what = row.get("what", NAMES[row["model"]])
        lines.append("| " + " | ".join([what, str(row["batch"]), str(row["threads"]), other, *cells]) + " |")
    return "\n".join(lines) + "\n"


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """The ratios against how many weights are gone; one thread, random masks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = [row for row in rows if row["threads"] == 1 and row["model"] != "trained"]
    batches = sorted({row["batch"] for row in rows})
    figure, axes = plt.subplots(1, len(batches), figsize=(4 * len(batches), 3.6), sharey=True, squeeze=False)
    for axis, batch in zip(axes[0], batches):
        for i, name in enumerate(NETWORKS):
            found = next((ratios(row) for row in rows if (row["model"], row["batch"]) == (name, batch)), {})
            axis.plot(list(found), list(found.values()), marker="o", ms=3, color=f"C{i}", label=NAMES[name])
        axis.axhline(1, color="grey", lw=0.8)
        axis.set(title=f"batch {batch}", xlabel="weights gone, %", yscale="log")
        ticks = [0.5, 1, 2, 4, 8, 16, 32, 64, 128]
        axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
    axes[0][0].set_ylabel("times the speed of the fastest other")
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def chosen(only: list[str] | None) -> list[tuple[str, int, int]]:
    """The rows that are asked for: "model", "model/batch" or "model/batch/threads" each."""
    rows = [(name, batch, threads) for name in NAMES for threads in (1, 2) for batch in (1, 32, 128)]
    asked = [tuple(part.split("/")) for part in only or []]
    known = {tuple(map(str, row))[:n] for row in rows for n in (1, 2, 3)}
    if unknown := [part for part in asked if part not in known]:
        raise SystemExit(
            f"--only is {'/'.join(unknown[0])}: allowed are {', '.join(NAMES)}, with /1, /32 or /128, and /1 or /2"
        )
    return [row for row in rows if not asked or any(tuple(map(str, row))[: len(part)] == part for part in asked)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="ROW", help="model, model/batch or model/batch/threads")
    parser.add_argument("--sparsities", nargs="+", type=float, default=list(SPARSITIES))
    parser.add_argument("--seconds", type=float, default=15, help="of rounds for each row")
    parser.add_argument("--run", nargs="+", help="finished runs: a network and its masks, for the rows 'trained'")
    parser.add_argument(
        "--quick", action="store_true", help="ResNet-20 and the MLP, 70, 90 and 95 %%, one thread; no files"
    )
    parser.add_argument("--draw", action="store_true", help="measure nothing: write and draw what the table holds")
    parser.add_argument("--out", type=Path, default=TABLES / "sparse-cpu.json")
    parser.add_argument("--figure", type=Path, default=FIGURE)
    options = parser.parse_args()
    options.trained = functools.cache(lambda: trained(options.run))
    if options.quick:
        options.only, options.sparsities, options.seconds = ["resnet20/1/1", "mlp/1/1", "mlp/32/1"], [0.7, 0.9, 0.95], 3
    warnings.simplefilter("ignore")
    table: dict[str, Any] = {"machine": "", "torch": "", "rows": []}
    if options.out.exists() and not options.quick:
        table = json.loads(options.out.read_text(encoding="utf-8"))
    order = chosen(None)
    for key in [] if options.draw else chosen(options.only):
        found = measured(*key, options)
        held = {(row["model"], row["batch"], row["threads"]): row for row in table["rows"]} | {key: found}
        table = {"machine": machine(), "torch": torch.__version__, "rows": [held[k] for k in order if k in held]}
        if not options.quick:
            options.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    print("\n" + markdown(table["rows"]))
    if table["rows"] and not options.quick:
        options.out.with_suffix(".md").write_text(markdown(table["rows"]), encoding="utf-8")
        draw(table["rows"], options.figure)


def machine() -> str:
    """The name of the processor."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


if __name__ == "__main__":
    main()
