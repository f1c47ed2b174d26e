"""gibbsprune: train a network and prune it at the same time, by sampling masks from an annealed Gibbs distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .budgets import Budget
from .errors import UserError
from .export import (
    compact,
    compile_c,
    export_c,
    export_onnx,
    export_pt2,
    load_packed,
    packed_size,
    save_packed,
)
from .hamiltonians import Binary, Hamiltonian, Linear, Quadratic, energy
from .holding import hold_zeros
from .law import sample
from .pruner import GibbsPruner
from .recalibration import recalibrate
from .schedules import ConstantSchedule, CubicSchedule, Join, LinearSchedule, LogSchedule, Schedule
from .structures import Filter, Kernel, Structure, Weight
from .threshold import converged_mask, threshold

if TYPE_CHECKING:
    from .training.finished import load_run

__version__ = "0.1.0"

__all__ = [
    "Binary",
    "Budget",
    "ConstantSchedule",
    "CubicSchedule",
    "Filter",
    "GibbsPruner",
    "Hamiltonian",
    "Join",
    "Kernel",
    "Linear",
    "LinearSchedule",
    "LogSchedule",
    "Quadratic",
    "Schedule",
    "Structure",
    "UserError",
    "Weight",
    "compact",
    "compile_c",
    "converged_mask",
    "energy",
    "export_c",
    "export_onnx",
    "export_pt2",
    "hold_zeros",
    "load_packed",
    "load_run",
    "packed_size",
    "recalibrate",
    "sample",
    "save_packed",
    "threshold",
]


def __getattr__(name: str) -> Any:
    """Loads what belongs to training when it is asked for, and only then."""
    if name != "load_run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .training.finished import load_run

    return load_run
