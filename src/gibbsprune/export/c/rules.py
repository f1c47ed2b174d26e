"""What each operator with numbers of its own becomes: layers, norms, joins, pools."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from ...errors import UserError
from ..aten import op_name
from .network import Affine, Along, Constant, Join, Layer, Network, Op, Pool, Value

Arguments = dict[str, Any]


def refused(node: fx.Node, why: str = "") -> UserError:
    """The sentence for what has no rule."""
    scope = list(node.meta.get("nn_module_stack", {}).values())
    where = f" (in '{scope[-1][0].removeprefix('L__self__').strip('_.') or 'the network'}')" if scope else ""
    return UserError(f"the operator {node.target}{' ' + why if why else ''}{where} cannot be written as C.")


def constant(net: Network, numbers: Tensor, axes: int, batch: int, node: fx.Node) -> Value:
    """A tensor that no input changes as what each image has, of so many axes."""
    numbers = numbers.double().reshape((1,) * (axes + 1 - numbers.dim()) + tuple(numbers.shape))
    if len(numbers) not in (1, batch) or not bool((numbers == numbers[:1]).all()):
        raise refused(node, "with a constant that differs between images")
    return net.add(Constant([], Value(tuple(numbers.shape[1:])), numbers[0].reshape(-1)))


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
    kernel = tuple(weight.shape[2:])
    if kernel == stride and math.prod(stride) > 4 and padding == (0, 0) and dilation == (1, 1) and groups == 1:
        return patches(net, x, weight, bias, shape)
    return net.add(Layer([x], Value(shape), weight, bias, stride, padding, dilation, groups))


def patches(net: Network, x: Value, weight: Tensor, bias: Tensor, shape: tuple[int, ...]) -> Value:
    """A convolution whose windows are patches side by side: a dense layer of the patch's pixels."""
    (c, h, w), (a, b), output = x.planes, weight.shape[2:], Value(shape)
    rows, columns = output.planes[1:]
    index = torch.arange(x.size).view(c, h, w)[:, : rows * a, : columns * b]
    index = index.reshape(c, rows, a, columns, b).permute(0, 2, 4, 1, 3).reshape(-1, rows, columns)
    return net.add(Layer([net.moved(x, index)], output, weight.reshape(len(weight), -1, 1, 1), bias))


def spread(net: Network, x: Value, stride: tuple[int, int]) -> Value:
    """The pixels with zeros between them, as many as a transposed convolution's stride asks for."""
    c, h, w = x.planes
    index = torch.full((c, (h - 1) * stride[0] + 1, (w - 1) * stride[1] + 1), -1)
    index[:, :: stride[0], :: stride[1]] = torch.arange(x.size).view(c, h, w)
    return x if stride == (1, 1) else net.moved(x, index)


def linear(net: Network, a: Arguments, shape: tuple[int, ...]) -> Value:
    """A convolution of one pixel; where there are several rows (tokens), they are the pixels."""
    weight, x = a["weight"], a["input"]
    if not isinstance(weight, Tensor) or not isinstance(x, Value) or not x.shape:
        raise refused(a["node"], "with computed weights")
    inputs, outputs, rows = x.shape[-1], len(weight), math.prod(x.shape[:-1])
    bias = weight.new_zeros(outputs).double() if a["bias"] is None else a["bias"].double()
    kernels = weight.double()[:, :, None, None]
    if rows == 1:
        return net.viewed(net.add(Layer([net.viewed(x, (inputs,))], Value((outputs,)), kernels, bias)), shape)
    pixels = net.turned(net.viewed(x, (rows, inputs)), (1, 0))
    return net.viewed(net.turned(net.add(Layer([pixels], Value((outputs, rows)), kernels, bias)), (1, 0)), shape)


def batch_norm(net: Network, a: Arguments, shape: tuple[int, ...]) -> Value:
    if a["running_mean"] is None or a["training"]:
        raise refused(a["node"], "without running statistics")
    scale = (a["running_var"].double() + a["eps"]).rsqrt() * (1.0 if a["weight"] is None else a["weight"].double())
    shift = (0.0 if a["bias"] is None else a["bias"].double()) - scale * a["running_mean"].double()
    return net.add(Affine([a["input"]], Value(shape), each(scale, a["input"]), each(shift, a["input"])))


