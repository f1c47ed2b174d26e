"""A suite of four small cells: ``python small_suite.py run small …`` is ``gibbsprune suite run small …``."""

from __future__ import annotations

import dataclasses
import sys

import torch

from gibbsprune import data
from gibbsprune.cli import main
from gibbsprune.experiments import suite
from gibbsprune.experiments.paper import Cell
from gibbsprune.training.recipes import RECIPES
from gibbsprune.training.spec import RunSpec

EPOCHS = 6


def small() -> list[Cell]:
    """A dense run, two Gibbs runs, and one that starts from a finished one."""
    recipe = RECIPES["digits"].replace(epochs=EPOCHS, anneal_epochs=EPOCHS - 1)

    def run(method, **options):
        return RunSpec("digits", "resnet8", method, recipe=recipe, **options)

    gibbs = run("gibbs", sparsity=0.75)
    again = run("reinit", sparsity=0.75, settings={"from": gibbs.name()})
    return [Cell(spec, 1) for spec in (gibbs, run("dense"), run("gibbs", structure="kernel", sparsity=0.5), again)]


def few(name: str) -> data.Arrays:
    """A part of the digits."""
    whole = load(name)
    return dataclasses.replace(whole, x_train=whole.x_train[:384], y_train=whole.y_train[:384])


load = data.load

if __name__ == "__main__":
    torch.set_num_threads(1)
    suite.SUITES["small"] = small
    data.load = few
    sys.exit(main(["suite", *sys.argv[1:]]))
