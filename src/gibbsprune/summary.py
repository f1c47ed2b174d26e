"""What a pruner does to each layer, as data and as a table."""

from __future__ import annotations

import math
from dataclasses import dataclass

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

    @property
    def weights(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Summary:
    """All layers; ``print(summary)`` shows a table."""

    structure: str
    layers: list[LayerSummary]
    skipped: dict[str, str]

    @property
    def weights(self) -> int:
        return sum(layer.weights for layer in self.layers)

    @property
    def achieved(self) -> float:
        """Sparsity over all pruned layers together."""
        return sum(layer.weights * layer.achieved for layer in self.layers) / self.weights

    def __str__(self) -> str:
        plural = f"{self.structure}s"
        header = ("layer", "kind", "shape", plural, "of size", "target", "achieved")
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
        return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1], *left])
