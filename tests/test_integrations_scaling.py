"""docs/scaling.md shows the tables that the benchmark has written, and the benchmark's models have their real sizes."""

import importlib
import json
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


@pytest.mark.parametrize("structure", ["weight", "kernel", "filter"])
def test_a_small_layer_is_measured(scaling, structure):
    clock = scaling.make_clock(torch.device("cpu"), "cpu")
    found = scaling.draw_seconds((8, 4, 3, 3), structure, torch.device("cpu"), 1, clock)
    assert list(found) == list(scaling.BETAS)
    assert all(seconds > 0 for seconds in found.values())
    assert min(found.values()) <= scaling.over_the_schedule(found) <= max(found.values())
