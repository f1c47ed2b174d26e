"""What is left after pruning, made really smaller and faster: compact networks, packed files, faster execution."""

from gibbsprune.export.acceleration import AccelerateReport, accelerate
from gibbsprune.export.compaction import CompactReport, compact
from gibbsprune.export.packed import PackedSize, load_packed, packed_size, save_packed

__all__ = [
    "AccelerateReport",
    "CompactReport",
    "PackedSize",
    "accelerate",
    "compact",
    "load_packed",
    "packed_size",
    "save_packed",
]
