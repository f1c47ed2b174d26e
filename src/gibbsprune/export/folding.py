"""Batch norm as part of the layer before it.

In eval mode y = γ (x − μ) / √(σ² + ε) + β is one multiplication and one addition per channel. Behind a layer
x = W u + b they go into its weights: with s = γ / √(σ² + ε), W ← s W and b ← s (b − μ) + β. That is exact
whatever the padding, since it concerns the layer's output alone. It is computed in float64 and rounded once.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, fx

from .aten import attribute, drop_dead, op_name, shape
from .channels import LeftAlone
from .plan import set_attribute


def fold_batch_norms(module: fx.GraphModule) -> dict[str, str]:
    """Fold what can be folded, and tell which norms stay and why."""
    graph, left = module.graph, {}
    reads = [n for n in graph.nodes if n.op == "get_attr"]
    readers = Counter(id(attribute(module, n)) for n in reads for _ in n.users)
    for node in list(graph.nodes):
        if op_name(node) != "batch_norm":
            continue
        try:
            before = _layer_before(module, node, readers)
        except LeftAlone as reason:
            owner = next((a for a in node.args[1:5] if isinstance(a, fx.Node)), None)
            stack = list((node.meta.get("nn_module_stack") or {"": (node.name, "")}).values())
            name = str(owner.target).rpartition(".")[0] if owner is not None else str(stack[-1][0])
            left[name] = f"{reason}, so it cannot be folded"
            continue
        _fold(module, before, node)
        node.replace_all_uses_with(before)
        graph.erase_node(node)
    drop_dead(graph)
    module.recompile()
    return left


def _layer_before(module: fx.GraphModule, node: fx.Node, readers: Counter[int]) -> fx.Node:
    """The convolution or dense layer that a norm can be folded into; refused with the reason where there is none."""
    before: Any = node.args[0]
    if node.args[3] is None:
        raise LeftAlone("it has no running statistics")
    if op_name(before) not in ("convolution", "linear"):
        raise LeftAlone("it does not follow a convolution or dense layer")
    if any(
        not isinstance(a, fx.Node) or a.op != "get_attr" for a in (*before.args[1:3], *node.args[1:5]) if a is not None
    ):
        raise LeftAlone("it or the layer before computes its weights")
    again = [n for n in before.args[1].users if op_name(n) == op_name(before)]
    if len(again) > 1:
        raise LeftAlone("it or the layer before is called more than once")
    if any(a is not None and readers[id(attribute(module, a))] > 1 for a in before.args[1:3]):
        raise LeftAlone("the layer before has a parameter that is read elsewhere too")
    if len(before.users) > 1:
        raise LeftAlone("the layer before has other readers")
    if op_name(before) == "linear" and len(shape(before)) != 2:
        raise LeftAlone("it norms another axis than the dense layer's outputs")
    return before


def _fold(module: fx.GraphModule, before: Any, node: Any) -> None:
    """Put the norm's scale and shift into the layer's weight and bias."""

    def number(part: Any, otherwise: float) -> Tensor:
        like = attribute(module, node.args[3]).detach().cpu().double()
        return torch.full_like(like, otherwise) if part is None else attribute(module, part).detach().cpu().double()

    before.args = (*before.args, *[None] * (3 - len(before.args)))
    weight_node, bias_node = before.args[1:3]
    scale = number(node.args[1], 1.0) / (number(node.args[4], 1.0) + node.args[7]).sqrt()
    bias = scale * (number(bias_node, 0.0) - number(node.args[3], 0.0)) + number(node.args[2], 0.0)
    old = attribute(module, weight_node)
    weight = old.detach().cpu().double()
    if op_name(before) == "convolution" and before.args[6]:  # transposed: (inputs, outputs / groups, …)
        inputs, each = weight.shape[:2]
        groups = before.args[8]
        folded = weight.reshape(groups, inputs // groups, each, -1) * scale.view(groups, 1, each, 1)
    else:
        folded = weight.flatten(1) * scale[:, None]

    def put(name: str, value: Tensor) -> None:
        set_attribute(
            module, name, torch.nn.Parameter(value.to(old.device, old.dtype), requires_grad=old.requires_grad)
        )

    put(str(weight_node.target), folded.reshape(weight.shape))
    name = str(bias_node.target) if bias_node is not None else str(weight_node.target).rpartition(".")[0] + ".bias"
    put(name, bias)
    if bias_node is None:
        with module.graph.inserting_before(before):
            new = module.graph.get_attr(name)
        new.meta = {"val": bias.to(old.dtype)}
        before.args = (before.args[0], weight_node, new, *before.args[3:])
