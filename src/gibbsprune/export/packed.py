"""A pruned network in a small file: positions of the surviving weights, and their values.

The file is a safetensors container of three byte tensors, each compressed by zlib. ``layout`` is JSON, one row per
entry of the model's state: name, dtype, shape, way, unit, bytes of positions, dtype of the values, their number.
``positions`` and ``values`` hold those of all entries, one after the other; values by planes, first the lowest byte of
each, as the highest ones, with sign and exponent, are much alike and the others are not. An entry that shares its
memory with an earlier one has the way "same" and that one's number as its unit, and holds nothing itself. Metadata
carry the format's name, its version and a SHA-256 of the three tensors. Nothing in the file is executed or unpickled.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..attaching import check_plain
from ..checks import shown
from ..errors import UserError
from ..files import parse_json, write_atomic
from .packing import Positions, positions

FORMAT, VERSION = "gibbsprune-packed", "3"
DTYPES = ("float32", "float16", "int8")
_PARTS = ("layout", "positions", "values")
_LAYOUT_FREE = 1 << 20  # bytes of a layout beyond what the model's own may take


@dataclass(frozen=True)
class PackedSize:
    """Bytes of the packed file, of the same state as dense safetensors, and of that after gzip."""

    packed: int
    dense: int
    gzip: int

    def __str__(self) -> str:
        return (
            f"{self.packed:,} bytes packed; dense safetensors {self.dense:,} ({self.dense / self.packed:.1f} times "
            f"as large), gzip of it {self.gzip:,} ({self.gzip / self.packed:.1f} times)"
        )


def save_packed(model: nn.Module, path: str | os.PathLike[str], dtype: str = "float32") -> None:
    """Write the state of a finalized model to ``path``, whole or not at all.

    Weights (floating tensors of two dimensions or more) keep their survivors only, as ``dtype``: "float32" (a
    float32 model comes back bit for bit, save that −0 becomes 0), "float16" (rounded to nearest), or "int8": per
    channel o, w ≈ s_o q with s_o = max |w_o| / 127 and q an integer from −127 to 127. Vectors (biases, norms) and
    integer buffers are kept exactly. A weight already narrower than ``dtype`` keeps its own type.
    """
    if dtype not in DTYPES:
        raise UserError(f"dtype is '{dtype}'; allowed are {', '.join(DTYPES)}.")
    state, firsts = _state(model), _firsts(model)
    layout: list[list[Any]] = []
    codes: list[bytes] = []
    values: list[bytes] = []
    names = list(state)
    for name, tensor in state.items():
        if firsts[name] != name:
            first = names.index(firsts[name])
            layout.append([name, *layout[first][1:3], "same", first, 0, "", 0])
            continue
        stored, scales = _stored(name, tensor, dtype)
        alive = (tensor != 0).flatten().numpy()
        units = (1, tensor[0, 0].numel(), tensor[0].numel()) if tensor.dim() >= 2 and tensor.numel() else ()
        where = Positions.shortest(alive, units, stored.element_size())
        flat = stored.flatten() if where.kept is None else stored.flatten()[torch.from_numpy(where.kept)]
        codes.append(where.code.tobytes())
        values += [_bytes(scales), _bytes(flat)]
        kinds = [str(kind).removeprefix("torch.") for kind in (tensor.dtype, stored.dtype)]
        layout.append([name, kinds[0], list(tensor.shape), where.way, where.unit, where.code.size, kinds[1], len(flat)])
    whole = (json.dumps(layout, separators=(",", ":")).encode(), b"".join(codes), b"".join(values))
    parts = {key: zlib.compress(part, 9) for key, part in zip(_PARTS, whole)}
    tensors = {key: torch.frombuffer(bytearray(part), dtype=torch.uint8) for key, part in parts.items()}
    metadata = {"format": FORMAT, "version": VERSION, "sha256": _digest(parts)}
    write_atomic(path, _safetensors().save(tensors, metadata=metadata))


def load_packed(path: str | os.PathLike[str], model: nn.Module) -> nn.Module:
    """Fill ``model``, built like the one that was saved, from a packed file, and return it.

    A damaged file, or one of another network, is refused before anything in the model changes.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {os.fspath(path)}: {error.strerror or error}") from error
    name = os.fspath(path)
    parts, state = _parts(name, content), _state(model)
    try:
        layout = _layout(name, parts["layout"], state)
        loaded = _unpack(layout, parts)
    except UserError:
        raise
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError,
            zlib.error) as error:  # fmt: skip
        raise UserError(f"{name} is damaged: its layout does not fit its content ({error})") from error
    model.load_state_dict(loaded)
    return model


