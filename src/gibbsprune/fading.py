"""A weight decay of masked weights that is another one than their optimiser has for the rest of their layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from .checks import bad, check_number, number
from .distributed import cut_like


def fade(optimizer: torch.optim.Optimizer, masked: float, masks: Callable[[], dict[int, Tensor]]) -> RemovableHandle:
    """From now on ``optimizer`` decays masked weights by ``masked``, until the handle is removed.

    Args:
        optimizer: one that trains weights with masks and has a weight decay.
        masked: the decay, decoupled from the gradient where the optimiser's own is.
        masks: gives the masks as they are, by the ids of the stored weights under them.
    """
    check_number("masked", masked, number(0))
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise bad("optimizer", optimizer, "optimisers of torch")
    ours, groups = masks(), [group for group in optimizer.param_groups if "weight_decay" in group]
    if not any(id(weight) in ours for group in groups for weight in group["params"]):
        raise bad("optimizer", type(optimizer).__name__, "those that train the pruned layers and have a weight decay")
    return optimizer.register_step_pre_hook(lambda *_: _decay(optimizer, masked, masks()))


@torch.no_grad()
def _decay(optimizer: torch.optim.Optimizer, masked: float, masks: dict[int, Tensor]) -> None:
    """Before a step: what it will do to masked weights besides following their gradient is made up for."""
    # What a GradScaler tells fused optimisers: that gradients are still scaled, that the step will do nothing.
    scale, nothing = (getattr(optimizer, name, None) for name in ("grad_scale", "found_inf"))
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if id(weight) not in masks or weight.grad is None:
                continue
            gone, own = cut_like(~masks[id(weight)], weight), group["weight_decay"]
            if nothing is not None:
                gone = gone & (nothing == 0)
            if isinstance(optimizer, torch.optim.AdamW) or group.get("decoupled_weight_decay"):
                rate = group["lr"]
                weight.copy_(torch.where(gone, weight * ((1 - rate * masked) / (1 - rate * own)), weight))
            else:
                change = weight * gone if scale is None else weight * gone * scale
                weight.grad.add_(change, alpha=(masked - own) * (-1 if group.get("maximize") else 1))
