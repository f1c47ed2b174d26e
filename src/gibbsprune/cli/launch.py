"""Which process this is, told without importing torch: one alone, or one of those that ``torchrun`` has started."""

from __future__ import annotations

import os


def several() -> bool:
    """Whether there are others."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ


def speaks() -> bool:
    """Whether this process is the one that says what all of them would say."""
    return not several() or os.environ["RANK"] == "0"
