"""The paper's evaluation as data: its cells, their order, and the numbers that the paper prints."""

from __future__ import annotations

import itertools

import pytest

from gibbsprune.models import build
from gibbsprune.models.describe import describe
from gibbsprune.sweeps import declare
from gibbsprune.training.recipes import RECIPES
from paper import cells, published

CELLS = cells.cells()
NAMES = [cell.name for cell in CELLS]


def names(specs):
    return {spec.name() for spec in specs}


def test_a_run_is_of_the_papers_recipe():
    for structure, sparsity in (("weight", 0.9), ("kernel", 0.9), ("filter", 0.75)):
        spec = cells.run("resnet20", structure=structure, seed=3)
        assert (spec.data, spec.model, spec.method, spec.seed) == ("cifar10", "resnet20", "gibbs", 3)
        assert (spec.structure, spec.sparsity, spec.recipe) == (structure, sparsity, RECIPES["paper"])
    assert cells.run("resnet20", structure="filter", sparsity=0.5).sparsity == 0.5


def test_names_of_stored_results_stay_valid():
    assert cells.run("resnet20", hamiltonian="abs").name() == "cifar10-resnet20-gibbs-weight-abs-0.9-s0"
    assert cells.run("resnet20", structure="filter", seed=2).name() == "cifar10-resnet20-gibbs-filter-quadratic-0.75-s2"
    assert cells.dense("resnet56", 1).name() == "cifar10-resnet56-dense-s1"


def test_the_file_is_a_sweep():
    """Also when it is read by itself; what did not converge is run again."""
    sweep = declare.read(cells.__file__)
    assert [spec.name() for spec in sweep.everything({})] == NAMES
    spec = cells.run("resnet20", stretch=2)
    loose, tight = ({spec.name(): {"agreement": value}} for value in (0.9, 0.9999))
    more = [name for name in (one.name() for one in sweep.everything(loose)) if name not in NAMES]
    assert more == [cells.hotter(spec).name()]
    assert len(sweep.everything(tight)) == len(NAMES)


def test_every_cell_is_there_once():
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("model", cells.MODELS)
def test_tables_hold_what_the_paper_prints(model):
    """Each printed number has its cell; filters once more with the Markov chain."""
    gibbs = [spec for spec in cells.table2(model, [0]) + cells.table4(model, [0]) if spec.method == "gibbs"]
    ours = [(spec.structure, spec.hamiltonian) for spec in gibbs if spec.sampler == "auto"]
    printed = [(kind, name) for kind, table in published.HAMILTONIANS.items() for name in table[model]]
    assert sorted(ours) == sorted(printed)
    assert [spec.structure for spec in gibbs if spec.sampler == "chromatic"] == ["filter"]
    third = {(spec.method, spec.sparsity) for spec in cells.table3(model)}
    assert third == {(method, p) for method, row in published.RANDOM[model].items() for p in row}


@pytest.mark.parametrize("model", cells.MODELS)
def test_the_tables_parameters_are_exact(model):
    """Table I: the shares of the four kinds of parameters, to the two digits printed."""
    shares = {row.name: round(row.percent, 2) for row in describe(build(model, 10, 3))}
    assert {name: shares[name] for name in published.PARAMETERS[model]} == published.PARAMETERS[model]


def test_sources_are_cells_with_the_same_seed_and_network():
    by_name = {cell.name: cell.spec for cell in CELLS}
    for cell in CELLS:
        source = cell.spec.setting("from")
        if source is not None:
            assert by_name[source].seed == cell.spec.seed
            assert by_name[source].model == cell.spec.model
            kind = {"reinit": "gibbs", "lottery": "lottery"}.get(cell.spec.method, "dense")
            assert by_name[source].method == kind
            assert by_name[source].recipe == cell.spec.recipe
    kinds = {cell.spec.method for cell in CELLS if cell.spec.setting("from")}
    assert kinds == {"reinit", "magnitude", "filter-l1", "thinet", "lottery"}


