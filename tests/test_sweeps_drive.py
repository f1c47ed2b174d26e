"""A sweep from its file to its results: in this process, cut off and continued, with lost and failed workers."""

from __future__ import annotations

import io
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from gibbsprune import data
from gibbsprune.errors import UserError
from gibbsprune.sweeps import declare, drive, fleets, planner, results
from gibbsprune.sweeps.display import Display, Live
from gibbsprune.sweeps.drive import Driver
from gibbsprune.sweeps.orders import Orders
from gibbsprune.sweeps.planner import Planned
from gibbsprune.sweeps.workers import Ended
from gibbsprune.training import RECIPES, RunSpec, checkpoint
from gibbsprune.training.folder import RunFolder
from gibbsprune.training.places import place
from sweep_bench import write_grid

pytestmark = pytest.mark.usefixtures("one_thread")
RECIPE = RECIPES["digits"].replace(epochs=3, anneal_epochs=2)


class Said(Display):
    """What was said, and a death at a line that begins so."""

    def __init__(self, die: str = "never") -> None:
        super().__init__()
        self.lines, self.die = [], die

    def note(self, text: str) -> None:
        self.lines.append(text)
        if self.die in text:
            raise RuntimeError("killed")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Own data and an own network, as a user has them."""
    folder = tmp_path_factory.mktemp("own")
    write_grid(folder)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def specs(home) -> list[RunSpec]:
    """One of another length, one that starts from another, and one of other data."""

    def run(method="gibbs", **options):
        return RunSpec(str(home / "own.npz"), "own_network:small", method, recipe=RECIPE, sparsity=0.5, **options)

    gibbs = run()
    again = run("reinit", settings={"from": gibbs.name()})
    held = run(seed=1).replace(data=f"{home / 'own.npz'}:heldout=30", recipe=RECIPE, epochs=1)
    return [again, gibbs, run(seed=1, stretch=2), held]


def driver(specs, where, display=None, **options) -> Driver:
    orders = Orders(where / "results", where / "work", "cpu", revision="r1", evaluate_every=1, **options)
    return Driver(declare.of("a sweep", specs), orders, display or Said())


def written(where, specs) -> list[dict]:
    return [{**results.read(results.path(where / "results", spec)), "seconds": 0} for spec in specs]


@pytest.fixture(scope="module")
def undisturbed(specs, one_thread, tmp_path_factory):
    where = tmp_path_factory.mktemp("whole")
    display = Said()
    driver(specs, where, display).run()
    assert display.lines[-1] == "nothing is missing"
    return where


def test_every_run_has_a_result_of_its_own(undisturbed, specs):
    for spec, record in zip(specs, written(undisturbed, specs)):
        assert (record["name"], record["revision"]) == (spec.name(), "r1")
        assert record["curve"][-1]["epoch"] == spec.own_epochs
        as_trained = record.get("lagged", {"accuracy": record["accuracy_converged"]})
        assert as_trained["accuracy"] == record["curve"][-1]["test_accuracy"]
        assert ("lagged" in record) == (spec.method == "gibbs" and spec.own_epochs > 1), "where a sparsity rises"
        assert set(record["environment"]) == {"versions", "hardware", "system", "training"}
        with np.load(undisturbed / "results" / "predictions" / f"{spec.name()}.npz") as seen:
            assert seen["classes"].dtype == np.uint8
            right = np.mean(seen["classes"] == data.load(spec.data).y_test.numpy())
        assert right == pytest.approx(record["accuracy"])
    assert [record["fleet"] for record in written(undisturbed, specs)] == [1, 2, 2, 1], "those that can train together"
    held = results.read(results.path(undisturbed / "results", specs[3]))["accuracy"]
    assert held * 30 == pytest.approx(round(held * 30)), "tested on held-out images"


def test_every_run_has_a_folder_that_is_read_like_any_other(undisturbed, specs):
    import gibbsprune as gp

    for spec in specs:
        found = gp.load_run(undisturbed / "work" / "runs" / spec.name(), trust=True)
        record = results.read(results.path(undisturbed / "results", spec))
        assert {key: found.metrics[key] for key in record} == record
    assert not list((undisturbed / "work").glob("fleet-*"))


def test_only_what_others_start_from_is_kept_on_request(specs, tmp_path, undisturbed):
    driver(specs[:2], tmp_path, drop_models=True).run()
    assert planner.saved(tmp_path / "work") == {specs[1].name()}


@pytest.mark.parametrize("moment", ["epoch 2/6", "] {}:"])
def test_a_sweep_that_dies_and_is_continued_is_the_same(specs, tmp_path, undisturbed, moment):
    """Within training, and after all of it with one of two results written."""
    with pytest.raises(RuntimeError, match="killed"):
        driver(specs, tmp_path, Said(moment.format(specs[2].name())), checkpoint_seconds=0.0).run()
    display = Said()
    driver(specs, tmp_path, display, checkpoint_seconds=0.0).run()
    assert any("] continuing 2 runs from epoch" in line for line in display.lines)
    assert written(tmp_path, specs) == written(undisturbed, specs)


def test_a_sweep_in_memory(specs, undisturbed):
    """Any place that fsspec reaches."""
    pytest.importorskip("fsspec", reason="needs fsspec")
    where = place("memory://a-sweep-in-memory")
    with pytest.raises(RuntimeError, match="killed"):
        driver(specs, where, Said("epoch 3/6"), checkpoint_seconds=0.0).run()
    assert [len(some) for some in planner.begun(where / "work").values()] == [2]
    driver(specs, where).run()
    assert written(where, specs) == written(undisturbed, specs)
    assert planner.begun(where / "work") == {}


def test_what_follows_from_results_is_trained_too(specs, tmp_path):
    gibbs, other = specs[1].replace(epochs=1), specs[1].replace(epochs=1, seed=9)

    def runs(found):
        yield gibbs
        if gibbs.name() in found and found[gibbs.name()]["accuracy"] < 1:
            yield other

    display, orders = Said(), Orders(tmp_path / "results", tmp_path / "work", "cpu")
    Driver(declare.Sweep("a sweep", runs), orders, display).run()
    assert results.names(tmp_path / "results") == {gibbs.name(), other.name()}
    assert sum(line.startswith("fleet-") for line in display.lines) == 2


def test_a_result_is_written_once(specs, tmp_path):
    """A run whose weights are gone is trained again for them; what was published stays."""
    short = [specs[1].replace(epochs=1), None]
    short[1] = specs[0].replace(epochs=1, settings={"from": short[0].name()})
    driver(short[:1], tmp_path, drop_models=True).run()
    before = results.path(tmp_path / "results", short[0]).read_bytes()
    display = Said()
    driver(short, tmp_path, display).run()
    assert any("1 of them again for their weights" in line for line in display.lines)
    assert any(
        f"{short[0].name()} was trained once more; its result, which was there, stays" in x for x in display.lines
    )
    assert results.path(tmp_path / "results", short[0]).read_bytes() == before


def test_a_budget_cuts_and_the_rest_follows(specs, tmp_path, monkeypatch):
    display = Said()
    driver(specs, tmp_path, display, budget=1.0).run()
    assert display.lines[-1].startswith("4 runs do not fit into the 0:0")
    assert not list((tmp_path / "work").glob("fleet-*")), "nothing is begun in vain"
    with monkeypatch.context() as patch:
        patch.setattr("gibbsprune.training.session.MARGIN", 100.0)
        display = Said()
        driver(specs, tmp_path, display, budget=20.0, leave_unfinished=True).run()
    assert "stopped after epoch 0 of 6: no more fits into the 0:" in display.lines[-1]
    state = driver(specs, tmp_path).survey()
    assert [state.state(spec) for spec in specs] == ["waiting", "begun", "begun", "ready"]


def test_what_another_process_trains_is_left_to_it(specs, tmp_path):
    gibbs, other = specs[1].replace(epochs=1), specs[1].replace(epochs=1, seed=4)
    folder = tmp_path / "work" / planner.fleet_key([gibbs])
    planner.begin(folder, [gibbs])
    held = RunFolder(folder)
    held.lock()
    display = Said()
    driver([gibbs, other], tmp_path, display).run()
    held.unlock()
    assert f"{folder.name} is being trained by another process: it is left to that one" in display.lines
    assert results.names(tmp_path / "results") == {other.name()}, "the rest is trained"


def test_a_folder_that_outlived_its_fleet_is_removed(specs, tmp_path):
    gibbs, other = specs[1].replace(epochs=1), specs[1].replace(epochs=1, seed=4)
    driver([gibbs], tmp_path).run()
    planner.begin(tmp_path / "work" / planner.fleet_key([gibbs]), [gibbs])
    driver([gibbs, other], tmp_path).run()
    assert not list((tmp_path / "work").glob("fleet-*"))


def test_temporaries_of_killed_saves_are_cleared_when_they_are_old(specs, tmp_path):
    """A young one may be another command's, which is at work."""
    old, young = [tmp_path / "results" / f".x.json.{name * 8}.tmp" for name in ("a0", "b1")]
    old.parent.mkdir()
    for file in (old, young):
        file.write_text("half")
    os.utime(old, (0, 0))
    driver([specs[1].replace(epochs=1)], tmp_path).run()
    assert (old.exists(), young.exists()) == (False, True)


