"""From raw results to tables, statements, figures and the page's data."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

import fake_results
from paper import __main__, cells, extras, figures, groups, published, tables, words
from paper.groups import Results

record, run_twice = fake_results.record, fake_results.run_twice


def some(*pairs) -> Results:
    return Results([record(spec, accuracy) for spec, accuracy in pairs])


SQUARE = [cells.run("resnet20", seed=seed) for seed in (0, 1, 2)]

CELLS = len(cells.cells())

# -- groups ------------------------------------------------------------------------------------------------------------


def test_seeds_are_taken_together():
    found = some(*zip(SQUARE, (0.88, 0.89, 0.90)), (cells.run("resnet20", sparsity=0.5), 0.91))
    group = found.of(cells.run("resnet20", seed=7))
    assert len(group.records) == 3
    assert group.mean() == pytest.approx(89.0)
    assert group.deviation() == pytest.approx(1.0)
    single = found.of(cells.run("resnet20", sparsity=0.5))
    assert (single.mean(), single.deviation()) == (pytest.approx(91.0), None)
    assert found.of(cells.run("resnet56")) is None


def test_a_higher_final_beta_takes_the_place_of_its_own_seed_only():
    plain = [cells.run("resnet20", stretch=2, seed=seed) for seed in (0, 1, 2)]
    group = some(*zip(plain, (0.901, 0.902, 0.8)), (cells.hotter(plain[2]), 0.89)).of(plain[0])
    assert [record["accuracy"] for record in group.records] == [0.901, 0.902, 0.89]
    assert some((cells.hotter(plain[2]), 0.89)).of(plain[0]).mean() == pytest.approx(89.0)


def test_sources_do_not_tell_runs_apart():
    found = some(*((cells.reinit("resnet20", 0.9, seed), 0.8) for seed in (0, 1)))
    assert len(found.of(cells.reinit("resnet20", 0.9, 5)).records) == 2


def test_a_hotter_run_stands_for_one_that_did_not_converge():
    stretched = cells.run("resnet20", stretch=4)
    found = some((stretched, 0.80), (cells.hotter(stretched), 0.90))
    assert found.of(stretched).mean() == pytest.approx(90)


def test_tables_say_which_runs_were_run_again(tmp_path):
    assert (words.HOT, cells.FINAL_BETA) == ("with β to 10⁶", 1e6)
    first, second = run_twice(sparsity=0.5)
    text = tables.results_text(Results([first, second]), tmp_path, "img", tmp_path)
    assert row(text, "ResNet-20 | stretch 2, 50 % with β to 10⁶")[2:4] == ["400", "89.34"]
    assert row(text, "ResNet-20 | stretch 2, 75 %")[3] == "not run"
    again = text[text.index("## Run again") : text.index("## Tuning")]
    assert row(again, f"`{first['name']}`")[1:] == ["400", "80.12", "93.21", "89.34", "99.95"]
    assert "## Variations" not in text
    alone = tables.results_text(Results([first]), tmp_path, "img", tmp_path)
    assert "Run again" not in alone
    assert "β to" not in alone
    assert not extras.run_again(Results(run_twice(recipe="modern"))), "stretch 2 is no cell with this recipe"
    beyond = extras.beyond(some((cells.hotter(cells.run("resnet20", recipe="modern", stretch=4)), 0.9)))[2]
    assert row(beyond, "ResNet-20 | ours: Gibbs pruning, stretch 4 with β to 10⁶")[3:] == ["90 %", "90.00"]


def test_of_several_seeds_those_run_again_are_named(tmp_path):
    spec = cells.run("resnet20", stretch=2, seed=1)
    results = Results([*run_twice(), record(spec, 0.9)])
    assert words.hot(results.of(spec)) == " with β to 10⁶ for seed 0"
    assert row("\n".join(tables.figure("3", results, "img")), "ResNet-20 | Gibbs with β to 10⁶ for seed 0")[-1] == "2"
    assert len(extras.run_again(results)[2].splitlines()) == 3, "one row"


def test_a_figure_draws_the_run_in_its_place_only(tmp_path):
    """One point of one line."""
    first, second = run_twice()
    once, twice = (figures.draw("3", Results(found), tmp_path)[0].read_bytes() for found in ([second], [first, second]))
    assert once == twice


def test_a_variation_is_set_beside_the_run_that_differs_in_one_thing():
    """A stretch that no figure asks for, also run up to a higher β."""
    plain = cells.run("resnet20", stretch=3)
    text = "\n".join(extras.variations(some((plain, 0.8012), (cells.hotter(plain), 0.8934))))
    assert row(text, f"`{cells.hotter(plain).name()}`")[1:5] == ["beta_end 1e+06", "600", "89.34", "80.12"]


# -- statements and tables ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A folder with results of every cell."""
    folder = tmp_path_factory.mktemp("full") / "paper"
    fake_results.write_all(folder)
    return folder


