"""The documentation site builds without a warning, fetches nothing, and leads nowhere that does not exist."""

import os
import re
import subprocess
import sys
import time
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest

import browser

pytest.importorskip("mkdocs", reason="mkdocs is not installed")
pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed")
pytest.importorskip("latex2mathml", reason="latex2mathml is not installed")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built pages by their paths."""
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", out],  # --quiet would drop the warnings
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out, {path: path.read_text(encoding="utf-8") for path in out.rglob("*.html") if path.name != "404.html"}


def test_every_page_is_there_and_in_the_navigation(site):
    out, pages = site
    sources = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert sources <= {path.relative_to(out) for path in pages}
    front = pages[out / "index.html"]
    for source in sources - {Path("index.html")}:
        assert f'href="{source.as_posix()}"' in front, f"{source} is not in the navigation"
    assert not (out / "hooks").exists()


def test_nothing_is_fetched(site):
    out, pages = site
    for path, page in pages.items():
        fetched = re.findall(r'(?:src="|<link[^>]*href=")(https?:[^"]*)', page)
        assert not fetched, f"{path.relative_to(out)} fetches {fetched}"
    for sheet in (out / "css").glob("*.css"):
        assert "http" not in sheet.read_text()


@pytest.mark.skipif(not browser.find(), reason="no Chromium is installed")
def test_search_works_from_a_disk(site):
    page = browser.Browser(browser.find())
    try:
        page.open(site[0] / "how_to" / "lightning.html")
        page.evaluate(
            "const query = document.querySelector('input[name=query]'); query.focus(); query.value = 'pruner';"
            "query.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true}))"
        )
        for _ in range(100):
            time.sleep(0.2)
            if found := page.evaluate("document.querySelectorAll('.md-search-result__item').length"):
                break
        assert found > 5
        assert page.errors == []
    finally:
        page.close()


def test_links_and_pictures_lead_somewhere(site):
    out, pages = site
    ids = {path: set(re.findall(r'\bid="([^"]+)"', page)) for path, page in pages.items()}
    for path, page in pages.items():
        for link in re.findall(r'(?:href|src)="([^"]*)"', page):
            target, _, anchor = unquote(unescape(link)).partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            there = (path.parent / target).resolve() if target else path
            assert there.exists(), f"{path.relative_to(out)} leads to {link}"
            if anchor and not anchor.startswith("__") and there in ids:
                assert anchor in ids[there], f"{path.relative_to(out)} leads to {link}"


def test_formulas_and_docstrings_are_drawn(site):
    out, pages = site
    theory = pages[out / "theory.html"]
    assert theory.count("<math") > 100
    for path, page in pages.items():
        text = re.sub(r"<(pre|code|script|style|annotation)\b.*?</\1>", "", page, flags=re.S)
        for raw in ("arithmatex", "$$", ":class:", ":func:", ":meth:", "&gt;&gt;&gt;"):
            assert raw not in text, f"{path.relative_to(out)} shows {raw}"
    for name in ("GibbsPruner", "LogSchedule", "compact", "GibbsPruning", "Fleet"):
        assert any(re.search(rf'<h\d id="gibbsprune[^"]*\.{name}"', page) for page in pages.values()), name
