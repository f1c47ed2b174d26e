"""What is left after pruning, made really smaller: packed files."""

from gibbsprune.export.packed import PackedSize, load_packed, packed_size, save_packed

__all__ = ["PackedSize", "load_packed", "packed_size", "save_packed"]
