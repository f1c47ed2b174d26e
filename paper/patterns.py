"""``docs/patterns.md``: patterns and energies on the test set, each beside what it would replace."""

from __future__ import annotations

from pathlib import Path

from gibbsprune.structures import as_structure
from gibbsprune.text import percent, table
from gibbsprune.training.spec import RunSpec

from .extras import link
from .groups import Group, Results, load
from .judged import Judge, told
from .words import NOTHING, hamiltonian, number, share

#: Ways to a pattern: method and law.
WAYS = {
    ("gibbs", "rising"): "`rising`",
    ("gibbs", "annealed"): "drawn",
    ("gradual", "annealed"): "gradual",
}
PATTERNS = {
    "2:4": "2 of 4 inputs", "1:4": "1 of 4 inputs", "1x4": "tiles of 1×4", "at-most-3": "at most 3 of a kernel",
    "weight": "single weights",
}  # fmt: skip
ENERGIES = {
    "neighbours": "neighbours in a kernel attract",
    "channels": "so do those in the next input channels",
    "redundancy": "similar filters repel",
}
SCORES = {"taylor": "importance from gradients", "wanda": "importance from activations"}
PLAIN = ("square", "quadratic")


def text(folder: Path, page: Path) -> str:
    """The whole page, to be written into the folder ``page``, from the results in ``patterns`` and ``energies``."""
    parts = [
        "# Patterns and energies",
        f"Written by `make paper` from the raw files in {link(folder / 'patterns', page)} and "
        f"{link(folder / 'energies', page)}; not edited by hand. ResNet-20 on CIFAR-10, every convolution but the "
        "first, test accuracy in percent of the **last** of 60 epochs, mean ± standard deviation over seeds, their "
        "number in brackets. Nothing was chosen on these results.",
        *_patterns(load(folder / "patterns"), folder / "patterns"),
        *_energies(load(folder / "energies"), folder / "energies"),
    ]
    return "\n\n".join(parts) + "\n"


# -- patterns ----------------------------------------------------------------------------------------------------------


def _patterns(results: Results, folder: Path) -> list[str]:
    cells = {(_cell(group.spec), _way(group.spec)): group for group in results if group.spec.method != "dense"}
    where = sorted({cell for cell, _ in cells}, key=lambda cell: (cell[1], list(PATTERNS).index(cell[0])))
    rows = [[*_cell_names(cell), *(_shown(cells.get((cell, way))) for way in WAYS.values())] for cell in where]
    dense = [f"Dense, the same epochs: {_shown(group)}." for group in results if group.spec.method == "dense"]
    groups, judge = list(cells.values()), Judge(list(cells.values()), folder)
    ours, *others = WAYS.values()
    ways = [
        judge.difference((*_cell_names(cell), other), cells[cell, ours], cells[cell, other])
        for other in others
        for cell in where
        if (cell, ours) in cells and (cell, other) in cells
    ]
    costs = [
        judge.difference((PATTERNS[cell[0]], share(cell[1]), way), cells[cell, way], cells[free, way])
        for way in WAYS.values()
        for cell in where
        if (free := ("weight", cell[1])) != cell and (cell, way) in cells and (free, way) in cells
    ]
    return [
        "## Patterns",
        "All with the recipe `best` and a weight decay of 0.0003. `rising`: the largest of each neighbourhood at "
        "every step, shrunk by the threshold, here with straight-through gradients and masked weights that fade. "
        "*Drawn*: masks from the Gibbs law whose temperature falls, in units of the threshold. *Gradual*: by "
        "magnitude, of N:M the N falls from M over 80 % of training. Where single weights and tiles share a sparsity, "
        "`rising` and gradual pruning have one threshold for the network, drawn masks the same sparsity in every "
        "layer.",
        table(["pattern", "sparsity", *WAYS.values()], rows, left=1),
        *dense,
        *told(ways, ("pattern", "sparsity", "against"), "`rising`", groups),
        "### What a pattern costs",
        "Each pattern beside single weights of the same sparsity, pruned in the same way.",
        *told(costs, ("pattern", "sparsity", "way"), "a pattern", groups)[1:],
    ]


def _cell(spec: RunSpec) -> tuple[str, float]:
    return spec.structure, spec.sparsity


def _cell_names(cell: tuple[str, float]) -> tuple[str, str]:
    return PATTERNS[cell[0]], share(cell[1])


def _way(spec: RunSpec) -> str:
    return WAYS[spec.method, str(spec.recipe.law)]


# -- energies ----------------------------------------------------------------------------------------------------------


def _energies(results: Results, folder: Path) -> list[str]:
    groups = sorted(results, key=_order)
    plain = {group.spec.structure: group for group in groups if _energy(group.spec) == _plain(group.spec)}
    rows = [
        [
            as_structure(group.spec.structure).plural, _energy(group.spec), _shown(group),
            *(percent(_mean(group, key)) for key in ("sparsity", "agreement")),
        ]
        for group in groups
    ]  # fmt: skip
    judge = Judge(groups, folder)
    found = [
        judge.difference((as_structure(group.spec.structure).plural, _energy(group.spec)), group, other)
        for group in groups
        if (other := plain.get(group.spec.structure)) is not None and other is not group
    ]
    return [
        "## Energies",
        "Drawn masks, recipe `modern`, a constant sparsity, weights at 90 % and filters at 75 %, temperatures in units "
        "of the threshold; the last mask is one more draw, since pairs are not part of the converged one. *Sparsity* "
        "is what that draw removes, *agreement* the share on which it equals the converged mask. Attraction removes "
        "more than was asked for, most neighbours being removed: its rows are not of equal sparsity.",
        table(["of", "energy", "accuracy", "sparsity", "agreement"], rows, left=2),
        *told(found, ("of", "energy"), "an energy, beside the first of its kind,", groups),
    ]


def _plain(spec: RunSpec) -> str:
    name = "square" if spec.structure == "weight" else "quadratic"
    return f"{hamiltonian(name)}, as in the paper"


def _energy(spec: RunSpec) -> str:
    scored = SCORES.get(spec.setting("importance"))
    if scored is None and spec.hamiltonian in PLAIN:
        return _plain(spec)
    return scored or ENERGIES[str(spec.hamiltonian)]


def _order(group: Group) -> tuple[bool, int]:
    order = [_plain(group.spec), *ENERGIES.values(), *SCORES.values()]
    return group.spec.structure == "filter", order.index(_energy(group.spec))


def _mean(group: Group, key: str) -> float:
    return group.mean(key) / 100


def _shown(group: Group | None) -> str:
    return NOTHING if group is None else f"{number(group)} ({len(group.records)})"
