"""A comparison of methods: the sweep that it is, and the folder it leaves.

``magnitude``, ``filter-l1``, ``thinet`` and ``lr-rewinding`` start from the comparison's dense run of the same seed,
``reinit`` from the masks of its Gibbs run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checks import bad, check_one_of
from ..errors import UserError
from ..schedules import LAWS
from ..structures import as_structure
from ..training.methods import METHODS, method
from ..training.spec import RunSpec
from . import declare, results
from .drive import Driver
from .orders import Orders

#: At most so many runs are fused into one fleet.
LARGEST = 32

#: Trained besides the methods themselves.
VARIANTS = {
    "gibbs": ("gibbs:law=annealed",),
    "targeted-dropout": ("targeted-dropout:ramping", "targeted-dropout:ramp=authors"),
}

#: Methods that can share the dense run.
FROM_DENSE = ("magnitude", "filter-l1", "thinet", "lr-rewinding")


@dataclass(frozen=True)
class Entry:
    """One line of a comparison: a method with its settings, such as ``lottery:rounds=1`` or ``gibbs:law=annealed``."""

    label: str
    method: str
    stretch: int = 1
    settings: tuple[tuple[str, str], ...] = ()
    law: str | None = None

    @staticmethod
    def read(text: str) -> Entry:
        """From ``name:setting=value:…``; a setting without a value is ``yes``."""
        name, *parts = [part.strip() for part in text.split(":")]
        method(name)  # refuses an unknown one
        split = [part.partition("=") for part in parts]
        given = {key.replace("-", "_"): value if equals else "yes" for key, equals, value in split}
        stretch = given.pop("stretch", "1")
        if not stretch.isdecimal() or int(stretch) < 1:
            raise bad(f"stretch in {text!r}", stretch, "whole numbers from 1")
        law = given.pop("law", None) if name == "gibbs" else None
        if law is not None:
            check_one_of(f"law in {text!r}", law, LAWS)
        return Entry(text.strip(), name, int(stretch), tuple(given.items()), law)


def choose(structure: str, wanted: Sequence[str] | None = None) -> list[Entry]:
    """The lines of a comparison: those wanted, else all methods that have the structure.

    ``dense`` is always among them, as the baseline, and where ``reinit`` is, ``gibbs`` is.
    """
    if wanted is None:
        kind = as_structure(structure).name
        names = [name for name, how in METHODS.items() if kind in how.structures or not how.prunes]
        wanted = [text for name in names for text in (name, *VARIANTS.get(name, ()))]
    entries = [Entry.read(text) for text in wanted]
    for i, entry in enumerate(entries):
        if entry in entries[:i]:
            raise UserError(f"{entry.label} is named twice")
    names = [entry.method for entry in entries]
    if "reinit" in names and "gibbs" not in names:
        entries.insert(0, Entry.read("gibbs"))
    if not any((entry.method, entry.stretch) == ("dense", 1) for entry in entries):
        entries.insert(0, Entry.read("dense"))
    return entries


@dataclass(frozen=True)
class Compared:
    """One run of a comparison, and the run that it starts from."""

    entry: Entry
    spec: RunSpec
    source: RunSpec | None = None

    def seconds(self, found: Mapping[str, dict[str, Any]]) -> float:
        """The run's share of its fleet's time, and that of the run that it continues."""
        continued = self.source is not None and self.entry.method in FROM_DENSE
        names = [self.spec.name(), *([self.source.name()] if continued and self.source is not None else [])]
        return sum(found[name]["seconds"] / found[name]["fleet"] for name in names)


def runs(entries: Sequence[Entry], base: RunSpec, seeds: Sequence[int]) -> list[Compared]:
    """The runs of every entry and seed; ``base`` has the data, network, structure, sparsity and recipe."""
    found: dict[tuple[Entry, int], Compared] = {}

    def compared(entry: Entry, seed: int) -> Compared:
        if (entry, seed) not in found:
            needed = _needs(entry, entries)
            source = None if needed is None else compared(needed, seed).spec
            settings = {**dict(entry.settings), **({} if source is None else {"from": source.name()})}
            recipe = base.recipe if entry.law is None else base.recipe.replace(law=entry.law)
            spec = base.replace(method=entry.method, stretch=entry.stretch, seed=seed, settings=settings, recipe=recipe)
            found[entry, seed] = Compared(entry, spec, source)
        return found[entry, seed]

    first: dict[RunSpec, Compared] = {}
    for one in (compared(entry, seed) for seed in seeds for entry in entries):
        first.setdefault(one.spec, one)  # a law may be named that the recipe has anyway
    return list(first.values())


def train(compared: Sequence[Compared], out: Path, device: str) -> Mapping[str, dict[str, Any]]:
    """Trains what is not trained yet; the results by the names of the runs.

    Results go into ``out/results``, the folder of each run is ``out/runs/<name>``.
    """
    orders = Orders(out / "results", out, device, at_most=LARGEST, evaluate_every=1, checkpoint_seconds=10.0)
    Driver(declare.of("the comparison", [one.spec for one in compared]), orders).run()
    return results.Found(orders.results)


def _needs(entry: Entry, entries: Sequence[Entry]) -> Entry | None:
    """The entry whose runs this one starts from."""
    if "from" in dict(entry.settings):
        return None
    if entry.method == "reinit":
        return next(other for other in entries if other.method == "gibbs")
    if entry.method in FROM_DENSE and entry.stretch == 1:
        return next(other for other in entries if (other.method, other.stretch) == ("dense", 1))
    return None
