"""Operations that overwrite what nobody reads again, instead of filling new memory.

A ReLU or a sum behind a convolution, dense layer, norm or sum writes into the tensor that it reads, where it is the
only reader. None of those keep their output for the backward pass, so the network stays trainable. On a CPU a large
new tensor costs more than the arithmetic that fills it. A tensor that layers have read before, and may keep for the
backward pass, is overwritten only where there are no gradients.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, fx, nn

from .aten import op_name
from .parts import AddBorders, Overwriting, SumInto, add_into

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
READERS = (nn.Linear, *CONVOLUTIONS, *NORMS)
FRESH = (*READERS, AddBorders)


def is_sum(node: Any) -> bool:
    """Whether a node adds two tensors."""
    return isinstance(node, fx.Node) and op_name(node) == "add" and len(node.args) == 2 and not node.kwargs


def reuse_memory(module: fx.GraphModule) -> None:
    """Make ReLUs and sums of the graph work in place where that changes nothing else, gradients included."""
    for node in module.graph.nodes:
        if is_relu(node) and _fresh(module, node.args[0]):
            source = node.args[0]
            node.op, node.target, node.args, node.kwargs = "call_function", F.relu, (source,), {"inplace": True}
        elif is_sum(node):
            for own, other in (node.args, node.args[::-1]):
                if own is not other and _fresh(module, own) and _shape(own) == _shape(node) == _shape(other):
                    node.target, node.args = add_into, (own, other)
                    break
        elif isinstance(layer := _layer(module, node), Overwriting):
            layer.reuse = _last_reader(module, node, node.args[0])
            layer.kept = len(node.args[0].users) > 1
    module.recompile()
    module.delete_all_unused_submodules()


def _layer(module: fx.GraphModule, node: Any) -> nn.Module | None:
    return module.get_submodule(str(node.target)) if isinstance(node, fx.Node) and node.op == "call_module" else None


def is_relu(node: Any) -> bool:
    return isinstance(node, fx.Node) and op_name(node) == "relu"


def _fresh(module: fx.GraphModule, node: Any) -> bool:
    """Whether a tensor is new memory, has one reader, and is not kept for the backward pass."""
    if not isinstance(node, fx.Node) or len(node.users) != 1:
        return False
    if node.op == "call_function":
        return is_sum(node) or node.target is add_into
    return isinstance(_layer(module, node), (*FRESH, SumInto))


def _last_reader(module: fx.GraphModule, node: fx.Node, own: Any) -> bool:
    """Whether ``own``, which ``node`` adds to, is the network's memory, read before by layers and not later."""
    if not isinstance(own, fx.Node) or list(node.args).count(own) > 1:
        return False
    if own.op == "call_function" and not (own.target in (F.relu, add_into) or is_relu(own) or is_sum(own)):
        return False
    if own.op != "call_function" and not isinstance(_layer(module, own), (*FRESH, SumInto)):
        return False
    others = [user for user in own.users if user is not node]
    return all(user < node and isinstance(_layer(module, user), READERS) for user in others)


def _shape(node: Any) -> Any:
    """The shape and type at the example inputs, before anything was made smaller."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return (str(tuple(value.shape)), value.dtype) if isinstance(value, Tensor) else object()
