"""Data sets as uint8 arrays: the embedded digits, CIFAR-10, and a user's own."""

from __future__ import annotations

import os

from ..checks import bad
from .arrays import Arrays
from .cifar10 import cifar10_from_pngs, get_cifar10, load_cifar10
from .digits import load_digits
from .npz import load_npz

__all__ = ["Arrays", "cifar10_from_pngs", "get_cifar10", "load", "load_cifar10", "load_digits", "load_npz"]


HELD_OUT, SPLIT_SEED = ":heldout", 0


def load(name_or_path: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> Arrays:
    """The data set of that name ("digits", "cifar10"), or the arrays of a file ending in .npz.

    With ":heldout" behind it, a tenth of the training images, or "=N" of them, take the place of the test set, which is
    left alone: for choosing between settings. "cifar10:heldout" trains on 45,000 images and tests on 5,000.

    `root` is the folder that holds downloaded data; None means $GIBBSPRUNE_DATA, or else ~/.cache/gibbsprune.
    """
    name, held = split_name(os.fspath(name_or_path))
    if name == "digits":
        found = load_digits()
    elif name == "cifar10":
        found = load_cifar10(root)
    elif name.endswith(".npz"):
        found = load_npz(name)
    else:
        raise bad("data", name, "'digits', 'cifar10' and paths ending in .npz")
    return found if held is None else found.holdout(held or len(found.x_train) // 10, SPLIT_SEED)


def split_name(name: str) -> tuple[str, int | None]:
    """A data set's name, and how many of its training images are held out: None of a plain one, 0 for a tenth."""
    base, mark, count = name.rpartition(HELD_OUT)
    if not mark:
        return name, None
    if count and not (count.startswith("=") and count[1:].isdecimal() and int(count[1:]) > 0):
        raise bad("data", name, f"'{base}{HELD_OUT}' and '{base}{HELD_OUT}=5000'")
    return base, int(count[1:] or 0)


def absolute(name: str, folder: str | os.PathLike[str] = ".") -> str:
    """The same data from another working directory: the path of an .npz file, seen from `folder`, made absolute."""
    base, _ = split_name(name)
    return os.path.abspath(os.path.join(folder, base)) + name[len(base) :] if base.endswith(".npz") else name
