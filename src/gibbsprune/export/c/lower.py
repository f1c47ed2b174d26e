"""From an ATen graph to a network of planes: one rule per operator, and a sentence for those that have none."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from gibbsprune.errors import UserError
from gibbsprune.export.aten import attribute, capture, op_name
from gibbsprune.export.c.network import (
    Act,
    Affine,
    Along,
    Concat,
    Join,
    Layer,
    Move,
    Network,
    Op,
    Pointwise,
    Pool,
    Value,
)

Arguments = dict[str, Any]
Rule = Callable[["Lowering", Arguments, tuple[int, ...]], Value]
RULES: dict[str, Rule] = {}

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


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operators of these names."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def lowered(model: nn.Module, inputs: tuple[Tensor, ...]) -> Network:
    """The network of a model's eval mode, with example inputs of two rows or more."""
    with torch.no_grad():
        return Lowering(capture(model, inputs), len(inputs[0])).network


class Lowering:
    """Walks a graph; numbers that do not depend on the input are computed on the way."""

    def __init__(self, module: fx.GraphModule, batch: int) -> None:
        self.batch = batch
        self.ops: list[Op] = []
        self.found: dict[fx.Node, Any] = {}
        self.network = Network([], [], self.ops)
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
            return self.add(Pointwise([x], Value(shape), ACTS[name](named)))
        if name not in RULES:
            raise refused(node)
        return RULES[name](self, named, shape)

    def add(self, op: Op) -> Value:
        """Append an operation; its output. Only moves know more than three axes."""
        if not isinstance(op, Move) and any(len(x.shape) > 3 for x in (*op.inputs, op.output)):
            raise UserError(f"a value of {op.output.shape} per image cannot be written as C; at most 3 axes can.")
        self.ops.append(op)
        return op.output

    def moved(self, x: Value, shape: tuple[int, ...], node: fx.Node) -> Value:
        """What an operator does to places, found by giving it places (from 1 on; 0 is a zero that it puts in)."""
        places = torch.arange(1, self.batch * x.size + 1, dtype=torch.float64).reshape(self.batch, *x.shape)
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: places if self.found[n] is x else self.found[n])
        found = node.target(*args, **kwargs).long()  # type: ignore[operator]
        first, second = found[0], found[1]
        if bool(((second - first != x.size) & (first != 0)).any()) or int(first.max()) > x.size or int(first.min()) < 0:
            raise refused(node, "across images")
        return self.add(Move([x], Value(shape), first.reshape(-1) - 1))

    def transposed(self, x: Value, order: Sequence[int]) -> Value:
        """The axes of one image in another order."""
        index = torch.arange(x.size).reshape(x.shape).permute(*order)
        return self.add(Move([x], Value(tuple(index.shape)), index.reshape(-1)))


def named_arguments(node: fx.Node) -> Arguments:
    """The arguments of an operator by their names, defaults included."""
    given = node.target._schema.arguments  # type: ignore[union-attr]
    names = [a.name for a in given]
    return {a.name: a.default_value for a in given} | dict(zip(names, node.args)) | dict(node.kwargs)


def size_of(value: Any) -> Any:
    """A size that may be free, as it is at the example inputs."""
    return int(value.node.hint) if isinstance(value, torch.SymInt) else value


def refused(node: fx.Node, why: str = "") -> UserError:
    """The sentence for what has no rule."""
    scope = list(node.meta.get("nn_module_stack", {}).values())
    where = f" (in '{scope[-1][0].removeprefix('L__self__').strip('_.') or 'the network'}')" if scope else ""
    return UserError(f"the operator {node.target}{' ' + why if why else ''}{where} cannot be written as C.")


def pair(value: Any, line: bool, zero: bool = False) -> tuple[int, int]:
    """The numbers for rows and for columns; a line has one row, of kernel, stride and dilation 1 and padding 0."""
    values = [value] if isinstance(value, int) else list(value)
    return (0 if zero else 1, int(values[0])) if line else (int(values[0]), int(values[-1]))


