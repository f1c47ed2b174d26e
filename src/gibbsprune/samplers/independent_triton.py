"""Independent spins as one Triton kernel: it reads what decides of a weight, makes its random number, writes its mask.

As separate PyTorch operations a draw moves a weight through memory a dozen times. See
:mod:`gibbsprune.samplers.independent`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .source import Source

BLOCK = 2048  # weights at once, of which pieces are multiples: whose random number is which depends on it


@triton.jit
def _spin(value, q, beta, word, KIND: tl.constexpr):
    """Whether a weight is kept: P = σ(t) with t = −2βa, a = sgn(Q − v), Q − v or √Q − √v.

    The rarer of the two states is drawn, from 32 random bits taken at the middle of their interval: both states have
    their probability up to 2^−33, and one of less than that does not occur.
    """
    if KIND == "sign":
        a = (value < q).to(tl.float32) - (value > q).to(tl.float32)
    elif KIND == "square":
        a = q - value
    else:
        a = tl.sqrt(q) - tl.sqrt(value)
    t = -2 * (a * beta)
    uniform = (word.to(tl.uint32, bitcast=True).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    return (uniform * (1 + tl.exp(tl.abs(t))) < 1) != (t > 0)  # the left side is u < σ(−|t|)


@triton.jit
def _kernel(values, pieces, threshold, betas, seeds, mask, size, KIND: tl.constexpr, BLOCK: tl.constexpr):
    piece = pieces + 4 * tl.program_id(0)
    segment, start = tl.load(piece), tl.load(piece + 1)
    first, length = tl.load(piece + 2).to(tl.int32), tl.load(piece + 3).to(tl.int32)
    q, beta, seed = tl.load(threshold + segment), tl.load(betas + segment), tl.load(seeds + segment)
    values += (start - first) // size  # the layer's own
    mask += start - first
    lane, end = tl.arange(0, BLOCK // 4), first + length
    for index in range(first, end, BLOCK):  # four weights from each call of the random number generator
        at0 = index + lane
        at1, at2, at3 = at0 + BLOCK // 4, at0 + BLOCK // 2, at0 + 3 * BLOCK // 4
        value0 = tl.load(values + at0 // size, mask=at0 < end, other=0.0)
        value1 = tl.load(values + at1 // size, mask=at1 < end, other=0.0)
        value2 = tl.load(values + at2 // size, mask=at2 < end, other=0.0)
        value3 = tl.load(values + at3 // size, mask=at3 < end, other=0.0)
        word0, word1, word2, word3 = tl.randint4x(seed, at0)
        tl.store(mask + at0, _spin(value0, q, beta, word0, KIND).to(tl.int8), mask=at0 < end)
        tl.store(mask + at1, _spin(value1, q, beta, word1, KIND).to(tl.int8), mask=at1 < end)
        tl.store(mask + at2, _spin(value2, q, beta, word2, KIND).to(tl.int8), mask=at2 < end)
        tl.store(mask + at3, _spin(value3, q, beta, word3, KIND).to(tl.int8), mask=at3 < end)


def draw_layers(values: Tensor, threshold: Tensor, beta: Tensor, source: Source, pieces: Tensor, kind: str) -> Tensor:
    """A mask (rows, n) of whole layers, whose fields are never written to memory.

    Args:
        values: w̄² of the rows.
        threshold: Q of each layer.
        beta: β of each layer.
        source: with one row for each layer.
        pieces: the programs' shares of the weights (:meth:`gibbsprune.threshold.Segments.pieces`).
        kind: that of :class:`gibbsprune.Linear`.
    """
    mask = torch.empty(len(values), source.size, dtype=torch.bool, device=values.device)
    tensors = (values.contiguous(), pieces, threshold, beta, source.seeds(), mask.view(torch.int8))
    _kernel[(len(pieces),)](*tensors, source.size, KIND=kind, BLOCK=BLOCK)
    return mask
