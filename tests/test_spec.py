"""A run's spec: what it fills in, what it refuses and how, its round trip and its name."""

import json
import re

import pytest

from gibbsprune import rising
from gibbsprune.errors import UserError
from gibbsprune.hamiltonians import HAMILTONIANS, as_hamiltonian, possible
from gibbsprune.structures import ALLOWED, EXAMPLES, Filter, Weight, as_structure
from gibbsprune.training.methods import gibbs
from gibbsprune.training.recipes import RECIPES
from gibbsprune.training.spec import RunSpec, scale_recipe


@pytest.mark.parametrize(
    ("structure", "hamiltonian"), [("weight", "square"), ("kernel", "quadratic"), ("filter", "quadratic")]
)
def test_default_hamiltonian_is_the_papers_best(structure, hamiltonian):
    assert RunSpec(structure=structure).hamiltonian == hamiltonian


def test_default_recipe_follows_the_data():
    assert RunSpec().recipe == RECIPES["digits"].replace(law="rising")
    assert RunSpec(data="cifar10").recipe == RECIPES["paper"]
    own = RunSpec(data="mine.npz:heldout").recipe
    assert own == RECIPES["plain"].replace(law="rising")
    assert own.images == "as they are, neither shifted nor flipped"
    assert RECIPES["paper"].images == "shifted by up to 3 pixels and flipped at random"
    assert RECIPES["digits"].images == "shifted by up to 1 pixels at random"


@pytest.mark.parametrize("structure", ["weight", "filter"])
def test_nobody_chooses_a_beta_for_data_of_ones_own(structure):
    """Their networks are of any kind, and the paper's range of β suits the weights of few."""
    assert RunSpec(data="mine.npz", model="mine:make", structure=structure).setting("temperature") == "zero"
    spec = RunSpec(data="mine.npz", model="mine:make", structure=structure, settings={"temperature": "annealed"})
    assert gibbs.hamiltonian(spec) == as_hamiltonian(None, as_structure(structure))
    assert gibbs.schedule(spec, [100]) == gibbs.hamiltonian(spec).annealing(spec.epochs, [100])
    assert RunSpec.from_dict(spec.as_dict()) == spec
    assert "in." not in spec.name()
    assert RunSpec(data="mine.npz", structure=structure, hamiltonian="binary").setting("units") == "weights"
    assert RunSpec(data="mine.npz", structure=structure, recipe=RECIPES["paper"]).setting("units") == "weights"


@pytest.mark.parametrize("structure", EXAMPLES)
def test_every_possible_combination_is_accepted(structure):
    for hamiltonian in possible(as_structure(structure)):
        names = HAMILTONIANS[hamiltonian].samplers
        if as_structure(structure).limited and hamiltonian != "binary":
            names = ("conditional",)
        for sampler in ("auto", *names):
            spec = RunSpec(structure=structure, hamiltonian=hamiltonian, sampler=sampler)
            assert RunSpec.from_dict(spec.as_dict()) == spec


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"method": "magic"},
            "method is 'magic': allowed are 'gibbs', 'dense', 'l1', 'magnitude', 'lottery', 'targeted-dropout', "
            "'filter-l1', 'thinet', 'random-mask', 'reinit', 'gradual', 'feedback', 'rigl', "
            "'lr-rewinding', 'str'",
        ),
        ({"structure": "row"}, f"structure is 'row': allowed are {ALLOWED}"),
        ({"precision": "half"}, "precision is 'half': allowed are 'auto', 'float32', 'bfloat16'"),
        (
            {"hamiltonian": "cubic"},
            "hamiltonian is 'cubic': allowed are 'quadratic', 'square', 'abs', 'sign', 'binary', 'neighbours', "
            "'channels', 'redundancy' and Hamiltonian "
            "objects",
        ),
        (
            {"hamiltonian": "quadratic"},
            "hamiltonian is 'quadratic': allowed are 'square', 'abs', 'sign', 'binary', 'neighbours', "
            "'channels' with structure 'weight'",
        ),
        (
            {"structure": "filter", "hamiltonian": "abs"},
            "hamiltonian is 'abs': allowed are 'quadratic', 'sign', 'binary', 'redundancy' with structure 'filter'",
        ),
        (
            {"sampler": "chromatic"},
            "sampler is 'chromatic': allowed are 'auto', 'independent', 'enumeration' with Linear('square')",
        ),
        ({"sparsity": 1.0}, "sparsity is 1.0: allowed are numbers from 0 up to but not 1"),
        (
            {"sparsity": float("nan")},
            "sparsity is nan: allowed are numbers from 0 up to but not 1",
        ),
        ({"coupling": 0}, "coupling is 0: allowed are numbers above 0"),
        ({"stretch": 0}, "stretch is 0: allowed are whole numbers from 1"),
        ({"seed": -1}, "seed is -1: allowed are whole numbers from 0"),
        ({"epochs": 2.5}, "epochs is 2.5: allowed are whole numbers from 1"),
        ({"include": []}, "include is []: allowed are one or more patterns of layer names"),
        ({"recipe": "paper"}, "recipe is 'paper': allowed are objects of the class Recipe"),
    ],
)
def test_refusals_are_one_sentence(fields, sentence):
    with pytest.raises(UserError) as caught:
        RunSpec(**fields)
    assert str(caught.value) == sentence


