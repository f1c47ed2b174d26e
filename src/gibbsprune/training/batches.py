"""Batches made on the device: order, shift and flip of a whole epoch are drawn once, images are gathered per step.

Each run has its own random stream on the CPU, so that its order and augmentation are the same on every device and
whatever other runs are trained beside it. Several processes draw the same global batches, and each makes its own rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..checks import bad
from ..data.arrays import Arrays
from ..data.augment import crop_flip, crop_flip_between, hide, pad, standardise
from .ranks import ALONE, Ranks
from .recipes import Recipe

PARTS = 256  # of a pixel, in which shifts are drawn that are no whole numbers


class Batches:
    """Training batches of K runs: ``draw_epoch`` before an epoch, then ``next`` once per step.

    Args:
        arrays: the data.
        recipes: of each run: batch size, augmentation and standardisation, which are the same but for the cutout.
        generators: one random stream per run, on the CPU.
        device: where batches are made.
        ranks: the processes that share each batch.
    """

    def __init__(
        self,
        arrays: Arrays,
        recipes: Sequence[Recipe],
        generators: Sequence[torch.Generator],
        device: torch.device,
        ranks: Ranks = ALONE,
    ) -> None:
        recipe, sides = recipes[0], [own.cutout for own in recipes]
        images = f"images are of {'×'.join(map(str, arrays.size))} pixels"
        if recipe.shift >= min(arrays.size):
            raise bad("shift", recipe.shift, f"numbers below {min(arrays.size)}: {images}")
        if max(sides) > min(arrays.size):
            raise bad("cutout", max(sides), f"whole numbers up to {min(arrays.size)}: {images}")
        self.generators, self.size = list(generators), arrays.size
        self.flips, self.edge = 2 if recipe.flip else 1, math.ceil(recipe.shift)
        self.sides = torch.tensor(sides, device=device) if any(sides) else None
        self.places = [math.prod(arrays.size) if side else 1 for side in sides]  # at which a square is hidden
        self.parts = 1 if recipe.shift == self.edge else PARTS
        self.reach = min(round(self.parts * recipe.shift), self.parts * self.edge - (self.parts > 1))
        self.count = len(arrays.x_train)
        self.batch = min(recipe.batch, self.count)
        self.steps = self.count // self.batch
        mean, std = arrays.statistics(recipe.standardise)
        self.mean, self.std = mean.to(device), std.to(device)
        self.images = pad(arrays.x_train.to(device), self.edge)
        self.labels = arrays.y_train.to(device)
        runs, used = len(self.generators), self.steps * self.batch
        self.order = torch.zeros(runs, used, dtype=torch.int64, device=device)
        self.code = torch.zeros(runs, used, dtype=torch.int64, device=device)
        self.cursor = torch.zeros((), dtype=torch.int64, device=device)
        rows = ranks.rows(self.batch)
        self.within = torch.tensor(rows, device=device)
        self.share = len(rows) / self.batch  # of this process in the global batch

    def draw_epoch(self) -> None:
        """A new order, shift, flip and hidden square for every image of every run; what fills no batch is left out."""
        used, ways = self.order.shape[1], 2 * self.reach + 1
        order = [torch.randperm(self.count, generator=g)[:used] for g in self.generators]
        codes = [ways * ways * self.flips * places for places in self.places]
        code = [torch.randint(0, n, (used,), generator=g) for n, g in zip(codes, self.generators)]
        self.order.copy_(torch.stack(order))
        self.code.copy_(torch.stack(code))
        self.cursor.zero_()

    def next(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Images (B, K·C, H, W) in channels-last memory and labels (B, K); of several processes, this one's rows."""
        at = self.cursor + self.within
        index, code = self.order.index_select(1, at).T, self.code.index_select(1, at).T  # (B, K)
        x = standardise(self._windows(index, code), self.mean, self.std, dtype)
        if self.sides is not None:
            place = code // ((2 * self.reach + 1) ** 2 * self.flips)
            x = hide(x, place // self.size[1], place % self.size[1], self.sides)
        self.cursor.add_(self.batch).remainder_(self.order.shape[1])
        return _runs_as_channels(x), self.labels[index]

    def _windows(self, index: Tensor, code: Tensor) -> Tensor:
        """Images, shifted and flipped as their code says."""
        ways = 2 * self.reach + 1
        dy, dx, flip = code % ways, code // ways % ways, code // (ways * ways) % self.flips > 0
        if self.parts == 1:
            return crop_flip(self.images, index, dy, dx, flip, self.size)
        first = self.edge * self.parts - self.reach
        return crop_flip_between(self.images, index, dy + first, dx + first, flip, self.size, self.parts)

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Some training images of one run, unshifted, (count, C, H, W)."""
        index = torch.randperm(self.count, generator=generator)[:count].to(self.images.device)
        (height, width), edge = self.size, self.edge
        images = self.images[index][:, edge : edge + height, edge : edge + width]
        return standardise(images, self.mean, self.std, torch.float32).permute(0, 3, 1, 2)

    def evaluation(self, images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The same images for every run, unshifted."""
        x = standardise(images, self.mean, self.std, dtype)
        return _runs_as_channels(x[:, None].expand(-1, len(self.generators), -1, -1, -1))


def _runs_as_channels(x: Tensor) -> Tensor:
    """(B, K, H, W, C) → (B, K·C, H, W), channels last."""
    return x.permute(0, 2, 3, 1, 4).flatten(3).permute(0, 3, 1, 2)
