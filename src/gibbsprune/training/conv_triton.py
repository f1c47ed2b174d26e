"""K small convolutions side by side, in Triton, for those shapes that cuDNN's grouped kernels are slow at.

A convolution is a sum of a few matrix products. A row of a product is a block of ``high`` × ``wide`` neighbouring
output pixels of one run. Its factors are a stretch of input pixels, ``depth`` numbers that lie side by side for a pixel
and its neighbours, and a table of weights, where a tap that a pixel does not see has the weight zero:

    y[block] = Σ_steps x[stretch of the step] · table[step],    table (K, steps, depth, high · wide · outputs)

The gradient of the input is such a sum again, with another table made of the same weights: with stride 2 a block of
2 × 2 pixels sees 2 × 2 pixels of the output. The gradient of the table is a product over all blocks, and autograd takes
it from the table to the weights.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

WIDEST = 64  # the taps of a row are one product while they span no more numbers than this
PROGRAMS = 768  # among which the blocks are divided for the gradient of a table
SHARED = 99 * 1024  # bytes of shared memory that a program may have on every GPU from Ampere on


@triton.jit
def _inputs(
    ox, oy, b, ok, d, s, k, H, W, x_run, x_pixel,
    CI: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
    STEP_Y: tl.constexpr, STEP_X: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """Where the stretches of a step lie for some blocks, and which of their numbers are inside the image."""
    iy = oy * STEP_Y + (FIRST + s // COLS)
    ix = (ox * STEP_X + (FIRST + (s % COLS) * (DEPTH // CI)))[:, None] + d[None, :] // CI
    seen = (ok & (iy >= 0) & (iy < H))[:, None] & (ix >= 0) & (ix < W)
    return (((b * H + iy) * W)[:, None] + ix) * x_pixel + k * x_run + d[None, :] % CI, seen


@triton.jit
def _outputs(ox, oy, b, ok, n, k, OH, OW, y_run, y_pixel, CO: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr):
    """Where the pixels of some blocks lie, and which of them are inside the image."""
    py = (oy * HIGH)[:, None] + n[None, :] // (WIDE * CO)
    px = (ox * WIDE)[:, None] + n[None, :] // CO % WIDE
    inside = ok[:, None] & (py < OH) & (px < OW)
    return (((b * OH)[:, None] + py) * OW + px) * y_pixel + k * y_run + n[None, :] % CO, inside


@triton.jit
def _apply(
    x, table, y, blocks, H, W, OH, OW, down, across, x_run, x_pixel, y_run, y_pixel,
    CI: tl.constexpr, CO: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, STEP_Y: tl.constexpr, STEP_X: tl.constexpr, FIRST: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """y of ``BLOCK`` blocks of one run."""
    N: tl.constexpr = HIGH * WIDE * CO
    k = tl.program_id(0)  # the runs of the same pixels follow one another
    m = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ox, oy, b = m % across, (m // across) % down, m // (across * down)
    d, n = tl.arange(0, DEPTH), tl.arange(0, N)
    total = tl.zeros([BLOCK, N], tl.float32)
    for s in tl.range(0, ROWS * COLS, num_stages=STAGES):
        at, seen = _inputs(ox, oy, b, m < blocks, d, s, k, H, W, x_run, x_pixel, CI, COLS, DEPTH, STEP_Y, STEP_X, FIRST)
        part = tl.load(x + at, mask=seen, other=0.0)
        weights = tl.load(table + ((k * ROWS * COLS + s) * DEPTH + d)[:, None] * N + n[None, :])
        total = tl.dot(part, weights, total)
    at, inside = _outputs(ox, oy, b, m < blocks, n, k, OH, OW, y_run, y_pixel, CO, HIGH, WIDE)
    tl.store(y + at, total.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _collect(
    x, dy, out, blocks, each, H, W, OH, OW, down, across, x_run, x_pixel, y_run, y_pixel,
    CI: tl.constexpr, CO: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, STEP_Y: tl.constexpr, STEP_X: tl.constexpr, FIRST: tl.constexpr,
    GROUP: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The gradient of a run's table from ``each`` blocks, for a group of up to three steps."""
    N: tl.constexpr = HIGH * WIDE * CO
    k, split, group = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    d, n = tl.arange(0, DEPTH), tl.arange(0, N)
    first = tl.zeros([DEPTH, N], tl.float32)
    second = tl.zeros([DEPTH, N], tl.float32)
    third = tl.zeros([DEPTH, N], tl.float32)
    for start in tl.range(split * each, tl.minimum(split * each + each, blocks), BLOCK, num_stages=STAGES):
        m = start + tl.arange(0, BLOCK)
        ox, oy, b = m % across, (m // across) % down, m // (across * down)
        ok = m < blocks
        at, inside = _outputs(ox, oy, b, ok, n, k, OH, OW, y_run, y_pixel, CO, HIGH, WIDE)
        slope = tl.load(dy + at, mask=inside, other=0.0)
        for g in tl.static_range(GROUP):
            s = group * GROUP + g
            at, seen = _inputs(ox, oy, b, ok, d, s, k, H, W, x_run, x_pixel, CI, COLS, DEPTH, STEP_Y, STEP_X, FIRST)
            part = tl.trans(tl.load(x + at, mask=seen, other=0.0))
            if g == 0:
                first = tl.dot(part, slope, first)
            elif g == 1:
                second = tl.dot(part, slope, second)
            else:
                third = tl.dot(part, slope, third)
    place = ((split * tl.num_programs(0) + k) * ROWS * COLS + group * GROUP) * DEPTH * N
    here = out + place + d[:, None] * N + n[None, :]
    tl.store(here, first)
    if GROUP > 1:
        tl.store(here + DEPTH * N, second)
    if GROUP > 2:
        tl.store(here + 2 * DEPTH * N, third)


class Geometry(NamedTuple):
    """How a convolution is cut into products; sizes in pixels but ``depth``, in numbers."""

    inputs: int
    outputs: int
    rows: int  # steps one below the other, and
    cols: int  # side by side
    depth: int
    high: int
    wide: int
    down: int  # from a block's stretch to that of the next one below
    right: int
    first: int  # where the first block's stretch begins

    @property
    def steps(self) -> int:
        return self.rows * self.cols

    @property
    def columns(self) -> int:
        return self.high * self.wide * self.outputs


def forward_geometry(inputs: int, outputs: int, side: int, stride: int) -> Geometry:
    """From the input to the output; two pixels at once where they share most of their taps and are narrow."""
    wide = 2 if side > 1 and stride == 1 and 2 * outputs <= WIDEST and 4 * inputs <= WIDEST else 1
    depth = triton.next_power_of_2((side + (wide - 1) * stride) * inputs)
    if side == 1 or depth <= WIDEST:
        return Geometry(inputs, outputs, side, 1, depth, 1, wide, stride, stride * wide, -(side // 2))
    return Geometry(inputs, outputs, side, side, inputs, 1, 1, stride, stride, -(side // 2))


def backward_geometry(inputs: int, outputs: int, side: int, stride: int) -> Geometry:
    """From the gradient of the output to that of the input."""
    if stride == 1:
        return forward_geometry(outputs, inputs, side, 1)
    reach = (side + 1) // 2
    return Geometry(outputs, inputs, reach, 1, reach * outputs, 2, 2, 1, 1, 0)


def suits(inputs: int, outputs: int, side: int, stride: int) -> bool:
    """Whether these kernels do a convolution of so many channels per run (padded to a power of two)."""
    inputs = triton.next_power_of_2(inputs)
    if side not in (1, 3) or stride not in (1, 2) or outputs & (outputs - 1):
        return False
    plans = [forward_geometry(inputs, outputs, side, stride)]
    if inputs >= 16:
        plans.append(backward_geometry(inputs, outputs, side, stride))
    return all(16 <= plan.depth <= 128 and 16 <= plan.columns <= 128 for plan in plans)


def forward_table(weight: Tensor, plan: Geometry, stride: int) -> Tensor:
    """(K, outputs, inputs, side, side) → (K, steps, depth, columns)."""
    runs, outputs, inputs, side, _ = weight.shape
    taps = weight.permute(0, 3, 4, 2, 1)  # K, row, column, input, output
    if plan.cols > 1:
        return taps.reshape(runs, side * side, inputs, outputs)
    spare = plan.depth // inputs - side
    shifts = [F.pad(taps, (0, 0, 0, 0, i * stride, spare - i * stride)) for i in range(plan.wide)]
    return torch.stack(shifts, 4).reshape(runs, side, plan.depth, plan.columns)


def backward_table(weight: Tensor, plan: Geometry, stride: int) -> Tensor:
    if stride == 1:
        return forward_table(weight.transpose(1, 2).flip(3, 4), plan, 1)
    runs, side = weight.shape[0], weight.shape[3]
    # Pixel 2i + p of the input has the tap t = p − 2r + side // 2 in pixel i + r of the output.
    edge = F.pad(weight, (2, 2, 2, 2)).permute(0, 3, 4, 1, 2)  # taps from −2 to side + 1
    reach, middle = plan.rows, side // 2 + 2
    rows = [edge[:, middle - 2 * r : middle - 2 * r + 2] for r in range(reach)]
    parts = [row[:, :, middle - 2 * r : middle - 2 * r + 2] for row in rows for r in range(reach)]
    seen = torch.stack(parts, 1).unflatten(1, (reach, reach))
    # K, row and column of the output, pixel of the block, output, input
    return seen.permute(0, 1, 2, 5, 3, 4, 6).reshape(runs, reach, plan.depth, plan.columns)


class Images(NamedTuple):
    """Images (K, B, H, W, C) and where they lie: dense within a run's pixels, with any distance between them."""

    data: Tensor
    run: int
    pixel: int


def images_of(x: Tensor) -> Images:
    _, _, height, width, channels = x.shape
    run, image, row, pixel, channel = x.stride()
    if channel != 1 or row != width * pixel or image != height * row:
        x = x.contiguous()
        run, pixel = x.stride(0), channels
    return Images(x, run, pixel)


def by_run(image: Tensor, runs: int) -> Tensor:
    """(B, K·C, H, W), channels last, as (K, B, H, W, C); no copy."""
    return image.permute(0, 2, 3, 1).unflatten(3, (runs, -1)).permute(3, 0, 1, 2, 4)


def new_images(x: Tensor, channels: int, height: int, width: int) -> Tensor:
    shape = (x.shape[1], x.shape[0] * channels, height, width)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def _grid(images: Images, others: Images, plan: Geometry) -> tuple[int, tuple[int, ...]]:
    """The number of blocks, and the sizes that both kernels take after it."""
    height, width = others.data.shape[2:4]
    down, across = triton.cdiv(height, plan.high), triton.cdiv(width, plan.wide)
    places = (images.run, images.pixel, others.run, others.pixel)
    sizes = (*images.data.shape[2:4], height, width, down, across, *places)
    return images.data.shape[1] * down * across, sizes


def _stages(wanted: int, numbers: int, x: Tensor) -> int:
    """How many steps may be under way at once, each with so many numbers in shared memory."""
    limit = SHARED
    if x.is_cuda:
        limit = getattr(torch.cuda.get_device_properties(x.device), "shared_memory_per_block_optin", SHARED)
    return max(1, min(wanted, limit // (numbers * x.element_size())))


def _map(x: Tensor, table: Tensor, plan: Geometry, height: int, width: int) -> Tensor:
    """The images that a table makes of x (K, B, H, W, C), as (B, K·outputs, height, width)."""
    y = new_images(x, plan.outputs, height, width)
    images, made = images_of(x), images_of(by_run(y, len(x)))
    blocks, sizes = _grid(images, made, plan)
    size = 128
    stages = _stages(2 if plan.cols == 1 else 3, (size + plan.columns) * plan.depth, x)
    grid = (len(x), triton.cdiv(blocks, size))
    _apply[grid](images.data, table.contiguous(), y, blocks, *sizes, *plan, BLOCK=size, STAGES=stages)
    return y


@torch.library.custom_op("gibbsprune::block_conv", mutates_args=())
def block_conv(x: Tensor, table: Tensor, back: Tensor, outputs: int, side: int, stride: int) -> Tensor:
    """Convolutions of x (K, B, H, W, inputs) as (B, K·outputs, …) in channels-last memory."""
    height, width = ((size - 1) // stride + 1 for size in x.shape[2:4])
    return _map(x, table, forward_geometry(x.shape[4], outputs, side, stride), height, width)


@block_conv.register_fake
def _(x: Tensor, table: Tensor, back: Tensor, outputs: int, side: int, stride: int) -> Tensor:
    return new_images(x, outputs, (x.shape[2] - 1) // stride + 1, (x.shape[3] - 1) // stride + 1)


@torch.library.custom_op("gibbsprune::block_conv_input", mutates_args=())
def input_gradient(dy: Tensor, back: Tensor, inputs: int, height: int, width: int, side: int, stride: int) -> Tensor:
    """The gradient of the images, (B, K·inputs, height, width)."""
    runs = len(back)
    plan = backward_geometry(inputs, dy.shape[1] // runs, side, stride)
    return _map(by_run(dy, runs), back, plan, height, width)


@input_gradient.register_fake
def _(dy: Tensor, back: Tensor, inputs: int, height: int, width: int, side: int, stride: int) -> Tensor:
    return new_images(by_run(dy, len(back)), inputs, height, width)


@torch.library.custom_op("gibbsprune::block_conv_table", mutates_args=())
def table_gradient(x: Tensor, dy: Tensor, side: int, stride: int) -> Tensor:
    """The gradient of the table, in float32."""
    runs = len(x)
    plan = forward_geometry(x.shape[4], dy.shape[1] // runs, side, stride)
    images, slopes = images_of(x), images_of(by_run(dy, runs))
    blocks, sizes = _grid(images, slopes, plan)
    size, group = 64, plan.cols if plan.cols > 1 else plan.rows
    groups = plan.steps // group
    each = size * triton.cdiv(blocks, size * max(1, PROGRAMS // (runs * groups)))
    splits = triton.cdiv(blocks, each)
    shape = (splits, runs, plan.steps, plan.depth, plan.columns)
    out = torch.empty(shape, dtype=torch.float32, device=x.device)
    stages = _stages(3, (group * plan.depth + plan.columns) * size, x)
    _collect[(runs, splits, groups)](
        images.data, slopes.data, out, blocks, each, *sizes, *plan, GROUP=group, BLOCK=size, STAGES=stages
    )
    return out.sum(0)


@table_gradient.register_fake
def _(x: Tensor, dy: Tensor, side: int, stride: int) -> Tensor:
    plan = forward_geometry(x.shape[4], dy.shape[1] // len(x), side, stride)
    shape = (len(x), plan.steps, plan.depth, plan.columns)
    return torch.empty(shape, dtype=torch.float32, device=x.device)


def _setup(ctx, inputs, output) -> None:
    x, table, back, _, ctx.side, ctx.stride = inputs
    ctx.save_for_backward(x, table, back)


def _backward(ctx, dy: Tensor):
    x, table, back = ctx.saved_tensors
    dx = dtable = None
    if ctx.needs_input_grad[0]:
        dx = by_run(input_gradient(dy, back, x.shape[4], x.shape[2], x.shape[3], ctx.side, ctx.stride), len(x))
    if ctx.needs_input_grad[1]:
        dtable = table_gradient(x, dy, ctx.side, ctx.stride).to(table.dtype)
    return dx, dtable, None, None, None, None


block_conv.register_autograd(_backward, setup_context=_setup)


def convolve(x: Tensor, weight: Tensor, runs: int, stride: int) -> Tensor:
    """As ``F.conv2d(x, weight, stride=stride, padding=side // 2, groups=runs)`` for shapes that :func:`suits`.

    x needs a gradient only if it has at least 16 channels per run.
    """
    side, weight = weight.shape[2], weight.to(x.dtype).unflatten(0, (runs, -1))
    x = by_run(x, runs)
    _, outputs, inputs = weight.shape[:3]
    if spare := triton.next_power_of_2(inputs) - inputs:
        x, weight = F.pad(x, (0, spare)).contiguous(), F.pad(weight, (0, 0, 0, 0, 0, spare))
        inputs += spare
    table = forward_table(weight, forward_geometry(inputs, outputs, side, stride), stride)
    back = table.detach()
    if inputs >= 16:
        back = backward_table(weight.detach(), backward_geometry(inputs, outputs, side, stride), stride)
    return block_conv(x, table, back, outputs, side, stride)
