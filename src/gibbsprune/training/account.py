"""``summary.md``: what a run did and found, in words, tables and pictures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..files import write_atomic
from ..law import CONVERGED
from ..structures import as_structure
from ..text import clock, percent, table, told
from . import pictures
from .folder import RunFolder, run_names
from .snapshots import load_snapshots
from .spec import RunSpec


def write_summary(folder: RunFolder, results: Sequence[dict[str, Any]]) -> None:
    """Writes ``summary.md`` and its pictures into the folder of a finished run or fleet."""
    failed = ""
    try:
        drawn = _draw(folder, results) if pictures.available() else None
    except Exception as error:  # whatever it is: a picture must never cost a run
        drawn, failed = [], f"\nThe pictures could not be drawn ({told(error)}).\n"
    write_atomic(folder.path / "summary.md", summary_text(folder, results, drawn) + failed)


def summary_text(folder: RunFolder, results: Sequence[dict[str, Any]], drawn: Sequence[str] | None) -> str:
    """The text of the summary; ``drawn`` names the pictures beside it, None says that none could be drawn."""
    spec, mixed = folder.specs[0], is_mixed(folder.specs)
    annealed = any(_annealed(one) for one in folder.specs)
    parts = [
        f"# {folder.path.name}",
        f"{len(results)} runs of {spec.model} on {spec.data}, trained together." if mixed else headline(spec, results),
        "## Result",
        result_table(folder.specs, results),
        result_note(folder.specs) if annealed else PLAIN_NOTE,
    ]
    if drawn is None:
        parts.append("No pictures: matplotlib is not installed (`pip install 'gibbsprune[demo]'`).")
    elif drawn:
        captions = CAPTIONS if annealed else CAPTIONS | COLD_CAPTIONS
        parts.append("## Pictures")
        parts += [f"![{captions[name]}]({name})\n\n{captions[name]}" for name in drawn]
    layers = results[0].get("layers") or []
    if layers and not mixed:
        title = "## Layers" if len(results) == 1 else f"## Layers of seed {spec.seed}"
        parts += [title, layer_table(layers)]
    parts += [
        "## Settings of the first run" if mixed else "## Settings",
        settings_table(folder),
        "## Files",
        _files(folder),
    ]
    return "\n\n".join(parts) + "\n"


def result_note(specs: Sequence[RunSpec]) -> str:
    """What the columns of annealed runs mean."""
    ends = {spec.recipe.final for spec in specs if _annealed(spec)}
    final = {"sample": "which is one more draw from the law", "converged": "which is the converged one"}
    which = final[ends.pop()] if len(ends) == 1 else "one more draw from the law or the converged one"
    return (
        f"Test accuracy of the last epoch: with the final mask, {which}; with the converged mask; and with the final "
        "mask after re-estimating the batch-norm statistics on training data. Agreement is the share of weights on "
        f"which one more draw equals the converged mask: from {CONVERGED} on the masks count as converged."
    )


PLAIN_NOTE = (
    "Test accuracy of the last epoch with the final mask, and again after re-estimating the batch-norm statistics on "
    "training data with that mask: they are stale where training saw other masks, as in targeted dropout and l1."
)

CAPTIONS = {
    "curves.png": "Accuracy and loss over the epochs. The test curve uses the converged mask, "
    "the training curve the masks as they are drawn.",
    "annealing.png": "As β rises the drawn masks freeze into the converged one.",
    "layers.png": "The sparsity reached in each layer, beside its target.",
    "masks.png": "One layer's mask at rising β: noise first, then the structure that stays.",
}


COLD_CAPTIONS = {
    "curves.png": "Accuracy and loss over the epochs.",
    "rising.png": "The sparsity rises, and is then held.",
    "masks.png": "One layer's mask while the sparsity rises.",
}


def _annealed(spec: RunSpec) -> bool:
    """Whether masks are drawn at a temperature that falls."""
    return spec.method == "gibbs" and not spec.how.cold(spec)


def is_mixed(specs: Sequence[RunSpec]) -> bool:
    """Whether runs of a fleet differ in more than their seeds."""
    return len({spec.name(with_seed=False) for spec in specs}) > 1


def headline(spec: RunSpec, results: Sequence[dict[str, Any]]) -> str:
    """The result in one sentence."""
    accuracies = [result["accuracy"] for result in results]
    reached = f"**{percent(statistics.fmean(accuracies))}**"
    if len(results) > 1:
        reached += f" ± {100 * statistics.stdev(accuracies):.2f} ({len(results)} seeds)"
    if not spec.how.prunes:
        return f"{spec.model} on {spec.data}, {spec.method}, reached {reached} test accuracy."
    nonzero, parameters = results[0]["nonzero"], results[0]["parameters"]
    agreement = min(result.get("agreement") or 1.0 for result in results)
    drawn, caution = _annealed(spec) and spec.recipe.final == "sample", ""
    if agreement < CONVERGED and _annealed(spec):
        caution = (
            f" The masks have not converged: only {percent(agreement)} of the last draw is as in the converged mask, "
            f"so that {'the sparsity is not exact' if drawn else 'it was trained with other masks than it ends with'}; "
            "anneal to a higher β (--beta-end) or over more epochs."
        )
    if lagged := [result["lagged"] for result in results if "lagged" in result]:
        caution += (
            f" Its sparsity rose until {lagged[0]['steps']} steps before the end, too few for its batch norms to "
            "follow: their statistics are estimated anew on training images. With those that training left it reaches "
            f"{percent(statistics.fmean(one['accuracy'] for one in lagged))}."
        )
    if drawn and len(results) == 1 and results[0]["accuracy"] != results[0]["accuracy_converged"]:
        reached += (
            f" (the final mask is one more draw from the law; with the converged mask, as in the epochs' lines, it is "
            f"{percent(results[0]['accuracy_converged'])}; --final chooses)"
        )
    return (
        f"{spec.model} on {spec.data}, pruned {as_structure(spec.structure).manner} by {spec.method} to a sparsity of "
        f"{percent(results[0]['sparsity'])}, {nonzero:,} of {parameters:,} parameters left, reached a test accuracy of "
        f"{reached}.{caution}"
    )


def result_table(specs: Sequence[RunSpec], results: Sequence[dict[str, Any]]) -> str:
    """One row per run."""
    header = ["run", "accuracy", "converged mask", "recalibrated"]
    header += ["agreement", "sparsity", "parameters", "nonzero", "time"]
    labels = run_names(specs) if is_mixed(specs) else [f"seed {spec.seed}" for spec in specs]
    rows = [
        [
            label,
            percent(result["accuracy"]),
            percent(result.get("accuracy_converged")),
            percent(result.get("accuracy_recalibrated")),
            percent(result.get("agreement")),
            percent(result.get("sparsity")),
            f"{result['parameters']:,}",
            f"{result['nonzero']:,}",
            clock(result.get("seconds", math.nan)),
        ]
        for label, result in zip(labels, results)
    ]
    return table(header, rows)


def layer_table(layers: Sequence[dict[str, Any]]) -> str:
    """One row per pruned layer."""
    rows = [
        [
            f"`{layer['name']}`",
            f"{layer['weights']:,}",
            f"{layer['neighbourhoods']:,}",
            f"{layer['kept']:,}",
            percent(layer["target"]),
            percent(layer["sparsity"]),
        ]
        for layer in layers
    ]
    return table(["layer", "weights", "neighbourhoods", "weights kept", "target", "sparsity"], rows)


def settings_table(folder: RunFolder) -> str:
    """What the run was told, from its record."""
    spec = folder.specs[0]
    rows = [
        [key, f"{value}"]
        for key, value in spec.as_dict().items()
        if key not in ("recipe", "seed", "settings") and value is not None
    ]
    rows += [[key, f"{value}"] for key, value in dict(spec.settings).items() if value is not None]
    rows.append(["seed", ", ".join(str(s.seed) for s in folder.specs)])
    rows += [[f"recipe: {key}", f"{value}"] for key, value in spec.recipe.as_dict().items()]
    hardware = folder.record.get("hardware", {})
    rows.append(["device", str(hardware.get("gpu") or hardware.get("cpu") or "unknown")])
    rows.append(["torch", str(folder.record.get("versions", {}).get("torch", "unknown"))])
    return table(["setting", "value"], rows, left=2)


def _draw(folder: RunFolder, results: Sequence[dict[str, Any]]) -> list[str]:
    """Draws what there is to draw; its names."""
    if is_mixed(folder.specs):
        return []  # curves of different methods have no common mean
    histories = [result["curve"] for result in results if result["curve"]]
    here = Path(str(folder.path))
    spec = folder.specs[0]
    dense, annealed = not spec.how.prunes, _annealed(spec)
    drawn = []
    if histories:
        pictures.draw_curves(here / "curves.png", histories, dense or not annealed)
        drawn.append("curves.png")
    if dense:
        return drawn
    if histories and annealed:
        pictures.draw_annealing(here / "annealing.png", histories)
        drawn.append("annealing.png")
    elif histories and spec.how.cold(spec) and "sparsity" in histories[0][0]:
        pictures.draw_rising(here / "rising.png", histories)
        drawn.append("rising.png")
    if results[0].get("layers"):
        pictures.draw_layers(here / "layers.png", results[0]["layers"])
        drawn.append("layers.png")
    snapshots = load_snapshots(folder.runs[0] / "snapshots")
    if snapshots:
        pictures.draw_masks(here / "masks.png", snapshots)
        drawn.append("masks.png")
    return drawn


def _files(folder: RunFolder) -> str:
    inside = "" if len(folder.runs) == 1 else f"{folder.runs[0].name}/"
    kept = any(spec.how.keeps for spec in folder.specs)
    return "\n".join(
        [
            "- `run.json`: everything the run was told, with versions and hardware",
            f"- `{inside}metrics.jsonl`: one line per epoch",
            f"- `{inside}result.json`: the final figures, layer by layer",
            f"- `{inside}model.safetensors`: the trained weights, pruned ones zero",
            f"- `{inside}masks.safetensors`: which weights are kept (dense runs have none)",
            *([f"- `{inside}kept.safetensors`: states from the way, for runs that start from this one"] * kept),
        ]
    )
