"""Single layers in C, by the sparse kernel and by the dense one: does the cost model choose the faster?

Aim: what ``gibbsprune.export.c.pack.together`` chooses takes nowhere 1.25 times as long as the other, and on average at
most 1.05 times.

    python benchmarks/kernels.py [--out tables/kernels-cpu.json]

Each layer is compiled twice, once for each kernel, with random masks, for one image and for 16 images side by side.
Both take turns, and the least processor time of one thread counts: whatever else the machine does can only lengthen it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from gibbsprune.export.c import pack, source
from gibbsprune.export.c.library import FLAGS, Library, library
from gibbsprune.export.c.network import Layer
from gibbsprune.export.c.write import network
from sparse import TABLES, machine

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "3 × 3, 16 channels of 32 × 32": (lambda: nn.Conv2d(16, 16, 3, padding=1), (16, 32, 32)),
    "3 × 3, 64 channels of 8 × 8": (lambda: nn.Conv2d(64, 64, 3, padding=1), (64, 8, 8)),
    "3 × 3, 256 channels of 4 × 4": (lambda: nn.Conv2d(256, 256, 3, padding=1), (256, 4, 4)),
    "3 × 3, 512 channels of 2 × 2": (lambda: nn.Conv2d(512, 512, 3, padding=1), (512, 2, 2)),
    "1 × 1, 128 channels of 16 × 16": (lambda: nn.Conv2d(128, 128, 1), (128, 16, 16)),
    "dense, 1024 to 1024": (lambda: nn.Linear(1024, 1024), (1024,)),
}


def compiled(net: Any, batch: int, several: bool) -> Library:
    """A network of one layer with this kernel."""
    with mock.patch.object(source, "together", return_value=several):
        found = source.Source(net, "net", batch)
    return Library(found, library(found, (*FLAGS, "-DGP_BYTES=32")), side=batch > 1)


def least(ways: dict[str, Library], x: Tensor) -> dict[str, float]:
    """The least milliseconds of each, in turns."""
    took = dict.fromkeys(ways, float("inf"))
    for _ in range(40):
        for name, way in ways.items():
            for _ in range(5):
                start = time.process_time()
                way(x)
                took[name] = min(took[name], 1e3 * (time.process_time() - start))
    return took


@torch.no_grad()
def measured(name: str, batch: int, sparsity: float) -> dict[str, Any]:
    """One row of the table."""
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    model, x = make().eval(), torch.randn(batch, *shape)
    model.weight.mul_(torch.rand_like(model.weight) >= sparsity)
    net = network(model, (torch.randn(2, *shape),))
    (layer,) = (op for op in net.ops if isinstance(op, Layer))
    took = least({"sparse": compiled(net, batch, False), "dense": compiled(net, batch, True)}, x)
    choice = "dense" if pack.together(layer, batch) else "sparse"
    sparse, dense = pack.costs(layer, batch)
    row = {"layer": name, "batch": batch, "sparsity": sparsity, "ms": took, "chosen": choice}
    return {**row, "predicted": dense / sparse, "measured": took["dense"] / took["sparse"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=TABLES / "kernels-cpu.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in LAYERS:
        for batch in (1, 16):
            for sparsity in (0.3, 0.5, 0.7, 0.9):
                row = measured(name, batch, sparsity)
                row["slower"] = row["ms"][row["chosen"]] / min(row["ms"].values())
                rows.append(row)
                found = f"predicted {row['predicted']:5.2f}, measured {row['measured']:5.2f}, chosen {row['chosen']}"
                print(f"{name}, batch {batch}, {sparsity:.0%}: dense / sparse {found}", flush=True)
    slower = [row["slower"] for row in rows]
    print(f"the chosen / the faster: {max(slower):.3f} at most, {sum(slower) / len(slower):.3f} on average")
    options.out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
