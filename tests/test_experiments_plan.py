"""What to run next, how long it takes, and a suite's state in files small enough to carry."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_results import plain_result
from gibbsprune.errors import UserError
from gibbsprune.experiments import carry, pace, paper, planner, store, suite
from gibbsprune.experiments.pace import Pace
from gibbsprune.experiments.paper import Cell
from gibbsprune.experiments.suite import Choice
from gibbsprune.training import checkpoint
from gibbsprune.training.places import place

CELLS = paper.cells()
H200 = Pace("NVIDIA H200")


@pytest.fixture
def places(tmp_path):
    return tmp_path / "results", tmp_path / "work"


def look(places, **choice) -> planner.Survey:
    return planner.survey(Choice(**choice).of(CELLS), CELLS, *places)


def finish(places, *specs, weights=True):
    results, work = places
    for spec in specs:
        store.write(results, spec, plain_result())
        if weights:
            (work / "finished").mkdir(parents=True, exist_ok=True)
            (work / "finished" / f"{spec.name()}.safetensors").write_bytes(b"weights")


# -- choosing ----------------------------------------------------------------------------------------------------------


def test_cells_are_chosen_by_what_they_are():
    both = Choice(table="III", arch="resnet20", method=["random-mask"]).of(CELLS)
    assert [cell.spec.sparsity for cell in both] == [0.5, 0.75, 0.9, 0.95]
    assert {cell.spec.method for cell in Choice(method=["l1", "thinet"]).of(CELLS)} == {"l1", "thinet"}
    assert {cell.spec.seed for cell in Choice(seed=[1, 2]).of(CELLS)} == {1, 2}
    assert max(cell.spec.stretch for cell in Choice(max_stretch=2).of(CELLS)) == 2
    assert {cell.step for cell in Choice(step=[1, 3]).of(CELLS)} == {1, 3}
    assert {cell.spec.recipe.name for cell in Choice(recipe="modern").of(CELLS)} == {"modern"}
    assert all("Figure 6" in cell.places for cell in Choice(figure="6").of(CELLS))


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ({"table": "V"}, "unknown table 'V'; it must be one of II, III, IV"),
        ({"figure": "2"}, "unknown figure '2'; it must be one of 3, 4, 5, 6"),
        ({"method": ["dense", "magic"]}, "unknown method 'magic'; it must be one of gibbs, "),
        ({"recipe": "x"}, "unknown recipe 'x'; it must be one of paper, modern, digits"),
        ({"max_stretch": 0}, "max-stretch is 0; it must be a whole number from 1"),
        ({"arch": "vgg"}, "unknown arch 'vgg'; it must be one of resnet20, resnet56"),
        ({"seed": [77], "step": [1, 2]}, "no cell of the suite has --seed 77, --step 1,2; gibbsprune suite list"),
    ],
)
def test_choices_that_do_not_exist_are_refused(choice, sentence):
    with pytest.raises(UserError) as caught:
        Choice(**choice).of(CELLS)
    assert str(caught.value).startswith(sentence)


def test_unknown_suites_are_refused():
    with pytest.raises(UserError, match=r"unknown suite 'x'; suites are paper, rehearsal"):
        suite.suite("x")


def test_stretched_runs_that_did_not_converge_are_run_hotter(places):
    cells = Choice(figure="4", arch="resnet20").of(CELLS)
    loose, tight, plain = (paper.run("resnet20", stretch=s, sparsity=p) for s, p in ((4, 0.9), (4, 0.95), (1, 0.9)))
    store.write(places[0], loose, plain_result(agreement=0.9))
    store.write(places[0], tight, plain_result(agreement=0.9999))
    store.write(places[0], plain, plain_result(agreement=0.9))
    more = suite.with_follow_ups(cells, places[0])
    assert [cell.spec for cell in more if cell not in cells] == [paper.hotter(loose)]


def test_a_half_done_fleet_whose_source_is_gone_waits_for_it(places):
    """It was begun when its source was at hand; without the weights it cannot be continued."""
    tuned = paper.after_dense("resnet20", "magnitude", "weight", tune_epochs=10)
    finish(places, paper.dense("resnet20"))
    folder = places[1] / planner.fleet_key([tuned])
    planner.begin(folder, [tuned])
    state = look(places, method=["magnitude"], arch="resnet20", step=[1])
    assert (state.blocked, [cell.name for cell in state.again]) == ({}, [])
    (places[1] / planner.FINISHED / f"{paper.dense('resnet20').name()}.safetensors").unlink()
    state = look(places, method=["magnitude"], arch="resnet20", step=[1])
    assert list(state.blocked) == [folder]
    assert [cell.spec for cell in state.again] == [paper.dense("resnet20")]
    order = [spec for fleet in planner.plan(state, places[1], H200) for spec in fleet.specs]
    assert order.index(paper.dense("resnet20")) < order.index(tuned)


# -- states ------------------------------------------------------------------------------------------------------------


def test_nothing_is_done_at_first(places):
    state = look(places, step=[1])
    assert (state.done, state.begun, state.again) == ([], {}, [])
    assert [cell for cell in state.queue if cell in state.waiting] == state.waiting
    assert {cell.spec.method for cell in state.waiting} == {"reinit", "magnitude", "filter-l1", "thinet", "lottery"}
    assert state.queue[0].spec == paper.dense("resnet20")


def test_a_cell_waits_for_its_source_which_comes_along(places):
    state = look(places, table="III", method=["reinit"], arch="resnet20")
    assert [cell.spec.method for cell in state.queue] == ["gibbs", "reinit"] * 4
    finish(places, paper.run("resnet20", sparsity=0.5))
    state = look(places, table="III", method=["reinit"], arch="resnet20")
    assert [cell.spec.sparsity for cell in state.ready] == [0.5, 0.75, 0.9, 0.95]
    assert [cell.spec.method for cell in state.ready] == ["reinit", "gibbs", "gibbs", "gibbs"]


def test_a_source_without_its_weights_is_run_again_only_if_needed(places):
    dense = paper.dense("resnet20")
    finish(places, dense, weights=False)
    state = look(places, table="II", arch="resnet20")
    assert [cell.spec for cell in state.done] == [dense]
    state = look(places, figure="3", arch="resnet20")
    assert [cell.spec for cell in state.again] == [dense]
    assert state.state(Cell(dense, 1, state.again[0].places)) == "again"
    assert dense not in [cell.spec for cell in state.done]
    first = paper.lottery("resnet20", 3, number=1)
    finish(places, first, weights=False)
    state = look(places, figure="3", arch="resnet20")
    assert {"lottery", "dense"} == {cell.spec.method for cell in state.again}
    assert next(state.state(cell) for cell in state.again if cell.spec == first) == "again", "also while it waits"
    finish(places, *(cell.spec for cell in Choice(figure="3", arch="resnet20").of(CELLS)), weights=False)
    assert look(places, figure="3", arch="resnet20").queue == []


def test_half_done_fleets_are_continued_first_and_as_they_were(places):
    work = places[1]
    pair = [paper.run("resnet20", seed=2), paper.run("resnet20", structure="kernel", seed=2)]
    folder = work / planner.fleet_key(pair)
    planner.begin(folder, pair)
    checkpoint.save(folder, 150, {"x": torch.zeros(1)})
    state = look(places, arch="resnet20", step=[1])
    assert not {spec.name() for spec in pair} & {cell.name for cell in state.queue}
    fleets = planner.plan(state, work, H200, budget=100.0)
    assert [(fleet.specs, fleet.folder, fleet.done) for fleet in fleets] == [(tuple(pair), folder, 150)]
    assert fleets[0].seconds < H200.seconds(pair)
    assert planner.plan(state, work, H200, budget=100.0, busy=[folder]) == []
    assert planner.plan(state, work, H200, budget=60.0) == [], "no time for more than a start"
    assert look(places, arch="resnet56", step=[2]).begun == {}
    (folder / "cells.json").write_text("{")
    with pytest.raises(UserError, match=r"cells\.json cannot be read"):
        planner.begun(work)


def test_a_folder_that_outlived_its_fleet_is_not_trained_again(places):
    """Its results are there, its checkpoints are not: it was killed while it cleaned up."""
    pair = [paper.run("resnet20", seed=2), paper.run("resnet20", structure="kernel", seed=2)]
    planner.begin(places[1] / planner.fleet_key(pair), pair)
    finish(places, pair[0])
    assert look(places, arch="resnet20", step=[1]).begun
    finish(places, pair[1])
    state = look(places, arch="resnet20", step=[1])
    assert state.begun == {}
    assert set(pair) <= {cell.spec for cell in state.done}


def test_a_fleet_that_ends_while_one_looks_is_over(places, monkeypatch):
    gone = places[1] / "fleet-123" / planner.CELLS
    monkeypatch.setattr(planner, "files", lambda work, pattern: [gone])
    assert planner.begun(places[1]) == {}


# -- planning ----------------------------------------------------------------------------------------------------------


def test_fleets_share_what_they_must(places):
    fleets = planner.plan(look(places), places[1], H200)
    for fleet in fleets:
        assert 1 <= len(fleet.specs) <= 16
        assert len({planner.kind(spec) for spec in fleet.specs}) == 1
        lengths = [spec.own_epochs for spec in fleet.specs]
        assert lengths == sorted(lengths, reverse=True)
    assert any(len({spec.own_epochs for spec in fleet.specs}) > 1 for fleet in fleets), "short runs come along"
    names = [spec.name() for fleet in fleets for spec in fleet.specs]
    assert sorted(names) == sorted(cell.name for cell in CELLS)


def test_dependents_come_after_their_source(places):
    fleets = planner.plan(look(places), places[1], H200)
    at = {spec.name(): i for i, fleet in enumerate(fleets) for spec in fleet.specs}
    for cell in CELLS:
        if (source := suite.source(cell.spec)) is not None:
            assert at[source] < at[cell.name]


def followers(name: str) -> int:
    """Of step 1, how many cells wait one after another for the end of this one."""
    waiting = [cell.name for cell in CELLS if cell.step == 1 and suite.source(cell.spec) == name]
    return max((1 + followers(other) for other in waiting), default=0)


def test_long_chains_begin_first(places):
    state = look(places, step=[2])
    lottery = [cell.name for cell in CELLS if cell.step == 2 and cell.spec.method == "lottery"]
    fleets = planner.plan(state, places[1], H200, at_most=15)
    at = {spec.name(): i for i, fleet in enumerate(fleets) for spec in fleet.specs}
    assert [at[name] for name in lottery if "-round0-" in name] == [0]
    assert {at[name] for name in lottery if "-round1-" in name} == {1}


def test_a_long_chain_of_a_later_step_does_not_come_before_an_earlier_step():
    first, soon, *chain = [paper.run("resnet20", seed=seed) for seed in range(3)]
    last = paper.run("resnet20", "reinit", settings={"from": chain[0].name()})
    ready = [Cell(first, 1), Cell(chain[0], 2), Cell(soon, 1)]
    state = planner.Survey(ready=ready, waiting=[Cell(last, 2)], queue=[*ready, Cell(last, 2)])
    fleets = planner.plan(state, place("w"), H200, at_most=2)
    assert [list(fleet.specs) for fleet in fleets] == [[first, soon], [chain[0]], [last]]


def test_the_most_important_cells_that_fit_are_taken(places):
    state = look(places, step=[1])
    fleets = planner.plan(state, places[1], H200, budget=600.0)
    assert sum(fleet.seconds for fleet in fleets) <= 600
    taken = list(fleets[0].specs)
    first, *others = [cell.spec for cell in state.ready if cell.spec.own_epochs == 200]
    same = [first, *sorted(others, key=lambda spec: -followers(spec.name()))]
    assert taken == same[: len(taken)]
    assert len(taken) == 16 or H200.seconds(same[: len(taken) + 1]) > 600
    assert planner.plan(state, places[1], H200, budget=60.0) == []
    assert planner.plan(state, places[1], H200, budget=60.0, leave_unfinished=True) == []
    cut = planner.plan(state, places[1], H200, budget=100.0, leave_unfinished=True)
    assert [len(fleet.specs) for fleet in cut] == [16]
    few = [len(fleet.specs) for fleet in planner.plan(state, places[1], H200, 600.0, at_most=3)]
    assert few[:2] == [3, 3]
    assert max(few) == 3


def test_a_run_without_company_works_beside_longer_ones():
    short = [paper.run("resnet20", seed=seed) for seed in (0, 1)]
    alone, longer = paper.run("resnet20", stretch=2), [paper.run("resnet20", stretch=4, seed=seed) for seed in range(3)]
    cells = [paper.Cell(spec, 1) for spec in (alone, *longer, *short)]
    state = planner.Survey(ready=cells, queue=cells)
    work = place("w")
    (fleet,) = planner.plan(state, work, H200)
    assert list(fleet.specs) == [*longer, alone, *short]
    enough = H200.seconds([alone])
    fleets = planner.plan(state, work, H200, budget=enough)
    assert [list(fleet.specs) for fleet in fleets] == [[alone]], "the first comes first where not all fit"
    assert list(planner.plan(state, work, H200, at_most=2)[0].specs) == [longer[0], alone]
    later = [Cell(spec, 2) for spec in (alone, *longer)]
    state = planner.Survey(ready=[*cells[4:], *later], queue=[*cells[4:], *later])
    assert set(planner.plan(state, work, H200)[0].specs) == set(short), "an earlier step does not wait for a later one"
    many = [Cell(paper.run("resnet20", seed=seed), 1) for seed in range(planner.FULL)]
    state = planner.Survey(ready=[*many, *cells[:4]], queue=[*many, *cells[:4]])
    assert set(planner.plan(state, work, H200)[0].specs) == {cell.spec for cell in many}, "those who fill a GPU, too"


def test_short_runs_work_beside_those_that_would_be_alone():
    """A chain's last run is alone: what has time is left for it, instead of filling the fleet before."""
    begin, other, short = (paper.run("resnet20", stretch=s, seed=1) for s in (2, 2, 1))
    other = other.replace(seed=2)
    end = paper.run("resnet20", "reinit", stretch=2, settings={"from": begin.name()})
    ready = [Cell(short, 1), Cell(other, 1), Cell(begin, 1)]
    state = planner.Survey(ready=ready, waiting=[Cell(end, 1)], queue=[*ready, Cell(end, 1)])
    fleets = planner.plan(state, place("w"), H200)
    assert [list(fleet.specs) for fleet in fleets] == [[begin, other], [end, short]]
    (fleet,) = planner.plan(state, place("w"), H200, budget=H200.seconds([short]))
    assert list(fleet.specs) == [short], "unless there is no time for longer ones"
    pair = H200.seconds([begin, other])
    for budget, options in ((pair + 5, {}), (H200.seconds([short]) + 1, {"leave_unfinished": True})):
        first, *_ = planner.plan(state, place("w"), H200, budget, **options)
        assert short in first.specs, "or none for it after them: it is the most important"
    both = planner.plan(state, place("w"), H200, at_most=2)
    assert [list(fleet.specs) for fleet in both] == [[begin, other], [end, short]], "it takes nobody's place"


