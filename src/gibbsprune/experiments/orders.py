"""What is to be done with a suite: where its files lie, on what to train, for how long, and by which engine."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import UserError
from ..training.places import Place

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Orders:
    """``workers`` are fleets at the same time (None: one here, on a cluster as many as it has room for)."""

    results: Place
    work: Place
    device: str = "auto"
    budget: float = math.inf
    workers: int | None = None
    at_most: int = 16
    leave_unfinished: bool = False
    revision: str = "unknown"
    evaluate_every: int = 10
    autotune: bool = False
    checkpoint_seconds: float = 60.0
    engine: str = "local"
    address: str | None = None  # of a Ray cluster
    cpus: float = 1.0  # of a cluster, for each fleet
    gpus: float | None = None  # the same; None: one where the cluster has any

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise UserError(f"unknown engine {self.engine!r}; it must be one of {', '.join(ENGINES)}")

    @property
    def several(self) -> bool:
        """Whether more than one fleet at a time was asked for."""
        return (self.workers or 1) > 1
