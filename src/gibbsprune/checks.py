"""Values that users give, checked where they enter: one sentence that names the bad value and what is allowed.

    NAME is VALUE: allowed are …

A ``check_…`` refuses what is not of its type. A parser also takes a string for it, as from a command line, and raises a
:class:`Refused` that says what is allowed; :func:`parsed` makes the sentence.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from numbers import Integral
from typing import Any

from .errors import UserError

Parser = Callable[[Any], Any]


class Refused(ValueError):
    """What is allowed instead, without the value's name."""


def bad(name: str, value: Any, allowed: str) -> UserError:
    """The sentence.

    >>> bad("seed", -1, "whole numbers from 0")
    UserError('seed is -1: allowed are whole numbers from 0')
    """
    return UserError(f"{name} is {shown(value)}: allowed are {allowed}")


def shown(value: Any, most: int = 120) -> str:
    """A value in one line, however large it is."""
    return one_line(repr(value), most)


def one_line(text: str, most: int) -> str:
    """At most so many characters of what may be anybody's text, on one line."""
    text = " ".join(text.split("\n"))
    return text if len(text) <= most else f"{text[:most]}…"


def listed(values: Iterable[Any]) -> str:
    """'a', 'b', 'c'."""
    return ", ".join(map(repr, values))


def meant(name: str, among: Iterable[str]) -> str:
    """What a name that is not there was meant to be, for a sentence, or nothing.

    >>> meant("sparsty", ["seed", "sparsity"]), meant("colour", ["seed"])
    (" (did you mean 'sparsity'?)", '')
    """
    near = difflib.get_close_matches(name, list(among), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def layers_told(names: Iterable[str], one: str = "", many: str = "", after: str = " ") -> str:
    """The layers that a sentence is about, all of them, and what is said of one or of many.

    >>> layers_told(["a"], "is lazy", "are lazy"), layers_told(["a", "b"], "is lazy", "are lazy")
    ("layer 'a' is lazy", "layers 'a', 'b' are lazy")
    """
    found = list(names)
    said = one if len(found) == 1 else many
    return f"layer{'s' * (len(found) > 1)} {listed(found)}{after + said if said else ''}"


def excluding(names: Iterable[str], among: Iterable[str]) -> str | list[str]:
    """What to give as ``exclude`` to leave out these layers and no others: one pattern, where there is one.

    >>> excluding(["body.0.conv", "body.1.conv"], ["body.0.conv", "body.1.conv", "head"])
    'body.*.conv'
    >>> excluding(["a", "c"], ["a", "b", "c"])
    ['a', 'c']
    """
    found = list(names)
    others = [name for name in among if name not in found]
    start = _common(found)
    end = _common([name[len(start) :][::-1] for name in found])[::-1]
    alike = list(dict.fromkeys(re.sub(r"(?<![^.])\d+(?![^.])", "*", name) for name in found))
    for patterns in (found[:1] if len(found) == 1 else [f"{start}*{end}"], alike):
        if not any(fnmatchcase(name, pattern) for name in others for pattern in patterns):
            return patterns[0] if len(patterns) == 1 else patterns
    return found


def _common(names: list[str]) -> str:
    """What all names begin with."""
    first, last = min(names), max(names)
    return first[: next((i for i, (a, b) in enumerate(zip(first, last)) if a != b), len(first))]


def check_one_of(name: str, value: Any, allowed: Iterable[Any]) -> Any:
    """The value, if it is one of those allowed."""
    possible = tuple(allowed)
    if not (value is None or isinstance(value, str)) or value not in possible:
        raise bad(name, value, listed(possible) or "none")
    return value


def check_whole(name: str, value: Any, least: int | None = 1) -> int:
    """A count is a whole number from ``least`` up, if there is one, also one of numpy's."""
    if isinstance(value, bool) or not isinstance(value, Integral) or (least is not None and value < least):
        raise bad(name, value, "whole numbers" if least is None else f"whole numbers from {least}")
    return int(value)


def check_number(name: str, value: Any, parse: Parser) -> float:
    """A number, no string for one, within the limits of a parser (:func:`number`)."""
    try:
        return float(parse(None if isinstance(value, str) else value))
    except Refused as error:
        raise bad(name, value, str(error)) from None


def check_beta(beta: Any) -> float:
    """β is a number from 0 to infinity."""
    try:
        value = float(beta)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not value >= 0:
        raise bad("beta", beta, "numbers from 0 up, infinity included")
    return value


def check_sparsity(sparsity: Any, name: str = "sparsity") -> float:
    """Sparsity is the fraction removed, in [0, 1)."""
    try:
        value = float(sparsity)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if isinstance(sparsity, (str, bool)) or not 0.0 <= value < 1.0:
        raise bad(name, sparsity, "numbers from 0 up to but not 1")
    return value


def check_patterns(name: str, value: Any) -> tuple[str, ...] | None:
    """One or more patterns of layer names, or None."""
    if value is None:
        return None
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value) or not value:
        raise bad(name, value, "one or more patterns of layer names")
    return tuple(value)


