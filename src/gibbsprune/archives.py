"""Zip archives that anybody may have made: numpy's ``.npz`` and what ``torch.save`` writes.

Nothing is unpickled beyond tensors and plain values, and nothing is allocated before the sizes that an archive states
have been held against each other and against its own length: a few bytes cannot ask for gigabytes.
"""

from __future__ import annotations

import io
import math
import os
import pickletools
import re
import zipfile
import zlib
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, Any

from .files import Missing, ReadError
from .text import first_line

if TYPE_CHECKING:
    import numpy as np

FREE, RATIO = 1 << 26, 100  # bytes that any archive may hold, and how many times its own length beyond that
#: What the pickle of nested dicts and lists of tensors and plain values names.
_NAMES = re.compile(
    r"collections OrderedDict|torch\._utils _rebuild_(tensor_v2|parameter)|torch ([A-Z]\w*Storage|Size|[a-z]\w+)"
)
_BROKEN = (
    ArithmeticError, EOFError, LookupError, MemoryError, NotImplementedError, OSError, RuntimeError, SyntaxError,
    TypeError, ValueError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def read_arrays(
    source: str | os.PathLike[str] | bytes, name: str, keys: Iterable[str], optional: Iterable[str] = ()
) -> dict[str, np.ndarray]:
    """The arrays of these keys in an ``.npz`` file or its bytes; Python objects are never loaded.

    Those of ``optional`` keys are there if the file has them.

    What is damaged, lacks a key, or would grow to more than its length allows, is a :class:`ReadError` about ``name``.
    """
    from numpy.lib import format as numpy_format

    keys = list(keys)
    try:
        with _opened(source) as file:
            if not zipfile.is_zipfile(file):
                wanted = f"an .npz file with {', '.join(keys)} is needed"
                raise ReadError(f"{name} is damaged or of another kind; {wanted}")
            with zipfile.ZipFile(file) as archive:
                if missing := [key for key in keys if f"{key}.npy" not in archive.namelist()]:
                    found = ", ".join(entry.removesuffix(".npy") for entry in archive.namelist())
                    held = found if found.isprintable() else repr(found)
                    raise ReadError(f"{name} lacks {', '.join(missing)}; it holds {held[:200] or 'nothing'}")
                keys += [key for key in optional if f"{key}.npy" in archive.namelist()]
                entries = {key: archive.getinfo(f"{key}.npy") for key in keys}
                check_size(name, sum(entry.file_size for entry in entries.values()), file.seek(0, io.SEEK_END))
                for key, entry in entries.items():
                    _check_header(archive, entry, f"{name}: {key}")
                arrays = {}
                for key, entry in entries.items():
                    with archive.open(entry) as stream:
                        arrays[key] = numpy_format.read_array(stream, allow_pickle=False)
                        stream.read(1)  # past the end, where the checksum is compared
                return arrays
    except ReadError:
        raise
    except FileNotFoundError:
        raise Missing(f"{name} does not exist") from None
    except OSError as error:
        raise ReadError(f"{name} could not be read ({error.strerror or error})") from None
    except _BROKEN as error:
        raise ReadError(f"{name} is damaged ({first_line(error) or type(error).__name__})") from None


def check_size(name: str, size: int, length: int) -> None:
    """Refuses what would grow to ``size`` bytes from a file of ``length``."""
    if size > FREE and size > RATIO * length:
        raise ReadError(f"{name} would grow from {length:,} bytes to {size:,}, more than {RATIO} times; it is refused")


def check_tensors(content: bytes) -> None:
    """Refuses what ``torch.save`` does not write of nested dicts and lists of tensors and plain values (ValueError)."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("parts of it are compressed")
        if sum(entry.file_size for entry in entries) > len(content):
            raise ValueError("its parts are larger than it is")
        pickles = [entry for entry in entries if entry.filename.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise ValueError("it holds no state")
        for code, argument, _ in pickletools.genops(archive.read(pickles[0])):
            if code.name in ("GLOBAL", "INST") and not _NAMES.fullmatch(str(argument)):
                raise ValueError(f"it names {str(argument)[:60]!r}, which is no tensor and no plain value")
            if code.name in ("STACK_GLOBAL", "EXT1", "EXT2", "EXT4", "NEWOBJ_EX"):
                raise ValueError("it names what is no tensor and no plain value")


def _opened(source: str | os.PathLike[str] | bytes) -> IO[bytes]:
    return io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb")


def _check_header(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, name: str) -> None:
    """Refuses an array whose shape and type do not take as many bytes as there are."""
    from numpy.lib import format as numpy_format

    readers: dict[tuple[int, int], Any] = {
        (1, 0): numpy_format.read_array_header_1_0,
        (2, 0): numpy_format.read_array_header_2_0,
    }
    with archive.open(entry) as stream:
        version = numpy_format.read_magic(stream)
        if version not in readers:
            raise ReadError(f"{name} is of version {version[0]}.{version[1]} of numpy's format")
        shape, _, kind = readers[version](stream)
        if kind.hasobject:
            raise ReadError(f"{name} holds Python objects, which are never loaded; save numbers only")
        if min(shape, default=1) < 0 or math.prod(shape) * kind.itemsize != entry.file_size - stream.tell():
            raise ReadError(f"{name} is damaged: {kind} of shape {shape} is not what it holds")
