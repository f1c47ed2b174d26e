"""The paper's evaluation as a sweep: every number of its Tables II to IV and Figures 3 to 6 is a cell, which is a run.

Table and figure numbers are those of the paper's source. Where a figure's points are not given there, the paper's text
says what is varied; the values here are ours.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gibbsprune.law import CONVERGED
from gibbsprune.training.recipes import RECIPES
from gibbsprune.training.spec import RunSpec

MODELS = ("resnet20", "resnet56")
SEEDS = (0, 1, 2)
SPARSITY = {"weight": 0.9, "kernel": 0.9, "filter": 0.75}
HAMILTONIANS = {
    "weight": ("binary", "sign", "square", "abs"),
    "kernel": ("binary", "sign", "quadratic"),
    "filter": ("binary", "sign", "quadratic"),
}
RATES = (0.5, 0.75, 0.9, 0.95)
HIGH_RATES = (*RATES, 0.98)
STRETCHES = (1, 2, 4)
#: Cost knobs, shortest first: epochs of fine-tuning after each step of pruning, and rounds of the lottery.
TUNE_EPOCHS = (2, 10, 40)
ROUNDS = (1, 3, 5)
#: Rates of fine-tuning to try beside the paper's 1e-5, at which few epochs bring back little of what pruning took.
TUNE_RATES = (1e-4, 1e-3)

#: β ranges and couplings that ``gibbsprune tune`` chose in short runs. The tables show the defaults and the
#: paper's c; at full length these are variations beside them.
_CHANGES: dict[str, dict[str, float]] = {
    "binary": {"beta_end": 40.0},
    "sign": {"beta_start": 0.1},
    "abs": {"beta_start": 0.7},
    "quadratic": {"coupling": 0.1},
}
CHOSEN = {(kind, name): _CHANGES[name] for kind, names in HAMILTONIANS.items() for name in names if name in _CHANGES}

#: The paper shifts images by up to 10 %. The recipe takes that as whole pixels, at most 3; taken as real numbers,
#: training images are interpolated and test images are not.
REAL_SHIFT = {"shift": 3.2}

#: Stretched runs whose final draw agrees less than this with the converged mask are run again up to ``FINAL_BETA``.
FINAL_BETA = 1e6


@dataclass(frozen=True)
class Cell:
    """A run, the step of the plan in which it is due (1 first), and the tables and figures that show it."""

    spec: RunSpec
    step: int
    places: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.spec.name()


@dataclass(frozen=True)
class Series:
    """One line or marker of a figure: its label and its runs; ``flat`` ones are a dotted line over all epochs."""

    label: str
    specs: tuple[RunSpec, ...]
    flat: bool = False


def run(
    model: str, method: str = "gibbs", structure: str = "weight", seed: int = 0, recipe: str = "paper", **options: Any
) -> RunSpec:
    """One run on CIFAR-10; filters are pruned to 75 %, everything else to 90 %, unless told otherwise.

    All end with one more draw from the law, as the paper's do.
    """
    options.setdefault("sparsity", SPARSITY[structure])
    chosen = RECIPES[recipe].replace(final="sample")
    return RunSpec("cifar10", model, method, structure, recipe=chosen, seed=seed, **options)


def as_printed(model: str, structure: str, hamiltonian: str, seed: int = 0) -> RunSpec:
    """A Hamiltonian's run as the paper sampled it: the quadratic one for filters by the chain."""
    sampler = "chromatic" if (structure, hamiltonian) == ("filter", "quadratic") else "auto"
    return run(model, structure=structure, hamiltonian=hamiltonian, sampler=sampler, seed=seed)


def dense(model: str, seed: int = 0, recipe: str = "paper") -> RunSpec:
    return run(model, "dense", seed=seed, recipe=recipe)


def after_dense(model: str, method: str, structure: str, seed: int = 0, **settings: Any) -> RunSpec:
    """A method that prunes the dense run of the same seed."""
    return run(model, method, structure, seed, settings={**settings, "from": dense(model, seed).name()})


