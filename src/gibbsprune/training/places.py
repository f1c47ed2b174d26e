"""Where files lie: a folder of this machine, or any place that fsspec reaches (``s3://…``, ``gs://…``, ``memory://…``).

Plain paths and ``file://`` are :class:`pathlib.Path` and need no package. Everything else is a :class:`Remote`, which
has the few methods of a ``Path`` that results and checkpoints need.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ..errors import UserError, needed
from ..files import temporary_name

#: Filesystems on which a file takes its name in one step by a rename; elsewhere one put is that step.
RENAMING = {"file", "local", "sftp", "ssh", "smb", "hdfs", "webhdfs"}


class Remote:
    """A file or folder of an fsspec filesystem, by its URL."""

    def __init__(self, url: str, within: tuple[Any, str] | None = None) -> None:
        self.url = url.rstrip("/")
        self.fs, self.path = within or _open(url)

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"Remote({self.url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and other.url == self.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __truediv__(self, name: str) -> Remote:
        return Remote(f"{self.url}/{name}", (self.fs, f"{self.path}/{name}"))

    @property
    def parent(self) -> Remote:
        """The folder that holds it; a bucket is its own."""
        if "/" not in self.path.strip("/"):
            return self
        return Remote(self.url.rpartition("/")[0], (self.fs, self.path.rpartition("/")[0]))

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def stem(self) -> str:
        return Path(self.name).stem

    def exists(self) -> bool:
        with _listing(self):
            return bool(self.fs.exists(self.path))

    def is_dir(self) -> bool:
        with _listing(self):
            return bool(self.fs.isdir(self.path))

    def glob(self, pattern: str) -> Iterator[Remote]:
        """The files below that a pattern such as ``fleet-*/cells.json`` means, from one listing."""
        wanted = pattern.split("/")
        try:
            with _listing(self):
                found = sorted(self.fs.find(self.path))
        except FileNotFoundError:
            found = []
        for path in found:
            inner = path[len(self.path) :].strip("/")
            parts = inner.split("/")
            if len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted)):
                yield self / inner

    def mkdir(self, parents: bool = True, exist_ok: bool = True) -> None:
        """Nothing: a folder is there with its first file."""

    def read_bytes(self) -> bytes:
        with _plain_errors():
            return bytes(self.fs.cat_file(self.path))

    def write_bytes(self, content: bytes) -> None:
        """Writes the whole file at once; readers see the old content or the new one."""
        protocol = self.fs.protocol if isinstance(self.fs.protocol, str) else self.fs.protocol[0]
        with _plain_errors():
            if protocol not in RENAMING:
                self.fs.pipe_file(self.path, content)
                return
            folder, _, name = self.path.rpartition("/")
            temporary = f"{folder}/{temporary_name(name)}"
            self.fs.makedirs(folder, exist_ok=True)
            self.fs.pipe_file(temporary, content)
            self.fs.mv(temporary, self.path)

    def unlink(self, missing_ok: bool = False) -> None:
        with _plain_errors(), contextlib.suppress(*([FileNotFoundError] if missing_ok else [])):
            self.fs.rm_file(self.path)


Place = Path | Remote


def place(where: str | os.PathLike[str] | Remote) -> Place:
    """The place that a text means: a URL with ``://`` is fsspec's, ``file://`` and anything else a path here."""
    if isinstance(where, Remote):
        return where
    text = os.fspath(where)
    if "://" not in text:
        return Path(text)
    if text.startswith("file://"):
        return Path(unquote(urlsplit(text).path))
    return Remote(text)


def files(folder: Place, pattern: str) -> list[Place]:
    """The files below a folder that a pattern means, in order, hidden ones left out; none where there is no folder."""
    found: list[Place] = [file for file in folder.glob(pattern) if not file.name.startswith(".")]
    return sorted(found, key=str)


def remove_folder(folder: Place) -> None:
    """Deletes a folder with all that is in it, as far as that is possible."""
    if isinstance(folder, Path):
        shutil.rmtree(folder, ignore_errors=True)
        return
    with contextlib.suppress(OSError), _plain_errors():
        folder.fs.rm(folder.path, recursive=True)


def shared(where: Place) -> bool:
    """Whether other processes can see the place at all."""
    return isinstance(where, Path) or not where.url.startswith("memory:")


def _open(url: str) -> tuple[Any, str]:
    fsspec = needed("fsspec", url, "cluster")
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except ImportError as error:  # such as s3fs, which fsspec names
        raise UserError(f"{url} cannot be opened: {error}") from None
    except Exception as error:  # each filesystem has its own kinds
        known = ", ".join(f"{name}://" for name in ("s3", "gs", "abfs", "sftp", "file", "memory"))
        raise UserError(f"{url} cannot be opened: {error}; a place is a path or a URL such as {known}") from None
    return fs, path.rstrip("/")


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """Whatever a filesystem raises, as an OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _listing(where: Remote) -> Iterator[None]:
    """A fresh look; anything but a missing file is told."""
    where.fs.invalidate_cache()
    try:
        with _plain_errors():
            yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"cannot look into {where}: {error}") from error
