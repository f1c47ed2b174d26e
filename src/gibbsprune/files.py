"""Files that are either whole or not there, JSON that is read without surprises, and locks.

Places elsewhere than on this machine's disks (:class:`gibbsprune.training.places.Remote`) are told by what they can do:
``write_bytes`` puts a whole file, ``read_bytes`` gets one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from .checks import one_line
from .errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

TEMPORARY = re.compile(r"\..+\.[0-9a-f]+\.tmp")


class Elsewhere(Protocol):
    """A file or folder that is no path of this machine."""

    def read_bytes(self) -> bytes: ...
    def write_bytes(self, content: bytes) -> Any: ...
    def mkdir(self, parents: bool = ..., exist_ok: bool = ...) -> None: ...


Where = str | os.PathLike[str] | Elsewhere


class WriteError(UserError):
    """A file could not be written: the disk is full, or the folder not ours."""


class ReadError(UserError):
    """A file could not be read, or holds something else than it should, which may be anything."""

    def __init__(self, sentence: str) -> None:
        super().__init__(one_line(sentence, 600))


class Missing(ReadError):
    """There is no such file."""


class Busy(UserError):
    """A folder that another process holds."""


# -- writing ---------------------------------------------------------------------------------------------------------


def write_atomic(path: Where, content: bytes | str) -> None:
    """Writes a file so that after a crash at any moment it holds the old content or the new one, never a part."""
    data = content.encode() if isinstance(content, str) else content
    if isinstance(path, (str, os.PathLike)):
        with atomic(path) as file:
            file.write(data)
        return
    with writing(path):
        path.write_bytes(data)


@contextlib.contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to, which takes its name in one step at the end.

    The content goes to a new temporary file in the same folder and is forced to the disk first. A full disk or an
    unwritable folder is a :class:`WriteError`, and the old file stays as it was. A link stays a link; devices and pipes
    are refused.
    """
    path = Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)
    if os.path.exists(path) and not path.is_file() and not path.is_dir():
        raise WriteError(f"cannot write {path}: it is no ordinary file")
    temporary = path.parent / temporary_name(path.name)
    with writing(path):
        file = open(temporary, "xb")  # noqa: SIM115  a name of its own that nobody can have put a link under
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            _sync_folder(path.parent)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def temporary_name(name: str) -> str:
    """A hidden name beside ``name`` that no other process can have, on this machine or elsewhere."""
    return f".{name}.{secrets.token_hex(8)}.tmp"


@contextlib.contextmanager
def writing(path: object) -> Iterator[None]:
    """What the system refuses within is one sentence about ``path``."""
    try:
        yield
    except OSError as error:
        raise WriteError(
            f"cannot write {path}: {error.strerror or error}; what was saved before is untouched"
        ) from error


def make_folder(folder: Path | Elsewhere) -> None:
    """Makes a folder and those above it; where that cannot be, or nothing be written there, a :class:`WriteError`."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if isinstance(folder, Path) and not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def kept_in(variable: str, below: str = "") -> Path:
    """The folder of what lasts from one command to the next: what this variable says, or one below ~/.cache."""
    named = os.environ.get(variable)
    try:
        return Path(named or Path("~/.cache/gibbsprune") / below).expanduser()
    except RuntimeError:  # as of a user whom the machine does not know
        raise UserError(
            f"there is no home folder: set the variable {variable} to a folder that may be written"
        ) from None


def clean(folder: str | os.PathLike[str], older: float = 0.0) -> None:
    """Removes the temporary files that a killed process left in ``folder`` and below; only its holder may.

    Where nobody holds the folder, only those may go that are ``older`` than any save takes, in seconds.
    """
    for leftover in Path(folder).rglob(".*.tmp"):
        if TEMPORARY.fullmatch(leftover.name):
            with contextlib.suppress(OSError):
                if time.time() - leftover.stat().st_mtime >= older:
                    leftover.unlink()


def _sync_folder(folder: Path) -> None:
    """Forces a folder's entries to the disk, where the system can."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def save_tensors(path: Where, tensors: Mapping[str, Tensor], about: dict[str, str]) -> str:
    """Writes tensors as one safetensors file, atomically; the SHA-256 of what was written."""
    from safetensors.torch import save

    flat = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    content = save(flat, metadata=about)
    write_atomic(path, content)
    return hashlib.sha256(content).hexdigest()


def read_bytes(path: Path | Elsewhere) -> bytes:
    """What a file holds, or a :class:`ReadError` (:class:`Missing`)."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise Missing(f"there is no {path}") from None
    except (OSError, MemoryError) as error:
        raise ReadError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


# -- JSON ------------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """The value as JSON can hold it: NaN and infinities become null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def json_text(value: Any) -> str:
    """Readable JSON."""
    return json.dumps(plain(value), indent=2) + "\n"


def write_json(path: Where, value: Any) -> None:
    """Writes readable JSON, atomically."""
    write_atomic(path, json_text(value))


def read_json(path: Path | Elsewhere, kind: type = dict) -> Any:
    """The JSON of a file that anybody may have damaged: a ``kind``, or a :class:`ReadError` (:class:`Missing`)."""
    return parse_json(read_bytes(path), str(path), kind)


def parse_json(content: bytes | str, name: str, kind: type = dict) -> Any:
    """The JSON in ``content``, which is told of as ``name``."""
    try:
        value = json.loads(content, parse_int=_whole, parse_float=_finite)
    except RecursionError:
        raise ReadError(f"{name} cannot be read: it is nested too deeply") from None
    except (ValueError, MemoryError) as error:
        raise ReadError(f"{name} cannot be read: {error}") from None
    if not isinstance(value, kind):
        raise ReadError(f"{name} cannot be read: it holds no JSON {'object' if kind is dict else kind.__name__}")
    return value


def _whole(digits: str) -> int:
    if len(digits) > 300:
        raise ValueError(f"the number {digits[:20]}… is too large")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"the number {digits[:20]} is too large")
    return value


# -- locks -----------------------------------------------------------------------------------------------------------


class Lock:
    """Holds a file or folder for this process; the system releases it when the process ends, however it ends.

    Where another holds it, this waits, or is :class:`Busy` with ``busy`` as its sentence. On a system without such
    locks nothing is held.
    """

    def __init__(self, path: str | os.PathLike[str], busy: str | None = None) -> None:
        self._handle = -1
        try:
            import fcntl
        except ImportError:  # not a POSIX system: no lock to be had
            return
        with writing(path):
            self._handle = os.open(path, os.O_RDONLY if os.path.isdir(path) else os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
            except BlockingIOError:
                self.release()
                raise Busy(busy or f"{path} is busy") from None
            except OSError:  # a filesystem without locks
                if busy:
                    self.release()
                    raise

    def release(self) -> None:
        """Lets other processes in."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
