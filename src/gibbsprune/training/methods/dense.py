"""No pruning: the recipe as it is."""

from __future__ import annotations

from .method import Method


class Dense(Method):
    name = "dense"
    about = "no pruning"
    prunes = False