def test_a_cell_that_does_not_fit_leaves_room_for_cheaper_ones():
    chain = paper.run("resnet20", structure="filter", sampler="chromatic")
    cells = [Cell(chain, 1), Cell(paper.dense("resnet20"), 1)]
    state = planner.Survey(ready=cells, queue=cells)
    enough = H200.seconds([cells[1].spec])
    assert enough < H200.seconds([chain])
    (fleet,) = planner.plan(state, place("w"), H200, budget=enough)
    assert list(fleet.specs) == [cells[1].spec]


@st.composite
def surveys(draw) -> planner.Survey:
    """Cells of several lengths and steps, some of which start from others; the most important first."""
    ready, waiting, queue = [], [], []
    for seed in range(draw(st.integers(1, 12))):
        step = draw(st.integers(1, 2))
        stretch, hot = draw(st.sampled_from([1, 1, 2, 4])), draw(st.booleans())
        before = draw(st.sampled_from([None, None, *(cell for cell in queue if cell.step <= step)]))
        spec = paper.run("resnet56" if hot else "resnet20", seed=seed, stretch=stretch)
        if before is not None:
            spec = paper.run("resnet20", "reinit", seed=seed, stretch=stretch, settings={"from": before.name})
        queue.append(Cell(spec, step))
        (ready if before is None else waiting).append(queue[-1])
    return planner.Survey(ready=ready, waiting=waiting, queue=queue)


