"""Soft thresholds that are learned: the weight under a mask comes closer to zero first."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..masking import Masked

OFF = -1e4  # a level whose threshold is exactly 0


class Soft(Masked):
    """weight ↦ sign(w)·max(0, |w| − σ(s)) × mask, with a level s of each run; ``level`` is a parameter, one per run.

    Runs whose level is ``OFF`` have the weight as it is, and a gradient also where it is zero.
    """

    on: Tensor

    def __init__(
        self, weight: Tensor, gradient: str, levels: Tensor, survivors: str = "whole", normed: bool = False
    ) -> None:
        super().__init__(weight, gradient, survivors, normed)
        self.level = nn.Parameter(levels.to(weight.device, weight.dtype))
        self.register_buffer("on", self.level.detach()[:, None] > OFF, persistent=False)

    def forward(self, weight: Tensor) -> Tensor:
        rows = weight.view(len(self.level), -1)
        return super().forward(torch.where(self.on, softened(rows, self.level[:, None]), rows).view_as(weight))


def softened(weight: Tensor, level: Tensor) -> Tensor:
    """sign(w)·max(0, |w| − σ(s))."""
    return weight.sign() * (weight.abs() - level.sigmoid()).relu()
