"""What the callbacks cost: a training under a callback relative to the same trainer with the bare pruner.

Claim: at most 1.02, in two ways of measuring.

Inside one run: the whole training takes T, all events of the callback C, and of that what a bare pruner would do too
(being made, `set_epoch`, `step`, `finalize`) P. The ratio is T / (T − (C − P)). Noise hits all three alike.

Beside each other: the same training with a callback of ten lines that has the bare pruner. Both run in one process and
take turns, a step of one, a step of the other, so that both meet the same noise; the ratio is the median over steps,
each of the two being first in half of the rounds. It leaves out what is done once per epoch, which the first has.

    python benchmarks/callbacks.py [--rounds 2] [--steps 100] [--threads 1] [--clock wall|cpu] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

import gibbsprune as gp

EPOCHS = 2
SCHEDULE = gp.LogSchedule(1.0, 1e8, 1)
Collate = Callable[[list[Any]], Any]


def lightning_run(callback: bool, steps: int, collate: Collate = default_collate) -> tuple[Callable[[], None], Any]:
    """A fit of a network of 600 000 weights in Lightning, and its callback."""
    from lightning.pytorch import Callback, LightningModule, Trainer

    from gibbsprune.integrations.lightning import GibbsPruning

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(256, 768), nn.ReLU(), nn.Linear(768, 512), nn.ReLU(), nn.Linear(512, 10))

        def training_step(self, batch: Any) -> torch.Tensor:
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.01, momentum=0.9)

    class Bare(Callback):
        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            self.pruner = gp.GibbsPruner(pl_module, 0.9, schedule=SCHEDULE)

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            self.pruner.set_epoch(trainer.current_epoch)

        def on_train_batch_end(self, *_: Any) -> None:
            self.pruner.step()

        def on_fit_end(self, *_: Any) -> None:
            self.pruner.finalize("converged")

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64 * steps, 256), torch.randint(10, (64 * steps,)))
    chosen = GibbsPruning(0.9, schedule=SCHEDULE, draw="converged") if callback else Bare()
    trainer = Trainer(
        max_epochs=EPOCHS, accelerator="cpu", callbacks=[chosen], logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    module = Module()
    return lambda: trainer.fit(module, DataLoader(data, 64, collate_fn=collate)), chosen


def transformers_run(callback: bool, steps: int, collate: Collate = default_collate) -> tuple[Callable[[], None], Any]:
    """A training of a BERT of 400 000 weights with the Hugging Face Trainer, and its callback."""
    import transformers

    from gibbsprune.integrations.transformers import GibbsPruningCallback

    class Bare(transformers.TrainerCallback):
        def on_init_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            self.pruner = gp.GibbsPruner(model, 0.9, schedule=SCHEDULE, exclude="classifier")

        def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.pruner.set_epoch(round(state.epoch))

        def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.pruner.step()

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.pruner.finalize("converged")

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=100, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512
    )
    model = transformers.BertForSequenceClassification(config)
    words = torch.randint(0, 100, (16 * steps, 16))
    data = [{"input_ids": row, "labels": row.sum() % 2} for row in words]
    args = transformers.TrainingArguments(
        tempfile.mkdtemp(), num_train_epochs=EPOCHS, per_device_train_batch_size=16, use_cpu=True, report_to="none",
        disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    chosen = Bare()
    if callback:
        chosen = GibbsPruningCallback(0.9, schedule=SCHEDULE, exclude="classifier", draw="converged")
    trainer = transformers.Trainer(model, args, train_dataset=data, data_collator=collate, callbacks=[chosen])
    return trainer.train, chosen


TRAINERS = {"lightning": lightning_run, "transformers": transformers_run}


class Stopwatch:
    """Adds up the time spent in functions; what one of them calls of the others is counted once."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now, self.total, self.inside = now, 0.0, False

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self.inside:
                return function(*args, **kwargs)
            self.inside, start = True, self.now()
            try:
                return function(*args, **kwargs)
            finally:
                self.inside = False
                self.total += self.now() - start

        return timed


