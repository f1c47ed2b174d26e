"""Where a sweep stands, what to train next, and how long that takes."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gibbsprune.errors import UserError
from gibbsprune.sweeps import pace, planner
from gibbsprune.sweeps.pace import Pace
from gibbsprune.training import RunSpec, checkpoint
from gibbsprune.training.places import place
from gibbsprune.training.session import Allowance
from sweep_bench import run

#: Ten seconds for an epoch of one run, and one more for each other.
KNOWN = {("digits", model): {1: 10.0, 2: 11.0} for model in ("resnet8", "resnet14")}
PACE = Pace("cpu", epochs=KNOWN, starts=dict.fromkeys(KNOWN, 5.0))

DENSE, GIBBS = run("dense"), run("gibbs")
TUNED = run("magnitude", settings={"from": DENSE.name(), "tune_epochs": 1})
AGAIN = run("reinit", settings={"from": GIBBS.name()})


def look(work, specs, have=(), chosen=None) -> planner.Survey:
    return planner.survey(chosen or specs, specs, {spec.name() for spec in have}, work)


def keep(work, *specs) -> None:
    """Leaves the folders of finished runs."""
    for spec in specs:
        (work / planner.RUNS / spec.name()).mkdir(parents=True)
        (work / planner.RUNS / spec.name() / "result.json").write_text("{}")


def plan(state, work="w", **options) -> list[list[RunSpec]]:
    return [list(fleet.specs) for fleet in planner.plan(state, place(work), PACE, **options)]


# -- where it stands ---------------------------------------------------------------------------------------------------


def test_nothing_is_done_at_first(tmp_path):
    state = look(tmp_path, [TUNED, DENSE, GIBBS, AGAIN])
    assert state.queue == [DENSE, TUNED, GIBBS, AGAIN], "a source comes right before the first that needs it"
    assert [state.state(spec) for spec in state.chosen] == ["waiting", "ready", "ready", "waiting"]


def test_a_source_comes_along_though_it_was_not_asked_for(tmp_path):
    state = look(tmp_path, [DENSE, GIBBS, AGAIN], chosen=[AGAIN])
    assert (state.queue, state.chosen) == ([GIBBS, AGAIN], [AGAIN])
    keep(tmp_path, GIBBS)
    state = look(tmp_path, [DENSE, GIBBS, AGAIN], have=[GIBBS], chosen=[AGAIN])
    assert (state.queue, state.state(AGAIN)) == ([AGAIN], "ready")


def test_a_source_without_its_weights_is_trained_again_only_if_needed(tmp_path):
    everything = [DENSE, TUNED]
    state = look(tmp_path, everything, have=[DENSE], chosen=[DENSE])
    assert (state.done, state.queue) == ([DENSE], [])
    state = look(tmp_path, everything, have=[DENSE])
    assert (state.queue, state.state(DENSE), state.done) == ([DENSE, TUNED], "again", [])
    assert look(tmp_path, everything, have=everything).queue == []


def test_a_source_may_be_a_folder_elsewhere_and_must_be_something(tmp_path):
    (tmp_path / "dense").mkdir()
    (tmp_path / "dense" / "result.json").write_text("{}")
    there = run("magnitude", settings={"from": str(tmp_path / "dense")})
    assert look(tmp_path, [there]).state(there) == "ready"
    nowhere = run("magnitude", settings={"from": "nowhere"})
    with pytest.raises(
        UserError, match="starts from nowhere, which is no run of the sweep and no finished run's folder"
    ):
        look(tmp_path, [nowhere])


def begin(work, *specs, epoch=2):
    folder = work / planner.fleet_key(specs)
    planner.begin(folder, specs)
    checkpoint.save(folder / "checkpoints", epoch, {"x": torch.zeros(1)})
    return folder


def test_half_done_fleets_are_continued_first_and_as_they_were(tmp_path):
    other = run(seed=5)
    folder = begin(tmp_path, DENSE, GIBBS)
    state = look(tmp_path, [other, DENSE, GIBBS])
    assert (state.begun, state.queue, state.state(DENSE)) == ({folder: [DENSE, GIBBS]}, [other], "begun")
    first, second = planner.plan(state, tmp_path, PACE)
    assert (first.folder, first.done, first.seconds) == (folder, 2, 5 + 2 * 11.0)
    assert (list(second.specs), second.done) == ([other], 0)
    assert plan(state, tmp_path, busy=[folder]) == [[other]]
    assert plan(state, tmp_path, budget=10.0) == [[DENSE, GIBBS]], "whether it ends in time or not"
    assert plan(state, tmp_path, budget=7.0) == [], "no time for more than a start"
    (folder / "run.json").write_text("{")
    with pytest.raises(
        UserError, match=rf"run\.json cannot be read.*; without the folder {folder.name} its runs begin"
    ):
        look(tmp_path, [DENSE])


def test_fleets_of_other_sweeps_are_left_alone(tmp_path):
    begin(tmp_path, run(seed=7))
    begin(tmp_path, run(seed=8, model="somebody:code"), DENSE)
    state = look(tmp_path, [DENSE])
    assert (state.begun, state.queue) == ({}, [DENSE])


def test_a_folder_that_outlived_its_fleet_is_not_trained_again(tmp_path):
    """Its results are there: it was killed while it cleaned up. But its weights may be waited for."""
    folder = begin(tmp_path, DENSE, GIBBS)
    assert look(tmp_path, [DENSE, GIBBS], have=[DENSE]).begun
    assert look(tmp_path, [DENSE, GIBBS], have=[DENSE, GIBBS]).begun == {}
    assert look(tmp_path, [DENSE, GIBBS, TUNED], have=[DENSE, GIBBS]).begun == {folder: [DENSE, GIBBS]}


def test_a_half_done_fleet_whose_source_is_gone_waits_for_it(tmp_path):
    folder = begin(tmp_path, TUNED)
    state = look(tmp_path, [DENSE, TUNED], have=[DENSE])
    assert (state.begun, state.queue, state.again) == ({folder: [TUNED]}, [DENSE], {DENSE.name()})
    assert plan(state, tmp_path) == [[DENSE], [TUNED]]


def test_a_fleet_that_ends_while_one_looks_is_over(tmp_path, monkeypatch):
    monkeypatch.setattr(planner, "files", lambda work, pattern: [tmp_path / "fleet-1" / "run.json"])
    assert planner.begun(tmp_path) == {}


# -- what to train next ------------------------------------------------------------------------------------------------


def test_fleets_share_what_they_must(tmp_path):
    specs = [run(seed=0), run(seed=0, model="resnet14"), run(seed=1), run(seed=1, model="resnet14")]
    fleets = plan(look(tmp_path, specs))
    assert fleets == [specs[::2], specs[1::2]]
    assert plan(look(tmp_path, specs), at_most=1) == [[spec] for spec in specs]


def test_short_runs_work_beside_longer_ones(tmp_path):
    short, longer = [run(seed=seed) for seed in range(2)], [run(seed=seed, epochs=8) for seed in range(2)]
    (fleet,) = plan(look(tmp_path, [*short, *longer]))
    assert fleet == [*longer, *short]
    (first, *_) = plan(look(tmp_path, [*short, *longer]), budget=5 + 4 * 11.0)
    assert first == short, "unless there is no time for longer ones"


def test_long_chains_begin_first(tmp_path):
    """Of runs that do not all find room, those for which others wait."""
    others = [run(seed=seed) for seed in range(1, 4)]
    assert plan(look(tmp_path, [*others, GIBBS, AGAIN]), at_most=2) == [
        [others[0], GIBBS],
        [others[1], others[2]],
        [AGAIN],
    ]


def test_a_run_that_does_not_fit_leaves_room_for_cheaper_ones(tmp_path):
    long, short = run(epochs=8), run(seed=1)
    assert plan(look(tmp_path, [long, short]), budget=50.0) == [[short]]


SPECS = st.builds(
    lambda model, epochs, seed: run(model=model, epochs=epochs, seed=seed),
    st.sampled_from(["resnet8", "resnet14"]), st.integers(1, 8), st.integers(0, 3),
)  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(
    specs=st.lists(SPECS, min_size=1, max_size=10, unique=True), at_most=st.integers(1, 5), leave=st.booleans(),
    budget=st.one_of(st.just(math.inf), st.floats(0, 400)), follow=st.lists(st.integers(0, 9), max_size=4, unique=True),
)  # fmt: skip
def test_plans_keep_their_promises(specs, at_most, leave, budget, follow):
    """Each run once, after its source, in company it can have; and what fits is planned."""
    later = [
        run("reinit", settings={"from": specs[i].name()}, model=specs[i].model, seed=specs[i].seed)
        for i in follow
        if i < len(specs)
    ]
    state = look(place("nowhere"), [*specs, *later])
    fleets = planner.plan(state, place("w"), PACE, budget, at_most, leave)
    at = {spec.name(): i for i, fleet in enumerate(fleets) for spec in fleet.specs}
    assert sum(len(fleet.specs) for fleet in fleets) == len(at)
    for fleet in fleets:
        assert 1 <= len(fleet.specs) <= at_most
        assert len({planner.kind(spec) for spec in fleet.specs}) == 1
        assert all(at[source] < at[spec.name()] for spec in fleet.specs if (source := planner.source(spec)))
    left = budget - sum(fleet.seconds for fleet in fleets)
    rest = [spec for spec in state.queue if spec.name() not in at]
    rest = [spec for spec in rest if planner.source(spec) is None or planner.source(spec) in at]
    if leave:
        assert all(left <= planner.USEFUL * PACE.start([spec]) for spec in rest)
    else:
        assert left >= 0
        assert all(left < PACE.seconds([spec]) for spec in rest)
    if PACE.seconds([specs[0]]) <= budget:
        assert specs[0].name() in at, "the most important run is not left out"


# -- pace --------------------------------------------------------------------------------------------------------------


def test_runs_that_start_later_cost_only_their_own_epochs():
    assert PACE.seconds([run(epochs=8), run(epochs=3)]) == 5 + 5 * 10 + 3 * 11
    assert PACE.seconds([run(epochs=8), run(epochs=3)], done=6) == 5 + 2 * 11
    assert math.isnan(Pace("cpu").seconds([run()])), "nothing is known yet"
    assert Pace("a GPU").start([run()]) > Pace("cpu").start([run()])


def test_between_goes_on_outside():
    assert pace.between({1: 2.0, 3: 4.0}, 5) == 6
    assert pace.between({2: 3.0}, 4) == 6
    assert pace.between({1: 1.0, 2: 3.0, 4: 4.0}, 3) == 3.5
    assert pace.between({1: 1.0, 2: 3.0, 4: 4.0}, 2) == 3


def test_what_epochs_took_here_is_remembered(tmp_path):
    seen = Allowance(math.inf, 2.0)
    seen.seen, seen.started = {1: [1.0, 3.0], 2: [4.0]}, 12.0
    for device in ("cpu", "another"):
        pace.note(tmp_path, device, ("digits", "resnet8"), seen, tests=1.0)
    known = Pace("cpu").learn(tmp_path)
    assert known.epochs == {("digits", "resnet8"): {1: 2.0, 2: 4.0}}
    assert known.starts == {("digits", "resnet8"): 10.0}
    assert len(pace.records(tmp_path)) == 4


@pytest.mark.parametrize("content", ["", "{", "null", "[1]", "[{}]", '[{"device": "cpu", "runs": "x"}]'])
def test_damaged_times_are_no_times(tmp_path, content):
    (tmp_path / pace.RECORD).write_text(content)
    assert Pace("cpu").learn(tmp_path).epochs == {}
    seen = Allowance(math.inf, 2.0)
    seen.seen = {1: [1.0]}
    pace.note(tmp_path, "cpu", ("digits", "resnet8"), seen)
    assert len(json.loads((tmp_path / pace.RECORD).read_text())) == 1


def test_what_was_not_seen_here_is_tried_once():
    asked = []

    def trial(spec):
        asked.append(spec.model)
        if spec.model == "resnet14":
            raise UserError("its data are not here")
        return 2.0

    known = Pace("cpu", trial, epochs={})
    for _ in range(2):
        known.try_out([run(), run(seed=1), run(model="resnet14")], planning=True)
    with pytest.raises(UserError, match="its data are not here"):
        Pace("cpu", trial).try_out([run(model="resnet14")])
    assert asked == ["resnet8", "resnet14", "resnet14"]
    assert known.seconds([run(), run(seed=1)]) == pytest.approx(2 + 4 * 2 * 2.0 * pace.TESTING)
    assert math.isnan(known.seconds([run(model="resnet14")])), "data that are not here cost nobody the plan"
