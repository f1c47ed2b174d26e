"""A layer's weights as few bytes: which of them survive, then their values.

Positions are gaps of one byte between survivors (255 says that 255 places have none), or one bit per weight where that
is shorter. Values are float32, float16, or one byte times a scale of their filter. The C loader expands both once.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from .network import Layer, Network, Op

BYTES = {"float32": 4, "float16": 2, "int8": 1}
TOGETHER = 8  # filters that the dense kernel computes at once
#: Time per weight and pixel, of the sparse kernel and of the dense one, as ``benchmarks/kernels.py`` measures it:
#: images one by one; side by side, where every vector is aligned; and one image's dense layer, where the sparse kernel
#: goes number by number and the dense one over vectors of outputs.
COSTS = {"one by one": (0.47, 0.39), "side by side": (0.33, 0.33), "numbers": (1.2, 0.125)}
WEIGHT = 0.45  # what a weight costs the sparse kernel in each tile, whatever the tile's vectors
ONCE = 0.2  # what it costs more where a kernel of one pixel reads each of many planes once
TILE, WIDE = 16, 8  # vectors in the largest tile, and numbers in a vector
SHARED = 1 << 16  # that is about 4 microseconds


def packed(layer: Layer, dtype: str) -> bytes:
    """The layer as the C function gp_expand reads it."""
    weight = layer.weight.flatten(1).float()
    scales = b""
    if dtype == "float16":
        weight = weight.clamp(-65504, 65504).half()
        stored = weight.numpy().reshape(-1)
    elif dtype == "int8":
        scale = weight.abs().amax(1).clamp(min=1e-30) / 127
        stored = (weight / scale[:, None]).round().to(torch.int8).numpy().reshape(-1)
        scales = scale.numpy().astype("<f4").tobytes()
    else:
        stored = weight.numpy().reshape(-1)
    places = np.flatnonzero(stored)
    gaps, bits = _gaps(places), np.packbits(stored != 0, bitorder="little").tobytes()
    positions, kind = (bits, 16) if len(bits) < len(gaps) else (gaps, 0)
    head = np.array([len(places), len(positions), kind + BYTES[dtype]], dtype="<u4").tobytes()
    body = scales + positions + stored[places].astype(stored.dtype.newbyteorder("<")).tobytes()
    return head + layer.bias.float().numpy().astype("<f4").tobytes() + body + b"\0" * (-len(body) % 4)


def _gaps(places: np.ndarray) -> bytes:
    """The places left out before each survivor, as bytes."""
    between = np.diff(places, prepend=-1) - 1
    skips = between // 255
    found = np.full(len(places) + int(skips.sum()), 255, dtype=np.uint8)
    found[np.arange(len(places)) + np.cumsum(skips)] = between % 255
    return found.tobytes()


def costs(layer: Layer, batch: int) -> tuple[float, float]:
    """The time of one output pixel with each filter by itself, and with several together, zeros and all."""
    weight = layer.weight.flatten(1) != 0
    filters, each = weight.shape
    padded = torch.zeros(-(-filters // TOGETHER) * TOGETHER, each, dtype=torch.bool)
    padded[:filters] = weight
    shared = int(padded.view(-1, TOGETHER, each).any(1).sum()) * TOGETHER
    pixels, side = math.prod(layer.output.planes[1:]), batch >= TOGETHER
    sparse, dense = COSTS["side by side" if side else "one by one" if pixels > 1 else "numbers"]
    if side or pixels > 1:
        sparse += WEIGHT / min(TILE, pixels if side else -(-pixels // WIDE))
        sparse += ONCE * (pixels > 1 and layer.weight[0, 0].numel() == 1)
    return sparse * int(weight.sum()), dense * shared if layer.groups == 1 else math.inf


def together(layer: Layer, batch: int) -> bool:
    """Whether several filters are computed together, since few weights are zero."""
    sparse, dense = costs(layer, batch)
    return dense < sparse


def worth_sharing(op: Op) -> bool:
    """Whether threads share the work on one image: it takes longer than waiting for each other.

    Threads that share pixels read most of what they wrote themselves; those that share filters read what others wrote.
    """
    pixels = math.prod(op.output.planes[1:])
    if not isinstance(op, Layer):
        return op.output.size >= SHARED
    return min(costs(op, 1)) * pixels >= (SHARED / 2 if pixels >= 256 else 2 * SHARED)


def cost(network: Network) -> float:
    """About how long a network takes: its multiplications, and the numbers that it reads and writes."""
    layers = [op for op in network.ops if isinstance(op, Layer)]
    numbers = sum(x.size for op in network.ops for x in (*op.inputs, op.output))
    return numbers + sum(min(costs(op, TOGETHER)) * math.prod(op.output.planes[1:]) for op in layers)
