"""What is left after pruning, made really smaller and faster: compact networks, packed files, faster execution."""

from gibbsprune.export.acceleration import AccelerateReport, accelerate
from gibbsprune.export.c import CompiledNetwork, CReport, compile_c, export_c
from gibbsprune.export.compaction import CompactReport, compact
from gibbsprune.export.onnx import ExportReport, export_onnx, export_pt2
from gibbsprune.export.packed import PackedSize, load_packed, packed_size, save_packed
from gibbsprune.export.semi_structured import SemiStructuredReport, to_semi_structured

__all__ = [
    "AccelerateReport",
    "CReport",
    "CompactReport",
    "CompiledNetwork",
    "ExportReport",
    "PackedSize",
    "SemiStructuredReport",
    "accelerate",
    "compact",
    "compile_c",
    "export_c",
    "export_onnx",
    "export_pt2",
    "load_packed",
    "packed_size",
    "save_packed",
    "to_semi_structured",
]
