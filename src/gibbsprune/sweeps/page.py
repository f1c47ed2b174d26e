"""One page of any sweep's results, with everything in it: it needs no network and no server.

Plotly draws it; the page holds Plotly's own bundle (under 5 MB), so that whoever gets the file can open it.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from ..errors import UserError, needed
from ..files import write_atomic
from ..training.spec import RunSpec

#: What is chosen by its own control, is an axis, or follows from one: no part of what a run is called.
ASIDE = {
    "data", "model", "method", "structure", "sparsity", "epochs", "stretch", "seed", "recipe.name", "recipe.epochs",
    "recipe.milestones", "recipe.anneal_epochs", "settings.from", "settings.tune_epochs", "settings.rounds",
    "settings.round",
}  # fmt: skip
#: What of a recipe means nothing to a network that is not pruned.
ANNEALING = {"anneal", "beta_start", "beta_end", "anneal_epochs", "law"}
CURVE = ("epoch", "test_accuracy", "train_accuracy", "test_loss", "loss", "agreement", "beta", "sparsity", "lr")
PERCENT = {"test_accuracy", "train_accuracy", "agreement", "sparsity"}
#: Layers whose sparsities differ by less, in points, are pruned alike: the rest is rounding to whole neighbourhoods.
UNEVEN = 1.0


def write_page(
    path: Path,
    results: Iterable[Mapping[str, Any]],
    *,
    title: str = "Results",
    about: str = "",
    label: Callable[[RunSpec], str] | None = None,
    reference: Callable[[RunSpec], float | None] = lambda spec: None,
    reference_name: str = "reference",
    figures: Sequence[tuple[str, str, Mapping[str, Any]]] = (),
) -> None:
    """Writes the page of a sweep: accuracy against sparsity, epochs or what else was varied, with every run in reach.

    Args:
        path: the file to write, such as ``index.html``.
        results: one record per run, as the sweep stores them.
        title: of the page.
        about: a sentence under the title.
        label: what a run is called, by which it is coloured; by default its method and what was varied in it.
        reference: an accuracy in percent to set beside a run's, such as a published one, or None.
        reference_name: what the page calls those accuracies.
        figures: further figures of Plotly, each with a title, a text, and its ``data``, ``layout`` and ``frames``.
    """
    words = {"title": title, "about": about, "reference": reference_name}
    further = [{"title": name, "text": text, **figure} for name, text, figure in figures]
    write_atomic(path, page_text({**page_data(results, label, reference), **words, "figures": further}))


def page_text(content: Mapping[str, Any]) -> str:
    """The page around its data; whatever the data say, they stay data."""
    here = resources.files("gibbsprune.sweeps")
    data = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    parts = {
        "data": re.sub("[<>&]", lambda match: f"\\u{ord(match[0]):04x}", data),
        "plotly": needed("plotly.offline", "the page", "report").get_plotlyjs(),
        "script": (here / "page.js").read_text(encoding="utf-8"),
    }
    template = (here / "page.html").read_text(encoding="utf-8")
    return re.sub(r"/\*(data|plotly|script)\*/", lambda match: parts[match[1]], template)  # marks within parts stay


def page_data(
    results: Iterable[Mapping[str, Any]],
    label: Callable[[RunSpec], str] | None = None,
    reference: Callable[[RunSpec], float | None] = lambda spec: None,
) -> dict[str, Any]:
    """What the page shows, as plain values: kinds of runs that differ in nothing but their seed; shares in percent."""
    found: dict[str, list[tuple[RunSpec, Mapping[str, Any]]]] = {}
    for record in results:
        spec = RunSpec.from_dict(record["spec"])
        if not _unfinished(spec):
            alike = {k: v for k, v in _flat(spec.as_dict()).items() if k not in ("seed", "settings.from")}
            found.setdefault(json.dumps(alike), []).append((spec, record))
    if not found:
        raise UserError("there are no results to show")
    groups = [sorted(members, key=lambda pair: pair[0].seed) for members in found.values()]
    kinds, specs = [[record for _, record in members] for members in groups], [members[0][0] for members in groups]
    varied, shown = _varied(specs), list[dict[str, Any]]()
    for members, spec, beside in zip(kinds, specs, _beside(specs)):
        flat, own = _flat(spec.as_dict()), varied[_group(spec)]
        named = [name for name, usual in own.items() if json.dumps(flat[name]) != usual]
        parts = [[_last(name), _text(flat[name])] for name in named if not _is_no(flat[name])]
        axes = {_last(name): flat[name] for name in own if _is_number(flat[name])}
        called = {"label": label(spec), "parts": []} if label else {"label": spec.method, "parts": parts}
        about = {"id": len(shown), **called, "reference": reference(spec), "beside": beside, "axes": axes}
        shown.append({**_kind(spec, members), **about})
    return {"kinds": shown}


def _unfinished(spec: RunSpec) -> bool:
    """Whether a run is a round of a lottery that others follow, and has not reached its sparsity."""
    number = spec.setting("round")
    return number is not None and number < spec.setting("rounds")


def _kind(spec: RunSpec, members: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over seeds, and what each seed has."""

    def mean(name: str, scale: float = 100.0) -> float | None:
        return _finite(scale * statistics.fmean(record[name] for record in members))

    accuracies = [100 * record["accuracy"] for record in members]
    rates = [100 * layer["sparsity"] for layer in members[0]["layers"]]
    even = not rates or max(rates) - min(rates) < UNEVEN
    return {
        "data": spec.data, "model": spec.model, "recipe": spec.recipe.name, "dense": not spec.how.prunes,
        "structure": spec.structure if spec.how.prunes else None,
        "sparsity": round(100 * spec.sparsity, 4) if spec.how.prunes else 0.0, "epochs": spec.total_epochs,
        "accuracy": mean("accuracy"), "recalibrated": mean("accuracy_recalibrated"), "agreement": mean("agreement"),
        "achieved": mean("sparsity"), "nonzero": mean("nonzero", 1e-3), "parameters": mean("parameters", 1e-3),
        "deviation": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        "seeds": [[record["spec"]["seed"], _finite(value)] for record, value in zip(members, accuracies)],
        "curves": [[[_point(point, name) for point in record["curve"]] for name in CURVE] for record in members],
        "layers": [] if even else [
            [layer["name"], layer["weights"], layer["kept"], 100 * layer["target"]] for layer in members[0]["layers"]
        ],
    }  # fmt: skip


