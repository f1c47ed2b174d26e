"""``index.html``: one page with everything in it, which needs no network and no server."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gibbsprune.law import sample
from gibbsprune.schedules import LogSchedule
from gibbsprune.threshold import converged_mask
from gibbsprune.training.folder import plain
from gibbsprune.training.spec import RunSpec

from . import cells, published
from .extras import plainly
from .findings import printed
from .groups import Group, Results, family
from .words import NAMES, NETWORK, task

SIDE, KERNEL, FRAMES = 16, 3, 33
METHODS = {
    "magnitude": "Han et al.", "filter-l1": "Li et al.", "lottery": "IMP with rewinding", "thinet": "ThiNet",
    "random-mask": "random mask", "reinit": "re-initialisation",
}  # fmt: skip


def page_text(results: Results) -> str:
    """The page with its style, script and data inside."""
    files = Path(__file__).with_name("page")
    text = (files / "page.html").read_text(encoding="utf-8")
    content = json.dumps(plain(page_data(results)), ensure_ascii=False, separators=(",", ":"))
    content = content.replace("</", "<\\/")  # nothing in the data may end the script element
    for mark, part in (
        ("/*STYLE*/", (files / "page.css").read_text(encoding="utf-8")),
        ("/*DATA*/", content),
        ("/*SCRIPT*/", (files / "page.js").read_text(encoding="utf-8")),
    ):
        text = text.replace(mark, part, 1)
    return text


def page_data(results: Results) -> dict[str, Any]:
    """What the page shows, as plain values; shares in percent."""
    theirs = {family(spec): value for model in cells.MODELS for spec, value in printed(model)}
    for model in cells.MODELS:
        theirs[family(cells.run(model))] = published.HAMILTONIANS["weight"][model]["square"]
    shown = [group for group in results if not _part(group.spec)]
    made = [_cell(i, group, theirs.get(family(group.spec))) for i, group in enumerate(shown)]
    wanted = cells.wanted(results.by_name)
    labels = sorted({cell["label"] for cell in made if cell["method"] != "dense"}, key=_order)
    made.sort(key=lambda cell: (cell["model"], cell["recipe"] != "paper", _order(cell["label"]), cell["epochs"]))
    return {
        "cells": made,
        "labels": labels,
        "tasks": sorted({task(group.spec.data) for group in results}),
        "annealing": {structure: annealing(structure) for structure in cells.SPARSITY},
        "done": sum(cell.name in results.by_name for cell in wanted),
        "total": len(wanted),
    }


def _part(spec: RunSpec) -> bool:
    """Whether a run is a round of a lottery that others follow."""
    number = spec.setting("round") if spec.method == "lottery" else None
    return number is not None and number < spec.setting("rounds")


def _order(label: str) -> tuple[bool, bool, str]:
    """Gibbs pruning first, with the paper's choice of Hamiltonian before the others."""
    return not label.startswith("Gibbs"), label not in ("Gibbs, linear square", "Gibbs, quadratic"), label


def _cell(number: int, group: Group, theirs: float | None) -> dict[str, Any]:
    spec, first = group.spec, group.records[0]
    name = label(spec)
    effort = ", ".join(
        f"{key} {value}" for key, value in dict(spec.settings).items() if key in ("tune_epochs", "rounds")
    )
    title = name
    if spec.how.prunes:
        title += f", {spec.structure}-wise {100 * spec.sparsity:g} %"
    title += f", {NETWORK.get(spec.model, spec.model)}, {group.epochs} epochs"
    if spec.stretch > 1:
        title += f" (stretch {spec.stretch})"
    if spec.recipe.name != "paper":
        title += f", recipe {spec.recipe.name}"
    return {
        "id": number, "title": title, "label": name, "model": spec.model, "method": spec.method,
        "structure": spec.structure if spec.how.prunes else None, "recipe": spec.recipe.name,
        "stretch": spec.stretch, "shift": spec.recipe.shift,
        "effort": effort, "epochs": group.epochs, "target": round(100 * spec.sparsity, 4) if spec.how.prunes else 0,
        "accuracy": group.mean(), "deviation": group.deviation(), "recalibrated": group.mean("accuracy_recalibrated"),
        "agreement": group.mean("agreement"), "sparsity": group.mean("sparsity"), "nonzero": first["nonzero"],
        "parameters": first["parameters"], "seeds": len(group.records), "paper": theirs,
        "layers": [[layer["name"], layer["weights"], layer["kept"]] for layer in first["layers"]],
    }  # fmt: skip


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


def annealing(structure: str, draw: Callable[..., torch.Tensor] = sample) -> dict[str, Any]:
    """Masks of one made-up layer along the paper's schedule of β, packed row by row of its picture."""
    generator = torch.Generator().manual_seed(0)
    weight = 0.08 * torch.randn(SIDE, SIDE, KERNEL, KERNEL, generator=generator)
    weight *= torch.exp(0.5 * torch.randn(SIDE, SIDE, 1, 1, generator=generator))  # kernels differ, as trained ones do
    weight *= torch.exp(0.3 * torch.randn(SIDE, 1, 1, 1, generator=generator))
    sparsity = cells.SPARSITY[structure]
    limit = converged_mask(weight, sparsity, structure)
    schedule, frames = LogSchedule(0.7, 1e4, 128), []
    for k in range(FRAMES):
        epoch = round(128 * k / (FRAMES - 1))
        mask = draw(weight, None, structure, sparsity, schedule(epoch), generator=generator)[0]
        picture = mask.permute(0, 2, 1, 3).reshape(SIDE * KERNEL, SIDE * KERNEL).numpy()
        frames.append({
            "beta": schedule(epoch), "epoch": epoch, "kept": float(mask.float().mean()),
            "agreement": float((mask == limit).float().mean()),
            "bits": base64.b64encode(np.packbits(picture).tobytes()).decode(),
        })  # fmt: skip
    return {"side": SIDE, "kernel": KERNEL, "sparsity": sparsity, "frames": frames}
