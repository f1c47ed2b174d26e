"""A pruned network as one C file, and that file compiled: weights that are zero cost nothing."""

from .compiled import CompiledNetwork, compile_c
from .write import CReport, export_c

__all__ = ["CReport", "CompiledNetwork", "compile_c", "export_c"]
