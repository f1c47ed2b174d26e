"""What masks would cost at scale: ResNet-50 on ImageNet and a transformer of a billion weights.

Layers of the real shapes with random weights, masks drawn by the real code (`gibbsprune.law.Law`). On a GPU all layers
of the model are in its memory and are drawn together, as the pruner does it (`--layers together`); on a CPU each
distinct shape is drawn once and its time multiplied by how often the model has it (`--layers each`). Beside it a matrix
product is timed: a training step takes at least its floating-point operations (three forward passes; 8.2 GFLOP per
image of 224×224, 2 per weight and token) divided by that speed. No real training reaches it, so the share given for the
masks is an upper bound.

    python benchmarks/scaling.py [--device cuda] [--rounds 3] [--layers together|each] [--clock cpu|wall]
                                 [--out tables/scaling-NAME.json]

On a GPU the time is the wall clock's, from an idle device to an idle device. On a CPU one thread is timed, by default
with the process's own time, which a busy machine does not distort. Prints JSON. `--show FILE` prints the rows of
docs/scaling.md from such a file.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import gibbsprune as gp
from gibbsprune.law import Law
from gibbsprune.site import Site
from gibbsprune.structures import as_structure
from sampling import processor

BETAS = (0.7, 7.0, 100.0, 1e4)
SPARSITY = {"weight": 0.9, "kernel": 0.9, "filter": 0.75}
Shapes = Counter[tuple[int, ...]]


def resnet50() -> Shapes:
    """All convolutions but the first, and the classifier: 25.5 million weights."""
    shapes: Shapes = Counter()
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        shapes[4 * width, inputs, 1, 1] += 1  # the projection
        for _ in range(blocks):
            shapes[width, inputs, 1, 1] += 1
            shapes[width, width, 3, 3] += 1
            shapes[4 * width, width, 1, 1] += 1
            inputs = 4 * width
    shapes[1000, 2048] += 1
    return shapes


def transformer() -> Shapes:
    """The Linear layers of 16 blocks of width 2048 with grouped attention and a gated MLP: 973 million weights."""
    block = {(2048, 2048): 2, (512, 2048): 2, (8192, 2048): 2, (2048, 8192): 1}
    return Counter({shape: 16 * count for shape, count in block.items()})


MODELS: dict[str, dict[str, Any]] = {
    "ResNet-50, ImageNet": {
        "shapes": resnet50(), "unit": "image", "units": 256, "flop": 3 * 8.2e9, "epoch": 1_281_167,
    },
    "transformer of 10⁹ weights": {
        "shapes": transformer(), "unit": "token", "units": 1 << 17, "flop": 6 * 0.973e9, "epoch": 10**9,
    },
}  # fmt: skip


def weights_of(shapes: Shapes) -> int:
    return sum(math.prod(shape) * count for shape, count in shapes.items())


def make_clock(device: torch.device, clock: str) -> Callable[[Callable[[], Any]], float]:
    """A function that times another in seconds."""
    now = time.process_time if clock == "cpu" and device.type == "cpu" else time.perf_counter

    def timed(function: Callable[[], Any]) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = now()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return now() - start

    return timed


def matmul_speed(device: torch.device, timed: Callable[[Callable[[], Any]], float]) -> float:
    """Floating-point operations per second of a large product: bfloat16 on a GPU, float32 on a CPU."""
    size, kind = (8192, torch.bfloat16) if device.type == "cuda" else (1536, torch.float32)
    a = torch.randn(size, size, device=device).to(kind)
    out = torch.empty_like(a)
    times = [timed(lambda: torch.mm(a, a, out=out)) for _ in range(8)]
    return 2 * size**3 / min(times[2:])


def draw_seconds(
    shapes: Sequence[tuple[int, ...]], structure: str, device: torch.device, rounds: int, timed: Callable[..., float]
) -> dict[float, float]:
    """Seconds to draw the masks of these layers together at each β: the median of the rounds after a first."""
    kind = as_structure(structure)
    hamiltonian = gp.Linear("square") if structure == "weight" else gp.Quadratic(0.01)
    law = Law([Site(shape, kind, hamiltonian, SPARSITY[structure]) for shape in shapes])
    generator = torch.Generator(device).manual_seed(0)
    weights = [
        torch.randn(shape, device=device, generator=generator).mul_(math.sqrt(2 / math.prod(shape[1:])))
        for shape in shapes
    ]
    found = {}
    for beta in BETAS:
        betas = torch.tensor([beta], dtype=torch.float64, device=device)
        times = [timed(lambda betas=betas: law.draw(weights, betas, [generator])) for _ in range(rounds + 1)]
        found[beta] = statistics.median(times[1:])
    return found


def model_seconds(shapes: Shapes, layers: str, *how: Any) -> dict[float, float]:
    """Seconds to draw all masks of a model at each β, its layers together or each shape by itself."""
    if layers == "together":
        return draw_seconds(list(shapes.elements()), *how)
    total = dict.fromkeys(BETAS, 0.0)
    for shape, count in shapes.items():
        for beta, seconds in draw_seconds([shape], *how).items():
            total[beta] += seconds * count
    return total


def over_the_schedule(seconds: dict[float, float]) -> float:
    """The mean over the 200 epochs of the paper's schedule, between the measured β linear in log β."""
    schedule = gp.LogSchedule(0.7, 1e4, 128)
    places = [math.log(schedule(epoch)) for epoch in range(200)]
    return float(np.interp(places, np.log(list(seconds)), list(seconds.values())).mean())


