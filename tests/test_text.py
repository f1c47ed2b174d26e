"""What is shown to people."""

import math

import pytest

from gibbsprune import text


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0:00"), (59.6, "1:00"), (754, "12:34"), (3723, "1:02:03"), (math.nan, "?")]
)
def test_clock(seconds, shown):
    assert text.clock(seconds) == shown


@pytest.mark.parametrize(("value", "shown"), [(0.12345, "12.35 %"), (1, "100.00 %"), (None, "–"), (math.nan, "–")])
def test_percent(value, shown):
    assert text.percent(value) == shown


def test_an_error_in_one_line():
    assert text.told(ValueError("first\nsecond")) == "ValueError: first"
    assert text.told(KeyError()) == "KeyError"


def test_tables():
    shown = text.table(["name", "count"], [["a", 1], ["long name", 12345]])
    assert shown.splitlines() == [
        "| name      | count |",
        "| --------- | ----: |",
        "| a         |     1 |",
        "| long name | 12345 |",
    ]
    assert text.columns([["name", "n"], ["a", 10]]) == ["name   n", "a     10"]
