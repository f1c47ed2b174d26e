"""Networks by name: the CIFAR ResNets, or a user's own function."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..checks import bad, listed
from ..errors import UserError
from ..text import told
from .describe import describe, describe_table
from .resnet import ResNet, resnet

__all__ = ["NAMES", "ResNet", "build", "describe", "describe_table", "resnet"]

NAMES = tuple(f"resnet{depth}" for depth in (8, 14, 20, 26, 32, 44, 56, 110))


def build(name: str, classes: int, channels: int, generator: torch.Generator | None = None) -> nn.Module:
    """The network called `name`: "resnet20" and its like, or "package.module:function" for a user's own.

    A user's function is called with those of the keywords `classes`, `channels` and `generator` that it
    accepts. Where it takes no generator and one is given, torch's global generator is seeded from it for the
    call and then put back, so that the network is still a function of `generator`.

    Args:
        name: of the network.
        classes: its outputs.
        channels: of its images.
        generator: for its initial weights; None for torch's global one.
    """
    match = re.fullmatch(r"resnet(\d+)", name)
    if match:
        return resnet(int(match[1]), classes, channels, generator)
    if ":" not in name:
        raise bad("model", name, f"{listed(NAMES)} and package.module:function")
    if not all(name.split(":")[:2]):
        raise bad("model", name, "package.module:function with both of them")
    function = _find(name)
    arguments = _accepted(name, function, {"classes": classes, "channels": channels, "generator": generator})
    if generator is None or "generator" in arguments:
        model = _call(name, function, arguments)
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            model = _call(name, function, arguments)
    if not isinstance(model, nn.Module):
        raise UserError(f"{name} returned a {type(model).__name__}; it must return a torch.nn.Module")
    return model


def _find(name: str) -> Callable[..., Any]:
    """The function behind "package.module:function"; modules in the current folder are found too."""
    module_name, _, function_name = name.partition(":")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise UserError(f"{name}: there is no module {error.name}; looked in {os.getcwd()} too") from None
        raise UserError(f"{name}: importing {module_name} failed ({error})") from error
    except Exception as error:
        raise UserError(f"{name}: importing {module_name} failed ({told(error)})") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise UserError(f"{name}: the module {module_name} has no function '{function_name}'")
    return function


def _accepted(name: str, function: Callable[..., Any], offered: dict[str, Any]) -> dict[str, Any]:
    """Those of the offered keyword arguments that the function takes; other required ones are refused."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some builtins tell nothing about themselves
        return {}
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    needed = [
        p.name
        for p in parameters
        if p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        and (p.name not in offered or p.kind is p.POSITIONAL_ONLY)
    ]
    if needed:
        raise UserError(f"{name} needs {', '.join(needed)}; only {', '.join(offered)} can be passed to it")
    return {key: value for key, value in offered.items() if key in named}


def _call(name: str, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return function(**arguments)
    except Exception as error:
        raise UserError(f"{name} failed ({told(error)})") from error
