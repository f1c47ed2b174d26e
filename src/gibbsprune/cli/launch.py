"""Which process this is, told without importing torch: one alone, or one of those that ``torchrun`` has started."""

from __future__ import annotations

import os
import time

PATIENCE = 20.0  # seconds in which the first process, too, comes to what is wrong


def several() -> bool:
    """Whether there are others."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ


def speaks() -> bool:
    """Whether this process is the one that says what all of them would say."""
    return not several() or os.environ["RANK"] == "0"


def wait_for_the_speaker() -> None:
    """Lets the process that speaks say what is wrong: ``torchrun`` ends them all when the first one ends."""
    if not speaks():
        time.sleep(PATIENCE)
