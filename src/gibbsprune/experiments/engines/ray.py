"""Fleets on a Ray cluster: one task each, with its share of CPUs and GPUs; a lost worker's fleet is started again.

Nothing but plain values, the data and lines of text travel through Ray. Checkpoints and results are files, in a place
that every node reaches; a fleet that is started again goes on from its last checkpoint there.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...data.arrays import Arrays
from ...errors import UserError
from ...text import clock
from ...training.places import Place
from .. import pace, planner, store
from ..orders import Orders
from ..planner import Planned
from . import Ended, node

RETRIES = 3  # of a fleet whose worker is lost before it has saved another epoch
STOPPING = 30.0  # seconds in which cancelled fleets may save their state


@dataclass(frozen=True)
class _Running:
    fleet: Planned
    task: Any  # Ray's reference to its result
    ends: float
    epoch: int  # that was saved when it was last started
    lost: int = 0  # workers since then


class RayEngine:
    """As many fleets at a time as the cluster has room for, or ``workers``; the rest of the queue stays here."""

    def __init__(self, orders: Orders, arrays: Arrays, keep: Collection[str], say: Callable[[str], None]) -> None:
        if orders.device not in ("auto", "cpu", "cuda"):
            raise UserError(f"--device is {orders.device!r}, but on a cluster it must be auto, cpu or cuda")
        self.ray = _import_ray()
        self.keep, self.say = sorted(keep), say
        self.orders = replace(orders, results=_absolute(orders.results), work=_absolute(orders.work))
        self.ours = not self.ray.is_initialized()
        if self.ours:
            _connect(self.ray, orders.address)
        self.fleets: dict[Place, _Running] = {}
        gpus = orders.gpus
        if gpus is None:
            there = self.ray.cluster_resources().get("GPU", 0) > 0
            gpus = 1.0 if orders.device == "cuda" or (there and orders.device == "auto") else 0.0
        self.share = {"num_cpus": orders.cpus, "num_gpus": gpus}
        self.device = "cuda" if gpus else "cpu"
        self.images = len(arrays.x_train)
        self.arrays = self.ray.put(arrays)
        self.board = self._start_board()
        self._say_room()
        self.known: pace.Pace | None = None

    def _start_board(self) -> Any:
        """Where workers leave their lines: on this node, which lives as long as we do."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(self.ray.get_runtime_context().get_node_id(), soft=False)
        return self.ray.remote(node.Board).options(num_cpus=0, max_restarts=-1, scheduling_strategy=here).remote()

    def _say_room(self) -> None:
        alive = len(self._nodes())
        share = f"{self.share['num_cpus']:g} CPUs" + (f" and {self.share['num_gpus']:g} GPUs" if self.gpus else "")
        room = self._capacity()
        self.say(
            f"{alive} {'node' if alive == 1 else 'nodes'}, room for {room} fleets of {share} at a time" if room
            else f"no node of the cluster has {share} free for a fleet; waiting for one that has"
        )  # fmt: skip

    @property
    def gpus(self) -> float:
        return self.share["num_gpus"]

    def _nodes(self) -> list[dict[str, float]]:
        """What each node has."""
        return [found["Resources"] for found in self.ray.nodes() if found["Alive"]]

    def _capacity(self) -> int:
        wanted = [("CPU", self.orders.cpus), ("GPU", self.gpus)]
        return sum(
            min(math.floor(there.get(kind, 0) / share + 1e-6) for kind, share in wanted if share)
            for there in self._nodes()
        )

    @property
    def running(self) -> Collection[Place]:
        return self.fleets.keys()

    def pace(self) -> pace.Pace:
        """That of the first worker that is asked."""
        if self.known is None:
            name = self.ray.get(self._task(node.device_name).remote(self.device))

            def trial(spec: Any) -> float:
                return float(self.ray.get(self._task(node.trial).remote(spec.as_dict(), self.arrays, self.device)))

            self.known = pace.Pace(name, self.images // 128, trial)
        self.known.learn(self.orders.work)
        return self.known

    def _task(self, function: Callable[..., Any], **options: Any) -> Any:
        return self.ray.remote(function).options(**self.share, **options)

    def room(self) -> bool:
        # one task may always wait: an autoscaler sees it
        return len(self.fleets) < (self.orders.workers or max(1, self._capacity()))

    def remark(self, left: float) -> str:
        return "" if math.isinf(left) else f"; {clock(left)} of the budget left"

    def submit(self, fleet: Planned, budget: float) -> None:
        planner.begin(fleet.folder, fleet.specs)
        self._start(fleet, time.monotonic() + budget, lost=0)

    def _start(self, fleet: Planned, ends: float, lost: int) -> None:
        orders, epoch = self.orders, planner.epochs_done(fleet.folder)
        job = node.Job(
            folder=str(orders.work / fleet.folder.name), results=str(orders.results), device=self.device,
            threads=max(1, int(orders.cpus)), ends=time.time() + ends - time.monotonic(),
            evaluate_every=orders.evaluate_every, checkpoint_seconds=orders.checkpoint_seconds,
            revision=orders.revision, keep=self.keep, autotune=orders.autotune, version=node.version(),
        )  # fmt: skip
        task = self._task(node.train, max_retries=0, name=fleet.folder.name).remote(job, self.arrays, self.board)
        self.fleets[fleet.folder] = _Running(fleet, task, ends, epoch, lost)

    def poll(self) -> list[Ended]:
        folders = {running.task: folder for folder, running in self.fleets.items()}
        ready, _ = self.ray.wait(list(folders), num_returns=len(folders), timeout=0) if folders else ([], [])
        self._show()
        ended = [self._end(self.fleets.pop(folders[task])) for task in ready]
        return [fleet for fleet in ended if fleet is not None]

    def _show(self) -> None:
        """Everything that workers have said since the last time."""
        try:
            for line in self.ray.get(self.board.take.remote(), timeout=10):
                self.say(line)
        except self.ray.exceptions.RayError:
            pass  # the board starts again by itself; training does not depend on it

    def _end(self, running: _Running) -> Ended | None:
        """What became of a fleet; None if it was started again."""
        folder, errors = running.fleet.folder, self.ray.exceptions
        try:
            finished = bool(self.ray.get(running.task))
        except errors.TaskCancelledError:
            return Ended(folder, finished=False)
        except errors.RayTaskError as error:
            if isinstance(error.cause, UserError):
                return Ended(folder, failed=str(error.cause))
            self.say(str(error))  # with the worker's traceback
            return Ended(folder, failed=f"{type(error.cause).__name__} on its worker; the lines above say where")
        except errors.RayError as error:  # the worker or its node is gone
            return self._again(running, error)
        if finished and store.missing(self.orders.results, running.fleet.specs):
            return Ended(folder, failed=f"its results are not in {self.orders.results}; every node must see that place")
        return Ended(folder, finished)

    def _again(self, running: _Running, error: Exception) -> Ended | None:
        fleet, epoch = running.fleet, planner.epochs_done(running.fleet.folder)
        complete = not (fleet.folder / planner.CELLS).exists()
        if complete and not store.missing(self.orders.results, fleet.specs):
            return Ended(fleet.folder)  # lost after its last deed
        lost = running.lost + 1 if epoch <= running.epoch else 1
        kind = type(error).__name__
        if lost > RETRIES:
            return Ended(fleet.folder, failed=f"its worker was lost {lost} times before it saved an epoch ({kind})")
        self.say(f"[{node.short(fleet.folder)}] its worker was lost ({kind}); starting it again from epoch {epoch}")
        planner.begin(fleet.folder, fleet.specs)
        self._start(fleet, running.ends, lost)
        return None

    def close(self) -> None:
        if self.fleets:
            self.say(f"stopping {len(self.fleets)} fleets; each saves where it is")
            tasks = [running.task for running in self.fleets.values()]
            for task in tasks:
                self.ray.cancel(task)
            self.ray.wait(tasks, num_returns=len(tasks), timeout=STOPPING)
            self._show()
        if self.ours:
            self.ray.shutdown()


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise UserError(
            "--engine ray needs the package ray; install it with: pip install 'gibbsprune[cluster]'"
        ) from None
    return ray


def _connect(ray: Any, address: str | None) -> None:
    """To the cluster at ``address``; without one to that of ``RAY_ADDRESS``, one running here, or a new one here."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    try:
        if host and port.isdigit():  # Ray itself would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:
        first = str(error).partition("\n")[0]
        raise UserError(f"no Ray cluster answers at {address or 'the default address'}: {first}") from None


def _absolute(where: Place) -> Place:
    """The same place from another working directory."""
    return where.resolve() if isinstance(where, Path) else where
