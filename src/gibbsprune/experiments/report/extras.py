"""What stands on the page of results beside the paper's tables: stronger results, variations, tuning, cells not run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...training.places import Place, files
from ...training.recipes import RECIPES
from ...training.spec import COUPLING, RunSpec
from ...training.summary import table
from .. import paper
from .findings import NAMES, NETWORK, NOTHING, number
from .groups import Results, family

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
    for model in paper.MODELS:
        for spec in paper.modern(model):
            what = "dense" if spec.method == "dense" else f"Gibbs pruning, stretch {spec.stretch}"
            group = results.of(spec)
            share = "0 %" if spec.method == "dense" else f"{100 * spec.sparsity:g} %"
            shown = NOTHING if group is None else number(group)
            rows.append([NETWORK[model], f"ours: {what}", str(spec.total_epochs), share, shown])
        rows += [
            [NETWORK[model], what, epochs, share, f"{value:.2f}"]
            for name, what, epochs, share, value in STRONGER
            if name == model
        ]
    text = "Weight-wise Gibbs pruning with the recipe `modern` (SGD, cosine), beside the strongest published results."
    return ["## Beyond the paper", text, table(["network", "method", "epochs", "sparsity", "accuracy"], rows, left=2)]


def variations(results: Results) -> list[str]:
    """Results that no table and no figure of the paper asks for, beside those that differ from them in one thing."""
    asked = [cell.spec for cell in paper.cells() if cell.places != ("Variations",)]
    known = {family(spec) for one in asked for spec in (one, paper.follow_up(one)) if spec is not None}
    rows = []
    for key, group in sorted(results.groups.items(), key=lambda pair: pair[1].spec.name()):
        if key not in known:
            change, plain = plainly(group.spec)
            usual = results.of(plain) if change else None
            rows.append([
                f"`{group.records[0]['name']}`", change, str(group.epochs), number(group),
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


def tuning(folder: Place) -> list[str]:
    """What ``gibbsprune suite tune`` found."""
    parts = ["## Tuning"]
    found = files(folder, "*.json")
    if not found:
        text = f"`gibbsprune suite tune`: {NOTHING}; β ranges and the coupling are the defaults of the library."
        return [*parts, text]
    for file in found:
        record = json.loads(file.read_text())
        rows = [
            [
                f"{row['structure']}, {NAMES[row['hamiltonian']]}",
                in_words(row["change"]) or "default",
                f"{100 * row['mean']:.2f}",
                f"{100 * row['agreement']:.2f}",
                _verdict(row, record["choice"]),
            ]
            for row in record["evidence"]
        ]
        parts.append(
            f"{record['model']}, {record['epochs']} epochs, seeds {', '.join(map(str, record['seeds']))}, on "
            f"{record['held_out_training_images']:,} held-out training images ([raw](../results/tune/{file.name})). "
            "The default stays unless another, whose masks converge "
            f"({100 * record['converged']:g} % or more), is better by {100 * record['margin']:g} points. Few seeds "
            "differ by more than that by chance: it says what to try. The tables keep the defaults and the paper's c; "
            "what is chosen is tried at full length under *Variations*."
        )
        parts.append(table(["Hamiltonian", "change", "accuracy", "agreement, %", ""], rows, left=2))
    return parts


def _verdict(row: dict[str, Any], choice: dict[str, Any]) -> str:
    return "chosen" if choice[f"{row['structure']}-{row['hamiltonian']}"] == row["change"] else ""


def not_run(specs: Sequence[RunSpec]) -> list[str]:
    if not specs:
        return []
    counts: dict[str, int] = {}
    for spec in specs:
        counts[f"{NETWORK[spec.model]}, {spec.method}"] = counts.get(f"{NETWORK[spec.model]}, {spec.method}", 0) + 1
    return [f"## {NOTHING.capitalize()}", table(["cells", "number"], [[k, str(v)] for k, v in sorted(counts.items())])]
