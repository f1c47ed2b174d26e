"""A finished run read back from its folder: the trained network, and real inputs to try it on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from .. import data
from ..data.augment import standardise
from ..training import finished
from ..training.spec import RunSpec


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A run's network in eval mode, its test images as the network takes them, their labels, and its folder."""

    path: Path
    spec: RunSpec
    model: nn.Module
    images: Tensor
    labels: Tensor


def load_run(path: str | os.PathLike[str], images: int = 2000, trust: bool = False) -> TrainedRun:
    """Reads the run in ``path`` (:func:`gibbsprune.load_run`), with at most that many of its test images."""
    run = finished.load_run(path, trust)
    arrays = data.load(run.spec.data)
    mean, std = arrays.statistics(run.spec.recipe.standardise)
    x = standardise(arrays.x_test[:images], mean, std, torch.float32).permute(0, 3, 1, 2)
    x = x.clone(memory_format=torch.contiguous_format)  # of one channel, contiguous() would keep channels-last strides
    return TrainedRun(Path(str(run.path)), run.spec, run.model, x, arrays.y_test[:images])


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor, batch: int = 250) -> float:
    """The share of images that ``model`` labels rightly; it gets copies of them, as it may overwrite its input."""
    pairs = zip(images.split(batch), labels.split(batch))
    return sum(int((model(x.clone()).argmax(1) == y).sum()) for x, y in pairs) / len(labels)
