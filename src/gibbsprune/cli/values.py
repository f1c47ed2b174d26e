"""How option values are read: numbers, lists of seeds; one option per field of a recipe and setting of a method."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable
from typing import Any

from ..checks import bad

#: Recipe fields that have an option of their own elsewhere or none at all.
_NOT_OPTIONS = ("name", "epochs")


def refused(text: str, allowed: str) -> argparse.ArgumentTypeError:
    """The sentence of ``checks.bad``, to which the parser adds the option's name."""
    return argparse.ArgumentTypeError(f"is {text!r}: allowed are {allowed}")


def number(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise refused(text, "numbers")
    return found


def whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise refused(text, "whole numbers") from None


def check_counts(options: argparse.Namespace, *names: str) -> None:
    """Refuse counts below 1 among those of the options that were given."""
    for name in names:
        given = getattr(options, name, None)
        if given is not None and given < 1:
            raise bad(f"--{name.replace('_', '-')}", given, "whole numbers from 1")


SEEDS = 10_000  # at most in one command, where more can only be a slip


def seed_list(text: str) -> list[int]:
    """Seeds such as ``0-15`` or ``0,3,7-9``."""
    found: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            some = range(int(first), int(last) + 1) if dash else [int(first)]
            if len(found) + len(some) > SEEDS:
                raise refused(text, f"at most {SEEDS:,} seeds")
            found += some
    except (ValueError, OverflowError):
        found = []
    if not found or len(set(found)) < len(found):
        raise refused(text, "different seeds such as 0-15 or 0,3,7")
    return found


def every(text: str) -> tuple[int, float]:
    """How often to checkpoint: ``5`` epochs or ``60s`` seconds, as (epochs, seconds)."""
    try:
        epochs, seconds = (1, float(text[:-1])) if text.endswith("s") else (int(text), 0.0)
    except ValueError:
        epochs, seconds = 0, 0.0
    if epochs < 1 or not 0 <= seconds < float("inf"):
        raise refused(text, "epochs such as 5 and seconds such as 60s")
    return epochs, seconds


def add_recipe_options(parser: argparse.ArgumentParser) -> None:
    """One option per field of a recipe; the recipe itself reads and checks the value."""
    from ..training.recipes import FIELDS

    group = parser.add_argument_group(
        "recipe fields", "Each overrides one field of the recipe (--show-recipe prints them as they stand)."
    )
    for name, field in FIELDS.items():
        if name not in _NOT_OPTIONS:
            flag = "--" + name.replace("_", "-")
            group.add_argument(flag, dest="recipe_" + name, metavar="X", help=field.meaning.replace("%", "%%"))


def add_setting_options(parser: argparse.ArgumentParser) -> None:
    """One option per setting of the methods; the run itself reads and checks the value."""
    from ..training.methods import METHODS

    group = parser.add_argument_group("method settings", "Each belongs to the methods that its line names.")
    settings: dict[str, dict[str, list[str]]] = {}  # of each setting, what it means to whom
    for method in METHODS.values():
        for name, setting in method.settings.items():
            meaning = setting.meaning.removeprefix(f"{method.name}: ")
            settings.setdefault(name, {}).setdefault(meaning, []).append(method.name)
    for name, meanings in settings.items():
        told = "; ".join(f"{', '.join(owners)}: {meaning}" for meaning, owners in meanings.items())
        flag, help_text = "--" + name.replace("_", "-"), told.replace("%", "%%")
        if name == "ramping":
            group.add_argument(flag, dest="setting_" + name, action="store_const", const=True, help=help_text)
        else:
            metavar = {"from": "RUN|FILE", "weights": "SHA256"}.get(name, "X")
            group.add_argument(flag, dest="setting_" + name, metavar=metavar, help=help_text)


def setting_values(options: argparse.Namespace) -> dict[str, object]:
    """The settings of the method given on the command line; a run's folder as an absolute path."""
    given = {
        name.removeprefix("setting_"): value
        for name, value in vars(options).items()
        if name.startswith("setting_") and value is not None
    }
    if "from" in given:
        given["from"] = os.path.abspath(given["from"])  # a resumed run may start in another folder
    return given


def add_trust(parser: argparse._ActionsContainer) -> None:
    """Whether code that a run's folder names may be run."""
    parser.add_argument("--trust", action="store_true", help="import the network that the run names (module:function)")


def trusting(options: argparse.Namespace, call: Callable[[bool], Any]) -> Any:
    """What ``call`` gives with ``--trust`` or without; where that is not enough, a person at a terminal is asked."""
    from ..training.finished import Untrusted

    try:
        return call(options.trust)
    except Untrusted as error:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise
        print(f"{str(error).partition(';')[0]}.", flush=True)
        if input("Run it? [y/N] ").strip().lower() not in ("y", "yes"):
            raise
        return call(True)


def recipe_changes(options: argparse.Namespace) -> dict[str, str]:
    """The recipe fields given on the command line."""
    return {
        name.removeprefix("recipe_"): value
        for name, value in vars(options).items()
        if name.startswith("recipe_") and value is not None
    }
