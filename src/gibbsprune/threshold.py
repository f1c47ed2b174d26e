"""The threshold Q(p, w) and the converged mask x_cvg (Section III-B).

Q is the p-quantile of the mean squared weights of a layer's neighbourhoods, with linear interpolation
(numpy's default). The converged mask keeps the neighbourhoods strictly above Q, which without ties are
K = M − 1 − ⌊p(M − 1)⌋ of M; with ties it still keeps exactly K, lowest index first, and p = 0 keeps all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from . import limits
from .checks import check_sparsity
from .errors import UserError
from .structures import Structure, as_structure, given_sparsity

if TYPE_CHECKING:
    from .threshold_triton import Selection

CHUNK = 1 << 24  # elements worked on at once, so that huge layers need bounded extra memory
PIECE, PROGRAMS = 2048, 2048  # the least work of a Triton program, and how many a large GPU runs side by side


def position(sparsity: float, count: int) -> tuple[int, float]:
    """Where Q lies among ``count`` sorted values: p(M − 1) as a whole number and a fraction of a gap.

    The p that the user meant is taken exactly: where p is the floating-point number nearest to k/(M − 1), the
    result is k, so that 0.29·100 is 29 and not 28.999…, and (1/3)·3 is 1.
    """
    value = check_sparsity(sparsity)
    nearest = round(value * (count - 1))
    if count > 1 and nearest / (count - 1) == value:
        return nearest, 0.0
    where = Fraction(value) * (count - 1)
    low = math.floor(where)
    return low, float(where - low)


def kept_count(sparsity: float, count: int) -> int:
    """How many of ``count`` neighbourhoods the converged mask keeps, K."""
    return count if sparsity == 0 else count - 1 - position(sparsity, count)[0]


def mean_squares(weight: Tensor, structure: Structure) -> Tensor:
    """w̄_k², the mean squared weight of every neighbourhood, in float32 or better."""
    squares = squared_rows(weight.detach(), structure)
    return squares.flatten() if squares.shape[1] == 1 else squares.mean(1)


def squared_rows(weight: Tensor, structure: Structure) -> Tensor:
    """w² as (rows, n), in float32 or better."""
    rows = structure.rows(weight)
    return rows.to(torch.promote_types(rows.dtype, torch.float32)).square()


def order_statistic(values: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The ``rank``-th smallest value (from 0) and the one after it, of any number of values."""
    rank, after = min(rank, values.numel() - 1), min(rank + 1, values.numel() - 1)
    if values.device.type == "cpu":
        part = np.partition(values.numpy(), rank)  # one pivot is several times as fast as two
        next_one = part[after:].min() if after > rank else part[rank]
        return torch.as_tensor(part[rank]), torch.as_tensor(next_one)
    order = values.sort().values
    return order[rank], order[after]


def quantile(values: Tensor, sparsity: float) -> Tensor:
    """The p-quantile with linear interpolation, exact for any size (torch.quantile stops at 2^24)."""
    low, fraction = position(sparsity, values.numel())
    below, above = order_statistic(values, low)
    return below if fraction == 0 else torch.lerp(below, above, fraction)


def keep_largest(values: Tensor, keep: int) -> Tensor:
    """A mask of exactly the ``keep`` largest values; among equals the lowest index first."""
    if keep >= values.numel():
        return torch.ones_like(values, dtype=torch.bool)
    cut = order_statistic(values, values.numel() - keep)[0]
    mask = values > cut
    missing = keep - int(mask.sum())
    if missing:
        mask[(values == cut).nonzero().flatten()[:missing]] = True
    return mask


def threshold(weight: Tensor, sparsity: float | None = None, structure: str | Structure = "weight") -> Tensor:
    """Q(p, w̄): the p-quantile of the neighbourhoods' mean squared weights.

    Where kernels keep at most k, that of the squares, of which those beyond the k largest of a kernel count as 0. A
    pattern N:M has one for each group, half-way between the last weight that stays and the first that goes.

    >>> import torch, gibbsprune as gp
    >>> float(gp.threshold(torch.tensor([1.0, -2.0, 3.0]), 0.5))
    4.0
    """
    kind = as_structure(structure)
    return measured(check_weight(weight), given_sparsity(sparsity, kind), kind)[2]


def measured(weight: Tensor, sparsity: float, structure: Structure) -> tuple[Tensor, Tensor, Tensor]:
    """What a field is made of: w² as (rows, n), what Q is compared with, w̄² or each weight's own, and Q."""
    squares = squared_rows(weight, structure)
    if not structure.limited:
        means = mean_squares(weight, structure)
        return squares, means[:, None], quantile(means, sparsity)
    least, most = structure.limits(weight.shape)
    if least == most:
        inside, outside = limits.cuts(squares, most)
        return squares, squares, (inside + outside) / 2
    values = limits.eligible(squares, most)
    return squares, values, quantile(values.flatten(), sparsity)


