"""Whether two networks compute the same: at which inputs, how far apart, and how far rounding may bring them."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..looking import plain_eval


@torch.no_grad()
def in_rows(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same inputs with a second row where they have one and the model takes two: one row broadcasts, unseen."""
    rows = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.dim()]
    if not rows or any(len(x) != 1 for x in rows):
        return args, kwargs
    more = tuple(_twice(x) for x in args), {name: _twice(x) for name, x in kwargs.items()}
    try:
        given = copy.deepcopy(more)
        model(*given[0], **given[1])
    except Exception:  # a first axis that is not the batch's
        return args, kwargs
    return more


def _twice(x: Any) -> Any:
    return torch.cat([x, x]) if isinstance(x, Tensor) and x.dim() else x


def difference(expected: Any, found: Any) -> float:
    """max |a − b| / max |a| over the finite numbers of all tensors of two outputs; the others must be the same."""
    worst = 0.0
    for a, b in zip(pytree.tree_leaves(expected), pytree.tree_leaves(found)):
        if isinstance(a, Tensor) and a.numel():
            a, b = a.double(), b.double()
            finite = a.isfinite() & b.isfinite()
            if not bool((finite | (a == b) | (a.isnan() & b.isnan())).all()):
                return math.inf
            a, b = a[finite], b[finite]
            if a.numel():
                worst = max(worst, float((a - b).abs().max()) / (float(a.abs().max()) or 1.0))
    return worst


@torch.no_grad()
def difference_in_double(model: nn.Module, other: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """The difference of two networks at the same inputs, all in float64; infinite where they do not run in it.

    Where a network is ill-conditioned, the order of its sums changes its float32 output more than a wrong weight would.
    """
    answers = []
    for network in (model, other):
        given, named = in_double((args, kwargs))
        try:
            with plain_eval(wide := copy.deepcopy(network).double()):
                answers.append(wide(*given, **named))
        except Exception:  # a type written into the network's own code
            return math.inf
    return difference(*answers)


@torch.no_grad()
def own_error(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """How far rounding moves a network's output: its difference to itself in float64; 0 where it does not run in it."""
    try:
        given, named = in_double((args, kwargs))
        exact = copy.deepcopy(model).double()(*given, **named)
    except Exception:  # a type written into the network's own code
        return 0.0
    return difference(exact, model(*copy.deepcopy(args), **copy.deepcopy(kwargs)))


def in_double(values: Any) -> Any:
    """Copies of floating tensors in float64, and of everything else."""
    return pytree.tree_map(lambda x: x.double() if _floats(x) else copy.deepcopy(x), values)


def _floats(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def rounding(model: nn.Module) -> float:
    """What rounding in the model's own precision may make of its output: 16 units of it."""
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    return 16 * torch.finfo(like.dtype).eps
