"""Energies with pairs that are ready made: neighbours that attract, similar filters that repel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from .checks import check_number, number
from .couplings import WithField
from .graphs import Graph, all_pairs, grid_pairs
from .hamiltonians import HAMILTONIANS, Linear


@dataclass(frozen=True)
class Neighbours(WithField):
    """Weights attract their next neighbours in the kernel, and in the next input channels with ``across``.

    H(x) = Σ (1 − w_i²/Q) x_i − (r/D) Σ_{neighbours} (x_i − m)(x_j − m) with D the most neighbours of one: masks in
    patches, which read neighbouring places. In units of the threshold: r is what D neighbours are worth together. Past
    about 0.7 a sparse layer may tip over into keeping all; :meth:`gibbsprune.GibbsPruner.diagnostics` would show it.
    """

    attraction: float = 0.4
    across: bool = False

    base: ClassVar[Linear] = Linear("square", relative=True)  # type: ignore[misc]
    centred: ClassVar[bool] = True  # type: ignore[misc]
    structures: ClassVar[tuple[str, ...]] = ("weight",)  # type: ignore[misc]

    def __post_init__(self) -> None:
        check_number("attraction", self.attraction, number(0))

    @property
    def within(self) -> str:  # type: ignore[override]
        return "filter" if self.across else "kernel"

    def pairs(self, grid: Sequence[int]) -> Any:
        return grid_pairs(grid)

    def strengths(self, weights: Tensor, graph: Graph) -> Tensor:
        each = self.attraction / graph.most
        return torch.full((1, len(graph)), -each, dtype=weights.dtype, device=weights.device)


@dataclass(frozen=True)
class Redundancy(WithField):
    """Similar filters repel: H(X) = Σ (1 − w̄_k²/Q) X_k + (r/(M − 1)) Σ_{pairs} |cos(w_k, w_l)| (X_k − m)(X_l − m).

    A filter is kept or pruned as a whole, one spin X_k, and of two that point the same way, or opposite ones, one is
    not needed. In units of the threshold: r is the most that all others together can be worth.
    """

    repulsion: float = 1.0

    base: ClassVar[Linear] = Linear("square", relative=True)  # type: ignore[misc]
    within: ClassVar[str] = "layer"  # type: ignore[misc]
    centred: ClassVar[bool] = True  # type: ignore[misc]
    structures: ClassVar[tuple[str, ...]] = ("filter",)  # type: ignore[misc]

    def __post_init__(self) -> None:
        check_number("repulsion", self.repulsion, number(0))

    def pairs(self, grid: Sequence[int]) -> Any:
        return all_pairs(grid[0])

    def strengths(self, weights: Tensor, graph: Graph) -> Tensor:
        unit = F.normalize(weights, dim=-1)
        alike = (unit @ unit.transpose(1, 2)).abs()  # (layers, filters, filters)
        one, two = graph.ends(weights.device)
        return alike[:, one, two] * (self.repulsion / max(1, graph.size - 1))


HAMILTONIANS.update(neighbours=Neighbours(), channels=Neighbours(across=True), redundancy=Redundancy())
