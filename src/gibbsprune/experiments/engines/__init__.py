"""Engines train fleets that are planned: in this process, in several on this machine, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from ...data.arrays import Arrays
from ...errors import UserError
from ...training.places import Place, shared
from ..orders import Orders
from ..pace import Pace
from ..planner import Planned


@dataclass(frozen=True)
class Ended:
    """A fleet that is no longer trained. If it is neither finished nor failed, its budget ended first."""

    folder: Place
    finished: bool = True
    failed: str = ""  # why, as the end of a sentence


class Engine(Protocol):
    """Fleets go in with ``submit`` and come out of ``poll``; ``running`` are the folders of those in between."""

    @property
    def running(self) -> Collection[Place]: ...

    def pace(self) -> Pace:
        """How long fleets take here."""

    def room(self) -> bool:
        """Whether one more fleet may start now."""

    def remark(self, left: float) -> str:
        """What to say of the next fleet beside what it is, with ``left`` seconds to go."""

    def submit(self, fleet: Planned, budget: float) -> None:
        """Start a fleet, which stops by itself after ``budget`` seconds."""

    def poll(self) -> list[Ended]:
        """The fleets that have ended since the last time; does not wait."""

    def close(self) -> None:
        """Stop what still runs, as gently as possible."""


def engine_of(orders: Orders, arrays: Arrays, keep: Collection[str], say: Callable[[str], None]) -> Engine:
    """The engine that was ordered."""
    alone = orders.engine == "local" and not orders.several
    for where in (orders.results, orders.work):
        if not alone and not shared(where):
            raise UserError(
                f"{where} is seen by one process alone; several need a folder or a store that all can reach"
            )
    if orders.engine == "ray":
        from .ray import RayEngine

        return RayEngine(orders, arrays, keep, say)
    if not alone:
        from .processes import Processes

        return Processes(orders, arrays)
    from .inline import Inline

    return Inline(orders, arrays, keep, say)
