"""Checks and parsers: what is accepted, and the one form of sentence for what is not."""

import math

import numpy as np
import pytest

from gibbsprune import checks
from gibbsprune.errors import UserError

NAN = float("nan")


@pytest.mark.parametrize(
    ("check", "sentence"),
    [
        (lambda: checks.check_whole("seed", -1, 0), "seed is -1: allowed are whole numbers from 0"),
        (lambda: checks.check_whole("seed", True), "seed is True: allowed are whole numbers from 1"),
        (lambda: checks.check_whole("seed", "3"), "seed is '3': allowed are whole numbers from 1"),
        (lambda: checks.check_one_of("mode", "x", ("a", "b")), "mode is 'x': allowed are 'a', 'b'"),
        (lambda: checks.check_one_of("mode", np.ones(2), ("a",)), "mode is array([1., 1.]): allowed are 'a'"),
        (lambda: checks.check_number("c", "1", checks.number(0)), "c is '1': allowed are numbers from 0"),
        (lambda: checks.check_number("c", 0, checks.number(0, above=True)), "c is 0: allowed are numbers above 0"),
        (lambda: checks.check_beta(-1), "beta is -1: allowed are numbers from 0 up, infinity included"),
        (lambda: checks.check_beta(NAN), "beta is nan: allowed are numbers from 0 up, infinity included"),
        (
            lambda: checks.check_sparsity(1),
            "sparsity is 1: allowed are numbers from 0 up to but not 1",
        ),
        (
            lambda: checks.check_patterns("include", []),
            "include is []: allowed are one or more patterns of layer names",
        ),
        (lambda: checks.parsed("lr", 10**400, checks.number(0)), f"lr is 1{'0' * 119}…: allowed are numbers from 0"),
        (
            lambda: checks.parsed("x", "2", checks.optional(checks.number(0, 1, below=True))),
            "x is '2': allowed are numbers from 0 to below 1, and 'default'",
        ),
        (lambda: checks.parsed("x", "maybe", checks.flag()), "x is 'maybe': allowed are yes and no"),
        (lambda: checks.parsed("x", "c", checks.choice("a", "b")), "x is 'c': allowed are 'a', 'b'"),
        (lambda: checks.parsed("x", " ", checks.text()), "x is ' ': allowed are words"),
        (
            lambda: checks.parsed("x", 5, checks.wholes(1)),
            "x is 5: allowed are whole numbers from 1, separated by commas",
        ),
    ],
)
def test_one_form_of_sentence(check, sentence):
    with pytest.raises(UserError) as caught:
        check()
    assert str(caught.value) == sentence


def test_what_is_allowed_comes_back():
    assert checks.check_whole("n", np.int64(3)) == 3
    assert checks.check_one_of("x", None, (None, "a")) is None
    assert checks.check_beta(math.inf) == math.inf
    assert checks.check_sparsity(np.float32(0.5)) == 0.5
    assert checks.check_patterns("include", "a.*") == ("a.*",)
    assert checks.whole(1)("3") == 3
    assert checks.wholes(1)("1, 2") == checks.wholes(1)([1, 2]) == (1, 2)
    assert checks.wholes(1)("none") == ()
    assert checks.number(0, 1)("1e-3") == 1e-3
    assert checks.lean(checks.number(0))("3.0") == 3
    assert checks.flag()("On") is True
    assert checks.optional(checks.whole(1))("default") is None
