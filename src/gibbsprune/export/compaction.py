"""A pruned network as a smaller network that computes the same function.

The network is traced, the facts of :mod:`gibbsprune.export.plan` are carried through it forwards, the wants
backwards, and then each operation is made smaller by its own rule. What has no rule is left as it is, its inputs
restored to full width, and reported with the reason. The result is compared with the original at the example
inputs before it is handed out.
"""

from __future__ import annotations

import copy
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from gibbsprune.errors import UserError
from gibbsprune.export.classify import rule_of
from gibbsprune.export.folding import fold_batch_norms
from gibbsprune.export.layers import CONVOLUTIONS
from gibbsprune.export.plan import LeftAlone, Plan, ease, full_shape
from gibbsprune.export.reuse import reuse_memory
from gibbsprune.export.tracing import as_inputs, difference, in_rows, rounding, traced
from gibbsprune.masking import check_plain

PREFERENCES = ("size", "speed")
TOLERANCE = 1e-4  # of the output's scale, or 16 units of rounding where the model's own precision is coarser


@dataclass(frozen=True)
class CompactReport:
    """Parameters before and after, max |difference| / max |output| at the example inputs, and what was left alone."""

    parameters_before: int
    parameters_after: int
    difference: float
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.parameters_before:,} parameters, now {self.parameters_after:,}"]
        return "\n".join(lines + [f"left alone: {name}, because {reason}" for name, reason in self.left.items()])


def compact(
    model: nn.Module,
    example_inputs: Tensor | Sequence[Any],
    fold_batch_norm: bool = False,
    prefer: str = "size",
) -> nn.Module:
    """The same function of eval mode in fewer channels; ``model`` itself is not changed.

    Args:
        model: a finalized model, whose pruned weights are exact zeros.
        example_inputs: one input, or the sequence of the arguments of ``forward``. Other batch sizes work too, and
            other image sizes where the model takes them.
        fold_batch_norm: put batch norms into the convolution or dense layer before them, where there is one.
        prefer: "size" computes only live channels and scatters them into residual sums; "speed" lets a layer compute
            the constant ones too where that is cheaper than scattering, which costs parameters and saves time.

    Returns:
        An ordinary module in eval mode, with a :class:`CompactReport` as its ``report``. A model that cannot be
        traced comes back as a copy, and the report says why.
    """
    if prefer not in PREFERENCES:
        raise UserError(f"prefer is '{prefer}'; allowed are {' and '.join(PREFERENCES)}.")
    check_plain(model, "compacting")
    inputs = as_inputs(example_inputs)
    before = sum(p.numel() for p in model.parameters())
    original = copy.deepcopy(model).eval()
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    with torch.no_grad():
        inputs = in_rows(original, inputs)
        expected = original(*copy.deepcopy(inputs))
        root = copy.deepcopy(original)
        try:
            module = traced(root, inputs)
        except Exception as error:  # whatever the model's own code raises when it meets a symbolic tensor
            reason = f"it cannot be traced ({str(error).strip().partition(chr(10))[0]})"
            return _reported(original, CompactReport(before, before, 0.0, {"the whole model": reason}))
        try:
            left = fold_batch_norms(module) if fold_batch_norm else {}
            left |= _shrink(module, like, prefer)
            reuse_memory(module)
            found = difference(expected, module.eval().forward(*copy.deepcopy(inputs)))  # calling it prints errors
            same = found <= max(TOLERANCE, rounding(model))
            reason = f"the smaller network would differ by {found:.1e} of the output's scale"
        except Exception as error:  # a graph that no rule foresaw: the model stays right, and the report tells
            same, reason = False, f"its graph cannot be made smaller ({type(error).__name__}: {error})"
    if not same:
        return _reported(original, CompactReport(before, before, 0.0, {"the whole model": reason}))
    after = sum(p.numel() for p in module.parameters())
    return _reported(module, CompactReport(before, after, found, left))


def _reported(module: nn.Module, report: CompactReport) -> nn.Module:
    module.report = report  # type: ignore[assignment]
    return module


def _shrink(module: fx.GraphModule, like: Tensor, prefer: str) -> dict[str, str]:
    """Forwards, backwards, edit; what was left alone, with the reason."""
    graph = module.graph
    graph.eliminate_dead_code()
    plan = Plan(module, like.device, like.dtype, prefer)
    nodes = list(graph.nodes)
    calls = Counter(node.target for node in nodes if node.op == "call_module")
    rules = plan.rules
    left: dict[str, str] = {}
    for node in nodes:
        try:
            rule = rule_of(plan, node, calls)
            facts = rule.facts()
        except LeftAlone as reason:
            if _matters(plan, node):
                left[_name(node)] = str(reason)
            continue
        if rule.loss:
            left[_name(node)] = rule.loss
        if facts is not None:
            rules[node], plan.facts[node] = rule, facts
    for node in reversed(nodes):
        plan.settle(node)
        if node in rules:
            for part, wanted in zip(rules[node].inputs, rules[node].wants(plan.wanted[node])):
                plan.want(part, wanted)
        elif not _shape_only(node):
            for part in node.all_input_nodes:
                if part in plan.facts:
                    live = plan.facts[part].live
                    plan.want(part, ease(torch.ones_like(live), live))
    for node in nodes:
        if node in rules:
            plan.kept[node] = rules[node].edit(plan.wanted[node])
        elif _shape_only(node):
            _full_shape(plan, node)
        else:
            for part in list(node.all_input_nodes):
                if part in plan.facts:
                    full = torch.ones_like(plan.facts[part].live)
                    node.replace_input_with(part, plan.align(node, part, full, plan.facts[part].axis))
    plan.finish()
    graph.eliminate_dead_code()
    graph.lint()
    module.recompile()
    module.delete_all_unused_submodules()
    return left


def _name(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_module" else node.name


def _matters(plan: Plan, node: fx.Node) -> bool:
    """Whether leaving this node alone costs anything: it has weights, or some of its input is dead."""
    if node.op == "output" or _shape_only(node):
        return False
    if node.op == "call_module" and isinstance(plan.module.get_submodule(str(node.target)), (nn.Linear, *CONVOLUTIONS)):
        return True
    return any(part in plan.facts and not plan.facts[part].live.all() for part in node.all_input_nodes)


def _shape_only(node: fx.Node) -> bool:
    """Whether a node reads a tensor's shape, type or place, and none of its values."""
    if node.op == "call_function" and node.target is getattr:
        return node.args[1] in ("shape", "ndim", "dtype", "device")
    return node.op == "call_method" and node.target in ("size", "dim")


def _full_shape(plan: Plan, node: fx.Node) -> None:
    """Let a node that reads a shape see the old number of channels."""
    source = node.all_input_nodes[0]
    if source not in plan.facts or plan.kept[source].all() or not (node.target == "size" or "shape" in node.args):
        return
    facts, index = plan.facts[source], node.args[1:] if node.target == "size" else ()
    with node.graph.inserting_before(node):
        shape = node.graph.call_function(full_shape, (source, facts.axis, len(facts.live)))
    if index or node.kwargs:
        plan.turn(node, "call_function", operator.getitem, shape, *(index or node.kwargs.values()))
    else:
        node.replace_all_uses_with(shape)
