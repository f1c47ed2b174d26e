"""What the results say: chance, records, and the sentences that are made of them."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fake_results
from paper import cells, findings, groups, published, sentences
from paper.chance import Chance, Claim, holm, standing_out, upper_limit
from paper.groups import Results

record = fake_results.record


def some(*pairs) -> Results:
    return Results([record(spec, accuracy) for spec, accuracy in pairs])


#: Three seeds each of a structure that nothing below is about, deviating by 0.2 points.
SEEDS = [
    (cells.run("resnet20", structure=kind, hamiltonian="binary", sparsity=0.3 + k / 100, seed=seed), 0.8 + step)
    for kind in cells.SPARSITY
    for k in range(20)
    for seed, step in ((0, -0.002), (1, 0.0), (2, 0.002))
]


def said(results: Results) -> dict[str, str]:
    found = findings.answers(results, findings.FIRST | findings.THEN)
    return {answer.question: "\n".join(sentences.lines(answer)) for answer in found}


# -- chance ------------------------------------------------------------------------------------------------------------


def test_the_upper_limit_covers_the_true_deviation():
    """In 95 % of all samples of three kinds with three seeds each, within five standard errors."""
    samples = np.random.default_rng(0).normal(0, 0.3, (4000, 3, 3))
    limits = [upper_limit([(2, float(kind.var(ddof=1))) for kind in sample]) for sample in samples]
    assert np.mean(np.array(limits) >= 0.3) == pytest.approx(0.95, abs=5 * math.sqrt(0.05 * 0.95 / 4000))
    assert upper_limit([]) == math.inf


def test_the_deviation_is_pooled_by_structure_and_more_seeds_narrow_it():
    chance = Chance(some(*SEEDS))
    assert 0.2 < chance.upper("weight") < 0.26
    few = Chance(some(*SEEDS[:3]))
    assert few.upper("weight") > 2 * chance.upper("weight"), "three seeds say little"
    assert few.upper("filter") == few.upper("weight"), "where a structure has none, that of all"
    assert Chance(some(SEEDS[0])).upper("weight") == math.inf, "one seed says nothing"


def test_a_kind_that_collapses_does_not_hide_the_differences_of_the_others():
    collapsed, ours, rival = (cells.run("resnet20", sparsity=p) for p in (0.97, 0.96, 0.95))
    three = [
        (spec.replace(seed=seed), value)
        for spec, values in ((collapsed, (0.56, 0.55, 0.36)), (ours, (0.9, 0.902, 0.898)), (rival, (0.89,) * 3))
        for seed, value in enumerate(values)
    ]
    results = some(*SEEDS, *three)
    chance = Chance(results)
    assert [group.spec for group in results if chance.stands_out(group)] == [collapsed]
    assert 0.2 < chance.upper("weight") < 0.26
    assert chance.claim(results.of(ours), results.of(rival)).p < 1e-4
    assert chance.claim(results.of(ours), results.of(collapsed)).p > 0.05, "three seeds that differ so much say little"


def test_kinds_of_one_deviation_seldom_stand_out():
    """In at most 5 % of all samples, within five standard errors."""
    samples = np.random.default_rng(1).normal(0, 0.3, (1000, 8, 3))
    found = [standing_out({str(k): (2, float(kind.var(ddof=1))) for k, kind in enumerate(s)}) for s in samples]
    assert 0.01 < np.mean([len(each) > 0 for each in found]) < 0.05 + 5 * math.sqrt(0.05 * 0.95 / 1000)


def test_without_seeds_nothing_is_beyond_chance():
    one, other = cells.run("resnet20"), cells.run("resnet20", "random-mask")
    results = some((one, 0.99), (other, 0.1))
    claim = Chance(results).claim(results.of(one), results.of(other))
    assert (claim.p, claim.seeds) == (1.0, 1)
    assert claim.sign(holm([claim.p])) == 0


def test_a_printed_accuracy_has_the_chance_of_a_single_run():
    dense = cells.dense("resnet20")
    results = some((dense, (published.DENSE["resnet20"] + 1) / 100), *SEEDS)
    chance = Chance(results)
    ours, error = results.of(dense), math.sqrt(2) * chance.upper("weight")
    assert chance.printed(ours, published.DENSE["resnet20"]).p == pytest.approx(math.erfc(1 / error / math.sqrt(2)))


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_is_between_bonferroni_and_no_correction(values):
    cut = holm(values)
    rejected = [p for p in values if p <= cut]
    assert {p for p in values if p <= 0.05 / max(1, len(values))} <= set(rejected)
    assert all(p <= 0.05 for p in rejected)
    if len(rejected) < len(values):
        assert min(p for p in values if p > cut) > 0.05 / (len(values) - len(rejected))


def test_many_comparisons_raise_the_bar():
    claim = Claim(1.0, 0.03, 3)
    assert claim.sign(holm([0.03])) == 1
    assert claim.sign(holm([0.03] * 2)) == 0
    assert Claim(-1.0, 0.03, 3).sign(holm([0.03, 0.0])) == -1


# -- records and sentences ---------------------------------------------------------------------------------------------


def test_every_printed_number_is_compared_once():
    for model in cells.MODELS:
        pairs = [(spec.name(), value) for spec, value in findings.printed(model)]
        assert len({name for name, _ in pairs}) == len(pairs) == 1 + 4 + 3 + 3 + 12 - 1


def test_every_kind_of_finding_has_a_sentence():
    kinds = [kind for kind in vars(findings).values() if isinstance(kind, type) and issubclass(kind, findings.Finding)]
    without = {findings.Finding, findings.Pair, findings.NotRun}
    assert all(kind in sentences.say.registry for kind in set(kinds) - without)
    assert all(dataclasses.is_dataclass(kind) for kind in kinds)


def test_nothing_run_is_said_to_be_so():
    told = said(some((cells.run("resnet20", structure="kernel", hamiltonian="sign"), 0.8)))
    for question, text in told.items():
        assert "ot run" in text, question
    assert told["How close does 95 % come to the dense network?"] == "Not run: ResNet-20; ResNet-56."


def test_statements_follow_the_results():
    names = {"binary": 0.84, "sign": 0.82, "quadratic": 0.86}
    kernels = [(cells.run("resnet20", structure="kernel", hamiltonian=name), v) for name, v in names.items()]
    chain = cells.as_printed("resnet20", "filter", "quadratic")
    told = said(some(
        *SEEDS, *kernels,
        (cells.run("resnet20", structure="filter"), 0.852), (chain, 0.851),
        (cells.dense("resnet20"), 0.912),
        (cells.run("resnet20"), 0.888), (cells.run("resnet20", "random-mask"), 0.843),
        (cells.run("resnet20", stretch=2), 0.90), (cells.run("resnet20", sparsity=0.95, stretch=4), 0.899),
        (cells.run("resnet20", "l1"), 0.86), (cells.run("resnet20", "targeted-dropout", "filter"), 0.87),
    ))  # fmt: skip
    assert (
        "kernel-wise, ResNet-20: quadratic 86.00, binary 84.00, linear sign 82.00; the paper's order; 2 of 2 steps "
        "beyond chance (all on one seed)." in told["Which Hamiltonian is best?"]
    )
    assert (
        "ResNet-20: exact 85.20, chromatic 85.10: no difference beyond chance (one seed)."
        in told["Does the exact sampler differ from the chromatic chain?"]
    )
    masks = told["Does Gibbs pruning beat a random mask and re-initialisation at every rate?"]
    assert "ResNet-20: ahead at every rate that was run (one seed)." in masks
    assert "random mask at 90 %: +4.50;" in masks
    assert "re-initialisation at 50 %: not run" in masks
    assert "88.80 at stretch 1, 90.00 at stretch 2: it helps (one seed)." in told["Does stretching help?"]
    assert (
        "ResNet-20: points lost 1.30 at stretch 4 (paper, stretched: 0.90)."
        in told["How close does 95 % come to the dense network?"]
    )
    others = told["Does it beat the other methods?"]
    assert (
        "weight-wise, ResNet-20: Gibbs pruning in 200 epochs (88.80) is ahead of the best other, l1 in 200 epochs "
        "(86.00) (one seed); stretched to 400 epochs (90.00) ahead of it (one seed);" in others
    )
    assert (
        "filter-wise, ResNet-20: Gibbs pruning (exact sampler) in 200 epochs (85.20) is behind the best other, "
        "targeted dropout in 200 epochs (87.00) (one seed); by the paper's chain (85.10) behind it (one seed);"
        in others
    )
    stand = told["Where do we stand against the paper's tables?"]
    assert "of the 22 accuracies that the paper prints we have 7; 4 of ours are higher beyond chance, 0 lower" in stand


def test_filters_are_ranked_as_the_paper_sampled_them():
    runs = [(cells.as_printed("resnet20", "filter", name), accuracy)
            for name, accuracy in (("binary", 0.86), ("sign", 0.85), ("quadratic", 0.84))]  # fmt: skip
    told = said(some(*runs, (cells.run("resnet20", structure="filter"), 0.9)))
    assert "(quadratic by the paper's chain) binary 86.00, linear sign 85.00, quadratic 84.00;" in told[
        "Which Hamiltonian is best?"
    ]  # fmt: skip


@pytest.mark.parametrize(("seeds", "verdict"), [(1, "one seed cannot tell"), (3, "the exact sampler is better")])
def test_only_seeds_tell_samplers_apart(seeds, verdict):
    pairs = [(cells.run("resnet20", structure="filter", seed=seed), 0.88) for seed in range(seeds)]
    pairs += [(cells.as_printed("resnet20", "filter", "quadratic", seed), 0.85) for seed in range(seeds)]
    told = said(some(*SEEDS, *pairs))["Does the exact sampler differ from the chromatic chain?"]
    assert f"chromatic 85.00{' ± 0.00' if seeds > 1 else ''}: {verdict}." in told


def test_gradual_pruning_is_compared_as_soon_as_there_are_results():
    question = "How does Gibbs pruning as published compare with gradual pruning?"
    assert said(some(*SEEDS))[question] == "Not run: gradual pruning."
    runs = [(cells.run("resnet20", "gradual", seed=seed, recipe="modern"), 0.90) for seed in (0, 1)]
    lonely = said(some(*SEEDS, *runs))[question]
    assert lonely == "Not run: weight-wise, ResNet-20, Gibbs pruning beside " + runs[0][0].name() + "."
    runs += [(cells.run("resnet20", seed=seed, recipe="modern"), 0.89) for seed in (0, 1)]
    assert said(some(*SEEDS, *runs))[question] == (
        "weight-wise, ResNet-20: at 90 %, recipe modern, 200 epochs, Gibbs pruning 89.00 ± 0.00 is behind gradual "
        f"pruning 90.00 ± 0.00 (`{runs[0][0].name()}`), -1.00 points."
    )


def test_statements_say_which_runs_were_run_again():
    high = fake_results.run_twice(sparsity=0.95)
    others = [(cells.run("resnet20"), 0.88), (cells.run("resnet20", "l1"), 0.86), (cells.dense("resnet20"), 0.9134)]
    results = Results([*fake_results.run_twice(), *high, *(record(*pair) for pair in (*others, *SEEDS))])
    told = said(results)
    assert "88.00 at stretch 1, 89.34 at stretch 2 with β to 10⁶: it helps" in told["Does stretching help?"]
    lost = told["How close does 95 % come to the dense network?"]
    assert "points lost 2.00 at stretch 2 with β to 10⁶ (paper" in lost
    compared = told["Does it beat the other methods?"]
    assert "stretched to 400 epochs with β to 10⁶ (89.34) ahead of it" in compared
    results.groups[groups.family(cells.hotter(cells.run("resnet20", stretch=2)))].records[0]["agreement"] = 0.99
    assert "at 90 %, stretch 2 with β to 10⁶: 99.00 %" in said(results)["Do the masks converge?"]


def test_masks_that_did_not_converge_are_named():
    tight, loose = cells.run("resnet20"), cells.run("resnet20", sparsity=0.5)
    modern = cells.run("resnet20", recipe="modern")
    loosely = {"accuracy_converged": 0.91, "agreement": 0.95}
    found = Results([record(tight, 0.88), record(loose, 0.9, **loosely), record(modern, 0.9, **loosely)])
    told = said(found)["Do the masks converge?"]
    assert "99.9 % of the weights or more in 1 of 2 kinds of Gibbs runs; not in these: weight-wise" in told
    assert "linear square at 50 %, stretch 1: 95.00 %, accuracy 90.00 with the last draw and 91.00 with" in told
    assert "Not run: ResNet-56." in told


def test_one_seed_of_resnet56_does_not_make_the_exact_sampler_better():
    """Of the stored results: the difference is 1.1 points, and may be chance."""
    results = groups.load(Path(__file__).parents[1] / "results" / "paper")
    for finding in findings.samplers(results, Chance(results)):
        assert finding.claims[0].seeds >= 3 or finding.claims[0].p > 0.05
