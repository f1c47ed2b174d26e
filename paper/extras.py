"""What stands on the page of results beside the paper's tables: stronger results, variations, tuning, cells not run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gibbsprune.errors import UserError
from gibbsprune.text import safe, table
from gibbsprune.training.recipes import RECIPES
from gibbsprune.training.spec import COUPLING, RunSpec

from . import cells
from .groups import Results, family, read_text
from .words import HOT, NETWORK, NOTHING, code, hamiltonian, hot, network, number

#: Stronger published results on CIFAR-10, last epoch: network, what, total epochs, sparsity of convolutions, accuracy.
STRONGER = [
    ("resnet56", "iterative learning-rate rewinding (Renda et al. 2020)", "1820–3094", "89.3 %", 93.58),
    ("resnet56", "the same", "", "94.5 %", 92.96),
    ("resnet56", "the same", "", "97.75 %", 91.26),
    ("resnet56", "one-shot learning-rate rewinding", "364", "89.3 %", 92.34),
    ("resnet20", "iterative learning-rate rewinding", "1820–3094", "89.3 %", 91.04),
    ("resnet20", "one-shot learning-rate rewinding", "364", "89.3 %", 89.20),
]


def beyond(results: Results) -> list[str]:
    """The recipe ``modern``, beside stronger published results."""
    rows = []
    for model in cells.MODELS:
        for spec in cells.modern(model):
            what = "dense" if spec.method == "dense" else f"Gibbs pruning, stretch {spec.stretch}"
            group = results.of(spec)
            share = "0 %" if spec.method == "dense" else f"{100 * spec.sparsity:g} %"
            what, shown = (what, NOTHING) if group is None else (what + hot(group), number(group))
            rows.append([NETWORK[model], f"ours: {what}", str(spec.total_epochs), share, shown])
        rows += [
            [NETWORK[model], what, epochs, share, f"{value:.2f}"]
            for name, what, epochs, share, value in STRONGER
            if name == model
        ]
    text = "Weight-wise Gibbs pruning with the recipe `modern` (SGD, cosine), beside the strongest published results."
    return ["## Beyond the paper", text, table(["network", "method", "epochs", "sparsity", "accuracy"], rows, left=2)]


def run_again(results: Results) -> list[str]:
    """Runs whose place in tables and figures another has taken, seed by seed."""
    rows = []
    for key, other in _asked().items():
        first, second = (results.groups.get(name) for name in (key, other))
        if first is None or second is None or first is second:
            continue
        again = {record["spec"]["seed"]: record for record in second.records}
        for record in first.records:
            if (seed := record["spec"]["seed"]) in again:
                values = [one[name] for one in (record, again[seed]) for name in ("accuracy", "agreement")]
                rows.append([code(record["name"]), str(first.epochs), *(f"{100 * value:.2f}" for value in values)])
    if not rows:
        return []
    header = ["run", "epochs", "accuracy", "agreement, %", f"accuracy {HOT}", f"agreement {HOT}, %"]
    text = (
        f"Stretched runs whose last draw agrees with the converged mask in less than {100 * cells.CONVERGED:g} % of "
        f"the weights are run again {HOT}. Statements, tables and figures show the second run and say so; here is the "
        "first beside it."
    )
    return ["## Run again", text, table(header, rows)]


def _asked() -> dict[str, str]:
    """Everything but variations, each with what may take its place, or with itself."""
    return {family(spec): family(cells.follow_up(spec) or spec) for spec in cells.asked()}


def variations(results: Results) -> list[str]:
    """Results that no table and no figure of the paper asks for, beside those that differ from them in one thing."""
    asked = _asked()
    known = {*asked, *asked.values()}
    rows = []
    for key, group in sorted(results.groups.items(), key=lambda pair: pair[1].spec.name()):
        if key not in known:
            change, plain = plainly(group.spec)
            usual = results.groups.get(family(plain)) if change else None
            rows.append([
                code(group.records[0]["name"]), change, str(group.epochs), number(group),
                "" if usual is None else number(usual), f"{group.mean('accuracy_recalibrated'):.2f}",
                f"{group.mean('sparsity'):.2f}", f"{group.mean('agreement'):.2f}", str(len(group.records)),
            ])  # fmt: skip
    if not rows:
        return []
    header = ["run", "change", "epochs", "accuracy", "without", "recalibrated", "sparsity, %", "agreement, %", "seeds"]
    text = "Runs beside the paper's evaluation: what was changed, and the accuracy with and without it."
    return ["## Variations", text, table(header, rows, left=2)]


def plainly(spec: RunSpec) -> tuple[str, RunSpec]:
    """What is changed in a run against its recipe, the paper's c and rate of fine-tuning; and the run without."""
    usual = RECIPES.get(spec.recipe.name, spec.recipe)
    names = [name for name in ("shift", "beta_start", "beta_end") if getattr(spec.recipe, name) != getattr(usual, name)]
    changes = {name: getattr(spec.recipe, name) for name in names}
    plain = spec.replace(recipe=spec.recipe.replace(**{name: getattr(usual, name) for name in names}))
    if spec.method == "gibbs" and spec.coupling != COUPLING:
        changes["coupling"], plain = spec.coupling, plain.replace(coupling=COUPLING)
    if "tune_rate" in spec.how.settings and spec.setting("tune_rate") != spec.how.settings["tune_rate"].default(spec):
        changes["tune_rate"] = spec.setting("tune_rate")
        plain = plain.replace(settings={k: v for k, v in dict(plain.settings).items() if k != "tune_rate"})
    return in_words(changes), plain


