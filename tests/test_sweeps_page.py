"""The page of a sweep, also in a browser: it loads, every run is in reach, its controls work, it fits on a phone."""

from __future__ import annotations

import copy
import itertools
import os
import sys
import time
from pathlib import Path

import pytest

import browser
import fake_results
from gibbsprune.errors import UserError
from gibbsprune.sweeps import page
from gibbsprune.training.spec import RunSpec

CURVE = [
    {"epoch": e, "loss": 1 / e, "train_accuracy": 0.9, "lr": 0.1, "beta": 10.0 * e, "agreement": None,
     "test_accuracy": 0.8 + e / 100, "test_loss": float("nan")} for e in (1, 2, 3)
]  # fmt: skip
HOSTILE = "</script><script>document.title = 'taken'</script><!--<script>/*script*/<b>bold</b>&lt;"


def run(method: str = "gibbs", accuracy: float = 0.9, **options) -> dict:
    spec = RunSpec("digits", options.pop("model", "resnet8"), method, **options)
    return fake_results.record(spec, accuracy, curve=CURVE)


def sweep() -> list[dict]:
    """Three methods, sparsities, lengths and seeds, a coupling that is varied, dense networks, one bad result."""
    found = [run("dense", 0.98, seed=seed) for seed in (0, 1)]
    for i, sparsity in enumerate((0.5, 0.9, 0.95)):
        for stretch in (1, 2):
            same = {"sparsity": sparsity, "stretch": stretch}
            found += [run("gibbs", 0.97 - 0.01 * i + 0.002 * seed, seed=seed, **same) for seed in (0, 1, 2)]
            found += [run(method, 0.93 - 0.02 * i, **same) for method in ("random-mask", "l1")]
    found.append(run("targeted-dropout", 0.4))
    found += [run(structure="kernel", coupling=c, accuracy=0.9 + c) for c in (0.01, 0.02, 0.05)]
    found.append(run(model="resnet20"))
    return found