@settings(deadline=None, max_examples=150)
@given(
    state=surveys(), at_most=st.integers(1, 5), leave=st.booleans(),
    budget=st.one_of(st.just(float("inf")), st.floats(0, 4000)),
)  # fmt: skip
def test_plans_keep_their_promises(state, at_most, leave, budget):
    fleets = planner.plan(state, place("w"), H200, budget, at_most, leave)
    order = [spec.name() for fleet in fleets for spec in fleet.specs]
    at = {spec.name(): i for i, fleet in enumerate(fleets) for spec in fleet.specs}
    assert len(order) == len(at), "a cell is trained once"
    for fleet in fleets:
        assert 1 <= len(fleet.specs) <= at_most
        assert len({planner.kind(spec) for spec in fleet.specs}) == 1
        assert all(at[source] < at[spec.name()] for spec in fleet.specs if (source := suite.source(spec)))
    left = budget - sum(fleet.seconds for fleet in fleets)
    rest = [cell.spec for cell in state.queue if cell.name not in at]
    rest = [spec for spec in rest if suite.source(spec) is None or suite.source(spec) in at]
    if leave:
        assert budget - sum(fleet.seconds for fleet in fleets[:-1]) > 0 or not fleets
        assert all(left <= planner.USEFUL * H200.start([spec]) for spec in rest)
    else:
        assert left >= 0
        assert all(left < H200.seconds([spec]) for spec in rest), "what fits is planned"
    if state.ready and H200.seconds([state.ready[0].spec]) <= budget and state.queue[0] is state.ready[0]:
        assert state.ready[0].name in at, "the most important cell is not left out"


