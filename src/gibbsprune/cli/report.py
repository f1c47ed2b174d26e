"""``gibbsprune report``: tables, figures and an interactive page from raw results."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gibbsprune.errors import UserError


def add_parser(commands: Any) -> None:
    """Add ``report`` to the commands."""
    parser = commands.add_parser(
        "report",
        help="tables, figures and a page from the results of a suite",
        description="Draw the paper's tables and figures from raw results, beside the paper's numbers.",
        allow_abbrev=False,
    )
    parser.add_argument("results", metavar="PLACE", help="raw results: results/paper, s3://… or another")
    parser.add_argument("--out", type=Path, default=Path("report"), metavar="FOLDER",
                        help="figures, tables and index.html (report)")  # fmt: skip
    parser.add_argument("--docs", type=Path, metavar="FOLDER",
                        help="where results.md and its figures go as well (docs, if that exists and holds no page of "
                        "other results)")  # fmt: skip
    parser.add_argument("--no-docs", action="store_true", help="leave the documentation alone")
    parser.set_defaults(handler=handle, parser=parser)


def handle(options: argparse.Namespace) -> int:
    """Write everything and say where it is."""
    from gibbsprune.experiments import report
    from gibbsprune.training.places import place

    if options.no_docs and options.docs is not None:
        raise UserError("give --docs or --no-docs, not both")
    usual = Path("docs") if Path("docs").is_dir() else None
    docs = None if options.no_docs else options.docs or usual
    report.write(place(options.results), options.out, docs, asked=options.docs is not None)
    print(f"Open {options.out / 'index.html'} in a browser; figures are in {options.out / 'figures'}.")
    print(f"The tables are in {(docs or options.out) / 'results.md'}.")
    return 0
