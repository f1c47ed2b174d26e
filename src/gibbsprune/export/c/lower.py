"""From an ATen graph to a network of planes: one rule per operator, and a sentence for those that have none."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from ...errors import UserError
from ..aten import attribute, capture, op_name
from .network import Act, Constant, Move, Network, Pointwise, Value
from .products import PRODUCTS
from .rules import RULES, Arguments, combined, constant, refused

#: Operators that only move numbers: what they do to places tells what they do to numbers.
MOVES = {
    *("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "permute", "transpose", "t"),
    *("slice", "select", "narrow", "index_select", "index", "expand", "expand_as", "repeat", "flip", "roll", "pad"),
    *("upsample_nearest1d", "upsample_nearest2d", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle"),
    *("constant_pad_nd", "cat", "concat", "stack", "index_put", "where"),
}
#: Operators that take each row of the last axis by itself, so that it does not matter which image it is of.
ROWWISE = {"linear", "layer_norm", "softmax", "_softmax"}
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
    "abs": lambda a: Act("LEAKY", -1.0),
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


@dataclass(frozen=True)
class Loose:
    """A tensor whose first axis is not the batch: where in the batch of a value each of its numbers lies."""

    value: Value
    places: Tensor

    @property
    def rows(self) -> tuple[Tensor, Tensor] | None:
        """The rows that every image has, by their places in it, and in which order they come; None if they mix."""
        rows = self.places.reshape(-1, self.places.shape[-1])
        images = rows // self.value.size
        order = images[:, 0].argsort(stable=True)
        count = int(images.max()) + 1
        if len(rows) % count or not bool((images == images[:, :1]).all()):
            return None
        each = (rows % self.value.size)[order].view(count, len(rows) // count, -1)
        return (each[0], order) if bool((each == each[:1]).all()) else None


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
                    if isinstance(found, Tensor) and len(found) == batch:
                        found = constant(self.network, found, found.dim() - 1, batch, part)
                    if not isinstance(found, Value):
                        raise UserError(
                            "an output of the network is not one for each image: it cannot be written as C."
                        )
                    self.network.outputs.append(found)
            else:
                self.found[node] = self.lower(node)

    def per_image(self, node: fx.Node) -> tuple[int, ...]:
        """The shape of what one image has at this node."""
        sizes = sizes_of(node)
        kind = node.meta["val"].dtype if isinstance(node.meta["val"], Tensor) else torch.float32
        if not sizes or sizes[0] != self.batch or not kind.is_floating_point:
            raise UserError(
                f"'{node.name}' has the shape {sizes} and the type {kind}, so it cannot be written as C; "
                f"values there are floats whose first axis is the batch (of {self.batch} here)."
            )
        return sizes[1:]

    def lower(self, node: fx.Node) -> Any:
        """The value of one node, or the constant or size that it is."""
        if node.target is operator.getitem and node.args[1] == 0:  # of a maximum and where it is
            return self.found[node.all_input_nodes[0]]
        if isinstance(node.meta["val"], (int, float, bool, torch.SymInt)):
            return size_of(node.meta["val"])
        if not any(isinstance(self.found[n], (Value, Loose)) for n in node.all_input_nodes):
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: self.found[n])
            return node.target(*args, **kwargs)  # type: ignore[operator]
        if 0 in sizes_of(node):
            return torch.empty(sizes_of(node))
        name = op_name(node)
        named = fx.map_arg(named_arguments(node), lambda n: self.found[n]) | {"node": node, "batch": self.batch}
        x: Any = named.get("self", named.get("input"))
        if name in SAME:
            return x
        if name in ("pad", "constant_pad_nd") and named["value"]:
            raise refused(node, "with another number than zero")
        if name == "index_put" and named["accumulate"]:
            return self.added(node, named)
        if name in MOVES:
            nodes = node.all_input_nodes

            def run(*places: Any) -> Tensor:
                args, kwargs = fx.map_arg((node.args, node.kwargs), dict(zip(nodes, places)).__getitem__)
                return node.target(*args, **kwargs)  # type: ignore[operator]

            return self.moved(node, [self.found[n] for n in nodes], run)
        if isinstance(x, Loose) and (name in ACTS or name in ROWWISE):
            return self.by_rows(node, named, x)
        if loose := [found for found in pytree.tree_leaves(named) if isinstance(found, Loose)]:
            raise refused(node, f"of the shape {tuple(loose[0].places.shape)}, whose first axis is not the batch,")
        return self.ruled(node, named, x, self.per_image(node))

    def ruled(self, node: fx.Node, named: Arguments, x: Any, shape: tuple[int, ...]) -> Value:
        """What an operator with a rule makes of its arguments."""
        name = op_name(node)
        if name in ACTS:
            return self.network.add(Pointwise([x], Value(shape), ACTS[name](named)))
        rule = RULES.get(name) or PRODUCTS.get(name)
        if rule is None:
            raise refused(node)
        return rule(self.network, named, shape)

    def by_rows(self, node: fx.Node, named: Arguments, x: Loose) -> Any:
        """An operator that takes every row by itself, of rows in any order."""
        last = int(named.get("dim", -1)) in (-1, x.places.dim() - 1) and len(named.get("normalized_shape", [0])) == 1
        if x.rows is None or not last:
            raise refused(node, "across images")
        each, order = x.rows
        rows = self.network.moved(x.value, each)
        width = sizes_of(node)[-1]
        given = {key: rows if value is x else value for key, value in named.items()} | {"dim": -1}
        found = self.ruled(node, given, rows, (len(each), width))
        places = torch.empty(len(order), width, dtype=torch.long)
        places[order] = torch.arange(len(order) * width).view(-1, width)
        shape = sizes_of(node)
        return self.moved(node, [found], lambda rows: rows.reshape(-1)[places.reshape(shape)])

    def added(self, node: fx.Node, named: Arguments) -> Any:
        """Numbers added at some places, each at one: the sum with a value that is zero elsewhere."""
        x, indices, values = named["self"], named["indices"], named["values"]
        shape = sizes_of(node)
        put = torch.ops.aten.index_put.default
        once = put(torch.zeros(shape), indices, torch.ones(()), True)
        if int(once.max()) > 1:
            raise refused(node, "with several numbers for one place")
        zeros = torch.zeros(shape, dtype=torch.double)
        spread = self.moved(node, [values], lambda places: put(zeros, indices, places))
        return combined(self.network, x, spread, "+", shape[1:], node, self.batch)

    def moved(self, node: fx.Node, given: Sequence[Any], run: Callable[..., Tensor]) -> Any:
        """What an operator does to places tells what it does to numbers.

        Places in all given values count from 1 on, those of the second image behind those of the first; those of
        constants from -1 down, the same for all images; 0 is a zero that the operator puts in.
        """
        values = list(
            dict.fromkeys(x.value if isinstance(x, Loose) else x for x in given if isinstance(x, (Value, Loose)))
        )
        starts = dict(zip(values, itertools.accumulate((x.size for x in values), initial=0)))
        total, constants = sum(x.size for x in values), torch.zeros(0, dtype=torch.double)
        places = []
        for x in given:
            if isinstance(x, Value):
                x = Loose(x, torch.arange(self.batch * x.size).view(self.batch, *x.shape))
            if isinstance(x, Loose):
                size = x.value.size
                places.append((1 + x.places // size * total + starts[x.value] + x.places % size).double())
            elif isinstance(x, Tensor) and x.is_floating_point():
                same = x.dim() and len(x) == self.batch and bool((x == x[:1]).all())
                one = x[:1] if same else x
                numbers = torch.arange(len(constants), len(constants) + one.numel()).double().view(one.shape)
                places.append(-1 - numbers.expand(x.shape))
                constants = torch.cat([constants, one.reshape(-1).double()])
            else:
                places.append(x)
        found = run(*places).long()
        if len(constants):
            found = torch.where((found < 0) & (constants[(-1 - found).clamp(min=0)] == 0), 0, found)
        images = total * torch.arange(self.batch).view(-1, *[1] * (found.dim() - 1))
        each = torch.where(found > 0, found - images, found) if len(found) == self.batch else None
        if each is None or not bool((each == each[:1]).all()) or int(each.max()) > total:
            if len(values) > 1 or int(found.min()) < 1:
                raise refused(node, "across images")
            return Loose(values[0], found - 1)
        index = torch.where(each[0] < 0, total - 1 - each[0], each[0] - 1)
        if int(index.max()) >= total:
            values.append(self.network.add(Constant([], Value((len(constants),)), constants)))
        shape = tuple(index.shape)
        return self.network.add(Move(values, Value(shape), index.reshape(-1)))


def named_arguments(node: fx.Node) -> Arguments:
    """The arguments of an operator by their names, defaults included."""
    given = node.target._schema.arguments  # type: ignore[union-attr]
    names = [a.name for a in given]
    return {a.name: a.default_value for a in given} | dict(zip(names, node.args)) | dict(node.kwargs)


def sizes_of(node: fx.Node) -> tuple[int, ...]:
    """The shape at the example inputs of a node's tensor, or of the first of several."""
    given = node.meta["val"][0] if isinstance(node.meta["val"], (tuple, list)) else node.meta["val"]
    return tuple(size_of(n) for n in given.shape)


def size_of(value: Any) -> Any:
    """A size that may be free, as it is at the example inputs."""
    return int(value.node.hint) if isinstance(value, torch.SymInt) else value