# -- pace --------------------------------------------------------------------------------------------------------------


def test_estimates_follow_the_measurements():
    runs = [paper.run("resnet20", seed=seed) for seed in range(32)]
    for count, ms in pace.MEASURED["NVIDIA H200"]["resnet20"].items():
        assert H200.step_seconds(runs[:count]) == pytest.approx(count * ms / 1000)
    steps = [H200.step_seconds(runs[:k]) for k in range(1, 33)]
    assert steps == sorted(steps)
    assert H200.seconds(runs[:16]) == pytest.approx(40 + 1.05 * 16 * 0.447e-3 * 390 * 200)
    assert H200.seconds(runs[:16], done=200) == 40
    assert H200.start([paper.run("resnet56")]) == 98
    assert Pace("another GPU").start(runs) == 60
    chain = paper.run("resnet20", structure="filter", sampler="chromatic")
    assert H200.step_seconds([chain]) == pytest.approx(1.3 * H200.step_seconds(runs[:1]))


def test_engines_side_by_side_are_estimated_as_measured():
    """Three engines of 3, 4 and 4 runs took 332 s on an H200, one after another they would have taken 381."""
    rounds = [paper.lottery("resnet20", r, number=1) for r in paper.ROUNDS]
    tuned = [spec for series in paper.variations("resnet20") for spec in series.specs]
    assert [spec.own_epochs for spec in rounds + tuned].count(200) == 3
    assert len(tuned) == 8
    assert H200.training(rounds + tuned, done=1) == pytest.approx(332, rel=0.04)
    apart = H200.training(rounds, done=1) + sum(
        H200.training([spec for spec in tuned if spec.own_epochs == length]) for length in (80, 90)
    )
    assert apart == pytest.approx(381, rel=0.01)
    assert H200.seconds(rounds + tuned) - H200.training(rounds + tuned) == 80, "two sizes of engines, two starts"
    assert H200.training(rounds + tuned, done=150) == pytest.approx(50 / 80 * H200.training(rounds + tuned, done=120))


