"""Recipes: the protocol's values, schedules and stretching, overrides from strings."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gibbsprune.errors import UserError
from gibbsprune.training.recipes import FIELDS, RECIPES, Recipe, recipe

PAPER, MODERN = RECIPES["paper"], RECIPES["modern"]


def test_paper_is_the_protocols() -> None:
    assert PAPER.as_dict() == {
        "name": "paper", "epochs": 200, "batch": 128, "optimizer": "adam", "lr": 1e-3, "momentum": 0.9,
        "nesterov": True, "beta1": 0.9, "beta2": 0.999, "eps": 1e-7, "weight_decay": 2e-4,
        "decay_on": "convolutions", "lr_schedule": "steps", "milestones": [80, 120, 160], "gamma": 0.1,
        "warmup_epochs": 0, "warmup_lr": 0.01, "bn_momentum": 0.01, "bn_eps": 1e-3, "standardise": "global",
        "shift": 3, "flip": True, "cutout": 0, "anneal": None, "beta_start": None, "beta_end": None,
        "anneal_epochs": 128, "final": "sample", "law": "annealed",
    }  # fmt: skip


def test_modern_is_the_protocols() -> None:
    assert (MODERN.optimizer, MODERN.lr, MODERN.momentum, MODERN.nesterov) == ("sgd", 0.1, 0.9, True)
    assert (MODERN.epochs, MODERN.batch, MODERN.weight_decay, MODERN.decay_on) == (200, 128, 1e-4, "all")
    assert (MODERN.lr_schedule, MODERN.warmup_epochs, MODERN.warmup_lr) == ("cosine", 1, 0.01)
    assert (MODERN.standardise, MODERN.shift, MODERN.flip, MODERN.anneal_epochs) == ("channel", 3, True, 128)


def test_best_is_modern_but_for_its_law_and_decay() -> None:
    assert RECIPES["best"].replace(name="modern", law="annealed", weight_decay=1e-4) == MODERN


def test_a_record_without_the_final_mask_is_of_the_time_of_the_last_draw() -> None:
    assert [name for name, named in RECIPES.items() if named.final != "converged"] == ["paper"]
    for named in (PAPER, MODERN):
        old = {name: value for name, value in named.as_dict().items() if name != "final"}
        assert Recipe.from_dict(old) == named.replace(final="sample")
        assert Recipe.from_dict(named.as_dict()) == named


def test_digits_is_short_and_does_not_mirror() -> None:
    digits = recipe("digits")
    assert digits.epochs <= 30
    assert (digits.flip, digits.shift) == (False, 1)
    with pytest.raises(UserError, match="recipe is 'papre': allowed are 'paper', 'modern', 'best', 'digits', 'plain'"):
        recipe("papre")


@pytest.mark.parametrize("stretch", [1, 2, 5])
def test_steps_are_taken_at_the_stretched_milestones(stretch: int) -> None:
    for milestone, before, after in ((80, 1e-3, 1e-4), (120, 1e-4, 1e-5), (160, 1e-5, 1e-6)):
        assert PAPER.learning_rate(milestone * stretch - 1, stretch) == pytest.approx(before)
        assert PAPER.learning_rate(milestone * stretch, stretch) == pytest.approx(after)
    assert PAPER.learning_rate(0, stretch) == 1e-3
    assert PAPER.total_epochs(stretch) == 200 * stretch


@settings(deadline=None)
@given(epoch=st.integers(0, 2000), stretch=st.integers(1, 10))
def test_a_stretched_step_schedule_is_the_plain_one_slowed_down(epoch: int, stretch: int) -> None:
    assert PAPER.learning_rate(epoch, stretch) == PAPER.learning_rate(epoch // stretch)


@pytest.mark.parametrize("stretch", [1, 3])
def test_cosine_falls_to_zero_after_the_warm_up(stretch: int) -> None:
    rates = [MODERN.learning_rate(epoch, stretch) for epoch in range(200 * stretch + 1)]
    assert rates[:stretch] == [0.01] * stretch
    assert rates[stretch] == pytest.approx(0.05 * (1 + math.cos(math.pi / 200)))
    assert rates[100 * stretch] == pytest.approx(0.05)
    assert rates[-1] == pytest.approx(0, abs=1e-12)
    assert all(later < sooner for sooner, later in zip(rates[stretch:], rates[stretch + 1 :]))


def test_bad_epochs_and_stretches_are_refused() -> None:
    for stretch in (0, -1, 1.5):
        with pytest.raises(UserError, match=f"stretch is {stretch}: allowed are whole numbers from 1"):
            PAPER.total_epochs(stretch)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="epoch is -1"):
        PAPER.learning_rate(-1)


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        ("epochs", "50", 50),
        ("epochs", "1e2", 100),
        ("lr", "3e-4", 3e-4),
        ("lr", 1, 1.0),
        ("shift", "3.2", 3.2),
        ("shift", 4.0, 4),
        ("flip", "no", False),
        ("flip", "True", True),
        ("milestones", "10, 20,30", (10, 20, 30)),
        ("milestones", "none", ()),
        ("milestones", [5], (5,)),
        ("anneal", "linear", "linear"),
        ("anneal", "default", None),
        ("beta_end", "1e6", 1e6),
        ("beta_end", "none", None),
        ("anneal_epochs", "64", 64),
        ("decay_on", "all", "all"),
        ("name", "mine", "mine"),
    ],
)
def test_overrides_are_parsed(name: str, given: object, kept: object) -> None:
    changed = PAPER.replace(**{name: given})
    assert getattr(changed, name) == kept
    assert type(getattr(changed, name)) is type(kept)
    assert PAPER.as_dict()["epochs"] == 200
    assert Recipe.from_dict(json.loads(json.dumps(changed.as_dict()))) == changed


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("epochs", "0", "epochs is '0': allowed are whole numbers from 1"),
        ("epochs", "2.5", "allowed are whole numbers from 1"),
        ("epochs", "nan", "allowed are whole numbers from 1"),
        ("epochs", True, "allowed are whole numbers from 1"),
        ("lr", "fast", "lr is 'fast': allowed are numbers above 0"),
        ("lr", "inf", "allowed are numbers above 0"),
        ("lr", 0, "allowed are numbers above 0"),
        ("beta1", "1", "numbers from 0 to below 1"),
        ("gamma", "1.5", "numbers above 0 to 1"),
        ("shift", "-1", "shift is '-1': allowed are numbers from 0"),
        ("flip", "perhaps", "allowed are yes and no"),
        ("flip", 1, "allowed are yes and no"),
        ("optimizer", "lion", "optimizer is 'lion': allowed are 'adam', 'adamw', 'sgd'"),
        ("optimizer", None, "allowed are 'adam', 'adamw', 'sgd'"),
        ("anneal", "cosine", "allowed are 'log', 'linear', 'constant', and 'default'"),
        ("milestones", "10,x", "whole number"),
        ("milestones", "20,10", "allowed are rising epochs"),
        ("milestones", 7, "separated by commas"),
        ("name", "", "allowed are words"),
    ],
)
def test_bad_values_are_refused_with_what_is_allowed(name: str, given: object, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        PAPER.replace(**{name: given})


def test_a_misspelt_field_is_answered_with_the_close_one_and_the_list() -> None:
    with pytest.raises(UserError, match=r"no field 'weigth_decay' \(did you mean 'weight_decay'\?\): .*anneal_epochs"):
        PAPER.replace(weigth_decay=1)
    with pytest.raises(UserError, match=r"no field 'zzz': allowed are name, epochs"):
        PAPER.replace(zzz=1)
    with pytest.raises(UserError, match="no field 'extra'"):
        Recipe.from_dict(PAPER.as_dict() | {"extra": 1})
    with pytest.raises(UserError, match="lacks epochs, lr"):
        Recipe.from_dict({"name": "x", "batch": 1, "optimizer": "sgd"})


@pytest.mark.parametrize("name", RECIPES)
def test_show_tells_every_field_once(name: str) -> None:
    shown = RECIPES[name].show()
    assert shown.splitlines()[0] == f"recipe {name}"
    assert [line.split()[0] for line in shown.splitlines()[1:]] == [field for field in FIELDS if field != "name"]
    assert max(map(len, shown.splitlines())) <= 120
