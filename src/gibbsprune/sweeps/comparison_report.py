"""What a comparison found: one line per method, as a table, as JSON and as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import write_atomic, write_json
from ..structures import as_structure
from ..text import clock, percent, table
from ..training import pictures
from ..training.spec import RunSpec
from .comparison import Compared, Entry
from .planner import RUNS

NOTE = """\
Mean ± standard deviation over the seeds of the last epoch's test accuracy with the final mask: with the batch-norm \
statistics that training ended with, and after re-estimating them on training data with that mask (recalibrated). The \
two differ where training saw other masks than the final one, as in targeted dropout and l1. Epochs are all that the \
result needs, those of a dense network that it starts from included; the Gibbs run whose masks reinit takes is not. \
Time is of one run: its share of the fleet that it was trained in."""


@dataclass(frozen=True)
class Row:
    """The runs of one entry, over the seeds."""

    entry: Entry
    accuracies: list[float]
    recalibrated: list[float]
    sparsity: float
    epochs: int
    seconds: float
    runs: list[str]

    @property
    def accuracy(self) -> float:
        return statistics.fmean(self.accuracies)


def rows(compared: Sequence[Compared], found: Mapping[str, dict[str, Any]]) -> list[Row]:
    """One row per entry, the most accurate first, from the results by the names of the runs."""
    entries: dict[Entry, list[Compared]] = {}
    for one in compared:
        entries.setdefault(one.entry, []).append(one)
    made = [_row(entry, own, found) for entry, own in entries.items()]
    return sorted(made, key=lambda row: (-row.accuracy, row.epochs, row.entry.label))


def _row(entry: Entry, own: Sequence[Compared], found: Mapping[str, dict[str, Any]]) -> Row:
    names, spec = [one.spec.name() for one in own], own[0].spec
    return Row(
        entry=entry,
        accuracies=[found[name]["accuracy"] for name in names],
        recalibrated=[found[name]["accuracy_recalibrated"] for name in names],
        sparsity=statistics.fmean(found[name]["sparsity"] for name in names),
        epochs=spec.total_epochs,
        seconds=statistics.fmean(one.seconds(found) for one in own),
        runs=[f"{RUNS}/{name}" for name in names],
    )


def spread(values: Sequence[float]) -> str:
    """Mean ± deviation in percent, as ``97.21 ± 0.32``; of one value, the value."""
    mean = f"{100 * statistics.fmean(values):.2f}"
    return mean if len(values) < 2 else f"{mean} ± {100 * statistics.stdev(values):.2f}"


def result_table(found: Sequence[Row]) -> str:
    """One sorted table."""
    header = ["method", "accuracy, %", "recalibrated, %", "sparsity", "epochs", "time"]
    lines = [
        [
            row.entry.label,
            spread(row.accuracies),
            spread(row.recalibrated),
            percent(row.sparsity),
            row.epochs,
            clock(row.seconds),
        ]
        for row in found
    ]
    return table(header, lines)


def title(base: RunSpec, seeds: Sequence[int]) -> str:
    """What is compared, in one line."""
    count = "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
    how = as_structure(base.structure).manner
    return f"{base.model} on {base.data}, {how} at a sparsity of {base.sparsity:g}, {count}"


def write_report(
    out: Path, base: RunSpec, seeds: Sequence[int], found: Sequence[Row], command: str | None
) -> list[Path]:
    """Writes ``compare.md``, ``compare.json`` and, where matplotlib is installed, ``compare.png``; what was written.

    Args:
        out: the folder.
        base: what the runs share.
        seeds: of the runs of each method.
        found: the rows, as they are shown.
        command: the command line, for the record.
    """
    heading = title(base, seeds)
    written = [out / "compare.md", out / "compare.json"]
    parts = [f"# {heading}", result_table(found), NOTE]
    if pictures.available():
        draw_comparison(out / "compare.png", found, heading)
        parts.append("![How accurate each method is, and what it costs in epochs](compare.png)")
        parts.append("Full marks are accuracies as trained, empty ones recalibrated; bars are one standard deviation.")
        written.append(out / "compare.png")
    else:
        parts.append("No picture: matplotlib is not installed (`pip install 'gibbsprune[demo]'`).")
    if command is not None:
        parts.append(f"Made by `{command}`.")
    write_atomic(out / "compare.md", "\n\n".join(parts) + "\n")
    lines = [
        {
            "method": row.entry.method,
            "label": row.entry.label,
            "stretch": row.entry.stretch,
            "settings": dict(row.entry.settings),
            "accuracy": row.accuracy,
            "accuracies": row.accuracies,
            "accuracy_recalibrated": statistics.fmean(row.recalibrated),
            "accuracies_recalibrated": row.recalibrated,
            "sparsity": row.sparsity,
            "epochs": row.epochs,
            "seconds": round(row.seconds, 1),
            "runs": row.runs,
        }
        for row in found
    ]
    shared = {name: getattr(base, name) for name in ("data", "model", "structure", "sparsity")}
    told = {"command": command, **shared, "seeds": list(seeds), "recipe": base.recipe.as_dict(), "rows": lines}
    write_json(out / "compare.json", told)
    return written


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
    "random-mask": (pictures.GREY, "x"),
    "reinit": ("#7A5C00", "+"),
}


def draw_comparison(path: Path, rows: Sequence[Row], title: str) -> None:
    """One line per method in the order of the table, with one standard deviation and what it costs in epochs.

    A full mark is the accuracy with the batch-norm statistics that training ended with, an empty one that after
    recalibration; where it lies too far below to be drawn, an arrow and the number stand for it.
    """
    figure, axes = pictures.figure_of(9, 1.5 + 0.36 * len(rows))
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
    pictures.tidy(ax, title, "test accuracy, %")
    ax.grid(visible=False, axis="y")
    ax.grid(visible=True, axis="x", color="#DDDDDD", linewidth=0.8)
    marks = [ax.plot([], [], "o", color=pictures.GREY, markerfacecolor=fill)[0] for fill in (pictures.GREY, "white")]
    look = {"frameon": False, "fontsize": 8, "ncols": 2, "loc": "outside lower right"}
    figure.legend(marks, ["as trained", "batch norms recalibrated"], **look)
    pictures.save(figure, path)


def _deviation(values: Sequence[float]) -> float:
    return 100 * statistics.stdev(values) if len(values) > 1 else 0.0


def _floor(values: Sequence[float]) -> float:
    """The lower edge: one that has failed must not flatten the others."""
    best, middle = max(values), statistics.median(values)
    shown = min(value for value in values if value >= best - max(3.0, 4 * (best - middle)))
    return shown - 0.25 * max(0.5, best - shown)
