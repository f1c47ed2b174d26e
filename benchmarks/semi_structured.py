"""A 2:4 Linear in torch.sparse's packed form against the dense one, forward, in bfloat16 on an NVIDIA GPU.

    python benchmarks/semi_structured.py [--sizes 1024,2048,4096,8192,16384] [--batches 1,16,64,256,1024,4096]
                                         [--seconds 0.1] [--out tables/semi-structured-NAME.json]

Square layers without bias, pruned to 2:4 by `gp.converged_mask`, packed by `gp.to_semi_structured`. Dense and packed
take turns in one run; a time is the median of the turns, each of as many calls as fill the seconds given, captured as
one CUDA graph, so that what the host takes to launch them does not count. The ratio is dense over packed: above 1 it
pays. `eager` is the same ratio of calls from Python, as a plain loop makes them. About a minute on an H200.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import gibbsprune as gp

TURNS, CALLS = 5, 20


def layers(size: int) -> tuple[nn.Module, nn.Module]:
    """The dense layer of pruned weights, and the packed one."""
    dense = nn.Sequential(nn.Linear(size, size, bias=False)).cuda().bfloat16().requires_grad_(False)
    with torch.no_grad():
        dense[0].weight.mul_(gp.converged_mask(dense[0].weight, None, "2:4"))
    return dense, gp.to_semi_structured(dense)


def seconds(call: Callable[[], object], enough: float) -> float:
    """Seconds of one call, from an idle device to an idle device."""
    call()
    torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    torch.cuda.synchronize()
    times = max(1, min(2000, int(enough / (time.perf_counter() - began))))
    began = time.perf_counter()
    for _ in range(times):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / times


def captured(layer: nn.Module, x: Tensor) -> Callable[[], object]:
    """A CUDA graph of several calls."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        layer(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            layer(x)
    return graph.replay


def measured(size: int, batches: list[int], enough: float) -> list[dict[str, float]]:
    dense, packed = layers(size)
    rows = []
    for batch in batches:
        x = torch.randn(batch, size, device="cuda", dtype=torch.bfloat16)
        with torch.no_grad():
            difference = float((dense(x) - packed(x)).abs().max() / dense(x).abs().max())
            ways: dict[str, tuple[Callable[[], object], int]] = {
                "eager dense": (lambda x=x: dense(x), 1),  # type: ignore[misc]
                "eager packed": (lambda x=x: packed(x), 1),  # type: ignore[misc]
            }
            try:
                ways |= {"dense": (captured(dense, x), CALLS), "packed": (captured(packed, x), CALLS)}
            except RuntimeError as error:  # of kernels that cannot be captured: then the launches count
                print(f"not captured: {str(error).partition(chr(10))[0]}", flush=True)
                torch.cuda.synchronize()
                ways |= {"dense": ways["eager dense"], "packed": ways["eager packed"]}
            took: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(TURNS):
                for name, (call, calls) in ways.items():
                    took[name].append(seconds(call, enough / TURNS) / calls)
        micro = {name: 1e6 * statistics.median(values) for name, values in took.items()}
        ratio, eager = micro["dense"] / micro["packed"], micro["eager dense"] / micro["eager packed"]
        rows.append({"size": size, "batch": batch, **micro, "ratio": ratio, "eager": eager, "difference": difference})
        print(
            f"{size:>6} {batch:>6} {micro['dense']:>11.1f} {micro['packed']:>11.1f} {ratio:>8.2f} {eager:>8.2f}",
            flush=True,
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1024,2048,4096,8192,16384")
    parser.add_argument("--batches", default="1,16,64,256,1024,4096")
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--out")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs an NVIDIA GPU")
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, bfloat16; microseconds of one forward pass")
    print(f"{'size':>6} {'batch':>6} {'dense':>11} {'packed':>11} {'ratio':>8} {'eager':>8}")
    batches = [int(batch) for batch in options.batches.split(",")]
    rows = [row for size in options.sizes.split(",") for row in measured(int(size), batches, options.seconds)]
    if options.out:
        with open(options.out, "w") as file:
            json.dump({"device": name, "torch": torch.__version__, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
