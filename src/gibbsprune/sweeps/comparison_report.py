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
from .comparison_picture import draw_comparison
from .planner import RUNS

NOTE = """\
Mean ± standard deviation over the seeds of the last epoch's test accuracy with the final mask: with the batch-norm \
statistics that training ended with, and after re-estimating them on training data with that mask (recalibrated). The \
two differ where training saw other masks than the final one, as in targeted dropout and l1. Epochs are all that the \
result needs, those of a dense network that it starts from included; the Gibbs run whose masks reinit takes is not. \
Time is of one run: its share of the fleet that it was trained in."""


@dataclass(frozen=True)
class Row:
    """The runs of one entry, over the seeds; ``more`` says whether it needs more epochs than the recipe has."""

    entry: Entry
    accuracies: list[float]
    recalibrated: list[float]
    sparsity: float
    epochs: int
    more: bool
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
        more=spec.total_epochs > spec.recipe.epochs,
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
    """Write ``compare.md``, ``compare.json`` and, where matplotlib is installed, ``compare.png``; what was written."""
    heading = title(base, seeds)
    written = [out / "compare.md", out / "compare.json"]
    parts = [f"# {heading}", result_table(found), NOTE]
    if pictures.available():
        draw_comparison(out / "compare.png", found, heading)
        parts.append("![Accuracy against the total number of training epochs](compare.png)")
        parts.append("Dotted lines are methods that need no additional epochs, bars one standard deviation.")
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
