"""STR (Kusupati et al. 2020): every layer learns a soft threshold, w ↦ sign(w)·max(0, |w| − σ(s)).

Its level s starts low, where σ(s) is nearly zero. Weight decay draws it towards zero, and so the threshold up, the
gradient of the loss up or down: where it starts and how it decays decide the sparsity, which is not asked for. What
comes out is reported. Only where fewer weights are zero at the end than were asked for, the smallest ones of the
network go, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...checks import number
from ...threshold import keep_largest
from .method import Method, Phase, Setting, training

if TYPE_CHECKING:
    from ..replica import Replica
    from ..spec import RunSpec


def _start(spec: RunSpec) -> float:
    return -4.0 if spec.recipe.optimizer == "adam" else -100.0


def _decay(spec: RunSpec) -> float:
    return 0.01 if spec.recipe.optimizer == "adam" else spec.recipe.weight_decay


class SoftThreshold(Method):
    name = "str"
    about = "a soft threshold of each layer is learned with its weights (Kusupati et al.)"
    structures = ("weight",)
    settings = {
        "start": Setting(
            number(-1e3, 0), "str: the level s from which thresholds σ(s) rise (sgd -100, adam -4)", _start, "z"
        ),
        "level_decay": Setting(
            number(0), "str: weight decay of s, which raises them (sgd: the recipe's, adam 0.01)", _decay, "d"
        ),
    }

    def phases(self, spec: RunSpec) -> list[Phase]:
        return [training(spec), Phase("end", 0, training(spec).rate)]

    def soft_threshold(self, spec: RunSpec) -> tuple[float, float] | None:
        return float(spec.setting("start")), float(spec.setting("level_decay"))

    def begin_phase(self, run: Replica, phase: int) -> None:
        if phase == 0:
            return
        found = run.softened
        sizes = torch.cat([weight.abs().flatten() for weight in found.values()]).cpu()
        most = int((1 - run.spec.sparsity) * len(sizes) + 1e-9)
        kept = sizes > 0 if int((sizes > 0).sum()) <= most else keep_largest(sizes, most)
        for (name, weight), part in zip(found.items(), kept.split([weight.numel() for weight in found.values()])):
            run.hold(name, part.view(weight.shape))