def row(text: str, start: str) -> list[str]:
    line = next(line for line in text.splitlines() if re.match(rf"\| {re.escape(start)} +\|", line))
    return [part.strip() for part in line.strip("|").split("|")]


def test_tables_set_ours_beside_the_papers(full):
    results = groups.load(full)
    text = tables.results_text(results, full, "img", full.parent)
    assert f"{CELLS} of {CELLS} cells have been run." in text
    assert "not run" not in text[text.index("## Table II:") : text.index("## Figure 3")]
    ours = results.of(cells.run("resnet56", hamiltonian="abs")).mean()
    line = row(text, "linear abs")
    assert line[4].startswith(f"{ours:.2f} ± ")
    assert line[4].endswith("(3)")
    assert line[5:] == ["89.2", f"{ours - 89.2:+.2f}"]
    for number in published.PARAMETERS["resnet20"].values():
        assert f"{number:.2f} %" in text
    for figure in "3456":
        assert f'src="img/figure{figure}.svg"' in text
        assert f'srcset="img/figure{figure}-narrow.svg"' in text


def test_what_was_not_run_is_marked(tmp_path):
    fake_results.write(tmp_path / "paper", SQUARE[0])
    text = tables.results_text(groups.load(tmp_path / "paper"), tmp_path / "paper", "img", tmp_path)
    assert f"1 of {CELLS} cells have been run." in text
    assert row(text, "binary") == ["binary", "not run", "86.6", "", "not run", "89.1", ""]
    assert "`gibbsprune tune`: not run" in text
    assert "| ResNet-56, thinet" in text[text.index("## Not run") :]


def test_a_stretched_run_that_did_not_converge_is_wanted_once_more(tmp_path):
    spec = cells.run("resnet20", stretch=2)
    fake_results.write(tmp_path, spec, **{"agreement": 0.9})
    results = groups.load(tmp_path)
    assert f"1 of {CELLS + 1} cells have been run." in tables.results_text(results, tmp_path, "img", tmp_path)


def tuned() -> dict:
    rows = [{"structure": "weight", "hamiltonian": "abs", "change": change, "accuracies": [0.8], "mean": 0.8,
             "agreement": 1.0} for change in ({}, {"beta_end": 1e4})]  # fmt: skip
    return {"model": "resnet20", "epochs": 40, "seeds": [0], "held_out_training_images": 5000, "margin": 0.003,
            "converged": 0.99, "choice": {"weight-abs": {"beta_end": 1e4}}, "evidence": rows}  # fmt: skip


@pytest.fixture
def one(tmp_path):
    """A folder with one result, and one for tuning beside it."""
    fake_results.write(tmp_path / "paper", SQUARE[0])
    (tmp_path / "tune").mkdir()
    return tmp_path / "paper"


