"""Shift, flip and standardise as batched tensor operations; all randomness is passed in.

Nothing here waits for the host or looks at a tensor's values, so all of it can be captured in a CUDA graph.
A typical step, for K runs with a batch of B images each:

    padded = pad(arrays.x_train, shift)                 # once
    dy = torch.randint(0, 2 * shift + 1, (K, B), ...)   # dx alike; `shift` itself leaves the image in place
    x = standardise(crop_flip(padded, index, dy, dx, flip, arrays.size), mean, std)

Shifts by a fraction of a pixel interpolate between its neighbours, as image libraries do.
"""

from __future__ import annotations

import torch
from torch import Tensor


def pad(x: Tensor, shift: int) -> Tensor:
    """Images (N, H, W, C) with s = `shift` pixels of repeated edge on every side: (N, H + 2s, W + 2s, C)."""
    height, width = x.shape[1], x.shape[2]
    rows = torch.arange(-shift, height + shift, device=x.device).clamp(0, height - 1)
    columns = torch.arange(-shift, width + shift, device=x.device).clamp(0, width - 1)
    return x[:, rows[:, None], columns[None, :]]


def crop_flip(
    padded: Tensor, index: Tensor, dy: Tensor, dx: Tensor, flip: Tensor, size: int | tuple[int, int]
) -> Tensor:
    """Out of `padded` (N, H', W', C), the windows of `size` at row dy and column dx of images `index`.

    index, dy, dx (int64) and flip (boolean) share any leading shape (*lead,); the result is (*lead, H, W, C):

        out[l, r, c] = padded[index[l], dy[l] + r, dx[l] + (W − 1 − c if flip[l] else c)]

    Args:
        padded: the images with their edges repeated.
        index: which images.
        dy: the rows at which windows begin.
        dx: the columns at which they begin.
        flip: whether a window is mirrored.
        size: (H, W) of a window.

    One gather: a flip only reverses the column indices. With images padded by s, dy = dx = s is the unshifted
    image and 0..2s are all the shifts. Indices outside the padded image are the caller's mistake; they are
    not looked for here, since that would wait for the device.
    """
    height, width = (size, size) if isinstance(size, int) else size
    column = torch.arange(width, device=padded.device)
    rows = dy[..., None] + torch.arange(height, device=padded.device)
    columns = dx[..., None] + torch.where(flip[..., None], width - 1 - column, column)
    return padded[index[..., None, None], rows[..., :, None], columns[..., None, :]]


def crop_flip_between(
    padded: Tensor, index: Tensor, dy: Tensor, dx: Tensor, flip: Tensor, size: tuple[int, int], parts: int
) -> Tensor:
    """The same windows at row dy / parts and column dx / parts, with bilinear interpolation; as float32."""
    height, width = size
    corner = crop_flip(padded, index, dy // parts, dx // parts, flip, (height + 1, width + 1)).float()
    below, right = dy % parts / parts, dx % parts / parts
    after = torch.where(flip, 1 - right, right)  # in a mirrored window the next column is the one before
    rows = torch.lerp(corner[..., :-1, :, :], corner[..., 1:, :, :], below[..., None, None, None])
    return torch.lerp(rows[..., :-1, :], rows[..., 1:, :], after[..., None, None, None])


def hide(x: Tensor, row: Tensor, column: Tensor, side: Tensor) -> Tensor:
    """Standardised images (*lead, H, W, C) with a square at 0, the mean colour: "cutout" (DeVries & Taylor 2017).

    Args:
        x: the images.
        row: (*lead,), of the square's middle, which may be anywhere, so that a part of it lies outside.
        column: of the same.
        side: of the squares, in the shape of ``row`` or one that spreads to it; 0 hides nothing.
    """

    def within(length: int, middle: Tensor) -> Tensor:
        place = torch.arange(length, device=x.device) - (middle - side // 2)[..., None]
        return (place >= 0) & (place < side[..., None])

    hidden = within(x.shape[-3], row)[..., :, None] & within(x.shape[-2], column)[..., None, :]
    return x.masked_fill(hidden[..., None], 0)


def standardise(x: Tensor, mean: Tensor, std: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """(x / 255 − mean) / std for images of 0 to 255 (*lead, H, W, C).

    Args:
        x: the images.
        mean: of each channel.
        std: of each channel.
        dtype: of the result.

    Computed in float32 as x · 1/(255·std) − mean/std, then rounded to `dtype`.
    """
    mean, std = mean.float(), std.float()
    return (x.float() * (1 / (255 * std)) - mean / std).to(dtype)
