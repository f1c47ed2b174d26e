"""The inputs of a network that is exported: by place or by name, and which of their sizes stay free."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from ..looking import arguments


def names_of(model: nn.Module, example_inputs: Any) -> list[str]:
    """The names of inputs that are given by name, in the order of ``forward``."""
    if not isinstance(example_inputs, Mapping):
        return []
    order = list(inspect.signature(model.forward).parameters)
    return sorted(arguments(example_inputs)[1], key=lambda name: order.index(name) if name in order else len(order))


def tensors_of(names: Sequence[str], given: Any) -> Any:
    if not names:
        return given
    if not isinstance(given, Mapping) or set(given) != set(names):
        raise UserError(f"calibration is given otherwise than example_inputs: allowed is a dict of {', '.join(names)}")
    return [given[name] for name in names]


def split(inputs: Sequence[Tensor], names: Sequence[str]) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    return ((), dict(zip(names, inputs))) if names else (tuple(inputs), {})


def by_name(model: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """The model as a function of tensors in the order of these names."""
    return (lambda *given: model(**dict(zip(names, given)))) if names else model


def exported(
    export: Callable[[Any, Any, Any], Any], inputs: tuple[Tensor, ...], names: Sequence[str], failed: str
) -> Any:
    """What an exporter makes of these inputs with free batch size, and free lengths of tokens where that can be."""
    batch = torch.export.Dim("batch")
    lengths = {x.shape[1]: torch.export.Dim(f"length_{x.shape[1]}") for x in inputs if _tokens(x)}
    for free in [lengths, {}] if lengths else [{}]:
        shapes = [{0: batch} | ({1: free[x.shape[1]]} if free and _tokens(x) else {}) for x in inputs]
        try:
            return export(*split(inputs, names), dict(zip(names, shapes)) if names else tuple(shapes))
        except Exception as error:  # of the exporter's many steps
            if not free:
                raise UserError(f"{failed}: {first_line(error)}") from error
    raise AssertionError


def _tokens(x: Tensor) -> bool:
    return x.dim() == 2 and x.shape[1] > 1 and not x.is_floating_point()


@torch.no_grad()
def lengths_of(
    model: Callable[..., Any], inputs: tuple[Tensor, ...], sizes: Sequence[Sequence[str]]
) -> list[tuple[Tensor, ...]]:
    """The inputs, and where all lengths of tokens are free the same with one token less, if the model takes that."""
    tokens = [_tokens(x) for x in inputs]
    if not any(tokens) or not all(size[1] for size, yes in zip(sizes, tokens) if yes):
        return [inputs]
    shorter = tuple(x[:, :-1] if yes else x for x, yes in zip(inputs, tokens))
    try:
        model(*(x.clone() for x in shorter))
    except Exception:  # columns of a table, of which the model's own code reads each
        return [inputs]
    return [inputs, shorter]


def first_line(error: Exception) -> str:
    """What an exception says, in one line: that of the exception behind it where there is one."""
    behind = error.__cause__ or error
    return next((line.strip() for line in str(behind).splitlines() if line.strip()), type(behind).__name__)
