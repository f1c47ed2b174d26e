"""The Python examples of the documentation run, and the commands and functions that it names exist."""

import doctest
import importlib
import json
import re
import shlex
from pathlib import Path

import pytest
import torch

import gibbsprune
from gibbsprune.cli import build_parser

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
SOURCES = sorted(path for path in (ROOT / "src" / "gibbsprune").rglob("*.py") if ">>>" in path.read_text("utf-8"))
SHOWN = [".".join(path.relative_to(ROOT / "src").with_suffix("").parts) for path in SOURCES]  # with examples in them


def blocks(page):
    """The code of each block that is marked as Python, with as many lines before it as in the page."""
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"^```python\n(.*?)^```$", text, flags=re.M | re.S):
        yield "\n" * text.count("\n", 0, match.start(1)) + match[1]


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # what Lightning says of torch, and of short trainings
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*pin_memory")
@pytest.mark.parametrize("page", [p for p in PAGES if any(blocks(p))], ids=lambda page: page.name)
def test_examples_run(page, tmp_path, monkeypatch):
    """One after the other, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "example"}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for block in blocks(page):
            exec(compile(block, page.name, "exec"), namespace)


def test_the_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed").use("Agg")
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((ROOT / "examples" / "first_look.ipynb").read_text(encoding="utf-8"))
    assert all(not cell.get("outputs") for cell in notebook["cells"]), "saved without outputs"
    namespace = {"__name__": "notebook"}
    with torch.random.fork_rng():
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), cell["id"], "exec"), namespace)
    assert (tmp_path / "digits.packed").stat().st_size < 30_000


def test_the_page_of_commands_has_every_option(monkeypatch):
    """It is made from the parser when the site is built."""
    pytest.importorskip("mkdocs", reason="MkDocs is not installed")
    monkeypatch.syspath_prepend(ROOT / "docs" / "hooks")
    hook = importlib.import_module("commands")
    text = hook.page(build_parser())
    found = {parser.prog: parser for parser in hook.commands(build_parser())}
    assert {"gibbsprune train", "gibbsprune sweep run", "gibbsprune data get", "gibbsprune export"} <= set(found)
    for part in text.split("\n## ")[1:]:
        parser = found.pop(part.splitlines()[0])
        for action in parser._actions:
            assert all(f"`{option}" in part for option in action.option_strings if option not in ("-h", "--help"))
    assert not found
    assert "==SUPPRESS==" not in text


def commands(page):
    """The commands of each block for a shell, as words."""
    for block in re.findall(r"^```sh\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            yield shlex.split(line, comments=True)


@pytest.mark.parametrize("page", [p for p in PAGES if any(commands(p))], ids=lambda page: page.name)
def test_commands_have_only_options_that_exist(page):
    for words in commands(page):
        if "gibbsprune" in words:
            options, unknown = build_parser().parse_known_args(words[words.index("gibbsprune") + 1 :])
            assert options.command
            assert not unknown, f"{page.name}: {' '.join(words)}"


def extras():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    part = text.partition("[project.optional-dependencies]\n")[2].partition("\n[project.")[0]
    return set(re.findall(r"^(\w+) = \[", part, flags=re.M))


def test_the_extras_that_pages_name_exist():
    for page in PAGES:
        for named in re.findall(r"pip install '(?:gibbsprune|\.)\[([\w,]+)\]'", page.read_text(encoding="utf-8")):
            assert set(named.split(",")) <= extras(), f"{page.name}: {named}"


def test_the_changelog_begins_with_the_version_that_this_is():
    first = re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.M)[1]
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), flags=re.M)[1]
    assert first == f"{gibbsprune.__version__} (tag `v{version}`)"


def test_the_readme_names_every_extra_where_it_says_how_to_install():
    install = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Install")[2].partition("\n## ")[0]
    assert extras() <= set(re.findall(r"`(\w+)`", install))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_section_stands_twice_on_a_page(page):
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ .*$", prose, flags=re.M)
    assert len(headings) == len(set(headings))


def test_the_new_hamiltonian_takes_twenty_lines():
    example = next(blocks(ROOT / "docs" / "adding_a_hamiltonian.md"))
    assert "class ScaleFree" in example
    assert len(example.strip().splitlines()) <= 20


def test_the_new_structure_takes_twenty_lines():
    example = next(blocks(ROOT / "docs" / "adding_a_structure.md"))
    assert "class Lanes" in example
    assert len(example.strip().splitlines()) <= 20


def names_in(page):
    return sorted(set(re.findall(r"`(gibbsprune(?:\.\w+)+)`", page.read_text(encoding="utf-8"))))


@pytest.mark.parametrize("name", sorted({name for page in PAGES for name in names_in(page)}))
def test_what_the_pages_name_exists(name):
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return
    pytest.fail(f"there is no {name}")


def test_theory_names_every_part_of_the_core():
    named = {name.split(".")[1] for name in names_in(ROOT / "docs" / "theory.md")}
    mathematics = {
        "structures",
        "limits",
        "threshold",
        "survivors",
        "graphs",
        "across",
        "hamiltonians",
        "couplings",
        "pairwise",
        "energies",
        "importance",
        "diagnostics",
        "samplers",
        "site",
        "flow",
        "limited",
        "joined",
        "law",
        "budgets",
        "rising",
        "filling",
        "schedules",
        "masking",
        "holding",
        "pruner",
    }
    assert named == mathematics


@pytest.mark.parametrize("module", SHOWN)
def test_doctests(module):
    assert doctest.testmod(importlib.import_module(module)).failed == 0


def test_the_public_functions_have_examples():
    finder = doctest.DocTestFinder()
    found = {test.name for module in SHOWN for test in finder.find(importlib.import_module(module)) if test.examples}
    assert {
        "gibbsprune.threshold.threshold",
        "gibbsprune.threshold.converged_mask",
        "gibbsprune.hamiltonians.energy",
        "gibbsprune.law.sample",
        "gibbsprune.schedules.LogSchedule",
        "gibbsprune.schedules.LinearSchedule",
    } <= found