@rule("convolution")
def convolution(low: Lowering, a: Arguments, shape: tuple[int, ...]) -> Value:
    x, weight = a["input"], a["weight"]
    if not isinstance(weight, Tensor) or not isinstance(x, Value):
        raise refused(a["node"], "with computed weights")
    line, weight = weight.dim() == 3, weight.double()
    if weight.dim() == 5:
        raise refused(a["node"], "in space")
    stride, padding, dilation = (pair(a[k], line, k == "padding") for k in ("stride", "padding", "dilation"))
    weight = weight.unsqueeze(2) if line else weight
    groups = int(a["groups"])
    if a["transposed"]:  # zeros between the pixels, then the kernels turned round
        inputs, each = weight.shape[:2]
        kernels = weight.view(groups, inputs // groups, each, *weight.shape[2:]).transpose(1, 2).flip(3, 4)
        weight = kernels.reshape(groups * each, inputs // groups, *weight.shape[2:])
        x = spread(low, x, stride)
        reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:])]
        padding = (reach[0] - padding[0], reach[1] - padding[1])
        stride = (1, 1)
    bias = weight.new_zeros(len(weight)) if a["bias"] is None else a["bias"].double()
    return low.add(Layer([x], Value(shape), weight, bias, stride, padding, dilation, groups))


def spread(low: Lowering, x: Value, stride: tuple[int, int]) -> Value:
    """The pixels with zeros between them, as many as a transposed convolution's stride asks for."""
    c, h, w = x.planes
    index = torch.full((c, (h - 1) * stride[0] + 1, (w - 1) * stride[1] + 1), -1)
    index[:, :: stride[0], :: stride[1]] = torch.arange(x.size).view(c, h, w)
    return x if stride == (1, 1) else low.add(Move([x], Value(tuple(index.shape)), index.reshape(-1)))


@rule("linear")
def linear(low: Lowering, a: Arguments, shape: tuple[int, ...]) -> Value:
    weight, x = a["weight"], a["input"]
    if not isinstance(weight, Tensor) or not x.shape:
        raise refused(a["node"], "with computed weights")
    rows = x
    if len(x.shape) == 3:  # every pixel of every channel is a row
        rows = low.add(Move([x], Value((x.shape[0] * x.shape[1], x.shape[2])), torch.arange(x.size)))
    bias = weight.new_zeros(len(weight)).double() if a["bias"] is None else a["bias"].double()
    found = Value((*rows.shape[:-1], len(weight)))
    low.add(Layer([rows], found, weight.double()[:, :, None, None], bias, dense=True))
    return found if found.shape == shape else low.add(Move([found], Value(shape), torch.arange(found.size)))


@rule("batch_norm")
def batch_norm(low: Lowering, a: Arguments, shape: tuple[int, ...]) -> Value:
    if a["running_mean"] is None or a["training"]:
        raise refused(a["node"], "without running statistics")
    scale = (a["running_var"].double() + a["eps"]).rsqrt() * (1.0 if a["weight"] is None else a["weight"].double())
    shift = (0.0 if a["bias"] is None else a["bias"].double()) - scale * a["running_mean"].double()
    return low.add(Affine([a["input"]], Value(shape), scale, shift))


@rule("prelu")
def prelu(low: Lowering, a: Arguments, shape: tuple[int, ...]) -> Value:
    x, slope = a["self"], a["weight"].double().expand(a["self"].planes[0])
    return low.add(Affine([x], Value(shape), slope, torch.zeros_like(slope), slope=True))