def test_a_damaged_result_is_not_taken_for_one(specs, tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "other.json").write_text("{")  # not of this sweep
    driver(specs, tmp_path).survey()
    results.path(tmp_path / "results", specs[1]).write_text("{")
    with pytest.raises(
        UserError, match=r"cannot be read: .*; move it away: gibbsprune sweep run makes its own runs anew"
    ):
        driver(specs, tmp_path).survey()


def test_the_plan_is_told_with_its_times_and_nothing_is_written(specs, tmp_path):
    lines = driver(specs, tmp_path).plan_lines()
    assert lines[0].split(", about ")[0].endswith(": 2 runs of own_network:small, 6 epochs")
    assert lines[1:3] == [f"  {specs[2].name()}", f"  {specs[1].name()}"]
    assert lines[-1].startswith("4 runs in 3 fleets, about 0:")
    gone = [specs[1].replace(data="/nowhere/x.npz")]
    assert driver(gone, tmp_path).plan_lines()[-1] == "1 runs in 1 fleets, about ? on cpu", "data that are not here"
    assert not any(tmp_path.iterdir())


# -- workers that end badly --------------------------------------------------------------------------------------------


class Workers:
    """Ends each fleet as the script says, and at the end of it as it should."""

    def __init__(self, script, running=None):
        self.script, self.fleets, self.known = list(script), {}, SimpleNamespace()

    running = property(lambda self: self.fleets.keys())

    def pace(self):
        from gibbsprune.sweeps.pace import Pace

        return Pace("cpu")

    def count(self):
        return 1

    def room(self):
        return not self.fleets

    def submit(self, fleet: Planned, seconds):
        self.fleets[fleet.folder] = fleet

    def poll(self):
        (folder, fleet) = self.fleets.popitem()
        outcome = self.script.pop(0)
        if isinstance(outcome, int):  # lost after it has saved an epoch
            checkpoint.save(folder / "checkpoints", outcome, {})
            return [Ended(folder, fleet.specs, lost="a power cut")]
        return [Ended(folder, fleet.specs, **outcome)]

    def close(self):
        pass