def reinit(model: str, sparsity: float, seed: int = 0) -> RunSpec:
    """The mask of the Gibbs run of the same seed and sparsity, with new weights."""
    source = run(model, sparsity=sparsity, seed=seed)
    return run(model, "reinit", sparsity=sparsity, seed=seed, settings={"from": source.name()})


def lottery(model: str, rounds: int, seed: int = 0, number: int | None = None) -> RunSpec:
    """Round ``number`` of a lottery, the last one unless told otherwise; all begin with the same first training.

    Each round is a run of its own, as long as most others, so that they can be trained together.
    """
    number = rounds if number is None else number
    if number == 0:
        return run(model, "lottery", seed=seed, settings={"rounds": 1, "round": 0})
    before = lottery(model, rounds, seed, number - 1).name()
    return run(model, "lottery", seed=seed, settings={"rounds": rounds, "round": number, "from": before})


def chain(spec: RunSpec) -> list[RunSpec]:
    """A run, after the rounds before it if it is a lottery's."""
    if spec.method != "lottery":
        return [spec]
    return [lottery(spec.model, spec.setting("rounds"), spec.seed, i) for i in range(spec.setting("round") + 1)]


# -- tables ------------------------------------------------------------------------------------------------------------


def table2(model: str, seeds: Sequence[int] = SEEDS) -> list[RunSpec]:
    """Table II: unstructured Hamiltonians at 90 %, and the dense network."""
    gibbs = [run(model, hamiltonian=name, seed=s) for s in seeds for name in HAMILTONIANS["weight"]]
    return [dense(model, s) for s in seeds] + gibbs


def table3(model: str, seeds: Sequence[int] = (0,)) -> list[RunSpec]:
    """Table III: random masks, random re-initialisation and Gibbs pruning at four rates."""
    makers: list[Callable[[float, int], RunSpec]] = [
        lambda p, s: run(model, sparsity=p, seed=s),
        lambda p, s: run(model, "random-mask", sparsity=p, seed=s),
        lambda p, s: reinit(model, p, s),
    ]
    return [make(p, s) for s in seeds for make in makers for p in RATES]


def table4(model: str, seeds: Sequence[int] = SEEDS) -> list[RunSpec]:
    """Table IV: structured Hamiltonians; filters also with the paper's Markov chain instead of the exact sampler."""
    found = []
    for seed in seeds:
        for kind in ("kernel", "filter"):
            found += [run(model, structure=kind, hamiltonian=name, seed=seed) for name in HAMILTONIANS[kind]]
        found.append(as_printed(model, "filter", "quadratic", seed))
    return found


# -- figures -----------------------------------------------------------------------------------------------------------


def _gibbs(model: str, structure: str) -> Series:
    return Series("Gibbs", tuple(run(model, structure=structure, stretch=s) for s in STRETCHES))


def _dropout(model: str, structure: str) -> list[Series]:
    plain = run(model, "targeted-dropout", structure)
    ramping = run(model, "targeted-dropout", structure, settings={"ramping": True})
    return [Series("targeted dropout", (plain,), True), Series("ramping targeted dropout", (ramping,), True)]


def _tuned(model: str, label: str, method: str, structure: str) -> Series:
    return Series(label, tuple(after_dense(model, method, structure, tune_epochs=n) for n in TUNE_EPOCHS))


def figure3(model: str) -> list[Series]:
    """Figure 3: unstructured methods at 90 % against total epochs."""
    return [
        _gibbs(model, "weight"),
        _tuned(model, "Han et al.", "magnitude", "weight"),
        Series("IMP with rewinding", tuple(lottery(model, r) for r in ROUNDS)),
        Series("l1", (run(model, "l1"),), True),
        *_dropout(model, "weight"),
    ]


def figure4(model: str) -> list[Series]:
    """Figure 4: unstructured Gibbs pruning against sparsity, one series per stretch."""
    return [
        Series(f"stretch {s}", tuple(run(model, sparsity=p, stretch=s) for p in HIGH_RATES), flat=False)
        for s in STRETCHES
    ]


