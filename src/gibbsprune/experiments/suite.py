"""Suites of cells by name, chosen by what they are, and the sources that some cells start from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..errors import UserError
from ..training.places import Place
from ..training.recipes import RECIPES
from ..training.spec import METHODS, RunSpec
from . import paper, store
from .paper import Cell


def rehearsal() -> list[Cell]:
    """The machinery on embedded digits, in a minute of CPU: a dense run, a Gibbs run, and two that start from them."""
    recipe = RECIPES["digits"].replace(epochs=4, anneal_epochs=3)

    def run(method: str, **options: object) -> RunSpec:
        return RunSpec("digits", "resnet8", method, recipe=recipe, **options)  # type: ignore[arg-type]

    dense, gibbs = run("dense"), run("gibbs", sparsity=0.75)
    tuned = run("magnitude", sparsity=0.2, settings={"tune_epochs": 1, "from": dense.name()})
    again = run("reinit", sparsity=0.75, settings={"from": gibbs.name()})
    return [Cell(spec, step) for step, spec in ((1, dense), (1, gibbs), (1, tuned), (2, again))]


SUITES: dict[str, Callable[[], list[Cell]]] = {"paper": paper.cells, "rehearsal": rehearsal}


def suite(name: str) -> list[Cell]:
    """The cells of a suite, the most important first."""
    if name not in SUITES:
        raise UserError(f"unknown suite {name!r}; suites are {', '.join(SUITES)}")
    return SUITES[name]()


@dataclass(frozen=True)
class Choice:
    """Which cells are wanted; what is None is not asked for."""

    table: str | None = None
    figure: str | None = None
    arch: str | None = None
    seed: Sequence[int] | None = None
    recipe: str | None = None
    method: Sequence[str] | None = None
    max_stretch: int | None = None
    step: Sequence[int] | None = None

    def __post_init__(self) -> None:
        _one_of("table", self.table, paper.TABLES)
        _one_of("figure", self.figure, paper.FIGURES)
        _one_of("recipe", self.recipe, RECIPES)
        for method in self.method or ():
            _one_of("method", method, METHODS)
        if self.max_stretch is not None and self.max_stretch < 1:
            raise UserError(f"max-stretch is {self.max_stretch}; it must be a whole number from 1")

    def takes(self, cell: Cell) -> bool:
        spec, place = cell.spec, cell.places
        return all(
            [
                self.table is None or f"Table {self.table}" in place,
                self.figure is None or f"Figure {self.figure}" in place,
                self.arch is None or spec.model == self.arch,
                self.seed is None or spec.seed in self.seed,
                self.recipe is None or spec.recipe.name == self.recipe,
                self.method is None or spec.method in self.method,
                self.max_stretch is None or spec.stretch <= self.max_stretch,
                self.step is None or cell.step in self.step,
            ]
        )

    def of(self, cells: Iterable[Cell]) -> list[Cell]:
        """The cells that are wanted; none at all is a mistake."""
        cells = list(cells)
        _one_of("arch", self.arch, dict.fromkeys(cell.spec.model for cell in cells))
        found = [cell for cell in cells if self.takes(cell)]
        if not found:
            asked = {name: value for name, value in vars(self).items() if value is not None}
            text = ", ".join(
                f"--{name.replace('_', '-')} {value if isinstance(value, str | int) else ','.join(map(str, value))}"
                for name, value in asked.items()
            )
            raise UserError(f"no cell of the suite has {text}; gibbsprune suite list shows all")
        return found


def source(spec: RunSpec) -> str | None:
    """The name of the cell that a run starts from."""
    named = spec.setting("from")
    return None if named is None else str(named)


def sources(cells: Iterable[Cell]) -> set[str]:
    """The names of all cells that others start from."""
    return {name for cell in cells if (name := source(cell.spec)) is not None}


def with_follow_ups(cells: Sequence[Cell], results: Place) -> list[Cell]:
    """The cells, and after each stretched Gibbs run that did not converge the same one with a higher final β."""
    found: list[Cell] = []
    have = store.names(results)
    for cell in cells:
        found.append(cell)
        hot = paper.follow_up(cell.spec)
        if hot is None or cell.name not in have:
            continue
        if store.read(store.path(results, cell.spec))["agreement"] < paper.CONVERGED:
            found.append(Cell(hot, cell.step, cell.places))
    return found


def own(cells: Sequence[Cell]) -> list[RunSpec]:
    """The cells, and whatever may follow from their results."""
    return [spec for cell in cells for spec in (cell.spec, paper.follow_up(cell.spec)) if spec is not None]


def check_results(cells: Sequence[Cell], results: Place) -> None:
    """Refuses a folder in which the result of one of these cells, or of what follows from one, is damaged."""
    store.check_own(results, own(cells))


def _one_of(what: str, value: str | None, allowed: Iterable[str]) -> None:
    if value is not None and value not in allowed:
        raise UserError(f"unknown {what} {value!r}; it must be one of {', '.join(allowed)}")
