"""What is shown to people."""

import io
import math
import sys

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


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_table_too_wide_for_the_terminal_is_turned(monkeypatch):
    header, rows = ["", "parameters", "milliseconds"], [["dense", 12, 3], ["pruned", 4, 1]]
    assert text.shown(header, rows) == text.table(header, rows), "into a file it goes as it is"
    monkeypatch.setattr(sys, "stdout", Terminal())
    for width, turned in (("80", False), ("33", True)):
        monkeypatch.setenv("COLUMNS", width)
        lines = text.shown(header, rows).splitlines()
        assert lines[0].split() == (["|", "|", "dense", "|", "pruned", "|"] if turned else lines[0].split())
        assert max(map(len, lines)) <= int(width)


def test_a_command_can_be_typed_as_it_is_told(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "gibbsprune"
    program.write_text("#!/bin/sh")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.setenv("PATH", "/nowhere")
    assert text.command("train") == "bin/gibbsprune train"
    monkeypatch.setenv("PATH", str(program.parent))
    assert text.command("train") == "gibbsprune train"
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "gibbsprune" / "__main__.py")])
    assert text.command("train") == f"{sys.executable} -m gibbsprune train"
    monkeypatch.setattr(sys, "argv", ["pytest"])
    assert text.command("train") == "gibbsprune train"
