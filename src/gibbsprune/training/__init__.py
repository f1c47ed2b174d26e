"""Training: what a run is (:class:`RunSpec`), fleets of runs (:class:`Fleet`), and the folders that they leave."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .fleet import Fleet
    from .recipes import RECIPES, Recipe
    from .spec import RunSpec

__all__ = ["RECIPES", "Fleet", "Recipe", "RunSpec"]

_HOMES = {"Fleet": "fleet", "RunSpec": "spec", "Recipe": "recipes", "RECIPES": "recipes"}


def __getattr__(name: str) -> Any:
    """Loads what is asked for, and only then."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