def test_between_goes_on_outside():
    assert pace.between({1: 2.0, 3: 4.0}, 5) == 6
    assert pace.between({2: 3.0}, 4) == 6
    assert pace.between({1: 1.0, 2: 3.0, 4: 4.0}, 3) == 3.5
    assert pace.between({1: 1.0, 2: 3.0, 4: 4.0}, 2) == 3


def test_what_fleets_took_corrects_the_estimate(tmp_path):
    runs = [paper.run("resnet20", seed=seed) for seed in range(4)]
    for seconds in (20.0, 15.0, 90.0):
        pace.record(tmp_path, "NVIDIA H200", runs, 10, seconds, 10.0)
    pace.record(tmp_path, "another", runs, 10, 1e6, 10.0)
    known = Pace("NVIDIA H200")
    known.learn(tmp_path)
    assert known.correction == {"resnet20": 2.0}
    assert known.step_seconds(runs) == pytest.approx(2 * H200.step_seconds(runs))
    (tmp_path / "pace.json").write_text("{")
    with pytest.raises(UserError, match=r"pace\.json cannot be read"):
        known.learn(tmp_path)


def test_elsewhere_steps_are_tried():
    asked = []
    known = Pace("cpu", 10, lambda spec: asked.append(spec.model) or 0.5)
    spec = paper.run("resnet20")
    assert known.seconds([spec] * 3) == pytest.approx(2 + 1.05 * 3 * 0.5 * 10 * 200)
    assert known.seconds([spec]) > 0
    assert asked == ["resnet20"]
    with pytest.raises(UserError, match="the pace of resnet20 on cpu is not known"):
        Pace("cpu").seconds([spec])


