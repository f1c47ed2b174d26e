"""What is left after pruning, made really smaller: compact networks and packed files."""

from gibbsprune.export.compaction import CompactReport, compact
from gibbsprune.export.packed import PackedSize, load_packed, packed_size, save_packed

__all__ = ["CompactReport", "PackedSize", "compact", "load_packed", "packed_size", "save_packed"]
