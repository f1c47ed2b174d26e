"""From an ATen graph to a network of planes: one rule per operator, and a sentence for those that have none."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from ...errors import UserError
from ..aten import attribute, capture, op_name
from .network import Act, Move, Network, Pointwise, Value
from .rules import RULES, Arguments, refused

#: Operators that only move numbers: what they do to places tells what they do to numbers.
MOVES = {
    *("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "permute", "transpose", "t"),
    *("slice", "select", "narrow", "index_select", "expand", "repeat", "flip", "roll", "pad", "constant_pad_nd"),
    *("upsample_nearest1d", "upsample_nearest2d", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle"),
}
SAME = {"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "to", "_to_copy"}
ACTS: dict[str, Callable[[Arguments], Act]] = {
    "relu": lambda a: Act("CLIP", 0.0, math.inf),
    "relu6": lambda a: Act("CLIP", 0.0, 6.0),
    "hardtanh": lambda a: Act("CLIP", float(a["min_val"]), float(a["max_val"])),
    "clamp": lambda a: Act(
        "CLIP", *(float(a[k]) if a[k] is not None else s for k, s in (("min", -math.inf), ("max", math.inf)))
    ),
    "clamp_min": lambda a: Act("CLIP", float(a["min"]), math.inf),
    "leaky_relu": lambda a: Act("LEAKY", float(a["negative_slope"])),
    "sigmoid": lambda a: Act("SIGMOID"),
    "silu": lambda a: Act("SILU"),
    "tanh": lambda a: Act("TANH"),
    "gelu": lambda a: Act("GELU" if a["approximate"] == "none" else "GELU_TANH"),
    "hardswish": lambda a: Act("HARDSWISH"),
    "hardsigmoid": lambda a: Act("HARDSIGMOID"),
}


def lowered(model: nn.Module, inputs: tuple[Tensor, ...]) -> Network:
    """The network of a model's eval mode, with example inputs of two rows or more."""
    with torch.no_grad():
        return Lowering(capture(model, inputs), len(inputs[0])).network


class Lowering:
    """Walks a graph; numbers that do not depend on the input are computed on the way."""

    def __init__(self, module: fx.GraphModule, batch: int) -> None:
        self.batch = batch
        self.found: dict[fx.Node, Any] = {}
        self.network = Network([], [])
        for node in module.graph.nodes:
            if node.op == "placeholder":
                self.found[node] = Value(self.per_image(node))
                self.network.inputs.append(self.found[node])
            elif node.op == "get_attr":
                self.found[node] = attribute(module, node).detach()
            elif node.op == "output":
                for part in pytree.tree_leaves(node.args[0]):
                    found = self.found.get(part)
                    if not isinstance(found, Value):
                        raise UserError(
                            "an output of the network does not depend on its input, so it cannot be written as C."
                        )
                    self.network.outputs.append(found)
            else:
                self.found[node] = self.lower(node)

    def per_image(self, node: fx.Node) -> tuple[int, ...]:
        """The shape of what one image has at this node."""
        given = node.meta["val"][0] if isinstance(node.meta["val"], (tuple, list)) else node.meta["val"]
        sizes = tuple(size_of(n) for n in given.shape)
        if not sizes or sizes[0] != self.batch or not given.is_floating_point():
            raise UserError(
                f"'{node.name}' has the shape {sizes} and the type {given.dtype}, so it cannot be written as C; "
                f"values there are floats whose first axis is the batch (of {self.batch} here)."
            )
        if 0 in sizes:
            raise UserError(f"'{node.name}' has the shape {sizes}: values without numbers cannot be written as C.")
        return sizes[1:]

    def lower(self, node: fx.Node) -> Any:
        """The value of one node, or the constant or size that it is."""
        if node.target is operator.getitem and node.args[1] == 0:  # of a maximum and where it is
            return self.found[node.all_input_nodes[0]]
        if isinstance(node.meta["val"], (int, float, bool, torch.SymInt)):
            return size_of(node.meta["val"])
        if not any(isinstance(self.found[n], Value) for n in node.all_input_nodes):
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: self.found[n])
            return node.target(*args, **kwargs)  # type: ignore[operator]
        name = op_name(node)
        named = fx.map_arg(named_arguments(node), lambda n: self.found[n]) | {"node": node}
        x: Any = named.get("self", named.get("input"))
        shape = self.per_image(node)
        if name in SAME:
            return x
        if name in ("pad", "constant_pad_nd") and named["value"]:
            raise refused(node, "with another number than zero")
        if name in MOVES:
            return self.moved(x, shape, node)
        if name in ACTS:
            return self.network.add(Pointwise([x], Value(shape), ACTS[name](named)))
        if name not in RULES:
            raise refused(node)
        return RULES[name](self.network, named, shape)

    def moved(self, x: Value, shape: tuple[int, ...], node: fx.Node) -> Value:
        """What an operator does to places, found by giving it places (from 1 on; 0 is a zero that it puts in)."""
        places = torch.arange(1, self.batch * x.size + 1, dtype=torch.float64).reshape(self.batch, *x.shape)
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: places if self.found[n] is x else self.found[n])
        found = node.target(*args, **kwargs).long()  # type: ignore[operator]
        first, second = found[0], found[1]
        if bool(((second - first != x.size) & (first != 0)).any()) or int(first.max()) > x.size or int(first.min()) < 0:
            raise refused(node, "across images")
        return self.network.add(Move([x], Value(shape), first.reshape(-1) - 1))


def named_arguments(node: fx.Node) -> Arguments:
    """The arguments of an operator by their names, defaults included."""
    given = node.target._schema.arguments  # type: ignore[union-attr]
    names = [a.name for a in given]
    return {a.name: a.default_value for a in given} | dict(zip(names, node.args)) | dict(node.kwargs)


def size_of(value: Any) -> Any:
    """A size that may be free, as it is at the example inputs."""
    return int(value.node.hint) if isinstance(value, torch.SymInt) else value
