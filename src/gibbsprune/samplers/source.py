"""Where samplers get their random numbers: passed in explicitly, one stream per run.

A source serves a matrix of rows. Runs that are sampled together own consecutive rows, and each run's rows are
filled from its own generator, so that a run draws the same numbers alone as among others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

SMALLEST, LARGEST = 2.0**-25, 1 - 2.0**-24
STREAMS = ("weights", "data", "masks", "layers", "new weights")


def stream(seed: int, what: str, device: torch.device | str = "cpu", *more: int) -> torch.Generator:
    """One of the independent random streams of a seed: for weights, data, masks, or layers such as dropout.

    Args:
        seed: of the run.
        what: one of ``STREAMS``; "new weights" are for a run that must not start where another one of the same seed
            does.
        device: where the numbers are needed.
        more: numbers that make further streams of one kind.
    """
    number = int(np.random.SeedSequence([seed, STREAMS.index(what), *more]).generate_state(1, np.uint64)[0])
    return torch.Generator(device).manual_seed(number >> 1)


class Source:
    """Random numbers for ``sum(rows)`` rows of ``size`` elements, rows[k] of them from generators[k].

    On the CPU a torch generator seeds a stream of numpy's SFC64, which fills memory four times as fast; on
    other devices the torch generator is used as it is, also inside a captured CUDA graph.

    Args:
        generators: one per run; None for torch's global one.
        rows: of each run.
        size: the elements of a row.
        device: where the numbers are needed.
    """

    def __init__(
        self,
        generators: Sequence[torch.Generator | None],
        rows: Sequence[int],
        size: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.generators, self.rows, self.size = list(generators), list(rows), size
        self.device = torch.device(device)

    @cached_property
    def fills(self) -> list[Callable[[Tensor], Tensor]]:
        """One function per run that fills a contiguous float32 tensor with uniform numbers on (0, 1)."""
        return [_fill(generator, self.device) for generator in self.generators]

    def uniform(self, columns: int) -> Tensor:
        """Uniform on (0, 1), float32, shape (rows, columns).

        Float32 has 24 random bits; an exact 0 is replaced by 2^−25, so that what has probability 10^−9 does
        not happen 60 times as often.
        """
        out = torch.empty(sum(self.rows), columns, dtype=torch.float32, device=self.device)
        for part, fill in zip(out.split(self.rows), self.fills):
            fill(part)
        return out

    def narrow(self, rows: int, run: int = 0) -> Source:
        """The same stream of one run, for the next ``rows`` rows."""
        part = Source([self.generators[run]], [rows], self.size, self.device)
        part.fills = [self.fills[run]]
        return part

    def seeds(self) -> Tensor:
        """One 62-bit seed per row, for kernels that make their own random numbers."""
        out = torch.empty(sum(self.rows), dtype=torch.int64, device=self.device)
        for part, generator in zip(out.split(self.rows), self.generators):
            part.random_(0, 1 << 62, generator=generator)
        return out


def _fill(generator: torch.Generator | None, device: torch.device) -> Callable[[Tensor], Tensor]:
    if device.type != "cpu":
        return lambda out: out.uniform_(generator=generator).clamp_(min=SMALLEST)
    seed = torch.empty(4, dtype=torch.int64).random_(0, 1 << 62, generator=generator)
    stream, half = np.random.SFC64(seed.tolist()), torch.tensor(0.5, dtype=torch.float32)

    def fill(out: Tensor) -> Tensor:
        words = stream.random_raw((out.numel() + 1) // 2).view(np.int32)[: out.numel()]
        out.copy_(torch.from_numpy(words).view(out.shape))
        return torch.add(half, out, alpha=2.0**-32, out=out).clamp_(SMALLEST, LARGEST)

    return fill