def _point(point: Mapping[str, Any], name: str) -> float | None:
    value = point.get(name)
    return None if value is None else _finite(value * 100 if name in PERCENT else value)


def _finite(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _varied(specs: Sequence[RunSpec]) -> dict[tuple[str, ...], dict[str, str | None]]:
    """The fields in which runs of one group differ, each with the value that most of them have, as JSON, if any."""
    seen: dict[tuple[str, ...], dict[str, Counter[str]]] = {}
    chosen = {name for spec in specs for name in _flat(spec.as_dict()) if not _follows(spec, name)}
    for spec in specs:
        fields = seen.setdefault(_group(spec), {})
        for name, value in _flat(spec.as_dict()).items():
            if name in chosen:
                fields.setdefault(name, Counter())[json.dumps(value)] += 1
    found: dict[tuple[str, ...], dict[str, str | None]] = {}
    for group, fields in seen.items():
        differing = {name: values for name, values in fields.items() if len(values) > 1 and name not in ASIDE}
        most = {name: values.most_common(1)[0] for name, values in differing.items()}
        found[group] = {name: value if 2 * n > differing[name].total() else None for name, (value, n) in most.items()}
    return found


def _beside(specs: Sequence[RunSpec]) -> list[int | None]:
    """For each run the one of the unpruned network, trained alike; of several the nearest in length."""

    def training(spec: RunSpec) -> list[Any]:
        recipe = {name: value for name, value in spec.recipe.as_dict().items() if name not in ANNEALING}
        return [spec.data, spec.model, spec.precision, recipe]

    dense = [(i, training(spec)) for i, spec in enumerate(specs) if not spec.how.prunes]
    found = []
    for spec in specs:
        alike = [i for i, other in dense if other == training(spec)]
        found.append(min(alike, key=lambda i: abs(specs[i].total_epochs - spec.total_epochs), default=None))
    return found


def _group(spec: RunSpec) -> tuple[str, ...]:
    return spec.data, spec.model, spec.method, spec.structure, spec.recipe.name


def _flat(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A run's fields, those of its recipe and settings with a dot."""
    flat: dict[str, Any] = {}
    for name, value in spec.items():
        inner = value if isinstance(value, Mapping) else None
        flat |= {name: value} if inner is None else {f"{name}.{key}": each for key, each in inner.items()}
    return flat


def _follows(spec: RunSpec, name: str) -> bool:
    """Whether a setting has the value that it has without a word, as the law's have where the law is told."""
    setting = spec.how.settings.get(name.removeprefix("settings."))
    return name.startswith("settings.") and setting is not None and setting.default(spec) == spec.setting(_last(name))


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_no(value: Any) -> bool:
    return value is None or value is False


def _text(value: Any) -> str:
    """A value in a name; what is so needs none."""
    return f"{value:g}" if _is_number(value) else "" if value is True else str(value)
