"""What the workers decide: room, shares and foreign nodes, with a stand-in for Ray; and processes of this machine."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch

from gibbsprune import __version__
from gibbsprune.errors import UserError
from gibbsprune.sweeps import declare, fleets, planner
from gibbsprune.sweeps.orders import Orders
from gibbsprune.sweeps.planner import Planned
from gibbsprune.sweeps.workers import Ended, Jobs, here, node, processes
from gibbsprune.sweeps.workers.ray import OnRay
from sweep_bench import run
from test_sweeps_drive import Said


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

    def put(self, arrays):
        return f"{len(arrays.x_train)} images"

    def get(self, task, timeout=None):
        if task == "board":
            return [{"fleet": "ab12", "text": "hello"}]
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def remote(self, function):
        def start(*given):
            self.started.append(given)
            return f"task {len(self.started)}"

        def options(**share):
            self.shares.append(share)
            return SimpleNamespace(remote=start)

        return SimpleNamespace(options=options)


NODES = ({"CPU": 8.0, "GPU": 2.0}, {"CPU": 3.0}, {"CPU": 1.0, "GPU": 4.0})


def on_ray(tmp_path, cpus=1.0, gpus=0.0, workers=None) -> OnRay:
    one = OnRay.__new__(OnRay)
    one.orders = Orders(tmp_path / "results", tmp_path / "work", workers=workers, cpus=cpus, gpus=gpus, revision="r")
    one.jobs = Jobs(one.orders, declare.of("s", [run()]), None)
    one.ray, one.display = FakeRay(*NODES), Said()
    one.share, one.device = {"num_cpus": cpus, "num_gpus": gpus}, "cuda" if gpus else "cpu"
    one.fleets, one.arrays = {}, {}
    one.board = SimpleNamespace(take=SimpleNamespace(remote=lambda: "board"))
    return one


@pytest.fixture
def fleet(tmp_path) -> Planned:
    specs = (run(epochs=1),)
    folder = tmp_path / "work" / planner.fleet_key(specs)
    planner.begin(folder, specs)
    return Planned(specs, folder, 0, 1.0)


@pytest.mark.parametrize(
    ("cpus", "gpus", "room"), [(1, 0, 12), (2, 0, 5), (0.5, 0, 24), (1, 1, 3), (0.5, 0.5, 6), (4, 1, 2), (1, 8, 0)]
)
def test_room_is_counted_node_by_node(tmp_path, cpus, gpus, room):
    one = on_ray(tmp_path, cpus, gpus)
    assert one._capacity() == room
    one.fleets = dict.fromkeys(range(max(1, room) - 1))
    assert one.room()
    one.fleets = dict.fromkeys(range(max(1, room)))
    assert not one.room()
    one._say_room()
    assert ("waiting" in one.display.lines[0]) == (room == 0)


def test_workers_may_be_more_than_fit(tmp_path):
    one = on_ray(tmp_path, gpus=1.0, workers=9)
    one.fleets = dict.fromkeys(range(8))
    assert one.room(), "an autoscaler sees what waits"


def test_a_task_has_its_share_and_the_data_are_sent_once(tmp_path, fleet):
    one = on_ray(tmp_path, cpus=2.0, gpus=0.5)
    one.submit(fleet, 100.0)
    one.submit(fleet, 100.0)
    assert one.ray.shares[0] == {"num_cpus": 2.0, "num_gpus": 0.5, "max_retries": 0, "name": fleet.folder.name}
    job, arrays, _, threads, version = one.ray.started[0]
    assert (job.device, job.folder, threads, version) == ("cuda", str(fleet.folder), 2, __version__)
    assert 90 < job.ends - time.time() <= 100
    assert arrays == "1442 images"
    assert one.arrays == {"digits": "1442 images"}


@pytest.mark.parametrize(
    ("outcome", "ended"),
    [
        (True, {"finished": True}),
        (False, {}),
        (Cancelled(), {}),
        (RayTaskError(UserError("the disk is full")), {"failed": "the disk is full"}),
        (RayTaskError(KeyError("x")), {"failed": "KeyError on its worker; the lines above say where"}),
        (RayError("gone"), {"lost": "RayError"}),
    ],
)
def test_ends_are_told_apart(tmp_path, fleet, outcome, ended):
    one = on_ray(tmp_path)
    one.submit(fleet, 100.0)
    one.ray.outcomes = [outcome]
    assert one.poll() == [Ended(fleet.folder, fleet.specs, **ended)]
    assert one.display.lines[0] == "[ab12] hello", "what workers say is shown first"


def test_nodes_that_cannot_do_the_job_say_so(tmp_path, fleet):
    pytest.importorskip("ray", reason="needs Ray")
    jobs = Jobs(Orders(tmp_path / "r", tmp_path / "work"), declare.of("s", [run()]), None)
    elsewhere = Planned(fleet.specs, tmp_path / "elsewhere" / "fleet-1", 0, 1.0)
    sentence = r" does not see .*/elsewhere/fleet-1; results and work must lie where every node"
    with pytest.raises(UserError, match=sentence):
        node.train(jobs.job(elsewhere, "cpu", 1.0), None, None, 1, __version__)
    with pytest.raises(UserError, match=r"^gibbsprune is .* on .*, but 9\.9 where the sweep is run$"):
        node.train(jobs.job(fleet, "cpu", 1.0), None, None, 1, "9.9")


def test_small_images_take_one_thread_here_as_on_a_cluster(tmp_path, fleet, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    seen, before = [], torch.get_num_threads()
    monkeypatch.setattr(fleets, "_train", lambda *_: seen.append(torch.get_num_threads()))
    torch.set_num_threads(2)
    try:
        orders = Orders(tmp_path / "results", tmp_path / "work", device="cpu")
        one = here.Here(Jobs(orders, declare.of("s", fleet.specs), None), Said())
        one.submit(fleet, 1.0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [1]


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def several(tmp_path):
    orders = Orders(tmp_path / "results", tmp_path / "work", device="cpu", workers=2, revision="r")
    one = processes.Processes(Jobs(orders, declare.of("s", [run()]), None), Said())
    yield one
    one.close()


def wait(one) -> list[Ended]:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if ended := one.poll():
            return ended
        time.sleep(0.05)
    raise AssertionError("nothing ended")


def test_a_process_trains_its_fleet_and_tells_of_it(several, fleet):
    several.submit(fleet, 1000.0)
    assert list(several.running) == [fleet.folder]
    assert wait(several) == [Ended(fleet.folder, fleet.specs, finished=True)]
    name = fleets.short(fleet.folder)
    assert any(line.startswith(f"[{name}] epoch 1/1 ") for line in several.display.lines)
    assert any(line.startswith(f"[{name}] {fleet.specs[0].name()}: ") for line in several.display.lines)


def test_a_process_that_fails_says_why_and_one_that_is_killed_is_lost(several, fleet):
    (fleet.folder / "run.json").write_text("{")
    several.submit(fleet, 1000.0)
    (ended,) = wait(several)
    assert "run.json cannot be read" in ended.failed
    several.submit(fleet, 1000.0)
    several.fleets[fleet.folder].process.kill()
    assert wait(several) == [Ended(fleet.folder, fleet.specs, lost="signal 9")]
