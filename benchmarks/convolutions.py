"""Convolutions of K runs side by side: cuDNN's grouped ones against the Triton kernels that fleets use instead.

Every shape of the CIFAR ResNets that has a Triton kernel, batch 128, bfloat16, channels last, cuDNN's kernels chosen by
timing them. Microseconds of the forward pass and of forward and backward together, and their ratios, from one run.

    python benchmarks/convolutions.py [--runs 16] [--out tables/convolutions-h200.json]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

#: Channels in and out, size of the image, side of the kernel, stride.
SHAPES = [
    (3, 16, 32, 3, 1), (16, 16, 32, 3, 1), (16, 32, 32, 3, 2), (16, 32, 32, 1, 2), (32, 32, 16, 3, 1),
    (32, 64, 16, 3, 2), (32, 64, 16, 1, 2),
]  # fmt: skip


def ours(x: Tensor, weight: Tensor, runs: int, stride: int) -> Tensor:
    """What a fleet calls."""
    from gibbsprune.training import conv_rows_triton, conv_triton

    if weight.shape[0] == x.shape[1] and stride == 1:
        return conv_rows_triton.convolve(x, weight, runs)
    return conv_triton.convolve(x, weight, runs, stride)


def theirs(x: Tensor, weight: Tensor, runs: int, stride: int) -> Tensor:
    return F.conv2d(x, weight, None, stride, weight.shape[2] // 2, groups=runs)


def microseconds(function: Callable[[], object]) -> float:
    """Of a captured graph, as in a fleet: the host is not waited for."""
    from triton.testing import do_bench_cudagraph

    return 1e3 * do_bench_cudagraph(function, rep=20, return_mode="median")


def measure(shape: tuple[int, ...], runs: int, batch: int) -> dict[str, object]:
    inputs, outputs, size, side, stride = shape
    x = torch.randn(batch, runs * inputs, size, size, device="cuda", dtype=torch.bfloat16)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_(inputs >= 16)
    weight = 0.1 * torch.randn(runs * outputs, inputs, side, side, device="cuda", dtype=torch.bfloat16)
    weight = weight.contiguous(memory_format=torch.channels_last).requires_grad_()
    wanted = [weight, x] if x.requires_grad else [weight]
    row: dict[str, object] = {"shape": shape}
    torch.compiler.reset()  # else the limit of recompilations leaves the later shapes uncompiled
    for name, way in (("cudnn", theirs), ("triton", ours)):
        # Compiled as in a fleet, where the tables of weights are made by a kernel or two instead of many.
        forward = torch.compile(way, dynamic=False) if way is ours else way
        with torch.no_grad():  # no graph of another stream may live on into the capture
            slope = torch.randn_like(forward(x, weight, runs, stride))

        def both(forward: Callable[..., Tensor] = forward, slope: Tensor = slope) -> object:
            return torch.autograd.grad(forward(x, weight, runs, stride), wanted, slope)

        with torch.no_grad():
            row[f"{name}_forward_us"] = microseconds(lambda forward=forward: forward(x, weight, runs, stride))
        row[f"{name}_both_us"] = microseconds(both)
    for part in ("forward", "both"):
        row[f"{part}_ratio"] = row[f"cudnn_{part}_us"] / row[f"triton_{part}_us"]  # type: ignore[operator]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    rows = []
    for shape in SHAPES:
        rows.append(row := measure(shape, options.runs, options.batch))
        for part, words in (("forward", "forward"), ("both", "forward and backward")):
            took = f"{row[f'cudnn_{part}_us']:.0f} / {row[f'triton_{part}_us']:.0f} µs"
            print(f"{shape}, {words}: {took} = {row[f'{part}_ratio']:.2f}", flush=True)
    if options.out is not None:
        device = torch.cuda.get_device_name()
        record = {"device": device, "torch": torch.__version__, "runs": options.runs, "batch": options.batch}
        options.out.write_text(json.dumps({**record, "shapes": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