def test_epochs_scale_the_recipe_in_proportion():
    spec = RunSpec(data="cifar10", epochs=20, stretch=3)
    assert spec.recipe.epochs == spec.epochs == 20
    assert spec.recipe.milestones == (8, 12, 16)
    assert spec.recipe.anneal_epochs == 13
    assert spec.total_epochs == 60


def test_scaling_to_very_few_epochs_still_gives_a_recipe():
    short = scale_recipe(RECIPES["paper"], 2)
    assert short.milestones == (1, 2)
    assert short.anneal_epochs == 1


def test_round_trip_through_json():
    spec = RunSpec(
        data="cifar10",
        structure="kernel",
        sampler="enumeration",
        include=("layer1.*", "layer2.*"),
        exclude="*.projection",
        epochs=7,
        seed=5,
        recipe=RECIPES["modern"].replace(lr=0.2),
    )
    again = RunSpec.from_dict(json.loads(json.dumps(spec.as_dict())))
    assert again == spec
    assert again.exclude == ("*.projection",)


def test_unknown_field_is_named():
    with pytest.raises(UserError, match="a run has no field 'colour': allowed are coupling, data, "):
        RunSpec.from_dict({"colour": "red"})


def test_replace_keeps_what_still_makes_sense():
    spec = RunSpec(epochs=5)
    assert spec.replace(seed=3).epochs == 5
    assert spec.replace(structure="kernel").hamiltonian == "quadratic"
    assert spec.replace(recipe=RECIPES["modern"]).epochs == 200


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({}, "digits-resnet20-gibbs-weight-square-0.9-converged-s0"),
        ({"method": "dense", "seed": 4}, "digits-resnet20-dense-s4"),
        ({"data": "cifar10"}, "cifar10-resnet20-gibbs-weight-square-0.9-s0"),
        ({"data": "/some/where/birds.npz", "method": "dense"}, "birds-resnet20-dense-s0"),
        ({"model": "my.nets:tiny", "method": "dense"}, "digits-my.nets_tiny-dense-s0"),
        (
            {"structure": "filter", "sparsity": 0.75, "coupling": 0.05, "sampler": "chromatic"},
            "digits-resnet20-gibbs-filter-quadratic-0.75-c0.05-chromatic-converged-annealed-s0",
        ),
        (
            {"epochs": 5, "stretch": 2, "precision": "float32"},
            "digits-resnet20-gibbs-weight-square-0.9-converged-e5-x2-float32-s0",
        ),
        ({"recipe": RECIPES["modern"]}, "digits-resnet20-gibbs-weight-square-0.9-converged-modern-s0"),
        ({"recipe": RECIPES["modern"].replace(final="sample")}, "digits-resnet20-gibbs-weight-square-0.9-modern-s0"),
        ({"method": "dense", "recipe": RECIPES["digits"].replace(final="sample")}, "digits-resnet20-dense-s0"),
    ],
)
def test_names(fields, name):
    assert RunSpec(**fields).name() == name


