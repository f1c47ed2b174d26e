"""The cost of drawing masks of limited structures on a CPU, relative to independent weights in the same run.

Claim: all masks of a network of 10⁸ weights in 2:4 take at most 1.5 times the time of independent weights, and no more
memory.

    python benchmarks/patterns.py [--weights 1e8] [--rounds 3] [--out tables/patterns-NAME.json]

Six Linear layers of equal shape, drawn by the real code (`gibbsprune.law.Law`) with the default Hamiltonian on one
thread, the structures taking turns; a time is the process's own, the least of the rounds, a ratio the median of the
rounds' ratios. Memory is what the process holds at most beyond the weights, measured in a process of its own for each
structure (Linux).
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

import gibbsprune as gp
from gibbsprune.law import Law
from gibbsprune.site import Site
from gibbsprune.structures import as_structure
from sampling import processor

LAYERS = 6
STRUCTURES = ("weight", "2:4", "1:4", "4:8", "8:16")
BETAS = (3.0, 100.0, 1e4)  # in units of the threshold, as by default


def layers(weights: float) -> list[torch.Tensor]:
    """Layers as wide as they are high, the inputs a multiple of 64."""
    side = round(math.sqrt(weights / LAYERS) / 64) * 64
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(side, side, generator=generator).mul_(math.sqrt(2 / side)) for _ in range(LAYERS)]


def draw(structure: str, tensors: list[torch.Tensor], beta: float) -> None:
    law = Law(
        [Site(tuple(t.shape), as_structure(structure), gp.Linear("square", relative=True), None) for t in tensors]
    )
    law.draw(tensors, torch.tensor([beta], dtype=torch.float64), [torch.Generator().manual_seed(0)])


def peak(structure: str, weights: float) -> float:
    """Gigabytes that one draw adds at most, its masks included, in a process of its own."""
    script = (
        "import torch, patterns; torch.set_num_threads(1)\n"
        f"tensors = patterns.layers({weights!r})\n"
        "before = patterns.memory('VmRSS')\n"
        f"patterns.draw({structure!r}, tensors, 100.0)\n"
        "print(patterns.memory('VmHWM') - before)\n"
    )
    folder = __file__.rpartition("/")[0] or "."
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=folder)
    return int(done.stdout) * 1024 / 1e9


def memory(what: str) -> int:
    """A line of what Linux knows of this process's memory, in kilobytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=float, default=1e8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--structures", default=",".join(STRUCTURES), help="weight first")
    parser.add_argument("--out")
    options = parser.parse_args()
    torch.set_num_threads(1)
    structures = options.structures.split(",")
    tensors = layers(options.weights)
    times: dict[str, dict[float, list[float]]] = {s: {beta: [] for beta in BETAS} for s in structures}
    for turn in range(options.rounds + 1):  # the first is not counted
        for beta in BETAS:
            for structure in structures:
                began = time.process_time()
                draw(structure, tensors, beta)
                if turn:
                    times[structure][beta].append(time.process_time() - began)
    rows = []
    plain = times[structures[0]]
    for structure in structures:
        ratios = [
            statistics.median(a / b for a, b in zip(times[structure][beta], plain[beta])) for beta in BETAS
        ]  # fmt: skip
        seconds = [min(times[structure][beta]) for beta in BETAS]
        rows.append(
            {"structure": structure, "seconds": seconds, "ratios": ratios, "peak_gb": peak(structure, options.weights)}
        )
    total = sum(t.numel() for t in tensors)
    about = {"processor": processor(), "torch": torch.__version__, "python": platform.python_version(),
             "weights": total, "betas": list(BETAS), "rounds": options.rounds}  # fmt: skip
    print(f"{about['processor']}; torch {torch.__version__}; one thread; {total:,} weights, in {LAYERS} layers")
    print("structure  " + "".join(f"{f'β = {beta:g}':>20}" for beta in BETAS) + "    most memory")
    for row in rows:
        cells = "".join(f"{s:>12.2f} s {r:>5.2f} " for s, r in zip(row["seconds"], row["ratios"]))
        print(f"{row['structure']:<11}{cells}   {row['peak_gb']:.2f} GB")
    if options.out:
        with open(options.out, "w") as file:
            json.dump({**about, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
