"""Sweeps in files: grids, lists, Python functions, runs that follow from results, and mistakes told in a sentence."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest
import torch

from gibbsprune.errors import UserError
from gibbsprune.sweeps import declare
from gibbsprune.sweeps.planner import survey
from gibbsprune.training import RECIPES, RunSpec


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a file and reads the sweep in it."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def written(text: str, name: str = "sweep.yaml", only=()) -> declare.Sweep:
        (tmp_path / name).write_text(text)
        return declare.read(tmp_path / name, only)

    return written


def specs(sweep: declare.Sweep, results=None) -> list[RunSpec]:
    return sweep.chosen(sweep.everything(results or {}))


def test_a_grid_has_every_combination_the_last_thing_varying_fastest(write):
    found = specs(write("base: {model: resnet8, epochs: 5}\ngrid:\n  sparsity: [0.5, 0.75]\n  seed: [0, 1, 2]"))
    assert [(spec.sparsity, spec.seed) for spec in found] == [(p, s) for p in (0.5, 0.75) for s in (0, 1, 2)]
    assert found[0] == RunSpec(model="resnet8", epochs=5, sparsity=0.5)


def test_names_are_those_of_the_command_line(write):
    """Fields of a run, of its recipe, and settings of its method."""
    (found,) = specs(write("base: {recipe: modern}\nruns:\n  - {method: l1, penalty: 1e-4, lr: 1e-2, epochs: 10}"))
    assert found.setting("penalty") == 1e-4
    assert (found.recipe.name, found.recipe.lr, found.epochs) == ("modern", 0.01, 10)
    (coupled,) = specs(write("runs:\n  - {structure: kernel, coupling: 1e-3, sparsity: 5e-1}"))
    assert (coupled.coupling, coupled.sparsity) == (1e-3, 0.5)


def test_a_run_from_another_brings_it_along(write):
    text = "base: {model: resnet8, epochs: 3}\ngrid:\n  method: [magnitude]\n  from: [{method: dense}]\n  seed: [0, 1]"
    found = specs(write(text))
    assert [(spec.method, spec.seed) for spec in found] == [
        ("dense", 0),
        ("magnitude", 0),
        ("dense", 1),
        ("magnitude", 1),
    ]
    assert [spec.setting("from") for spec in found[1::2]] == [spec.name() for spec in found[::2]]
    assert {spec.epochs for spec in found} == {3}


def test_data_are_looked_for_beside_the_file(write, tmp_path):
    (found, held) = specs(write('runs:\n  - {data: own.npz}\n  - {data: "own.npz:heldout=20"}'))
    assert found.data == str(tmp_path / "own.npz")
    assert held.data == f"{found.data}:heldout=20"
    assert found.name() != held.name()
    assert held.name().startswith("own_heldout_20-")


def test_a_python_file_gives_runs(write, tmp_path):
    text = "from gibbsprune.training import RunSpec\ndef runs():\n    for s in range(3):\n        yield RunSpec(seed=s)"
    sweep = write(text, "mine.py")
    assert (sweep.name, [spec.seed for spec in specs(sweep)]) == ("mine", [0, 1, 2])
    assert str(tmp_path) in sys.path, "where the modules of its networks lie"


def test_runs_may_follow_from_results(write):
    text = """
from gibbsprune.training import RunSpec
def runs(results):
    first = RunSpec(model="resnet8")
    yield first
    if first.name() in results and results[first.name()]["agreement"] < 0.9:
        yield first.replace(seed=1)
