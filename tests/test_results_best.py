"""The sweeps of results: which runs they are, and what they choose."""

from __future__ import annotations

from pathlib import Path

from gibbsprune.sweeps import declare

BEST = Path(__file__).parents[1] / "results" / "best"


def test_rivals_have_the_recipe_and_the_epochs_of_what_they_are_compared_with():
    specs = declare.read(BEST / "rivals.py").everything({})
    for compared, decay in ((specs[:36], 5e-4), (specs[36:72], 3e-4)):
        shared = {(spec.model, spec.recipe.name, spec.recipe.weight_decay, spec.total_epochs) for spec in compared}
        assert shared == {("resnet20", "best", decay, 200)}
        kinds = {(spec.method, spec.setting("allocation")) for spec in compared}
        assert kinds == {("gibbs", "global"), ("gradual", "global"), ("rigl", "erk"), ("feedback", "global")}
        cells = {(spec.sparsity, spec.seed) for spec in compared}
        assert cells == {(p, seed) for p in (0.9, 0.95, 0.98) for seed in range(3)}
    assert {spec.recipe.law for spec in specs if spec.recipe.name == "modern"} == {"annealed"}
    known = {spec.name() for spec in specs}
    assert all(file.stem in known for file in BEST.glob("*.json"))


def test_the_penalty_is_chosen_on_held_out_images_before_the_test_set_is_looked_at():
    sweep = declare.read(BEST / "l1.py")
    trials = sweep.everything({})
    assert len(trials) == 24
    assert {spec.data for spec in trials} == {"cifar10:heldout=5000"}
    results = {spec.name(): {"accuracy": spec.setting("penalty") + 0.1 * spec.seed} for spec in trials}
    best = [spec.name() for spec in trials if spec.setting("penalty") == 3e-5 and spec.recipe.name == "modern"]
    results |= {name: {"accuracy": 0.9} for name in best}
    tested = [spec for spec in sweep.everything(results) if spec.data == "cifar10"]
    assert {(spec.recipe.name, spec.setting("penalty")) for spec in tested} == {("modern", 3e-5), ("paper", 3e-3)}
    assert len(tested) == 6
    del results[best[0]]
    assert {spec.recipe.name for spec in sweep.everything(results) if spec.data == "cifar10"} == {"paper"}


def test_patterns_are_compared_with_single_weights_and_with_magnitudes_of_equal_epochs():
    specs = declare.read(BEST.parent / "patterns.py").everything({})
    shared = {(s.data, s.model, s.recipe.name, s.recipe.weight_decay, s.total_epochs) for s in specs}
    assert shared == {("cifar10", "resnet20", "best", 3e-4, 60)}
    pruned = [spec for spec in specs if spec.method != "dense"]
    cells = {("2:4", 0.5), ("1:4", 0.75), ("1x4", 0.75), ("at-most-3", 0.75), ("weight", 0.5), ("weight", 0.75)}
    ways = {("gibbs", "annealed"), ("gibbs", "rising"), ("gradual", "annealed")}
    kinds = {((s.method, s.recipe.law), (s.structure, s.sparsity), s.seed) for s in pruned}
    assert kinds == {(way, cell, seed) for way in ways for cell in cells for seed in range(3)}
    assert len(specs) == len(kinds) + 3


def test_energies_are_compared_with_those_of_the_paper_in_the_same_units():
    specs = declare.read(BEST.parent / "energies.yaml").everything({})
    assert {(spec.recipe.name, spec.total_epochs, spec.recipe.final) for spec in specs} == {("modern", 60, "sample")}
    new = [
        spec
        for spec in specs
        if spec.hamiltonian not in ("square", "quadratic") or spec.setting("importance") != "magnitude"
    ]
    for spec in new:
        plain = {"weight": "square", "filter": "quadratic"}[spec.structure]
        assert any(
            (other.hamiltonian, other.setting("units"), other.sparsity, other.seed, other.setting("importance"))
            == (plain, spec.setting("units"), spec.sparsity, spec.seed, "magnitude")
            for other in specs
        )
    assert len(new) == 15
