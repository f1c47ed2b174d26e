"""One sparse tensor as bytes: where the survivors are, and what they are.

The n entries are cut into units of u consecutive ones (u = 1; or a whole kernel; or a whole filter), and a unit
is kept where any of its entries is not zero. The kept units are written in whichever way is the shortest:

- ``dense``: every value, no positions; n values.
- ``mask``: one bit per unit, ⌈n / 8u⌉ bytes.
- ``index``: the number g of dropped units before each kept one, as ⌊g / 255⌋ bytes 255 and one byte g mod 255.

Sparse ways forget the sign of a zero, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
WAYS = ("dense", "mask", "index")


@dataclass(frozen=True)
class Positions:
    """The way the kept units are written, the unit's size, the bytes, and the flat indices of the kept entries."""

    way: str
    unit: int
    code: Bytes
    kept: NDArray[np.int64] | None  # None: all

    @classmethod
    def shortest(cls, alive: NDArray[np.bool_], units: tuple[int, ...], value_bytes: float) -> Positions:
        """The shortest way to write which of the flat entries are ``alive``, values included."""
        best = cls("dense", 1, np.zeros(0, np.uint8), None)
        best_size = alive.size * value_bytes
        for unit in sorted(set(units)):
            kept = alive.reshape(-1, unit).any(1)
            values = float(kept.sum()) * unit * value_bytes
            for way, code in (("mask", np.packbits(kept)), ("index", gaps(np.flatnonzero(kept)))):
                if code.size + values < best_size:
                    best, best_size = cls(way, unit, code, entries(np.flatnonzero(kept), unit)), code.size + values
        return best


def entries(kept: NDArray[np.int64], unit: int) -> NDArray[np.int64]:
    """The flat indices of all entries of these units."""
    return (kept[:, None] * unit + np.arange(unit)).reshape(-1)


def gaps(kept: NDArray[np.int64]) -> Bytes:
    """Sorted positions as gap bytes; a byte of 255 means 255 dropped and none kept yet."""
    gap = np.diff(kept, prepend=-1) - 1
    whole = gap // 255
    code = np.full(kept.size + int(whole.sum()), 255, np.uint8)
    code[np.cumsum(whole + 1) - 1] = gap % 255
    return code


def positions(way: str, unit: int, code: Bytes, size: int) -> NDArray[np.int64]:
    """The flat indices of the kept entries, from what :class:`Positions` wrote; ValueError where they do not fit."""
    if way not in WAYS or not 1 <= unit <= max(size, 1) or size % unit:
        raise ValueError("unknown way of writing positions")
    if way == "dense":
        return np.arange(size)
    if way == "mask":
        if code.size != -(-size // unit // 8):
            raise ValueError("mask of the wrong length")
        return entries(np.flatnonzero(np.unpackbits(code, count=size // unit)), unit)
    ends = code < 255
    kept = (np.cumsum(code.astype(np.int64) + ends) - 1)[ends]
    if kept.size and kept[-1] >= size // unit:
        raise ValueError("index past the end")
    return entries(kept, unit)
