"""Where a network's values lie: first convolution, batch norm, dense layers, the other convolutions.

Batch norm is counted as four values per channel: scale, shift, running mean and running variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import UninitializedParameter

from ..errors import UserError
from ..text import shown

NOTE = (
    "all counts batch norm as four values per channel, as the paper's Table I does; trained are the parameters,\n"
    "without its running mean and variance, as everything else here counts them."
)
ROWS = ("first conv", "batch norm", "dense", "other convs")


@dataclass(frozen=True)
class Part:
    """A part of a network: how many values it holds, and their share of all, in percent."""

    name: str
    values: int
    percent: float


def describe(model: nn.Module) -> list[Part]:
    """The rows "first conv", "batch norm", "dense", "other convs", then "other" if there is any, and "all".

    A parameter shared between layers is counted once.
    """
    if lazy := [name for name, p in model.named_parameters() if isinstance(p, UninitializedParameter)]:
        raise UserError(f"{lazy[0]} has no size before the first image: a network with lazy layers cannot be counted")
    counts = dict.fromkeys((*ROWS, "other"), 0)
    seen: set[int] = set()
    first = True

    def add(row: str, module: nn.Module) -> None:
        new = [p for p in module.parameters() if id(p) not in seen]
        seen.update(map(id, new))
        counts[row] += sum(p.numel() for p in new)

    for module in model.modules():
        if isinstance(module, _ConvNd):
            add("first conv" if first else "other convs", module)
            first = False
        elif isinstance(module, _BatchNorm):
            add("batch norm", module)
            running = (module.running_mean, module.running_var)
            counts["batch norm"] += sum(values.numel() for values in running if values is not None)
        elif isinstance(module, nn.Linear):
            add("dense", module)
    add("other", model)
    total = sum(counts.values())
    names = [*ROWS, *(["other"] if counts["other"] else [])]
    rows = [Part(name, counts[name], 100 * counts[name] / max(total, 1)) for name in names]
    return [*rows, Part("all", total, 100.0)]


def describe_table(names: Sequence[str], classes: int = 10, channels: int = 3) -> str:
    """`describe` of the networks of these names (see `build`), one line each, as text."""
    from . import build

    described = {name: describe(build(name, classes, channels)) for name in names}
    parts = [*ROWS, "other", "all"]
    if all(row.name != "other" for rows in described.values() for row in rows):
        parts.remove("other")
    header, lines = ["network", *parts, "trained"], []
    for name, rows in described.items():
        cells = {row.name: f"{row.values:,} ({row.percent:.2f} %)" for row in rows}
        cells["all"] = f"{rows[-1].values:,}"
        trained = sum(p.numel() for p in build(name, classes, channels).parameters())
        lines.append([name, *(cells.get(part, "0") for part in parts), f"{trained:,}"])
    return f"{shown(header, lines)}\n\n{NOTE}"
