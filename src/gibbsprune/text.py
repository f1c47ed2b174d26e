"""What is shown to people: tables, percent, durations, the first line of an error."""

from __future__ import annotations

import math
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
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


def safe(text: object) -> str:
    """Text of unknown origin as plain words of a Markdown page: no tag, link, attribute, formula, cell of its own."""
    plain = " ".join(str(text).split())
    return re.sub(r"[<>&\\`*\[\]|~{}$]|(?<!\w)_|_(?!\w)", lambda sign: f"&#{ord(sign[0])};", plain)


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


def shown(header: Sequence[str], rows: Sequence[Sequence[Any]], left: int = 1) -> str:
    """A table to print: on a terminal that it is too wide for, columns become rows."""
    text = table(header, rows, left)
    if not sys.stdout.isatty() or len(text.partition("\n")[0]) <= shutil.get_terminal_size().columns:
        return text
    lines = list(zip(header, *rows))
    return table(lines[0], lines[1:])


def command(arguments: str) -> str:
    """A line that runs gibbsprune from here as it was run: by name where the shell finds that, else by path."""
    here, name = Path(sys.argv[0]), "gibbsprune"
    if here.name == "__main__.py" and here.parent.name == name:
        name = f"{_near(sys.executable)} -m {name}"
    elif here.name == name and os.path.realpath(shutil.which(name) or "") != os.path.realpath(here):
        name = _near(here)
    return f"{name} {arguments}"


def _near(path: str | Path) -> str:
    """The path from here, where that is below."""
    near = os.path.relpath(path)
    return str(path) if near.startswith(os.pardir) else near
