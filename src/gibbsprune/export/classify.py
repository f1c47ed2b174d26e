"""Which rule an operation of the traced graph follows, by its module's type or its function's name."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx, nn

from gibbsprune.export.joins import ChannelWise, Concat, Product, Reshape, Sum
from gibbsprune.export.layers import CONVOLUTIONS, NORMS, Grouped, Mix, Norm, Rule
from gibbsprune.export.plan import LeftAlone, Plan, shape_of

POINTWISE_MODULES = (
    *(nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh),
    *(nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.Hardshrink, nn.Softplus, nn.Softshrink, nn.Softsign),
    *(nn.Tanhshrink, nn.LogSigmoid, nn.Threshold),
)
DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
POINTWISE = (
    *("relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "sigmoid", "tanh", "hardtanh"),
    *("hardsigmoid", "hardswish", "softplus", "softsign", "logsigmoid", "abs", "neg", "exp", "sqrt", "square"),
    *("clamp", "clamp_min", "clamp_max", "pow", "add", "sub", "mul", "truediv", "div", "contiguous", "clone", "detach"),
)
BINARY: dict[str, Any] = {
    "mul": operator.mul,
    "sub": operator.sub,
    "truediv": operator.truediv,
    "div": operator.truediv,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
}
UNIFORM_MODULES = (
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d, nn.ReflectionPad1d, nn.ReflectionPad2d),
    *(nn.ReflectionPad3d, nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d, nn.CircularPad1d),
    *(nn.CircularPad2d, nn.CircularPad3d, nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d),
)
AVERAGE_MODULES = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
PAD_MODULES = (nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d, nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d)
UNIFORM = (
    *("max_pool1d", "max_pool2d", "max_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
    *("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "interpolate", "upsample"),
)
AVERAGE = ("avg_pool1d", "avg_pool2d", "avg_pool3d")
RESHAPES = ("view", "reshape", "flatten", "squeeze", "unsqueeze")


def rule_of(plan: Plan, node: fx.Node, calls: dict[Any, int]) -> Rule:
    """The rule of a node; :class:`LeftAlone`, with the reason, where there is none."""
    if node.op == "call_module":
        if calls[node.target] > 1 and next(plan.module.get_submodule(str(node.target)).parameters(), None) is not None:
            raise LeftAlone("it is called more than once")
        if node.target in plan.shared:
            raise LeftAlone(plan.shared[node.target])
        return _module_rule(plan, node, plan.module.get_submodule(str(node.target)))
    if node.op in ("call_function", "call_method"):
        return _function_rule(plan, node, function_name(node))
    raise LeftAlone("its values are not computed here")


def function_name(node: fx.Node) -> str:
    """The name of a torch function or method; empty for functions of others."""
    if isinstance(node.target, str):
        return node.target
    origin = getattr(node.target, "__module__", None) or "torch"
    return getattr(node.target, "__name__", "") if origin.split(".")[0] in ("torch", "_operator") else ""


def _module_rule(plan: Plan, node: fx.Node, module: Any) -> Rule:
    kind = type(module)
    if len(node.args) != 1 or node.kwargs:
        raise LeftAlone("it is called with more than one argument")
    if kind is nn.Linear or kind in CONVOLUTIONS:
        return Mix(plan, node, module) if getattr(module, "groups", 1) == 1 else Grouped(plan, node, module)
    if kind in NORMS or (kind is nn.PReLU and module.num_parameters > 1):
        return Norm(plan, node, module)
    if kind in POINTWISE_MODULES:
        return ChannelWise(plan, node, module)
    if kind is nn.PReLU:
        slope = module.weight.detach().cpu().double()
        return ChannelWise(plan, node, lambda v: torch.where(v > 0, v, slope * v))
    if kind is nn.Flatten:
        return Reshape(plan, node)
    if kind in UNIFORM_MODULES and not getattr(module, "return_indices", False):
        return _spatial(plan, node, lambda v: v)
    if kind in AVERAGE_MODULES and getattr(module, "divisor_override", None) is None:
        padded = module.count_include_pad and any(torch.as_tensor(module.padding).flatten() > 0)
        return _padded(plan, node, 0.0) if padded else _spatial(plan, node, lambda v: v)
    if kind in PAD_MODULES:
        return _padded(plan, node, float(getattr(module, "value", 0.0)))
    raise LeftAlone(f"there is no rule for {kind.__name__}")


def _function_rule(plan: Plan, node: fx.Node, name: str) -> Rule:
    tensors = [i for i in node.all_input_nodes if i.meta.get("tensor_meta") is not None]
    if name in ("cat", "concat", "concatenate"):
        return Concat(plan, node)
    if not tensors or node.meta.get("tensor_meta") is None:
        raise LeftAlone("it gives no tensor")
    if name in RESHAPES:
        return Reshape(plan, node)
    if len([arg for arg in node.args if arg in tensors]) == 2:
        if name == "add":
            return Sum(plan, node)
        if name in BINARY:
            return Product(plan, node, BINARY[name])
    if len(tensors) != 1 or not node.args:
        raise LeftAlone(f"there is no rule for {name or node.name}")
    quiet = name in DROPOUTS and node.kwargs.get("training") is False
    if (quiet or name in POINTWISE) and len(node.all_input_nodes) == 1:
        return ChannelWise(plan, node, lambda v: _call(node, tensors[0], v))
    if name == "mean":
        return _mean(plan, node)
    if name in UNIFORM and not node.kwargs.get("return_indices"):
        return _spatial(plan, node, lambda v: v)
    if name in AVERAGE and node.kwargs.get("divisor_override") is None and len(node.args) < 7:
        plain = len(node.args) < 4 and not node.kwargs.get("padding")
        return _spatial(plan, node, lambda v: v) if plain else _padded(plan, node, 0.0)
    if name == "pad":
        return _pad(plan, node)
    if name == "getitem":
        return _slices(plan, node)
    raise LeftAlone(f"there is no rule for {name or node.name}")


def _call(node: fx.Node, source: fx.Node, value: Tensor) -> Tensor:
    """The operation at the constants' values instead of its input."""
    args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), lambda _: value)
    if isinstance(node.target, str):
        return getattr(args[0], node.target)(*args[1:], **kwargs)
    return node.target(*args, **kwargs)


