"""Draws what_beta_does.png: the probability of keeping a weight, and one layer's masks, at rising β."""

from pathlib import Path

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import gibbsprune as gp

BETAS = (0.7, 30, 300, 3_000, 100_000)
COLOURS = ("#8A8A8A", "#56B4E9", "#0072B2", "#D55E00", "#000000")  # Okabe and Ito: safe for every eye
SPARSITY = 0.9


def main(path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = 0.05 * torch.randn(48, 48, generator=generator)
    squares, q = weight.square(), float(gp.threshold(weight, SPARSITY))
    converged = gp.converged_mask(weight, SPARSITY)
    figure = Figure(figsize=(9.6, 5.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplot_mosaic([["law"] * len(BETAS), list(BETAS)], height_ratios=[1.25, 1])
    field = torch.linspace(0, 2.6 * q, 800)
    for beta, colour in zip(BETAS, COLOURS):
        keep = torch.sigmoid(-2 * beta * (q - field).double())
        axes["law"].plot(field, keep, color=colour, linewidth=1.8, label=f"β = {beta:,g}")
        mask = gp.sample(weight, "square", sparsity=SPARSITY, beta=beta, generator=generator)[0]
        picture = axes[beta]
        picture.imshow(mask, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        same = float((mask == converged).float().mean())
        picture.set_title(f"β = {beta:,g}", fontsize=10, color=colour)
        picture.set_xlabel(f"{float(mask.float().mean()):.0%} kept, agreement {same:.3f}", fontsize=8)
        picture.set_xticks([])
        picture.set_yticks([])
    law = axes["law"]
    law.axvline(q, color="#8A8A8A", linewidth=0.9, linestyle=":")
    law.text(q, 1.06, "Q", ha="center", fontsize=10)
    law.hist(squares.flatten().clamp(max=2.6 * q), bins=80, weights=torch.full((squares.numel(),), 4 / squares.numel()),
             color="#E8E4D8", zorder=0)  # fmt: skip
    law.set_ylim(0, 1.03)
    law.set_xlim(0, 2.6 * q)
    law.set_xlabel("w², a weight's square (in beige: how the layer's weights are spread)", fontsize=9)
    law.set_ylabel("probability of being kept", fontsize=9)
    law.spines[["top", "right"]].set_visible(False)
    law.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 0.04), fontsize=8)
    figure.savefig(path)


if __name__ == "__main__":
    main(Path(__file__).with_suffix(".png"))
