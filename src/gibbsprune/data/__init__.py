"""Data sets as uint8 arrays: the embedded digits, CIFAR-10, and a user's own."""

from __future__ import annotations

import os

from ..checks import bad
from .arrays import Arrays
from .cifar10 import cifar10_from_pngs, get_cifar10, load_cifar10
from .digits import load_digits
from .npz import load_npz

__all__ = ["Arrays", "cifar10_from_pngs", "get_cifar10", "load", "load_cifar10", "load_digits", "load_npz"]


def load(name_or_path: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> Arrays:
    """The data set of that name ("digits", "cifar10"), or the arrays of a file ending in .npz.

    `root` is the folder that holds downloaded data; None means $GIBBSPRUNE_DATA, or else ~/.cache/gibbsprune.
    """
    name = os.fspath(name_or_path)
    if name == "digits":
        return load_digits()
    if name == "cifar10":
        return load_cifar10(root)
    if name.endswith(".npz"):
        return load_npz(name)
    raise bad("data", name, "'digits', 'cifar10' and paths ending in .npz")
