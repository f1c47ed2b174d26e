"""From raw results to tables, figures and a page: nothing in them is written by hand."""

from __future__ import annotations

from pathlib import Path

from ...errors import UserError
from ...training.checkpoint import make_folder, write_atomic
from ...training.places import Place
from . import figures, groups, page, tables

__all__ = ["write"]


def write(results: Place, out: Path, docs: Path | None = None) -> list[Path]:
    """Writes figures and ``index.html`` into ``out``, and with ``docs`` the page of tables and its figures there."""
    found = groups.load(results)
    if not found.groups:
        raise UserError(f"{results} holds no results")
    if docs is not None and (page_ := docs / "results.md").exists() and tables.MARK not in page_.read_text():
        raise UserError(f"{page_} was not written by gibbsprune report; choose another --docs, or --no-docs")
    make_folder(out)
    written = figures.draw_all(found, out / "figures")
    write_atomic(out / "index.html", page.page_text(found, results))
    write_atomic(out / "results.md", tables.results_text(found, results, "figures", out))
    written += [out / "index.html", out / "results.md"]
    if docs is not None:
        images = docs / "img" / "results"
        make_folder(images)
        for file in (out / "figures").glob("figure*"):
            write_atomic(images / file.name, file.read_bytes())
            written.append(images / file.name)
        write_atomic(docs / "results.md", tables.results_text(found, results, "img/results", docs))
        written.append(docs / "results.md")
    return written