@rule("add", "sub", "mul", "div", "rsub")
def join(low: Lowering, a: Arguments, shape: tuple[int, ...]) -> Value:
    name = op_name(a["node"])
    kind = {"add": "+", "sub": "-", "rsub": "-", "mul": "*", "div": "/"}[name]
    x, z, alpha = a["self"], a["other"], a.get("alpha", 1)
    if name == "rsub":
        x, z = z, x
    if a.get("rounding_mode"):
        raise refused(a["node"], "with rounding")
    if alpha != 1:
        z = low.add(times(z, float(alpha))) if isinstance(z, Value) else z * alpha
    if isinstance(x, Value) and isinstance(z, Value):
        return joined(low, x, z, kind, shape, a["node"])
    value, other = (x, z) if isinstance(x, Value) else (z, x)
    number = torch.as_tensor(other).double()
    channels = value.planes[0]
    number = number.reshape((1,) * (len(value.shape) + 1 - number.dim()) + tuple(number.shape))
    if len(number) != 1:
        raise refused(a["node"], "with a constant that differs between images")
    number = number[0]
    if (
        value.shape != shape
        or number.numel() not in (1, channels)
        or (number.numel() > 1 and number.shape[0] != channels)
    ):
        raise refused(a["node"], "with a constant that differs within a channel")
    number = number.reshape(-1).expand(channels)
    one, zero = torch.ones(channels).double(), torch.zeros(channels).double()
    if value is x:
        scale, shift = {"+": (one, number), "-": (one, -number), "*": (number, zero), "/": (1 / number, zero)}[kind]
    elif kind == "/":
        raise refused(a["node"], "of a constant by a value")
    else:
        scale, shift = {"+": (one, number), "-": (-one, number), "*": (number, zero)}[kind]
    return low.add(Affine([value], Value(shape), scale, shift))


def times(x: Value, factor: float) -> Op:
    """A value times a number."""
    channels = x.planes[0]
    return Affine([x], Value(x.shape), torch.full((channels,), factor).double(), torch.zeros(channels).double())


def joined(low: Lowering, x: Value, z: Value, kind: str, shape: tuple[int, ...], node: fx.Node) -> Value:
    """Two values, one of which may be broadcast."""
    if x.shape != shape and z.shape == shape and kind in "+*":
        x, z = z, x
    if x.shape != shape or len(z.shape) != len(shape):
        raise refused(node, "of these shapes")
    return low.add(Join([x, z], Value(shape), kind))


@rule("cat", "concat")
def cat(low: Lowering, a: Arguments, shape: tuple[int, ...]) -> Value:
    parts, dim = list(a["tensors"]), int(a["dim"])
    axis = dim - 1 if dim > 0 else dim + len(shape)
    if dim == 0 or not all(isinstance(x, Value) for x in parts):
        raise refused(a["node"], "with constants")
    if axis == 0:
        return low.add(Concat(parts, Value(shape)))
    order = [axis, *(i for i in range(len(shape)) if i != axis)]
    turned = [low.transposed(x, order) for x in parts]
    found = low.add(Concat(turned, Value(tuple(shape[i] for i in order))))
    return low.transposed(found, [order.index(i) for i in range(len(shape))])


