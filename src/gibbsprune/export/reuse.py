"""Operations that overwrite what nobody reads again, instead of filling new memory.

A ReLU or a sum behind a convolution, dense layer, norm or sum writes into the tensor that it reads, where it is the
only reader. None of those keep their output for the backward pass, so the network stays trainable. On a CPU a large
new tensor costs more than the arithmetic that fills it.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from gibbsprune.export.layers import CONVOLUTIONS, NORMS
from gibbsprune.export.plan import AddBorders, SumInto

FRESH = (nn.Linear, *CONVOLUTIONS, *NORMS, AddBorders)
SUMS = (operator.add, operator.iadd, torch.add)


def reuse_memory(module: fx.GraphModule) -> None:
    """Make ReLUs and sums of the graph work in place where that changes nothing else."""
    for node in module.graph.nodes:
        if _is_relu(module, node) and _fresh(module, node.args[0]):
            source = node.args[0]
            node.op, node.target, node.args, node.kwargs = "call_function", F.relu, (source,), {"inplace": True}
        elif (
            node.op == "call_function"
            and node.target in (operator.add, torch.add)
            and len(node.args) == 2
            and not node.kwargs
        ):
            for own, other in (node.args, node.args[::-1]):
                if own is not other and _fresh(module, own) and _shape(own) == _shape(node) == _shape(other):
                    node.target, node.args = operator.iadd, (own, other)
                    break
        elif (layer := _layer(module, node)) is not None and isinstance(layer, (SumInto, AddBorders)):
            layer.reuse = _last_reader(module, node)
    module.recompile()
    module.delete_all_unused_submodules()


def _layer(module: fx.GraphModule, node: Any) -> nn.Module | None:
    return module.get_submodule(str(node.target)) if isinstance(node, fx.Node) and node.op == "call_module" else None


def _is_relu(module: fx.GraphModule, node: fx.Node) -> bool:
    if len(node.args) != 1 or set(node.kwargs) - {"inplace"}:
        return False
    if node.op == "call_method":
        return node.target == "relu"
    return node.target in (F.relu, torch.relu) or type(_layer(module, node)) is nn.ReLU


def _fresh(module: fx.GraphModule, node: Any) -> bool:
    """Whether a tensor is new memory, has one reader, and is not kept for the backward pass."""
    if not isinstance(node, fx.Node) or len(node.users) != 1:
        return False
    if node.op == "call_function":
        return node.target in SUMS
    return isinstance(_layer(module, node), (*FRESH, SumInto))


def _last_reader(module: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a node reads memory of the network's own that layers with weights have read before, and none will."""
    own = node.args[0]
    if not isinstance(own, fx.Node) or own in node.args[1:]:
        return False
    if own.op == "call_function" and own.target not in (F.relu, *SUMS):
        return False
    if own.op != "call_function" and not isinstance(_layer(module, own), (*FRESH, SumInto)):
        return False
    others = [user for user in own.users if user is not node]
    return all(user < node and isinstance(_layer(module, user), FRESH[:-1]) for user in others)


def _shape(node: Any) -> Any:
    """The shape and type at the example inputs, before anything was made smaller."""
    meta = node.meta.get("tensor_meta") if isinstance(node, fx.Node) else None
    return (tuple(meta.shape), meta.dtype) if meta is not None and hasattr(meta, "shape") else object()
