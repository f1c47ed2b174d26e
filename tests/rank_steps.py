"""What one of two ranks does in tests/test_ranks.py: ``python rank_steps.py FOLDER``. At last both fail alike."""

import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch

from gibbsprune.data import load
from gibbsprune.errors import UserError
from gibbsprune.training import pictures, run
from gibbsprune.training.fleet import Fleet
from gibbsprune.training.ranks import ALONE, join
from gibbsprune.training.recipes import RECIPES
from gibbsprune.training.spec import RunSpec

CASES = {  # model, seeds, method
    "own": ("own_networks:normless", [0], "gibbs"),
    "resnet": ("resnet8", [0], "gibbs"),
    "fleet": ("resnet8", [0, 1], "gibbs"),
    "dropout": ("own_networks:dropping", [0], "gibbs"),
    "rewinding": ("resnet8", [0], "lottery"),
}
EPOCHS = 3


def make(case, ranks):
    digits = load("digits")
    few = replace(digits, x_train=digits.x_train[:210], y_train=digits.y_train[:210],
                  x_test=digits.x_train[-600:], y_test=digits.y_train[-600:])  # fmt: skip
    model, seeds, method = CASES[case]
    recipe = RECIPES["digits"].replace(batch=51)
    specs = [RunSpec(model=model, method=method, recipe=recipe, epochs=EPOCHS, seed=seed) for seed in seeds]
    return Fleet(specs, few, ranks=ranks)


def train(case, ranks=ALONE):
    """Everything that happens: the masks of every step, what each epoch says, and the state it leaves."""
    fleet, seen = make(case, ranks), {"masks": [], "records": [], "images": []}

    def step(done, total):
        engine = fleet.engines[0]
        seen["masks"].append({f"{k} {n}": m for k in range(len(fleet.specs)) for n, m in fleet.masks(k).items()})
        seen["images"].append(engine.batches.order[0][(done - 1) * engine.batches.batch + engine.batches.within])

    for _ in range(fleet.epochs):
        seen["records"].append(fleet.train_epoch(step) + fleet.evaluate())
    seen["results"] = fleet.finish()
    seen["state"] = fleet.state_dict()
    seen["final"] = fleet.final
    return seen


def finished(ranks, folder):
    """A whole run into a folder, and what resuming it again says."""
    spec = RunSpec(model="own_networks:normless", recipe=RECIPES["digits"], epochs=1)
    with patch.object(pictures, "available", lambda: False):
        started = run.start([spec], out=folder / "whole", ranks=ranks)
        return [started.results, run.resume(folder / "whole", ranks=ranks, trust=True).results]


def refusals(ranks):
    """The sentences for ranks that have gone astray."""
    out = {}
    for name in ("weights", "masks", "streams"):
        fleet = make("own", ranks)
        engine = fleet.engines[0]
        if name == "weights":
            engine.optimizer.values[0] += 1e-6 * ranks.rank
        elif name == "masks":
            engine.masks.held[0][0, ranks.rank] ^= True
        else:
            engine.masks.streams[0].manual_seed(ranks.rank)
        try:
            fleet.train_epoch()
        except UserError as error:
            out[name] = str(error)
    return out


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    with join("cpu") as ranks:
        found = {case: train(case, ranks) for case in CASES}
        found["refusals"] = refusals(ranks)
        found["shared"] = ranks.shared({"of": [ranks.rank, torch.ones(3)]})
        found["any"] = [ranks.any(ranks.rank == 1), ranks.any(False)]
        found["finished"] = finished(ranks, folder)
        torch.save(found, folder / f"rank-{ranks.rank}.pt")
        ranks.rows(3)