def converged_mask(weight: Tensor, sparsity: float | None = None, structure: str | Structure = "weight") -> Tensor:
    """x_cvg: keeps the neighbourhoods with the largest mean squared weight; True keeps.

    Of a pattern N:M, the N largest weights of each group; where kernels keep at most k, the largest of the layer
    among the k largest of each. A ``sparsity`` of None is 0.9, or that of the pattern.

    >>> import torch, gibbsprune as gp
    >>> gp.converged_mask(torch.tensor([1.0, -2.0, 3.0, 0.5]), 0.5)
    tensor([False,  True,  True, False])
    """
    kind = as_structure(structure)
    sparsity = given_sparsity(sparsity, kind)
    if kind.limited:
        squares, total = squared_rows(check_weight(weight), kind), weight.numel()
        mask = limits.keep(squares, kind.limits(weight.shape), kept_count(sparsity, total), total)
        return kind.unrows(mask, weight.shape)
    means = mean_squares(check_weight(weight), kind)
    mask = keep_largest(means, kept_count(sparsity, means.numel()))
    size = kind.size(weight.shape)
    return kind.unrows(mask[:, None].expand(-1, size), weight.shape)


def check_weight(weight: Tensor) -> Tensor:
    """A weight is a non-empty floating-point tensor."""
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        kind = getattr(weight, "dtype", type(weight).__name__)
        raise UserError(f"weight is {kind}: allowed are floating-point tensors")
    if weight.numel() == 0:
        raise UserError(f"weight has shape {tuple(weight.shape)}, which holds no element")
    return weight.detach()


