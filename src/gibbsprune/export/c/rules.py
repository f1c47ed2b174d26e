"""What each operator with numbers of its own becomes: layers, norms, joins, pools."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ...errors import UserError
from ..aten import op_name
from .network import Affine, Along, Concat, Join, Layer, Move, Network, Op, Pool, Value

Arguments = dict[str, Any]


def refused(node: fx.Node, why: str = "") -> UserError:
    """The sentence for what has no rule."""
    scope = list(node.meta.get("nn_module_stack", {}).values())
    where = f" (in '{scope[-1][0].removeprefix('L__self__').strip('_.') or 'the network'}')" if scope else ""
    return UserError(f"the operator {node.target}{' ' + why if why else ''}{where} cannot be written as C.")


def transposed(net: Network, x: Value, order: Sequence[int]) -> Value:
    """The axes of one image in another order."""
    index = torch.arange(x.size).reshape(x.shape).permute(*order)
    return net.add(Move([x], Value(tuple(index.shape)), index.reshape(-1)))


def pair(value: Any, line: bool, zero: bool = False) -> tuple[int, int]:
    """The numbers for rows and for columns; a line has one row, of kernel, stride and dilation 1 and padding 0."""
    values = [value] if isinstance(value, int) else list(value)
    return (0 if zero else 1, int(values[0])) if line else (int(values[0]), int(values[-1]))


def convolution(net: Network, a: Arguments, shape: tuple[int, ...]) -> Value:
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
        x = spread(net, x, stride)
        reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:])]
        padding = (reach[0] - padding[0], reach[1] - padding[1])
        stride = (1, 1)
    bias = weight.new_zeros(len(weight)) if a["bias"] is None else a["bias"].double()
    return net.add(Layer([x], Value(shape), weight, bias, stride, padding, dilation, groups))


def spread(net: Network, x: Value, stride: tuple[int, int]) -> Value:
    """The pixels with zeros between them, as many as a transposed convolution's stride asks for."""
    c, h, w = x.planes
    index = torch.full((c, (h - 1) * stride[0] + 1, (w - 1) * stride[1] + 1), -1)
    index[:, :: stride[0], :: stride[1]] = torch.arange(x.size).view(c, h, w)
    return x if stride == (1, 1) else net.add(Move([x], Value(tuple(index.shape)), index.reshape(-1)))


def linear(net: Network, a: Arguments, shape: tuple[int, ...]) -> Value:
    weight, x = a["weight"], a["input"]
    if not isinstance(weight, Tensor) or not x.shape:
        raise refused(a["node"], "with computed weights")
    rows = x
    if len(x.shape) == 3:  # every pixel of every channel is a row
        rows = net.add(Move([x], Value((x.shape[0] * x.shape[1], x.shape[2])), torch.arange(x.size)))
    bias = weight.new_zeros(len(weight)).double() if a["bias"] is None else a["bias"].double()
    found = Value((*rows.shape[:-1], len(weight)))
    net.add(Layer([rows], found, weight.double()[:, :, None, None], bias, dense=True))
    return found if found.shape == shape else net.add(Move([found], Value(shape), torch.arange(found.size)))


def batch_norm(net: Network, a: Arguments, shape: tuple[int, ...]) -> Value:
    if a["running_mean"] is None or a["training"]:
        raise refused(a["node"], "without running statistics")
    scale = (a["running_var"].double() + a["eps"]).rsqrt() * (1.0 if a["weight"] is None else a["weight"].double())
    shift = (0.0 if a["bias"] is None else a["bias"].double()) - scale * a["running_mean"].double()
    return net.add(Affine([a["input"]], Value(shape), scale, shift))


def prelu(net: Network, a: Arguments, shape: tuple[int, ...]) -> Value:
    x, slope = a["self"], a["weight"].double().expand(a["self"].planes[0])
    return net.add(Affine([x], Value(shape), slope, torch.zeros_like(slope), slope=True))


def join(net: Network, a: Arguments, shape: tuple[int, ...]) -> Value:
    name = op_name(a["node"])
    kind = {"add": "+", "sub": "-", "rsub": "-", "mul": "*", "div": "/"}[name]
    x, z, alpha = a["self"], a["other"], a.get("alpha", 1)
    if name == "rsub":
        x, z = z, x
    if a.get("rounding_mode"):
        raise refused(a["node"], "with rounding")
    if alpha != 1:
        z = net.add(times(z, float(alpha))) if isinstance(z, Value) else z * alpha
    if isinstance(x, Value) and isinstance(z, Value):
        return joined(net, x, z, kind, shape, a["node"])
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
    return net.add(Affine([value], Value(shape), scale, shift))


def times(x: Value, factor: float) -> Op:
    """A value times a number."""
    channels = x.planes[0]
    return Affine([x], Value(x.shape), torch.full((channels,), factor).double(), torch.zeros(channels).double())


def joined(net: Network, x: Value, z: Value, kind: str, shape: tuple[int, ...], node: fx.Node) -> Value:
    """Two values, one of which may be broadcast."""
    if x.shape != shape and z.shape == shape and kind in "+*":
        x, z = z, x
    if x.shape != shape or len(z.shape) != len(shape):
        raise refused(node, "of these shapes")
    return net.add(Join([x, z], Value(shape), kind))


