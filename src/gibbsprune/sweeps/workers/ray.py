"""Fleets on a Ray cluster: one task each, with its share of CPUs and GPUs.

Nothing but plain values, the data and lines of text travel through Ray. Checkpoints and results are files, in a place
that every node reaches; a fleet whose worker or node is lost goes on from its last checkpoint there.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Collection
from typing import Any

from ... import __version__, data
from ...errors import UserError, needed
from ...text import first_line
from ...training.places import Place
from ...training.spec import RunSpec
from ..display import Display
from ..pace import Pace
from ..planner import Planned
from . import Ended, Jobs, node

STOPPING = 30.0  # seconds in which cancelled fleets may save their state


class OnRay:
    """As many fleets at a time as the cluster has room for, or ``workers``; the rest of the queue stays here."""

    def __init__(self, jobs: Jobs, display: Display) -> None:
        orders = jobs.orders
        if orders.device not in ("auto", "cpu", "cuda"):
            raise UserError(f"--device is {orders.device!r}, but on a cluster it must be auto, cpu or cuda")
        self.ray, self.jobs = needed("ray", "--engine ray", "cluster"), jobs
        self.orders, self.display = orders, display
        self.ours = not self.ray.is_initialized()
        if self.ours:
            _connect(self.ray, orders.address)
        self.fleets: dict[Place, tuple[Planned, Any]] = {}  # with Ray's reference to its result
        gpus = orders.gpus
        if gpus is None:
            there = self.ray.cluster_resources().get("GPU", 0) > 0
            gpus = 1.0 if orders.device == "cuda" or (there and orders.device == "auto") else 0.0
        self.share = {"num_cpus": orders.cpus, "num_gpus": gpus}
        self.device = "cuda" if gpus else "cpu"
        self.arrays: dict[str, Any] = {}  # by the data's name, as Ray's references
        self.board = self._start_board()
        self._say_room()
        self.known: Pace | None = None

    def _start_board(self) -> Any:
        """Where workers leave their lines: on this node, which lives as long as we do."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(self.ray.get_runtime_context().get_node_id(), soft=False)
        return self.ray.remote(node.Board).options(num_cpus=0, max_restarts=-1, scheduling_strategy=here).remote()

    def _say_room(self) -> None:
        alive, room = len(self._nodes()), self._capacity()
        share = f"{self.share['num_cpus']:g} CPUs" + (f" and {self.gpus:g} GPUs" if self.gpus else "")
        nodes = f"{alive} {'node' if alive == 1 else 'nodes'}, room for {room} fleets of {share} at a time"
        full = f"no node of the cluster has {share} free for a fleet; waiting for one that has"
        self.display.note(nodes if room else full)

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

    def _data(self, name: str) -> Any:
        """The data, read once, here, and sent to the nodes."""
        if name not in self.arrays:
            self.arrays[name] = self.ray.put(data.load(name))
        return self.arrays[name]

    @property
    def running(self) -> Collection[Place]:
        return self.fleets.keys()

    def pace(self) -> Pace:
        """That of the first worker that is asked."""
        if self.known is None:
            name = self.ray.get(self._task(node.device_name).remote(self.device))

            def trial(spec: RunSpec) -> float:
                task = self._task(node.trial)
                return float(
                    self.ray.get(task.remote(spec.as_dict(), self._data(spec.data), self.device, self.jobs.path))
                )

            self.known = Pace(name, trial)
        return self.known

    def _task(self, function: Callable[..., Any], **options: Any) -> Any:
        return self.ray.remote(function).options(**self.share, **options)

    def count(self) -> int:
        return self.orders.workers or max(1, self._capacity())

    def room(self) -> bool:
        return len(self.fleets) < self.count()  # one task may always wait: an autoscaler sees it

    def submit(self, fleet: Planned, seconds: float) -> None:
        job, threads = self.jobs.job(fleet, self.device, seconds), max(1, int(self.orders.cpus))
        task = self._task(node.train, max_retries=0, name=fleet.folder.name)
        arrays = self._data(fleet.specs[0].data)
        self.fleets[fleet.folder] = fleet, task.remote(job, arrays, self.board, threads, __version__)

    def poll(self) -> list[Ended]:
        folders = {task: folder for folder, (_, task) in self.fleets.items()}
        ready, _ = self.ray.wait(list(folders), num_returns=len(folders), timeout=0) if folders else ([], [])
        self._show()
        return [self._end(*self.fleets.pop(folders[task])) for task in ready]

    def _show(self) -> None:
        """Everything that workers have said since the last time."""
        try:
            for event in self.ray.get(self.board.take.remote(), timeout=10):
                self.display.tell(event)
        except self.ray.exceptions.RayError:
            pass  # the board starts again by itself; training does not depend on it

    def _end(self, fleet: Planned, task: Any) -> Ended:
        """What became of a fleet."""
        folder, specs, errors = fleet.folder, fleet.specs, self.ray.exceptions
        try:
            return Ended(folder, specs, finished=bool(self.ray.get(task)))
        except errors.TaskCancelledError:
            return Ended(folder, specs)
        except errors.RayTaskError as error:
            if isinstance(error.cause, UserError):
                return Ended(folder, specs, failed=str(error.cause))
            self.display.note(str(error))  # with the worker's traceback
            return Ended(folder, specs, failed=f"{type(error.cause).__name__} on its worker; the lines above say where")
        except errors.RayError as error:  # the worker or its node is gone
            return Ended(folder, specs, lost=type(error).__name__)

    def close(self) -> None:
        if self.fleets:
            self.display.note(f"stopping {len(self.fleets)} fleets; each saves where it is")
            tasks = [task for _, task in self.fleets.values()]
            for task in tasks:
                self.ray.cancel(task)
            self.ray.wait(tasks, num_returns=len(tasks), timeout=STOPPING)
            self._show()
        if self.ours:
            self.ray.shutdown()


def _connect(ray: Any, address: str | None) -> None:
    """To the cluster at ``address``; without one to that of ``RAY_ADDRESS``, one running here, or a new one here."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    try:
        if host and port.isdigit():  # Ray itself would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"no Ray cluster answers at {address or 'the default address'}: {first_line(error)}") from None
