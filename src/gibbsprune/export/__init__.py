"""What is left after pruning, made really smaller and faster: compact networks, packed files, C."""

from .c import CompiledNetwork, CReport, compile_c, export_c
from .compaction import CompactReport, compact
from .int8 import QuantizationAware
from .onnx import ExportReport, export_onnx, export_pt2
from .packed import PackedSize, load_packed, packed_size, save_packed
from .portable import load_compact, save_compact
from .pretrained import compact_pretrained
from .semi_structured import SemiStructuredReport, to_semi_structured
from .torch_masks import from_torch_prune, to_torch_prune

__all__ = [
    "CReport",
    "CompactReport",
    "CompiledNetwork",
    "ExportReport",
    "PackedSize",
    "QuantizationAware",
    "SemiStructuredReport",
    "compact",
    "compact_pretrained",
    "compile_c",
    "export_c",
    "export_onnx",
    "export_pt2",
    "from_torch_prune",
    "load_compact",
    "load_packed",
    "packed_size",
    "save_compact",
    "save_packed",
    "to_semi_structured",
    "to_torch_prune",
]
