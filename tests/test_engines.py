"""What the engines decide; with a stand-in for Ray: room, lost workers, failures, foreign nodes."""

from __future__ import annotations

import dataclasses
import time
from types import SimpleNamespace

import pytest
import torch

from gibbsprune import data
from gibbsprune.errors import UserError
from gibbsprune.experiments import planner
from gibbsprune.experiments.engines import Ended, inline, node
from gibbsprune.experiments.engines.ray import RETRIES, RayEngine
from gibbsprune.experiments.orders import Orders
from gibbsprune.experiments.planner import Planned
from gibbsprune.training import checkpoint
from small_suite import small


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause):
        super().__init__(f"traceback of {cause!r}")
        self.cause = cause


class Cancelled(RayError):
    pass


class FakeRay:
    """Gives the next outcome to each task that is asked for; knows the nodes it is told."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError, TaskCancelledError=Cancelled)

    def __init__(self, *nodes):
        self.outcomes, self.started, self.shares = [], [], []
        self.there = [{"Alive": True, "Resources": resources} for resources in nodes]

    def nodes(self):
        return self.there

    def wait(self, tasks, num_returns, timeout):
        return tasks, []

    def get(self, task, timeout=None):
        if task == "board":
            return []
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def remote(self, function):
        def start(job, *others):
            self.started.append(job)
            return f"task {len(self.started)}"

        def options(**share):
            self.shares.append(share)
            return SimpleNamespace(remote=start)

        return SimpleNamespace(options=options)


def engine_with(tmp_path, ray, cpus=1.0, gpus=0.0, workers=None) -> RayEngine:
    engine = RayEngine.__new__(RayEngine)
    engine.ray, engine.said = ray, []
    engine.say = engine.said.append
    engine.orders = Orders(tmp_path / "results", tmp_path / "work", workers=workers, cpus=cpus, gpus=gpus)
    engine.share, engine.device = {"num_cpus": cpus, "num_gpus": gpus}, "cuda" if gpus else "cpu"
    engine.fleets, engine.keep, engine.arrays = {}, [], None
    engine.board = SimpleNamespace(take=SimpleNamespace(remote=lambda: "board"))
    return engine


@pytest.fixture
def fleet(tmp_path) -> Planned:
    specs = (small()[0].spec,)
    return Planned(specs, tmp_path / "work" / planner.fleet_key(specs), 0, 1.0)


def test_small_images_take_one_thread_here_as_on_a_cluster(tmp_path, fleet, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    seen, before = [], torch.get_num_threads()
    monkeypatch.setattr(inline.runner, "run", lambda *_, **__: seen.append(torch.get_num_threads()))
    torch.set_num_threads(2)
    try:
        orders = Orders(tmp_path / "results", tmp_path / "work", device="cpu")
        inline.Inline(orders, data.load("digits"), [], print).submit(fleet, 1.0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [1]


NODES = ({"CPU": 8.0, "GPU": 2.0}, {"CPU": 3.0}, {"CPU": 1.0, "GPU": 4.0})


@pytest.mark.parametrize(
    ("cpus", "gpus", "room"), [(1, 0, 12), (2, 0, 5), (0.5, 0, 24), (1, 1, 3), (0.5, 0.5, 6), (4, 1, 2), (1, 8, 0)]
)
def test_room_is_counted_node_by_node(tmp_path, cpus, gpus, room):
    engine = engine_with(tmp_path, FakeRay(*NODES), cpus, gpus)
    assert engine._capacity() == room
    engine.fleets = dict.fromkeys(range(max(1, room) - 1))
    assert engine.room()
    engine.fleets = dict.fromkeys(range(max(1, room)))
    assert not engine.room()
    engine._say_room()
    assert ("waiting" in engine.said[0]) == (room == 0)


def test_workers_may_be_more_than_fit(tmp_path):
    engine = engine_with(tmp_path, FakeRay(*NODES), gpus=1.0, workers=9)
    engine.fleets = dict.fromkeys(range(8))
    assert engine.room(), "an autoscaler sees what waits"


def test_a_task_has_its_share(tmp_path, fleet):
    engine = engine_with(tmp_path, FakeRay(*NODES), cpus=2.0, gpus=0.5)
    engine.submit(fleet, 100.0)
    assert engine.ray.shares[0] == {"num_cpus": 2.0, "num_gpus": 0.5, "max_retries": 0, "name": fleet.folder.name}
    (job,) = engine.ray.started
    assert (job.device, job.threads, job.folder) == ("cuda", 2, str(fleet.folder))
    assert 90 < job.ends - time.time() <= 100
    assert planner.cells_of(fleet.folder) == list(fleet.specs)


def test_a_lost_worker_is_replaced_so_long_as_there_is_progress(tmp_path, fleet):
    engine = engine_with(tmp_path, FakeRay(*NODES))
    engine.submit(fleet, 100.0)
    for epoch in range(1, 6):
        checkpoint.save(fleet.folder, epoch, {})
        engine.ray.outcomes = [RayError("gone")]
        assert engine.poll() == []
        assert (
            engine.said[-1]
            == f"[{node.short(fleet.folder)}] its worker was lost (RayError); starting it again from epoch {epoch}"
        )
    for _ in range(RETRIES - 1):
        engine.ray.outcomes = [RayError("gone")]
        assert engine.poll() == []
    engine.ray.outcomes = [RayError("gone")]
    (ended,) = engine.poll()
    assert ended.failed == f"its worker was lost {RETRIES + 1} times before it saved an epoch (RayError)"
    assert list(engine.running) == []


@pytest.mark.parametrize(
    ("outcome", "ended"),
    [
        (False, {"finished": False}),
        (Cancelled(), {"finished": False}),
        (RayTaskError(UserError("the disk is full")), {"failed": "the disk is full"}),
        (RayTaskError(KeyError("x")), {"failed": "KeyError on its worker; the lines above say where"}),
    ],
)
def test_ends_are_told_apart(tmp_path, fleet, outcome, ended):
    engine = engine_with(tmp_path, FakeRay(*NODES))
    engine.submit(fleet, 100.0)
    engine.ray.outcomes = [outcome]
    assert engine.poll() == [Ended(fleet.folder, **ended)]
    assert len(engine.ray.started) == 1


def test_results_that_are_not_seen_here_are_an_error(tmp_path, fleet):
    engine = engine_with(tmp_path, FakeRay(*NODES))
    engine.submit(fleet, 100.0)
    engine.ray.outcomes = [True]
    assert engine.poll()[0].failed == f"its results are not in {tmp_path}/results; every node must see that place"


def test_nodes_that_cannot_do_the_job_say_so(tmp_path, fleet):
    pytest.importorskip("ray", reason="needs Ray")
    engine = engine_with(tmp_path, FakeRay(*NODES))
    engine.submit(fleet, 100.0)
    (job,) = engine.ray.started
    elsewhere = dataclasses.replace(job, folder=f"{tmp_path}/elsewhere/fleet-1")
    with pytest.raises(
        UserError, match=r" does not see .*/elsewhere/fleet-1; results and work must lie where every node"
    ):
        node.train(elsewhere, None, None)
    with pytest.raises(UserError, match=r"^gibbsprune is .* on .*, but 9\.9 where the suite is run$"):
        node.train(dataclasses.replace(job, version="9.9"), None, None)
