"""Parsers for a recipe's fields: each takes a value, or a string for one, and returns it in its type.

A parser refuses with a ValueError that says what is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Parser = Callable[[Any], Any]


def text() -> Parser:
    def parse(value: Any) -> str:
        if isinstance(value, str) and value.strip():
            return value.strip()
        raise ValueError("it must be a word")

    return parse


def choice(*allowed: str) -> Parser:
    def parse(value: Any) -> str:
        if value in allowed:
            return str(value)
        raise ValueError(f"it must be {' or '.join(allowed)}")

    return parse


def flag() -> Parser:
    """True or False; as strings yes/no, true/false, on/off, 1/0."""
    words = {"yes": True, "true": True, "on": True, "1": True} | dict.fromkeys(("no", "false", "off", "0"), False)

    def parse(value: Any) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip().lower() in words:
            return words[value.strip().lower()]
        raise ValueError("it must be yes or no")

    return parse


def whole(least: int) -> Parser:
    def parse(value: Any) -> int:
        found = _float(value)
        if found is not None and found == int(found) and found >= least:
            return int(found)
        raise ValueError(f"it must be a whole number from {least}")

    return parse


def wholes(least: int) -> Parser:
    """Whole numbers from `least`, as a list or a comma-separated string; '' and 'none' are the empty list."""
    one = whole(least)

    def parse(value: Any) -> tuple[int, ...]:
        if isinstance(value, str):
            value = [] if value.strip().lower() in ("", "none") else value.split(",")
        if isinstance(value, (list, tuple)):
            return tuple(one(part) for part in value)
        raise ValueError(f"it must be whole numbers from {least}, separated by commas")

    return parse


def number(least: float, most: float = math.inf, above: bool = False, below: bool = False) -> Parser:
    """A finite number in [least, most]; `above` leaves out least, `below` leaves out most."""
    limits = f"above {least:g}" if above else f"of at least {least:g}"
    if most < math.inf:
        limits += f" and below {most:g}" if below else f" and at most {most:g}"

    def parse(value: Any) -> float:
        found = _float(value)
        if found is None or found < least or found > most or (above and found == least) or (below and found == most):
            raise ValueError(f"it must be a number {limits}")
        return found

    return parse


def lean(parser: Parser) -> Parser:
    """What `parser` accepts, a whole number without its fraction of zero."""

    def parse(value: Any) -> float | int:
        found = parser(value)
        return int(found) if found == int(found) else float(found)

    return parse


def optional(parser: Parser) -> Parser:
    """None, or what `parser` accepts; as strings 'none' and 'default' are None."""

    def parse(value: Any) -> Any:
        if value is None or (isinstance(value, str) and value.strip().lower() in ("", "none", "default")):
            return None
        try:
            return parser(value)
        except ValueError as error:
            raise ValueError(f"{error}, or 'default'") from None

    return parse


def _float(value: Any) -> float | None:
    """The value as a finite float, or None where it is not one; booleans are not numbers here."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        found = float(value)
    except ValueError:
        return None
    return found if math.isfinite(found) else None