def figure5(model: str) -> list[Series]:
    """Figure 5: kernel-wise methods at 90 % against total epochs."""
    li = _tuned(model, "Li et al.", "filter-l1", "kernel")
    return [_gibbs(model, "kernel"), li, *_dropout(model, "kernel")]


def figure6(model: str) -> list[Series]:
    """Figure 6: filter-wise methods at 75 %; ThiNet fine-tunes as many epochs in all as Li et al. in eight steps."""
    li = _tuned(model, "Li et al.", "filter-l1", "filter")
    thinet = tuple(after_dense(model, "thinet", "filter", tune_epochs=8 * n) for n in TUNE_EPOCHS)
    return [_gibbs(model, "filter"), li, Series("ThiNet", thinet), *_dropout(model, "filter")]


TABLES: dict[str, Callable[[str], list[RunSpec]]] = {"II": table2, "III": table3, "IV": table4}
FIGURES: dict[str, Callable[[str], list[Series]]] = {"3": figure3, "4": figure4, "5": figure5, "6": figure6}
COMPARED = {"3": "weight", "5": "kernel", "6": "filter"}  # figures that compare methods, each in one structure


def modern(model: str) -> list[RunSpec]:
    """Beyond the paper: weight-wise Gibbs pruning with the recipe ``modern``, and its dense network."""
    gibbs = [run(model, recipe="modern", sparsity=p, stretch=s) for s in (1, 4) for p in (0.9, 0.95, 0.98)]
    return [dense(model, recipe="modern"), *gibbs]


def tuned(model: str) -> list[RunSpec]:
    """Beyond the paper: Gibbs pruning with what tuning chose in short runs."""
    return [
        changed(run(model, structure=structure, hamiltonian=hamiltonian), change)
        for (structure, hamiltonian), change in CHOSEN.items()
    ]


def shifted(model: str) -> list[RunSpec]:
    """Beyond the paper: the best of each structure, a random mask and the dense network with interpolated shifts."""
    plain = [dense(model), *(run(model, structure=kind) for kind in SPARSITY), run(model, "random-mask")]
    return [changed(spec, REAL_SHIFT) for spec in plain]


def settled(model: str) -> list[RunSpec]:
    """Beyond the paper: the low rates, whose masks do not fully converge, up to the final β of stretched runs."""
    return [hotter(run(model, sparsity=rate)) for rate in RATES[:2]]


def changed(spec: RunSpec, change: Mapping[str, float]) -> RunSpec:
    """A run with another coupling, or something else in its recipe."""
    others = {name: value for name, value in change.items() if name != "coupling"}
    return spec.replace(recipe=spec.recipe.replace(**others), coupling=change.get("coupling", spec.coupling))


def variations(model: str, structures: Sequence[str] = tuple(SPARSITY)) -> list[Series]:
    """Beyond the paper: the methods that fine-tune, at higher rates, with the middle number of epochs."""
    epochs, found = TUNE_EPOCHS[1], []
    kinds = [("Han et al.", "magnitude", "weight", epochs), ("Li et al.", "filter-l1", "kernel", epochs)]
    kinds += [("Li et al.", "filter-l1", "filter", epochs), ("ThiNet", "thinet", "filter", 8 * epochs)]
    for rate in TUNE_RATES:
        for label, method, structure, length in kinds:
            if structure in structures:
                spec = after_dense(model, method, structure, tune_epochs=length, tune_rate=rate)
                found.append(Series(f"{label} (fine-tuned at {rate:g})", (spec,)))
    return found


def varied(model: str) -> list[RunSpec]:
    """All runs beyond the paper that differ from one of its own in one thing."""
    rates = [spec for series in variations(model) for spec in series.specs]
    return shifted(model) + settled(model) + rates + tuned(model)


# -- the plan ----------------------------------------------------------------------------------------------------------


