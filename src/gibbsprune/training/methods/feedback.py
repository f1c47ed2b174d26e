"""Dynamic pruning with feedback (Lin et al. 2020): the largest weights at a sparsity that rises; all go on learning.

The loss is that of the pruned network, and its gradient there is applied to every stored weight, so that one that was
pruned by mistake comes back. It is the zero-temperature edge of Gibbs pruning with straight-through gradients, with new
masks at the first step of an epoch and every 16 from there. A limited structure, as N:M, has no sparsity that rises: it
is the largest of each neighbourhood from the first step on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from ...budgets import Budget
from ...checks import whole
from ...law import Law
from ...schedules import Schedule
from ...site import Site
from ...structures import KINDS
from .gibbs import ALLOCATION, UNTIL, check_allocation, shared_out
from .method import Method, Setting

if TYPE_CHECKING:
    from ..spec import RunSpec


class Feedback(Method):
    name = "feedback"
    about = "magnitude pruning on a cubic schedule whose masked weights go on learning (Lin et al.)"
    structures = KINDS
    settings = {
        "until": UNTIL,
        "allocation": ALLOCATION,
        "every": Setting(whole(1), "feedback: steps between two masks (16)", 16, "t"),
    }
    ends_with = "converged"

    def check(self, spec: RunSpec) -> None:
        check_allocation(spec)

    def rule(self, sites: Sequence[Site], specs: Sequence[RunSpec], device: torch.device) -> Law:
        return Law(sites, lanes=device.type == "cuda", cold=True)

    def cold(self, spec: RunSpec) -> bool:
        return True

    def level(self, spec: RunSpec, sites: Sequence[Site]) -> Callable[[int], float]:
        return lambda epoch: math.inf

    def target(self, spec: RunSpec) -> float | Schedule | Budget:
        return shared_out(spec, "cubic")

    def lasting(self, spec: RunSpec) -> int:
        return int(spec.setting("every"))

    def gradient(self, spec: RunSpec) -> str:
        return "straight-through"
