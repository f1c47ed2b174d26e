"""Ctrl-C and SIGTERM: stop where nothing is lost, or at once when that would take long."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """A run was stopped by a signal; its last checkpoint is intact."""


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """While entered, SIGTERM is a Ctrl-C: what is to be done at the end is done."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Interrupted(signal.Signals(number).name)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Interrupt:
    """While entered, a first signal stops the run at the end of its epoch if that is near, else at once.

    A second signal, or one that comes before or after training, stops it at once. Either way :class:`Interrupted` is
    raised. Outside the main thread, where signals cannot be caught, this does nothing.

    >>> with Interrupt() as interrupt, interrupt.waiting():  # here a signal waits ...
    ...     interrupt.begin_epoch()
    ...     interrupt.step(1, 10)                            # ... until this finds the epoch's end too far away
    ...     if interrupt.requested:                          # ... or somebody asks, and saves
    ...         raise Interrupted("stopped after an epoch")
    """

    def __init__(self, patience: float = 10.0, tell: Callable[[str], object] | None = None) -> None:
        self.patience = patience
        self.tell = tell
        self._told = False
        self.requested = False
        self._waiting = False
        self._started = 0.0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested or not self._waiting:
            raise Interrupted(signal.Signals(number).name)
        self.requested = True

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """While entered, a first signal waits for the end of an epoch."""
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False

    def begin_epoch(self) -> None:
        self._started = time.monotonic()

    def step(self, done: int, total: int) -> None:
        """Called within an epoch, after ``done`` of its ``total`` steps."""
        if self.requested:
            pace = (time.monotonic() - self._started) / max(1, done)
            if pace * (total - done) > self.patience:
                raise Interrupted("stopped within an epoch")
            if self.tell is not None and not self._told:
                self.tell("stopping after this epoch; Ctrl-C again stops at once")
                self._told = True
