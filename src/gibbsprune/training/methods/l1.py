"""l1 regularisation: λ·Σ|w| is added to the loss, and the smallest weights of each layer are pruned at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...checks import number
from .method import Method, Setting

if TYPE_CHECKING:
    from ..spec import RunSpec


class L1(Method):
    name = "l1"
    about = "an l1 penalty while training, magnitude pruning at the end"
    structures = ("weight",)
    settings = {"penalty": Setting(number(0), "l1: λ of the penalty λ·Σ|w| (0.001)", 1e-3, "l")}
    ends_with = "converged"

    def penalty(self, spec: RunSpec) -> float:
        return float(spec.setting("penalty"))