def in_words(changes: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in changes.items())


def link(target: Path, page: Path, text: str | None = None) -> str:
    """A file or folder as seen from the folder of the page."""
    target = Path(os.path.abspath(target))  # called the same however the path was given
    return f"[{text or f'`{target.parent.name}/{target.name}`'}]({os.path.relpath(target, page)})"


def tuning(folder: Path, page: Path) -> list[str]:
    """What ``gibbsprune tune`` found; links are seen from the folder ``page``."""
    parts = ["## Tuning"]
    found = sorted(file for file in folder.glob("*.json") if not file.name.startswith("."))
    if not found:
        text = f"`gibbsprune tune`: {NOTHING}; β ranges and the coupling are the defaults of the library."
        return [*parts, text]
    for file in found:
        text = read_text(file)
        try:
            parts += _tuned(json.loads(text), link(file, page, "raw"))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            what = f"it lacks {error}" if isinstance(error, KeyError) else error
            raise UserError(f"{file} is not what gibbsprune tune writes: {what}; move it away") from None
    return parts


def _tuned(record: dict[str, Any], raw: str) -> list[str]:
    rows = [
        [
            f"{safe(row['structure'])}, {hamiltonian(row['hamiltonian'])}",
            safe(in_words(row["change"])) or "default",
            f"{100 * row['mean']:.2f}",
            f"{100 * row['agreement']:.2f}",
            _verdict(row, record["choice"]),
        ]
        for row in record["evidence"]
    ]
    text = (
        f"{network(record['model'])}, {record['epochs']:d} epochs, seeds {', '.join(map(safe, record['seeds']))}, on "
        f"{record['held_out_training_images']:,} held-out training images ({raw}). The default stays unless another, "
        f"whose masks converge ({100 * record['converged']:g} % or more), is better by {100 * record['margin']:g} "
        "points. Few seeds differ by more than that by chance: it says what to try. The tables keep the defaults and "
        "the paper's c; what is chosen is tried at full length under *Variations*."
    )
    return [text, table(["Hamiltonian", "change", "accuracy", "agreement, %", ""], rows, left=2)]


def _verdict(row: dict[str, Any], choice: dict[str, Any]) -> str:
    return "chosen" if choice[f"{row['structure']}-{row['hamiltonian']}"] == row["change"] else ""


def not_run(specs: Sequence[RunSpec]) -> list[str]:
    if not specs:
        return []
    counts: dict[str, int] = {}
    for spec in specs:
        counts[f"{NETWORK[spec.model]}, {spec.method}"] = counts.get(f"{NETWORK[spec.model]}, {spec.method}", 0) + 1
    return [f"## {NOTHING.capitalize()}", table(["cells", "number"], [[k, str(v)] for k, v in sorted(counts.items())])]
