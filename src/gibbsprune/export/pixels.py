"""Networks that take raw pixels: the standardisation of their training images is a part of them.

A raw image is what image libraries and the data sets here have: bytes 0..255 of (rows, columns, channels).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..errors import UserError


class FromPixels(nn.Module):
    """``model`` behind x = scale · pixel + shift, as ``dtype``; uint8 of (batch, rows, columns, channels) come in."""

    def __init__(
        self, model: nn.Module, scale: Sequence[float], shift: Sequence[float], dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float32))
        self.register_buffer("shift", torch.tensor(shift, dtype=torch.float32))

    def forward(self, pixels: Tensor) -> Tensor:
        x = pixels.to(torch.float32) * self.scale + self.shift  # type: ignore[operator]
        planes = x.to(self.dtype).permute(0, 3, 1, 2)
        return self.model(planes.clone(memory_format=torch.contiguous_format))  # of one channel, too


def scales(
    mean: Sequence[float] | None, std: Sequence[float] | None, inputs: Sequence[Tensor]
) -> tuple[list[float], list[float]] | None:
    """What raw pixels are multiplied with, and what is added; None where floats come in."""
    if mean is None and std is None:
        return None
    if mean is None or std is None:
        raise UserError("mean and std are given together or not at all.")
    if len(inputs) != 1 or inputs[0].dim() != 4:
        raise UserError("raw pixels are for networks with one input of images (batch, channels, rows, columns).")
    mean, std = [float(x) for x in mean], [float(x) for x in std]
    channels = inputs[0].shape[1]
    if len(mean) != channels or len(std) != channels or not all(s > 0 for s in std):
        raise UserError(f"mean and std need {channels} numbers each, one for each channel, and std positive ones.")
    return [1 / (255 * s) for s in std], [-m / s for m, s in zip(mean, std)]


def with_pixels(
    model: nn.Module, inputs: tuple[Tensor, ...], mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The network that takes raw pixels, and the raw images nearest to its inputs; both as they are without a mean."""
    found = scales(mean, std, inputs)
    if found is None:
        return model, inputs
    scale, shift = (torch.tensor(numbers) for numbers in found)
    pixels = ((inputs[0].float().permute(0, 2, 3, 1) - shift) / scale).round().clamp(0, 255).to(torch.uint8)
    return FromPixels(model, *found, inputs[0].dtype).eval(), (pixels.contiguous(),)
