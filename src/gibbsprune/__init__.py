"""gibbsprune: train a network and prune it at the same time, with masks from a Gibbs distribution.

What is here is loaded when it is asked for: ``import gibbsprune`` takes no time, and the command line tells its version
and its commands without torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .budgets import Budget
    from .couplings import Coupled
    from .diagnostics import Diagnostics, autocorrelation, autocorrelation_time
    from .energies import Neighbours, Redundancy
    from .errors import UserError
    from .export import (
        QuantizationAware,
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
        to_semi_structured,
        to_torch_prune,
    )
    from .graphs import all_pairs, grid_pairs, kth_pairs
    from .hamiltonians import Binary, Hamiltonian, Linear, Quadratic, energy
    from .holding import hold_zeros
    from .law import sample
    from .pairwise import Pairwise
    from .pruner import GibbsPruner
    from .recalibration import recalibrate
    from .saving import plain_state
    from .schedules import ConstantSchedule, CubicSchedule, Join, LinearSchedule, LogSchedule, Schedule
    from .structures import NM, AtMost, Block, Column, Filter, Head, Kernel, Neuron, Structure, Unit, Weight
    from .threshold import converged_mask, threshold
    from .training.finished import load_run

__version__ = "0.1.0"

__all__ = [
    "NM",
    "AtMost",
    "Binary",
    "Block",
    "Budget",
    "Column",
    "ConstantSchedule",
    "Coupled",
    "CubicSchedule",
    "Diagnostics",
    "Filter",
    "GibbsPruner",
    "Hamiltonian",
    "Head",
    "Join",
    "Kernel",
    "Linear",
    "LinearSchedule",
    "LogSchedule",
    "Neighbours",
    "Neuron",
    "Pairwise",
    "Quadratic",
    "QuantizationAware",
    "Redundancy",
    "Schedule",
    "Structure",
    "Unit",
    "UserError",
    "Weight",
    "__version__",
    "all_pairs",
    "autocorrelation",
    "autocorrelation_time",
    "compact",
    "compact_pretrained",
    "compile_c",
    "converged_mask",
    "energy",
    "export_c",
    "export_onnx",
    "export_pt2",
    "from_torch_prune",
    "grid_pairs",
    "hold_zeros",
    "kth_pairs",
    "load_compact",
    "load_packed",
    "load_run",
    "packed_size",
    "plain_state",
    "recalibrate",
    "sample",
    "save_compact",
    "save_packed",
    "threshold",
    "to_semi_structured",
    "to_torch_prune",
]

#: Where everything lives.
_HOMES = {
    "budgets": ("Budget",),
    "couplings": ("Coupled",),
    "diagnostics": ("Diagnostics", "autocorrelation", "autocorrelation_time"),
    "energies": ("Neighbours", "Redundancy"),
    "errors": ("UserError",),
    "export": (
        *("QuantizationAware", "compact", "compact_pretrained", "compile_c", "export_c", "export_onnx"),
        *("export_pt2", "from_torch_prune", "load_compact", "load_packed", "packed_size", "save_compact"),
        *("save_packed", "to_semi_structured", "to_torch_prune"),
    ),
    "graphs": ("all_pairs", "grid_pairs", "kth_pairs"),
    "hamiltonians": ("Binary", "Hamiltonian", "Linear", "Quadratic", "energy"),
    "holding": ("hold_zeros",),
    "law": ("sample",),
    "pairwise": ("Pairwise",),
    "pruner": ("GibbsPruner",),
    "recalibration": ("recalibrate",),
    "saving": ("plain_state",),
    "schedules": ("ConstantSchedule", "CubicSchedule", "Join", "LinearSchedule", "LogSchedule", "Schedule"),
    "structures": (
        *("AtMost", "Block", "Column", "Filter", "Head", "Kernel", "NM", "Neuron", "Structure", "Unit", "Weight"),
    ),
    "threshold": ("converged_mask", "threshold"),
    "training.finished": ("load_run",),
}


def __getattr__(name: str) -> Any:
    """Loads what is asked for, and only then; modules, too."""
    if name in __all__:
        home = next(home for home, names in _HOMES.items() if name in names)
        return globals().setdefault(name, getattr(import_module(f".{home}", __name__), name))
    if not name.startswith("_"):
        try:
            return import_module(f".{name}", __name__)
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """The function ``threshold`` has the name of its module, which the import system would put in its place."""

    @property
    def threshold(self) -> Any:
        return import_module(".threshold", __name__).threshold

    @threshold.setter
    def threshold(self, module: ModuleType) -> None:
        pass


sys.modules[__name__].__class__ = _Package
