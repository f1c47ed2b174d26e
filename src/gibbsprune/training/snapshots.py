"""One layer's sampled mask at several temperatures, saved small while a run anneals, for its picture."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from ..archives import read_arrays
from ..files import ReadError, make_folder, write_atomic
from ..text import told
from .places import Place, files

COUNT = 6  # pictures, evenly spaced over the annealing
SIDE = 32  # at most so many kernels shown in each direction


@dataclass(frozen=True)
class Snapshot:
    """A layer's mask as a picture (True keeps), the β it was drawn at, and after how many epochs."""

    layer: str
    epoch: int
    beta: float
    picture: np.ndarray
    block: tuple[int, int]  # the size in pixels of one kernel


def snapshot_epochs(anneal_epochs: int, total: int, count: int = COUNT) -> set[int]:
    """After which epochs (counted from 1) to keep a mask: from hot to cold, evenly in log β."""
    last = max(1, min(anneal_epochs + 1, total))
    return {1 + round(i * (last - 1) / (count - 1)) for i in range(count)}


def choose_layer(masks: Mapping[str, torch.Tensor]) -> str | None:
    """The layer to show: the first whose kernels are more than one weight, else the first."""
    spatial = [name for name, mask in masks.items() if mask.dim() > 2 and mask[0, 0].numel() > 1]
    return next(iter([*spatial, *masks]), None)


def picture(mask: torch.Tensor) -> tuple[np.ndarray, tuple[int, int]]:
    """A mask as a flat picture: one row of kernels per output channel, one column per input channel.

    Returns the picture and the size of one kernel in it. Large layers show their first channels only.
    """
    mask = mask.detach().to("cpu", torch.bool)
    if mask.dim() == 1:
        mask = mask[None]
    width = mask.shape[-1] if mask.dim() > 2 else 1
    kernels = mask.reshape(mask.shape[0], mask.shape[1], -1, width)
    side = SIDE if kernels.shape[2] * width > 1 else 4 * SIDE
    kernels = kernels[:side, :side]
    rows, columns, height, _ = kernels.shape
    return kernels.permute(0, 2, 1, 3).reshape(rows * height, columns * width).numpy(), (height, width)


def save_snapshot(folder: Place, masks: Mapping[str, torch.Tensor], epoch: int, beta: float) -> None:
    """Keeps the mask of the chosen layer under ``folder``; a run without masks keeps nothing."""
    layer = choose_layer(masks)
    if layer is None:
        return
    shown, block = picture(masks[layer])
    buffer = io.BytesIO()
    np.savez_compressed(buffer, layer=layer, epoch=epoch, beta=beta, picture=shown, block=block)
    make_folder(folder)
    write_atomic(folder / f"epoch-{epoch:06d}.npz", buffer.getvalue())


def load_snapshots(folder: Place) -> list[Snapshot]:
    """The snapshots of a run, hottest first; damaged ones are left out: a picture must never cost a run."""
    found = []
    for path in files(folder, "epoch-*.npz"):
        try:
            found.append(_read(path.read_bytes(), path.name))
        except (OSError, ReadError, ValueError, TypeError, ArithmeticError) as error:
            warnings.warn(f"{path} is damaged and not shown ({told(error)})", stacklevel=2)
    return found


def _read(content: bytes, name: str) -> Snapshot:
    values = read_arrays(content, name, ("layer", "epoch", "beta", "picture", "block"))
    height, width = (int(size) for size in values["block"])
    picture = np.asarray(values["picture"], dtype=bool)
    if picture.ndim != 2 or not 0 < height <= picture.shape[0] or not 0 < width <= picture.shape[1]:
        raise ValueError(f"a picture of shape {picture.shape} in blocks of {height} × {width}")
    return Snapshot(str(values["layer"]), int(values["epoch"]), float(values["beta"]), picture, (height, width))
