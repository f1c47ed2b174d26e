"""docs/scaling.md shows the tables that the benchmark has written, and the benchmark's models have their real sizes."""

import importlib
import json
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
TABLES = sorted((ROOT / "benchmarks" / "tables").glob("scaling-*.json"))


@pytest.fixture
def scaling(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("scaling")


def test_the_models_have_their_real_sizes(scaling):
    # 25 557 032 parameters less batch norm, the first convolution and the classifier's bias
    assert scaling.weights_of(scaling.resnet50()) == 25_557_032 - 53_120 - 9_408 - 1_000
    assert scaling.weights_of(scaling.transformer()) == 16 * (2 * 2048**2 + 2 * 512 * 2048 + 3 * 8192 * 2048)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_the_page_shows_what_was_measured(scaling, path):
    page = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    result = json.loads(path.read_text(encoding="utf-8"))
    assert result["device"].split(",")[0] in page
    for row in scaling.rows(result):
        assert row in page


@pytest.mark.parametrize("layers", ["together", "each"])
@pytest.mark.parametrize("structure", ["weight", "kernel", "filter"])
def test_a_small_model_is_measured(scaling, structure, layers):
    clock = scaling.make_clock(torch.device("cpu"), "cpu")
    shapes = Counter({(8, 4, 3, 3): 2, (5, 8): 1})
    found = scaling.model_seconds(shapes, layers, structure, torch.device("cpu"), 1, clock)
    assert list(found) == list(scaling.BETAS)
    assert all(seconds > 0 for seconds in found.values())
    assert min(found.values()) <= scaling.over_the_schedule(found) <= max(found.values())


@pytest.mark.parametrize(("layers", "laws"), [("together", [3]), ("each", [1, 1])])
def test_layers_are_drawn_together_or_each_shape_once(scaling, monkeypatch, layers, laws):
    made = []

    class Counted(scaling.Law):
        def __init__(self, sites):
            made.append(len(sites))
            super().__init__(sites)

    monkeypatch.setattr(scaling, "Law", Counted)
    shapes = Counter({(8, 4, 3, 3): 2, (5, 8): 1})
    found = scaling.model_seconds(shapes, layers, "weight", torch.device("cpu"), 1, lambda draw: (draw(), 1.0)[1])
    assert made == laws
    assert found == dict.fromkeys(scaling.BETAS, 1.0 if layers == "together" else 3.0)


def test_the_script_writes_how_layers_were_drawn_and_shows_its_file(scaling, monkeypatch, tmp_path, capsys):
    small = {**scaling.MODELS["ResNet-50, ImageNet"], "shapes": Counter({(8, 4, 3, 3): 2})}
    monkeypatch.setattr(scaling, "MODELS", {"small": small})
    monkeypatch.setattr(scaling, "matmul_speed", lambda *_: 1e12)
    threads = torch.get_num_threads()
    out = tmp_path / "scaling.json"
    for arguments, layers in (["--layers", "together"], "together"), ([], "each"):
        monkeypatch.setattr(sys, "argv", ["scaling.py", "--rounds", "1", *arguments, "--out", str(out)])
        scaling.main()
        result = json.loads(out.read_text(encoding="utf-8"))
        assert result["layers"] == layers
        assert result["models"]["small"]["weights"] == 576
    torch.set_num_threads(threads)
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["scaling.py", "--show", str(out)])
    scaling.main()
    assert capsys.readouterr().out.splitlines() == scaling.rows(result)
