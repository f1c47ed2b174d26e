"""A user's own arrays from an .npz file, brought to the form of `Arrays`; no pickle is ever read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from ..archives import read_arrays
from ..errors import UserError
from .arrays import Arrays

KEYS = ("x_train", "y_train", "x_test", "y_test")
NAMES = "class_names"  # which a file may have


def load_npz(path: str | os.PathLike[str]) -> Arrays:
    """Arrays from a file with `x_train, y_train, x_test, y_test`.

    Images: (N, H, W), (N, H, W, C) or (N, C, H, W) where the shape says which; integers in 0..255, or floats
    in [0, 1] or [0, 255] (rounded to uint8). Labels: integers 0..classes-1, each used by the training set. A list of
    strings `class_names`, if there is one, says what they mean.
    """
    path = Path(path)
    arrays = read_arrays(path, str(path), KEYS, [NAMES])
    x_train, x_test = _layout(path, "x_train", arrays["x_train"]), _layout(path, "x_test", arrays["x_test"])
    for key, x in (("x_train", x_train), ("x_test", x_test)):
        _check_values(path, key, x)
    floats = [x for x in (x_train, x_test) if x.dtype.kind == "f"]
    scale = 255.0 if all(x.max() <= 1 for x in floats) else 1.0  # of the float arrays; integers stay as they are
    y_train, y_test = _labels(path, "y_train", arrays["y_train"]), _labels(path, "y_test", arrays["y_test"])
    used = np.unique(y_train)
    classes = len(used)
    if used[0] != 0 or used[-1] != classes - 1:
        raise UserError(
            f"{path}: y_train uses {classes} different labels from {used[0]} to {used[-1]}; labels must be "
            f"the integers 0..classes-1, each used at least once"
        )
    return Arrays(
        name=path.stem,
        x_train=_uint8(x_train, scale),
        y_train=torch.from_numpy(y_train),
        x_test=_uint8(x_test, scale),
        y_test=torch.from_numpy(y_test),
        classes=classes,
        class_names=_names(path, arrays.get(NAMES)),
    )


def _layout(path: Path, key: str, x: np.ndarray) -> np.ndarray:
    """The images as (N, H, W, C). The channel axis is the one of at most 4, or that beside a square."""
    if x.ndim == 3:
        x = x[..., None]
    elif x.ndim == 4:
        _, a, b, c = x.shape
        first, last = a <= 4, c <= 4
        if first == last:
            first, last = b == c != a, a == b != c
        if first == last:
            raise UserError(
                f"{path}: {key} of shape {x.shape} may be (N, H, W, C) or (N, C, H, W); save it as square "
                f"images, or with at most 4 channels"
            )
        if first:
            x = x.transpose(0, 2, 3, 1)
    else:
        raise UserError(f"{path}: {key} has shape {x.shape}; images must be (N, H, W), (N, H, W, C) or (N, C, H, W)")
    if 0 in x.shape:
        raise UserError(f"{path}: {key} of shape {x.shape} is empty; at least one image is needed")
    return x


def _check_values(path: Path, key: str, x: np.ndarray) -> None:
    if x.dtype.kind not in "uif":
        raise UserError(f"{path}: {key} is of type {x.dtype}; images must be integers or floats")
    low, high = x.min(), x.max()
    if not (low >= 0 and high <= 255):  # written so that NaN is refused
        raise UserError(
            f"{path}: {key} holds values from {low} to {high}; pixels must lie in 0..255, or be floats in [0, 1]"
        )


def _uint8(x: np.ndarray, scale: float) -> torch.Tensor:
    if x.dtype.kind == "f":
        x = np.rint(x * scale)
    return torch.from_numpy(np.array(x, dtype=np.uint8, order="C"))


def _labels(path: Path, key: str, y: np.ndarray) -> np.ndarray:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or y.dtype.kind not in "ui":
        raise UserError(
            f"{path}: {key} is {y.dtype} of shape {y.shape}; labels must be integers 0..classes-1 of shape (N,)"
        )
    if len(y) == 0:
        raise UserError(f"{path}: {key} is empty; at least one label is needed")
    return y.astype(np.int64)


def _names(path: Path, names: np.ndarray | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    if names.ndim != 1 or names.dtype.kind != "U":
        found = f"{names.dtype} of shape {names.shape}"
        raise UserError(f"{path}: {NAMES} is {found}; names must be strings of shape (classes,)")
    return tuple(map(str, names))
