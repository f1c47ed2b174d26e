"""A finished run read back from its folder: the trained network, and real inputs to try it on."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import data
from ..data.augment import standardise
from ..training import finished
from ..training.spec import RunSpec


@dataclass(frozen=True, eq=False)
class TrainedRun:
    """A run's network in eval mode, with test images to try it on.

    ``pixels`` are the test images as they are, ``images`` as the network takes them; ``about`` is what the run's record
    says of them (:func:`gibbsprune.training.finished.images_of`), ``result`` all of that record.
    """

    path: Path
    spec: RunSpec
    model: nn.Module
    images: Tensor
    labels: Tensor
    pixels: Tensor
    about: dict[str, Any]
    result: dict[str, Any]


def load_run(path: str | os.PathLike[str], images: int = 2000, trust: bool = False) -> TrainedRun:
    """Reads the run in ``path`` (:func:`gibbsprune.load_run`), with at most that many of its test images."""
    run = finished.load_run(path, trust)
    arrays = data.load(run.spec.data)
    about = {**finished.images_of(arrays, run.spec), **run.metrics["images"]}
    pixels = arrays.x_test[:images]
    x = _standardised(pixels, about)
    labels = arrays.y_test[:images]
    return TrainedRun(Path(str(run.path)), run.spec, run.model, x, labels, pixels, about, run.metrics)


def training_images(run: TrainedRun, count: int = 512) -> Tensor:
    """Some of a run's training images, from all of them, as the network takes them."""
    images = data.load(run.spec.data).x_train
    return _standardised(images[:: max(1, len(images) // count)][:count], run.about)


def _standardised(pixels: Tensor, about: dict[str, Any]) -> Tensor:
    x = standardise(pixels, torch.tensor(about["mean"]), torch.tensor(about["std"]), torch.float32)
    return x.permute(0, 3, 1, 2).clone(memory_format=torch.contiguous_format)  # contiguous() may be channels-last


@torch.no_grad()
def refilled(pruned: nn.Module) -> nn.Module:
    """A network with values in the place of its zeros: as large and as slow as if nothing had been pruned."""
    model, generator = copy.deepcopy(pruned), torch.Generator().manual_seed(0)
    for value in model.parameters():
        value.copy_(torch.where(value == 0, 1e-3 * torch.randn(value.shape, generator=generator), value))
    return model


@torch.no_grad()
def accuracy(model: Callable[[Tensor], Any], images: Tensor, labels: Tensor, batch: int = 250) -> float:
    """The share of images that ``model`` labels rightly; it gets copies of them, as it may overwrite its input."""
    pairs = zip(images.split(batch), labels.split(batch))
    return sum(int((model(x.clone()).argmax(1) == y).sum()) for x, y in pairs) / len(labels)
