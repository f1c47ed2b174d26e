"""What is left after pruning, made really smaller and faster: compact networks, packed files, C."""

from gibbsprune.export.c import CompiledNetwork, CReport, compile_c, export_c
from gibbsprune.export.compaction import CompactReport, compact
from gibbsprune.export.onnx import ExportReport, export_onnx, export_pt2
from gibbsprune.export.packed import PackedSize, load_packed, packed_size, save_packed

__all__ = [
    "CReport",
    "CompactReport",
    "CompiledNetwork",
    "ExportReport",
    "PackedSize",
    "compact",
    "compile_c",
    "export_c",
    "export_onnx",
    "export_pt2",
    "load_packed",
    "packed_size",
    "save_packed",
]
