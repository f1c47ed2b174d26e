"""The largest of each row: what neighbourhoods may keep of which only so many weights stay.

Limits (least, most) are either exact, N and N, and then a row decides by itself; or 0 and k, and then all rows of a
layer compete with their k largest for as many places as the layer's sparsity leaves. Everything has a fixed shape, as a
captured CUDA graph needs it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .checks import bad

COLUMNS = 8  # up to which a row is ranked by comparing all pairs
BLOCK, MANY = 1 << 17, 1 << 26  # weights ranked at once: on a CPU those that stay in its cache


def keep_in_rows(values: Tensor, keep: int) -> Tensor:
    """A mask of the ``keep`` largest values of each row; among equals the lowest index first."""
    size = values.shape[1]
    if keep >= size:
        return torch.ones_like(values, dtype=torch.bool)
    mask = torch.zeros_like(values, dtype=torch.bool)
    block = _block(values)
    for part, out in zip(values.split(block), mask.split(block)):
        if size > COLUMNS:
            places = part.sort(dim=1, descending=True, stable=True).indices[:, :keep]
            out.scatter_(1, places, True)
            continue
        columns = part.T.contiguous()
        for i, value in enumerate(columns):  # how many come before it
            ahead = (columns[:i] >= value).sum(0) + (columns[i + 1 :] > value).sum(0)
            torch.lt(ahead, keep, out=out[:, i])
    return mask


def cuts(values: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """The least value (≥ 0) that each row keeps and the greatest that it does not, as (rows, 1); 0 if there is none."""
    count, size = values.shape
    found = values.new_zeros(2, count)
    block = _block(values)
    for part, inside, outside in zip(values.split(block), *(row.split(block) for row in found)):
        if size > COLUMNS:
            top = part.topk(min(keep + 1, size), dim=1).values.T
        else:  # the largest, the next one …, column by column
            top = list(part.T.contiguous())
            for place in range(min(keep + 1, size)):
                for i in range(place + 1, size):
                    top[place], top[i] = torch.maximum(top[place], top[i]), torch.minimum(top[place], top[i])
        inside.copy_(top[keep - 1])
        if keep < size:
            outside.copy_(top[keep])
    return found[0, :, None], found[1, :, None]


def _block(values: Tensor) -> int:
    """How many rows are worked on at once: few that stay in a CPU's cache, many on a GPU."""
    return max(1, (BLOCK if values.device.type == "cpu" else MANY) // values.shape[1])


def eligible(squares: Tensor, most: int) -> Tensor:
    """Values in the order of ``squares`` (≥ 0), above 0 for the ``most`` largest of each row, 0 for the others.

    Each is the next larger floating-point number, so that a weight of 0 that may be kept comes before one that may not.
    """
    bits = torch.int32 if squares.dtype == torch.float32 else torch.int64
    return torch.where(keep_in_rows(squares, most), (squares.contiguous().view(bits) + 1).view(squares.dtype), 0)


def keep(squares: Tensor, limits: tuple[int, int], places: int, total: int) -> Tensor:
    """The converged mask of one layer's rows.

    Args:
        squares: w², as (rows, n).
        limits: of a row.
        places: how many weights the layer keeps, where its rows do not say so.
        total: how many it has.
    """
    least, most = limits
    if least == most or places == total:
        return keep_in_rows(squares, most if places < total else squares.shape[1])
    values = eligible(squares, most).flatten()
    order = values.sort(descending=True, stable=True).indices[:places]
    return torch.zeros_like(values, dtype=torch.bool).scatter_(0, order, True).view_as(squares)


def check_room(sparsity: float, places: int, most: int, size: int, count: int) -> None:
    """Refuses a layer that would have to keep more weights than its neighbourhoods may.

    Args:
        sparsity: of the layer.
        places: how many weights it would keep.
        most: how many of a neighbourhood may stay.
        size: of a neighbourhood.
        count: of neighbourhoods.
    """
    if sparsity and places > most * count:
        least = math.ceil(1e4 * (1 - most / size)) / 1e4
        raise bad("sparsity", sparsity, f"numbers from {least:g} with at most {most} of {size}, and 0 to keep all")