# -- carrying ----------------------------------------------------------------------------------------------------------


def test_a_state_is_carried_in_parts(places, tmp_path):
    results, work = places
    finish(places, paper.dense("resnet20"), paper.run("resnet20", sparsity=0.5), paper.run("resnet20", seed=1))
    pair = [paper.run("resnet20", seed=2), paper.run("resnet20", structure="kernel", seed=2)]
    folder = work / planner.fleet_key(pair)
    planner.begin(folder, pair)
    noise = torch.frombuffer(bytearray(os.urandom(300_000)), dtype=torch.uint8)
    for epoch in (4, 9):
        checkpoint.save(folder, epoch, {"noise": noise})
    pace.record(work, "cpu", pair, 1, 1.0, 1.0)
    files = carry.pack(CELLS, results, work, tmp_path / "out", part=100_000)
    assert len(files) >= 5
    assert all(file.stat().st_size <= 100_000 for file in files)
    there = tmp_path / "there"
    written = carry.unpack(CELLS, tmp_path / "out", there / "results", there / "work")
    assert "work/pace.json" in written
    assert [name for name in written if "finished" in name] == [
        f"work/finished/{spec.name()}.safetensors"
        for spec in (paper.run("resnet20", sparsity=0.5), paper.dense("resnet20"))
    ], "only what others still start from"
    assert planner.begun(there / "work") == {there / "work" / folder.name: pair}
    epoch, state = checkpoint.load_latest(there / "work" / folder.name)
    assert epoch == 9
    assert torch.equal(state["noise"], noise)
    assert sorted(f.name for f in (there / "results").iterdir()) == sorted(f.name for f in results.iterdir())


def test_damaged_results_are_not_carried_and_good_ones_not_replaced(places, tmp_path):
    out, dense = tmp_path / "out", paper.dense("resnet20")
    finish(places, dense)
    carry.pack(CELLS, *places, out)
    file = store.write(tmp_path / "there", dense, plain_result(accuracy=0.5))
    assert not any(name.startswith("results/") for name in carry.unpack(CELLS, out, tmp_path / "there", tmp_path / "w"))
    assert store.read(file)["accuracy"] == 0.5, "written once"
    (places[0] / "notes.json").write_text("of the user's own")
    carry.pack(CELLS, *places, out)
    carry.unpack(CELLS, out, tmp_path / "there", tmp_path / "w")
    assert (tmp_path / "there" / "notes.json").read_text() == "of the user's own", "carried as it is"
    store.path(places[0], dense).write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        carry.pack(CELLS, *places, tmp_path / "other")
    hot = paper.hotter(paper.run("resnet20", stretch=2))
    store.path(places[0], dense).unlink()
    store.path(places[0], hot).write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        suite.check_results(CELLS, places[0])


@pytest.mark.parametrize("parts", [[], [b"no archive"]])
def test_what_is_no_archive_is_refused(places, tmp_path, parts):
    listed = []
    for i, part in enumerate(parts):
        (tmp_path / f"suite-state.x.{i:03d}").write_bytes(part)
        listed.append({"name": f"suite-state.x.{i:03d}", "sha256": hashlib.sha256(part).hexdigest()})
    (tmp_path / carry.LIST).write_text(json.dumps({"suite": "paper", "parts": listed}))
    with pytest.raises(UserError, match="holds no whole state of a suite"):
        carry.unpack(CELLS, tmp_path, *places, of="paper")


