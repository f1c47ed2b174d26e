"""The interactive page in a real browser: it loads, its controls work, and it fits on a phone."""

from __future__ import annotations

import itertools
import os

import pytest

import browser
import fake_results
from gibbsprune.experiments import store, suite
from paper import cells, groups, page

CELLS = len(cells.cells())
PATH = browser.find()
pytestmark = pytest.mark.skipif(PATH is None, reason="needs Chromium")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The page of a complete suite, of one with a single result, and of another suite."""
    folder = tmp_path_factory.mktemp("page")
    fake_results.write_all(folder / "paper")
    (folder / "full.html").write_text(page.page_text(groups.load(folder / "paper")))
    (folder / "few").mkdir()
    name = "cifar10-resnet20-gibbs-weight-square-0.9-s0.json"
    (folder / "few" / name).write_bytes((folder / "paper" / name).read_bytes())
    (folder / "few.html").write_text(page.page_text(groups.load(folder / "few")))
    for spec in (cell.spec for cell in suite.rehearsal()):
        store.write(folder / "other", spec, fake_results.result(spec))
    (folder / "other.html").write_text(page.page_text(groups.load(folder / "other")))
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


def combinations(tab):
    """Every pair of metric and axis, with all sparsities."""
    tab.choose("share", "all")
    for axis in ("sparsity", "epochs"):
        tab.choose("axis", axis)
        for metric in ("accuracy", "lost", "recalibrated", "nonzero", "agreement"):
            tab.choose("metric", metric)
            yield axis, metric


MARKS = (
    "document.getElementById('plot').scrollIntoView({block: 'center'}),"
    "[...document.querySelectorAll('.mark')].map((mark) => {"
    "const box = mark.querySelector('.ring').getBoundingClientRect();"
    "return [box.x + box.width / 2, box.y + box.height / 2, mark.getAttribute('aria-label')]; })"
)


@pytest.mark.parametrize("width", [390, 1200])
def test_every_marker_can_be_pointed_at(chromium, made, width):
    chromium.open(made / "full.html", width, 900)
    for chosen in combinations(chromium):
        marks = chromium.evaluate(MARKS)
        assert len(marks) == chromium.evaluate("shown().length") > 30
        places = sorted(x for x, _, _ in marks)
        assert min(b - a for a, b in itertools.pairwise(places)) > 3, chosen
        for x, y, label in marks:
            chromium.move(x, y)
            assert text(chromium, "details") == label, chosen
    assert chromium.errors == []


def test_every_marker_can_be_clicked_tapped_and_focused(chromium, made):
    """Where all have the same agreement, and stand closest to one another."""
    chromium.open(made / "full.html", 390, 900)
    chromium.choose("axis", "sparsity")
    chromium.choose("metric", "agreement")
    chosen = "document.querySelector('.mark.chosen').getAttribute('aria-label')"
    marks = chromium.evaluate(MARKS)
    for number, (x, y, label) in enumerate(marks):
        chromium.click(x, y)
        assert chromium.evaluate("document.querySelector('.mark.near').getAttribute('aria-label')") == label
        assert chromium.evaluate(chosen) == text(chromium, "details") == label
        x, y, label = marks[-1 - number]
        chromium.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        chromium.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        assert chromium.evaluate(chosen) == text(chromium, "details") == label
    chromium.evaluate("document.querySelectorAll('.mark')[0].focus()")
    for _, _, label in marks:
        assert text(chromium, "details") == label
        for kind in ("keyDown", "keyUp"):
            chromium.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
    chromium.move(5, 5)
    assert chromium.evaluate("document.querySelectorAll('.mark.near').length") == 0
    assert chromium.errors == []


@pytest.mark.parametrize("width", [320, 390, 1200])
def test_the_axes_are_labelled(chromium, made, width):
    """From the first step to the last, with no share above 100 %, and no label cut off or on another."""
    chromium.open(made / "full.html", width, 900)
    boxes = (
        "[...document.querySelectorAll('#plot text[text-anchor=%s]')].map((e) => "
        "{ const b = e.getBoundingClientRect(); return [e.textContent, b.left, b.right]; })"
    )
    for axis, metric in combinations(chromium):
        below = chromium.evaluate(boxes % "middle")
        steps = sorted(set(chromium.evaluate("shown().map(axes[state.axis].get)")))
        assert [float(below[0][0]), float(below[-1][0])] == [steps[0], steps[-1]], (axis, metric)
        assert all(a[2] < b[1] for a, b in itertools.pairwise(below)), (axis, metric)
        beside = chromium.evaluate(boxes % "end")[:-1]  # the last is the axis's name
        assert len(beside) >= 2
        assert min(left for _, left, _ in beside) >= chromium.evaluate("document.getElementById('plot').offsetLeft")
        if metric not in ("nonzero", "lost"):
            assert max(float(value) for value, _, _ in beside) <= 100


def test_the_table_lists_what_is_shown(full):
    rows = "[...document.querySelectorAll('#table tr')].map((r) => [...r.children].map((c) => c.textContent))"
    full.evaluate("document.querySelector('#legend button').click()")
    hidden = full.evaluate("document.querySelector('#legend button').textContent")
    head, *body = full.evaluate(rows)
    assert head == ["method", "sparsity, %", "epochs", "test accuracy, %", "± over seeds", "paper", "seeds"]
    assert len(body) == full.evaluate("document.querySelectorAll('.mark').length") > 10
    assert hidden not in [row[0] for row in body]
    cells = full.evaluate("shown().map((c) => [c.label, String(c.epochs), c.deviation, c.paper])")
    wanted = {(label, epochs): (deviation, paper) for label, epochs, deviation, paper in cells}
    for label, _, epochs, _, deviation, theirs, _ in body:
        numbers = tuple(float(number) if number else None for number in (deviation, theirs))
        assert numbers == pytest.approx(wanted[label, epochs], abs=0.0051)
    full.evaluate("document.getElementById('stars').click()")
    assert "paper" not in full.evaluate(rows)[0]
    full.choose("metric", "nonzero")
    assert full.evaluate(rows)[0] == ["method", "sparsity, %", "epochs", "parameters left, thousands", "seeds"]
    full.evaluate("state.hidden = new Set(data.labels); draw()")
    assert len(full.evaluate(rows)) == 1


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
