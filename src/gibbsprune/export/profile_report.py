"""A profile as tables, and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..text import table
from .profile import Profile

COLOURS = {"dense": "#8A8A8A", "pruned": "#E69F00", "compact": "#0072B2", "C": "#009E73"}


def totals_table(found: Mapping[str, Profile]) -> str:
    """One row per form, beside it the ratio of its latency to the first one's; below, what is missing and why."""
    missing = [f"\n{name}: {form.missing}" for name, form in found.items() if form.missing]
    found = _there(found)
    first = next(iter(found.values()))
    header = ["", "parameters", "non-zero", "file (kB)", "multiply-adds"]
    for batch in first.latency:
        header += [f"ms at batch {batch} (quartiles)", "ratio"]
    rows = []
    for name, form in found.items():
        row = [name, f"{form.parameters:,}", f"{form.nonzero:,}", f"{form.size / 1e3:,.1f}", f"{form.macs:,}"]
        for batch, latency in form.latency.items():
            row += [str(latency), f"{latency.median / first.latency[batch].median:.2f}"]
        rows.append(row)
    return table(header, rows) + "".join(missing)


def _there(found: Mapping[str, Profile]) -> dict[str, Profile]:
    return {name: form for name, form in found.items() if not form.missing}


def layers_table(found: Mapping[str, Profile]) -> str:
    """One row per layer: its weight's shape, non-zeros, multiply-adds and milliseconds in each form that has layers."""
    found = {name: form for name, form in found.items() if form.layers}
    first = next(iter(found.values()))
    names = list(found)
    header = ["layer", *(f"{name} shape" for name in names), *(f"{name} non-zero" for name in names)]
    header += [f"{name} Mmadd" for name in names]
    header += [f"{name} ms at {batch}" for batch in first.latency for name in names]
    rows = []
    for layer in first.layers:
        forms = [found[name].layers.get(layer) for name in names]
        row = [layer, *("×".join(map(str, f.shape)) if f else "gone" for f in forms)]
        row += [f"{f.nonzero:,}" if f else "0" for f in forms]
        row += [f"{f.macs / 1e6:.3f}" if f else "0" for f in forms]
        row += [f"{f.latency[batch].median:.3f}" if f else "0" for batch in first.latency for f in forms]
        rows.append(row)
    rest = [
        f"{max(0.0, found[name].latency[batch].median - _within(found[name], batch)):.3f}"
        for batch in first.latency
        for name in names
    ]
    rows.append(["the rest", *[""] * (3 * len(names)), *rest])
    return table(header, rows, left=1 + len(names))


def _within(form: Profile, batch: int) -> float:
    return sum(layer.latency[batch].median for layer in form.layers.values())


def draw_profile(path: Path, found: Mapping[str, Profile], title: str) -> None:
    """A picture: each total relative to the first form, and the milliseconds of every layer."""
    import io

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from ..files import write_atomic

    found = _there(found)
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
        if form.layers:
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
