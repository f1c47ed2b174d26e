"""One form for what networks write in several ways, before rules look at it."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from .aten import ARITHMETIC, drop_dead, op_name, shape

aten = torch.ops.aten


def canonical(module: fx.GraphModule) -> None:
    """Dense layers written as products become dense layers; stacks, squeezes and needless expansions are rewritten."""
    graph = module.graph
    for node in list(graph.nodes):
        name, args = op_name(node), node.args
        if name in ("mm", "addmm", "matmul") and not node.kwargs:
            _as_linear(graph, node, args[1:] if name == "addmm" else args, args[0] if name == "addmm" else None)
        elif name == "stack":
            _as_concat(graph, node)
        elif name == "squeeze":
            _as_reshape_of_ones(node)
        elif name in ("expand", "expand_as"):
            _without_expansion(node)
    drop_dead(graph)
    module.recompile()


def _fixed(node: Any) -> bool:
    """Whether a node is a parameter or a view of one."""
    while isinstance(node, fx.Node) and op_name(node) in ("t", "transpose", "permute", "_to_copy"):
        node = node.args[0]
    return isinstance(node, fx.Node) and node.op == "get_attr"


def _as_linear(graph: fx.Graph, node: fx.Node, factors: Any, bias: Any) -> None:
    x, weight = factors
    if not isinstance(weight, fx.Node) or not _fixed(weight) or _fixed(x) or len(shape(weight)) != 2:
        return
    if bias is not None and not (_fixed(bias) and len(shape(bias)) == 1):
        return
    with graph.inserting_before(node):
        turned = graph.call_function(aten.permute.default, (weight, [1, 0]))
    turned.meta = {"val": weight.meta["val"].t()}
    node.target, node.args = aten.linear.default, (x, turned, bias)


def _as_concat(graph: fx.Graph, node: fx.Node) -> None:
    args: Any = node.args
    dim = (args[1] if len(args) > 1 else 0) % len(shape(node))
    parts = []
    for part in args[0]:
        with graph.inserting_before(node):
            new = graph.call_function(aten.unsqueeze.default, (part, dim))
        new.meta = {**part.meta, "val": part.meta["val"].unsqueeze(dim)}
        parts.append(new)
    node.target, node.args = aten.cat.default, (parts, dim)


def _as_reshape_of_ones(node: Any) -> None:
    """Name the dimensions of one entry, so that channels of which one is left stay."""
    before = shape(node.args[0])
    dims = node.args[1] if len(node.args) > 1 else list(range(len(before)))
    ones = [d % len(before) for d in ([dims] if isinstance(dims, int) else dims) if before[d] == 1]
    if not ones:
        node.replace_all_uses_with(node.args[0])
    else:
        node.target, node.args = aten.squeeze.dims, (node.args[0], ones)


def _without_expansion(node: Any) -> None:
    """Let operations that broadcast read the tensor before its expansion."""
    source = node.args[0]
    if len(shape(source)) != len(shape(node)):
        return
    for user in list(node.users):
        if op_name(user) not in ARITHMETIC or op_name(user) == "prelu":
            continue
        others = [n for n in user.all_input_nodes if n is not node]
        if any(shape(other) == shape(node) for other in others):
            user.replace_input_with(node, source)
