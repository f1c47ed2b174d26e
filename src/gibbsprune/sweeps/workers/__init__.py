"""Workers train fleets that are planned: in this process, in several on this machine, or on a Ray cluster."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ...errors import UserError
from ...training.environment import revision
from ...training.places import Place, shared
from ...training.spec import RunSpec
from ..declare import Sweep
from ..display import Display
from ..fleets import Job
from ..orders import Orders
from ..pace import Pace
from ..planner import Planned


@dataclass(frozen=True)
class Ended:
    """A fleet that is no longer trained. If it is neither finished nor failed nor lost, its budget ended first."""

    folder: Place
    specs: Sequence[RunSpec] = ()
    finished: bool = False
    failed: str = ""  # why, as the end of a sentence
    lost: str = ""  # what became of its worker


class Workers(Protocol):
    """Fleets go in with ``submit`` and come out of ``poll``; ``running`` are the folders of those in between."""

    @property
    def running(self) -> Collection[Place]: ...

    def pace(self) -> Pace:
        """How long fleets take here."""

    def count(self) -> int:
        """How many fleets they train at a time."""

    def room(self) -> bool:
        """Whether one more fleet may start now."""

    def submit(self, fleet: Planned, seconds: float) -> None:
        """Starts a fleet, which stops by itself after so many seconds."""

    def poll(self) -> list[Ended]:
        """The fleets that have ended since the last time; does not wait."""

    def close(self) -> None:
        """Stops what still runs, as gently as possible."""


class Jobs:
    """Makes jobs of fleets, as they were ordered."""

    def __init__(self, orders: Orders, sweep: Sweep, keep: list[str] | None) -> None:
        self.orders, self.path, self.keep = orders, sweep.path, keep
        self.revision = orders.revision or revision()

    def job(self, fleet: Planned, device: str, seconds: float) -> Job:
        orders = self.orders
        same = {name: getattr(orders, name) for name in ("evaluate_every", "checkpoint_seconds", "autotune")}
        places = str(absolute(fleet.folder)), str(absolute(orders.results))
        ends = time.time() + seconds
        return Job(*places, device, ends, **same, revision=self.revision, keep=self.keep, path=self.path)


def absolute(where: Place) -> Place:
    """The same place from another working directory."""
    return where.resolve() if isinstance(where, Path) else where


def workers_of(
    orders: Orders, sweep: Sweep, keep: list[str] | None, display: Display, planning: bool = False
) -> Workers:
    """The workers that were ordered.

    Args:
        orders: what is to be done.
        sweep: what they are for.
        keep: the runs whose folders are kept; None: all.
        display: what shows what they tell.
        planning: one that can try steps here is enough.
    """
    alone = planning or (orders.engine == "local" and not orders.several)
    for where in (orders.results, orders.work):
        if not alone and not shared(where):
            raise UserError(
                f"{where} is seen by one process alone; several need a folder or a store that all can reach"
            )
    jobs = Jobs(orders, sweep, keep)
    if alone:
        from .here import Here

        return Here(jobs, display)
    if orders.engine == "ray":
        from .ray import OnRay

        return OnRay(jobs, display)
    from .processes import Processes

    return Processes(jobs, display)
