"""What a sweep is: the runs of a small YAML file, or of a Python file with a function ``runs``.

In YAML, ``base`` is what the runs share, and ``grid`` has a list of values for each thing that varies, of which every
combination is a run (the last thing varies fastest); or ``runs`` is a list of what each run changes. The things are
those of the command line: fields of a run, of its recipe, and settings of its method::

    base: {data: digits, model: resnet8, epochs: 10}
    grid:
      sparsity: [0.5, 0.75, 0.9]
      seed: [0, 1]

``from: {method: dense}`` starts a run from another one like it with these changes, which is trained first.

In Python, ``runs()`` gives :class:`RunSpec` objects, the most important first. As ``runs(results)`` it is called again
after each fleet with the results so far, by the names of their runs: runs may follow from results.
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from .. import data
from ..checks import bad, check_whole
from ..errors import UserError, needed
from ..text import first_line, told
from ..training.finished import identified
from ..training.recipes import FIELDS, Recipe, recipe
from ..training.spec import RunSpec, default_recipe, scale_recipe

LARGEST = 100_000  # runs in one sweep, where more can only be a slip
Results = Mapping[str, dict[str, Any]]

_FIELDS = {one.name for one in fields(RunSpec)} - {"settings"}


@dataclass(frozen=True)
class Sweep:
    """A set of runs, which may depend on the results so far.

    ``path`` is where the modules of its networks are looked for first. ``only`` are patterns of the names of the runs
    that are wanted; none: all.
    """

    name: str
    declared: Callable[[Results], Iterable[RunSpec]]
    path: str | None = None
    only: tuple[str, ...] = field(default=())

    def everything(self, results: Results) -> list[RunSpec]:
        """All its runs, the most important first, each once."""
        found: dict[str, RunSpec] = {}
        for spec in self.declared(results):
            if not isinstance(spec, RunSpec):
                raise UserError(f"{self.name}: runs() gave a {type(spec).__name__}; it must give RunSpec objects")
            if found.setdefault(spec.name(), spec) != spec:
                raise UserError(
                    f"{self.name} has two different runs with the name {spec.name()}; files of data must differ in "
                    "their names, too"
                )
            if len(found) > LARGEST:
                raise UserError(f"{self.name} has more than {LARGEST:,} runs")
        if not found:
            raise UserError(f"{self.name} has no runs")
        return list(found.values())

    def chosen(self, everything: Iterable[RunSpec]) -> list[RunSpec]:
        """The runs that are wanted."""
        if not self.only:
            return list(everything)
        found = [spec for spec in everything if any(fnmatchcase(spec.name(), pattern) for pattern in self.only)]
        if not found:
            raise UserError(f"no run of {self.name} has a name like {' or '.join(self.only)}; sweep status shows all")
        return found


def of(name: str, specs: Iterable[RunSpec]) -> Sweep:
    """A sweep of runs that are known."""
    known = list(specs)
    return Sweep(name, lambda results: known)


def read(file: str | os.PathLike[str], only: Iterable[str] = ()) -> Sweep:
    """The sweep in a file ending in ``.py``, ``.yaml`` or ``.yml``."""
    path = Path(file)
    if path.suffix not in (".py", ".yaml", ".yml"):
        raise bad("the file of a sweep", str(path), "names ending in .py, .yaml or .yml")
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    here = str(path.parent.resolve())
    if here not in sys.path:
        sys.path.insert(0, here)  # where the modules of its networks lie
    declared = _from_python(path) if path.suffix == ".py" else _from_yaml(path, content)
    return Sweep(path.stem, declared, here, tuple(only))


# -- Python ------------------------------------------------------------------------------------------------------------


def _from_python(path: Path) -> Callable[[Results], Iterable[RunSpec]]:
    module_spec = importlib.util.spec_from_file_location(f"gibbsprune_sweep_{path.stem}", path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module
    _calling(path, lambda: module_spec.loader.exec_module(module), "it")  # type: ignore[union-attr]
    function = getattr(module, "runs", None)
    if not callable(function):
        raise UserError(f"{path} has no function runs(), which would give its runs")
    count = len(inspect.signature(function).parameters)
    if count > 1:
        raise UserError(f"{path}: runs takes {count} arguments; it may take one, the results so far")

    def declared(results: Results) -> Iterable[RunSpec]:
        given = (results,) if count else ()
        return _calling(path, lambda: list(function(*given)), "runs()")

    return declared


def _calling(path: Path, function: Callable[[], Any], what: str) -> Any:
    """A user's code, whose mistakes are told in one sentence with their line."""
    try:
        return function()
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except Exception as error:
        trace, line = error.__traceback__, ""
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == str(path):
                line = f", line {trace.tb_lineno}"
            trace = trace.tb_next
        raise UserError(f"{path}{line}: {what} failed ({told(error)})") from error


