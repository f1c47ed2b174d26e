"""Shift, flip and standardise against one image at a time."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gibbsprune.data.augment import crop_flip, crop_flip_between, hide, pad, standardise


def one_image(image: Tensor, shift: int, dy: int, dx: int, flip: bool) -> Tensor:
    """The reference: the image moved by (shift − dy, shift − dx) pixels with edge fill, then mirrored."""
    height, width, _ = image.shape
    out = torch.empty_like(image)
    for row in range(height):
        for column in range(width):
            source_row = min(max(row + dy - shift, 0), height - 1)
            source_column = min(max(column + dx - shift, 0), width - 1)
            out[row, column] = image[source_row, source_column]
    return out.flip(1) if flip else out


@settings(deadline=None, max_examples=40)
@given(
    height=st.integers(1, 6),
    width=st.integers(1, 6),
    channels=st.integers(1, 3),
    shift=st.integers(0, 4),
    lead=st.lists(st.integers(1, 3), max_size=3),
    seed=st.integers(0, 2**31),
)
def test_crop_flip_is_one_image_at_a_time(
    height: int, width: int, channels: int, shift: int, lead: list[int], seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (5, height, width, channels), generator=g).to(torch.uint8)
    index = torch.randint(0, 5, lead, generator=g)
    dy = torch.randint(0, 2 * shift + 1, lead, generator=g)
    dx = torch.randint(0, 2 * shift + 1, lead, generator=g)
    flip = torch.rand(lead, generator=g) < 0.5
    padded = pad(x, shift)
    assert padded.shape == (5, height + 2 * shift, width + 2 * shift, channels)
    out = crop_flip(padded, index, dy, dx, flip, (height, width))
    assert out.dtype == torch.uint8
    assert out.shape == (*lead, height, width, channels)
    flat = zip(index.flatten(), dy.flatten(), dx.flatten(), flip.flatten(), out.reshape(-1, height, width, channels))
    for i, y, z, f, found in flat:
        assert torch.equal(found, one_image(x[int(i)], shift, int(y), int(z), bool(f)))


def between(image: Tensor, y: float, x: float, flip: bool) -> Tensor:
    """The reference: the image at (row + y, column + x), each value from its four neighbours, edges repeated."""
    height, width, _ = image.shape
    out = torch.zeros(image.shape, dtype=torch.float64)
    for row in range(height):
        for column in range(width):
            top, left = math.floor(row + y), math.floor(column + x)
            for down, right in itertools.product((0, 1), repeat=2):
                share = (1 - abs(row + y - top - down)) * (1 - abs(column + x - left - right))
                near = image[min(max(top + down, 0), height - 1), min(max(left + right, 0), width - 1)]
                out[row, column] += share * near
    return out.flip(1) if flip else out


@settings(deadline=None, max_examples=40)
@given(
    height=st.integers(1, 5), width=st.integers(1, 5), edge=st.integers(1, 3), parts=st.sampled_from([1, 2, 10, 256]),
    seed=st.integers(0, 2**31),
)  # fmt: skip
def test_shifts_by_parts_of_a_pixel_interpolate(height: int, width: int, edge: int, parts: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (3, height, width, 2), generator=g).to(torch.uint8)
    index = torch.randint(0, 3, (2, 4), generator=g)
    dy, dx = (torch.randint(0, 2 * edge * parts, (2, 4), generator=g) for _ in range(2))
    flip = torch.rand(2, 4, generator=g) < 0.5
    out = crop_flip_between(pad(x, edge), index, dy, dx, flip, (height, width), parts)
    assert out.shape == (2, 4, height, width, 2)
    for at in itertools.product(range(2), range(4)):
        wanted = between(x[index[at]], float(dy[at]) / parts - edge, float(dx[at]) / parts - edge, bool(flip[at]))
        torch.testing.assert_close(out[at].double(), wanted, rtol=1e-5, atol=1e-3)


def test_the_middle_crop_is_the_image_itself_and_a_square_size_may_be_one_number() -> None:
    x = torch.randint(0, 256, (4, 8, 8, 3), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    middle = torch.full((4,), 2)
    out = crop_flip(pad(x, 2), torch.arange(4), middle, middle, torch.zeros(4, dtype=torch.bool), 8)
    assert torch.equal(out, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_standardise(dtype: torch.dtype) -> None:
    x = torch.arange(256, dtype=torch.uint8).reshape(2, 2, 32, 2)
    mean, std = torch.tensor([0.3, 0.5]), torch.tensor([0.2, 0.25])
    out = standardise(x, mean, std, dtype)
    assert out.dtype == dtype
    exact = ((x.double() / 255 - mean.double()) / std.double()).to(dtype)
    torch.testing.assert_close(out, exact)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("parts", [1, 256])
def test_captured_in_a_cuda_graph(parts: int) -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (50, 32, 32, 3), generator=g).to(torch.uint8)
    index, dy, dx = (torch.randint(0, high, (2, 16), generator=g) for high in (50, 6 * parts, 6 * parts))
    flip = torch.rand(2, 16, generator=g) < 0.5
    mean, std = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.3, 0.4])
    host = [pad(x, 3), index, dy, dx, flip, mean, std]
    device = [tensor.cuda() for tensor in host]

    def step(padded, index, dy, dx, flip, mean, std) -> Tensor:
        if parts == 1:
            return standardise(crop_flip(padded, index, dy, dx, flip, 32), mean, std)
        return standardise(crop_flip_between(padded, index, dy, dx, flip, (32, 32), parts), mean, std)

    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            step(*device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            out = step(*device)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    device[1].copy_(index.flip(1))
    graph.replay()
    host[1] = index.flip(1)
    torch.testing.assert_close(out.cpu(), step(*host))


@settings(deadline=None, max_examples=40)
@given(
    height=st.integers(1, 6),
    width=st.integers(1, 6),
    sides=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    seed=st.integers(0, 2**31),
)
def test_hide_is_one_pixel_at_a_time(height: int, width: int, sides: list[int], seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(2, len(sides), height, width, 3, generator=g) + 1
    row, column = (torch.randint(0, length, (2, len(sides)), generator=g) for length in (height, width))
    out = hide(x, row, column, torch.tensor(sides))
    for b, k, r, c in itertools.product(range(2), range(len(sides)), range(height), range(width)):
        first = int(row[b, k]) - sides[k] // 2, int(column[b, k]) - sides[k] // 2
        hidden = all(start <= at < start + sides[k] for start, at in zip(first, (r, c)))
        assert torch.equal(out[b, k, r, c], torch.zeros(3) if hidden else x[b, k, r, c])
