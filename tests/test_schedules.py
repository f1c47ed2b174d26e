"""Schedules: their values, that they are held, stretched and joined."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gibbsprune import ConstantSchedule, Join, LinearSchedule, LogSchedule, UserError
from gibbsprune.checks import check_beta

POSITIVE = st.floats(1e-3, 1e6)


def test_the_papers_schedule():
    beta = LogSchedule(0.7, 1e4, epochs=128)
    assert beta(0) == pytest.approx(0.7)
    assert beta(64) == pytest.approx(math.sqrt(0.7 * 1e4))
    assert beta(128) == beta(199) == beta(10**6) == 1e4


@given(POSITIVE, POSITIVE, st.integers(1, 50), st.integers(0, 120))
def test_log_schedule_multiplies_by_the_same_factor(start, end, epochs, epoch):
    beta = LogSchedule(start, end, epochs)
    step = (end / start) ** (1 / epochs) if epoch < epochs else 1.0
    assert beta(epoch + 1) == pytest.approx(beta(epoch) * step, rel=1e-9)


@given(st.floats(-100, 100), st.floats(-100, 100), st.integers(1, 50), st.integers(0, 120))
def test_linear_schedule_adds_the_same(start, end, epochs, epoch):
    beta = LinearSchedule(start, end, epochs)
    step = (end - start) / epochs if epoch < epochs else 0.0
    assert beta(epoch + 1) == pytest.approx(beta(epoch) + step, abs=1e-9)
    assert beta(0) == start
    assert beta(epochs) == pytest.approx(end, abs=1e-12)


@given(st.integers(1, 20), st.integers(1, 7), st.integers(0, 200))
def test_stretch_evaluates_at_the_quotient(epochs, stretch, epoch):
    assert LogSchedule(1, 50, epochs, stretch=stretch)(epoch) == LogSchedule(1, 50, epochs)(epoch // stretch)


def test_constant_and_join():
    joined = Join((ConstantSchedule(0.5), LinearSchedule(1, 3, epochs=2), LogSchedule(3, 300, 2)), boundaries=(2, 4))
    assert [joined(n) for n in range(8)] == pytest.approx([0.5, 0.5, 1, 2, 3, 30, 300, 300])


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: LogSchedule(0, 1, 3), "a logarithmic schedule runs between positive values, not 0 and 1"),
        (lambda: LogSchedule(1, math.nan, 3), "end is nan: allowed are numbers"),
        (lambda: LinearSchedule("1", 2, 3), "start is '1': allowed are numbers"),
        (lambda: LinearSchedule(1, 2, 0), "epochs is 0: allowed are whole numbers from 1"),
        (lambda: LinearSchedule(1, 2, 2.5), "epochs is 2.5: allowed are whole numbers from 1"),
        (lambda: LinearSchedule(1, 2, 3, stretch=0), "stretch is 0: allowed are whole numbers from 1"),
        (lambda: ConstantSchedule(None), "value is None: allowed are numbers"),
        (
            lambda: Join((ConstantSchedule(1), ConstantSchedule(2)), ()),
            "boundaries are (): allowed is a rising tuple of 1 epochs",
        ),
        (
            lambda: Join((ConstantSchedule(1), 3), (4,)),
            "part 3 is no schedule: allowed are schedules and functions of the epoch",
        ),
        (
            lambda: Join((), ()),
            "parts are none: allowed are one or more schedules",
        ),
        (
            lambda: Join((ConstantSchedule(1),) * 3, (4, 2)),
            "boundaries are (4, 2): allowed is a rising tuple of 2 epochs",
        ),
        (lambda: LogSchedule(1, 2, 3)(-1), "epoch is -1: allowed are numbers from 0"),
    ],
)
def test_refusals(make, sentence):
    with pytest.raises(UserError) as error:
        make()
    assert str(error.value) == sentence


@pytest.mark.parametrize("bad", [-1, -1e-9, math.nan, "hot", None])
def test_beta_that_is_none(bad):
    with pytest.raises(UserError) as error:
        check_beta(bad)
    assert str(error.value) == f"beta is {bad!r}: allowed are numbers from 0 up, infinity included"


def test_beta_may_be_zero_or_infinite():
    assert check_beta(0) == 0.0
    assert check_beta(math.inf) == math.inf


def test_fractions_of_an_epoch_count_unless_stretched():
    assert LogSchedule(1, 100, epochs=1)(0.5) == pytest.approx(10)
    assert LinearSchedule(0, 4, epochs=2)(0.25) == 0.5
    assert LinearSchedule(0, 4, epochs=2, stretch=2)(3.9) == 2.0


def test_numbers_of_numpy():
    assert LogSchedule(1, 100, epochs=np.int64(2), stretch=np.int32(1))(1) == pytest.approx(10)
