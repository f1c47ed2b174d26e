"""Batch-norm statistics re-estimated on training data, for a network whose weights or masks have changed since."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .errors import UserError

STALE = 0.05  # of what a batch norm knows of its layer's outputs


def lagging(model: nn.Module, steps: int) -> bool:
    """Whether more than that is of outputs older than so many steps, in any batch norm that keeps a running mean."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    return any(norm.momentum is not None and (1 - norm.momentum) ** steps > STALE for norm in norms)


@torch.no_grad()
def recalibrate(model: nn.Module, batches: Iterable[Any]) -> nn.Module:
    """Replaces the running statistics of all batch norms by their averages over ``batches``, and returns the model.

    ``batches`` yields inputs, or tuples whose first element is the input, as a DataLoader does. Dropout stays off
    and every module's mode is put back; models without batch norm are left as they are. If a batch fails, the
    statistics stay what they were.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not norms:
        return model
    iterator = iter(batches)
    first = next(iterator, None)
    if first is None:
        raise UserError("there are no batches to take batch-norm statistics from")
    modes = [(module, module.training) for module in model.modules()]
    before = [{name: value.clone() for name, value in norm.named_buffers(recurse=False)} for norm in norms]
    momenta = [norm.momentum for norm in norms]
    model.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain average over all batches
        norm.train()
    try:
        for batch in chain([first], iterator):
            model(_input(batch))
    except BaseException:
        for norm, values in zip(norms, before):
            for name, value in values.items():
                norm.get_buffer(name).copy_(value)
        raise
    finally:
        for norm, momentum in zip(norms, momenta):
            norm.momentum = momentum
        for module, training in modes:
            module.training = training
    return model


def _input(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, (tuple, list)) and batch:
        return batch[0]
    raise UserError(
        f"a batch is a {type(batch).__name__}: allowed are inputs, and tuples whose first element is the input"
    )
