"""``gibbsprune describe``: where a network's parameters are."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(commands: Any, meaning: str) -> None:
    """Add ``describe`` to the commands."""
    parser = commands.add_parser(
        "describe",
        help=meaning,
        description="Count the parameters of networks by kind, as the paper's Table I does.",
        allow_abbrev=False,
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help="resnet8 … resnet110, or package.module:function")
    parser.set_defaults(handler=handle, parser=parser)


def handle(options: argparse.Namespace) -> int:
    """Print the table."""
    from ..models.describe import describe_table

    print(describe_table(options.names))
    return 0