# -- YAML --------------------------------------------------------------------------------------------------------------


def _from_yaml(path: Path, content: str) -> Callable[[Results], Iterable[RunSpec]]:
    yaml = needed("yaml", str(path), "sweep")
    try:
        found = yaml.safe_load(content)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or first_line(error)
        raise UserError(f"{path}{where} is not YAML: {problem}") from None
    except (RecursionError, ValueError) as error:
        raise UserError(f"{path} is not YAML: {first_line(error)}") from None
    try:
        specs = list(_specs(found, path.parent))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return lambda results: specs


def _specs(found: Any, folder: Path) -> Iterable[RunSpec]:
    parts = _mapping("a sweep", found)
    if unknown := sorted(set(parts) - {"base", "grid", "runs"}):
        raise UserError(f"a sweep has no {unknown[0]!r}; it has base, and grid or runs")
    if ("grid" in parts) == ("runs" in parts):
        raise UserError("a sweep has either a grid or a list of runs")
    base = _mapping("base", parts.get("base") or {})
    for changes in _grid(parts["grid"]) if "grid" in parts else _list("runs", parts["runs"]):
        yield from run_of({**base, **_mapping("a run", changes)}, folder)


def _grid(found: Any) -> Iterable[dict[str, Any]]:
    """Every combination, the last thing varying fastest."""
    values = {name: _list(f"grid: {name}", some) for name, some in _mapping("grid", found).items()}
    return (dict(zip(values, combination)) for combination in itertools.product(*values.values()))


def run_of(values: Mapping[str, Any], folder: Path | None = None) -> list[RunSpec]:
    """A run from flat names and values, as a command line has them; before it the run that it starts from, if any.

    Paths of data are taken from ``folder``.
    """
    before: list[RunSpec] = []
    own = {name: value for name, value in values.items() if name in _FIELDS}
    if not isinstance(own.setdefault("data", "digits"), str):
        raise bad("data", own["data"], "names")
    if folder is not None:
        own["data"] = data.absolute(own["data"], folder)
    rest = {name: value for name, value in values.items() if name not in _FIELDS}
    if isinstance(source := rest.get("from"), Mapping):
        shared = {name: value for name, value in values.items() if name in {*_FIELDS, *FIELDS} - {"method"}}
        before = run_of({**shared, **source}, folder)
        rest["from"] = before[-1].name()
    elif isinstance(source, str) and folder is not None and (folder / source).exists():
        rest["from"] = str((folder / source).resolve())
    own["recipe"] = _recipe(own.pop("recipe", None), own.pop("epochs", None), rest, own["data"])
    for name in ("sparsity", "coupling"):
        own |= {name: _number(own[name])} if name in own else {}
    spec = RunSpec(**own, settings={name: value for name, value in rest.items() if name not in FIELDS})
    path = spec.setting("from")
    return [*before, identified(spec) if path is not None and Path(path).exists() else spec]


def _recipe(named: Any, epochs: Any, rest: Mapping[str, Any], of_data: str) -> Recipe:
    """The recipe by name, over so many epochs, with single fields changed."""
    if named is not None and not isinstance(named, str):
        raise bad("recipe", named, "names, with single fields beside them")
    chosen = default_recipe(of_data) if named is None else recipe(named)
    if epochs is not None:
        chosen = scale_recipe(chosen, check_whole("epochs", epochs))
    return chosen.replace(**{name: value for name, value in rest.items() if name in FIELDS and name != "name"})


def _number(value: Any) -> Any:
    """A number that YAML takes for a word, such as 1e-3."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _mapping(what: str, found: Any) -> dict[str, Any]:
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise bad(what, found, "names with their values")
    return dict(found)


def _list(what: str, found: Any) -> list[Any]:
    if not isinstance(found, list) or not found:
        raise bad(what, found, "lists of one or more")
    return found
