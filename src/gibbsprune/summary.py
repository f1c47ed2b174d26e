"""What a pruner does to each layer, as data and as a table."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from torch import nn

from .samplers import CHAINS
from .text import columns


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

    ``parameters`` counts those of the whole network, and ``others`` are its weights that no structure knows, with the
    kind of their module. ``plural`` are neighbourhoods in words.
    """

    structure: str
    layers: list[LayerSummary]
    skipped: dict[str, str]
    parameters: int = 0
    others: dict[str, str] = field(default_factory=dict)
    plural: str = ""

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
                f"{layer.neighbourhoods}",
                f"{layer.size}",
                f"{layer.target:.4g}",
                f"{layer.achieved:.4f}",
            )
            for layer in self.layers
        ]
        total = ("all", "", f"{self.weights} weights", "", "", "", f"{self.achieved:.4f}")
        lines = columns([header, *body, total], left=len(header))
        rule = "─" * max(map(len, lines))
        left = [f"not pruned: {name} ({why})" for name, why in self.skipped.items()]
        left += [f"not prunable: {name} (of {kind})" for name, kind in self.others.items()]
        if self.parameters:
            few = "" if self.coverage >= 0.5 else ", less than half"
            share = f"covers {self.weights} of {self.parameters} parameters ({100 * self.coverage:.1f} %{few})"
            left.insert(0, share)
        if ways := Counter(layer.sampler for layer in self.layers if layer.sampler):
            left.insert(0, "drawn by " + ", ".join(f"{_way(way)} in {_layers(n)}" for way, n in ways.items()))
        return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1], *left])


def _way(sampler: str) -> str:
    return f"{sampler} (a chain)" if sampler in CHAINS else f"{sampler} (exact)"


def _layers(count: int) -> str:
    return f"{count} layer{'s' if count > 1 else ''}"


def other_weights(model: nn.Module, known: set[str]) -> dict[str, str]:
    """The parameters of two dimensions or more outside the ``known`` layers, with the kind of their module."""
    found = {}
    for name, parameter in model.named_parameters():
        before, parametrised, _ = name.partition(".parametrizations.")
        layer = before if parametrised else name.rpartition(".")[0]
        if parameter.dim() > 1 and layer not in known:
            found[name] = type(model.get_submodule(layer)).__name__
    return found