def inside(make: Callable[..., Any], steps: int, now: Callable[[], float]) -> float:
    """T / (T − (C − P)) of one run."""
    run, callback = make(True, steps)
    events, bare = Stopwatch(now), Stopwatch(now)
    for name in dir(callback):
        if name.startswith("on_") or name in ("setup", "teardown", "state", "state_dict"):
            setattr(callback, name, events.around(getattr(callback, name)))
    own = {name: getattr(gp.GibbsPruner, name) for name in ("__init__", "set_epoch", "step", "finalize")}
    for name, function in own.items():
        timed = bare.around(function)
        setattr(gp.GibbsPruner, name, lambda *args, timed=timed, **kwargs: timed(*args, **kwargs))
    try:
        start = now()
        run()
        total = now() - start
    finally:
        for name, function in own.items():
            setattr(gp.GibbsPruner, name, function)
    return total / (total - (events.total - bare.total))


class Turns:
    """Two threads that run in turns, and the time that each took in each of its turns."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now, self.turn, self.done, self.changed = now, 0, [False, False], threading.Condition()
        self.took: tuple[list[float], list[float]] = ([], [])
        self.began: list[float | None] = [None, None]

    def hand_over(self, own: int) -> None:
        """Ends the turn of thread ``own``, lets the other run and begins the next turn."""
        if (began := self.began[own]) is not None:
            self.took[own].append(self.now() - began)
        with self.changed:
            self.turn = 1 - own
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.turn == own or self.done[1 - own])
        self.began[own] = self.now()

    def run(self, own: int, callback: bool, make: Callable[..., Any], steps: int) -> None:
        def collate(items: list[Any]) -> Any:
            self.hand_over(own)
            return default_collate(items)

        try:
            make(callback, steps, collate)[0]()
        finally:
            with self.changed:
                self.done[own] = True
                self.changed.notify_all()


def beside(make: Callable[..., Any], steps: int, now: Callable[[], float], first: bool) -> tuple[float, float]:
    """The median ratio of a step under the callback, which is ``first`` or not, to a bare one, and its seconds."""
    turns = Turns(now)
    threads = [threading.Thread(target=turns.run, args=(own, own != first, make, steps)) for own in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bare, ours = (turns.took[first][5:], turns.took[not first][5:])
    return statistics.median(b / a for a, b in zip(bare, ours)), statistics.median(bare)


def measure(make: Callable[..., Any], rounds: int, steps: int, clock: str) -> dict[str, Any]:
    wall = clock == "wall"
    make(True, 2)[0]()  # whatever is done only once per process
    ratios = [inside(make, steps, time.perf_counter if wall else time.process_time) for _ in range(rounds)]
    thread = time.perf_counter if wall else time.thread_time
    pairs = [beside(make, steps, thread, bool(number % 2)) for number in range(2 * rounds)]
    return {
        "inside": statistics.median(ratios),
        "inside_rounds": [round(ratio, 4) for ratio in ratios],
        "beside": statistics.geometric_mean(ratio for ratio, _ in pairs),
        "beside_rounds": [round(ratio, 4) for ratio, _ in pairs],
        "ms_per_step": 1e3 * statistics.median(seconds for _, seconds in pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100, help="optimiser steps per epoch, of two epochs")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: the process's own time")
    parser.add_argument("--trainers", default=",".join(TRAINERS))
    parser.add_argument("--out")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "lightning.fabric", "transformers", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    setting = {"rounds": options.rounds, "steps": EPOCHS * options.steps, "clock": options.clock} | versions
    result: dict[str, Any] = {"aim": 1.02, "threads": options.threads, **setting, "trainers": {}}
    for name in options.trainers.split(","):
        found = measure(TRAINERS[name], options.rounds, options.steps, options.clock)
        result["trainers"][name] = found
        print(
            f"{name:<13} inside one run {found['inside']:.4f}, beside each other {found['beside']:.4f}; "
            f"{found['ms_per_step']:.1f} ms per step",
            flush=True,
        )
    if options.out:
        with open(options.out, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
