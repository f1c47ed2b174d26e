"""What one training run is: a frozen record of everything its result depends on, checked when it is made."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gibbsprune.errors import UserError
from gibbsprune.training.recipes import RECIPES, Recipe

METHODS = ("gibbs", "dense")
STRUCTURES = ("weight", "kernel", "filter")
PRECISIONS = ("auto", "float32", "bfloat16")

#: The Hamiltonians possible for each structure; the first is the default (the best one in the paper).
HAMILTONIANS = {
    "weight": ("square", "abs", "sign", "binary"),
    "kernel": ("quadratic", "sign", "binary"),
    "filter": ("quadratic", "sign", "binary"),
}

#: The samplers that can draw from each Hamiltonian's law.
SAMPLERS = {
    "square": ("auto", "independent", "enumeration"),
    "abs": ("auto", "independent", "enumeration"),
    "sign": ("auto", "independent", "enumeration"),
    "binary": ("auto", "two_point"),
    "quadratic": ("auto", "exact", "enumeration", "chromatic"),
}


def default_recipe(data: str) -> Recipe:
    """The recipe a data set is trained with unless one is named: its own where it has one, else ``paper``."""
    return RECIPES.get(data, RECIPES["paper"])


def scale_recipe(recipe: Recipe, epochs: int) -> Recipe:
    """The same recipe over another number of epochs: milestones and annealing keep their share of it."""
    if epochs == recipe.epochs:
        return recipe
    share, anneal = epochs / recipe.epochs, recipe.anneal_epochs
    return recipe.replace(
        epochs=epochs,
        milestones=tuple(sorted({max(1, round(milestone * share)) for milestone in recipe.milestones})),
        anneal_epochs=None if anneal is None else max(1, round(anneal * share)),
    )


@dataclass(frozen=True)
class RunSpec:
    """One run. ``RunSpec()`` is Gibbs pruning of a ResNet-20 on digits to a sparsity of 0.9.

    Without a ``hamiltonian`` the structure's default is filled in, without a ``recipe`` the data's.
    ``epochs`` scales the recipe (:func:`scale_recipe`), so that afterwards ``spec.epochs`` is
    ``spec.recipe.epochs``; ``stretch`` repeats every epoch of every schedule that many times. ``include`` and
    ``exclude`` are patterns of layer names.

    >>> RunSpec(structure="kernel", seed=3).name()
    'digits-resnet20-gibbs-kernel-quadratic-0.9-s3'
    """

    data: str = "digits"
    model: str = "resnet20"
    method: str = "gibbs"
    structure: str = "weight"
    hamiltonian: str | None = None
    coupling: float = 0.01
    sampler: str = "auto"
    sparsity: float = 0.9
    recipe: Recipe = None  # type: ignore[assignment]  # replaced by the data's default when not given
    epochs: int | None = None
    stretch: int = 1
    seed: int = 0
    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] | None = None
    precision: str = "auto"

    def __post_init__(self) -> None:
        _one_of("method", self.method, METHODS)
        _one_of("structure", self.structure, STRUCTURES)
        _one_of("precision", self.precision, PRECISIONS)
        if self.recipe is None:
            object.__setattr__(self, "recipe", default_recipe(self.data))
        if not isinstance(self.recipe, Recipe):
            raise UserError(f"recipe must be a Recipe, not {type(self.recipe).__name__}")
        _whole("stretch", self.stretch, 1)
        _whole("seed", self.seed, 0)
        if self.epochs is not None:
            _whole("epochs", self.epochs, 1)
            object.__setattr__(self, "recipe", scale_recipe(self.recipe, self.epochs))
        object.__setattr__(self, "epochs", self.recipe.epochs)
        if self.hamiltonian is None:
            object.__setattr__(self, "hamiltonian", HAMILTONIANS[self.structure][0])
        for patterns in ("include", "exclude"):
            object.__setattr__(self, patterns, _patterns(patterns, getattr(self, patterns)))
        self._check_law()

    def _check_law(self) -> None:
        """Refuse a law that does not exist: which Hamiltonian, sampler, sparsity and coupling go together."""
        assert self.hamiltonian is not None
        if self.hamiltonian not in SAMPLERS:
            _one_of("hamiltonian", self.hamiltonian, tuple(SAMPLERS))
        if self.hamiltonian not in HAMILTONIANS[self.structure]:
            raise UserError(
                f"hamiltonian {self.hamiltonian!r} is not possible for structure {self.structure!r}; "
                f"possible are {_listed(HAMILTONIANS[self.structure])}"
            )
        if self.sampler not in SAMPLERS[self.hamiltonian]:
            raise UserError(
                f"sampler {self.sampler!r} cannot draw from hamiltonian {self.hamiltonian!r}; "
                f"possible are {_listed(SAMPLERS[self.hamiltonian])}"
            )
        if not (_is_number(self.sparsity) and 0 <= self.sparsity < 1):
            raise UserError(f"sparsity is the fraction removed and must lie in [0, 1), but {self.sparsity!r} was given")
        if not (_is_number(self.coupling) and self.coupling > 0):
            raise UserError(f"coupling must be a positive number, but {self.coupling!r} was given")

    @property
    def total_epochs(self) -> int:
        """The number of epochs trained, stretching included."""
        return self.recipe.epochs * self.stretch

    def replace(self, **changes: Any) -> RunSpec:
        """A copy with some fields changed. A new recipe brings its own epochs unless they are given."""
        if "recipe" in changes:
            changes.setdefault("epochs", None)
        if changes.get("structure", self.structure) != self.structure:
            changes.setdefault("hamiltonian", None)
        return dataclasses.replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; :meth:`from_dict` gives the same spec back."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        values["recipe"] = self.recipe.as_dict()
        for patterns in ("include", "exclude"):
            values[patterns] = None if values[patterns] is None else list(values[patterns])
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RunSpec:
        """The spec that :meth:`as_dict` wrote; an unknown field is refused by name."""
        known = {f.name for f in dataclasses.fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise UserError(f"a run has no field {unknown[0]!r}; its fields are {_listed(sorted(known))}")
        values = dict(values)
        if isinstance(values.get("recipe"), dict):
            values["recipe"] = Recipe.from_dict(values["recipe"])
        return cls(**values)

    def name(self, with_seed: bool = True) -> str:
        """A short stable name for folders: what the run is, then what differs from the defaults."""
        parts = [
            _slug(Path(self.data).stem if _is_path(self.data) else self.data),
            _slug(self.model),
            self.method,
        ]
        if self.method != "dense":
            parts += [self.structure, str(self.hamiltonian), f"{self.sparsity:g}"]
            if self.hamiltonian == "quadratic" and self.coupling != 0.01:
                parts.append(f"c{self.coupling:g}")
            if self.sampler != "auto":
                parts.append(self.sampler)
        parts += self._recipe_parts()
        if self.stretch != 1:
            parts.append(f"x{self.stretch}")
        if self.precision != "auto":
            parts.append(self.precision)
        if self.include is not None or self.exclude is not None:
            parts.append("layers." + _hash([self.include, self.exclude]))
        if with_seed:
            parts.append(f"s{self.seed}")
        return "-".join(parts)

    def _recipe_parts(self) -> list[str]:
        """The recipe's name unless it is the data's default, its epochs if changed, a hash of the rest."""
        base = RECIPES.get(self.recipe.name)
        if base is None:
            return [_slug(self.recipe.name), _hash(self.recipe.as_dict())]
        parts = [] if base == default_recipe(self.data) else [base.name]
        if self.recipe.epochs != base.epochs:
            parts.append(f"e{self.recipe.epochs}")
        if self.recipe != scale_recipe(base, self.recipe.epochs):
            parts.append(_hash(self.recipe.as_dict()))
        return parts


def _is_path(data: str) -> bool:
    return data.endswith(".npz") or "/" in data


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "_", text).strip("._") or "x"


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:6]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _one_of(what: str, value: Any, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise UserError(f"unknown {what} {value!r}; it must be one of {_listed(allowed)}")


def _whole(what: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UserError(f"{what} must be a whole number of at least {least}, but {value!r} was given")


def _patterns(what: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value) or not value:
        raise UserError(f"{what} must be one or more patterns of layer names, but {value!r} was given")
    return tuple(value)