def _padded(plan: Plan, node: fx.Node, number: float) -> Rule:
    """Padding with a number: constants of this value stay; others do not stay the same everywhere."""
    rule = _spatial(plan, node, lambda v: v.masked_fill(v != number, float("nan")))
    rule.why = f"pads with {number:g}"
    return rule


def _spatial(plan: Plan, node: fx.Node, constant: Any) -> ChannelWise:
    """An operation over the dimensions behind the channels."""
    rule = ChannelWise(plan, node, constant)
    if rule.given.axis != 1 or len(shape_of(rule.source)) < 3:
        raise LeftAlone("its input is not (batch, channels, places)")
    return rule


def _mean(plan: Plan, node: fx.Node) -> Rule:
    dims: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    keep: Any = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
    dims = (dims,) if isinstance(dims, int) else dims
    source = node.args[0]
    if not dims or not isinstance(source, fx.Node) or not all(isinstance(dim, int) for dim in dims):
        raise LeftAlone("it averages over everything")
    over = tuple(dim % len(shape_of(source)) for dim in dims)
    rule = ChannelWise(plan, node, lambda v: v, () if keep else over)
    if rule.given.axis in over or 0 in over:
        raise LeftAlone("it averages over channels or the batch")
    return rule


def _pad(plan: Plan, node: fx.Node) -> Rule:
    given = dict(zip(("input", "pad", "mode", "value"), node.args)) | dict(node.kwargs)
    pads: Any = given["pad"]
    if len(pads) > 2 * (len(shape_of(node)) - 2):
        raise LeftAlone("it pads channels")
    number: Any = given.get("value") or 0.0
    if given.get("mode", "constant") == "constant":
        return _padded(plan, node, float(number))
    return _spatial(plan, node, lambda v: v)


def _slices(plan: Plan, node: fx.Node) -> Rule:
    index: Any = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    if len(index) < 2 or any(i != slice(None) for i in index[:2]) or len(node.all_input_nodes) > 1:
        raise LeftAlone("it picks channels or images")
    if all(i is None for i in index[2:]):
        return Reshape(plan, node)
    if all(isinstance(i, slice) for i in index[2:]):
        return _spatial(plan, node, lambda v: v)
    raise LeftAlone("it picks places")
