"""gibbsprune: train a network and prune it at the same time, by sampling masks from an annealed Gibbs distribution."""

from .errors import UserError
from .export import (
    accelerate,
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
from .schedules import ConstantSchedule, Join, LinearSchedule, LogSchedule, Schedule
from .structures import Filter, Kernel, Structure, Weight
from .threshold import converged_mask, threshold

__version__ = "0.1.0"

__all__ = [
    "Binary",
    "ConstantSchedule",
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
    "accelerate",
    "compact",
    "compile_c",
    "converged_mask",
    "energy",
    "export_c",
    "export_onnx",
    "export_pt2",
    "hold_zeros",
    "load_packed",
    "packed_size",
    "recalibrate",
    "sample",
    "save_packed",
    "threshold",
]
