"""Batch norm as part of the layer before it.

In eval mode y = γ (x − μ) / √(σ² + ε) + β is one multiplication and one addition per channel. Behind a layer
x = W u + b they go into its weights: with s = γ / √(σ² + ε), W ← s W and b ← s (b − μ) + β. That is exact
whatever the padding, since it concerns the layer's output alone. It is computed in float64 and rounded once.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, fx, nn

from gibbsprune.export.layers import CONVOLUTIONS, NORMS, TRANSPOSED, parameter
from gibbsprune.export.plan import LeftAlone, shape_of, shared_layers


def fold_batch_norms(module: fx.GraphModule) -> dict[str, str]:
    """Fold what can be folded, and tell which norms stay and why. Needs the shapes of the example inputs."""
    graph, left = module.graph, {}
    calls = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    shared = shared_layers(module)
    for node in list(graph.nodes):
        if node.op != "call_module" or not isinstance(norm := module.get_submodule(str(node.target)), NORMS):
            continue
        try:
            before = _layer_before(module, node, calls, shared)
        except LeftAlone as reason:
            left[str(node.target)] = f"{reason}, so it cannot be folded"
            continue
        _fold(module.get_submodule(str(before.target)), norm)
        node.replace_all_uses_with(before)
        graph.erase_node(node)
    module.recompile()
    module.delete_all_unused_submodules()
    return left


def _layer_before(module: fx.GraphModule, node: fx.Node, calls: Counter[str], shared: dict[str, str]) -> fx.Node:
    """The convolution or dense layer that a norm can be folded into; refused with the reason where there is none."""
    norm = module.get_submodule(str(node.target))
    before = node.args[0] if len(node.args) == 1 and not node.kwargs else None
    if norm.running_mean is None:
        raise LeftAlone("it has no running statistics")
    if not isinstance(before, fx.Node) or before.op != "call_module":
        raise LeftAlone("it does not follow a convolution or dense layer")
    layer = module.get_submodule(str(before.target))
    if type(layer) is not nn.Linear and type(layer) not in CONVOLUTIONS:
        raise LeftAlone(f"it follows {type(layer).__name__}")
    if calls[str(before.target)] > 1 or calls[str(node.target)] > 1:
        raise LeftAlone("it or the layer before is called more than once")
    if str(before.target) in shared:
        raise LeftAlone("the layer before has a parameter that is read elsewhere too")
    if len(before.users) > 1:
        raise LeftAlone("the layer before has other readers")
    if isinstance(layer, nn.Linear) and len(shape_of(before)) != 2:
        raise LeftAlone("it norms another axis than the dense layer's outputs")
    return before


def _fold(layer: Any, norm: Any) -> None:
    """Put the norm's scale and shift into the layer's weight and bias."""

    def number(value: Tensor | None, otherwise: float) -> Tensor:
        like = norm.running_mean.detach().cpu().double()
        return torch.full_like(like, otherwise) if value is None else value.detach().cpu().double()

    scale = number(norm.weight, 1.0) / (number(norm.running_var, 1.0) + norm.eps).sqrt()
    bias = scale * (number(layer.bias, 0.0) - number(norm.running_mean, 0.0)) + number(norm.bias, 0.0)
    weight = layer.weight.detach().cpu().double()
    if isinstance(layer, TRANSPOSED):  # (inputs, outputs / groups, …)
        inputs, each = weight.shape[:2]
        groups = weight.reshape(layer.groups, inputs // layer.groups, each, -1)
        folded = groups * scale.view(layer.groups, 1, each, 1)
    else:
        folded = weight.flatten(1) * scale[:, None]
    device = layer.weight.device
    layer.bias = parameter(layer.weight, bias.to(device))
    layer.weight = parameter(layer.weight, folded.reshape(weight.shape).to(device))