def test_an_export_that_is_cut_leaves_the_one_before(places, tmp_path, monkeypatch):
    out = tmp_path / "out"
    finish(places, paper.dense("resnet20"))
    before = carry.pack(CELLS, *places, out)
    finish(places, paper.run("resnet20"))
    with monkeypatch.context() as patch:
        patch.setattr(carry, "write_atomic", lambda *arguments: (_ for _ in ()).throw(OSError("the disk is full")))
        with pytest.raises(OSError, match="full"):
            carry.pack(CELLS, *places, out)
    there = carry.unpack(CELLS, out, tmp_path / "there", tmp_path / "work there")
    assert len([name for name in there if name.startswith("results/")]) == 1
    after = carry.pack(CELLS, *places, out)
    assert sorted(after) == sorted(out.iterdir())
    assert set(before) & set(after) == {out / "suite-state.json"}
    assert carry.pack(CELLS, *places, out) == after, "the same state is packed into the same files"


def test_a_fleet_trained_again_for_its_weights_is_carried_and_not_forgotten(places, tmp_path):
    dense = paper.dense("resnet20")
    finish(places, dense, weights=False)
    planner.begin(folder := places[1] / planner.fleet_key([dense]), [dense])
    checkpoint.save(folder, 150, {"x": torch.zeros(1)})
    carry.pack(CELLS, *places, tmp_path / "out")
    there = tmp_path / "there" / "results", tmp_path / "there" / "work"
    carry.unpack(CELLS, tmp_path / "out", *there)
    assert planner.begun(there[1]) == {there[1] / folder.name: [dense]}
    assert look(there, figure="3", arch="resnet20").begun
    finish(there, *(cell.spec for cell in CELLS if suite.source(cell.spec) == dense.name()), weights=False)
    assert look(there, figure="3", arch="resnet20").begun == {}, "nobody needs its weights any more"
    carry.unpack(CELLS, tmp_path / "out", *there)
    assert planner.begun(there[1]) == {}


def test_what_a_missing_source_starts_from_is_carried(places, tmp_path):
    """Of a lottery's third round the weights are lost; those of the second are here."""
    first, second, third = (paper.lottery("resnet20", 5, number=number) for number in (1, 2, 3))
    finish(places, first, second)
    finish(places, third, weights=False)
    carry.pack(CELLS, *places, tmp_path / "out")
    written = carry.unpack(CELLS, tmp_path / "out", tmp_path / "r", tmp_path / "w")
    assert [name for name in written if "finished" in name] == [f"work/finished/{second.name()}.safetensors"]


def test_what_is_too_large_to_carry_is_named(places, tmp_path):
    results, work = places
    pair = [paper.run("resnet20", seed=2)]
    planner.begin(folder := work / planner.fleet_key(pair), pair)
    checkpoint.save(folder, 4, {"x": torch.zeros(100_000)})
    finish(places, paper.dense("resnet20"))
    said = []
    carry.pack(CELLS, results, work, tmp_path / "out", total=50_000, say=said.append)
    assert said == [f"left out of the state, which would be too large: work/{folder.name}/cells.json (0.4 MiB)"]
    assert carry.unpack(CELLS, tmp_path / "out", tmp_path / "r", tmp_path / "w")[0].startswith("results/")


def test_a_fleet_that_is_done_elsewhere_is_forgotten(places, tmp_path):
    pair = [paper.run("resnet20", seed=2)]
    planner.begin(folder := places[1] / planner.fleet_key(pair), pair)
    finish((tmp_path / "r", tmp_path / "w"), *pair)
    carry.pack(CELLS, tmp_path / "r", tmp_path / "w", tmp_path / "out")
    carry.unpack(CELLS, tmp_path / "out", *places)
    assert not folder.exists()


def test_damaged_and_foreign_states_are_refused(places, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(UserError, match="holds no whole state of a suite"):
        carry.unpack(CELLS, out, *places)
    finish(places, paper.dense("resnet20"))
    carry.pack(CELLS, *places, out)
    (part,) = out.glob("suite-state.*.000")
    part.write_bytes(b"x")
    with pytest.raises(UserError, match=rf"{part.name} is damaged"):
        carry.unpack(CELLS, out, *places)
    for name in ("results/../../evil.json", "elsewhere/x", "results"):
        with tarfile.open(out / "suite-state.000", "w:gz") as archive:
            archive.addfile(tarfile.TarInfo(name))
        content = (out / "suite-state.000").read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        (out / "suite-state.json").write_text(json.dumps([{"name": "suite-state.000", "sha256": digest}]))
        with pytest.raises(UserError, match="which is not a file of a suite"):
            carry.unpack(CELLS, out, *places)