def steps() -> Iterator[tuple[int, list[RunSpec]]]:
    """What to run, the most important first."""
    small, large = MODELS
    yield 1, table2(small) + table4(small) + table3(small) + short(small)
    yield 2, table2(large, (0,)) + table4(large, (0,)) + table3(large) + short(large)
    yield 3, varied(small) + settled(large) + stretched(small, (2, 4)) + long(small)
    yield 4, stretched(large, (2,)) + modern(small) + modern(large)
    yield 5, table2(large, (1, 2)) + table4(large, (1, 2))
    yield 6, stretched(large, (4,)) + long(large)


def short(model: str) -> list[RunSpec]:
    """All methods of Figures 3, 5 and 6, unstretched, where there is a cost knob at its two lowest settings."""
    every = [series for figure in COMPARED for series in FIGURES[figure](model)]
    return [spec for series in every for spec in series.specs[: 1 if series.label == "Gibbs" else 2]]


def long(model: str) -> list[RunSpec]:
    """The longer settings of the methods with a cost knob."""
    every = [series for figure in COMPARED for series in FIGURES[figure](model)]
    return [spec for series in every if series.label != "Gibbs" for spec in series.specs[2:]]


def stretched(model: str, stretches: Sequence[int]) -> list[RunSpec]:
    """Gibbs pruning with longer schedules in all structures, and Figure 4 with the same."""
    gibbs = [run(model, structure=kind, stretch=s) for s in stretches for kind in ("weight", "kernel", "filter")]
    rates = [spec for series in figure4(model) for spec in series.specs if spec.stretch in (1, *stretches)]
    return gibbs + sorted(rates, key=lambda spec: spec.stretch)


def cells() -> list[Cell]:
    """Every cell of the evaluation once, in the order of :func:`steps`."""
    places = _places()
    found: dict[str, Cell] = {}
    for step, specs in steps():
        for spec in itertools.chain.from_iterable(map(chain, specs)):
            name = spec.name()
            found.setdefault(name, Cell(spec, step, tuple(places.get(name, ()))))
    return list(found.values())


def wanted(results: Mapping[str, Mapping[str, Any]]) -> list[Cell]:
    """The cells, and after each stretched Gibbs run that did not converge the same one with a higher final β.

    Args:
        results: the results that there are, by the names of their runs.
    """
    found: list[Cell] = []
    for cell in cells():
        found.append(cell)
        hot, result = follow_up(cell.spec), results.get(cell.name)
        if hot is not None and result is not None and result["agreement"] < CONVERGED:
            found.append(Cell(hot, cell.step, cell.places))
    return found


def runs(results: Mapping[str, Mapping[str, Any]]) -> Iterator[RunSpec]:
    """What there is to run, the most important first: this file is a sweep."""
    for cell in wanted(results):
        yield cell.spec


def asked() -> list[RunSpec]:
    """All cells but those that are variations only."""
    return [cell.spec for cell in cells() if cell.places != ("Variations",)]


def _places() -> dict[str, list[str]]:
    places: dict[str, list[str]] = {}

    def note(place: str, specs: Iterable[RunSpec]) -> None:
        for spec in specs:
            shown = places.setdefault(spec.name(), [])
            if place not in shown:
                shown.append(place)

    for model in MODELS:
        for number, table in TABLES.items():
            note(f"Table {number}", table(model))
        for number, figure in FIGURES.items():
            note(f"Figure {number}", [spec for series in figure(model) for spec in series.specs])
            note(f"Figure {number}", [dense(model)])
        note("Variations", varied(model))
    return places


def hotter(spec: RunSpec) -> RunSpec:
    """The same run, annealed to the higher final β that the paper uses where a stretched mask does not converge."""
    return spec.replace(recipe=spec.recipe.replace(beta_end=FINAL_BETA))


def follow_up(spec: RunSpec) -> RunSpec | None:
    """What takes the place of a stretched Gibbs run that did not converge; other runs have nothing of the kind."""
    stretched = spec.method == "gibbs" and spec.stretch > 1 and spec.recipe.beta_end is None
    return hotter(spec) if stretched else None