# -- parsers ---------------------------------------------------------------------------------------------------------


def parsed(name: str, value: Any, parse: Parser) -> Any:
    """What a parser makes of the value."""
    try:
        return parse(value)
    except Refused as error:
        raise bad(name, value, str(error)) from None


def text() -> Parser:
    def parse(value: Any) -> str:
        if isinstance(value, str) and value.strip():
            return value.strip()
        raise Refused("words")

    return parse


def choice(*allowed: str) -> Parser:
    def parse(value: Any) -> str:
        if value in allowed:
            return str(value)
        raise Refused(listed(allowed))

    return parse


def flag() -> Parser:
    """True or False; as strings yes/no, true/false, on/off, 1/0."""
    words = {"yes": True, "true": True, "on": True, "1": True} | dict.fromkeys(("no", "false", "off", "0"), False)

    def parse(value: Any) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip().lower() in words:
            return words[value.strip().lower()]
        raise Refused("yes and no")

    return parse


def whole(least: int) -> Parser:
    def parse(value: Any) -> int:
        found = _float(value)
        if found is not None and found == int(found) and found >= least:
            return int(found)
        raise Refused(f"whole numbers from {least}")

    return parse


def wholes(least: int) -> Parser:
    """Whole numbers from ``least``, as a list or a comma-separated string; '' and 'none' are the empty list."""
    one = whole(least)

    def parse(value: Any) -> tuple[int, ...]:
        if isinstance(value, str):
            value = [] if value.strip().lower() in ("", "none") else value.split(",")
        if isinstance(value, (list, tuple)):
            return tuple(one(part) for part in value)
        raise Refused(f"whole numbers from {least}, separated by commas")

    return parse


def number(least: float, most: float = math.inf, above: bool = False, below: bool = False) -> Parser:
    """A finite number in [least, most].

    Args:
        least: the smallest allowed.
        most: the largest allowed.
        above: leave out ``least`` itself.
        below: leave out ``most`` itself.
    """
    limits = f"above {least:g}" if above else f"from {least:g}"
    if most < math.inf:
        limits += f" to below {most:g}" if below else f" to {most:g}"

    def parse(value: Any) -> float:
        found = _float(value)
        if found is None or found < least or found > most or (above and found == least) or (below and found == most):
            raise Refused(f"numbers {limits}")
        return found

    return parse


def lean(parser: Parser) -> Parser:
    """What ``parser`` accepts, a whole number without its fraction of zero."""

    def parse(value: Any) -> float | int:
        found = parser(value)
        return int(found) if found == int(found) else float(found)

    return parse


def optional(parser: Parser) -> Parser:
    """None, or what ``parser`` accepts; as strings 'none' and 'default' are None."""

    def parse(value: Any) -> Any:
        if value is None or (isinstance(value, str) and value.strip().lower() in ("", "none", "default")):
            return None
        try:
            return parser(value)
        except Refused as error:
            raise Refused(f"{error}, and 'default'") from None

    return parse


def or_word(parser: Parser, word: str) -> Parser:
    """A word, or what ``parser`` accepts."""

    def parse(value: Any) -> Any:
        if value == word:
            return word
        try:
            return parser(value)
        except Refused as error:
            raise Refused(f"{error}, and {word!r}") from None

    return parse


def _float(value: Any) -> float | None:
    """The value as a finite float, or None where it is not one; booleans are not numbers here."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None
