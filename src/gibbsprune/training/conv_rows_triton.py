"""K square 3 × 3 convolutions of stride 1 side by side, in Triton, for few channels: where cuDNN waits for memory.

A program goes down strips of the images, two pixels wide, and reads every row once: two pixels and their neighbours,
4 · channels numbers, times three tables of :mod:`.conv_triton`, for the rows below, at and above. The gradient of the
input is the same with another table; that of the weights is left to cuDNN. Times: benchmarks/convolutions.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .conv_triton import Geometry, backward_table, by_run, forward_table, images_of, new_images

BLOCK = 64  # strips of a program
ROWS = 32  # of a program at most, and fewer where that leaves
PROGRAMS = 512  # fewer programs than these


@triton.jit
def _places(m, k, strips, across, H, W, run, pixel, C: tl.constexpr, SPAN: tl.constexpr, FIRST: tl.constexpr):
    """Where ``SPAN`` pixels of some strips lie in the first row, and which of them are inside the image."""
    d = tl.arange(0, SPAN * C)
    ix = (m % across * 2 + FIRST)[:, None] + d[None, :] // C
    seen = (m < strips)[:, None] & (ix >= 0) & (ix < W)
    return ((m // across * H * W)[:, None] + ix) * pixel + k * run + d[None, :] % C, seen


@triton.jit
def _down(
    x, table, y, strips, across, H, W, x_run, x_pixel, y_run, y_pixel,
    C: tl.constexpr, PART: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``PART`` rows of y in ``BLOCK`` strips of one run."""
    DEPTH: tl.constexpr = 4 * C
    N: tl.constexpr = 2 * C
    k = tl.program_id(0)  # the runs of the same pixels follow one another
    m = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first = tl.program_id(2) * PART
    at, seen = _places(m, k, strips, across, H, W, x_run, x_pixel, C, 4, -1)
    out, inside = _places(m, k, strips, across, H, W, y_run, y_pixel, C, 2, 0)
    tables = table + k * 3 * DEPTH * N + tl.arange(0, DEPTH)[:, None] * N + tl.arange(0, N)[None, :]
    above, middle, below = tl.load(tables), tl.load(tables + DEPTH * N), tl.load(tables + 2 * DEPTH * N)
    last = tl.zeros([BLOCK, N], tl.float32)  # the row above, which lacks its last part, and
    now = tl.zeros([BLOCK, N], tl.float32)  # the row itself, which has its first
    for iy in tl.range(first - 1, first + PART + 1, num_stages=3):
        row = iy + tl.zeros([BLOCK, 1], tl.int32)
        part = tl.load(x + at + iy * W * x_pixel, mask=seen & (row >= 0) & (row < H), other=0.0)
        done = tl.dot(part, below, last)
        there = inside & (row > first) & (row <= H)
        tl.store(y + out + (iy - 1) * W * y_pixel, done.to(y.dtype.element_ty), mask=there)
        last = tl.dot(part, middle, now)
        now = tl.dot(part, above, tl.zeros([BLOCK, N], tl.float32))


def suits(channels: int) -> bool:
    """Whether convolutions of so many channels per run are faster here than with cuDNN."""
    return channels in (16, 32)


@torch.library.custom_op("gibbsprune::row_conv", mutates_args=())
def row_conv(x: Tensor, weight: Tensor, table: Tensor, back: Tensor) -> Tensor:
    """Convolutions of x (B, K·C, H, W) with the weights of ``table``; ``weight`` and ``back`` are for the gradients."""
    return _convolve(x, table)


def _convolve(x: Tensor, table: Tensor) -> Tensor:
    runs, channels, (batch, _, height, width) = len(table), table.shape[3] // 2, x.shape
    images = images_of(by_run(x, runs))
    y = new_images(images.data, channels, height, width)
    made = images_of(by_run(y, runs))
    across = triton.cdiv(width, 2)
    strips = batch * across
    blocks, part = triton.cdiv(strips, BLOCK), ROWS
    while part > 8 and runs * blocks * triton.cdiv(height, part) < PROGRAMS:
        part //= 2
    sizes = (strips, across, height, width, images.run, images.pixel, made.run, made.pixel)
    _down[runs, blocks, triton.cdiv(height, part)](
        images.data, table.contiguous(), y, *sizes, C=channels, PART=part, BLOCK=BLOCK
    )
    return y


@row_conv.register_fake
def _(x: Tensor, weight: Tensor, table: Tensor, back: Tensor) -> Tensor:
    return new_images(by_run(x, len(table)), table.shape[3] // 2, *x.shape[2:])


@torch.library.custom_op("gibbsprune::row_conv_input", mutates_args=())
def input_gradient(dy: Tensor, back: Tensor) -> Tensor:
    return _convolve(dy, back)


@input_gradient.register_fake
def _(dy: Tensor, back: Tensor) -> Tensor:
    return new_images(by_run(dy, len(back)), back.shape[3] // 2, *dy.shape[2:])


def _setup(ctx, inputs, output) -> None:
    x, weight, _, back = inputs
    ctx.save_for_backward(x, weight, back)


def _backward(ctx, dy: Tensor):
    x, weight, back = ctx.saved_tensors
    dx = dweight = None
    if ctx.needs_input_grad[0]:
        dx = input_gradient(dy, back)
    if ctx.needs_input_grad[1]:
        ones, none = [1, 1], [0, 0]
        dweight = torch.ops.aten.convolution_backward(
            dy, x, weight, None, ones, ones, ones, False, none, len(back), [False, True, False]
        )[1]
    return dx, dweight, None, None


row_conv.register_autograd(_backward, setup_context=_setup)


def convolve(x: Tensor, weight: Tensor, runs: int) -> Tensor:
    """As ``F.conv2d(x, weight, padding=1, groups=runs)`` for (K·C, C, 3, 3) weights whose C :func:`suits`."""
    weight = weight.to(x.dtype)
    parts, channels = weight.detach().unflatten(0, (runs, -1)), weight.shape[1]
    plan = Geometry(channels, channels, rows=3, cols=1, depth=4 * channels, high=1, wide=2, down=1, right=2, first=-1)
    return row_conv(x, weight, forward_table(parts, plan, 1), backward_table(parts, plan, 1))
