"""A profile as tables, and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..text import shown, table
from .profile import Profile

SHOWN = 16  # layers in the picture
COLOURS = {"dense": "#8A8A8A", "pruned": "#E69F00", "compact": "#0072B2", "C": "#009E73"}


def totals_table(found: Mapping[str, Profile]) -> str:
    """One row per form, beside it the ratio of its latency to the first one's; below, what is missing and why."""
    missing = [f"\n{name}: {form.missing}" for name, form in found.items() if form.missing]
    found = _there(found)
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
    return shown(header, rows) + "".join(missing)


def _there(found: Mapping[str, Profile]) -> dict[str, Profile]:
    return {name: form for name, form in found.items() if not form.missing}


def layers_table(found: Mapping[str, Profile]) -> str:
    """One table per form, one row per layer: its weight's shape, non-zeros, multiply-adds and milliseconds."""
    found = {name: form for name, form in found.items() if form.layers}
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
    """A picture: each total as a share of the first form's, and the milliseconds of the slowest layers."""
    from ..training.pictures import figure_of, save, tidy

    found = _there(found)
    first = next(iter(found.values()))
    batch = max(first.latency)
    slowest = sorted(first.layers, key=lambda name: first.layers[name].latency[batch].median)[-SHOWN:]
    layers = [name for name in first.layers if name in slowest]
    kinds: dict[str, tuple[Any, str]] = {
        "parameters": (lambda f: f.parameters, ",.0f"),
        "not zero": (lambda f: f.nonzero, ",.0f"),
        "bytes of the file": (lambda f: f.size, ",.0f"),
        "multiply-adds": (lambda f: f.macs, ",.0f"),
        **{f"ms, batch {b}": ((lambda f, b=b: f.latency[b].median), ",.2f") for b in first.latency},
    }
    height = 1.6 + 0.2 * max(len(kinds) * len(found), len(layers) * len(found) * 0.6)
    figure, axes = figure_of(11, height, 1, 2, width_ratios=(1.2, 1))
    left, right = axes[0]
    wide = 0.8 / len(found)
    for k, (name, form) in enumerate(found.items()):
        colour = COLOURS.get(name, "#009E73")
        places = [i + (k - (len(found) - 1) / 2) * wide for i in range(len(kinds))]
        shares = [count(form) / max(count(first), 1e-12) for count, _ in kinds.values()]
        left.barh(places, shares, 0.9 * wide, color=colour, label=name)
        for place, share, (count, how) in zip(places, shares, kinds.values()):
            times = f"  ({1 / share:.1f} times less)" if share < 0.95 else ""
            left.text(share + 0.01, place, f"{count(form):{how}}{times}", va="center", fontsize=8)
        took = [form.layers[layer].latency[batch].median if layer in form.layers else 0.0 for layer in layers]
        if not form.layers:  # C has none
            continue
        right.barh([i + (k - (len(found) - 1) / 2) * wide for i in range(len(layers))], took, 0.9 * wide, color=colour)
    most = max(count(f) / max(count(first), 1e-12) for count, _ in kinds.values() for f in found.values())
    left.set_yticks(range(len(kinds)), list(kinds), fontsize=9)
    left.set_xlim(0, 1.45 * max(1.0, most))
    left.set_xticks([0, 0.5, 1.0])
    right.set_yticks(range(len(layers)), layers, fontsize=8)
    some = f", the {SHOWN} slowest layers" if len(first.layers) > SHOWN else ", layer by layer"
    tidy(left, title, f"share of {next(iter(found))}")
    tidy(right, f"Milliseconds at batch {batch}{some}", "")
    for ax in (left, right):
        ax.invert_yaxis()
        ax.grid(visible=False, axis="y")
        ax.grid(visible=True, axis="x", color="#DDDDDD", linewidth=0.8)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=len(found), frameon=False)
    save(figure, path)
