"""Accuracy against the total number of training epochs, as in the paper's Figures 3, 5 and 6."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .pictures import GREY, _figure, _save, _tidy

if TYPE_CHECKING:
    from .comparison_report import Row

#: A colour and a marker for each method, the same in every picture; Okabe and Ito's colours.
STYLES = {
    "gibbs": ("#D55E00", "*"),
    "dense": ("#444444", ""),
    "magnitude": ("#0072B2", "o"),
    "filter-l1": ("#0072B2", "o"),
    "lottery": ("#009E73", "s"),
    "thinet": ("#009E73", "s"),
    "l1": ("#CC79A7", "D"),
    "targeted-dropout": ("#56B4E9", "v"),
    "gradual": ("#E69F00", "^"),
    "random-mask": (GREY, "x"),
    "reinit": ("#7A5C00", "+"),
}


def draw_comparison(path: Path, rows: Sequence[Row], title: str) -> None:
    """Points are Gibbs pruning and methods that need more epochs; dotted lines those that need none.

    The best are at the top of the legend. Accuracies far below the others stand there, but are not drawn.
    """
    figure, axes = _figure(8.6, 4.6)
    ax = axes[0, 0]
    low = _floor([100 * row.accuracy for row in rows])
    for row in rows:
        colour, marker = STYLES[row.entry.method]
        mean, deviation = 100 * row.accuracy, _deviation(row)
        label = f"{row.entry.label}, {mean:.1f}"
        if mean < low:
            ax.plot([], [], linestyle=":", color=colour, marker=marker, label=f"{label} (below)")
        elif row.more or row.entry.method == "gibbs":
            size = 15 if marker == "*" else 7
            ax.errorbar(
                row.epochs, mean, deviation, fmt=marker, color=colour, ms=size, capsize=3, label=label, zorder=3
            )
        elif row.entry.method == "dense":
            ax.axhline(mean, color=colour, linewidth=1, linestyle="--", label=label)
        else:
            ax.axhline(mean, color=colour, linewidth=1.6, linestyle=":", label=label)
    for method in {row.entry.method for row in rows if row.more}:
        same = sorted(
            (r.epochs, 100 * r.accuracy) for r in rows if r.entry.method == method and 100 * r.accuracy >= low
        )
        ax.plot(*zip(*same), color=STYLES[method][0], linewidth=1, alpha=0.6)
    longest = max(row.epochs for row in rows)
    ax.set_xlim(0, 1.08 * longest)
    ax.set_ylim(bottom=low)
    _tidy(ax, f"Test accuracy, %: {title}", "total training epochs")
    ax.legend(
        frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5), title="accuracy, %", title_fontsize=8
    )
    _save(figure, path)


def _deviation(row: Row) -> float:
    return 100 * statistics.stdev(row.accuracies) if len(row.accuracies) > 1 else 0.0


def _floor(values: Sequence[float]) -> float:
    """The lower edge: one that has failed must not flatten the others."""
    middle, best = statistics.median(values), max(values)
    shown = [value for value in values if value >= best - max(10.0, 4 * (best - middle))]
    return min(shown) - 0.1 * max(1.0, best - min(shown))
