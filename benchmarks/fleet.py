"""Milliseconds per model and training step when K runs are trained as one fleet.

Aim: ResNet-20 at most 0.65 ms and ResNet-56 at most 1.45 ms at K = 16 on one NVIDIA H200, batch 128, bfloat16, with
Gibbs masks (weights, 90 %), augmentation and metrics included.

    python benchmarks/fleet.py [--data cifar10] [--models resnet20,resnet56] [--runs 1,4,8,16,32] [--autotune]
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from typing import Any

import torch

from gibbsprune import data
from gibbsprune.data.arrays import Arrays
from gibbsprune.training import engine
from gibbsprune.training.fleet import Fleet
from gibbsprune.training.recipes import RECIPES
from gibbsprune.training.spec import RunSpec

engine.WORTH_COMPILING = 0  # however few images there are


def synthetic(images: int = 50_000, size: int = 32) -> Arrays:
    """Random images of CIFAR-10's shape, for machines without it: they cost the same."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (images + 1000, size, size, 3), dtype=torch.uint8, generator=generator)
    y = torch.randint(0, 10, (images + 1000,), generator=generator)
    return Arrays("synthetic", x[:images], y[:images], x[images:], y[images:], 10)


def measure(
    model: str, runs: int, arrays: Arrays, device: str, steps: int, autotune: bool = False, **options: Any
) -> dict[str, Any]:
    """Median over five rounds of ``steps`` steps, in milliseconds per model step."""
    recipe = RECIPES["paper"].replace(**options.pop("recipe", {}))
    specs = [RunSpec(data="cifar10", model=model, recipe=recipe, seed=k, **options) for k in range(runs)]
    began = time.perf_counter()
    torch.compiler.reset()
    fleet = Fleet(specs, arrays, device, autotune=autotune)
    fleet.trial_steps(1)
    ready = time.perf_counter() - began
    rounds = sorted(fleet.trial_steps(steps) * 1e3 / runs for _ in range(5))
    captured = all(one.step.graph is not None for one in fleet.engines)
    return {"model": model, "runs": runs, "ms": rounds[2], "low": rounds[0], "high": rounds[4], "ready_s": ready,
            "captured": captured, **options}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="synthetic")
    parser.add_argument("--models", default="resnet20,resnet56")
    parser.add_argument("--runs", default="1,4,8,16,32")
    parser.add_argument("--methods", default="gibbs")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--autotune", action="store_true", help="let cuDNN time its kernels")
    parser.add_argument("--out")
    args = parser.parse_args()
    arrays = synthetic() if args.data == "synthetic" else data.load(args.data)
    name = torch.cuda.get_device_name() if args.device == "cuda" else platform.processor()
    print(f"{name}, torch {torch.__version__}, {arrays.name}, batch 128")
    rows = []
    for model in args.models.split(","):
        for runs in map(int, args.runs.split(",")):
            for method in args.methods.split(","):
                row = measure(model, runs, arrays, args.device, args.steps, args.autotune, method=method)
                rows.append(row)
                spread = f"{row['low']:.3f} to {row['high']:.3f}"
                print(f"{model} K={runs:<3} {method:<6} {row['ms']:.3f} ms per model step ({spread})", flush=True)
                if args.out:
                    about = {"device": name, "torch": torch.__version__, "data": arrays.name, "autotune": args.autotune}
                    with open(args.out, "w") as file:
                        json.dump({**about, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
