"""Pruned weights stay zero after pruning, under any optimiser with momentum and weight decay.

A finalized layer has no mask any more, but an optimiser may still hold momentum for its pruned weights. So the
parameters whose zeros must last are remembered, their gradients are masked, and after every optimiser step
their zeros are written again. Who writes other weights over the zeros, as ``load_state_dict`` may, ends that.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakTensorKeyDictionary

from .distributed import cut_like, is_sharded, whole
from .structures import PRUNABLE


@dataclass
class _Zeros:
    """Where a parameter is held at zero, and the parameter's version when it was last known to be zero there."""

    where: Tensor
    version: int

    def on(self, device: torch.device) -> Tensor:
        if self.where.device != device:
            self.where = self.where.to(device)
        return self.where


_held: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def hold(parameter: nn.Parameter, mask: Tensor) -> None:
    """Keeps ``parameter`` zero where ``mask`` is False, until other weights are written over these zeros."""
    if parameter not in _held and parameter.requires_grad:
        parameter.register_hook(lambda gradient: _masked(parameter, gradient))
    _held[parameter] = _Zeros(cut_like(~mask, parameter), parameter._version)


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


def _masked(parameter: nn.Parameter, gradient: Tensor) -> Tensor:
    zeros = _held.get(parameter)
    if zeros is None:
        return gradient
    if zeros.version != parameter._version and not is_sharded(parameter):  # somebody has written
        zeros.version = parameter._version
        if bool(parameter.detach().masked_fill(~zeros.on(parameter.device), 0).any()):
            del _held[parameter]
            warnings.warn(
                "other weights were written over zeros that were held, and are trained freely from here on; "
                "gibbsprune.hold_zeros(model) holds the zeros that there are",
                stacklevel=2,
            )
            return gradient
    return gradient.masked_fill(zeros.on(gradient.device), 0)


@torch.no_grad()
def _write_zeros(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if len(_held):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if (zeros := _held.get(parameter)) is not None:
                    parameter.masked_fill_(zeros.on(parameter.device), 0)
                    zeros.version = parameter._version


register_optimizer_step_post_hook(_write_zeros)
