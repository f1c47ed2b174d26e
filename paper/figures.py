"""Figures 3 to 6 in the paper's form, as SVG and PNG, with the values that the paper prints."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gibbsprune.errors import needed
from gibbsprune.files import make_folder, write_atomic
from gibbsprune.training.pictures import figure_of, tidy

from . import cells, published
from .groups import Group, Results
from .tables import FIGURES
from .words import NETWORK

#: Okabe and Ito's colours, safe for every eye; a marker of its own for each label.
STYLES = {
    "Gibbs": ("#0072B2", "o"), "Han et al.": ("#D55E00", "s"), "Li et al.": ("#D55E00", "s"),
    "IMP with rewinding": ("#009E73", "^"), "ThiNet": ("#009E73", "^"), "l1": ("#8A8A8A", ""),
    "targeted dropout": ("#CC79A7", ""), "ramping targeted dropout": ("#E69F00", ""),
    "stretch 1": ("#56B4E9", "o"), "stretch 2": ("#0072B2", "s"), "stretch 4": ("#08306B", "^"),
}  # fmt: skip
#: Of markers for fine-tuning at a higher rate than the paper's.
FILLS = dict(zip(cells.TUNE_RATES, ("left", "none")))
DEPTH = 12.0  # points under the paper's Gibbs pruning, below which nothing is drawn
INK = "#222222"


def draw_all(results: Results, folder: Path) -> list[Path]:
    """All figures into ``folder``; returns the files."""
    needed("matplotlib", "make paper", "report")
    make_folder(folder)
    return [file for number in FIGURES for file in draw(number, results, folder)]


#: For wide pages, and for phones: what is added to the name, the kinds of files, the size, rows and columns of panels,
#: and columns of the legend.
SHAPES = [("", ("svg", "png"), (9, 4), (1, 2), 4), ("-narrow", ("svg",), (4.4, 8.2), (2, 1), 2)]


def draw(number: str, results: Results, folder: Path) -> list[Path]:
    """One figure: a panel per network, side by side, and one above the other for narrow pages."""
    from matplotlib import rc_context

    about = {"svg": {"Date": None}, "png": {"Software": None}}
    files = []
    for suffix, kinds, size, grid, columns in SHAPES:
        with rc_context({"svg.hashsalt": "gibbsprune", "svg.fonttype": "none", "font.size": 9}):
            figure, panels = figure_of(*size, *grid)
            axes = list(panels.flat)
            for panel, model in zip(axes, cells.MODELS):
                (_rates if number == "4" else _epochs)(panel, number, model, results)
            handles, labels = _legend(axes)
            if handles:
                ncols = min(columns, len(labels))
                figure.legend(handles, labels, loc="outside lower center", ncols=ncols, frameon=False)
            for kind in kinds:
                buffer = io.BytesIO()
                figure.savefig(buffer, format=kind, metadata=about[kind])
                files.append(folder / f"figure{number}{suffix}.{kind}")
                write_atomic(files[-1], buffer.getvalue())
    return files


def _epochs(panel: Any, number: str, model: str, results: Results) -> None:
    """Accuracy against total epochs; methods that need no extra epochs are dotted lines."""
    _frame(panel, model, "total epochs", "test accuracy, %")
    drawn = False
    for series in cells.FIGURES[number](model):
        groups = [group for spec in series.specs if (group := results.of(spec)) is not None]
        drawn |= bool(groups)
        if series.flat:
            for group in groups:
                panel.axhline(
                    group.mean(), color=STYLES[series.label][0], linestyle=":", linewidth=1.6, label=series.label
                )
        elif groups:
            _points(panel, series, groups, [group.epochs for group in groups], [group.mean() for group in groups])
    structure = cells.COMPARED[number]
    for series in cells.variations(model, [structure]):
        if (group := results.of(series.specs[0])) is not None:
            colour, marker = STYLES[series.label.partition(" (")[0]]
            fill = FILLS[group.spec.setting("tune_rate")]
            aside = 1.02 if marker == "^" else 0.98  # two methods of the same cost do not hide one another
            look = {"ms": 5, "color": colour, "fillstyle": fill, "markerfacecoloralt": "white"}
            panel.plot([aside * group.epochs], [group.mean()], marker, **look, label=series.label)
            drawn = True
    if (dense := results.of(cells.dense(model))) is not None:
        panel.axhline(dense.mean(), color=INK, linestyle="--", linewidth=1, label="dense")
        drawn = True
    name = "square" if structure == "weight" else "quadratic"
    theirs = published.HAMILTONIANS[structure][model][name]
    panel.plot([200], [theirs], "*", ms=11, mfc="white", mec="#0072B2", label="Gibbs, paper")
    _cut(panel, theirs - DEPTH)
    panel.set_xscale("log")
    panel.set_xlim(170, 1400)
    panel.set_xticks([200, 300, 400, 600, 800, 1200], ["200", "300", "400", "600", "800", "1200"])
    panel.minorticks_off()
    if not drawn:
        _empty(panel)


def _rates(panel: Any, number: str, model: str, results: Results) -> None:
    """Points lost against the dense network, by sparsity."""
    _frame(panel, model, "sparsity, %", "points lost against dense")
    dense, drawn = results.of(cells.dense(model)), False
    for series in cells.FIGURES[number](model):
        groups = [group for spec in series.specs if (group := results.of(spec)) is not None]
        if groups and dense is not None:
            at = [_place(group.spec.sparsity) for group in groups]
            lost = [dense.mean() - group.mean() for group in groups]
            _points(panel, series, groups, at, lost)
            drawn = True
    theirs = published.RANDOM[model]["gibbs"]
    at, lost = [_place(p) for p in theirs], [published.DENSE[model] - value for value in theirs.values()]
    panel.plot(at, lost, "*", ms=10, mfc="white", mec="#56B4E9", label="stretch 1, paper")
    star = [_place(0.95)], [published.STRETCHED_LOSS[model]]
    panel.plot(*star, "*", ms=10, mfc="white", mec="#08306B", label="stretched, paper")
    panel.axhline(0, color=INK, linewidth=0.8)
    panel.set_xticks([_place(p) for p in cells.HIGH_RATES], [f"{100 * p:g}" for p in cells.HIGH_RATES])
    panel.set_xlim(_place(0.5) - 0.2, _place(0.98) + 0.2)
    if not drawn:
        _empty(panel)


def _place(sparsity: float) -> float:
    """Where a sparsity stands: evenly in the logarithm of what is kept."""
    return -math.log2(1 - sparsity)


def _points(
    panel: Any, series: cells.Series, groups: Sequence[Group], at: Sequence[float], values: list[float]
) -> None:
    colour, marker = STYLES[series.label]
    spread = [group.deviation() or 0 for group in groups]
    look = {"color": colour, "marker": marker, "ms": 5, "linewidth": 1.4, "capsize": 2}
    panel.errorbar(at, values, spread, **look, label=series.label)


def _frame(panel: Any, model: str, xlabel: str, ylabel: str) -> None:
    tidy(panel, NETWORK[model], xlabel, size=10)
    panel.set_ylabel(ylabel)


def _empty(panel: Any) -> None:
    panel.text(0.5, 0.5, "not run", transform=panel.transAxes, ha="center", va="center", color="#8A8A8A", fontsize=12)


def _legend(axes: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """Each label once, over all panels, in the order of the styles."""
    found: dict[str, Any] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels()):
            found.setdefault(label, handle)
    labels = sorted(found, key=lambda label: list(STYLES).index(label) if label in STYLES else len(STYLES))
    return [found[label] for label in labels], labels


def _cut(panel: Any, least: float) -> None:
    """Leaves what is far below out of view, so that the rest can be told apart; names it above the panel."""
    lines = [(str(line.get_label()), line) for line in panel.get_lines()]
    lines = [pair for pair in lines if not pair[0].startswith("_")]
    lines += [(container.get_label(), container[0]) for container in panel.containers]
    values = [(label, float(value)) for label, line in lines for value in line.get_ydata()]
    below: dict[str, set[float]] = {}
    for label, value in values:
        if value < least:
            below.setdefault(label, set()).add(value)
    if below:
        most = max(value for _, value in values)
        panel.set_ylim(least, most + (most - least) / 12)
        each = {label: " and ".join(f"{value:.1f}" for value in sorted(found)) for label, found in below.items()}
        text = "further below: " + ", ".join(f"{label} {found}" for label, found in each.items())
        panel.set_title(textwrap.fill(text, 60), loc="right", fontsize=7, color=INK)
