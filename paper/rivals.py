"""``docs/best.md``: the recipe ``best`` and its rivals on the test set, and which differences are beyond chance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gibbsprune.text import table
from gibbsprune.training import RECIPES
from gibbsprune.training.spec import RunSpec

from .extras import link
from .groups import Group, Results
from .judged import Difference, Judge, told
from .words import NETWORK, NOTHING, network, number, share

#: What runs are called, the one that is compared with the others first: method, allocation, law.
LABELS = {
    ("gibbs", "global", "rising"): "recipe `best`",
    ("gibbs", "balanced", "rising"): "recipe `best`",  # of kernels and filters
    ("gradual", "global", "rising"): "gradual, one threshold",
    ("gradual", "uniform", "rising"): "gradual, layer by layer",
    ("feedback", "global", "rising"): "feedback, one threshold",
    ("feedback", "global", "annealed"): "feedback, one threshold, recipe `modern`",
    ("rigl", "erk", "rising"): "RigL, ERK",
    ("gibbs", "uniform", "annealed"): "Gibbs pruning as published, recipe `modern`",
    ("gradual", "uniform", "annealed"): "gradual, layer by layer, recipe `modern`",
    ("dense", None, "annealed"): "dense, recipe `modern`",
    ("dense", None, "rising"): "dense",
}
OURS = next(iter(LABELS.values()))
#: What a run has otherwise than its method and its recipe have it.
WORDS = {
    "gradient": "{} gradients", "every": "masks of {} step", "weight_decay": "decay {:g}", "cutout": "cutout of {}",
}  # fmt: skip


def label(spec: RunSpec) -> str:
    """What a run is called here; its own name where nothing else is known of it."""
    known = LABELS.get((spec.method, spec.setting("allocation"), str(spec.recipe.law)))
    if known is None:
        return spec.name(with_seed=False)
    settings, usual = spec.how.settings, RECIPES[spec.recipe.name]
    own = [(name, spec.setting(name), settings[name].default(spec)) for name in settings if name in WORDS]
    own += [(name, getattr(spec.recipe, name), getattr(usual, name)) for name in ("weight_decay", "cutout")]
    return ", ".join([known, *(WORDS[name].format(value) for name, value, default in own if value != default)])


def text(results: Results, folder: Path, page: Path) -> str:
    """The whole page, to be written into the folder ``page``."""
    kinds = {_task(group.spec): None for group in results}
    parts = [
        "# The recipe `best` and its rivals",
        f"Written by `make paper` from the raw files in {link(folder, page)}; not edited by hand. CIFAR-10, test "
        "accuracy in percent of the **last** epoch, no test-time augmentation, mean ± standard deviation over seeds, "
        "their number in brackets. All are trained with the same recipe, weight decay included, and equal epochs "
        "unless a row says otherwise; none starts from a trained network. Settings were chosen on held-out training "
        f"images ({link(folder.parent / 'README.md', page, 'how')}); before its last choice the recipe had "
        "straight-through gradients, a decay of 0.0003, and masked weights that fade.",
    ]
    for kind in sorted(kinds):
        own = [group for group in results if _task(group.spec) == kind]
        parts += [f"## {_title(*kind)}", _accuracies(own), *_judged(own, folder)]
    return "\n\n".join(parts) + "\n"


def _task(spec: RunSpec) -> tuple[str, str, int]:
    return spec.model, spec.structure, spec.total_epochs


def _title(model: str, structure: str, epochs: int) -> str:
    return f"{NETWORK.get(model) or network(model)}, {structure}s, {epochs} epochs"


def _accuracies(groups: Sequence[Group]) -> str:
    """One row per method, one column per sparsity."""
    sparsities = sorted({group.spec.sparsity for group in groups if group.spec.method != "dense"})
    cells = {(label(group.spec), group.spec.sparsity): group for group in groups}
    names = sorted({label(group.spec) for group in groups}, key=_order)
    rows = []
    for name in names:
        found = [cells.get((name, sparsity)) for sparsity in sparsities]
        rows.append([name, *(NOTHING if one is None else f"{number(one)} ({len(one.records)})" for one in found)])
    return table(["method", *(share(sparsity) for sparsity in sparsities)], rows)


def _order(name: str) -> tuple[int, str]:
    """Of two that begin alike, the one with less to say comes first."""
    known = [place for place, start in enumerate(LABELS.values()) if name.startswith(start)]
    return max(known, default=len(LABELS)), name


def _ours(groups: Sequence[Group]) -> str:
    """What the others are compared with: the recipe ``best``, or where it has not been run what it was before."""
    return min((name for group in groups if (name := label(group.spec)).startswith(OURS)), default=OURS)


def differences(groups: Sequence[Group], folder: Path) -> list[Difference]:
    """The recipe ``best`` against every rival of the same sparsity."""
    judge, name = Judge(groups, folder), _ours(groups)
    ours = {group.spec.sparsity: group for group in groups if label(group.spec) == name}
    found = []
    for group in sorted(groups, key=lambda one: (_order(label(one.spec)), one.spec.sparsity)):
        best = ours.get(group.spec.sparsity)
        if best is not None and best is not group:
            found.append(judge.difference((label(group.spec), share(group.spec.sparsity)), best, group))
    return found


def _judged(groups: Sequence[Group], folder: Path) -> list[str]:
    found = differences(groups, folder)
    ours = _ours(groups)
    name = f"the {ours}," if "," in ours else f"the {ours}"  # a clause ends before what follows
    return told(found, ("against", "sparsity"), name, groups) if found else []
