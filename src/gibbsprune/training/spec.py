"""What one training run is: a frozen record of everything its result depends on, checked when it is made."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checks import (
    bad,
    check_number,
    check_one_of,
    check_patterns,
    check_whole,
    listed,
    meant,
    number,
    parsed,
)
from ..errors import UserError
from ..hamiltonians import Quadratic, as_hamiltonian, possible
from ..rising import chosen_law
from ..samplers import resolve
from ..structures import ALLOWED, as_structure, given_sparsity
from . import methods
from .recipes import FIELDS, RECIPES, Recipe

METHODS = tuple(methods.METHODS)
PRECISIONS = ("auto", "float32", "bfloat16")
COUPLING = Quadratic().coupling
COUPLED = ("quadratic", "neighbours", "channels", "redundancy")  # Hamiltonians that a coupling is for


def default_recipe(data: str) -> Recipe:
    """The recipe of a data set unless one is named: its own, else ``paper``; of a user's own data, ``plain``."""
    name = data.partition(":heldout")[0]
    return RECIPES["plain"] if name.endswith(".npz") else RECIPES.get(name, RECIPES["paper"])


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

    Without a ``hamiltonian`` or a ``sparsity`` the structure's own is filled in, without a ``recipe`` the data's. One
    that leaves the law open has ``rising``, or ``annealed`` where something is given that only a temperature has.
    ``epochs`` scales the recipe (:func:`scale_recipe`), so that afterwards ``spec.epochs`` is
    ``spec.recipe.epochs``; ``stretch`` repeats every epoch of every schedule that many times. ``include`` and
    ``exclude`` are patterns of layer names. ``settings`` are the method's own parameters, completed with its defaults.

    >>> RunSpec(structure="kernel", seed=3).name()
    'digits-resnet20-gibbs-kernel-quadratic-0.9-converged-s3'
    """

    data: str = "digits"
    model: str = "resnet20"
    method: str = "gibbs"
    structure: str = "weight"
    hamiltonian: str | None = None
    coupling: float = None  # type: ignore[assignment]  # 0.01 when not given
    sampler: str = "auto"
    sparsity: float = None  # type: ignore[assignment]  # 0.9, or the structure's own when not given
    recipe: Recipe = None  # type: ignore[assignment]  # replaced by the data's default when not given
    epochs: int | None = None
    stretch: int = 1
    seed: int = 0
    include: tuple[str, ...] | None = None
    exclude: tuple[str, ...] | None = None
    precision: str = "auto"
    settings: Mapping[str, Any] | tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        for name in ("data", "model"):
            if not isinstance(getattr(self, name), str):
                raise bad(name, getattr(self, name), "names")
        check_one_of("method", self.method, METHODS)
        if not isinstance(self.structure, str):
            raise bad("structure", self.structure, ALLOWED)
        kind = as_structure(self.structure)
        check_one_of("precision", self.precision, PRECISIONS)
        if self.recipe is None:
            object.__setattr__(self, "recipe", default_recipe(self.data))
        if not isinstance(self.recipe, Recipe):
            raise bad("recipe", self.recipe, "objects of the class Recipe")
        check_whole("stretch", self.stretch)
        check_whole("seed", self.seed, 0)
        if self.epochs is not None:
            check_whole("epochs", self.epochs)
            object.__setattr__(self, "recipe", scale_recipe(self.recipe, self.epochs))
        object.__setattr__(self, "epochs", self.recipe.epochs)
        if self.recipe.law is None:
            object.__setattr__(self, "recipe", self.recipe.replace(law=self._law()))
        if self.hamiltonian is None:
            object.__setattr__(self, "hamiltonian", possible(kind)[0])
        if self.coupling is None:
            object.__setattr__(self, "coupling", COUPLING)
        object.__setattr__(self, "sparsity", given_sparsity(self.sparsity, kind))
        for patterns in ("include", "exclude"):
            object.__setattr__(self, patterns, check_patterns(patterns, getattr(self, patterns)))
        self._check_method()
        self._check_law()

    def _law(self) -> str:
        """The pruner's, where the recipe leaves it open: drawn masks, if something is given that only those have."""
        warm = {name: getattr(self.recipe, name) for name in ("anneal", "beta_start", "beta_end")}
        warm |= {"hamiltonian": self.hamiltonian, "coupling": self.coupling, "sampler": self.sampler}
        given = dict(self.settings)
        warm |= {name: given.get(name) for name in ("units", "temperature", "chain", "sweeps")}
        return chosen_law(None, given.get("gradient"), **warm)

    def _check_method(self) -> None:
        """Refuse structures and settings that the method does not have, and complete its settings."""
        if as_structure(self.structure).name not in self.how.structures and self.how.prunes:
            raise bad("structure", self.structure, f"{listed(self.how.structures)} with method {self.method!r}")
        given = dict(self.settings)
        for name in given:
            if name not in self.how.settings:
                known = ", ".join(self.how.settings) or "none"
                hint = meant(name, [*self.how.settings, *FIELDS, *(field.name for field in dataclasses.fields(self))])
                raise UserError(f"method {self.method!r} has no setting {name!r}{hint}: allowed are {known}")
        complete = []
        for name, setting in self.how.settings.items():
            value = given.get(name)
            chosen = setting.default(self) if value is None else parsed(name, value, setting.parse)
            complete.append((name, chosen))
        object.__setattr__(self, "settings", tuple(complete))
        self.how.check(self)

    @property
    def how(self) -> methods.Method:
        """The method itself."""
        return methods.method(self.method)

    def setting(self, name: str) -> Any:
        """One of the method's settings; None where it has none of that name."""
        return dict(self.settings).get(name)

    def _check_law(self) -> None:
        """Refuse a law that does not exist: which Hamiltonian, sampler, sparsity and coupling go together."""
        assert self.hamiltonian is not None
        kind = as_structure(self.structure)
        resolve(self.sampler, as_hamiltonian(self.hamiltonian, kind), 1, kind.limited)
        check_number("coupling", self.coupling, number(0, above=True))

    @property
    def phases(self) -> list[methods.Phase]:
        """What the run trains, one phase after another, stretching included."""
        return self.how.phases(self)

    @property
    def own_epochs(self) -> int:
        """The number of epochs that this run trains."""
        return sum(phase.epochs for phase in self.phases)

    @property
    def total_epochs(self) -> int:
        """The number of epochs that the result costs: the run's own and those of the run that it continues."""
        return self.how.epochs_before(self) + self.own_epochs

    def learning_rate(self, epoch: int) -> float:
        """The learning rate of one of the run's own epochs; beyond them, the last phase's."""
        *before, last = self.phases
        for phase in before:
            if epoch < phase.epochs:
                return phase.rate(epoch)
            epoch -= phase.epochs
        return last.rate(epoch)

    def replace(self, **changes: Any) -> RunSpec:
        """A copy with some fields changed. A new recipe brings its own epochs unless they are given."""
        if "recipe" in changes:
            changes.setdefault("epochs", None)
        if changes.get("structure", self.structure) != self.structure:
            changes.setdefault("hamiltonian", None)
            if as_structure(self.structure).sparsity is not None:
                changes.setdefault("sparsity", None)
        same = changes.get("method", self.method) == self.method
        chosen = {k: v for k, v in dict(self.settings).items() if same and v != self.how.settings[k].default(self)}
        changes.setdefault("settings", chosen)
        return dataclasses.replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; :meth:`from_dict` gives the same spec back."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        values["recipe"] = self.recipe.as_dict()
        for patterns in ("include", "exclude"):
            values[patterns] = None if values[patterns] is None else list(values[patterns])
        values["settings"] = dict(self.settings)
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RunSpec:
        """The spec that :meth:`as_dict` wrote; an unknown field is refused by name."""
        known = {f.name for f in dataclasses.fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise UserError(f"a run has no field {unknown[0]!r}: allowed are {', '.join(sorted(known))}")
        values = dict(values)
        if isinstance(values.get("recipe"), dict):
            values["recipe"] = Recipe.from_dict(values["recipe"])
        return cls(**values)

    def name(self, with_seed: bool = True) -> str:
        """A short stable name for folders: what the run is, then what differs from the defaults."""
        data, *held = self.data.partition(":heldout")
        parts = [
            _slug("".join([Path(data).stem if _is_path(data) else data, *held])),
            _slug(self.model),
            self.method,
        ]
        if self.how.prunes:
            law = [str(self.hamiltonian)] if self.method == "gibbs" else []
            parts += [self.structure.replace(":", "of"), *law, f"{self.sparsity:g}"]
        if self.method == "gibbs":
            if self.hamiltonian in COUPLED and self.coupling != COUPLING:
                parts.append(f"c{self.coupling:g}")
            if self.sampler != "auto":
                parts.append(self.sampler)
            if self.recipe.final != "sample":  # with which every run ended once: their names stay
                parts.append(self.recipe.final)
        parts += self._setting_parts()
        parts += self._recipe_parts()
        if self.stretch != 1:
            parts.append(f"x{self.stretch}")
        if self.precision != "auto":
            parts.append(self.precision)
        if self.include is not None or self.exclude is not None:
            parts.append("layers." + _hash([self.include, self.exclude]))
        if with_seed:  # what a run of that seed starts from may be of that seed, too
            parts += [f"w{self.setting('weights')[:6]}"] if self.setting("weights") else []
            parts.append(f"s{self.seed}")
        return "-".join(parts)

    def _setting_parts(self) -> list[str]:
        """The method's settings that are not the default."""
        parts = []
        for name, value in dict(self.settings).items():
            setting = self.how.settings[name]
            if value != setting.default(self) and name != "weights":
                text = "" if value is True else _short(value) if isinstance(value, str) else f"{value:g}"
                parts.append(f"{setting.short}{text}")
        return parts

    def _recipe_parts(self) -> list[str]:
        """The recipe's name unless it is the data's default, its epochs if changed, a hash of the rest."""
        base = RECIPES.get(self.recipe.name)
        if base is None:
            return [_slug(self.recipe.name), _hash(self._named_recipe())]
        parts = [] if base == default_recipe(self.data) else [base.name]
        if self.recipe.epochs != base.epochs:
            parts.append(f"e{self.recipe.epochs}")
        same = {"final": base.final, **({"law": None} if base.law is None else {})}
        if self.recipe.replace(**same) != scale_recipe(base, self.recipe.epochs):
            parts.append(_hash(self._named_recipe()))
        drawn = base.law is None and self.recipe.law == "annealed" and self.method == "gibbs"
        return [*parts, "annealed"] if drawn else parts

    def _named_recipe(self) -> dict[str, Any]:
        """The recipe without what has a part of its own in names, or what all recipes once had."""
        once = (("law", "annealed"), ("cutout", 0))
        return {k: v for k, v in self.recipe.as_dict().items() if k != "final" and (k, v) not in once}


def _is_path(data: str) -> bool:
    return data.endswith(".npz") or "/" in data


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "_", text).strip("._") or "x"


def _short(text: str) -> str:
    """A word as it is, anything else, such as a folder, as its hash."""
    return text if re.fullmatch("[a-z-]{1,16}", text) else _hash(text)


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:6]
