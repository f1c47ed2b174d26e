"""A data set as plain arrays: uint8 images (N, H, W, C) and int64 labels (N,), training and test."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..checks import bad, check_one_of
from ..errors import UserError


@dataclass(frozen=True, eq=False)
class Arrays:
    """Training and test images with their labels, checked once, at construction.

    Images are uint8 of shape (N, H, W, C), labels int64 in 0..classes-1; ``class_names`` says what the labels mean,
    where that is known. The whole set is meant to live on the training device: CIFAR-10 takes 184 MB.
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int
    class_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise UserError(f"{self.name}: classes is {self.classes}; at least 2 classes are needed")
        if self.class_names is not None and not len(set(self.class_names)) == len(self.class_names) == self.classes:
            names = ", ".join(self.class_names)
            raise UserError(f"{self.name}: class_names are {names}; they must be {self.classes} different names")
        for part, x, y in (("train", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            _check_part(self.name, part, x, y, self.classes)
        if self.x_train.shape[1:] != self.x_test.shape[1:]:
            raise UserError(
                f"{self.name}: x_train holds images of shape {tuple(self.x_train.shape[1:])} and x_test "
                f"of shape {tuple(self.x_test.shape[1:])}; both must be the same (H, W, C)"
            )

    @property
    def channels(self) -> int:
        return self.x_train.shape[3]

    @property
    def size(self) -> tuple[int, int]:
        """(H, W) of every image."""
        return self.x_train.shape[1], self.x_train.shape[2]

    def statistics(self, mode: str = "channel") -> tuple[Tensor, Tensor]:
        """Mean and population standard deviation of the training pixels, in units of x / 255, of shape (C,).

        "channel" gives one pair per channel; "global" one pair over all pixels and channels, repeated C
        times. Both are taken from a histogram, so no float copy of the images is made. A constant channel
        has standard deviation 0; 1 is returned in its place, so that standardising it gives zeros.
        """
        check_one_of("standardise", mode, ("global", "channel"))
        histogram = torch.zeros(self.channels, 256, dtype=torch.int64, device=self.x_train.device)
        for chunk in self.x_train.split(max(1, 2**22 // self.x_train[0].numel())):
            for channel in range(self.channels):
                histogram[channel] += torch.bincount(chunk[..., channel].reshape(-1), minlength=256)
        if mode == "global":
            histogram = histogram.sum(0).expand_as(histogram)
        weights = histogram.double() / histogram.sum(1, keepdim=True)
        values = torch.arange(256.0, dtype=torch.float64, device=weights.device)
        mean = weights @ values
        std = (weights * (values - mean[:, None]).square()).sum(1).sqrt()
        std = torch.where(std > 0, std, 255.0)
        return (mean / 255).float(), (std / 255).float()

    def holdout(self, count: int, seed: int) -> Arrays:
        """Arrays whose test set is `count` held-out *training* images and whose training set is the rest.

        For tuning without the test set. Stratified: each class gives its share of `count`, to within one
        image. The same count and seed give the same split on every device; both parts keep their order.
        """
        images = len(self.x_train)
        if not 0 < count < images:
            raise bad(f"{self.name}: holdout", count, f"whole numbers from 1 to {images - 1}")
        generator = torch.Generator().manual_seed(seed)
        shuffled = torch.randperm(images, generator=generator)
        by_class = shuffled[torch.argsort(self.y_train.cpu()[shuffled], stable=True)]
        positions = (2 * torch.arange(count) + 1) * images // (2 * count)
        held = torch.zeros(images, dtype=torch.bool)
        held[by_class[positions]] = True
        inside = held.nonzero().squeeze(1).to(self.x_train.device)
        outside = (~held).nonzero().squeeze(1).to(self.x_train.device)
        return replace(
            self,
            name=f"{self.name}-holdout",
            x_train=self.x_train[outside],
            y_train=self.y_train[outside],
            x_test=self.x_train[inside],
            y_test=self.y_train[inside],
        )

    def to(self, device: torch.device | str) -> Arrays:
        """The same arrays on another device."""
        return replace(
            self,
            x_train=self.x_train.to(device),
            y_train=self.y_train.to(device),
            x_test=self.x_test.to(device),
            y_test=self.y_test.to(device),
        )


def _check_part(name: str, part: str, x: Tensor, y: Tensor, classes: int) -> None:
    if x.ndim != 4 or x.dtype != torch.uint8:
        raise UserError(
            f"{name}: x_{part} is {x.dtype} of shape {tuple(x.shape)}; images must be uint8 of shape (N, H, W, C)"
        )
    if 0 in x.shape:
        raise UserError(f"{name}: x_{part} of shape {tuple(x.shape)} is empty; at least one image is needed")
    if y.ndim != 1 or y.dtype != torch.int64:
        raise UserError(f"{name}: y_{part} is {y.dtype} of shape {tuple(y.shape)}; labels must be int64 of shape (N,)")
    if len(x) != len(y):
        raise UserError(f"{name}: x_{part} holds {len(x)} images but y_{part} {len(y)} labels")
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        wrong = low if low < 0 else high
        raise UserError(f"{name}: y_{part} holds the label {wrong}; labels must lie in 0..{classes - 1}")
