"""Checkpoints that verify themselves, each whole or not there.

A checkpoint file is one line with the SHA-256 of the rest, then the bytes of ``torch.save``. It is read
back with ``weights_only=True``: nothing is ever unpickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import warnings
from collections.abc import Callable
from typing import Any

import torch

from ..archives import check_tensors
from ..errors import UserError
from ..files import make_folder, read_bytes, write_atomic
from ..text import first_line
from .places import Place

_MAGIC = b"gibbsprune-checkpoint sha256 "
_NAME = re.compile(r"epoch-(\d{6})\.ckpt")


def save(folder: Place, epoch: int, state: dict[str, Any], keep: int = 2) -> Place:
    """Saves a state. Older checkpoints go only when the new one is safely on the disk.

    Args:
        folder: of the checkpoints.
        epoch: after how many epochs.
        state: nested dicts and lists of tensors and plain values.
        keep: how many stay, the newest.
    """
    make_folder(folder)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    path = folder / f"epoch-{epoch:06d}.ckpt"
    write_atomic(path, _MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload)
    saved = checkpoints(folder)
    ahead = [old for number, old in saved if number > epoch]  # left over from before a fall-back to an older one
    behind = [old for number, old in saved if number <= epoch]
    for old in ahead + behind[: max(0, len(behind) - keep)]:
        with contextlib.suppress(OSError):
            old.unlink()
    return path


def checkpoints(folder: Place) -> list[tuple[int, Place]]:
    """The checkpoints in a folder, oldest first, as (epochs trained, path)."""
    found: list[tuple[int, Place]] = []
    for path in folder.glob("epoch-*.ckpt"):
        match = _NAME.fullmatch(path.name)
        if match:
            found.append((int(match[1]), path))
    return sorted(found, key=lambda pair: pair[0])


def load(path: Place) -> dict[str, Any]:
    """Reads one checkpoint (onto the CPU); a damaged or truncated one is a :class:`UserError`."""
    header, _, payload = read_bytes(path).partition(b"\n")
    digest = hashlib.sha256(payload).hexdigest().encode()
    if header != _MAGIC + digest:
        raise UserError(f"checkpoint {path} is damaged or incomplete (its checksum does not match)")
    try:
        check_tensors(payload)
        state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds here; the checksum held, so this is a foreign version
        found = f"with torch {torch.__version__}: {first_line(error)}"
        raise UserError(f"checkpoint {path} cannot be read {found}") from error
    if not isinstance(state, dict):
        raise UserError(f"checkpoint {path} holds a {type(state).__name__}: allowed are states of runs")
    return state


def load_latest(folder: Place, warn: Callable[[str], object] = warnings.warn) -> tuple[int, dict[str, Any]] | None:
    """The newest usable checkpoint as (epochs trained, state), or None where there is none yet.

    A damaged one is passed over with a warning for the one before; if all are damaged, a :class:`UserError`.
    """
    saved = checkpoints(folder)
    for number, path in reversed(saved):
        try:
            return number, load(path)
        except UserError as error:
            if number != saved[0][0]:
                warn(f"{error}; going back to the one before")
    if saved:
        raise UserError(f"no usable checkpoint in {folder}: all {len(saved)} there are damaged")
    return None