class Segments:
    """Consecutive stretches of a vector, one per layer: their thresholds and converged masks at once."""

    def __init__(self, lengths: Sequence[int], sparsities: Sequence[float]) -> None:
        self.lengths = list(lengths)
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)]).tolist()
        self.whole: list[bool] = []
        self._constants: dict[tuple[str, torch.device], Tensor] = {}
        self._varying: dict[tuple[str, torch.device], Callable[[], Tensor]] = {}
        self._selections: dict[tuple[str, torch.device], tuple[Selection, Callable[[], list[int]]]] = {}
        self.set_sparsities(sparsities)
        self.fixed = not any(self.whole)

    def set_sparsities(self, sparsities: Sequence[float]) -> None:
        """Other sparsities from now on; what lies on a device changes in place, as a captured CUDA graph needs it."""
        self.fixed, self.whole = False, [p == 0 for p in sparsities]
        self.keep = [kept_count(p, m) for p, m in zip(sparsities, self.lengths)]
        self.low, self.fraction = map(list, zip(*map(position, sparsities, self.lengths)))
        for key, make in self._varying.items():
            self._constants[key].copy_(make())
        for selection, ranks in self._selections.values():
            selection.set_ranks(ranks())

    def constant(self, name: str, device: torch.device, make: Callable[[], Tensor], varying: bool = False) -> Tensor:
        """A tensor made once per device and kept; a ``varying`` one is made anew with the sparsities."""
        if (name, device) not in self._constants:
            self._constants[name, device] = make().to(device)
            if varying:
                self._varying[name, device] = make
        return self._constants[name, device]

    def segment(self, device: torch.device) -> Tensor:
        """The segment of each element."""
        lengths = torch.tensor(self.lengths)
        return self.constant("segment", device, lambda: torch.arange(len(lengths)).repeat_interleave(lengths))

    def spread(self, values: Tensor) -> Tensor:
        """One value per segment, given to each of its elements."""
        if len(self.lengths) == 1:
            return values.expand(self.lengths[0])
        if values.device.type == "cpu":
            return torch.from_numpy(np.repeat(values.numpy(), self.lengths))  # several times as fast as an index
        return values[self.segment(values.device)]

    def pieces(self, device: torch.device, size: int = 1) -> Tensor:
        """The work of Triton programs on ``size`` values per element: their segment, where in all, where in it, length.

        A segment is cut at multiples of PIECE; pieces are longer than that once there are enough for all programs.
        """
        step = PIECE * max(1, math.ceil(self.starts[-1] * size / (PIECE * PROGRAMS)))

        def make() -> Tensor:
            spans = [(start * size, length * size) for start, length in zip(self.starts, self.lengths)]
            return torch.tensor([
                (segment, start + first, first, min(step, length - first))
                for segment, (start, length) in enumerate(spans) for first in range(0, length, step)
            ])  # fmt: skip

        return self.constant(f"pieces of {size}", device, make)

    def _fractions(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        make = lambda: torch.tensor(self.fraction, dtype=dtype)  # noqa: E731
        return self.constant(f"fraction in {dtype}", device, make, varying=True)

    def _ranks(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Positions in the segmented order of the values just below and just above Q."""

        def below() -> Tensor:
            return torch.tensor(self.starts[:-1]) + torch.tensor(self.low)

        def above() -> Tensor:
            return torch.minimum(below() + 1, torch.tensor(self.starts[1:]) - 1)

        return self.constant("below", device, below, varying=True), self.constant("above", device, above, varying=True)

    def _kept(self, device: torch.device) -> Tensor:
        """Which positions of the segmented order are kept: the last K of each segment."""

        def make() -> Tensor:
            parts = [torch.arange(m) >= m - k for m, k in zip(self.lengths, self.keep)]
            return torch.cat(parts)

        return self.constant("kept", device, make, varying=True)

    def kept_whole(self, device: torch.device, spread: bool = True) -> Tensor:
        """The elements, or else the segments, of which nothing is removed."""
        whole = self.constant("whole", device, lambda: torch.tensor(self.whole), varying=True)
        return self.spread(whole) if spread else whole

    def split(self, values: Tensor) -> list[Tensor]:
        return [values[a:b] for a, b in zip(self.starts, self.starts[1:])]

    def thresholds(self, values: Tensor) -> Tensor:
        """Q of every segment."""
        if values.device.type == "cpu":
            return self._selected(values)
        return self._radix(values) if in_triton(values) else self._sorted(values)

    def on_threshold(self, values: Tensor) -> Tensor:
        """Which values are exactly Q."""
        return values == self.spread(self.thresholds(values))

    def _selection(self, name: str, ranks: Callable[[], list[int]], device: torch.device) -> Selection:
        """A radix selection, with its work space made once, as a captured CUDA graph needs it."""
        from .threshold_triton import Selection

        if (name, device) not in self._selections:
            self._selections[name, device] = Selection(self.lengths, ranks(), self.pieces(device)), ranks
        return self._selections[name, device][0]

    def _radix(self, values: Tensor) -> Tensor:
        below, above, _ = self._selection("low", lambda: self.low, values.device)(values)
        return torch.lerp(below, above, self._fractions(values.device, torch.float32))

    def _selected(self, values: Tensor) -> Tensor:
        pairs = [order_statistic(v, low) for v, low in zip(self.split(values), self.low)]
        below, above = torch.stack([a for a, _ in pairs]), torch.stack([b for _, b in pairs])
        return torch.lerp(below, above, self._fractions(values.device, values.dtype))

    def _sorted(self, values: Tensor) -> Tensor:
        below, above = self._ranks(values.device)
        bits = _segment_order(values, self.segment(values.device)).values & 0xFFFFFFFF
        order = bits.to(torch.int32).view(torch.float32)
        return torch.lerp(order[below], order[above], self._fractions(values.device, torch.float32))

    def converged(self, values: Tensor) -> Tensor:
        """x_cvg of every segment, as one mask over all values, exact counts included."""
        if values.device.type == "cpu":
            return torch.cat([keep_largest(v, k) for v, k in zip(self.split(values), self.keep)])
        return self._converged_radix(values) if in_triton(values) else self._converged_sorted(values)

    def _converged_radix(self, values: Tensor) -> Tensor:
        """What exceeds the least value kept, and of those equal to it the first, as many as are missing."""
        device = values.device

        def least() -> list[int]:
            return [m - k for m, k in zip(self.lengths, self.keep)]  # its rank; m where none is

        def within() -> list[int]:
            return [min(rank, m - 1) for rank, m in zip(least(), self.lengths)]

        make = lambda: torch.tensor(least(), dtype=torch.int32)  # noqa: E731
        ranks = self.constant("least", device, make, varying=True)
        cut, _, upto = self._selection("least", within, device)(values)
        bound = self.spread(cut)
        equal = values == bound
        seen = equal.cumsum(0, dtype=torch.int32)
        starts = self.constant("starts", device, lambda: torch.tensor(self.starts[:-1]))
        wanted = seen[starts] - equal[starts].int() + upto - ranks
        return (values > bound) | (equal & (seen <= self.spread(wanted)))

    def _converged_sorted(self, values: Tensor) -> Tensor:
        # The last of a segment in ascending order are kept. Flipped, the lowest index comes last among equals.
        kept = self._kept(values.device)
        order = _segment_order(values.flip(0), self.segment(values.device).flip(0))
        return torch.empty_like(kept).scatter_(0, values.numel() - 1 - order.indices, kept)


def in_triton(values: Tensor) -> bool:
    """Whether Triton kernels work on these values."""
    return values.device.type == "cuda" and values.dtype == torch.float32 and find_spec("triton") is not None


def _segment_order(values: Tensor, segment: Tensor) -> torch.return_types.sort:
    """One stable sort for all segments: 64-bit keys, the segment above and the bits of a float ≥ 0 below."""
    keys = (segment << 32) | values.float().contiguous().view(torch.int32).to(torch.int64)
    return keys.sort(stable=True)