@pytest.fixture
def scripted(monkeypatch, specs, tmp_path):
    def drive_with(*script):
        monkeypatch.setattr(drive, "workers_of", lambda *_, **__: Workers(script))
        display = Said()
        one = driver(specs[1:2], tmp_path, display)
        return one, display

    return drive_with


def test_a_lost_worker_is_replaced_so_long_as_there_is_progress(scripted):
    one, display = scripted(*[1, 2, 3, 4, 4, 4, 4])
    with pytest.raises(UserError, match=r"^the fleet fleet-\w+ failed: its worker was lost 4 times before it saved an"):
        one.run()
    lost = [line for line in display.lines if "its worker was lost (a power cut); it is taken up again" in line]
    assert [int(line.rpartition(" ")[2]) for line in lost] == [1, 2, 3, 4, 4, 4]


@pytest.mark.parametrize(
    ("outcome", "sentence"),
    [
        ({"failed": "the disk is full"}, "the fleet fleet-.* failed: the disk is full$"),
        ({"finished": True}, "its result own-.* is not in .*results; every node must see that place$"),
    ],
)
def test_failures_are_told(scripted, outcome, sentence):
    with pytest.raises(UserError, match=sentence):
        scripted(outcome)[0].run()


def test_a_fleet_that_its_budget_cut_ends_the_sweep(scripted):
    one, display = scripted({})
    one.run()
    assert "nothing is missing" not in display.lines


# -- the display -------------------------------------------------------------------------------------------------------

EVENT = {"fleet": "ab12", "epoch": 2, "epochs": 6, "seconds": 8.0, "left": 16.0, "accuracies": [0.5, None]}


def test_plain_lines_tell_the_time_left_of_a_fleet_and_of_the_sweep():
    stream = io.StringIO()
    display = Display(stream)
    display.tell({"fleet": "ab12", "text": "hello"})
    display.tell(EVENT)
    state = planner.Survey(chosen=[RunSpec()], queue=[RunSpec()])
    display.stands(state, [Planned((RunSpec(),), place("f"), 0, 60.0)], 2)
    display.tell({**EVENT, "epoch": 3})
    assert stream.getvalue().splitlines() == [
        "[ab12] hello",
        "[ab12] epoch 2/6 0:08 (0:16 left): 50.0 –",
        "[ab12] epoch 3/6 0:08 (0:16 left, 0:46 of the sweep): 50.0 –",
    ]


def test_one_live_display_shows_the_sweep_and_every_fleet():
    pytest.importorskip("rich", reason="needs rich")
    stream = io.StringIO()
    display = Live(stream)
    with display:
        display.stands(planner.Survey(chosen=[RunSpec()], done=[RunSpec()]), [], 1)
        display.tell(EVENT)
        display.tell({**EVENT, "fleet": "cd34"})
        display.note("a line above")
        tasks = [(task.description.strip(), task.completed, task.fields["extra"]) for task in display.bars.tasks]
        display.tell({**EVENT, "epoch": 6})
    assert tasks == [("sweep", 1, "0:16 left"), ("ab12", 2, "0:16 left, 50.0 %"), ("cd34", 2, "0:16 left, 50.0 %")]
    assert [task.description.strip() for task in display.bars.tasks] == ["sweep", "cd34"]
    assert "a line above" in stream.getvalue()


def test_a_job_travels_as_plain_values(specs, tmp_path):
    import json
    from dataclasses import asdict

    from gibbsprune.sweeps.workers import Jobs

    jobs = Jobs(Orders(tmp_path / "r", tmp_path / "w"), declare.of("s", specs), None)
    job = jobs.job(Planned(tuple(specs), tmp_path / "w" / "fleet-1", 0, 1.0), "cpu", 10.0)
    assert fleets.Job(**json.loads(json.dumps(asdict(job)))) == job
