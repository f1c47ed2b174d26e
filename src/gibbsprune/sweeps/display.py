"""One display of a sweep, whatever trains it: a live one on a terminal, plain lines anywhere else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TextIO

from ..text import clock
from ..training.progress import Lines, suited
from .fleets import Event
from .planner import Planned, Survey


class Display(Lines):
    """Plain lines: what is said, and where each fleet is after each of its tests."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self.done = self.total = 0
        self.rest = math.nan  # seconds of the fleets that have not begun
        self.left: dict[str, float] = {}  # and of those that have

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the display."""

    def stands(self, state: Survey, fleets: Sequence[Planned], workers: int) -> None:
        """Where the sweep stands, and what is planned beyond what runs."""
        self.done, self.total = len(state.done), len({*state.chosen, *state.queue})
        self.rest = sum(fleet.seconds for fleet in fleets) / max(1, workers)

    def seconds_left(self) -> float:
        """Until all is done, at the pace so far."""
        return self.rest + max(self.left.values(), default=0.0)

    def tell(self, event: Event) -> None:
        """What a fleet says: a text, or where it is."""
        if "text" in event:
            self.note(f"[{event['fleet']}] {event['text']}")
            return
        self.left[event["fleet"]] = event["left"]
        if event["epoch"] >= event["epochs"]:
            del self.left[event["fleet"]]
        self.epoch(event)

    def epoch(self, event: Event) -> None:
        shown = " ".join("–" if a is None else f"{100 * a:.1f}" for a in event["accuracies"])
        whole = "" if math.isnan(self.seconds_left()) else f", {clock(self.seconds_left())} of the sweep"
        self.note(
            f"[{event['fleet']}] epoch {event['epoch']}/{event['epochs']} {clock(event['seconds'])} "
            f"({clock(event['left'])} left{whole}): {shown}"
        )


class Live(Display):
    """A bar for the sweep, with its time left, and one for each fleet that trains; lines scroll above them."""

    def __init__(self, stream: TextIO | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        super().__init__(stream)
        self.console = Console(file=self.stream)
        count = "{task.completed:.0f}/{task.total:.0f} {task.fields[unit]}"
        name, done, extra = map(TextColumn, ("{task.description}", count, "{task.fields[extra]}"))
        self.bars = Progress(name, BarColumn(bar_width=30), done, extra, console=self.console)
        self.whole: Any = None
        self.fleets: dict[str, Any] = {}

    def __enter__(self) -> Live:
        self.bars.start()
        self.whole = self.bars.add_task("sweep", total=max(1, self.total), completed=self.done, unit="runs", extra="")
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def stands(self, state: Survey, fleets: Sequence[Planned], workers: int) -> None:
        super().stands(state, fleets, workers)
        self._show()

    def _show(self) -> None:
        if self.whole is not None:
            left = self.seconds_left()
            extra = "" if math.isnan(left) else f"{clock(left)} left"
            self.bars.update(self.whole, total=max(1, self.total), completed=self.done, extra=extra)

    def epoch(self, event: Event) -> None:
        name, known = event["fleet"], [a for a in event["accuracies"] if a is not None]
        extra = f"{clock(event['left'])} left" + (f", {100 * sum(known) / len(known):.1f} %" if known else "")
        if name not in self.fleets:
            self.fleets[name] = self.bars.add_task(f" {name}", total=event["epochs"], unit="epochs", extra="")
        self.bars.update(self.fleets[name], completed=event["epoch"], extra=extra)
        if event["epoch"] >= event["epochs"]:
            self.bars.remove_task(self.fleets.pop(name))
        self._show()

    def note(self, message: str) -> None:
        self.console.print(message, markup=False, highlight=False, soft_wrap=True)


def make_display(stream: TextIO | None = None) -> Display:
    """What shows how a sweep goes on."""
    return suited(Live, Display, stream)
