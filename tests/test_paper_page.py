"""The page of the paper's evaluation: what it adds to that of any sweep."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import browser
import fake_results
from gibbsprune.threshold import kept_count
from paper import cells, groups, page


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """The page of all cells, and its data."""
    folder = tmp_path_factory.mktemp("page")
    fake_results.write_all(folder / "paper")
    page.write(folder / "index.html", groups.load(folder / "paper"))
    content = re.search(r'type="application/json">(.*?)</script>', (folder / "index.html").read_text())[1]
    return folder / "index.html", json.loads(content)


def test_every_cell_is_there(full):
    found = full[1]["kinds"]
    every = [cell.spec for cell in cells.cells()]
    rounds = [spec for spec in every if spec.method == "lottery" and spec.setting("round") < spec.setting("rounds")]
    assert sum(len(kind["seeds"]) for kind in found) == len(every) - len(rounds)
    assert found[0]["label"] == "Gibbs, linear square"
    assert f"{len(every)} of {len(every)} cells of its evaluation have been run" in full[1]["about"]


def test_the_papers_numbers_stand_beside_ours(full):
    at = {(kind["label"], kind["model"], kind["sparsity"], kind["epochs"]): kind["reference"]
          for kind in full[1]["kinds"] if kind["recipe"] == "paper"}  # fmt: skip
    assert at["Gibbs, linear square", "resnet20", 90, 200] == 87.5
    assert at["Gibbs, linear square", "resnet20", 90, 400] is None
    assert at["random mask", "resnet56", 95, 200] == 84.6
    assert at["dense", "resnet56", 0, 200] == 92.2


def test_runs_are_called_by_their_names():
    tuned = cells.after_dense("resnet20", "magnitude", "weight", tune_rate=1e-4)
    assert page.label(tuned) == "Han et al., tuned at 0.0001"
    assert page.label(cells.changed(tuned, cells.REAL_SHIFT)) == "Han et al. (shift 3.2, tune_rate 0.0001)"
    assert page.label(cells.hotter(cells.run("resnet20"))) == "Gibbs, linear square (beta_end 1e+06)"
    assert page.label(cells.as_printed("resnet20", "filter", "quadratic")) == "Gibbs, quadratic, chromatic"


def test_the_mask_freezes():
    _, _, figure = page.annealing()
    frames = figure["frames"]
    assert (frames[0]["name"], frames[-1]["name"]) == ("0.7", "10,000")
    assert page.annealing()[2] == figure, "the same page every time"
    size, last = (page.SIDE * page.KERNEL) ** 2, [np.array(part["z"]) for part in frames[-1]["data"]]
    counts = {"weight": size, "kernel": page.SIDE**2, "filter": page.SIDE}
    for (kind, sparsity), mask in zip(cells.SPARSITY.items(), last):
        assert mask.mean() == pytest.approx(kept_count(sparsity, counts[kind]) / counts[kind], abs=0.02)
    assert all(line["text"].endswith("100 % settled") for line in frames[-1]["layout"]["annotations"])


@pytest.mark.skipif(browser.find() is None, reason="needs Chromium")
def test_it_runs_in_a_browser(full):
    tab = browser.Browser(browser.find())
    try:
        tab.open(full[0], 390, 900)
        assert tab.errors == []
        assert [address for address in tab.requests if not address.startswith("data:")] == [full[0].as_uri()]
        slider = "document.querySelector('.slider-label').textContent"
        assert tab.evaluate(slider) == "β = 0.7"
        tab.evaluate("Plotly.animate(document.querySelectorAll('section .plot')[3], ['10,000'], {mode: 'immediate'})")
        assert tab.evaluate(slider) == "β = 10,000"
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        assert tab.errors == []
    finally:
        tab.close()
