"""``docs/results.md``: every table of the paper with ours beside it, computed statements, and what was not run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gibbsprune.models import build
from gibbsprune.models.describe import describe
from gibbsprune.text import safe, table
from gibbsprune.training.spec import RunSpec

from . import cells, extras, published
from .chance import Chance
from .findings import FIRST, THEN, Asked, answers
from .groups import Group, Results, read_text
from .sentences import lines
from .words import NAMES, NETWORK, NOTHING, hot, number, share, task

FIGURES = {
    "3": "Unstructured methods at 90 %, accuracy against total epochs.",
    "4": "Points lost against the dense network, by sparsity and stretch (unstructured Gibbs pruning).",
    "5": "Kernel-wise methods at 90 %, accuracy against total epochs.",
    "6": "Filter-wise methods at 75 %, accuracy against total epochs.",
}
METHODS = {"random-mask": "random mask", "reinit": "random re-initialisation", "gibbs": "Gibbs pruning"}

NOTES = Path(__file__).with_name("notes.md")


def results_text(results: Results, folder: Path, images: str, page: Path) -> str:
    """The whole page, to be written into the folder ``page``; ``images`` is where the figures lie, seen from it."""
    wanted = cells.wanted(results.by_name)
    lacking = [cell.spec for cell in wanted if cell.name not in results.by_name]
    parts = [
        "# Results",
        f"Written by `make paper` from the raw files in {extras.link(folder, page)}; not edited by hand. "
        f"{' and '.join(sorted({task(group.spec.data) for group in results}))}, test accuracy in percent of the "
        "**last** epoch at the final mask, no test-time augmentation; mean ± standard deviation over seeds where there "
        "are several, their number in brackets. “Paper” is Labach & Valaee, "
        "[arXiv:2006.04981](https://arxiv.org/abs/2006.04981). Networks, recipes and methods are checked in.",
        f"{len(wanted) - len(lacking)} of {len(wanted)} cells have been run. {_machines(results)} After the tables and "
        "figures: [what they say](#what-the-results-say), and [notes](#notes).",
        *_statements(results, FIRST),
        *table1(),
        *table2(results),
        *table3(results),
        *table4(results),
        *(text for number_ in FIGURES for text in figure(number_, results, images)),
        *extras.beyond(results),
        "## What the results say",
        _judged(results),
        *_statements(results, THEN),
        *extras.run_again(results),
        *extras.variations(results),
        *extras.tuning(folder.parent / "tune", page),
        *extras.not_run(lacking),
        "## Notes",
        read_text(NOTES).strip(),
    ]
    return "\n\n".join(parts) + "\n"


def _judged(results: Results) -> str:
    """How chance is told from difference, with the deviations that are taken."""
    chance = Chance(results)
    limits = ", ".join(f"{kind}-wise {chance.upper(kind):.2f}" for kind in cells.SPARSITY)
    return (
        "Computed from the results, above as well as here. “Beyond chance” is judged with the upper 95 % limit of the "
        "standard deviation between seeds, pooled over all kinds of runs of a structure with several seeds (in points: "
        f"{limits}), and with Holm's correction for all comparisons of a question, at 5 %. The paper's accuracies are "
        "taken as single runs. “One seed” says that one side of a comparison, or both, rests on a single training."
    )


def _machines(results: Results) -> str:
    seen = {_machine(record["environment"]) for record in results.by_name.values()} - {""}
    return f"Hardware: {'; '.join(sorted(seen))}." if seen else ""


def _machine(environment: dict[str, Any]) -> str:
    """As much as a result says of where it was made."""
    found = (environment.get("hardware"), environment.get("versions"))
    hardware, versions = (part if isinstance(part, dict) else {} for part in found)
    name, torch = hardware.get("gpu") or hardware.get("cpu"), versions.get("torch")
    return ", ".join([*([safe(name)] if name else []), *([f"torch {safe(torch)}"] if torch else [])])


def _statements(results: Results, questions: dict[str, Asked]) -> Iterable[str]:
    for answer in answers(results, questions):
        yield f"**{answer.question}**"
        yield "\n".join(f"- {line}" for line in lines(answer))


# -- tables ------------------------------------------------------------------------------------------------------------


def table1() -> list[str]:
    """Table I, recomputed."""
    rows = []
    counts = {model: {row.name: row for row in describe(build(model, 10, 3))} for model in cells.MODELS}
    for name in published.PARAMETERS["resnet20"]:
        row = [name]
        for model in cells.MODELS:
            mine, theirs = counts[model][name], published.PARAMETERS[model][name]
            row += [f"{mine.values:,}", f"{mine.percent:.2f} %", f"{theirs:.2f} %"]
        rows.append(row)
    header = [
        "parameters",
        *(f"{NETWORK[model]}{what}" for model in cells.MODELS for what in ("", ", share", ", paper")),
    ]
    return ["## Table I: where the parameters are", table(header, rows)]


def beside(group: Group | None, theirs: float | None) -> list[str]:
    """Ours with the number of seeds, the paper's, and the difference."""
    paper_text = "–" if theirs is None else f"{theirs:.1f}"
    if group is None:
        return [NOTHING, paper_text, ""]
    gap = "" if theirs is None else f"{group.mean() - theirs:+.2f}"
    return [f"{number(group)} ({len(group.records)})", paper_text, gap]


