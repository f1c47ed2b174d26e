"""Products of matrices that are both computed, and attention, which is two of them and a softmax between."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .network import Along, Network, Product, Value
from .rules import Arguments, constant, joined, linear, refused, times


def matmul(net: Network, a: Arguments, shape: tuple[int, ...]) -> Value:
    x, z = a["self"], a["other"] if "other" in a else a["mat2"]
    if isinstance(z, Tensor) and z.dim() == 2:
        return linear(net, {"input": x, "weight": z.t(), "bias": None, "node": a["node"]}, shape)
    if not isinstance(x, Value) and x.dim() == 2 and isinstance(z, Value) and len(z.shape) > 1:
        last = [*range(len(z.shape) - 2), len(z.shape) - 1, len(z.shape) - 2]
        given = {"input": net.turned(z, last), "weight": x, "bias": None, "node": a["node"]}
        return net.turned(linear(net, given, (*shape[:-2], shape[-1], shape[-2])), last)
    x, z = (
        value if isinstance(value, Value) else constant(net, value, len(shape), a["batch"], a["node"])
        for value in (x, z)
    )
    if not len(x.shape) == len(z.shape) == len(shape) >= 2:
        raise refused(a["node"], "of these shapes")
    return product(net, x, z)


def product(net: Network, x: Value, z: Value) -> Value:
    """Of the last two axes; the others may be broadcast."""
    lead = tuple(max(n, m) for n, m in zip(x.shape[:-2], z.shape[:-2]))
    x, z = net.expanded(x, (*lead, *x.shape[-2:])), net.expanded(z, (*lead, *z.shape[-2:]))
    return net.add(Product([x, z], Value((*lead, x.shape[-2], z.shape[-1]))))


def attention(net: Network, a: Arguments, shape: tuple[int, ...]) -> Value:
    """softmax(scale · q kᵀ + mask) v."""
    q, k, v, mask = a["query"], a["key"], a["value"], a["attn_mask"]
    same = all(isinstance(x, Value) and x.shape[:-2] == shape[:-2] for x in (q, k, v)) and len(shape) >= 2
    if a["dropout_p"] or a.get("enable_gqa") or not same:
        raise refused(a["node"], "with dropout, with fewer keys than queries, or of constants")
    scale = 1 / math.sqrt(q.shape[-1]) if a["scale"] is None else float(a["scale"])
    axes = range(len(shape))
    found = product(net, net.add(times(q, scale)), net.turned(k, [*axes[:-2], axes[-1], axes[-2]]))
    if a["is_causal"]:
        mask = torch.ones(found.shape[-2:], dtype=torch.bool).tril()
    if isinstance(mask, Tensor):
        if mask.dtype == torch.bool:
            mask = torch.zeros(mask.shape).masked_fill(~mask, -math.inf)
        mask = constant(net, mask, len(shape), a["batch"], a["node"])
    if mask is not None:
        found = joined(net, found, mask, "+", found.shape, a["node"])
    return product(net, net.add(Along([found], Value(found.shape), 2)), v)


#: The rules by the names of the operators.
PRODUCTS: dict[str, Callable[[Network, Arguments, tuple[int, ...]], Value]] = {
    "matmul": matmul,
    "bmm": matmul,
    "scaled_dot_product_attention": attention,
}
