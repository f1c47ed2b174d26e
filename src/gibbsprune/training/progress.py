"""What a run shows while it trains: a live display on a terminal, one plain line per epoch anywhere else."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO, TypeVar

from ..text import clock

_BARS = "▁▂▃▄▅▆▇█"


def mean(records: Sequence[Mapping[str, Any]], key: str) -> float:
    """The mean of one quantity over the runs of a fleet; NaN where no run has it."""
    values = [float(r[key]) for r in records if r.get(key) is not None]
    return sum(values) / len(values) if values else math.nan


def show_beta(beta: float) -> str:
    """β to read: three digits while it is small, then whole with separators."""
    return f"{beta:.3g}" if beta < 100 else f"{beta:,.0f}"


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """The last ``width`` values as one line of bars."""
    values = [v for v in values[-width:] if math.isfinite(v)]
    if not values:
        return ""
    low, high = min(values), max(values)
    step = (high - low) / (len(_BARS) - 1) or 1.0
    return "".join(_BARS[round((v - low) / step)] for v in values)


def _shown(value: float, form: str, unit: str = "") -> str:
    return "–" if math.isnan(value) else format(value, form) + unit


class Lines:
    """Lines of text. Where nobody reads any more, as after ``| head``, that is told once and the work goes on."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream if stream is not None else sys.stdout

    def note(self, message: str) -> None:
        """Prints a line."""
        try:
            print(message, file=self.stream, flush=True)
        except BrokenPipeError:
            self._go_on_unread()

    def _go_on_unread(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # what is still to be flushed there goes nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())
        with contextlib.suppress(OSError):
            told = "nobody reads the output any more; the run goes on, and Ctrl-C stops it so that it can be resumed"
            print(f"gibbsprune: {told}", file=sys.stderr, flush=True)


Shown = TypeVar("Shown", bound=Lines)


def suited(live: Callable[[TextIO], Shown], plain: Callable[[TextIO], Shown], stream: TextIO | None = None) -> Shown:
    """The live display where ``stream`` is a terminal and rich is installed, else plain lines."""
    stream = stream if stream is not None else sys.stdout
    if stream.isatty():
        with contextlib.suppress(ImportError):
            return live(stream)
    return plain(stream)


class PlainProgress(Lines):
    """One line per epoch: for logs, pipes and terminals without rich."""

    def __init__(self, stream: TextIO | None = None, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self.now = now
        self.epochs = 0
        self.first = 0
        self.started = 0.0

    def begin(self, title: str, epochs: int, done: int = 0) -> None:
        """Announces a run of ``epochs`` epochs of which ``done`` are behind it."""
        self.epochs, self.first, self.started = epochs, done, self.now()
        self.note(title)

    def step(self, done: int, total: int) -> None:
        """Called within an epoch; nothing to say here."""

    def left(self, number: int) -> float:
        """Seconds still to go after epoch ``number`` (counted from 1), from the pace of this process."""
        behind = number - self.first
        return (self.now() - self.started) / behind * (self.epochs - number) if behind > 0 else math.nan

    def epoch(self, number: int, records: Sequence[Mapping[str, Any]]) -> None:
        """Reports a finished epoch; ``records`` has one entry per run, and a fleet shows their mean."""
        width = len(str(self.epochs))
        parts = [
            f"epoch {number:>{width}}/{self.epochs}",
            "loss " + _shown(mean(records, "loss"), "7.4f"),
            "accuracy " + _shown(100 * mean(records, "test_accuracy"), "6.2f", " %"),
        ]
        if not math.isnan(beta := mean(records, "beta")):
            parts += [f"β {show_beta(beta):<7}", "agreement " + _shown(100 * mean(records, "agreement"), "6.2f", " %")]
        elif not math.isnan(sparsity := mean(records, "sparsity")):
            parts.append("sparsity " + _shown(100 * sparsity, "6.2f", " %"))
        self.note("  ".join([*parts, f"{clock(self.left(number))} left"]))

    def close(self) -> None:
        """Finish; called once, also after an interruption."""


class RichProgress(PlainProgress):
    """A live display: bars for the run and the epoch, and the last epoch's quantities with their history."""

    def __init__(self, stream: TextIO | None = None, now: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, Progress, TextColumn

        super().__init__(stream, now)
        self.console = Console(file=self.stream)
        self.bars = Progress(
            TextColumn("{task.description:>6}"),
            BarColumn(bar_width=40),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("[dim]{task.fields[extra]}"),
            console=self.console,
        )
        self.history: list[list[float]] = []  # loss, accuracy, beta, agreement, sparsity
        self.title = ""
        self.live = Live(console=self.console, refresh_per_second=8, get_renderable=self.render)

    def begin(self, title: str, epochs: int, done: int = 0) -> None:
        self.epochs, self.first, self.started, self.title = epochs, done, self.now(), title
        self.whole = self.bars.add_task("epoch", total=epochs, completed=done, extra="")
        self.inner = self.bars.add_task("step", total=1, extra="")
        self.live.start()

    def step(self, done: int, total: int) -> None:
        self.bars.update(self.inner, completed=done, total=total)

    def epoch(self, number: int, records: Sequence[Mapping[str, Any]]) -> None:
        shown = ("loss", "test_accuracy", "beta", "agreement", "sparsity")
        self.history.append([mean(records, key) for key in shown])
        self.bars.update(self.whole, completed=number, extra=f"{clock(self.left(number))} left")

    def render(self) -> Any:
        """The display as it stands."""
        from rich.console import Group
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        table.add_column(justify="right", style="bold")
        table.add_column(justify="right")
        table.add_column(style="cyan", no_wrap=True)
        rows = [
            ("loss", 0, "7.4f", 1.0, ""),
            ("accuracy, converged mask", 1, "6.2f", 100.0, " %"),
            ("β", 2, "", 1.0, ""),
            ("mask agreement", 3, "6.2f", 100.0, " %"),
            ("sparsity", 4, "6.2f", 100.0, " %"),
        ]
        for label, column, form, scale, unit in rows:
            past = [entry[column] for entry in self.history]
            now = scale * past[-1] if past else math.nan
            if past and math.isnan(now) and column >= 2:
                continue  # a dense run has no mask, others may have no β
            trend = [math.log(v) if v > 0 else math.nan for v in past] if column == 2 else past
            text = show_beta(now) if column == 2 and past else _shown(now, form, unit)
            table.add_row(label, text, sparkline(trend))
        return Panel(Group(self.bars, table), title=Text(self.title), title_align="left", border_style="blue")

    def note(self, message: str) -> None:
        self.console.print(message, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self.live.is_started:
            self.bars.remove_task(self.inner)
            self.live.stop()


def make_progress(stream: TextIO | None = None) -> PlainProgress:
    """What shows how a run goes on."""
    return suited(RichProgress, PlainProgress, stream)
