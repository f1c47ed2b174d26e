"""A profile as tables, and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gibbsprune.export.profile import Profile
from gibbsprune.text import shown, table

COLOURS = {"dense": "#8A8A8A", "pruned": "#E69F00", "compact": "#0072B2"}


def totals_table(found: Mapping[str, Profile]) -> str:
    """One row per form, beside it the ratio of its latency to the first one's."""
    first = next(iter(found.values()))
    header = ["", "parameters", "non-zero", "file (kB)", "multiply-adds"]
    for batch in first.latency:
        header += [f"ms, batch {batch}", "quartiles", "ratio"]
    rows = []
    for name, form in found.items():
        row = [name, f"{form.parameters:,}", f"{form.nonzero:,}", f"{form.size / 1e3:,.1f}", f"{form.macs:,}"]
        for batch, took in form.latency.items():
            ratio = took.median / first.latency[batch].median
            row += [f"{took.median:.2f}", f"{took.low:.2f}–{took.high:.2f}", f"{ratio:.2f}"]
        rows.append(row)
    return shown(header, rows)


def layers_table(found: Mapping[str, Profile]) -> str:
    """One table per form, one row per layer: its weight's shape, non-zeros, multiply-adds and milliseconds."""
    first = next(iter(found.values()))
    header = ["shape", "non-zero", "Mmadd", *(f"ms, batch {batch}" for batch in first.latency)]
    tables = []
    for name, form in found.items():
        rows = []
        for layer in first.layers:
            f = form.layers.get(layer)
            if f is None:
                rows.append([layer, "gone", *["0"] * (len(header) - 1)])
                continue
            took = [f"{latency.median:.3f}" for latency in f.latency.values()]
            rows.append([layer, "×".join(map(str, f.shape)), f"{f.nonzero:,}", f"{f.macs / 1e6:.3f}", *took])
        rest = [f"{max(0.0, t.median - _within(form, batch)):.3f}" for batch, t in form.latency.items()]
        rows.append(["the rest", "", "", "", *rest])
        tables.append(table([name, *header], rows, left=2))
    return "\n\n".join(tables)


def _within(form: Profile, batch: int) -> float:
    return sum(layer.latency[batch].median for layer in form.layers.values())


def draw_profile(path: Path, found: Mapping[str, Profile], title: str) -> None:
    """A picture: each total relative to the first form, and the milliseconds of every layer."""
    import io

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from gibbsprune.files import write_atomic

    first = next(iter(found.values()))
    batch = max(first.latency)
    layers = list(first.layers)
    figure = Figure(figsize=(11, 4.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.5))
    kinds: dict[str, Any] = {
        "parameters": lambda f: f.parameters,
        "non-zero": lambda f: f.nonzero,
        "file": lambda f: f.size,
        "multiply-adds": lambda f: f.macs,
        **{f"ms, batch {b}": (lambda f, b=b: f.latency[b].median) for b in first.latency},
    }
    width = 0.8 / len(found)
    for k, (name, form) in enumerate(found.items()):
        colour = COLOURS.get(name, "#009E73")
        heights = [count(form) / max(count(first), 1e-12) for count in kinds.values()]
        places = [i + (k - (len(found) - 1) / 2) * width for i in range(len(kinds))]
        left.bar(places, heights, width, color=colour, label=name)
        if k:
            for place, height in zip(places, heights):
                left.annotate(f"{height:.2f}", (place, height), ha="center", va="bottom", fontsize=7, rotation=90)
        times = [form.layers[layer].latency[batch].median if layer in form.layers else 0.0 for layer in layers]
        right.step(range(len(layers)), times, where="mid", color=colour, label=name, linewidth=1.6)
    left.set_xticks(range(len(kinds)), list(kinds), rotation=30, ha="right", fontsize=8)
    left.set_ylim(0, 1.25 * max(1.0, *(c(f) / max(c(first), 1e-12) for c in kinds.values() for f in found.values())))
    left.set_ylabel(f"relative to {next(iter(found))}")
    left.set_title(title, loc="left", fontsize=11)
    right.set_title(f"Layer by layer, batch {batch}", loc="left", fontsize=11)
    right.set_ylabel("milliseconds")
    right.set_ylim(bottom=0)
    step = max(1, len(layers) // 14)
    right.set_xticks(range(0, len(layers), step), layers[::step], rotation=45, ha="right", fontsize=7)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
        axes.set_axisbelow(True)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=len(found), frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomic(path, buffer.getvalue())