def test_notes_and_tuning_are_taken_in(one, tmp_path):
    (tmp_path / "tune" / "cifar10-resnet20.json").write_text(json.dumps(tuned()))
    (tmp_path / "tune" / "._cifar10-resnet20.json").write_bytes(b"\xff")  # macOS leaves such files on other disks
    text = tables.results_text(groups.load(tmp_path / "paper"), tmp_path / "paper", "img", tmp_path)
    assert f"## Notes\n\n{tables.NOTES.read_text().strip()}" in text
    assert re.search(r"\| weight, linear abs \| beta_end 10000 \| +80.00 \| +100.00 \| chosen \|", text)
    assert "([raw](tune/cifar10-resnet20.json))" in text
    elsewhere = tables.results_text(groups.load(one), one, "img", tmp_path / "far" / "away")
    assert "([raw](../../tune/cifar10-resnet20.json))" in elsewhere


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"{", "is not what gibbsprune tune writes: Expecting property name"),
        (b"\xff", "cannot be read: 'utf-8' codec"),
        (b"{}", "is not what gibbsprune tune writes: it lacks 'evidence'"),
        (b"[]", "is not what gibbsprune tune writes: "),
        (json.dumps(tuned() | {"choice": []}).encode(), "is not what gibbsprune tune writes: "),
        (json.dumps(tuned() | {"evidence": [{}]}).encode(), "is not what gibbsprune tune writes: it lacks"),
        (json.dumps(tuned() | {"margin": "small"}).encode(), "is not what gibbsprune tune writes: "),
    ],
)
def test_a_damaged_tuning_is_told_before_anything_is_written(content, why, one, tmp_path, capsys):
    file = tmp_path / "tune" / "mine.json"
    file.write_bytes(content)
    assert __main__.main([str(one), "--docs", str(tmp_path / "out"), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{file} {why}")
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_as_much_is_said_of_machines_as_results_say():
    gpu, torch_ = {"gpu": "G", "cpu": "C"}, {"torch": "2"}
    environments = [{}, {"hardware": 3}, {"hardware": {"cpu": "C"}}, {"hardware": gpu, "versions": {}},
                    {"versions": torch_}, {"hardware": gpu, "versions": torch_}]  # fmt: skip
    specs = [cells.run("resnet20", seed=seed) for seed in range(len(environments))]
    results = Results([record(spec, 0.9, environment=found) for spec, found in zip(specs, environments)])
    assert tables._machines(results) == "Hardware: C; G; G, torch 2; torch 2."
    assert tables._machines(Results([record(SQUARE[0], 0.9, environment={})])) == ""


def test_runs_beside_the_evaluation_are_listed(tmp_path):
    """Also hotter ones; one that stands for a stretched run is none of them."""
    plain = cells.run("resnet20", structure="kernel")
    other = plain.replace(coupling=0.05)
    slow = cells.after_dense("resnet20", "magnitude", "weight", tune_epochs=10)
    fast = cells.after_dense("resnet20", "magnitude", "weight", tune_epochs=10, tune_rate=1e-3)
    hot = cells.hotter(cells.run("resnet20", stretch=2))
    assert extras.plainly(other) == ("coupling 0.05", plain)
    assert extras.plainly(fast) == ("tune_rate 0.001", slow)
    sign = cells.run("resnet20", hamiltonian="sign")
    assert extras.plainly(sign.replace(recipe=sign.recipe.replace(beta_start=0.1))) == ("beta_start 0.1", sign)
    assert extras.plainly(sign) == ("", sign)
    short = sign.replace(recipe=sign.recipe.replace(epochs=4, anneal_epochs=3))
    assert extras.plainly(short) == ("", short), "another length is no variation"
    settled = cells.settled("resnet20")[0]
    assert extras.plainly(settled) == ("beta_end 1e+06", cells.run("resnet20", sparsity=0.5))
    for spec in (SQUARE[0], other, hot, fast, plain, settled):
        fake_results.write(tmp_path / "paper", spec)
    text = tables.results_text(groups.load(tmp_path / "paper"), tmp_path / "paper", "img", tmp_path)
    listed = text[text.index("## Variations") : text.index("## Tuning")]
    assert f"`{other.name()}`" in listed
    assert f"`{fast.name()}`" in listed
    assert f"`{settled.name()}`" in listed
    assert listed.count("`") == 6
    row = next(line for line in listed.splitlines() if other.name() in line)
    shown = [cell.strip() for cell in row.split("|")]
    with_it, without = (f"{100 * fake_results.result(spec)['accuracy']:.2f}" for spec in (other, plain))
    assert shown[2:6] == ["coupling 0.05", "200", with_it, without]


HOSTILE = "<script>document.title = 'taken'</script><!--<script>`|[x](javascript:0)\n# /*DATA*/ $x$ {: onclick=go() }"


@pytest.fixture
def hostile(tmp_path):
    """The page of results whose names of data, hardware and versions are not what they seem."""
    spec = SQUARE[0].replace(data=HOSTILE)
    about = {"hardware": {"gpu": HOSTILE}, "versions": {"torch": HOSTILE}}
    tune = tuned() | {"model": HOSTILE, "seeds": [HOSTILE]}
    tune["evidence"][0] |= {"change": {HOSTILE: 1.0}, "structure": HOSTILE, "hamiltonian": HOSTILE}
    tune["choice"] |= {f"{HOSTILE}-{HOSTILE}": {}}
    (tmp_path / "tune").mkdir()
    (tmp_path / "tune" / "mine.json").write_text(json.dumps(tune))
    return tables.results_text(Results([record(spec, 0.9, environment=about)]), tmp_path / "paper", "img", tmp_path)


def test_text_of_results_stays_text(hostile):
    assert hostile.count("document.title") >= 6
    assert "<" not in re.sub(r"<picture><source .*></picture>", "", hostile)
    assert "](javascript:0)" not in hostile
    assert [line for line in hostile.splitlines() if line.startswith("# ")] == ["# Results"]
    rows = [line for line in hostile.splitlines() if "document.title" in line and line.startswith("|")]
    assert rows
    assert all(line.count("|") in (6, 10) for line in rows), "no columns of their own"


def test_text_of_results_stays_text_on_the_site(hostile):
    """Whose extensions know attributes and formulas, too."""
    markdown = pytest.importorskip("markdown", reason="needs the tools of the site")
    drawn = markdown.markdown(hostile, extensions=["tables", "attr_list", "pymdownx.arithmatex"])
    assert not re.search(r"<script|<[^>]*(onclick|javascript)|MathJax", drawn)
    assert html.unescape(drawn).count(HOSTILE.split("\n")[1]) >= 6, "it is shown as it is"


# -- figures -----------------------------------------------------------------------------------------------------------


def test_figures_are_drawn_and_are_the_same_again(full, tmp_path):
    results = groups.load(full)
    files = figures.draw("3", results, tmp_path)
    assert [file.name for file in files] == ["figure3.svg", "figure3.png", "figure3-narrow.svg"]
    before = [file.read_bytes() for file in files]
    assert before[1].startswith(b"\x89PNG")
    text = before[0].decode()
    for label in ("Gibbs", "Han et al.", "IMP with rewinding", "l1", "targeted dropout", "dense", "Gibbs, paper"):
        assert f">{label}<" in text, label
    assert [file.read_bytes() for file in figures.draw("3", results, tmp_path)] == before


def test_panels_without_results_say_so_and_bad_results_do_not_hide_the_others(tmp_path):
    far = cells.after_dense("resnet20", "filter-l1", "filter", tune_epochs=2)
    files = figures.draw(
        "6", some((SQUARE[0], 0.9), (far, 0.31), (cells.run("resnet20", structure="filter"), 0.85)), tmp_path
    )
    text = files[0].read_text()
    assert ">not run<" in text
    assert ">further below: Li et al. 31.0<" in text
    tuned = [spec for series in cells.variations("resnet20") for spec in series.specs if spec.method == "filter-l1"]
    longer = cells.after_dense("resnet20", "filter-l1", "filter", tune_epochs=10)
    found = some((far, 0.31), (longer, 0.4), *((spec, 0.84) for spec in tuned))
    text = figures.draw("6", found, tmp_path)[0].read_text()
    assert ">further below: Li et al. 31.0 and 40.0<" in text
    for rate in ("0.0001", "0.001"):
        assert text.count(f">Li et al. (fine-tuned at {rate})<") == 1
    assert figures.draw("4", some((SQUARE[0], 0.9)), tmp_path)[1].stat().st_size > 5000


# -- the page's data and the command -----------------------------------------------------------------------------------


def test_the_command_writes_everything(full, tmp_path, capsys):
    docs, out = tmp_path / "docs", tmp_path / "out"
    assert __main__.main([str(full), "--docs", str(docs), "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"{CELLS} of {CELLS} cells have been run.\nThe tables are in {docs}")
    written = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    drawn = {f"docs/img/results/figure{n}{kind}" for n in "3456" for kind in (".svg", ".png", "-narrow.svg")}
    assert written == {"out/index.html", "docs/results.md"} | drawn


def test_what_is_missing_is_said_step_by_step(one, capsys):
    said = __main__.missing(groups.load(one)).splitlines()
    assert said[0] == f"1 of {CELLS} cells have been run."
    lacking = [cell for cell in cells.cells() if cell.step == 5]
    assert f"Step 5 lacks {len(lacking)}: Table II 10, Table IV 14." in said
    assert __main__.main([str(one), "--missing"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert f"  {cells.dense('resnet56', 2).name()} (Table II)" in listed
    assert sum(line.startswith("  ") for line in listed) == CELLS - 1


def test_mistakes_are_told_and_nothing_is_written(one, tmp_path, capsys):
    places = ["--docs", str(tmp_path / "docs"), "--out", str(tmp_path / "out")]
    (tmp_path / "empty").mkdir()
    for folder, why in (("none", "is not a folder of results"), ("empty", "holds no results")):
        assert __main__.main([str(tmp_path / folder), *places]) == 2
        assert capsys.readouterr().err == f"{tmp_path / folder} {why}\n"
    (one / "._hidden.json").write_bytes(b"\xff")  # macOS leaves such files on other disks
    (one.parent / "tune" / "mine.json").write_bytes(b"{}")
    assert __main__.main([str(one), *places]) == 2
    assert "is not what gibbsprune tune writes: it lacks 'evidence'" in capsys.readouterr().err
    assert not (tmp_path / "docs").exists()
    assert not (tmp_path / "out").exists()


def test_the_page_names_its_own_sources(tmp_path):
    spec = cells.run("resnet20").replace(data="digits")
    fake_results.write(tmp_path / "results" / "mine", spec)
    results = groups.load(tmp_path / "results" / "mine")
    text = tables.results_text(results, tmp_path / "results" / "mine", "img", tmp_path / "report")
    assert "from the raw files in [`results/mine`](../results/mine); not edited by hand. digits, test accuracy" in text


def test_the_documentation_is_what_the_results_say():
    """After new results: make paper."""
    root = Path(__file__).parents[1]
    folder = root / "results" / "paper"
    written = (root / "docs" / "results.md").read_text(encoding="utf-8")
    assert written == tables.results_text(groups.load(folder), folder, "img/results", root / "docs")
    for number in "3456":
        assert (root / "docs" / "img" / "results" / f"figure{number}.svg").exists()