def packed_size(path: str | os.PathLike[str], model: nn.Module) -> PackedSize:
    """The size of the packed file of ``model`` beside dense safetensors and gzip of the same state.

    Weights that layers share are counted once, as the packed file stores them.
    """
    firsts = set(_firsts(model).values())
    dense = _safetensors().save({name: tensor.clone() for name, tensor in _state(model).items() if name in firsts})
    return PackedSize(os.path.getsize(path), len(dense), len(gzip.compress(dense, 6)))


def _safetensors() -> ModuleType:
    try:
        import safetensors.torch
    except ImportError as error:
        raise UserError("packed files need safetensors: pip install 'gibbsprune[export]'") from error
    return safetensors.torch


def _state(model: nn.Module) -> dict[str, Tensor]:
    """The model's state on the CPU; a model with masks still in place is refused."""
    check_plain(model, "packing")
    state = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    return {name: value.detach().cpu().contiguous() for name, value in state.items()}


def _firsts(model: nn.Module) -> dict[str, str]:
    """For every entry of the model's state the first one in the same memory: itself, unless parameters are shared."""
    seen: dict[Any, str] = {}
    firsts = {}
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor):
            memory = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
            firsts[name] = seen.setdefault(memory, name) if value.numel() else name
    return firsts


def _stored(name: str, tensor: Tensor, dtype: str) -> tuple[Tensor, Tensor]:
    """The tensor as it is written, and the scales per channel (none but for int8)."""
    none = torch.zeros(0)
    if not tensor.is_floating_point() or tensor.dim() < 2 or not tensor.numel():
        return tensor, none
    if dtype == "int8":
        scales = tensor.float().flatten(1).abs().amax(1) / 127
        if not scales.isfinite().all():
            raise UserError(f"'{name}' has values that are not finite; they cannot be packed as int8.")
        column = scales.where(scales > 0, torch.ones(())).view(-1, *[1] * (tensor.dim() - 1))
        return (tensor.float() / column).round().clamp(-127, 127).to(torch.int8), scales
    wanted: torch.dtype = getattr(torch, dtype)
    if tensor.element_size() <= wanted.itemsize:
        return tensor, none
    stored = tensor.to(wanted)
    if (stored.isinf() & ~tensor.isinf()).any():
        raise UserError(f"'{name}' has values too large for {dtype}; pack it as float32.")
    return stored, none


def _bytes(tensor: Tensor) -> bytes:
    """By planes: the first byte of every value, then the second …"""
    flat = tensor.contiguous().view(-1)
    return flat.view(torch.uint8).view(len(flat), -1).T.numpy().tobytes() if len(flat) else b""


def _digest(parts: dict[str, bytes]) -> str:
    digest = hashlib.sha256(f"{FORMAT} {VERSION}".encode())
    for key in _PARTS:
        digest.update(f"{key} {len(parts[key])}\n".encode())
        digest.update(parts[key])
    return digest.hexdigest()


def _parts(path: str, content: bytes) -> dict[str, bytes]:
    """The three byte strings of a file whose version is known and whose checksum holds."""
    safetensors = _safetensors()
    try:
        length = int.from_bytes(content[:8], "little")
        metadata = parse_json(content[8 : 8 + length], path).get("__metadata__", {})
        tensors = safetensors.load(content)
        found = (metadata.get("format"), metadata.get("version"))
    except Exception as error:  # safetensors' own exception and the many of broken JSON
        raise UserError(f"{path} is no packed network, or is damaged or incomplete.") from error
    if found[0] != FORMAT:
        raise UserError(f"{path} is a safetensors file, but no packed network.")
    if found[1] != VERSION:
        raise UserError(f"{path} is of version {shown(found[1])} of the packed format; this release reads {VERSION}.")
    parts = {key: tensors[key].numpy().tobytes() if key in tensors else b"" for key in _PARTS}
    if metadata.get("sha256") != _digest(parts) or any(t.dtype != torch.uint8 for t in tensors.values()):
        raise UserError(f"{path} is damaged: its checksum does not match.")
    return parts


