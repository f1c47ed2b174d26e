"""The cost of masks: a training step with Gibbs pruning relative to a dense one, measured in the same run.

Aim: on one NVIDIA H200, ResNet-56, batch 128, bfloat16, compiled and captured, at most 1.05 / 1.08 / 1.08 / 1.15 / 1.05
/ 1.05 of the dense step for weight / kernel / filter-exact / filter-chromatic / 2:4 / the law rising. Beside it the
same network masked, with fixed masks, by torch.nn.utils.prune and by torch.ao.pruning.

    python benchmarks/step.py [--model resnet56] [--device cuda] [--steps 50] [--autotune] [--out FILE]

β runs through the paper's schedule: the table gives the ratio at its start, at epochs 30, 64 and 128, and the mean. A
CPU runs float32, uncompiled.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.utils import prune

from fleet import synthetic  # which also has every step compiled
from gibbsprune.data.arrays import Arrays
from gibbsprune.training.engine import Engine
from gibbsprune.training.recipes import RECIPES
from gibbsprune.training.spec import RunSpec
from sampling import processor

EPOCHS = (0, 30, 64, 128)
CASES: dict[str, dict[str, Any]] = {
    "dense": {"method": "dense"},
    "weight": {},
    "kernel": {"structure": "kernel"},
    "filter-exact": {"structure": "filter", "sparsity": 0.75},
    "filter-chromatic": {"structure": "filter", "sparsity": 0.75, "sampler": "chromatic"},
    "2:4": {"structure": "2:4"},
    "law rising": {"recipe": RECIPES["paper"].replace(law="rising")},
    "torch.nn.utils.prune": {"method": "dense"},
    "torch.ao.pruning": {"method": "dense"},
}
PLAIN = " (not compiled)"  # captured all the same: what the others' hooks and assertions keep from being compiled well
CASES |= {name + PLAIN: CASES[name] for name in ("dense", "torch.nn.utils.prune", "torch.ao.pruning")}


def mask_with_prune(model: nn.Module) -> None:
    for module in list(model.modules())[2:]:
        if isinstance(module, nn.Conv2d):
            prune.random_unstructured(module, "weight", 0.9)


def mask_with_ao(model: nn.Module) -> None:
    from torch.ao.pruning import WeightNormSparsifier

    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)][1:]
    sparsifier = WeightNormSparsifier(sparsity_level=0.9)
    sparsifier.prepare(model, [{"tensor_fqn": f"{name}.weight"} for name in layers])


def engine_for(case: str, model: str, arrays: Arrays, device: torch.device, autotune: bool) -> Engine:
    torch.compiler.reset()
    spec = RunSpec(**{"data": "cifar10", "model": model, "recipe": RECIPES["paper"], **CASES[case]})
    engine = Engine([spec], arrays, device, autotune=autotune)
    if case.startswith("torch.nn.utils.prune"):
        mask_with_prune(engine.network.model)
    elif case.startswith("torch.ao.pruning"):
        mask_with_ao(engine.network.model)
    if case.endswith(PLAIN):
        engine.losses = engine._losses
    return engine


def seconds(engine: Engine, epoch: int, steps: int) -> float:
    """Seconds per step at the schedule's β of ``epoch``."""
    engine.set_schedules(epoch)
    synchronise = torch.cuda.synchronize if engine.device.type == "cuda" else (lambda: None)
    for _ in range(6 if engine.device.type == "cuda" else 1):
        engine.step()
    synchronise()
    began = time.perf_counter()
    for _ in range(steps):
        engine.step()
    synchronise()
    return (time.perf_counter() - began) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet56")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=50 if torch.cuda.is_available() else 1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", default=",".join(CASES), help="dense first; those not compiled are for a GPU")
    parser.add_argument("--autotune", action="store_true", help="let cuDNN time its kernels")
    parser.add_argument("--out")
    args = parser.parse_args()
    device = torch.device(args.device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else processor()
    print(f"{name}, torch {torch.__version__}, {args.model}, batch 128, autotune {args.autotune}")
    arrays = synthetic(2000)
    about = {"device": name, "torch": torch.__version__, "model": args.model, "autotune": args.autotune}
    rows: list[dict[str, Any]] = []
    for case, times, captured in measured(args, arrays, device):
        ratios = [t / d for t, d in zip(times, rows[0]["times"])] if rows else [1.0] * len(times)
        rows.append({"case": case, "times": times, "ratios": ratios, "captured": captured})
        shown = "  ".join(f"{r:.3f}" for r in ratios)
        print(
            f"{case:<36} {statistics.fmean(times) * 1e3:9.3f} ms   ratio {statistics.fmean(ratios):.3f}   ({shown})"
            + ("" if captured else "   not captured"),
            flush=True,
        )
        if args.out:
            told = [
                {"case": row["case"], "ms": [t * 1e3 for t in row["times"]], "ratios": row["ratios"],
                 "ratio": statistics.fmean(row["ratios"]), "captured": row["captured"]}
                for row in rows
            ]  # fmt: skip
            with open(args.out, "w") as file:
                json.dump({**about, "rows": told}, file, indent=1)


def measured(args: argparse.Namespace, arrays: Arrays, device: torch.device) -> Iterator[tuple[str, list[float], bool]]:
    """Each case's seconds per step at every epoch of EPOCHS, and whether its step was captured.

    On a GPU case after case. A CPU's speed drifts: there the cases take turns, and each round's times are divided by
    its dense one's before the median is taken.
    """
    cases = [case for case in args.cases.split(",") if device.type == "cuda" or not case.endswith(PLAIN)]
    if device.type == "cuda":
        for case in cases:
            try:
                engine = engine_for(case, args.model, arrays, device, args.autotune)
                engine.begin_epoch(0)
                times = [statistics.median(seconds(engine, e, args.steps) for _ in range(args.rounds)) for e in EPOCHS]
            except Exception as error:
                print(f"{case:<36} not measured: {error}", flush=True)
                continue
            yield case, times, engine.step.graph is not None
            del engine
        return
    engines = [engine_for(case, args.model, arrays, device, args.autotune) for case in cases]
    for engine in engines:
        engine.begin_epoch(0)
    taken = torch.zeros(args.rounds, len(cases), len(EPOCHS), dtype=torch.float64)
    for turn in range(args.rounds):
        for at, epoch in enumerate(EPOCHS):
            for which, engine in enumerate(engines):
                taken[turn, which, at] = seconds(engine, epoch, args.steps)
    dense = taken[:, :1].median(0).values
    times = (taken / taken[:, :1]).median(0).values * dense
    for case, row in zip(cases, times.tolist()):
        yield case, row, True


if __name__ == "__main__":
    main()
