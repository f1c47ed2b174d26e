"""The methods of a comparison as one picture: how accurate each is, how sure that is, and what it costs in epochs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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


def draw_comparison(path: Path, rows: Sequence[Row], title: str) -> None:
    """One line per method in the order of the table, with one standard deviation and what it costs in epochs.

    A full mark is the accuracy with the batch-norm statistics that training ended with, an empty one that after
    recalibration; where it lies too far below to be drawn, an arrow and the number stand for it.
    """
    figure, axes = figure_of(9, 1.5 + 0.36 * len(rows))
    ax = axes[0, 0]
    kinds = [[row.accuracies for row in rows], [row.recalibrated for row in rows]]
    means = [[100 * statistics.fmean(values) for values in found] for found in kinds]
    low = _floor([value for values in means for value in values])
    pairs = [pair for centres, found in zip(means, kinds) for pair in zip(centres, found)]
    best = max(mean + _deviation(values) for mean, values in pairs)
    span = best - low
    for full, centres, found in ((True, means[0], kinds[0]), (False, means[1], kinds[1])):
        for i, (row, mean) in enumerate(zip(rows, centres)):
            colour, marker = STYLES[row.entry.method]
            height = i - 0.14 if full else i + 0.18
            fill = colour if full or marker in "x+" else "white"
            if mean < low:
                ax.plot(low + 0.02 * span, height, "<", color=colour, markerfacecolor=fill, ms=6, clip_on=False)
                ax.text(low + 0.04 * span, height, f"{mean:.1f}", va="center", fontsize=7, color=colour)
                continue
            size = 12 if marker == "*" else 7
            look = {"fmt": marker, "color": colour, "markerfacecolor": fill, "ms": size, "capsize": 2}
            ax.errorbar(mean, height, xerr=_deviation(found[i]), **look)
    dense = [mean for row, mean in zip(rows, means[0]) if row.entry.method == "dense"]
    if dense:
        ax.axvline(dense[0], color="#444444", linewidth=1, linestyle="--", zorder=0)
    names = [f"{row.entry.label}, {row.epochs} epochs" for row in rows]
    ax.set_yticks(range(len(rows)), names, fontsize=9)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xlim(low, best + 0.05 * span)
    tidy(ax, title, "test accuracy, %")
    ax.grid(visible=False, axis="y")
    ax.grid(visible=True, axis="x", color="#DDDDDD", linewidth=0.8)
    marks = [ax.plot([], [], "o", color=GREY, markerfacecolor=fill)[0] for fill in (GREY, "white")]
    figure.legend(marks, ["as trained", "batch norms recalibrated"], frameon=False, fontsize=8, ncols=2,
                  loc="outside lower right")  # fmt: skip
    save(figure, path)


def _deviation(values: Sequence[float]) -> float:
    return 100 * statistics.stdev(values) if len(values) > 1 else 0.0


def _floor(values: Sequence[float]) -> float:
    """The lower edge: one that has failed must not flatten the others."""
    best, middle = max(values), statistics.median(values)
    shown = min(value for value in values if value >= best - max(3.0, 4 * (best - middle)))
    return shown - 0.25 * max(0.5, best - shown)
