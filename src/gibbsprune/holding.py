"""Pruned weights stay zero after pruning, under any optimiser with momentum and weight decay.

A finalized layer has no mask any more, but an optimiser may still hold momentum for its pruned weights. So the
parameters whose zeros must last are remembered, their gradients are masked, and after every optimiser step
their zeros are written again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakTensorKeyDictionary

from .distributed import cut_like, whole
from .structures import PRUNABLE

_held: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def hold(parameter: nn.Parameter, mask: Tensor) -> None:
    """Keeps ``parameter`` zero where ``mask`` is False, as long as the parameter lives."""
    if parameter not in _held and parameter.requires_grad:
        parameter.register_hook(lambda gradient: gradient.masked_fill(_pruned_on(parameter, gradient.device), 0))
    _held[parameter] = cut_like(~mask, parameter)


def hold_zeros(model: nn.Module) -> nn.Module:
    """Keeps the exact zeros of all convolution and Linear weights of ``model`` zero while it is trained on.

    ``GibbsPruner.finalize`` does this itself; call it on a copy of a finalized model, or on a pruned model loaded
    from disk, before fine-tuning it.
    """
    for module in model.modules():
        if isinstance(module, PRUNABLE) and isinstance(module.weight, nn.Parameter):
            mask = whole(module.weight) != 0
            if not bool(mask.all()):
                hold(module.weight, mask)
    return model


def _pruned_on(parameter: nn.Parameter, device: torch.device) -> Tensor:
    pruned = _held[parameter]
    if pruned.device != device:
        _held[parameter] = pruned = pruned.to(device)
    return pruned


@torch.no_grad()
def _write_zeros(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if len(_held):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter in _held:
                    parameter.masked_fill_(_pruned_on(parameter, parameter.device), 0)


register_optimizer_step_post_hook(_write_zeros)