"""
    sweep = write(text, "mine.py")
    name = RunSpec(model="resnet8").name()
    assert len(specs(sweep)) == len(specs(sweep, {name: {"agreement": 0.95}})) == 1
    assert [spec.seed for spec in specs(sweep, {name: {"agreement": 0.5}})] == [0, 1]


def test_runs_are_chosen_by_their_names(write):
    sweep = write("grid: {seed: [0, 1], sparsity: [0.5, 0.75]}", only=["*-0.5-*s1", "*-s0"])
    assert [(spec.seed, spec.sparsity) for spec in specs(sweep)] == [(0, 0.5), (0, 0.75), (1, 0.5)]
    with pytest.raises(UserError, match=r"^no run of sweep has a name like \*-s9; sweep status shows all$"):
        specs(write("grid: {seed: [0]}", only=["*-s9"]))


def test_the_same_run_counts_once_and_another_of_its_name_is_refused(tmp_path):
    same = declare.of("a sweep", [RunSpec(seed=1), RunSpec(seed=1)])
    assert len(specs(same)) == 1
    two = declare.of("a sweep", [RunSpec(data="/a/x.npz"), RunSpec(data="/b/x.npz")])
    with pytest.raises(UserError, match=r"^a sweep has two different runs with the name x-"):
        specs(two)


PYTHON = "from gibbsprune.training import RunSpec\n"


@pytest.mark.parametrize(
    ("text", "name", "sentence"),
    [
        ("grid: [", "s.yaml", r"s\.yaml, line 1 is not YAML: "),
        ("grid: &a [*a]", "s.yaml", r"grid is .*: allowed are names with their values"),
        ("7", "s.yaml", "a sweep is 7: allowed are names with their values"),
        ("base: {}", "s.yaml", "a sweep has either a grid or a list of runs"),
        ("grid: {seed: [0]}\nruns: [{}]", "s.yaml", "a sweep has either a grid or a list of runs"),
        ("bases: {}\ngrid: {seed: [0]}", "s.yaml", "a sweep has no 'bases'; it has base, and grid or runs"),
        ("grid: {seed: 3}", "s.yaml", "grid: seed is 3: allowed are lists"),
        ("grid: {seed: []}", "s.yaml", "grid: seed is \\[\\]: allowed are lists"),
        ("runs: [3]", "s.yaml", "a run is 3: allowed are names with their values"),
        ("grid: {sparsity: [2]}", "s.yaml", "sparsity is 2"),
        ("grid: {sparsty: [0.5]}", "s.yaml", r"'sparsty' \(did you mean 'sparsity'\?\)"),
        ("grid: {epochs: [0]}", "s.yaml", "epochs is 0: allowed are whole numbers from 1"),
        ("grid: {recipe: [soup]}", "s.yaml", "soup"),
        ("grid: {lr: [fast]}", "s.yaml", "lr is 'fast'"),
        ("base: {data: [1]}\ngrid: {seed: [0]}", "s.yaml", "data is "),
        ("!!python/object/apply:os.system ['true']", "s.yaml", "is not YAML: could not determine a constructor"),
        ("", "s.toml", r"the file of a sweep is .*: allowed are names ending in \.py, \.yaml or \.yml"),
        ("runs = 3", "s.py", r"has no function runs\(\), which would give its runs"),
        ("def runs(a, b): pass", "s.py", "runs takes 2 arguments; it may take one, the results so far"),
        ("x = (", "s.py", r"s\.py: it failed \(SyntaxError"),
        ("\n\n1 / 0", "s.py", r"s\.py, line 3: it failed \(ZeroDivisionError: division by zero\)"),
        ("def runs():\n    return [1][1]", "s.py", r"s\.py, line 2: runs\(\) failed \(IndexError"),
        (f"{PYTHON}def runs():\n    yield RunSpec(sparsity=2)", "s.py", r"s\.py: sparsity is 2"),
        ("def runs():\n    yield 3", "s.py", r"runs\(\) gave a int; it must give RunSpec objects"),
        ("def runs():\n    return []", "s.py", "s has no runs"),
    ],
)
def test_mistakes_are_told_in_one_sentence(write, text, name, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        specs(write(text, name))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.yaml cannot be read: No such file"):
        declare.read(tmp_path / "nowhere.yaml")


def test_without_yaml_the_extra_is_named(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(
        UserError, match=r"needs the package PyYAML; install it with: pip install 'gibbsprune\[sweep\]'"
    ):
        write("grid: {seed: [0]}")


def test_the_example_is_a_sweep_with_every_kind_of_dependency(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = Path(__file__).parents[1] / "examples" / "rehearsal.yaml"
    found = specs(declare.read(file))
    assert {spec.method for spec in found} == {"dense", "gibbs", "magnitude", "reinit"}
    assert {spec.recipe.name for spec in found} == {"digits"} <= RECIPES.keys()


def test_weights_to_start_from_lie_beside_the_file_and_are_in_the_name(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    file = tmp_path / "sweep.yaml"
    file.write_text("base: {data: digits, model: resnet8}\nruns:\n  - {from: trained.safetensors}\n")
    names = []
    for value in (1.0, 2.0):
        safetensors.save_file({"weight": torch.full((2,), value)}, tmp_path / "trained.safetensors")
        (spec,) = declare.read(file).everything({})
        assert spec.setting("from") == str((tmp_path / "trained.safetensors").resolve())
        digest = hashlib.sha256((tmp_path / "trained.safetensors").read_bytes()).hexdigest()
        assert spec.setting("weights") == digest[:12]
        names.append(spec.name())
        found = survey([spec], [spec], (), tmp_path / "work")
        assert found.queue == [spec]
        assert found.ready(spec)
    assert names[0] != names[1]
