"""gibbsprune: train a network and prune it at the same time, by sampling masks from an annealed Gibbs distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .budgets import Budget
from .errors import UserError
from .export import (
    QuantizationAware,
    accelerate,
    compact,
    compact_pretrained,
    compile_c,
    export_c,
    export_onnx,
    export_pt2,
    from_torch_prune,
    load_compact,
    load_packed,
    packed_size,
    save_compact,
    save_packed,
    to_torch_prune,
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
    "QuantizationAware",
    "Schedule",
    "Structure",
    "UserError",
    "Weight",
    "accelerate",
    "compact",
    "compact_pretrained",
    "compile_c",
    "converged_mask",
    "energy",
    "export_c",
    "export_onnx",
    "export_pt2",
    "from_torch_prune",
    "hold_zeros",
    "load_compact",
    "load_packed",
    "load_run",
    "packed_size",
    "recalibrate",
    "sample",
    "save_compact",
    "save_packed",
    "threshold",
    "to_torch_prune",
]


def __getattr__(name: str) -> Any:
    """Loads what belongs to training when it is asked for, and only then."""
    if name != "load_run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .training.finished import load_run

    return load_run
