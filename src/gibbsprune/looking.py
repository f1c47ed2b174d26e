"""Looking at a network from outside: the arguments of its ``forward``, and its eval mode without side effects."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import transformer

from .errors import UserError


def arguments(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and named arguments of ``forward``: from one tensor, a sequence, or a mapping of names."""
    if isinstance(example_inputs, Tensor):
        return (example_inputs,), {}
    if isinstance(example_inputs, (tuple, list)) and example_inputs:
        return tuple(example_inputs), {}
    if isinstance(example_inputs, Mapping) and example_inputs:
        return (), {str(name): value for name, value in example_inputs.items()}
    raise UserError(
        f"example_inputs are {example_inputs!r}: allowed are a tensor, a list or a dict of forward's arguments"
    )


@contextlib.contextmanager
def plain_eval(model: nn.Module) -> Iterator[None]:
    """Eval mode, without caches, fused encoder layers and the exporter's remarks; everything restored at the end.

    torch's transformers compare a mask with the causal one, to be faster where it is. That is a branch by values, which
    no graph has, and it changes no result: here a mask is causal where the model says so.
    """
    modes = [(module, module.training) for module in model.modules()]
    holders = [getattr(module, "config", None) for module in model.modules()]
    configs: dict[int, Any] = {id(c): c for c in holders if getattr(c, "use_cache", None) is True}
    fast = torch.backends.mha.get_fastpath_enabled()
    exporter = logging.getLogger("torch._export")
    level = exporter.level
    detect = getattr(transformer, "_detect_is_causal_mask", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exporter.setLevel(logging.ERROR)
            torch.backends.mha.set_fastpath_enabled(False)
            if detect is not None:
                transformer._detect_is_causal_mask = _causal_as_told
            for config in configs.values():
                config.use_cache = False
            model.eval()
            yield
        finally:
            exporter.setLevel(level)
            torch.backends.mha.set_fastpath_enabled(fast)
            if detect is not None:
                transformer._detect_is_causal_mask = detect
            for config in configs.values():
                config.use_cache = True
            for module, training in modes:
                module.training = training


def _causal_as_told(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    return is_causal is True


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the exporter's remarks about packages that are not installed, about itself and about its graphs."""
    names = ("torch.onnx", "torch.onnx._internal.exporter._registration", "torch.fx.experimental.symbolic_shapes")
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    nowhere = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels):
                logger.setLevel(level)