def uneven() -> list[dict]:
    record = copy.deepcopy(run())
    for i, layer in enumerate(record["layers"]):
        layer |= {"kept": layer["weights"] // (i + 2), "sparsity": 1 - 1 / (i + 2)}
    return [record, run("l1")]


# -- data --------------------------------------------------------------------------------------------------------------


def kinds(results: list[dict], **options) -> list[dict]:
    return page.page_data(results, **options)["kinds"]


def test_seeds_are_one_kind():
    found = kinds([run(accuracy=value, seed=seed) for seed, value in ((2, 0.9), (0, 0.92))])
    assert len(found) == 1
    assert found[0]["seeds"] == [[0, 92.0], [2, 90.0]]
    assert (found[0]["accuracy"], found[0]["deviation"]) == (pytest.approx(91), pytest.approx(2**0.5))
    assert [len(curve) for curve in found[0]["curves"]] == [len(page.CURVE)] * 2


def test_runs_are_called_by_what_was_varied():
    """What most have is not named; what is an axis can be left out by the page."""
    drawn = RunSpec("digits", "resnet8", hamiltonian="square").recipe
    same = [run(structure="kernel", coupling=c) for c in (0.01, 0.05)]
    assert [kind["parts"] for kind in kinds(same)] == [[["coupling", "0.01"]], [["coupling", "0.05"]]]
    assert [kind["axes"] for kind in kinds(same)] == [{"coupling": 0.01}, {"coupling": 0.05}]
    recipe = RunSpec("digits", "resnet8").recipe
    shifts = [run(recipe=recipe.replace(shift=shift)) for shift in (0, 1)]
    assert [kind["parts"] for kind in kinds(shifts)] == [[["shift", "0"]], [["shift", "1"]]], "nothing is a number, too"
    laws = [run(sparsity=p) for p in (0.5, 0.6)] + [run(hamiltonian="square")]
    assert [kind["parts"] for kind in kinds(laws)] == [[], [], [["law", "annealed"]]], "not what follows from it"
    mostly = [run(sparsity=p, recipe=drawn) for p in (0.5, 0.6)] + [run(hamiltonian="abs")]
    assert [kind["parts"] for kind in kinds(mostly)] == [[], [], [["hamiltonian", "abs"]]]
    assert kinds(mostly, label=lambda spec: "mine")[2]["parts"] == []
    ramping = [run("targeted-dropout", settings={"ramping": value}) for value in (True, False)]
    assert [kind["parts"] for kind in kinds(ramping)] == [[["ramping", ""]], []]
    assert not any(kind["parts"] for kind in kinds([run(), run(stretch=2), run("l1"), run(structure="kernel")]))


def test_a_run_stands_beside_the_dense_network_that_was_trained_alike():
    changed = RunSpec("digits", "resnet8", "dense").recipe.replace(shift=2)
    hot = changed.replace(shift=RunSpec("digits", "resnet8").recipe.shift, beta_end=1e6, law="annealed")
    found = kinds([run("dense", recipe=changed), run("dense"), run("dense", stretch=2), run(), run(recipe=changed),
                   run(recipe=hot), run(stretch=2), run(model="resnet20")])  # fmt: skip
    assert [kind["beside"] for kind in found[3:]] == [1, 0, 1, 2, None]


def test_rounds_that_others_follow_are_left_out():
    first = run("lottery", settings={"rounds": 1, "round": 0})
    last = run("lottery", settings={"rounds": 1, "round": 1, "from": first["name"]})
    assert len(kinds([first, last])) == 1


def test_layers_are_there_only_where_they_differ():
    assert [bool(kind["layers"]) for kind in kinds(uneven())] == [True, False]


def test_mistakes_are_told(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="there are no results to show"):
        page.write_page(tmp_path / "index.html", [])
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(UserError, match="the page needs the package plotly; install it with: pip install 'gibbsprune"):
        page.write_page(tmp_path / "index.html", sweep())
    assert not (tmp_path / "index.html").exists()


# -- the browser -------------------------------------------------------------------------------------------------------

PATH = browser.find()
needs_chromium = pytest.mark.skipif(PATH is None, reason="needs Chromium")


def reference(spec: RunSpec) -> float | None:
    return 96.5 if spec.method == "gibbs" and spec.sparsity == 0.9 else 97.0 if spec.method == "dense" else None


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Pages of a sweep, of one run, of layers that differ, and of names that are not what they seem."""
    folder = tmp_path_factory.mktemp("page")
    page.write_page(folder / "full.html", sweep(), title="Mine", reference=reference, reference_name="paper")
    page.write_page(folder / "one.html", [run()])
    page.write_page(folder / "dense.html", [run("dense")])
    page.write_page(folder / "uneven.html", uneven())
    evil = [copy.deepcopy(run(sparsity=p)) for p in (0.5, 0.9)]
    for record in evil:
        record["spec"]["data"] = HOSTILE
        record["layers"][0] |= {"name": HOSTILE, "sparsity": 0.1}
    plot = {"data": [{"y": [1, 2]}], "layout": {"height": 200}}
    page.write_page(folder / "evil.html", evil, title=HOSTILE, about=HOSTILE, label=lambda spec: HOSTILE,
                    reference=lambda spec: 50.0, reference_name=HOSTILE,
                    figures=[(HOSTILE, HOSTILE, plot)])  # fmt: skip
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


def text(tab, name: str) -> str:
    return tab.evaluate(f"document.getElementById('{name}').textContent")


def shown(tab, name: str) -> bool:
    return tab.evaluate(f"document.getElementById('{name}').checkVisibility()")


def becomes(tab, script: str, value) -> bool:
    """Whether an expression takes a value, for which Plotly may take a moment."""
    for _ in range(40):
        if tab.evaluate(script) == value:
            return True
        time.sleep(0.02)
    return False


DETAILS = "document.getElementById('details').textContent"
PLACES = (
    "(() => { const plot = byId('plot'); plot.scrollIntoView({block: 'center'});"
    "const box = plot.getBoundingClientRect(), {xaxis, yaxis} = plot._fullLayout;"
    "return state.order.map((k) => { const [x, y] = state.points.get(k.id);"
    "return [box.x + xaxis._offset + xaxis.l2p(x), box.y + yaxis._offset + yaxis.l2p(y), describe(k)]; }); })()"
)
MARKERS = "byId('plot').data.filter((t) => t.meta === 'runs').flatMap((t) => t.customdata).length"
SYMBOLS = "byId('plot').data.filter((t) => t.meta === 'runs').flatMap((t) => t.marker.symbol)"
ROWS = "[...document.querySelectorAll('#table tr')].map((r) => [...r.children].map((c) => c.textContent))"


@needs_chromium
def test_it_loads_without_errors_or_requests(full, made):
    assert full.errors == []
    assert full.requests == [(made / "full.html").as_uri()]
    assert full.evaluate("document.title") == text(full, "title") == "Mine"
    assert text(full, "count") == "37 runs on digits."
    assert full.evaluate(MARKERS) == 7


@needs_chromium
def test_every_choice_draws_something_of_its_own(full):
    drawn = "JSON.stringify(byId('plot').data) + JSON.stringify(byId('plot').layout.yaxis.title)"
    seen = {full.evaluate(drawn)}
    for control, values in {
        "metric": ["lost", "recalibrated", "achieved", "nonzero", "agreement"],
        "axis": ["sparsity"],
        "structure": ["kernel"],
        "model": ["resnet20"],
    }.items():
        for value in values:
            full.choose(control, value)
            picture = full.evaluate(drawn)
            assert picture not in seen, (control, value)
            assert "NaN" not in picture
            seen.add(picture)
    assert full.errors == []


@needs_chromium
def test_what_was_varied_is_an_axis(full):
    full.choose("structure", "kernel")
    names = "[...document.querySelectorAll('#legend button')].map((b) => b.textContent)"
    assert full.evaluate("[...byId('axis').options].map((o) => o.value)") == ["coupling"]
    assert full.evaluate(names) == ["●gibbs"]
    assert full.evaluate("byId('plot')._fullLayout.xaxis.ticktext") == ["0.01", "0.02", "0.05"]


@needs_chromium
@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize(("axis", "metric"), [("epochs", "accuracy"), ("sparsity", "agreement")])
def test_every_run_can_be_pointed_at(chromium, made, width, axis, metric):
    """Also where all have the same value, as each has a place of its own."""
    chromium.open(made / "full.html", width, 900)
    chromium.choose("share", "all")
    chromium.choose("axis", axis)
    chromium.choose("metric", metric)
    places = chromium.evaluate(PLACES)
    assert len(places) == 19
    for x, y, label in places:
        chromium.move(x, y)
        assert becomes(chromium, DETAILS, label), label
    assert chromium.errors == []


@needs_chromium
def test_every_run_can_be_clicked_tapped_and_reached_by_keyboard(chromium, made):
    chromium.open(made / "full.html", 390, 900)
    chromium.choose("share", "all")
    chosen = "describe(state.chosen)"
    places = chromium.evaluate(PLACES)
    for x, y, label in places:
        chromium.click(x, y)
        assert becomes(chromium, chosen, label), "clicked"
    for x, y, label in places:
        chromium.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        chromium.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        assert becomes(chromium, chosen, label), "tapped"
    chromium.evaluate("byId('plot').focus()")
    keys = ["Home", *["ArrowRight"] * (len(places) - 1), "ArrowRight"]
    for key, (_, _, label) in zip(keys, [*places, places[-1]]):
        chromium.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key)
        assert chromium.evaluate(chosen) == text(chromium, "details") == label
        assert label.startswith(chromium.evaluate("byId('run').selectedOptions[0].textContent"))
        assert chromium.evaluate("byId('plot').data.at(-1).x") == chromium.evaluate(
            "[state.points.get(state.chosen.id)[0]]"
        )
    chromium.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowLeft", code="ArrowLeft")
    assert chromium.evaluate(chosen) == places[-2][2]
    assert chromium.errors == []


@needs_chromium
def test_a_page_can_be_scrolled_by_a_finger_on_the_plot(chromium, made):
    chromium.open(made / "full.html", 390, 700)
    x, y, _ = chromium.evaluate(PLACES)[0]
    before = chromium.evaluate("scrollY")
    for i in range(20):
        kind = "touchMove" if i else "touchStart"
        chromium.call("Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": x, "y": y - 8 * i}])
    chromium.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    assert chromium.evaluate("scrollY") > before + 100


@needs_chromium
def test_methods_can_be_hidden_and_shown_again(full):
    names = "[...document.querySelectorAll('#legend button')].map((b) => b.textContent)"
    listed, before = full.evaluate(names), full.evaluate(MARKERS)
    press = "[...document.querySelectorAll('#legend button')].find((b) => b.textContent.includes('random')).click()"
    full.evaluate(press)
    assert full.evaluate(MARKERS) == before - 2
    assert not any("random" in row[0] for row in full.evaluate(ROWS))
    assert full.evaluate(names) == listed, "what is hidden stays in the list"
    assert full.evaluate("document.activeElement.getAttribute('aria-pressed')") == "false"
    full.evaluate(press)
    assert full.evaluate(MARKERS) == before
    for i in range(len(listed)):
        full.evaluate(f"document.querySelectorAll('#legend button')[{i}].click()")
    assert full.evaluate(MARKERS) == 0
    assert "all are hidden" in text(full, "plot")
    assert len(full.evaluate(ROWS)) == 1
    full.choose("metric", "lost")
    assert full.errors == []


@needs_chromium
def test_a_close_view_leaves_far_results_at_its_edge(full):
    assert full.evaluate(SYMBOLS).count("triangle-down-open") == 1
    full.choose("metric", "lost")
    assert full.evaluate(SYMBOLS).count("triangle-up-open") == 1
    full.evaluate("byId('close').click()")
    assert not any("open" in symbol for symbol in full.evaluate(SYMBOLS))
    full.choose("metric", "agreement")
    assert full.evaluate("byId('close').disabled")


@needs_chromium
def test_the_table_lists_what_is_shown(full):
    head, *body = full.evaluate(ROWS)
    assert head == ["method", "sparsity, %", "epochs", "test accuracy, %", "± over seeds", "paper", "seeds"]
    assert len(body) == full.evaluate(MARKERS)
    line = next(row for row in body if row[0] == "gibbs")
    assert line[3:] == ["96.20", "0.20", "96.5", "3"]
    full.evaluate("byId('marks').click()")
    assert "paper" not in full.evaluate(ROWS)[0]
    assert full.evaluate("byId('plot').data.find((t) => t.meta === 'marks').x.length") == 0
    full.choose("metric", "nonzero")
    assert full.evaluate(ROWS)[0] == ["method", "sparsity, %", "epochs", "parameters left, thousands", "seeds"]
    full.evaluate("document.querySelectorAll('#table button')[1].click()")
    assert text(full, "details").startswith(full.evaluate(ROWS)[2][0])
    assert full.evaluate("[...document.querySelectorAll('tr.chosen')].length") == 1


@needs_chromium
def test_the_curves_are_those_of_the_chosen_run(full):
    assert full.evaluate("[...byId('quantity').options].map((o) => o.textContent)") == [
        "test accuracy, %", "training accuracy, %", "training loss", "β", "learning rate",
    ], "what was recorded"  # fmt: skip
    own = "byId('curves').data.filter((t) => t.mode === 'lines+markers').map((t) => [t.x, t.y])"
    assert full.evaluate(own) == [[[1, 2, 3], [81, 82, 83]]] * 3
    full.choose("quantity", "6")
    assert full.evaluate(own)[0] == [[1, 2, 3], [10, 20, 30]]
    assert full.evaluate("byId('curves')._fullLayout.yaxis.type") == "log"


@needs_chromium
def test_layers_are_drawn_only_where_they_differ(chromium, made, full):
    assert not shown(full, "layers-section")
    chromium.open(made / "uneven.html")
    chromium.choose("run", "0")
    assert shown(chromium, "layers-section")
    kept = chromium.evaluate("byId('layers').data[0].x")
    assert kept == pytest.approx([100 / (i + 2) for i in range(len(kept))], abs=1)
    assert chromium.evaluate("byId('layers').data[1].x") == pytest.approx([10] * len(kept))
    chromium.choose("run", "1")
    assert not shown(chromium, "layers-section")
    assert chromium.errors == []


@needs_chromium
@pytest.mark.parametrize("name", ["one", "dense"])
def test_one_run_is_enough(chromium, made, name):
    chromium.open(made / f"{name}.html")
    assert chromium.errors == []
    assert text(chromium, "count") == "1 run on digits."
    assert chromium.evaluate(MARKERS) == (name == "one")
    assert chromium.evaluate("byId('curves').data.length") == 1


@needs_chromium
def test_text_stays_text(chromium, made):
    chromium.open(made / "evil.html")
    chromium.choose("run", "0")
    assert chromium.errors == []
    assert chromium.evaluate("document.title") == text(chromium, "title") == HOSTILE
    assert chromium.evaluate("document.querySelectorAll('b, script').length") == 3, "the page's own"
    assert chromium.evaluate("document.querySelector('#legend button').textContent") == f"●{HOSTILE}"
    assert HOSTILE in text(chromium, "details")
    assert HOSTILE in text(chromium, "layers"), "a name of a layer on an axis"
    assert chromium.evaluate("document.querySelectorAll('h2')[3].textContent") == HOSTILE


@needs_chromium
@pytest.mark.parametrize("name", ["full", "one", "uneven"])
@pytest.mark.parametrize("width", [320, 390, 1440])
def test_it_fits_on_every_screen(chromium, made, name, width):
    chromium.open(made / f"{name}.html", width, 812)
    assert chromium.evaluate("innerWidth") == width
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    small = chromium.evaluate(
        "[...document.querySelectorAll('select, button')].filter((e) => e.checkVisibility() && "
        "e.getBoundingClientRect().height < 32).map((e) => e.id)"
    )
    assert small == [], "too small to tap"
    labels = chromium.evaluate(
        "[...document.querySelectorAll('#plot .xtick text')].map((e) => e.getBoundingClientRect())"
        ".map((b) => [b.left, b.right])"
    )
    assert labels
    assert all(a[1] < b[0] for a, b in itertools.pairwise(labels)), "no name on another"
    assert chromium.errors == []
    if folder := os.environ.get("SCREENSHOTS"):
        chromium.screenshot(Path(folder) / f"{name}-{width}.png")
