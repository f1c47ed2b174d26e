"""The order of the core's modules: each imports only from those before it (docs/design.md)."""

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "gibbsprune"
ORDER = [
    "errors",
    "checks",
    "files",
    "text",
    "archives",
    "distributed",
    "structures",
    "limits",
    "weights",
    "threshold",
    "survivors",
    "schedules",
    "graphs",
    "across",
    "hamiltonians",
    "couplings",
    "pairwise",
    "energies",
    "importance",
    "samplers",
    "lanes",
    "site",
    "stacks",
    "limited",
    "interacting",
    "joined",
    "law",
    "diagnostics",
    "recurrent",
    "converging",
    "masking",
    "attaching",
    "fading",
    "holding",
    "looking",
    "flow",
    "slices",
    "heads",
    "units",
    "selection",
    "latency",
    "shares",
    "budgets",
    "targets",
    "rising",
    "filling",
    "drawing",
    "summary",
    "recalibration",
    "saving",
    "pruner",
]
FOLDERS = ("structures", "samplers")
FILES = [
    *(PACKAGE / f"{name}.py" for name in ORDER if name not in FOLDERS),
    *sorted(PACKAGE.glob("*_triton.py")),
    *(path for folder in FOLDERS for path in sorted((PACKAGE / folder).glob("*.py"))),
]


def imports(path):
    """The modules of this package that a file imports, as names relative to it, and the others' top names."""
    ours, others = set(), set()
    here = ["gibbsprune", *path.relative_to(PACKAGE).with_suffix("").parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(here[: len(here) - node.level]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "gibbsprune":
                ours.add(name.removeprefix("gibbsprune."))
            else:
                others.add(name.split(".")[0])
    return ours, others


def place(path):
    """A file's name in the order; a file of GPU kernels stands beside its module."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py").removesuffix("_triton")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_those_before_it(path):
    here = place(path)
    for name in imports(path)[0]:
        there = name.split(".")[0].removesuffix("_triton")
        assert there in ORDER, f"{path.name} imports {name}, which is not of the core"
        within = there == here and (here in FOLDERS or name.split(".")[0].endswith("_triton"))
        assert within or ORDER.index(there) < ORDER.index(here), f"{path.name} imports {name}"


@pytest.mark.parametrize("path", sorted((PACKAGE / "samplers").glob("*.py")), ids=lambda path: path.name)
def test_samplers_know_nothing_of_weights_and_layers(path):
    outside = {name.split(".")[0] for name in imports(path)[0]} - {"samplers", "graphs"}
    assert outside <= ({"checks", "hamiltonians", "threshold"} if path.name == "__init__.py" else set())


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_core_needs_torch_and_numpy_only(path):
    allowed = {"torch", "numpy"} | ({"triton"} if path.name.endswith("_triton.py") else set())
    allowed |= {"safetensors"} if path.name == "files.py" else set()  # imported where it is used
    assert imports(path)[1] - sys.stdlib_module_names <= allowed


def test_the_page_has_the_same_order():
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", text, flags=re.M) == ORDER
    files = {place(path) for path in PACKAGE.glob("*.py") if not path.name.startswith("__")}
    assert files | set(FOLDERS) == set(ORDER)


def test_imports_within_the_package_are_relative():
    for path in PACKAGE.rglob("*.py"):
        froms = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
        named = [node.module for node in froms if not node.level and str(node.module).split(".")[0] == "gibbsprune"]
        assert not named or path.name == "__main__.py", path


def test_the_picture_shows_what_is_built_on_what():
    spec = importlib.util.spec_from_file_location("house", ROOT / "docs" / "img" / "house.py")
    house = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(house)
    drawn = (ROOT / "docs" / "img" / "house.svg").read_text(encoding="utf-8")
    found = house.needs()
    assert drawn == house.drawing(found), "python docs/img/house.py draws it anew"
    assert found["core"] == set()
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    assert all(f"**{name}/**" in page for name in {*folders, "paper"})


def test_no_file_of_the_core_is_long():
    for path in FILES:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 320, path.name


def test_importing_the_package_loads_no_training():
    script = "import sys, gibbsprune; print([name for name in sys.modules if name.startswith('gibbsprune.training')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


TRAINING = [path for path in sorted((PACKAGE / "training").rglob("*.py")) if path.name != "__init__.py"]


def test_imports_of_training_go_one_way():
    """When modules are loaded; what is for types only, or is loaded where it is used, does not count."""
    needs = {}
    for path in TRAINING:
        here = ["gibbsprune", *path.relative_to(PACKAGE).with_suffix("").parts]
        tree = ast.parse(path.read_text(encoding="utf-8"))
        froms = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.level]
        bases = [(".".join(here[: len(here) - node.level]), node) for node in froms]
        names = {f"{base}.{node.module}" if node.module else base for base, node in bases}
        names |= {
            ".".join(filter(None, [base, node.module, alias.name])) for base, node in bases for alias in node.names
        }
        needs[".".join(here)] = names
    done: set[str] = set()
    while ready := [name for name in needs if name not in done and not needs[name] & (needs.keys() - done)]:
        done |= set(ready)
    assert not needs.keys() - done, "these import each other"
