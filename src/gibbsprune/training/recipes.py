"""Training recipes: everything that makes a run besides the data, the network and the pruning method.

A recipe is a frozen record of plain fields. Every value is checked and brought to its field's type, whether
it comes from code, from a run's JSON file or as a string from the command line.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..checks import (
    bad,
    check_one_of,
    check_whole,
    choice,
    flag,
    lean,
    meant,
    number,
    optional,
    parsed,
    text,
    whole,
    wholes,
)
from ..errors import UserError
from ..schedules import LAWS, annealed


@dataclass(frozen=True)
class Recipe:
    """How to train. Epochs are counted from 0; `stretch` s makes every schedule last s times as long."""

    name: str
    epochs: int
    batch: int
    optimizer: str
    lr: float
    momentum: float = 0.9
    nesterov: bool = True
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decay_on: str = "all"
    lr_schedule: str = "steps"
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1
    warmup_epochs: int = 0
    warmup_lr: float = 0.01
    bn_momentum: float = 0.1
    bn_eps: float = 1e-5
    standardise: str = "channel"
    shift: float = 3
    flip: bool = True
    cutout: int = 0
    anneal: str | None = None
    beta_start: float | None = None
    beta_end: float | None = None
    anneal_epochs: int | None = None
    final: str = "converged"
    law: str | None = "annealed"

    def __post_init__(self) -> None:
        for name, field in FIELDS.items():
            object.__setattr__(self, name, parsed(f"the recipe's {name}", getattr(self, name), field.parse))
        if any(later <= sooner for sooner, later in zip(self.milestones, self.milestones[1:])):
            raise bad("the recipe's milestones", self.milestones, "rising epochs")

    def learning_rate(self, epoch: int, stretch: int = 1) -> float:
        """The learning rate λ of an epoch, counted from 0.

        steps:   λ(n) = lr · gamma^(number of milestones ≤ n), taken at n = ⌊epoch / stretch⌋
        cosine:  lr · ½ (1 + cos(π · epoch / (epochs · stretch))), zero at the end of training

        With either, the first warmup_epochs · stretch epochs have warmup_lr instead.
        """
        if epoch < 0:
            raise bad("epoch", epoch, "numbers from 0")
        plain = epoch // check_whole("stretch", stretch)
        if plain < self.warmup_epochs:
            return self.warmup_lr
        if self.lr_schedule == "steps":
            return self.lr * self.gamma ** sum(milestone <= plain for milestone in self.milestones)
        progress = min(1.0, epoch / self.total_epochs(stretch))
        return self.lr * 0.5 * (1 + math.cos(math.pi * progress))

    def total_epochs(self, stretch: int = 1) -> int:
        """epochs · stretch."""
        return self.epochs * check_whole("stretch", stretch)

    def replace(self, **overrides: Any) -> Recipe:
        """A copy with some fields changed; strings are parsed to the field's type."""
        for name in overrides:
            if name not in FIELDS:
                raise UserError(f"a recipe has no field {name!r}{meant(name, FIELDS)}: allowed are {', '.join(FIELDS)}")
        return dataclasses.replace(self, **overrides)

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in dataclasses.asdict(self).items()
        }

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Recipe:
        """The recipe that `as_dict` wrote; fields left out keep the dataclass's defaults.

        Without `final` it is of a time when every run ended with one more draw.
        """
        needed = [f.name for f in dataclasses.fields(Recipe) if f.default is dataclasses.MISSING]
        missing = [name for name in needed if name not in values]
        if missing:
            raise UserError(f"the recipe lacks {', '.join(missing)}")
        start = Recipe(**{name: values[name] for name in needed})
        return start.replace(**{"final": "sample", **values})

    @property
    def images(self) -> str:
        """What is done to the training images, in words."""
        moved = f"shifted by up to {self.shift:g} pixels" if self.shift else ""
        hidden = f"hidden in a square of {self.cutout} pixels" if self.cutout else ""
        changes = [words for words in (moved, "flipped" if self.flip else "", hidden) if words]
        return f"{' and '.join(changes)} at random" if changes else "as they are, neither shifted nor flipped"

    def show(self) -> str:
        """The recipe as readable text, one field per line with what it means."""
        lines = [f"recipe {self.name}"]
        for name, field in FIELDS.items():
            if name != "name":
                lines.append(f"  {name:<14} {_shown(getattr(self, name)):<14} {field.meaning}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Field:
    """How a field's value is checked, and what it means."""

    parse: Callable[[Any], Any]
    meaning: str


_default = "(default: the Hamiltonian's own)"

FIELDS: dict[str, Field] = {
    "name": Field(text(), "what the recipe is called"),
    "epochs": Field(whole(1), "passes over the training set, before stretching"),
    "batch": Field(whole(1), "images per optimisation step"),
    "optimizer": Field(choice("adam", "adamw", "sgd"), "adam, adamw or sgd"),
    "lr": Field(number(0, above=True), "initial learning rate"),
    "momentum": Field(number(0, 1, below=True), "sgd: momentum"),
    "nesterov": Field(flag(), "sgd: Nesterov's form of momentum"),
    "beta1": Field(number(0, 1, below=True), "adam: decay of the mean gradient"),
    "beta2": Field(number(0, 1, below=True), "adam: decay of the mean squared gradient"),
    "eps": Field(number(0, above=True), "adam: added to the root of the mean squared gradient"),
    "weight_decay": Field(
        number(0), "times the weight, added to its gradient; adamw: times the learning rate, to its step"
    ),
    "decay_on": Field(choice("convolutions", "all"), "decayed: convolution weights alone, or all parameters"),
    "lr_schedule": Field(choice("steps", "cosine"), "steps at the milestones, or cosine to zero"),
    "milestones": Field(wholes(1), "steps: epochs from which the learning rate is multiplied by gamma once more"),
    "gamma": Field(number(0, 1, above=True), "steps: that factor"),
    "warmup_epochs": Field(whole(0), "first epochs, at warmup_lr"),
    "warmup_lr": Field(number(0), "learning rate of those"),
    "bn_momentum": Field(number(0, 1, above=True), "batch norm: weight of the new batch's statistics"),
    "bn_eps": Field(number(0, above=True), "batch norm: added to the variance"),
    "standardise": Field(choice("global", "channel"), "one mean and deviation for all pixels, or per channel"),
    "shift": Field(lean(number(0)), "random shift by up to so many pixels each way; 3: whole ones, 3.2: interpolated"),
    "flip": Field(flag(), "random horizontal flip"),
    "cutout": Field(whole(0), "side of a square, anywhere in each training image, that is hidden; 0: none"),
    "anneal": Field(optional(choice("log", "linear", "constant")), f"how beta rises {_default}"),
    "beta_start": Field(optional(number(0)), f"first beta {_default}"),
    "beta_end": Field(optional(number(0)), f"last beta {_default}"),
    "anneal_epochs": Field(optional(whole(1)), f"epochs over which beta rises, then held {_default}"),
    "final": Field(choice("converged", "sample"), "gibbs: final mask; sample: one more draw, as in the paper"),
    "law": Field(optional(choice(*LAWS)), "gibbs: annealed as in the paper, or rising (default: as the pruner's)"),
}

PAPER = Recipe(
    name="paper",
    epochs=200,
    batch=128,
    optimizer="adam",
    lr=1e-3,
    eps=1e-7,
    weight_decay=2e-4,  # the gradient of 1e-4 · Σ w²
    decay_on="convolutions",
    lr_schedule="steps",
    milestones=(80, 120, 160),
    bn_momentum=0.01,
    bn_eps=1e-3,
    standardise="global",
    anneal_epochs=annealed(200),
    final="sample",
)

# For data that nothing is known of: a picture may not mean the same when it is turned around or moved.
PLAIN = PAPER.replace(name="plain", standardise="channel", shift=0, flip=False, final="converged", law=None)

MODERN = Recipe(
    name="modern",
    epochs=200,
    batch=128,
    optimizer="sgd",
    lr=0.1,
    weight_decay=1e-4,
    lr_schedule="cosine",
    warmup_epochs=1,
    anneal_epochs=annealed(200),
)

# What the search on held-out training images found (results/README.md): its law, and the decay that suits it.
BEST = MODERN.replace(name="best", weight_decay=5e-4, law="rising")

# Learning rate and batch were chosen on images held out of the training set.
DIGITS = Recipe(
    name="digits",
    epochs=25,
    batch=64,
    optimizer="adam",
    lr=1e-2,
    weight_decay=1e-4,
    decay_on="convolutions",
    lr_schedule="cosine",
    standardise="global",
    shift=1,
    flip=False,
    anneal_epochs=annealed(25),
    law=None,
)

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (PAPER, MODERN, BEST, DIGITS, PLAIN)}


def recipe(name: str) -> Recipe:
    """The checked-in recipe of that name."""
    return RECIPES[check_one_of("recipe", name, RECIPES)]


def _shown(value: Any) -> str:
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