def test_the_steps_are_those_of_the_plan():
    steps = [cell.step for cell in CELLS]
    assert steps == sorted(steps)
    by_step = {k: [cell.spec for cell in CELLS if cell.step == k] for k in set(steps)}
    assert set(by_step) == {1, 2, 3, 4, 5, 6}
    assert {spec.model for spec in by_step[1]} == {"resnet20"}
    assert names(spec for spec in by_step[3] if spec.model == "resnet56") == names(cells.settled("resnet56"))
    assert {spec.model for k in (2, 5, 6) for spec in by_step[k]} == {"resnet56"}
    assert {spec.stretch for k in (1, 2, 5) for spec in by_step[k]} == {1}
    assert {spec.seed for spec in by_step[2]} == {0}
    assert {spec.seed for spec in by_step[5]} == {1, 2}
    assert names(cells.table2("resnet20")) | names(cells.table4("resnet20")) <= names(by_step[1])
    assert {spec.setting("rounds") for spec in by_step[3] if spec.method == "lottery"} == {5}
    tuned = [spec for spec in by_step[3] if spec.method in ("magnitude", "filter-l1")]
    assert {spec.setting("tune_epochs") for spec in tuned if spec.setting("tune_rate") == 1e-5} == {40}
    assert {spec.setting("tune_rate") for spec in tuned if spec.setting("tune_epochs") == 10} == {1e-4, 1e-3}
    figure4 = {(s.stretch, s.sparsity) for s in by_step[3] if s.method == "gibbs" and s.structure == "weight"}
    assert figure4 >= set(itertools.product((2, 4), (0.5, 0.75, 0.9, 0.95, 0.98)))
    modern = {(s.model, s.stretch, s.sparsity) for s in by_step[4] if s.recipe.name == "modern" and s.method == "gibbs"}
    assert modern == set(itertools.product(cells.MODELS, (1, 4), (0.9, 0.95, 0.98)))


def test_every_point_of_a_figure_is_a_cell():
    points = [
        s for model in cells.MODELS for figure in cells.FIGURES.values() for line in figure(model) for s in line.specs
    ]
    assert names(points) <= {cell.name for cell in CELLS}


def test_figures_compare_at_one_sparsity_and_count_all_epochs():
    for number, sparsity in (("3", 0.9), ("5", 0.9), ("6", 0.75)):
        every = [spec for series in cells.FIGURES[number]("resnet20") for spec in series.specs]
        assert {spec.sparsity for spec in every} == {sparsity}
    figure6 = {series.label: series for series in cells.figure6("resnet20")}
    li, thinet = ([spec.total_epochs for spec in figure6[label].specs] for label in ("Li et al.", "ThiNet"))
    assert li == thinet == [216, 280, 520]
    figure3 = {series.label: [spec.total_epochs for spec in series.specs] for series in cells.figure3("resnet56")}
    assert figure3["Han et al."] == [200 + 9 * n for n in (2, 10, 40)]
    assert figure3["IMP with rewinding"] == [400, 800, 1200]
    assert figure3["Gibbs"] == [200, 400, 800]


def test_a_hotter_run_is_another_cell():
    spec = cells.run("resnet20", stretch=4)
    hot = cells.hotter(spec)
    assert hot.recipe.beta_end == 1e6
    assert hot.name() != spec.name()
    assert hot.own_epochs == spec.own_epochs


def test_low_rates_are_also_run_up_to_the_final_beta_of_stretched_runs():
    for model in cells.MODELS:
        plain = [cells.run(model, sparsity=rate) for rate in (0.5, 0.75)]
        assert cells.settled(model) == [cells.hotter(spec) for spec in plain]
        assert {cell.places for cell in CELLS if cell.spec in cells.settled(model)} == {("Variations",)}


def test_what_tuning_chose_is_tried_at_full_length():
    specs = {(spec.structure, str(spec.hamiltonian)): spec for spec in cells.tuned("resnet20")}
    assert specs["kernel", "quadratic"].coupling == 0.1
    assert specs["weight", "binary"].recipe == RECIPES["paper"].replace(beta_end=40.0)
    assert specs.keys() == cells.CHOSEN.keys()
    by_name = {cell.name: cell for cell in CELLS}
    for spec in specs.values():
        assert (by_name[spec.name()].step, by_name[spec.name()].places) == (3, ("Variations",))
        assert spec.own_epochs == 200


def test_the_rounds_of_a_lottery_are_cells_one_after_the_other():
    last = cells.lottery("resnet20", 3, seed=1)
    rounds = cells.chain(last)
    assert [spec.setting("round") for spec in rounds] == [0, 1, 2, 3]
    assert [spec.total_epochs for spec in rounds] == [200, 400, 600, 800]
    assert {spec.own_epochs for spec in rounds} == {200}
    assert [spec.setting("from") for spec in rounds] == [None, *(spec.name() for spec in rounds[:-1])]
    assert rounds[0] == cells.chain(cells.lottery("resnet20", 5, seed=1))[0]
    assert cells.chain(cells.run("resnet20")) == [cells.run("resnet20")]