def windows(
    size: int, count: int, kernel: int, stride: int, padding: int, dilation: int = 1
) -> list[tuple[int, int, int, int]]:
    """First, end, step and number of pixels inside, of every window of a pooling."""
    found = []
    for i in range(count):
        first = i * stride - padding
        end = first + dilation * (kernel - 1) + 1
        first += -(-max(0, -first) // dilation) * dilation
        end = min(end, size)
        found.append((first, max(end, first), dilation, max(1, -(-(end - first) // dilation))))
    return found


@rule("max_pool2d", "max_pool1d", "avg_pool2d", "avg_pool1d")
def pool(low: Lowering, a: Arguments, shape: tuple[int, ...]) -> Value:
    x, line, mean = a["self"], op_name(a["node"]).endswith("1d"), op_name(a["node"]).startswith("avg")
    kernel, padding, dilation = (
        pair(a.get(k, 1), line, k == "padding") for k in ("kernel_size", "padding", "dilation")
    )
    stride = pair(a["stride"], line) if a["stride"] else kernel
    output = Value(shape)
    rows, columns = (
        windows(x.planes[i + 1], output.planes[i + 1], kernel[i], stride[i], padding[i], dilation[i]) for i in (0, 1)
    )
    if mean:
        by = [[w[3] for w in side] for side in (rows, columns)]
        if a["count_include_pad"]:  # what lies in the padding counts, what a rounded-up size adds beyond it does not
            by = [
                [
                    min(i * stride[k] - padding[k] + kernel[k], x.planes[k + 1] + padding[k])
                    - (i * stride[k] - padding[k])
                    for i in range(n)
                ]
                for k, n in enumerate(output.planes[1:])
            ]
        if a.get("divisor_override"):
            by = [[int(a["divisor_override"])] * len(rows), [1] * len(columns)]
        rows, columns = ([(*w[:3], d) for w, d in zip(side, ds)] for side, ds in zip((rows, columns), by))
    return low.add(Pool([x], output, rows, columns, mean))


@rule("adaptive_avg_pool2d", "adaptive_avg_pool1d", "adaptive_max_pool2d", "adaptive_max_pool1d")
def adaptive(low: Lowering, a: Arguments, shape: tuple[int, ...]) -> Value:
    x, output, mean = a["self"], Value(shape), "avg" in op_name(a["node"])

    def side(size: int, count: int) -> list[tuple[int, int, int, int]]:
        ends = [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
        return [(first, end, 1, end - first) for first, end in ends]

    rows, columns = (side(n, m) for n, m in zip(x.planes[1:], output.planes[1:]))
    return low.add(Pool([x], output, rows, columns, mean))


@rule("mean")
def mean(low: Lowering, a: Arguments, shape: tuple[int, ...]) -> Value:
    x, given = a["self"], a.get("dim")
    if given is None:
        raise refused(a["node"], "over the batch")
    dims = sorted(d - 1 if d > 0 else d + len(x.shape) for d in given)
    if any(d < 0 for d in dims) or 0 in given:
        raise refused(a["node"], "over the batch")
    kept = [d for d in range(len(x.shape)) if d not in dims]
    turned = x if dims == list(range(len(x.shape)))[-len(dims) :] and kept else low.transposed(x, kept + dims)
    rows = Value((math.prod(x.shape[d] for d in kept), 1, math.prod(x.shape[d] for d in dims)))
    if turned is x and len(x.shape) == 3:
        rows = x if len(kept) == 1 else Value((x.shape[0], x.shape[1], x.shape[2]))
    if rows.shape != turned.shape:
        low.add(Move([turned], rows, torch.arange(x.size)))
    else:
        rows = turned
    c, h, w = rows.planes
    if turned is x and len(kept) == 2 and len(x.shape) == 3:
        found = low.add(Pool([rows], Value((c, h, 1)), [(i, i + 1, 1, 1) for i in range(h)], [(0, w, 1, w)], True))
    else:
        found = low.add(Pool([rows], Value((c, 1, 1)), [(0, h, 1, h)], [(0, w, 1, w)], True))
    return found if found.shape == shape else low.add(Move([found], Value(shape), torch.arange(found.size)))


@rule("softmax", "_softmax")
def softmax(low: Lowering, a: Arguments, shape: tuple[int, ...]) -> Value:
    return low.add(Along([a["self"]], Value(shape), axis_of(int(a["dim"]), shape, a["node"])))


@rule("layer_norm")
def layer_norm(low: Lowering, a: Arguments, shape: tuple[int, ...]) -> Value:
    x, size = a["input"], math.prod(a["normalized_shape"])
    ones = torch.ones(size).double()
    scale = ones if a["weight"] is None else a["weight"].double().reshape(-1)
    shift = 0 * ones if a["bias"] is None else a["bias"].double().reshape(-1)
    flat = x
    if len(a["normalized_shape"]) > 1:  # several axes as one
        flat = low.add(Move([x], Value((x.size // size, size)), torch.arange(x.size)))
    axis = 0 if len(flat.shape) == 1 else 2
    found = low.add(Along([flat], Value(flat.shape), axis, scale, shift, float(a["eps"])))
    return found if found.shape == shape else low.add(Move([found], Value(shape), torch.arange(x.size)))


def axis_of(dim: int, shape: tuple[int, ...], node: fx.Node) -> int:
    """An axis of the batch's tensor as one of channels, rows and columns."""
    axis = dim - 1 if dim > 0 else dim + len(shape)
    if dim == 0 or axis < 0:
        raise refused(node, "over the batch")
    return axis if len(shape) != 2 else 2 * axis