COLUMNS = ("ours (seeds)", "paper", "difference")


def _both(title: str) -> list[str]:
    return [title, *(f"{NETWORK[model]} {column}" for model in cells.MODELS for column in COLUMNS)]


def _row(label: str, results: Results, specs: Sequence[RunSpec], theirs: Sequence[float | None]) -> list[str]:
    return [label, *(text for spec, value in zip(specs, theirs) for text in beside(results.of(spec), value))]


def table2(results: Results) -> list[str]:
    specs = [cells.dense(model) for model in cells.MODELS]
    rows = [_row("dense", results, specs, [published.DENSE[model] for model in cells.MODELS])]
    rows += _hamiltonian_rows(results, "weight")
    return ["## Table II: Hamiltonians, unstructured, 90 %", table(_both("Hamiltonian"), rows)]


def table4(results: Results) -> list[str]:
    parts = ["## Table IV: Hamiltonians, structured"]
    for structure in ("kernel", "filter"):
        rows = _hamiltonian_rows(results, structure)
        parts += [
            f"### {structure.capitalize()}-wise, {share(cells.SPARSITY[structure])}",
            table(_both("Hamiltonian"), rows),
        ]
    parts.append(
        "The paper samples kernels by enumeration and filters by the chromatic chain, whose law leaves out the "
        "couplings inside each of its halves. “Exact” is this library's own sampler of the quadratic law with all of "
        "them; it is what Gibbs pruning of filters uses where this page does not name the chain."
    )
    return parts


def _hamiltonian_rows(results: Results, structure: str) -> list[list[str]]:
    rows = []
    for name in cells.HAMILTONIANS[structure]:
        theirs: list[float | None] = [published.HAMILTONIANS[structure][model][name] for model in cells.MODELS]
        specs = [cells.run(model, structure=structure, hamiltonian=name) for model in cells.MODELS]
        if (structure, name) == ("filter", "quadratic"):
            chain = [cells.as_printed(model, structure, name) for model in cells.MODELS]
            rows.append(_row("quadratic, chromatic", results, chain, theirs))
            rows.append(_row("quadratic, exact", results, specs, [None, None]))
        else:
            rows.append(_row(NAMES[name], results, specs, theirs))
    return rows


def table3(results: Results) -> list[str]:
    parts = ["## Table III: random masks and re-initialisation"]
    header = ["method", "sparsity", *(f"{NETWORK[model]} {column}" for model in cells.MODELS for column in COLUMNS)]
    header += [f"{NETWORK[model]} achieved, %" for model in cells.MODELS]
    rows = []
    for method, label in METHODS.items():
        for p in cells.RATES:
            make = cells.reinit if method == "reinit" else lambda model, p: cells.run(model, method, sparsity=p)  # noqa: B023
            theirs = [published.RANDOM[model][method][p] for model in cells.MODELS]
            specs = [make(model, p) for model in cells.MODELS]
            row = _row(label, results, specs, theirs)
            found = [results.of(spec) for spec in specs]
            achieved = ["" if group is None else f"{group.mean('sparsity'):.2f}" for group in found]
            rows.append([row[0], share(p), *row[1:], *achieved])
    return [*parts, table(header, rows, left=2)]


# -- figures -----------------------------------------------------------------------------------------------------------


def figure(number_: str, results: Results, images: str) -> list[str]:
    """A figure with the table of its points."""
    rows = []
    for model in cells.MODELS:
        for series in cells.FIGURES[number_](model):
            for spec in series.specs:
                group = results.of(spec)
                label = f"{series.label}, {share(spec.sparsity)}" if number_ == "4" else series.label
                if group is None:
                    rows.append([NETWORK[model], label, str(spec.total_epochs), NOTHING, "", "", "0"])
                    continue
                rows.append([
                    NETWORK[model], label + hot(group), str(spec.total_epochs), number(group),
                    f"{group.mean('accuracy_recalibrated'):.2f}", f"{group.mean('sparsity'):.2f}",
                    str(len(group.records)),
                ])  # fmt: skip
    header = ["network", "method", "epochs", "accuracy", "recalibrated", "sparsity, %", "seeds"]
    return [
        f"## Figure {number_}",
        f'<picture><source media="(max-width: 600px)" srcset="{images}/figure{number_}-narrow.svg">'
        f'<img src="{images}/figure{number_}.svg" alt="Figure {number_}: {FIGURES[number_]}"></picture>',
        FIGURES[number_] + " Recalibrated: after re-estimating batch-norm statistics on training data.",
        table(header, rows, left=2),
    ]