def measure(
    name: str, layers: str, device: torch.device, rounds: int, timed: Callable[..., float], speed: float
) -> dict[str, Any]:
    model = MODELS[name]
    shapes, weights = model["shapes"], weights_of(model["shapes"])
    step = model["flop"] * model["units"] / speed
    units = f"{model['unit']}s"
    out: dict[str, Any] = {"weights": weights, "batch": f"{model['units']} {units}", "least_step_s": step}
    out["epoch"] = f"{model['epoch']} {units}"
    out["structures"] = {}
    for structure in SPARSITY:
        total = model_seconds(shapes, layers, structure, device, rounds, timed)
        mean, worst = over_the_schedule(total), max(total.values())
        out["structures"][structure] = {
            "draw_s": {f"{beta:g}": value for beta, value in total.items()},
            "mean_draw_s": mean,
            "weights_per_s": weights / mean,
            "share_of_step": mean / (mean + step),
            "worst_share_of_step": worst / (worst + step),
            "s_per_epoch": mean * model["epoch"] / model["units"],
        }
    return out


def rows(result: dict[str, Any]) -> list[str]:
    """The rows of the table in docs/scaling.md."""
    found = []
    for name, model in result["models"].items():
        for structure, row in model["structures"].items():
            cells = (
                name,
                structure,
                f"{row['mean_draw_s']:.3g} s",
                f"{row['weights_per_s'] / 1e6:.3g}",
                f"{model['least_step_s']:.3g} s",
                f"{100 * row['share_of_step']:.2g} %",
                f"{100 * row['worst_share_of_step']:.2g} %",
                f"{row['s_per_epoch'] / 3600:.2g} h",
            )
            found.append(f"| {' | '.join(cells)} |")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", choices=("together", "each"), help="together on a GPU, else each, unless given")
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu")
    parser.add_argument("--out")
    parser.add_argument("--show", help="a file that --out has written")
    options = parser.parse_args()
    if options.show:
        with open(options.show) as file:
            print("\n".join(rows(json.load(file))))
        return
    device = torch.device(options.device)
    torch.set_num_threads(1)
    layers = options.layers or ("together" if device.type == "cuda" else "each")
    timed = make_clock(device, options.clock)
    speed = matmul_speed(device, timed)
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else f"one thread of {processor()}",
        "torch": torch.__version__,
        "layers": layers,
        "matmul_flop_per_s": speed,
        "models": {},
    }
    for name in MODELS:
        result["models"][name] = measure(name, layers, device, options.rounds, timed, speed)
        if options.out:
            with open(options.out, "w") as file:
                json.dump(result, file, indent=1, ensure_ascii=False)
    print(json.dumps(result, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
