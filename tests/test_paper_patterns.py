"""The page of patterns and energies: it is what the results say."""

from __future__ import annotations

import shutil
from pathlib import Path

from paper import groups, patterns

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"


def test_the_page_is_what_the_results_say():
    written = (ROOT / "docs" / "patterns.md").read_text(encoding="utf-8")
    assert written == patterns.text(RESULTS, ROOT / "docs")


def test_every_run_of_the_sweeps_has_a_row():
    written = patterns.text(RESULTS, ROOT / "docs")
    shown = [row for row in written.splitlines() if row.startswith("|")]
    for kind in ("patterns", "energies"):
        for group in groups.load(RESULTS / kind):
            assert any(f"{group.mean():.2f} ± {group.deviation():.2f} ({len(group.records)})" in row for row in shown)


def test_cells_that_were_not_run_are_told(tmp_path: Path):
    shutil.copytree(RESULTS / "energies", tmp_path / "energies")
    shutil.copytree(RESULTS / "patterns", tmp_path / "patterns", ignore=shutil.ignore_patterns("*gradual-2of4*"))
    written = patterns.text(tmp_path, tmp_path)
    (row,) = [row for row in written.splitlines() if row.startswith("| 2 of 4") and "not run" in row]
    assert row.rstrip(" |").endswith("not run")
    assert "by images, p" in written  # labels are not there, and so no p-values of images
