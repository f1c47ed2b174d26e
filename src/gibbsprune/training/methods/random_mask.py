"""A fixed random mask from the start: what a smaller network of the same shape can learn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...structures import KINDS
from ...threshold import converged_mask
from .magnitude import largest
from .method import Method

if TYPE_CHECKING:
    from ..replica import Replica


class RandomMask(Method):
    name = "random-mask"
    about = "a fixed random mask from the start"
    structures = KINDS

    def begin_phase(self, run: Replica, phase: int) -> None:
        generator = run.stream("masks")
        for name, site in run.sites.items():
            if site.structure.limited:
                values = torch.rand(site.shape, generator=generator, dtype=torch.float64)
                run.hold(name, converged_mask(values, site.sparsity, site.structure))
                continue
            scores = torch.rand(site.count, generator=generator, dtype=torch.float64)
            run.hold(name, largest(scores, site, run.spec.sparsity))
