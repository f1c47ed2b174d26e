"""Draws diagnostics.png: two chains from opposite ends, below and above the ordering transition of a sheet of spins."""

from pathlib import Path

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import gibbsprune as gp
from gibbsprune.graphs import Graph
from gibbsprune.samplers import Pairs, Rows, Source, coloured

SIDE, SWEEPS = 32, 60
STRENGTHS = {0.3: "J = 0.3: mixed after twenty sweeps", 0.6: "J = 0.6: not mixed"}
ENDS = {"from all kept": (True, "#D55E00"), "from all pruned": (False, "#0072B2")}  # Okabe and Ito


def chain(strength: float, kept: bool, seed: int) -> tuple[list[float], torch.Tensor]:
    """The magnetisation after each sweep, and the last mask."""
    size = SIDE * SIDE
    pairs = Pairs(Graph(size, gp.grid_pairs((SIDE, SIDE))), torch.full((1, 2 * SIDE * (SIDE - 1)), -strength))
    source = Source([torch.Generator().manual_seed(seed)], [1], size)
    mask, curve = torch.full((1, size), kept), [2.0 * kept - 1]
    for _ in range(SWEEPS):
        mask = coloured.draw(Rows(torch.zeros(1, size), torch.ones(1, 1), source, sweeps=1, pairs=pairs, start=mask))
        curve.append(2 * float(mask.float().mean()) - 1)
    return curve, mask.view(SIDE, SIDE)


def main(path: Path) -> None:
    figure = Figure(figsize=(9.6, 3.9), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = [[strength, f"{strength} {end}"] for strength in STRENGTHS for end in ENDS]
    rows = [
        [0.3, "0.3 from all kept", 0.6, "0.6 from all kept"],
        [0.3, "0.3 from all pruned", 0.6, "0.6 from all pruned"],
    ]
    assert {name for row in rows for name in row} == {name for panel in panels for name in panel}
    axes = figure.subplot_mosaic(rows, width_ratios=[2.2, 1, 2.2, 1])
    for strength, title in STRENGTHS.items():
        for seed, (end, (kept, colour)) in enumerate(ENDS.items()):
            curve, mask = chain(strength, kept, seed)
            axes[strength].plot(curve, color=colour, linewidth=1.8, label=end)
            picture = axes[f"{strength} {end}"]
            picture.imshow(mask, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
            picture.set_title(f"{end}\nafter {SWEEPS} sweeps", fontsize=8, color=colour)
            picture.set_xticks([])
            picture.set_yticks([])
        axes[strength].set_title(title, fontsize=10)
        axes[strength].set_ylim(-1.08, 1.08)
        axes[strength].set_xlabel("sweeps")
        axes[strength].axhline(0, color="#8A8A8A", linewidth=0.8, linestyle=":")
    axes[0.3].set_ylabel("magnetisation")
    axes[0.3].legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Software": None})


if __name__ == "__main__":
    main(Path(__file__).with_suffix(".png"))
