"""The interactive page of the evaluation: a sweep's page, with the published numbers and a mask that freezes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gibbsprune.law import sample
from gibbsprune.schedules import LogSchedule
from gibbsprune.sweeps.page import write_page
from gibbsprune.threshold import converged_mask
from gibbsprune.training.spec import RunSpec

from . import cells, published
from .extras import plainly
from .findings import printed
from .groups import Results, family
from .words import NAMES, TASKS

SIDE, KERNEL, FRAMES = 16, 3, 17
METHODS = {
    "magnitude": "Han et al.", "filter-l1": "Li et al.", "lottery": "IMP with rewinding", "thinet": "ThiNet",
    "random-mask": "random mask", "reinit": "re-initialisation",
}  # fmt: skip


def write(path: Path, results: Results) -> None:
    """The page of all results, Gibbs pruning first."""
    theirs = {family(spec): value for model in cells.MODELS for spec, value in printed(model)}
    for model in cells.MODELS:
        theirs[family(cells.run(model))] = published.HAMILTONIANS["weight"][model]["square"]
    shown = [(group.spec, record) for group in results for record in group.records]
    shown.sort(key=lambda pair: (pair[0].model, pair[0].recipe.name != "paper", _order(label(pair[0]))))
    tasks = " and ".join(sorted({TASKS.get(spec.data, spec.data) for spec, _ in shown}))
    wanted = cells.wanted(results.by_name)
    done = sum(cell.name in results.by_name for cell in wanted)
    write_page(
        path,
        [record for _, record in shown],
        title="Gibbs pruning: results",
        about=f"{tasks}, test accuracy of the last epoch at the final mask; “paper” is arXiv:2006.04981. "
        f"{done} of {len(wanted)} cells of its evaluation have been run.",
        label=label,
        reference=lambda spec: theirs.get(family(spec)),
        reference_name="paper",
        figures=[annealing()],
    )


def _order(label: str) -> tuple[bool, bool, str]:
    """Gibbs pruning first, with the paper's choice of Hamiltonian before the others."""
    return not label.startswith("Gibbs"), label not in ("Gibbs, linear square", "Gibbs, quadratic"), label


def label(spec: RunSpec) -> str:
    """What a run is called in a legend."""
    change = plainly(spec)[0]
    if spec.method == "gibbs":
        sampler = f", {spec.sampler}" if spec.sampler != "auto" else ""
        return f"Gibbs, {NAMES[str(spec.hamiltonian)]}{sampler}{change and f' ({change})'}"
    name = METHODS.get(spec.method, spec.method)
    if change.startswith("tune_rate "):  # and nothing else
        return f"{name}, tuned at {spec.setting('tune_rate'):g}"
    if spec.method == "targeted-dropout":
        name = "ramping targeted dropout" if spec.setting("ramping") else "targeted dropout"
    return f"{name}{change and f' ({change})'}"


def annealing(draw: Callable[..., torch.Tensor] = sample) -> tuple[str, str, dict[str, Any]]:
    """Masks of one made-up layer along the paper's schedule of β, as a figure with a slider."""
    generator = torch.Generator().manual_seed(0)
    weight = 0.08 * torch.randn(SIDE, SIDE, KERNEL, KERNEL, generator=generator)
    weight *= torch.exp(0.5 * torch.randn(SIDE, SIDE, 1, 1, generator=generator))  # kernels differ, as trained ones do
    weight *= torch.exp(0.3 * torch.randn(SIDE, 1, 1, 1, generator=generator))
    limits = {kind: converged_mask(weight, sparsity, kind) for kind, sparsity in cells.SPARSITY.items()}
    schedule, frames = LogSchedule(0.7, 1e4, 128), list[dict[str, Any]]()
    for k in range(FRAMES):
        beta = schedule(round(128 * k / (FRAMES - 1)))
        masks = {kind: draw(weight, None, kind, sparsity, beta, generator=generator)[0]
                 for kind, sparsity in cells.SPARSITY.items()}  # fmt: skip
        told = [_told(i, kind, mask, limits[kind]) for i, (kind, mask) in enumerate(masks.items())]
        frames.append({
            "name": f"{beta:.3g}" if beta < 100 else f"{beta:,.0f}",
            "data": [{"z": picture(mask)} for mask in masks.values()],
            "layout": {"annotations": told},
        })  # fmt: skip
    move = {"mode": "immediate", "transition": {"duration": 0}}
    steps = [{"label": frame["name"], "method": "animate", "args": [[frame["name"]], move]} for frame in frames]
    play = {"label": "Play", "method": "animate", "args": [None, {**move, "frame": {"duration": 350}}]}
    axes: dict[str, Any] = {}
    for i in range(len(limits)):
        number = str(i + 1) if i else ""
        axes[f"xaxis{number}"] = {"domain": [_left(i), _left(i) + 0.31], "visible": False, "fixedrange": True}
        axes[f"yaxis{number}"] = {"visible": False, "autorange": "reversed", "scaleanchor": f"x{number}",
                                  "anchor": f"x{number}", "fixedrange": True, "constrain": "domain",
                                  "constraintoward": "top"}  # fmt: skip
    pictures = [
        {"type": "heatmap", "showscale": False, "hoverinfo": "skip", "zmin": 0, "zmax": 1, **trace,
         "colorscale": [[0, "#F4F4F0"], [1, "#08306B"]], "xgap": 0, "xaxis": f"x{i + 1 if i else ''}",
         "yaxis": f"y{i + 1 if i else ''}"}
        for i, trace in enumerate(frames[0]["data"])
    ]  # fmt: skip
    layout = {
        "height": 470, **axes, **frames[0]["layout"], "margin": {"l": 8, "r": 8, "t": 60, "b": 10},
        "sliders": [{"steps": steps, "currentvalue": {"prefix": "β = "}, "x": 0.12, "len": 0.83, "pad": {"t": 30}}],
        "updatemenus": [{"type": "buttons", "buttons": [play], "x": 0.1, "y": 0, "yanchor": "top", "pad": {"t": 48}}],
    }  # fmt: skip
    text = (
        "One layer of 16 × 16 kernels (3 × 3 weights each), masks drawn by the library's sampler at rising β; dark is "
        "kept, settled is what is as in the converged mask. The weights stay the same here, while in training they "
        "adapt to the mask as it cools."
    )
    return "A mask freezes", text, {"data": pictures, "layout": layout, "frames": frames}


def picture(mask: torch.Tensor) -> list[list[int]]:
    """Kernels side by side, as a matrix of zeros and ones."""
    rows: list[list[int]] = mask.permute(0, 2, 1, 3).reshape(SIDE * KERNEL, SIDE * KERNEL).int().tolist()
    return rows


def _left(i: int) -> float:
    return 0.345 * i


def _told(i: int, kind: str, mask: torch.Tensor, limit: torch.Tensor) -> dict[str, Any]:
    kept, same = (100 * float(part.float().mean()) for part in (mask, mask == limit))
    return {"text": f"{kind}s<br>{kept:.0f} % kept<br>{same:.0f} % settled", "showarrow": False, "xref": "paper",
            "yref": "paper", "x": _left(i) + 0.155, "y": 1, "xanchor": "center", "yanchor": "bottom"}  # fmt: skip
