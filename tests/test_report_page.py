"""The interactive page in a real browser: it loads, its controls work, and it fits on a phone."""

from __future__ import annotations

import os

import pytest

import browser
import fake_results
from gibbsprune.experiments import paper, store, suite
from gibbsprune.experiments.report import groups, page

CELLS = len(paper.cells())
PATH = browser.find()
pytestmark = pytest.mark.skipif(PATH is None, reason="needs Chromium")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The page of a complete suite, of one with a single result, and of another suite."""
    folder = tmp_path_factory.mktemp("page")
    fake_results.write_all(folder / "paper")
    (folder / "full.html").write_text(page.page_text(groups.load(folder / "paper"), folder / "paper"))
    (folder / "few").mkdir()
    name = "cifar10-resnet20-gibbs-weight-square-0.9-s0.json"
    (folder / "few" / name).write_bytes((folder / "paper" / name).read_bytes())
    (folder / "few.html").write_text(page.page_text(groups.load(folder / "few"), folder / "few"))
    for spec in (cell.spec for cell in suite.rehearsal()):
        store.write(folder / "other", spec, fake_results.result(spec))
    (folder / "other.html").write_text(page.page_text(groups.load(folder / "other"), folder / "other"))
    return folder


@pytest.fixture(scope="module")
def chromium():
    opened = browser.Browser(PATH)
    yield opened
    opened.close()


@pytest.fixture
def full(chromium, made):
    chromium.open(made / "full.html")
    return chromium


def picture(tab) -> str:
    return tab.evaluate("document.getElementById('plot').innerHTML")


def text(tab, name: str) -> str:
    return tab.evaluate(f"document.getElementById('{name}').textContent")


def test_it_loads_without_errors_or_requests(full, made):
    assert full.errors == []
    assert full.requests == [(made / "full.html").as_uri()]
    assert f"{CELLS} of {CELLS} cells have been run." in text(full, "count")
    assert full.evaluate("document.querySelectorAll('.mark').length") > 10


def test_every_choice_draws_something_of_its_own(full):
    seen = {picture(full)}
    for control, values in {
        "metric": ["lost", "recalibrated", "nonzero", "agreement", "accuracy"],
        "axis": ["sparsity"],
        "structure": ["kernel", "filter"],
        "model": ["resnet56"],
        "recipe": ["modern"],
    }.items():
        for value in values:
            full.choose(control, value)
            drawn = picture(full)
            assert drawn not in seen or value == "accuracy", (control, value)
            assert "NaN" not in drawn
            assert "undefined" not in drawn
            seen.add(drawn)
    assert "not run" in picture(full), "filters were not run with the recipe modern"
    assert text(full, "layers") == "not run"
    full.choose("structure", "weight")
    assert full.evaluate("document.querySelectorAll('.mark').length") == 6
    assert full.errors == []


def test_methods_stand_side_by_side(full):
    """Within the plot, and each at a place of its own, so that equal accuracies do not hide one another."""
    for width in (375, 1000):
        full.size(width, 900)
        full.evaluate("draw()")
        places = full.evaluate(
            "[...document.querySelectorAll('.mark .ring')].map((ring) => Number(ring.getAttribute('cx')))"
        )
        labels = full.evaluate("shown().map((c) => `${c.label} ${c.epochs} ${c.target}`)")
        by_epochs = full.evaluate("shown().map((c) => c.epochs)")
        methods = {(epochs, label.rsplit(" ", 2)[0]) for epochs, label in zip(by_epochs, labels)}
        assert len({round(place, 3) for place in places}) == len(methods) > 10
        assert min(places) > 46
        assert max(places) < full.evaluate("document.querySelector('#plot svg').viewBox.baseVal.width") - 14


def test_another_suite_is_shown_as_what_it_is(chromium, made):
    chromium.open(made / "other.html")
    header = chromium.evaluate("document.querySelector('header p').textContent")
    assert header.startswith("digits, test accuracy")
    assert header.endswith("4 runs, none of them a cell of the paper's.")
    assert chromium.evaluate("document.querySelectorAll('.mark').length") == 3
    chromium.choose("share", "usual")
    assert "not run at the paper's sparsity; choose all" in picture(chromium)
    assert chromium.errors == []


def test_the_papers_numbers_can_be_hidden(full):
    assert full.evaluate("document.querySelectorAll('.star').length") > 3
    full.evaluate("document.getElementById('stars').click()")
    assert full.evaluate("document.querySelectorAll('.star').length") == 0


def test_methods_can_be_hidden_and_shown_again(full):
    names = "[...document.querySelectorAll('#legend button')].map((b) => b.textContent)"
    before, listed = picture(full), full.evaluate(names)
    press = (
        "[...document.querySelectorAll('#legend button')].find((b) => b.textContent === 'IMP with rewinding').click()"
    )
    full.evaluate(press)
    marks = full.evaluate("[...document.querySelectorAll('.mark')].map((m) => m.getAttribute('aria-label'))")
    assert marks
    assert not any(mark.startswith("IMP") for mark in marks)
    assert full.evaluate(names) == listed, "what is hidden stays in the list"
    assert full.evaluate("document.activeElement.getAttribute('aria-pressed')") == "false"
    full.evaluate(press)
    assert picture(full) == before
    full.evaluate("state.hidden = new Set(data.labels); draw()")
    assert "all are hidden" in picture(full)
    assert full.errors == []


def test_a_close_view_leaves_far_results_at_its_edge(full):
    """By arrows that can be pointed at; where all are shown there are none."""
    far = "shown().filter((c) => c.accuracy < Math.max(...shown().map((d) => d.accuracy)) - 15).length"
    full.evaluate("shown()[0].accuracy = 40; draw()")
    assert full.evaluate(far) >= 1
    arrows = "document.querySelectorAll('.mark .beyond').length"
    assert full.evaluate(arrows) >= full.evaluate(far)
    at = "[...document.querySelectorAll('.mark .ring')].map((ring) => Number(ring.getAttribute('cy')))"
    height = full.evaluate("document.querySelector('#plot svg').viewBox.baseVal.height")
    assert all(0 < place <= height - 40 for place in full.evaluate(at))
    full.choose("metric", "lost")
    assert full.evaluate(arrows) >= 1
    assert all(26 <= place <= height - 40 for place in full.evaluate(at))
    full.evaluate("document.getElementById('close').click()")
    assert full.evaluate(arrows) == 0
    full.choose("metric", "agreement")
    assert full.evaluate("document.getElementById('close').disabled")
    assert full.errors == []


def test_a_marker_tells_its_details_and_shows_its_layers(full):
    place = full.evaluate(
        "(() => { const marks = [...document.querySelectorAll('.mark')];"
        "const mark = marks.find((m) => m.getAttribute('aria-label').startsWith('IMP'));"
        "const box = mark.querySelector('.ring').getBoundingClientRect();"
        "return {x: box.x + box.width / 2, y: box.y + box.height / 2, label: mark.getAttribute('aria-label')}; })()"
    )
    full.move(place["x"], place["y"])
    assert text(full, "details") == place["label"]
    assert "parameters left" in place["label"]
    full.click(place["x"], place["y"])
    chosen = full.evaluate("document.getElementById('cell').selectedOptions[0].textContent")
    assert place["label"].startswith(chosen)
    assert full.evaluate("document.querySelectorAll('.layer').length") == 20
    assert full.evaluate("document.querySelectorAll('.mark.chosen').length") == 1


def test_markers_can_be_reached_by_keyboard(full):
    full.evaluate("document.querySelectorAll('.mark')[3].focus()")
    label = full.evaluate("document.activeElement.getAttribute('aria-label')")
    assert text(full, "details") == label
    for kind in ("keyDown", "keyUp"):
        full.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13)
    assert label.startswith(full.evaluate("document.getElementById('cell').selectedOptions[0].textContent"))


def test_the_slider_freezes_the_mask(full):
    pixels = "document.getElementById('mask').toDataURL()"
    frames, agreements = set(), []
    last = int(full.evaluate("document.getElementById('beta').max"))
    for at in (0, last // 2, last):
        full.choose("beta", str(at))
        frames.add(full.evaluate(pixels))
        agreements.append(float(text(full, "frame").split(" % of the weights")[0].split(", ")[-1]))
    assert len(frames) == 3
    assert agreements == sorted(agreements)
    assert agreements[-1] == 100.0
    assert "β = 10,000 (epoch 128" in text(full, "frame")
    full.choose("law", "filter")
    assert full.evaluate(pixels) not in frames


def test_the_annealing_plays(full):
    before = full.evaluate("document.getElementById('beta').value")
    full.evaluate("document.getElementById('play').click()")
    later = full.evaluate("new Promise((done) => setTimeout(() => done(document.getElementById('beta').value), 1000))")
    assert int(later) > int(before)
    assert text(full, "play") == "Stop"
    full.evaluate("document.getElementById('play').click()")
    assert text(full, "play") == "Play"


@pytest.mark.parametrize("name", ["full", "few"])
@pytest.mark.parametrize("width", [320, 375, 1440])
def test_it_fits_on_every_screen(chromium, made, name, width):
    chromium.open(made / f"{name}.html", width, 812)
    assert chromium.evaluate("innerWidth") == width
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    small = chromium.evaluate(
        "[...document.querySelectorAll('select, button, input[type=range]')]"
        ".filter((e) => e.getBoundingClientRect().height < 32).map((e) => e.id)"
    )
    assert small == [], "too small to tap"
    size = chromium.evaluate("parseFloat(getComputedStyle(document.querySelector('#plot text')).fontSize)")
    scale = chromium.evaluate(
        "(() => { const s = document.querySelector('#plot svg'); return s.clientWidth / s.viewBox.baseVal.width; })()"
    )
    assert size * scale >= 11, "too small to read"
    assert chromium.errors == []
    if folder := os.environ.get("SCREENSHOTS"):
        chromium.screenshot(made.__class__(folder) / f"{name}-{width}.png")
