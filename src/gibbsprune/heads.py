"""Attention heads: whose queries, keys and values they are, and what reads them.

Those of ``nn.MultiheadAttention`` are known. Others are found in the graph of torch.export: around a
scaled_dot_product_attention, or a softmax of (examples, heads, queries, keys), are three layers, or one for all three,
and the first that reads the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn
from torch.fx import Node

from .flow import Seen, operator
from .slices import Part, inputs, outputs, plain
from .weights import Layer

PARTED = {"split", "split_with_sizes", "chunk", "slice", "tensor_split"}


def heads_of(layers: Mapping[str, Layer], seen: Seen | None) -> list[list[Part]]:
    """The parts of all heads of each attention among these layers."""
    return [*_attention(layers), *(_heads(layers, seen) if seen is not None and seen.exported else [])]


def _attention(layers: Mapping[str, Layer]) -> list[list[Part]]:
    """Those of torch's own module."""
    found: dict[str, list[Part]] = {}
    for layer in layers.values():
        if isinstance(layer.module, nn.MultiheadAttention) and layer.module.num_heads > 1:
            fused = layer.parameter == "in_proj_weight"
            part = Part(layer.name, "filter", layer.module.num_heads, fused)
            found.setdefault(layer.owner, []).append(part)
    units = []
    for owner, parts in found.items():
        reader = f"{owner}.out_proj" if owner else "out_proj"
        if reader in layers:
            units.append([*parts, Part(reader, "column", parts[0].units)])
    return units


def _heads(layers: Mapping[str, Layer], seen: Seen) -> list[list[Part]]:
    """Those around a softmax of the graph."""
    owned = {layer.owner: layer for layer in layers.values() if plain(layer)}
    used = Counter(seen.owners.values())
    units = []
    graph = next(iter(seen.owners)).graph if seen.owners else None
    for node in graph.nodes if graph is not None else ():
        found = _around(node, seen)
        if found is None:
            continue
        heads, names, reader = found
        if any(name not in owned or used[name] > 1 for name in (*names, reader)):
            continue
        parts = _parts(heads, [owned[name] for name in names], owned[reader], seen)
        if parts is not None and parts[0].units != 1:
            units.append(parts)
    return units


def _around(node: Node, seen: Seen) -> tuple[int, list[str], str] | None:
    """The number of heads of an attention, the modules of its queries, keys and values, and the one that reads it."""
    if operator(node) == "scaled_dot_product_attention":
        makers, heads, mixed = [_sources([part], seen) for part in node.args[:3]], node.args[0], node
    elif operator(node) in ("softmax", "_softmax"):
        product = _following(node)
        if product is None:
            return None
        values = [part for part in product.all_input_nodes if part not in _passed(node)]
        makers, heads, mixed = [_sources([node.args[0]], seen), _sources(values, seen)], node, product
    else:
        return None
    shape = tuple(heads.meta["val"].shape) if isinstance(heads, Node) else ()
    readers = _nearest(mixed.users, lambda user: user.users, seen)
    if len(shape) != 4 or len(readers) != 1 or any(not some for some in makers):
        return None
    names = list(dict.fromkeys(name for some in makers for name in some))
    return int(shape[1]), names, readers[0]


def _parts(heads: int, makers: Sequence[Layer], reader: Layer, seen: Seen) -> list[Part] | None:
    outs, ins = [outputs(layer) for layer in makers], inputs(reader)
    last = Part(reader.name, "column", heads)
    if len(makers) == 1 and outs[0] == 3 * ins and ins % heads == 0:
        apart = _one_below_the_other(makers[0].owner, heads, seen)
        return None if apart is None else [Part(makers[0].name, "filter", heads, apart), last]
    if len(makers) != 3 or max(outs[:2]) % heads:
        return None
    units = min(outs[:2]) * heads // max(outs[:2])  # fewer keys than queries: heads that share them are one
    if not units or any(count % units for count in (*outs, ins)):
        return None
    return [*(Part(layer.name, "filter", units) for layer in makers), replace(last, units=units)]


def _one_below_the_other(owner: str, heads: int, seen: Seen) -> bool | None:
    """How a layer of queries, keys and values lays them out: each with all its heads, or each head with its three."""
    node = next(node for node, name in seen.owners.items() if name == owner)
    while True:
        users = [user for user in node.users if operator(user)]
        if any(operator(user) in PARTED for user in users):
            return True
        if not users or "val" not in users[0].meta:
            return None
        node = users[0]
        shape = tuple(node.meta["val"].shape)
        if heads in shape[2:]:
            if shape[-3:-1] == (3, 3):
                return None
            return shape[-3:-1] == (3, heads)


def _nearest(nodes: Iterable[Any], onward: Callable[[Node], Iterable[Node]], seen: Seen) -> list[str]:
    """The modules that one comes to first from these, by whatever steps."""
    found, done, open_ = [], set(), [node for node in nodes if isinstance(node, Node)]
    while open_:
        node = open_.pop()
        if node in seen.owners:
            found.append(seen.owners[node])
        elif node not in done:
            done.add(node)
            open_.extend(onward(node))
    return list(dict.fromkeys(found))


def _sources(nodes: Iterable[Any], seen: Seen) -> list[str]:
    """The modules whose outputs these come from."""
    return _nearest(nodes, lambda node: node.all_input_nodes, seen)


def _passed(node: Node) -> set[Node]:
    """A softmax and what becomes of it before it meets the values."""
    found, open_ = {node}, list(node.users)
    while open_:
        user = open_.pop()
        if operator(user) not in ("matmul", "bmm", "") and user not in found:
            found.add(user)
            open_.extend(user.users)
    return found


def _following(node: Node) -> Node | None:
    """The product of a softmax with the values."""
    users = [user for part in _passed(node) for user in part.users if operator(user) in ("matmul", "bmm")]
    return users[0] if len(users) == 1 else None