def cat(net: Network, a: Arguments, shape: tuple[int, ...]) -> Value:
    parts, dim = list(a["tensors"]), int(a["dim"])
    axis = dim - 1 if dim > 0 else dim + len(shape)
    if dim == 0 or not all(isinstance(x, Value) for x in parts):
        raise refused(a["node"], "with constants")
    if axis == 0:
        return net.add(Concat(parts, Value(shape)))
    order = [axis, *(i for i in range(len(shape)) if i != axis)]
    turned = [transposed(net, x, order) for x in parts]
    found = net.add(Concat(turned, Value(tuple(shape[i] for i in order))))
    return transposed(net, found, [order.index(i) for i in range(len(shape))])


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


def pool(net: Network, a: Arguments, shape: tuple[int, ...]) -> Value:
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
    return net.add(Pool([x], output, rows, columns, mean))


def adaptive(net: Network, a: Arguments, shape: tuple[int, ...]) -> Value:
    x, output, mean = a["self"], Value(shape), "avg" in op_name(a["node"])

    def side(size: int, count: int) -> list[tuple[int, int, int, int]]:
        ends = [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
        return [(first, end, 1, end - first) for first, end in ends]

    rows, columns = (side(n, m) for n, m in zip(x.planes[1:], output.planes[1:]))
    return net.add(Pool([x], output, rows, columns, mean))


def mean(net: Network, a: Arguments, shape: tuple[int, ...]) -> Value:
    x, given = a["self"], a.get("dim")
    if given is None:
        raise refused(a["node"], "over the batch")
    dims = sorted(d - 1 if d > 0 else d + len(x.shape) for d in given)
    if any(d < 0 for d in dims) or 0 in given:
        raise refused(a["node"], "over the batch")
    kept = [d for d in range(len(x.shape)) if d not in dims]
    turned = x if dims == list(range(len(x.shape)))[-len(dims) :] and kept else transposed(net, x, kept + dims)
    rows = Value((math.prod(x.shape[d] for d in kept), 1, math.prod(x.shape[d] for d in dims)))
    if turned is x and len(x.shape) == 3:
        rows = x if len(kept) == 1 else Value((x.shape[0], x.shape[1], x.shape[2]))
    if rows.shape != turned.shape:
        net.add(Move([turned], rows, torch.arange(x.size)))
    else:
        rows = turned
    c, h, w = rows.planes
    if turned is x and len(kept) == 2 and len(x.shape) == 3:
        found = net.add(Pool([rows], Value((c, h, 1)), [(i, i + 1, 1, 1) for i in range(h)], [(0, w, 1, w)], True))
    else:
        found = net.add(Pool([rows], Value((c, 1, 1)), [(0, h, 1, h)], [(0, w, 1, w)], True))
    return found if found.shape == shape else net.add(Move([found], Value(shape), torch.arange(found.size)))


def softmax(net: Network, a: Arguments, shape: tuple[int, ...]) -> Value:
    return net.add(Along([a["self"]], Value(shape), axis_of(int(a["dim"]), shape, a["node"])))


def layer_norm(net: Network, a: Arguments, shape: tuple[int, ...]) -> Value:
    x, size = a["input"], math.prod(a["normalized_shape"])
    ones = torch.ones(size).double()
    scale = ones if a["weight"] is None else a["weight"].double().reshape(-1)
    shift = 0 * ones if a["bias"] is None else a["bias"].double().reshape(-1)
    flat = x
    if len(a["normalized_shape"]) > 1:  # several axes as one
        flat = net.add(Move([x], Value((x.size // size, size)), torch.arange(x.size)))
    axis = 0 if len(flat.shape) == 1 else 2
    found = net.add(Along([flat], Value(flat.shape), axis, scale, shift, float(a["eps"])))
    return found if found.shape == shape else net.add(Move([found], Value(shape), torch.arange(x.size)))


def axis_of(dim: int, shape: tuple[int, ...], node: fx.Node) -> int:
    """An axis of the batch's tensor as one of channels, rows and columns."""
    axis = dim - 1 if dim > 0 else dim + len(shape)
    if dim == 0 or axis < 0:
        raise refused(node, "over the batch")
    return axis if len(shape) != 2 else 2 * axis


#: The rules by the names of the operators.
RULES: dict[str, Callable[[Network, Arguments, tuple[int, ...]], Value]] = {
    "convolution": convolution,
    "linear": linear,
    "batch_norm": batch_norm,
    "prelu": prelu,
    "add": join,
    "sub": join,
    "mul": join,
    "div": join,
    "rsub": join,
    "cat": cat,
    "concat": cat,
    "max_pool2d": pool,
    "max_pool1d": pool,
    "avg_pool2d": pool,
    "avg_pool1d": pool,
    "adaptive_avg_pool2d": adaptive,
    "adaptive_avg_pool1d": adaptive,
    "adaptive_max_pool2d": adaptive,
    "adaptive_max_pool1d": adaptive,
    "mean": mean,
    "softmax": softmax,
    "_softmax": softmax,
    "layer_norm": layer_norm,
}
