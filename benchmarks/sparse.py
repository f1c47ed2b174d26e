"""Zeros that pay: weight-pruned networks as C against the fastest that others make of them, all in one run.

Aims, ResNet-56 against the fastest of the others: 3.0 times as fast with 90 % of the weights gone, 5.5 times with
95 %, no slower with 70 %. The others are ONNX Runtime and OpenVINO, with the dense network and with the pruned one
(OpenVINO with its option for sparse weights), PyTorch in both memory formats, and PyTorch compiled with frozen weights.

    python benchmarks/sparse.py [--quick] [--model resnet56 …] [--batch 1 …] [--threads 1 …] [--run RUN]
                                [--out FILE] [--figure FILE]

For one network, batch and number of threads all ways take turns; the least time of each counts, since whatever else the
machine does can only lengthen it: of processor time with one thread, of seconds with more. The others' times do not
depend on how many weights are zero, so they are measured once, with 90 %. Masks are random, or that of a trained run
(``--run``). OpenVINO is optional, and so is ONNX Runtime: the extras ``bench`` and ``export``.
"""

from __future__ import annotations

import argparse
import copy
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

SPARSITIES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
TABLES = Path(__file__).parent / "tables"


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


def least(ways: dict[str, Callable[[], Any]], seconds: float, clock: Callable[[], float]) -> dict[str, float]:
    """The least milliseconds of each way, in interleaved rounds for so many seconds, five at least."""
    took = dict.fromkeys(ways, float("inf"))
    start, rounds = time.perf_counter(), -1
    while rounds < 5 or time.perf_counter() < start + seconds:
        for name, way in ways.items():
            begin = clock()
            way()
            if rounds >= 0:
                took[name] = min(took[name], 1e3 * (clock() - begin))
        rounds += 1
    return took


@torch.no_grad()
def measured(name: str, batch: int, threads: int, options: Any) -> dict[str, Any]:
    """One row of the table."""
    torch.set_num_threads(threads)
    if options.run:
        found = load_run(options.run)
        models = {round(zeros(found.model), 3): found.model}
        shape = tuple(found.images.shape[1:])
    else:
        models = {sparsity: network(name, sparsity) for sparsity in options.sparsities}
        shape = NETWORKS[name][1]
    x = torch.randn(batch, *shape)
    pruned = models.get(0.9, next(iter(models.values())))
    dense = copy.deepcopy(pruned)
    for parameter in dense.parameters():
        parameter += 1e-3 * torch.randn_like(parameter) * (parameter == 0)
    ways = others(dense, pruned, x, threads)
    ours: dict[str, str] = {}
    for sparsity, model in models.items():
        compiled = gp.compile_c(model, x, threads=threads, rounds=3)
        ours[f"C, {sparsity:.0%}"] = compiled.report.chosen
        ways[f"C, {sparsity:.0%}"] = lambda compiled=compiled: compiled(x)
    took = least(ways, options.seconds, time.process_time if threads == 1 else time.perf_counter)
    rival = min((way for way in took if way not in ours), key=lambda way: took[way])
    print(
        f"\n{name}, batch {batch}, {threads} thread{'s' if threads > 1 else ''}: milliseconds, times the fastest other"
    )
    for way, value in took.items():
        print(f"  {way:26} {value:9.3f}  {took[rival] / value:6.2f}  {ours.get(way, '')}", flush=True)
    times = {way: round(value, 4) for way, value in took.items()}
    return {"model": name, "batch": batch, "threads": threads, "ms": times, "fastest": rival, "ways": ours}


def zeros(model: nn.Module) -> float:
    weights = [p for p in model.parameters() if p.dim() > 1]
    return sum(float((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """How many times as fast as the fastest other, against how many weights are gone; one thread."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    batches = sorted({row["batch"] for row in rows if row["threads"] == 1})
    figure, axes = plt.subplots(1, len(batches), figsize=(4 * len(batches), 3.6), sharey=True, squeeze=False)
    for axis, batch in zip(axes[0], batches):
        for row in rows:
            if row["batch"] == batch and row["threads"] == 1:
                points = [(way.removeprefix("C, "), row["ms"][way]) for way in row["ways"]]
                x = [float(text.rstrip("%")) for text, _ in points]
                axis.plot(x, [row["ms"][row["fastest"]] / ms for _, ms in points], marker="o", ms=3, label=row["model"])
        axis.axhline(1, color="grey", lw=0.8)
        axis.set(title=f"batch {batch}", xlabel="weights gone, %", yscale="log")
        ticks = [0.5, 1, 2, 4, 8, 16]
        axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
    axes[0][0].set_ylabel("times the speed of the fastest other")
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 32, 128])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--sparsities", nargs="+", type=float, default=list(SPARSITIES))
    parser.add_argument("--seconds", type=float, default=15, help="of rounds for each row")
    parser.add_argument("--quick", action="store_true", help="ResNet-20 and the MLP, 70, 90 and 95 %%, one thread")
    parser.add_argument("--run", help="a finished run: its network and its mask")
    parser.add_argument("--out", type=Path, default=TABLES / "sparse-cpu.json")
    parser.add_argument("--figure", type=Path, help="draw the table there")
    options = parser.parse_args()
    if options.quick:
        options.model, options.batch, options.threads = ["resnet20", "mlp"], [1, 32], [1]
        options.sparsities, options.seconds = [0.7, 0.9, 0.95], 3
    if options.run:
        options.model = ["resnet20"]
    warnings.simplefilter("ignore")
    rows = []
    for name in options.model:
        for threads in options.threads:
            for batch in options.batch:
                rows.append(measured(name if not options.run else options.run, batch, threads, options))
                table = {
                    "machine": platform.processor() or platform.machine(),
                    "torch": torch.__version__,
                    "rows": rows,
                }
                options.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    if options.figure:
        draw(rows, options.figure)


if __name__ == "__main__":
    main()
