"""The pictures of a run: curves, annealing, layers, masks. In Okabe and Ito's colours, safe for every eye."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..files import write_atomic
from .progress import show_beta
from .snapshots import Snapshot

BLUE, ORANGE, VERMILLION, GREEN, GREY = "#0072B2", "#E69F00", "#D55E00", "#009E73", "#8A8A8A"
KEPT, PRUNED, GRID = "#08306B", "#F4F4F0", "#C9C9C4"

History = Sequence[dict[str, Any]]


def figure_of(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    """A figure and its axes, without matplotlib's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def save(figure: Any, path: Path) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write_atomic(path, buffer.getvalue())


def tidy(axes: Any, title: str, xlabel: str = "epoch", size: int = 11) -> None:
    axes.set_title(title, loc="left", fontsize=size)
    axes.set_xlabel(xlabel)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)


def _column(history: History, key: str) -> np.ndarray:
    values = [record.get(key) for record in history]
    return np.array([math.nan if value is None else value for value in values], dtype=float)


def _lines(
    axes: Any, histories: Sequence[History], key: str, colour: str, label: str, style: str = "-", scale: float = 1.0
) -> None:
    """One quantity over the epochs: the run's line, or for a fleet each run faint and their mean on top."""
    curves = [(_column(h, "epoch"), scale * _column(h, key)) for h in histories]
    marker = "o" if len(curves[0][0]) < 3 else None
    if len(curves) > 1:
        for epochs, values in curves:
            axes.plot(epochs, values, style, color=colour, linewidth=0.7, alpha=0.3)
        shortest = min(len(epochs) for epochs, _ in curves)
        centre = np.mean([values[:shortest] for _, values in curves], axis=0)
        curves, label = [(curves[0][0][:shortest], centre)], label + ", mean"
    axes.plot(*curves[0], style, color=colour, linewidth=1.8, label=label, marker=marker)


def draw_curves(path: Path, histories: Sequence[History], dense: bool) -> None:
    """Accuracy and loss over the epochs, in training and in test."""
    figure, axes = figure_of(9, 3.4, 1, 2)
    test, train = ("test", "training") if dense else ("test, converged mask", "training, sampled masks")
    left, right = axes[0]
    _lines(left, histories, "train_accuracy", ORANGE, train, "--", 100)
    _lines(left, histories, "test_accuracy", BLUE, test, "-", 100)
    tidy(left, "Accuracy, %")
    _lines(right, histories, "loss", ORANGE, train, "--")
    _lines(right, histories, "test_loss", BLUE, test, "-")
    right.set_yscale("log")
    tidy(right, "Loss")
    left.legend(frameon=False, fontsize=8, loc="lower right")
    right.legend(frameon=False, fontsize=8, loc="upper right")
    save(figure, path)


def draw_rising(path: Path, histories: Sequence[History]) -> None:
    """The share of the weights that is masked, over the epochs."""
    figure, axes = figure_of(4.5, 3.4)
    _lines(axes[0, 0], histories, "sparsity", GREEN, "sparsity", "-", 100)
    tidy(axes[0, 0], "Weights that are masked, %")
    save(figure, path)


def draw_annealing(path: Path, histories: Sequence[History]) -> None:
    """β and the agreement of the sampled mask with the converged one, over the epochs."""
    figure, axes = figure_of(9, 3.4, 1, 2)
    left, right = axes[0]
    _lines(left, histories, "beta", VERMILLION, "β")
    left.set_yscale("log")
    tidy(left, "Inverse temperature β")
    _lines(right, histories, "agreement", GREEN, "agreement", "-", 100)
    right.axhline(100, color=GREY, linewidth=0.8, linestyle=":")
    tidy(right, "Mask elements equal to the converged mask, %")
    if len(histories) > 1:
        right.legend(frameon=False, fontsize=8, loc="lower right")
    save(figure, path)


def draw_layers(path: Path, layers: Sequence[dict[str, Any]]) -> None:
    """How many weights each layer has and how many are left, on one scale; with the same rate everywhere, too."""
    figure, axes = figure_of(9, 1.3 + 0.26 * len(layers))
    ax = axes[0, 0]
    rows = np.arange(len(layers))
    weights, kept = (np.array([layer[key] for layer in layers], dtype=float) for key in ("weights", "kept"))
    least = 10.0 ** math.floor(math.log10(max(1.0, 0.5 * kept[kept > 0].min(initial=weights.min()))))
    ax.barh(rows, weights - least, left=least, color="#CFE0EE", height=0.72, label="removed")
    ax.barh(rows, np.maximum(kept - least, 0), left=least, color=BLUE, height=0.72, label="kept")
    for row, layer in zip(rows, layers):
        missed = abs(layer["sparsity"] - layer["target"]) > 0.005
        wanted = f", target {100 * layer['target']:.1f} %" if missed else ""
        text = f"{layer['kept']:,} of {layer['weights']:,}: {100 * layer['sparsity']:.1f} % removed{wanted}"
        ax.text(1.08 * layer["weights"], row, text, va="center", fontsize=7, color=VERMILLION if missed else "black")
    ax.set_xscale("log")
    ax.set_yticks(rows, [layer["name"] for layer in layers], fontsize=8)
    ax.set_ylim(len(layers) - 0.4, -0.6)
    ax.set_xlim(least, weights.max() * (weights.max() / least) ** 0.6)  # room for the texts
    tidy(ax, "Weights of each layer, on a logarithmic scale", "")
    ax.grid(visible=False)
    ax.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
    save(figure, path)


def draw_masks(path: Path, snapshots: Sequence[Snapshot]) -> None:
    """One layer's mask from hot to cold: a small square is a weight, a block of them a kernel."""
    from matplotlib.colors import ListedColormap

    columns = min(3, len(snapshots))
    rows = math.ceil(len(snapshots) / columns)
    figure, axes = figure_of(3 * columns, 3.2 * rows + 0.4, rows, columns)
    for ax in axes.flat[len(snapshots) :]:
        ax.set_visible(False)
    for ax, shot in zip(axes.flat, snapshots):
        shown = shot.picture.astype(float)
        ax.imshow(shown, cmap=ListedColormap([PRUNED, KEPT]), vmin=0, vmax=1, interpolation="nearest", aspect="equal")
        height, width = shot.block
        if height * width > 1:
            for edge in range(height, shown.shape[0], height):
                ax.axhline(edge - 0.5, color=GRID, linewidth=0.6)
            for edge in range(width, shown.shape[1], width):
                ax.axvline(edge - 0.5, color=GRID, linewidth=0.6)
        ax.set_xticks([])
        ax.set_yticks([])
        kept = 100 * shown.mean()
        beta = f"β = {show_beta(shot.beta)}, " if math.isfinite(shot.beta) else ""
        ax.set_title(f"{beta}epoch {shot.epoch}: {kept:.0f} % kept", fontsize=9)
    axes[0, 0].set_ylabel("output channel", fontsize=8)
    axes[rows - 1, 0].set_xlabel("input channel", fontsize=8)
    how = "as it cools" if math.isfinite(snapshots[0].beta) else "as its sparsity rises"
    figure.suptitle(f"Mask of {snapshots[0].layer} {how} (dark: kept)", fontsize=11)
    save(figure, path)


def available() -> bool:
    """Whether pictures can be drawn here."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True
