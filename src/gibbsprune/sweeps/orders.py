"""What is to be done with a sweep: where its files lie, on what to train, for how long, and by which workers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..checks import check_number, check_one_of, check_whole, number
from ..training.places import Place

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Orders:
    """How a sweep is carried out.

    Args:
        results: where each run's result goes.
        work: where half-done fleets, and the folders of finished runs, lie.
        device: to train on; several with commas, for several workers.
        budget: seconds.
        workers: fleets at the same time (None: one here, on a cluster as many as it has room for).
        at_most: runs in one fleet.
        leave_unfinished: begin fleets that the budget will cut, too.
        drop_models: keep the folders of those finished runs only that others start from.
        revision: of the source, for the record (None: asked of git).
        evaluate_every: epochs between two tests.
        autotune: cuDNN chooses its kernels by timing them.
        checkpoint_seconds: between two checkpoints of a fleet.
        engine: ``local`` or ``ray``.
        address: of a Ray cluster.
        cpus: of a cluster, for each fleet.
        gpus: the same; None: one where the cluster has any.
    """

    results: Place
    work: Place
    device: str = "auto"
    budget: float = math.inf
    workers: int | None = None
    at_most: int = 16
    leave_unfinished: bool = False
    drop_models: bool = False
    revision: str | None = None
    evaluate_every: int = 10
    autotune: bool = False
    checkpoint_seconds: float = 60.0
    engine: str = "local"
    address: str | None = None
    cpus: float = 1.0
    gpus: float | None = None

    def __post_init__(self) -> None:
        check_one_of("--engine", self.engine, ENGINES)
        for name in ("workers", "at_most", "evaluate_every"):
            if (given := getattr(self, name)) is not None:
                check_whole(f"--{name.replace('_', '-')}", given)
        check_number("--cpus", self.cpus, number(0, above=True))
        if self.gpus is not None:
            check_number("--gpus", self.gpus, number(0))

    @property
    def several(self) -> bool:
        """Whether more than one fleet at a time was asked for."""
        return (self.workers or 1) > 1
