"""One fleet after the other, in this process."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Collection

import torch

from ...data.arrays import Arrays
from ...text import clock
from ...training.environment import resolve_device, suitable_threads
from ...training.places import Place
from .. import pace, runner
from ..orders import Orders
from ..planner import Planned
from . import Ended


class Inline:
    """``submit`` trains at once; its exceptions are the caller's."""

    def __init__(self, orders: Orders, arrays: Arrays, keep: Collection[str], say: Callable[[str], None]) -> None:
        self.orders, self.arrays, self.keep, self.say = orders, arrays, keep, say
        self.device = resolve_device(orders.device)
        self.known = pace.of_device(self.device, arrays, orders.work)
        self.ended: list[Ended] = []

    @property
    def running(self) -> Collection[Place]:
        return [ended.folder for ended in self.ended]

    def pace(self) -> pace.Pace:
        self.known.learn(self.orders.work)
        return self.known

    def room(self) -> bool:
        return not self.ended

    def remark(self, left: float) -> str:
        return "" if math.isinf(left) else f"; {clock(left)} of the budget left"

    def submit(self, fleet: Planned, budget: float) -> None:
        orders = self.orders
        with suitable_threads(self.arrays, self.device):
            finished = runner.run(
                fleet.specs, self.arrays, orders.results, orders.work, str(self.device), budget,
                evaluate_every=orders.evaluate_every, checkpoint_seconds=orders.checkpoint_seconds,
                revision=orders.revision, keep=self.keep, autotune=orders.autotune, say=self.say,
            )  # fmt: skip
        clear(self.device)
        self.ended.append(Ended(fleet.folder, finished))

    def poll(self) -> list[Ended]:
        ended, self.ended = self.ended, []
        return ended

    def close(self) -> None:
        """Nothing runs between two calls."""


def clear(device: torch.device) -> None:
    """Forgets the last fleet: its memory, and what was compiled for it, of which there may be only so much."""
    gc.collect()
    if device.type == "cuda":
        torch.compiler.reset()
        torch.cuda.empty_cache()