def each(numbers: Tensor, x: Value) -> Tensor:
    """A number for each channel of the planes, from one for all or one for each of the first axis."""
    first = x.shape[0] if x.shape else 1
    return numbers.reshape(-1).expand(first).repeat_interleave(x.planes[0] // first)


def prelu(net: Network, a: Arguments, shape: tuple[int, ...]) -> Value:
    x, slope = a["self"], each(a["weight"].double(), a["self"])
    return net.add(Affine([x], Value(shape), slope, torch.zeros_like(slope), slope=True))


def join(net: Network, a: Arguments, shape: tuple[int, ...]) -> Value:
    name = op_name(a["node"])
    x, z, alpha = a["self"], a["other"], a.get("alpha", 1)
    if name == "rsub":
        x, z = z, x
    if a.get("rounding_mode"):
        raise refused(a["node"], "with rounding")
    if alpha != 1:
        z = net.add(times(z, float(alpha))) if isinstance(z, Value) else z * alpha
    return combined(net, x, z, {"add": "+", "mul": "*", "div": "/"}.get(name, "-"), shape, a["node"], a["batch"])


def combined(net: Network, x: Any, z: Any, kind: str, shape: tuple[int, ...], node: fx.Node, batch: int) -> Value:
    """Sum, difference, product or quotient of two values, or of a value and a constant."""
    if isinstance(x, Value) and isinstance(z, Value):
        return joined(net, x, z, kind, shape, node)
    value, other = (x, z) if isinstance(x, Value) else (z, x)
    number = torch.as_tensor(other).double()
    number = number.reshape((1,) * (len(value.shape) + 1 - number.dim()) + tuple(number.shape))
    by_channel = number.numel() == 1 or number.shape == (1, *value.shape[:1], *[1] * (len(value.shape) - 1))
    if value.shape != shape or not by_channel or (kind == "/" and value is not x):
        found = constant(net, number, len(shape), batch, node)
        x, z = (value, found) if value is x else (found, value)
        return joined(net, x, z, kind, shape, node)
    number = each(number, value)
    one, zero = torch.ones_like(number), torch.zeros_like(number)
    if value is x:
        scale, shift = {"+": (one, number), "-": (one, -number), "*": (number, zero), "/": (1 / number, zero)}[kind]
    else:
        scale, shift = {"+": (one, number), "-": (-one, number), "*": (number, zero)}[kind]
    return net.add(Affine([value], Value(shape), scale, shift))


def times(x: Value, factor: float) -> Op:
    """A value times a number."""
    channels = x.planes[0]
    return Affine([x], Value(x.shape), torch.full((channels,), factor).double(), torch.zeros(channels).double())


def joined(net: Network, x: Value, z: Value, kind: str, shape: tuple[int, ...], node: fx.Node) -> Value:
    """Two values, of which either may be broadcast."""
    if x.shape != shape and z.shape == shape and kind in "+*":
        x, z = z, x
    if len(x.shape) != len(shape) or len(z.shape) != len(shape):
        raise refused(node, "of these shapes")
    z = net.expanded(z, shape) if len(shape) > 3 else z
    return net.add(Join([net.expanded(x, shape), z], Value(shape), kind))


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
    """A mean, a sum or a maximum over some axes."""
    x, given = a["self"], a.get("dim")
    if not given:
        raise refused(a["node"], "over the batch")
    dims = sorted(d - 1 if d > 0 else d + len(x.shape) for d in given)
    if any(d < 0 for d in dims) or 0 in given:
        raise refused(a["node"], "over the batch")
    kept = [d for d in range(len(x.shape)) if d not in dims]
    whole = (kept, dims) == ([0], [1, 2])  # planes as they are
    size, count = math.prod(x.shape[d] for d in kept), math.prod(x.shape[d] for d in dims)
    rows = x if whole else net.viewed(net.turned(x, kept + dims), (size, 1, count))
    _, h, w = rows.planes
    name = op_name(a["node"])
    found = net.add(Pool([rows], Value((size, 1, 1)), [(0, h, 1, h)], [(0, w, 1, w)], name != "amax"))
    if name == "sum":
        found = net.add(times(found, float(count)))
    return net.viewed(found, shape)


def softmax(net: Network, a: Arguments, shape: tuple[int, ...]) -> Value:
    return net.add(Along([a["self"]], Value(shape), axis_of(int(a["dim"]), shape, a["node"])))


def layer_norm(net: Network, a: Arguments, shape: tuple[int, ...]) -> Value:
    x, size = a["input"], math.prod(a["normalized_shape"])
    ones = torch.ones(size).double()
    scale = ones if a["weight"] is None else a["weight"].double().reshape(-1)
    shift = 0 * ones if a["bias"] is None else a["bias"].double().reshape(-1)
    flat = net.viewed(x, (x.size // size, size)) if len(a["normalized_shape"]) > 1 else x  # several axes as one
    axis = 0 if len(flat.shape) == 1 else 2
    return net.viewed(net.add(Along([flat], Value(flat.shape), axis, scale, shift, float(a["eps"]))), shape)


def axis_of(dim: int, shape: tuple[int, ...], node: fx.Node) -> int:
    """An axis of the batch's tensor as one of channels, rows and columns."""
    axis = dim - 1 if dim > 0 else dim + len(shape)
    if dim == 0 or axis < 0:
        raise refused(node, "over the batch")
    if len(shape) > 3 and axis < len(shape) - 1:
        raise refused(node, f"along one of {len(shape) + 1} axes that is not the last")
    return axis if len(shape) in (1, 3) else 2 * axis if len(shape) == 2 else 2


def resized(net: Network, a: Arguments, shape: tuple[int, ...]) -> Value:
    """Interpolation, which is linear in the rows and in the columns: for each a dense layer with few weights."""
    node, key = a["node"], "input" if "input" in a else "self"
    given = {name: value for name, value in a.items() if name not in ("node", "batch", key)}
    found, sizes = a[key], a[key].shape[1:]
    for axis, size in enumerate(sizes):
        order = [0, *(k for k in range(1, len(shape)) if k != axis + 1), axis + 1]
        probe = torch.eye(size).double().view(1, size, *(size if k == axis else 1 for k in range(len(sizes))))
        weight = (
            node.target(**given, **{key: probe.expand(1, size, *sizes)})[0]
            .movedim(axis + 1, -1)
            .reshape(size, -1, shape[axis + 1])[:, 0]
        )
        turned = net.turned(found, order)
        rows = {"input": turned, "weight": weight.t(), "bias": None, "node": node}
        found = net.turned(
            linear(net, rows, (*turned.shape[:-1], len(weight.t()))), [order.index(k) for k in range(len(shape))]
        )
    return found


#: The rules by the names of the operators.
RULES: dict[str, Callable[[Network, Arguments, tuple[int, ...]], Value]] = {
    "convolution": convolution,
    "linear": linear,
    "batch_norm": batch_norm,
    "prelu": prelu,
    "neg": lambda net, a, shape: net.add(times(a["self"], -1.0)),
    "reciprocal": lambda net, a, shape: combined(net, 1.0, a["self"], "/", shape, a["node"], a["batch"]),
    "add": join,
    "sub": join,
    "mul": join,
    "div": join,
    "rsub": join,
    "max_pool2d": pool,
    "max_pool1d": pool,
    "avg_pool2d": pool,
    "avg_pool1d": pool,
    "adaptive_avg_pool2d": adaptive,
    "adaptive_avg_pool1d": adaptive,
    "adaptive_max_pool2d": adaptive,
    "adaptive_max_pool1d": adaptive,
    "upsample_linear1d": resized,
    "upsample_bilinear2d": resized,
    "upsample_bicubic2d": resized,
    "mean": mean,
    "sum": mean,
    "amax": mean,
    "softmax": softmax,
    "_softmax": softmax,
    "layer_norm": layer_norm,
}
