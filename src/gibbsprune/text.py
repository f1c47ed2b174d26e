"""What is shown to people: tables, percent, durations, the first line of an error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def percent(value: float | None) -> str:
    """A fraction in percent, or a dash.

    >>> percent(0.9)
    '90.00 %'
    """
    return "–" if value is None or math.isnan(value) else f"{100 * value:.2f} %"


def clock(seconds: float) -> str:
    """A duration to read: 0:07, 12:34 or 1:02:03."""
    if not math.isfinite(seconds):
        return "?"
    minutes, second = divmod(round(max(0.0, seconds)), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02d}:{second:02d}" if hour else f"{minute}:{second:02d}"


def told(error: BaseException) -> str:
    """A mistake in a user's code in one line: its kind and the first line of what it says."""
    first = first_line(error)
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def first_line(error: BaseException) -> str:
    """The first line of what an error says."""
    return str(error).strip().partition("\n")[0]


def aligned(lines: Sequence[Sequence[Any]], left: int = 1) -> list[list[str]]:
    """Cells of equal width in each column; the first ``left`` columns are aligned left, the others right."""
    shown = [list(map(str, line)) for line in lines]
    widths = [max(map(len, column)) for column in zip(*shown)]
    return [
        [cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths))]
        for line in shown
    ]


def columns(lines: Sequence[Sequence[Any]], left: int = 1) -> list[str]:
    """Lines of a table for a terminal."""
    return ["  ".join(line).rstrip() for line in aligned(lines, left)]


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], left: int = 1) -> str:
    """A Markdown table; the first ``left`` columns are aligned left, the others right."""
    first, *rest = aligned([header, *rows], left)
    rule = ["-" * len(cell) if i < left else "-" * (len(cell) - 1) + ":" for i, cell in enumerate(first)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [first, rule, *rest])
