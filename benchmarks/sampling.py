"""The cost of drawing masks on a CPU, relative to a dense training step measured in the same run.

Claim: drawing all masks of ResNet-56 (every convolution but the first, projections included: 56 layers of 850 432
weights) with `GibbsPruner.step()` costs at most 0.03 / 0.06 / 0.06 / 0.25 of one dense training step at batch 128
(float32, forward, backward, SGD with momentum) for weight / kernel / filter-exact / filter-chromatic on one thread of
the same CPU, at every β of the paper's schedule (0.7 to 10⁴ over 128 epochs, then held to 200).

Last, what whole training steps cost with the pruner in them: by the default law, which draws nothing, and drawn.

    python benchmarks/sampling.py [--threads N] [--clock wall|cpu] [--rounds 9] [--out FILE]

Each round times one dense step and one draw of every kind at every β, one after the other, so that what slows the
machine down slows both; a ratio is the median over the rounds. `--clock cpu` counts the process's own time on one
thread, which a busy machine does not distort. Weights are He-normal, as at the start of a training.
"""

from __future__ import annotations

import argparse
import math
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

import gibbsprune as gp
from gibbsprune.models import resnet

BETAS = (0.7, 3.0, 7.0, 20.0, 100.0, 1e3, 1e4)
CASES = {
    "weight": (0.03, {"structure": "weight", "hamiltonian": "square", "sparsity": 0.9}),
    "kernel": (0.06, {"structure": "kernel", "hamiltonian": "quadratic", "sparsity": 0.9}),
    "filter, exact": (0.06, {"structure": "filter", "hamiltonian": "quadratic", "sparsity": 0.75}),
    "filter, chromatic": (
        0.25,
        {"structure": "filter", "hamiltonian": "quadratic", "sparsity": 0.75, "sampler": "chromatic"},
    ),
}


WHOLE = {"dense": None, "default law": {}, "drawn": {"law": "annealed"}}


def training_step(arguments: dict | None = None) -> Callable[[], None]:
    """A function that does one training step, of the dense network unless a pruner's arguments are given."""
    generator = torch.Generator().manual_seed(0)
    model = resnet(56, generator=generator)
    pruned = None if arguments is None else gp.GibbsPruner(model, 0.9, exclude="dense", epochs=10, **arguments)
    if pruned is not None:
        pruned.set_epoch(5)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    x = torch.randn(128, 3, 32, 32, generator=generator)
    y = torch.randint(0, 10, (128,), generator=generator)

    def step() -> None:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if pruned is not None:
            pruned.step()

    return step


def pruner(arguments: dict) -> gp.GibbsPruner:
    model = resnet(56, generator=torch.Generator().manual_seed(0))
    return gp.GibbsPruner(model, exclude="dense", **arguments)


def over_the_schedule(values: dict[float, float]) -> float:
    """The mean over the 200 epochs of the paper's schedule, between the measured β linear in log β."""
    schedule, total = gp.LogSchedule(0.7, 1e4, 128), 0.0
    for epoch in range(200):
        beta = schedule(epoch)
        low = max(b for b in BETAS if b <= beta)
        high = min(b for b in BETAS if b >= beta)
        part = math.log(beta / low) / math.log(high / low) if high > low else 0.0
        total += values[low] + part * (values[high] - values[low])
    return total / 200


def clocked(clock: str) -> Callable[[Callable[[], None]], float]:
    """What measures the milliseconds of a function."""
    now = time.perf_counter if clock == "wall" else time.process_time

    def timed(function: Callable[[], None]) -> float:
        start = now()
        function()
        return 1e3 * (now() - start)

    return timed


def whole_steps(rounds: int, clock: str) -> str:
    """How many times as long as a dense step a step with a pruner takes, as a line."""
    timed, steps = clocked(clock), {name: training_step(arguments) for name, arguments in WHOLE.items()}
    times = [{name: timed(step) for name, step in steps.items()} for _ in range(rounds + 1)][1:]
    found = {name: statistics.median(turn[name] / turn["dense"] for turn in times) for name in WHOLE if name != "dense"}
    return "Training step / dense step: " + ", ".join(f"{name} {ratio:.3f}" for name, ratio in found.items())


def measure(rounds: int, clock: str) -> tuple[float, dict[str, dict[float, tuple[float, float]]]]:
    """Milliseconds of the dense step, and of each case and β milliseconds and the ratio to the dense step."""
    timed = clocked(clock)
    dense, pruners = training_step(), {name: pruner(arguments) for name, (_, arguments) in CASES.items()}

    steps: list[float] = []
    times: dict[str, dict[float, list[float]]] = {name: {beta: [] for beta in BETAS} for name in CASES}
    for turn in range(rounds + 1):  # the first is not counted
        step = timed(dense)
        drawn = {}
        for name, one in pruners.items():
            for beta in BETAS:
                one.beta = beta
                drawn[name, beta] = timed(one.step)
        if turn:
            steps.append(step)
            for (name, beta), value in drawn.items():
                times[name][beta].append(value)
    result = {
        name: {
            beta: (statistics.median(t), statistics.median(a / b for a, b in zip(t, steps))) for beta, t in row.items()
        }
        for name, row in times.items()
    }
    return statistics.median(steps), result


def processor() -> str:
    """The processor's name, as far as the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else platform.processor()


def table(rounds: int, clock: str) -> str:
    step, result = measure(rounds, clock)
    threads = torch.get_num_threads()
    counted = "wall-clock time" if clock == "wall" else "the process's own time"
    lines = [
        f"{processor()}; torch {torch.__version__}, Python {platform.python_version()}; {threads} thread"
        f"{'s' if threads > 1 else ''}, {counted}, medians of {rounds} rounds. Dense step: {step:.0f} ms.",
        "",
        "| draw / dense step | " + " | ".join(f"β = {beta:g}" for beta in BETAS) + " | mean | worst | aim |",
        "|---" * (len(BETAS) + 4) + "|",
    ]
    for name, row in result.items():
        ratios = {beta: ratio for beta, (_, ratio) in row.items()}
        cells = [f"{ratio:.4f}" for ratio in ratios.values()]
        lines.append(
            f"| {name} | {' | '.join(cells)} | **{over_the_schedule(ratios):.4f}** | {max(ratios.values()):.4f} "
            f"| {CASES[name][0]:.2f} |"
        )
    lines += [
        "",
        "| milliseconds | " + " | ".join(f"β = {beta:g}" for beta in BETAS) + " |",
        "|---" * (len(BETAS) + 1) + "|",
    ]
    for name, row in result.items():
        lines.append(f"| {name} | " + " | ".join(f"{value:.1f}" for value, _ in row.values()) + " |")
    return "\n".join([*lines, "", whole_steps(rounds, clock)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=None, help="of torch; by default as many as it takes")
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="cpu: the process's own time, one thread"
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, help="a file to append the table to")
    options = parser.parse_args()
    if options.clock == "cpu":
        options.threads = 1  # threads that wait would be counted too
    if options.threads:
        torch.set_num_threads(options.threads)
    text = table(options.rounds, options.clock)
    print(text)
    if options.out:
        with options.out.open("a") as file:
            file.write(text + "\n\n")


if __name__ == "__main__":
    main()
