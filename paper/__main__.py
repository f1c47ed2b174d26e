"""``python -m paper`` (``make paper``): says what is missing, and draws the results that are there."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from gibbsprune.errors import UserError
from gibbsprune.files import make_folder, write_atomic

from . import cells, figures, groups, page, patterns, rivals, tables

ROOT = Path(__file__).resolve().parents[1]


def main(arguments: list[str] | None = None) -> int:
    """Writes ``results.md`` with its figures, the pages beside it and ``index.html``; says which steps lack cells."""
    parser = argparse.ArgumentParser("python -m paper", description=__doc__)
    parser.add_argument("results", nargs="?", type=Path, default=ROOT / "results" / "paper", help="raw results")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="where results.md and its figures go")
    parser.add_argument("--out", type=Path, default=ROOT / "report", help="where index.html goes")
    parser.add_argument("--missing", action="store_true", help="only list the runs that have no result, by step")
    options = parser.parse_args(arguments)
    try:
        if options.missing:
            print(missing(groups.load(options.results), names=True))
        else:
            write(options.results, options.docs, options.out)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def write(folder: Path, docs: Path, out: Path) -> None:
    """Everything that is drawn from the results; nothing is written where they cannot be read."""
    results = groups.load(folder)
    if not results.groups:
        raise UserError(f"{folder} holds no results")
    text = tables.results_text(results, folder, "img/results", docs)
    for place in (docs, out):
        make_folder(place)
    figures.draw_all(results, docs / "img" / "results")
    write_atomic(docs / "results.md", text)
    best = folder.parent / "best"
    if best.is_dir():
        write_atomic(docs / "best.md", rivals.text(groups.load(best), best, docs))
    if (folder.parent / "patterns").is_dir() and (folder.parent / "energies").is_dir():
        write_atomic(docs / "patterns.md", patterns.text(folder.parent, docs))
    page.write(out / "index.html", results)
    print(missing(results))
    print(f"The tables are in {docs / 'results.md'}; open {out / 'index.html'} in a browser.")


def missing(results: groups.Results, names: bool = False) -> str:
    """How many cells of each step have no result and where they would be shown; with ``names`` which."""
    wanted = cells.wanted(results.by_name)
    lacking = [cell for cell in wanted if cell.name not in results.by_name]
    lines = [f"{len(wanted) - len(lacking)} of {len(wanted)} cells have been run."]
    for step in sorted({cell.step for cell in lacking}):
        own = [cell for cell in lacking if cell.step == step]
        places = Counter(place for cell in own for place in _places(cell))
        shown = ", ".join(f"{place} {count}" for place, count in sorted(places.items()))
        lines.append(f"Step {step} lacks {len(own)}: {shown}.")
        if names:
            lines += [f"  {cell.name} ({', '.join(_places(cell))})" for cell in own]
    return "\n".join(lines)


def _places(cell: cells.Cell) -> tuple[str, ...]:
    return cell.places or ("Beyond the paper",)


if __name__ == "__main__":
    raise SystemExit(main())
