"""Schedules: pure functions from the epoch to β or a sparsity, held after their last epoch (Section III-A and III-E).

``stretch`` s evaluates the schedule at ⌊n/s⌋, so that it lasts s times as many epochs. Unstretched ones also take
fractions: ``set_epoch(step / steps_per_epoch)`` anneals from step to step.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

from .checks import bad, check_whole
from .errors import UserError

LAWS = ("annealed", "rising")  # a temperature that falls, or a sparsity that rises at none
RAMPED = 0.9  # the share of training over which that sparsity rises
ANNEALED = 0.64  # the share of training over which β rises, then it is held (128 of 200 epochs)


def annealed(epochs: int) -> int:
    """The epochs of a training over which β rises by default."""
    return max(1, round(ANNEALED * epochs))


@dataclass(frozen=True)
class Schedule(ABC):
    """β as a function of the epoch, counted from 0: ``schedule(epoch)``."""

    def __call__(self, epoch: float) -> float:
        if epoch < 0 or math.isnan(epoch):
            raise bad("epoch", epoch, "numbers from 0")
        return self._value(epoch)

    @abstractmethod
    def _value(self, epoch: float) -> float: ...


@dataclass(frozen=True)
class _Ramp(Schedule):
    start: float
    end: float
    epochs: int
    stretch: int = 1

    def __post_init__(self) -> None:
        _check_beta("start", self.start)
        _check_beta("end", self.end)
        check_whole("epochs", self.epochs)
        check_whole("stretch", self.stretch)

    def _progress(self, epoch: float) -> float:
        """0 at the first epoch, 1 from epoch ``epochs · stretch`` on."""
        return min(1.0, (epoch if self.stretch == 1 else epoch // self.stretch) / self.epochs)


@dataclass(frozen=True)
class LogSchedule(_Ramp):
    """β(n) = start · (end / start)^(n / epochs): equal factors per epoch.

    >>> [round(LogSchedule(1, 100, epochs=2)(n), 6) for n in range(4)]
    [1.0, 10.0, 100.0, 100.0]
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start <= 0 or self.end <= 0:
            raise UserError(f"a logarithmic schedule runs between positive values, not {self.start!r} and {self.end!r}")

    def _value(self, epoch: float) -> float:
        progress = self._progress(epoch)
        if progress == 1.0:
            return float(self.end)
        return float(self.start * (self.end / self.start) ** progress)


@dataclass(frozen=True)
class LinearSchedule(_Ramp):
    """β(n) = start + (end − start) · n / epochs.

    >>> [LinearSchedule(0, 4, epochs=2, stretch=2)(n) for n in range(6)]
    [0.0, 0.0, 2.0, 2.0, 4.0, 4.0]
    """

    def _value(self, epoch: float) -> float:
        return float(self.start + (self.end - self.start) * self._progress(epoch))


@dataclass(frozen=True)
class CubicSchedule(_Ramp):
    """s(n) = end + (start − end) · (1 − n / epochs)³: how gradual pruning raises its sparsity (Zhu & Gupta 2017).

    >>> [round(CubicSchedule(0.0, 0.8, epochs=2)(n), 6) for n in range(4)]
    [0.0, 0.7, 0.8, 0.8]
    """

    def _value(self, epoch: float) -> float:
        left = 1.0 - self._progress(epoch)
        return float(self.end + (self.start - self.end) * left**3)


@dataclass(frozen=True)
class ConstantSchedule(Schedule):
    """β(n) = value."""

    value: float

    def __post_init__(self) -> None:
        _check_beta("value", self.value)

    def _value(self, epoch: float) -> float:
        return float(self.value)


@dataclass(frozen=True)
class Join(Schedule):
    """One schedule after another: ``Join((a, b), boundaries=(10,))`` is a before epoch 10 and b(n − 10) from it."""

    parts: tuple[Schedule, ...]
    boundaries: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise UserError("parts are none: allowed are one or more schedules")
        if wrong := [part for part in self.parts if not callable(part) or isinstance(part, type)]:
            raise UserError(f"part {wrong[0]!r} is no schedule: allowed are schedules and functions of the epoch")
        if len(self.boundaries) != len(self.parts) - 1 or list(self.boundaries) != sorted(self.boundaries):
            raise UserError(
                f"boundaries are {self.boundaries!r}: allowed is a rising tuple of {len(self.parts) - 1} epochs"
            )

    def _value(self, epoch: float) -> float:
        index = sum(epoch >= b for b in self.boundaries)
        return self.parts[index](epoch - (0, *self.boundaries)[index])


def beta_at(schedule: Callable[[Any], float], epoch: Any, below_zero: bool = False) -> float:
    """β of an epoch, by a schedule or anybody's function, checked; ``below_zero`` where it is a distance."""
    if isinstance(epoch, bool) or not isinstance(epoch, Real):
        raise bad("epoch", epoch, "numbers, 0 for the first")
    given = schedule(epoch)
    try:
        beta = float(given)
    except (TypeError, ValueError):
        beta = math.nan
    if math.isnan(beta) or (beta < 0 and not below_zero):
        raise UserError(f"the schedule gives beta {given!r} at epoch {epoch}: allowed are numbers from 0 up")
    return beta


def _check_beta(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise bad(name, value, "numbers")
