"""From raw results to tables, figures and a page: nothing in them is written by hand."""

from __future__ import annotations

from pathlib import Path

from ...errors import UserError
from ...files import make_folder, write_atomic
from ...training.places import Place
from . import figures, groups, page, tables

__all__ = ["write"]


def write(results: Place, out: Path, docs: Path | None = None, asked: bool = True) -> list[Path]:
    """Writes figures and ``index.html`` into ``out``, and with ``docs`` the page of tables and its figures there.

    A page of other results in ``docs`` is overwritten only where that folder was asked for.
    """
    found = groups.load(results)
    if not found.groups:
        raise UserError(f"{results} holds no results")
    if docs is not None:
        _check_page(docs, results, asked)
    interactive, plain = page.page_text(found, results), tables.results_text(found, results, "figures", out)
    make_folder(out)
    written = figures.draw_all(found, out / "figures")
    write_atomic(out / "index.html", interactive)
    write_atomic(out / "results.md", plain)
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


def _check_page(docs: Path, results: Place, asked: bool) -> None:
    """Refuses to overwrite a page that is somebody else's."""
    there = docs / "results.md"
    if not there.exists():
        return
    text = groups.read_text(there)
    if tables.MARK not in text:
        raise UserError(f"{there} was not written by gibbsprune report; choose another --docs, or --no-docs")
    if not asked and tables.origin(results, docs) not in text:
        raise UserError(
            f"{there} was written from other results than {results}; give --no-docs to leave it alone, "
            f"or --docs {docs} to overwrite it"
        )