def _layout(path: str, content: bytes, state: dict[str, Tensor]) -> list[list[Any]]:
    """The layout of a file, which must be that of this state: nothing larger than the model is ever allocated."""
    limit = _LAYOUT_FREE + sum(256 + 6 * len(name) for name in state)
    reader = zlib.decompressobj()
    layout = parse_json(reader.decompress(content, limit), f"the layout of {path}", list)
    if reader.unconsumed_tail:
        raise UserError(f"{path} is of another network: its layout is far longer than the model's")
    rows = {row[0]: row for row in layout}
    if len(rows) != len(layout):
        raise ValueError("a name stands in it twice")
    for name in [*state, *rows]:
        if name not in state or name not in rows:
            where = "the file" if name in state else "the model"
            raise UserError(f"{path} is of another network: {where} has no {shown(name)}.")
        ours, kind, shape = state[name], _dtype(rows[name][1]), tuple(rows[name][2])
        if tuple(ours.shape) != shape or ours.dtype != kind:
            raise UserError(
                f"{path} is of another network: '{name}' is {kind} {shown(shape)} in the file and {ours.dtype} "
                f"{tuple(ours.shape)} in the model."
            )
    return layout


def _unpack(layout: list[list[Any]], parts: dict[str, bytes]) -> dict[str, Tensor]:
    """The state from layout, positions and values; ValueError and its like where they contradict each other."""
    for name, _, shape, _, _, code_bytes, _, count in layout:
        size = math.prod(shape)
        if not 0 <= count <= size or not 0 <= code_bytes <= 2 * size + 8:
            raise ValueError(f"'{name}' has {shown(count)} values in {shown(code_bytes)} bytes of positions")
    values = _Reader(
        parts["values"], sum(row[7] * _dtype(row[6] or row[1]).itemsize + 4 * sum(row[2][:1]) for row in layout)
    )
    codes = _Reader(parts["positions"], sum(row[5] for row in layout))
    loaded: dict[str, Tensor] = {}
    for name, dtype, shape, way, unit, code_bytes, stored_dtype, count in layout:
        if way == "same":
            if layout[unit][1:3] != [dtype, shape]:
                raise ValueError(f"'{name}' is the same as something of another shape")
            loaded[name] = loaded[layout[unit][0]]
            continue
        size = math.prod(shape)
        kept = positions(way, unit, np.frombuffer(codes.take(code_bytes), np.uint8), size)
        if kept.size != count:
            raise ValueError(f"'{name}' has {kept.size} positions and {count} values")
        kind, stored_kind = (_dtype(text) for text in (dtype, stored_dtype))
        quantized = stored_kind == torch.int8 and kind.is_floating_point
        scales = _tensor(values.take(4 * shape[0]), torch.float32) if quantized else torch.ones(0)
        survivors = _tensor(values.take(count * stored_kind.itemsize), stored_kind)
        flat = torch.zeros(size, dtype=stored_kind)
        flat[torch.from_numpy(kept)] = survivors
        full = flat.view(shape)
        loaded[name] = (full * scales.view(-1, *[1] * (len(shape) - 1)) if quantized else full).to(kind)
    if codes.left or values.left:
        raise ValueError("bytes left over")
    return loaded


def _dtype(text: str) -> torch.dtype:
    kind = getattr(torch, text, None)
    if not isinstance(kind, torch.dtype):
        raise ValueError(f"unknown dtype {text!r}")
    return kind


def _tensor(content: bytes, dtype: torch.dtype) -> Tensor:
    """The values whose planes these are."""
    if not content:
        return torch.zeros(0, dtype=dtype)
    planes = np.frombuffer(content, np.uint8).reshape(dtype.itemsize, -1)
    return torch.from_numpy(planes.T.copy()).view(-1).view(dtype)


class _Reader:
    """Bytes taken from the front of a compressed part, never past the end, and never more than ``most``."""

    def __init__(self, part: bytes, most: int) -> None:
        self.content, self.at = zlib.decompressobj().decompress(part, most + 1), 0

    @property
    def left(self) -> int:
        return len(self.content) - self.at

    def take(self, count: int) -> bytes:
        if not 0 <= count <= self.left:
            raise ValueError("ends too early")
        self.at += count
        return self.content[self.at - count : self.at]
