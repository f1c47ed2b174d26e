"""Accuracy against the total number of training epochs, as in the paper's Figures 3, 5 and 6."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..training.pictures import GREY, figure_of, save, tidy

if TYPE_CHECKING:
    from .comparison_report import Row

#: A colour and a marker for each method, the same in every picture; Okabe and Ito's colours.
STYLES = {
    "gibbs": ("#D55E00", "*"),
    "dense": ("#444444", "."),
    "magnitude": ("#0072B2", "o"),
    "filter-l1": ("#0072B2", "o"),
    "lottery": ("#009E73", "s"),
    "thinet": ("#009E73", "s"),
    "l1": ("#CC79A7", "D"),
    "targeted-dropout": ("#56B4E9", "v"),
    "gradual": ("#E69F00", "^"),
    "feedback": ("#A04000", "P"),
    "rigl": ("#5A2A82", "h"),
    "lr-rewinding": ("#1B4F72", "p"),
    "str": ("#145A32", "d"),
    "random-mask": (GREY, "x"),
    "reinit": ("#7A5C00", "+"),
}


#: Dotted lines of one method with different settings are told apart by their dots.
DOTS = [(0, (1, 1.2)), (0, (1, 3)), (0, (4, 1.5, 1, 1.5)), (0, (4, 3))]


def draw_comparison(path: Path, rows: Sequence[Row], title: str) -> None:
    """On the left with the batch-norm statistics that training ended with, on the right after recalibration.

    Points are Gibbs pruning and methods that need more epochs than the recipe has, with one standard deviation; dotted
    lines those that need none. The legend has the order of the table.
    """
    figure, axes = figure_of(11, 4.6, 1, 2, sharey=True)
    panels = [("as trained", [row.accuracies for row in rows]), ("recalibrated", [row.recalibrated for row in rows])]
    means = [[100 * statistics.fmean(values) for values in found] for _, found in panels]
    low = _floor([value for values in means for value in values])
    for ax, (name, found), centres in zip(axes[0], panels, means):
        handles = [_draw(ax, rows, i, centre, _deviation(found[i])) for i, centre in enumerate(centres)]
        for method in dict.fromkeys(row.entry.method for row in rows if row.more):
            own = [(row.epochs, centre) for row, centre in zip(rows, centres) if row.entry.method == method]
            ax.plot(*zip(*sorted(own)), color=STYLES[method][0], linewidth=1, alpha=0.6)
        ax.set_xlim(0, 1.08 * max(row.epochs for row in rows))
        tidy(ax, name, "total training epochs")
        if below := [f"{row.entry.label} {value:.0f}" for row, value in zip(rows, centres) if value < low]:
            ax.text(0.02, 0.02, "lower still:\n" + "\n".join(below), transform=ax.transAxes, fontsize=8, va="bottom",
                    backgroundcolor="white")  # fmt: skip
    axes[0, 0].set_ylabel("test accuracy, %")
    best = max(100 * statistics.fmean(values) + _deviation(values) for _, found in panels for values in found)
    axes[0, 0].set_ylim(low, best + 0.1 * (best - low))
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    figure.legend(handles, [row.entry.label for row in rows], frameon=False, fontsize=9, loc="outside right center")
    save(figure, path)


def _draw(ax: Any, rows: Sequence[Row], i: int, mean: float, deviation: float) -> Any:
    """One method, and what stands for it in the legend."""
    row, (colour, marker) = rows[i], STYLES[rows[i].entry.method]
    if row.entry.method == "dense" and not row.more:
        return ax.axhline(mean, color=colour, linewidth=1, linestyle="--")
    if row.more or row.entry.method == "gibbs":
        size = 14 if marker == "*" else 7
        return ax.errorbar(row.epochs, mean, deviation, fmt=marker, color=colour, ms=size, capsize=3, zorder=3)
    earlier = sum(not other.more and other.entry.method == row.entry.method for other in rows[:i])
    return ax.axhline(mean, color=colour, linewidth=1.8, linestyle=DOTS[earlier % len(DOTS)])


def _deviation(values: Sequence[float]) -> float:
    return 100 * statistics.stdev(values) if len(values) > 1 else 0.0


def _floor(values: Sequence[float]) -> float:
    """The lower edge: one that has failed must not flatten the others."""
    best, middle = max(values), statistics.median(values)
    shown = min(value for value in values if value >= best - max(3.0, 4 * (best - middle)))
    return shown - 0.25 * max(0.5, best - shown)
