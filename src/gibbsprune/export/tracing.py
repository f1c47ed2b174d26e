"""A network as a graph of operations that overwrite nothing, with the shapes that they give."""

from __future__ import annotations

import contextlib
import copy
import io
import math
import operator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.utils import _pytree as pytree

from gibbsprune.errors import UserError
from gibbsprune.export.classify import function_name
from gibbsprune.export.executors import Plain
from gibbsprune.export.plan import AddBorders, Scatter, SumInto, add_into, full_shape

IN_PLACE: dict[Any, Any] = {
    add_into: operator.add,
    **{getattr(operator, f"i{name}"): getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "pow")},
}


class Tracer(fx.Tracer):
    """torch's tracer, with our own operations as single nodes."""

    def __init__(self) -> None:
        super().__init__(autowrap_functions=(add_into, full_shape))

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, (Scatter, SumInto, AddBorders, Plain)) or super().is_leaf_module(m, module_qualified_name)


def as_inputs(example_inputs: Any) -> tuple[Any, ...]:
    """The arguments of ``forward``, from one tensor or several."""
    if isinstance(example_inputs, Tensor):
        return (example_inputs,)
    if isinstance(example_inputs, (tuple, list)) and example_inputs:
        return tuple(example_inputs)
    raise UserError(f"example_inputs are {example_inputs!r}; allowed are a tensor, or a list of forward's arguments.")


@torch.no_grad()
def in_rows(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same inputs with a second row where they have one and the model takes two: one row broadcasts, unseen."""
    rows = [x for x in inputs if isinstance(x, Tensor) and x.dim()]
    if not rows or any(len(x) != 1 for x in rows):
        return inputs
    more = tuple(torch.cat([x, x]) if isinstance(x, Tensor) and x.dim() else x for x in inputs)
    try:
        model(*copy.deepcopy(more))
    except Exception:  # a first axis that is not the batch's
        return inputs
    return more


def traced(model: nn.Module, inputs: tuple[Any, ...]) -> fx.GraphModule:
    """The graph of ``model``, which it takes over. Whatever the model's own code raises then is passed on."""
    module = fx.GraphModule(model, Tracer().trace(model))
    _without_in_place(module)
    with contextlib.redirect_stderr(io.StringIO()):  # it prints what it raises
        ShapeProp(module).propagate(*copy.deepcopy(inputs))
    return module


def _without_in_place(module: fx.GraphModule) -> None:
    """The same graph without operations that overwrite their input; later readers of that read the result."""
    for node in list(module.graph.nodes):
        name = function_name(node) if node.op in ("call_function", "call_method") else ""
        layer = module.get_submodule(node.target) if node.op == "call_module" else None
        if node.target in IN_PLACE:
            node.target = IN_PLACE[node.target]
        elif layer is not None and getattr(layer, "inplace", False) is True:
            node.meta["in_place"] = True
        elif node.kwargs.get("inplace") is True:
            node.kwargs = {**node.kwargs, "inplace": False}
        elif name.endswith("_") and not name.endswith("__") and node.op == "call_method":
            node.target = name[:-1]
        elif name.endswith("_") and hasattr(torch, name[:-1]):
            node.target = getattr(torch, name[:-1])
        else:
            continue
        seen = False
        for user in list(module.graph.nodes):
            if seen and node.args[0] in user.all_input_nodes:
                user.replace_input_with(node.args[0], node)
            seen = seen or user is node
    for node in module.graph.nodes:
        if node.meta.pop("in_place", False):
            setattr(module.get_submodule(node.target), "inplace", False)  # noqa: B010
    module.recompile()


def difference(expected: Any, found: Any) -> float:
    """max |a − b| / max |a| over the finite numbers of all tensors of two outputs; the others must be the same."""
    worst = 0.0
    for a, b in zip(pytree.tree_leaves(expected), pytree.tree_leaves(found)):
        if isinstance(a, Tensor) and a.numel():
            a, b = a.double(), b.double()
            finite = a.isfinite() & b.isfinite()
            if not bool((finite | (a == b) | (a.isnan() & b.isnan())).all()):
                return math.inf
            a, b = a[finite], b[finite]
            if a.numel():
                worst = max(worst, float((a - b).abs().max()) / (float(a.abs().max()) or 1.0))
    return worst


def rounding(model: nn.Module) -> float:
    """What rounding in the model's own precision may make of its output: 16 units of it."""
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    return 16 * torch.finfo(like.dtype).eps
