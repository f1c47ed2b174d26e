"""Which rule an ATen operator follows."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

from .aten import ACTIVATIONS, RECURRENT, op_name, shape
from .channels import LeftAlone
from .joins import Concat, Pointwise, Sum
from .layers import Embedding, Grouped, Mix, Norm, Rule
from .moves import Along, Cut, Expand, Filled, Mean, Permute, Reshape, Standardised
from .plan import Plan
from .products import Attention, Product

POINTWISE = ACTIVATIONS | {
    *("sub", "mul", "div", "rsub", "maximum", "minimum", "where", "masked_fill", "ge", "gt", "le", "lt", "eq", "ne"),
    *("logical_and", "logical_or", "logical_not", "bitwise_and", "bitwise_or", "bitwise_not", "log1p", "expm1"),
}
MOVES = {
    **dict.fromkeys(("reshape", "flatten", "unflatten", "squeeze", "unsqueeze"), Reshape),
    **dict.fromkeys(("permute", "transpose", "t"), Permute),
    **dict.fromkeys(("slice", "select"), Cut),
    "expand": Expand,
    "cat": Concat,
    "embedding": Embedding,
    "scaled_dot_product_attention": Attention,
}
FILLED = {"zeros": 0.0, "zeros_like": 0.0, "new_zeros": 0.0, "ones": 1.0, "ones_like": 1.0, "new_ones": 1.0}
UNIFORM = ("max_pool", "adaptive_avg_pool", "adaptive_max_pool", "upsample_")


def rule_of(plan: Plan, node: fx.Node) -> Rule:
    """The rule of a node; :class:`LeftAlone`, with the reason, where there is none."""
    name = op_name(node)
    if node.target is operator.getitem and node.args[0] in plan.rules:
        return Along(plan, node, [], lambda v: v)
    if not name:
        raise LeftAlone("its values are not computed here")
    if name in RECURRENT:
        raise LeftAlone("its units change with time even where their weights are gone")
    alone = name.startswith("adaptive_max_pool") and all(user.args[1:] == (0,) for user in node.users)
    if not alone and not isinstance(node.meta.get("val"), Tensor):
        raise LeftAlone(f"there is no rule for {name}")
    args: Any = node.args
    if name in FILLED:
        return Filled(plan, node, FILLED[name])
    if name in ("full", "full_like") and isinstance(args[1], (int, float)):
        return Filled(plan, node, float(args[1]))
    if name == "linear":
        return Mix(plan, node)
    if name == "convolution":
        if len(shape(args[0])) != len(shape(args[1])):
            raise LeftAlone("its input has no batch dimension")
        return Mix(plan, node) if args[8] == 1 else Grouped(plan, node)
    if name in ("batch_norm", "instance_norm") or (name == "prelu" and args[1] in plan.constants):
        return Norm(plan, node)
    if name in MOVES:
        return MOVES[name](plan, node)
    if name in ("matmul", "bmm"):
        return Product(plan, node)
    if name == "add":
        return Sum(plan, node)
    if name in POINTWISE:
        if name.endswith("dropout") and args[2]:
            raise LeftAlone("it drops at random")
        return Pointwise(plan, node)
    return _along(plan, node, name)


def _along(plan: Plan, node: fx.Node, name: str) -> Rule:
    args: Any = node.args
    rank = len(shape(args[0])) if args and isinstance(args[0], fx.Node) else 0
    if name in ("softmax", "_softmax", "log_softmax", "_log_softmax", "cumsum"):
        return Along(plan, node, [args[1]])
    if name in ("roll", "flip"):
        dims = args[2] if name == "roll" and len(args) > 2 else args[1] if name == "flip" else range(rank)
        return Along(plan, node, dims, lambda v: v)
    if name in ("mean", "sum", "amax", "amin", "linalg_vector_norm"):
        return _reduced(plan, node, name, rank)
    places = list(range(2, rank))
    if name.startswith(UNIFORM):
        return Along(plan, node, places, lambda v: v)
    if name.startswith("avg_pool"):
        given = (*args, *(None,) * 7)
        padded = given[5] is not False and any(p > 0 for p in given[3] or ())
        if given[6] is not None:
            raise LeftAlone("it divides by a number of its own")
        return _padded(plan, node, 0.0) if padded else Along(plan, node, places, lambda v: v)
    if name in ("pad", "constant_pad_nd"):
        if len(args[1]) > 2 * (rank - 2):
            raise LeftAlone("it pads channels")
        mode = args[2] if name == "pad" and len(args) > 2 else "constant"
        value = (args[3] if len(args) > 3 else None) if name == "pad" else (args[2] if len(args) > 2 else 0.0)
        return _padded(plan, node, float(value or 0)) if mode == "constant" else Along(plan, node, places, lambda v: v)
    if name == "layer_norm":
        given = (*args, None, None)
        return Standardised(plan, node, range(rank - len(args[1]), rank), given[2], given[3], rank - 1)
    if name == "rms_norm":
        return Standardised(plan, node, range(rank - len(args[1]), rank), (*args, None)[2], None, rank - 1)
    if name == "group_norm":
        given = (*args, None, None)
        return Standardised(plan, node, range(1, rank), given[2], given[3], 1)
    raise LeftAlone(f"there is no rule for {name}")


def _padded(plan: Plan, node: fx.Node, number: float) -> Rule:
    """Padding with a number: constants of this value stay; others do not stay the same everywhere."""
    rank = len(shape(node))
    rule = Along(plan, node, range(2, rank), lambda v: v.masked_fill(v != number, torch.nan))
    rule.why = f"pads with {number:g}"
    return rule


def _reduced(plan: Plan, node: fx.Node, name: str, rank: int) -> Rule:
    args: Any = node.args
    given = args[2:] if name == "linalg_vector_norm" else args[1:]
    dims: Any = given[0] if given else None
    dims = [dims] if isinstance(dims, int) else list(dims) if dims else list(range(rank))
    keep = len(given) > 1 and bool(given[1])
    if name in ("mean", "sum"):
        return Mean(plan, node, dims, not keep)
    zero = (lambda v: v) if name in ("amax", "amin") else (lambda v: v.masked_fill(v != 0, torch.nan))
    return Along(plan, node, dims, zero, not keep)
