"""What a pruner does to each layer, as data and as a table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torch import nn

from .budgets import Budget
from .distributed import whole
from .samplers import CHAINS
from .site import Site
from .structures import Structure
from .text import columns
from .weights import Layer, on_request, parameter_of, prunable

NAMES = {"weights": "weights", "macs": "multiply-adds", "latency": "time"}


@dataclass(frozen=True)
class LayerSummary:
    """One pruned layer. ``achieved`` is what the converged mask removes; after finalize, what is zero."""

    name: str
    kind: str
    shape: tuple[int, ...]
    neighbourhoods: int
    size: int
    target: float
    achieved: float
    sampler: str = ""

    @property
    def weights(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Summary:
    """All layers; ``print(summary)`` shows a table.

    ``parameters`` counts those of the whole network; ``others`` are its weights that are pruned where they are named
    alone, with the reason, and ``vectors`` counts its biases, norms and other vectors. ``tied`` are layers that are
    pruned as one with another: a depthwise one with that before it, those of heads and neurons with the first.
    ``plural`` are neighbourhoods in words, ``shared`` is how layers share a sparsity.
    """

    structure: str
    layers: list[LayerSummary]
    skipped: dict[str, str]
    parameters: int = 0
    others: dict[str, str] = field(default_factory=dict)
    vectors: int = 0
    tied: dict[str, str] = field(default_factory=dict)
    plural: str = ""
    shared: str = ""

    @property
    def weights(self) -> int:
        return sum(layer.weights for layer in self.layers)

    @property
    def achieved(self) -> float:
        """Sparsity over all pruned layers together."""
        return sum(layer.weights * layer.achieved for layer in self.layers) / self.weights

    @property
    def coverage(self) -> float:
        """The share of the network's parameters that lie in pruned layers."""
        return self.weights / self.parameters if self.parameters else 1.0

    def __str__(self) -> str:
        header = ("layer", "kind", "shape", self.plural or f"{self.structure}s", "of size", "target", "achieved")
        body = [
            (
                layer.name,
                layer.kind,
                "×".join(map(str, layer.shape)),
                f"{layer.neighbourhoods:,}",
                f"{layer.size:,}",
                f"{layer.target:.4g}",
                f"{layer.achieved:.4f}",
            )
            for layer in self.layers
        ]
        total = ("all", "", f"{self.weights:,} weights", "", "", "", f"{self.achieved:.4f}")
        lines = columns([header, *body, total], left=len(header))
        rule = "─" * max(map(len, lines))
        left = [self.shared] if self.shared else []
        if ways := Counter(layer.sampler for layer in self.layers if layer.sampler):
            left.append("drawn by " + ", ".join(f"{_way(way)} in {_layers(n)}" for way, n in ways.items()))
        left += [covers(self.weights, self.parameters)] if self.parameters else []
        left += self._units()
        left += left_out(self.skipped, self.others, self.vectors)
        return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1], *left])

    def _units(self) -> list[str]:
        if self.structure == "filter":
            return [f"one unit: each filter of {first} with its kernels in {name}" for name, first in self.tied.items()]
        parts: dict[str, list[str]] = {}
        for name, first in self.tied.items():
            parts.setdefault(first, [first]).append(name)
        return [f"one unit: each {self.structure} of {', '.join(names)}" for names in parts.values()]


def _way(sampler: str) -> str:
    return f"{sampler} (a chain)" if sampler in CHAINS else f"{sampler} (exact)"


def _layers(count: int) -> str:
    return f"{count} layer{'s' if count > 1 else ''}"


def covers(weights: int, parameters: int) -> str:
    """How much of a network is in pruned layers.

    >>> covers(40, 100)
    'covers 40 of 100 parameters (40.0 %): warning, less than half'
    """
    few = "" if 2 * weights >= parameters else ": warning, less than half"
    return f"covers {weights:,} of {parameters:,} parameters ({100 * weights / parameters:.1f} %){few}"


def left_out(skipped: Mapping[str, str], others: Mapping[str, str], vectors: int) -> list[str]:
    """What is not pruned of a network, and why, as lines: layers, what only its name selects, and vectors."""
    lines = [f"not pruned: {name} ({why})" for name, why in skipped.items()]
    lines += [f"not prunable: {name} ({why})" for name, why in others.items()]
    return lines + ([f"not prunable: biases, norms and other vectors ({vectors:,} parameters)"] if vectors else [])


def summarised(
    model: nn.Module,
    structure: Structure,
    layers: Mapping[str, Layer],
    sites: Mapping[str, Site],
    targets: Mapping[str, float],
    skipped: Mapping[str, str],
    finalized: bool,
    budget: Budget | None = None,
    cold: bool = False,
) -> Summary:
    """The summary of a network.

    Args:
        model: the network.
        structure: in which it is pruned.
        layers: what is pruned of it, by name.
        sites: how, at their targets.
        targets: the sparsities that were asked for.
        skipped: what is not pruned, with the reason.
        finalized: whether what is zero counts, not what would be.
        budget: what layers share, so that nothing was asked for of each.
        cold: whether nothing is drawn.
    """
    rows = []
    for name, layer in layers.items():
        site = sites[name]
        zeros = float((whole(layer.weight) == 0).float().mean()) if finalized else site.removed
        target = site.removed if budget else targets[name]
        rows.append(LayerSummary(name, layer.kind, *site.sizes, target, zeros, "" if cold else site.sampler))
    total = sum(parameter.numel() for parameter in model.parameters())
    others, vectors = other_weights(model, layers.values())
    tied = {name: site.unit for name, site in sites.items() if site.unit not in ("", name)}
    shared = _shared(budget, finalized) if budget else ""
    return Summary(structure.spelling, rows, dict(skipped), total, others, vectors, tied, structure.plural, shared)


def _shared(budget: Budget, finalized: bool) -> str:
    measure, _ = budget.given
    follows = "" if finalized else ": what each loses follows the weights, here as they were first"
    return f"layers share {budget.target():.1%} of all {NAMES[measure]} ({budget.allocation}){follows}"


def other_weights(model: nn.Module, pruned: Iterable[Layer]) -> tuple[dict[str, str], int]:
    """The parameters of two dimensions or more that only their names select, with the reason; the size of all vectors.

    Args:
        model: the network.
        pruned: what is pruned of it.
    """
    chosen = {id(layer.stored) for layer in pruned}
    seen = {id(parameter_of(layer.module, layer.parameter)) for layer in prunable(model).values()}
    found, vectors = {}, 0
    for name, layer in on_request(model).items():
        if id(layer.stored) in chosen | seen:
            continue
        seen.add(id(layer.stored))
        if layer.stored.dim() > 1:
            kind = "an embedding" if isinstance(layer.module, nn.Embedding) else f"a parameter of {layer.kind}"
            found[name] = f"{kind}, pruned where include names it"
        else:
            vectors += layer.stored.numel()
    return found, vectors