def test_names_tell_other_changes_apart():
    recipe = RECIPES["digits"]
    specs = [
        RunSpec(),
        RunSpec(recipe=recipe.replace(lr=0.002)),
        RunSpec(recipe=recipe.replace(lr=0.004)),
        RunSpec(include="layer1*"),
        RunSpec(exclude="layer1*"),
    ]
    assert len({spec.name() for spec in specs}) == len(specs)
    assert RunSpec(include="layer1*").name() == RunSpec(include=["layer1*"]).name()


@pytest.mark.parametrize("epochs", [1, 2, 7, 200])
def test_the_recipe_best_is_the_pruners_law_rising(epochs):
    best = scale_recipe(RECIPES["best"], epochs)
    for recipe, model in (
        (best, "package:network"),
        (RECIPES["digits"].replace(law="rising", epochs=epochs), "resnet8"),
    ):
        for kind in (Weight(), Filter()):
            spec = RunSpec(model=model, structure=kind.name, sparsity=0.95, recipe=recipe)
            assert spec.how.target(spec) == rising.plan("rising", 0.95, kind, {"": kind}, epochs)
            assert (spec.how.gradient(spec), spec.how.survivors(spec)) == ("proportional", "auto")
            assert spec.how.cold(spec)
            assert spec.how.fading(spec) == 0


def test_in_our_resnets_the_recipe_best_is_as_its_results_on_cifar10_have_it():
    told = {}
    for structure in ("weight", "kernel", "filter", "2:4"):
        spec = RunSpec("cifar10", "resnet20", structure=structure, recipe=RECIPES["best"])
        told[structure] = spec.setting("allocation"), spec.how.survivors(spec)
    assert told == {
        "weight": ("global", "shrunk"), "kernel": ("balanced", "shrunk"), "filter": ("balanced", "whole"),
        "2:4": ("uniform", "shrunk"),
    }  # fmt: skip


def test_a_recipes_law_gives_way_to_settings_and_to_patterns():
    best = RECIPES["best"]
    floored = RunSpec(sparsity=0.9, recipe=best, settings={"floor": 0.02, "gradient": "masked"})
    assert floored.how.target(floored).floor == 0.02
    assert floored.how.gradient(floored) == "masked"
    assert RunSpec(structure="2:4", recipe=best).how.target(RunSpec(structure="2:4", recipe=best)) == 0.5
    assert RunSpec(structure="neuron", recipe=best).setting("allocation") == "uniform"
    assert RunSpec(recipe=best).replace(recipe=RECIPES["modern"]) == RunSpec(recipe=RECIPES["modern"])


@pytest.mark.parametrize(
    ("given", "told"),
    [({"hamiltonian": "sign"}, "hamiltonian is 'sign': allowed are None with law 'rising', which has no temperature"),
     ({"structure": "filter", "coupling": 0.05}, "coupling is 0.05: allowed are None with"),
     ({"sampler": "independent"}, "sampler is 'independent': allowed are 'auto' with"),
     ({"settings": {"gradient": "law"}}, "gradient is 'law': allowed are 'masked', 'proportional'"),
     ({"structure": "kernel", "settings": {"chain": "warm"}}, "chain is 'warm': allowed are 'cold' with"),
     ({"recipe": RECIPES["best"].replace(beta_end=10)}, "beta_end is 10.0: allowed are None with")],
)  # fmt: skip
def test_the_recipe_best_refuses_what_only_a_temperature_has(given, told):
    with pytest.raises(UserError, match=re.escape(told)):
        RunSpec(**{"recipe": RECIPES["best"], **given})
