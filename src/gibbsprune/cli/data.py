"""``gibbsprune data get cifar10``: fetch a data set, verified."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from typing import Any

from ..errors import UserError
from ..text import command


def add_parser(commands: Any, meaning: str) -> None:
    """Add ``data`` to the commands."""
    parser = commands.add_parser("data", help=meaning, description="Fetch a data set.")
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    get = actions.add_parser(
        "get",
        help="download, verify and keep a data set",
        description="Download a data set, verify it, and keep one compact file.",
        allow_abbrev=False,
    )
    get.add_argument("name", metavar="NAME", help="cifar10")
    get.add_argument("--root", metavar="FOLDER", help="where data is kept ($GIBBSPRUNE_DATA, else ~/.cache)")
    get.add_argument("--from-pngs", nargs="+", metavar="FOLDER", help="pictures already here, in one folder or several")
    get.set_defaults(handler=handle, parser=get)


def handle(options: argparse.Namespace) -> int:
    """Fetch the data set and say where it is."""
    from ..data.cifar10 import cifar10_from_pngs, get_cifar10

    if options.name != "cifar10":
        raise UserError(f"unknown data set {options.name!r}; cifar10 can be fetched, digits needs no download")
    progress = Transfer()
    try:
        if options.from_pngs is not None:
            path = cifar10_from_pngs(options.from_pngs, root=options.root, progress=progress)
        else:
            path = get_cifar10(root=options.root, progress=progress)
    finally:
        progress.close()
    print(f"CIFAR-10 is ready, verified, at {path}")
    if options.root is not None:
        print(f"To train with it: export GIBBSPRUNE_DATA={shlex.quote(os.path.abspath(options.root))}")
    else:
        print(f"Train with it: {command('train --data cifar10')}")
    return 0


class Transfer:
    """Shows how a transfer goes on: a bar on a terminal with rich, else a line at every tenth."""

    def __init__(self) -> None:
        self.bar: Any = None
        self.tasks: dict[str, Any] = {}
        self.told: dict[str, int] = {}
        if sys.stdout.isatty():
            try:
                from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
            except ImportError:
                return
            columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
            self.bar = Progress(*columns)
            self.bar.start()

    def __call__(self, what: str, done: int, total: int | None) -> None:
        if self.bar is not None:
            if what not in self.tasks:
                self.tasks[what] = self.bar.add_task(what, total=total)
            self.bar.update(self.tasks[what], completed=done, total=total)
            return
        tenth = 10 * done // total if total else 0
        if self.told.get(what) != tenth:
            self.told[what] = tenth
            print(f"{what}: {10 * tenth} %" if total else f"{what} …", flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
