"""Names and numbers as the page writes them: the one place where text of results becomes text of a page."""

from __future__ import annotations

import re

from gibbsprune.text import safe

from . import cells
from .groups import Group

NETWORK = {"resnet20": "ResNet-20", "resnet56": "ResNet-56"}
NAMES = {"binary": "binary", "quadratic": "quadratic"} | {kind: f"linear {kind}" for kind in ("sign", "square", "abs")}
TASKS = {"cifar10": "CIFAR-10"}
NOTHING = "not run"
HOT = "with β to 10⁶"  # cells.FINAL_BETA


def code(name: object) -> str:
    """The same as a code span, in which a page shows everything as it is but what would end it."""
    return f"`{re.sub('[`|<>&]', '?', ' '.join(str(name).split()))}`"


def network(model: str) -> str:
    return NETWORK.get(model) or safe(model)


def task(data: str) -> str:
    return TASKS.get(data) or safe(data)


def hamiltonian(name: object) -> str:
    return NAMES.get(str(name)) or safe(name)


def share(sparsity: float) -> str:
    return f"{100 * sparsity:g} %"


def number(group: Group) -> str:
    """Mean ± deviation."""
    deviation = group.deviation()
    spread = "" if deviation is None else f" ± {deviation:.2f}"
    return f"{group.mean():.2f}{spread}"


def hot(group: Group) -> str:
    """That runs stand here in place of others that did not converge, and which, if not all."""
    seeds = hot_seeds(group)
    if not seeds:
        return ""
    return f" {HOT}" + ("" if len(seeds) == len(group.records) else f" for seed {' and '.join(map(str, seeds))}")


def hot_seeds(group: Group) -> list[int]:
    """The seeds of the runs up to the final β of those that did not converge."""
    specs = [record["spec"] for record in group.records]
    return [spec["seed"] for spec in specs if spec["recipe"]["beta_end"] == cells.FINAL_BETA]
