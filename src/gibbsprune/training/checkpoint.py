"""Files that are either whole or not there: atomic writes, and checkpoints that verify themselves.

A checkpoint file is one line with the SHA-256 of the rest, then the bytes of ``torch.save``. It is read
back with ``weights_only=True``: nothing is ever unpickled.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gibbsprune.errors import UserError
from gibbsprune.training.places import Place, Remote, place

_MAGIC = b"gibbsprune-checkpoint sha256 "
_NAME = re.compile(r"epoch-(\d{6})\.ckpt")


def write_atomic(path: str | os.PathLike[str] | Remote, content: bytes | str) -> None:
    """Write a file so that after a crash at any moment it holds the old content or the new one, never a part.

    The content goes to a temporary file in the same folder, is forced to the disk, and takes its name in one
    step. A full disk or an unwritable folder is a :class:`UserError`, and the old file stays as it was.
    A link stays a link; devices and pipes are refused. Elsewhere than on this machine's disks it is one put.
    """
    data = content.encode() if isinstance(content, str) else content
    if isinstance(path, Remote):
        try:
            path.write_bytes(data)
        except OSError as error:
            raise unwritable(path, error) from error
        return
    path = Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)
    if os.path.exists(path) and not path.is_file() and not path.is_dir():
        raise WriteError(f"cannot write {path}: it is no ordinary file")
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def save_tensors(path: str | os.PathLike[str] | Remote, tensors: Mapping[str, Tensor], about: dict[str, str]) -> None:
    """Write tensors as one safetensors file, atomically."""
    from safetensors.torch import save

    flat = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_atomic(path, save(flat, metadata=about))


class WriteError(UserError):
    """A file could not be written: the disk is full, or the folder not ours."""


def unwritable(path: str | os.PathLike[str] | Remote, error: OSError) -> WriteError:
    """The sentence for a file that could not be written."""
    reason = error.strerror or str(error)
    return WriteError(f"cannot write {path}: {reason}; what was saved before is untouched")


def make_folder(folder: Place) -> None:
    """Make a folder and those above it; where that cannot be, or nothing be written there, a :class:`WriteError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if isinstance(folder, Path) and not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise unwritable(folder, error) from error


def clean(folder: str | os.PathLike[str]) -> None:
    """Remove the temporary files that a killed process left in ``folder``."""
    for leftover in Path(folder).glob(".*.tmp"):
        with contextlib.suppress(OSError):
            leftover.unlink()


def save(folder: str | os.PathLike[str] | Remote, epoch: int, state: dict[str, Any], keep: int = 2) -> Place:
    """Save ``state`` (nested dicts and lists of tensors and plain values) as it is after ``epoch`` epochs.

    Older checkpoints go only when the new one is safely on the disk; the newest ``keep`` stay.
    """
    folder = place(folder)
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


def checkpoints(folder: str | os.PathLike[str] | Remote) -> list[tuple[int, Place]]:
    """The checkpoints in a folder, oldest first, as (epochs trained, path)."""
    found: list[tuple[int, Place]] = []
    for path in place(folder).glob("epoch-*.ckpt"):
        match = _NAME.fullmatch(path.name)
        if match:
            found.append((int(match[1]), path))
    return sorted(found)


def load(path: str | os.PathLike[str] | Remote) -> dict[str, Any]:
    """Read one checkpoint (onto the CPU); a damaged or truncated one is a :class:`UserError`."""
    path = place(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    header, _, payload = content.partition(b"\n")
    digest = hashlib.sha256(payload).hexdigest().encode()
    if header != _MAGIC + digest:
        raise UserError(f"checkpoint {path} is damaged or incomplete (its checksum does not match)")
    try:
        return torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds here; the checksum held, so this is a foreign version
        first_line = str(error).partition("\n")[0]
        raise UserError(f"checkpoint {path} cannot be read with torch {torch.__version__}: {first_line}") from error


def load_latest(
    folder: str | os.PathLike[str] | Remote, warn: Callable[[str], object] = warnings.warn
) -> tuple[int, dict[str, Any]] | None:
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


def _sync_folder(folder: Path) -> None:
    """Force a folder's entries to the disk, where the system can."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
