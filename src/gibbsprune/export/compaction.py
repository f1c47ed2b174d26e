"""A pruned network as a smaller network that computes the same function.

The network is captured as a graph of ATen operators, the facts of :mod:`gibbsprune.export.plan` are carried through it
forwards, the wants backwards, and then each operation is made smaller by its own rule. What has no rule is left as it
is, its inputs restored to full width, and reported with the reason. The result is compared with the original at the
example inputs before it is handed out.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from ..attaching import check_plain
from ..errors import UserError
from ..looking import arguments, plain_eval
from .aten import RECURRENT, capture, drop_dead, drop_unread, op_name
from .channels import LeftAlone, mask_of
from .equality import difference, difference_in_double, in_rows, rounding
from .folding import fold_batch_norms
from .forms import canonical
from .layers import Mix, layer_name
from .parts import as_modules
from .plan import Plan, ease
from .reuse import reuse_memory
from .rules import rule_of

PREFERENCES = ("size", "speed")
CLOSE = 1.15  # times what lives in a layer: a size that is not told
TOLERANCE = 1e-4  # of the output's scale, or 16 units of rounding where the model's own precision is coarser


@dataclass(frozen=True)
class CompactReport:
    """Parameters before and after, max |difference| / max |output| at the example inputs, and what was left alone.

    The difference is that of float64 where float32 is too coarse to tell networks apart.
    ``larger`` are layers that became no smaller than 1.15 times what lives in them, with the reason.
    """

    parameters_before: int
    parameters_after: int
    difference: float
    left: dict[str, str] = field(default_factory=dict)
    larger: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.parameters_before:,} parameters, now {self.parameters_after:,}"]
        lines += [f"left alone: {name}, because {reason}" for name, reason in self.left.items()]
        for reason in dict.fromkeys(self.larger.values()):
            names = ", ".join(name for name, why in self.larger.items() if why == reason)
            lines.append(f"larger than what lives in it: {names}, because {reason}")
        return "\n".join(lines)


def compact(
    model: nn.Module,
    example_inputs: Tensor | Sequence[Any] | dict[str, Any],
    fold_batch_norm: bool = False,
    prefer: str = "size",
) -> nn.Module:
    """The same function of eval mode in fewer channels; ``model`` itself is not changed.

    Args:
        model: a finalized model, whose pruned weights are exact zeros.
        example_inputs: one input, the sequence of the arguments of ``forward``, or a dict of named ones. Other batch
            sizes work too, and other image sizes and lengths of sequences where the model takes them.
        fold_batch_norm: put batch norms into the convolution or dense layer before them, where there is one.
        prefer: "size" computes only live channels and scatters them into residual sums; "speed" lets a layer compute
            the constant ones too where that is cheaper than scattering, which costs parameters and saves time.

    Returns:
        An ordinary module in eval mode, with a :class:`CompactReport` as its ``report``. A model that cannot be
        captured comes back as a copy, and the report says why.
    """
    if prefer not in PREFERENCES:
        raise UserError(f"prefer is '{prefer}': allowed are {' and '.join(PREFERENCES)}")
    check_plain(model, "compacting", transformed=True)
    args, kwargs = arguments(example_inputs)
    before = sum(p.numel() for p in model.parameters())
    original = copy.deepcopy(model).eval()
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    with torch.no_grad():
        args, kwargs = in_rows(original, args, kwargs)
        try:
            whole = capture(copy.deepcopy(original), args or kwargs)
        except UserError as error:
            return _reported(original, CompactReport(before, before, 0.0, {"the whole model": str(error)}))
        with plain_eval(original):
            expected = original(*copy.deepcopy(args), **copy.deepcopy(kwargs))
        refused: dict[str, str] = {}
        while True:
            module = copy.deepcopy(whole)
            try:
                canonical(module)
                left = fold_batch_norms(module) if fold_batch_norm else {}
                more, larger = _shrink(module, like, prefer, refused)
                left |= more
                as_modules(module)
                reuse_memory(module)
                found = difference(expected, module.eval().forward(*copy.deepcopy(args), **copy.deepcopy(kwargs)))
                same = found <= max(TOLERANCE, rounding(model))
                if not same and like.dtype == torch.float32:  # the original may be as far from itself
                    found = min(found, difference_in_double(original, module, args, kwargs))
                    same = found <= TOLERANCE
                reason = f"the smaller network would differ by {found:.1e} of the output's scale"
            except _Refused as refusal:
                if new := [name for name in refusal.nodes if name and name not in refused]:
                    refused[new[0]] = str(refusal)
                    continue
                same, reason = False, str(refusal)
            except Exception as error:  # a graph that no rule foresaw: the model stays right, and the report tells
                same, reason = False, f"its graph cannot be made smaller ({type(error).__name__}: {error})"
            break
    if not same:
        return _reported(original, CompactReport(before, before, 0.0, {"the whole model": reason}))
    after = sum(p.numel() for p in module.parameters())
    return _reported(module, CompactReport(before, after, found, left, larger))


def folded(model: nn.Module, example_inputs: Tensor | Sequence[Any] | dict[str, Any]) -> nn.Module:
    """A copy with batch norms folded and all channels in place: what a compact network is fairly compared with."""
    args, kwargs = arguments(example_inputs)
    original = copy.deepcopy(model).eval()
    with torch.no_grad():
        args, kwargs = in_rows(original, args, kwargs)
        try:
            module = capture(copy.deepcopy(original), args or kwargs)
        except UserError:
            return original
        canonical(module)
        fold_batch_norms(module)
        drop_unread(module)
        as_modules(module)
        reuse_memory(module)
    return module.eval()


class _Refused(Exception):
    """An operation turned out to have no smaller form, once its inputs were made smaller; who is to blame, first."""

    def __init__(self, reason: LeftAlone, node: str) -> None:
        super().__init__(str(reason))
        self.nodes = (reason.node, node)


def _reported(module: nn.Module, report: CompactReport) -> nn.Module:
    module.report = report  # type: ignore[assignment]
    return module


def _shrink(
    module: fx.GraphModule, like: Tensor, prefer: str, refused: dict[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Forwards, backwards, edit; what was left alone, and what is larger than what lives in it, with the reasons."""
    graph = module.graph
    drop_dead(graph)
    plan = Plan(module, like.device, like.dtype, prefer)
    nodes = list(graph.nodes)
    rules = plan.rules
    left: dict[str, str] = {}
    for node in nodes:
        value = plan.constant(node)
        if value is not None:
            plan.constants[node] = value
            continue
        try:
            if node.name in refused:
                raise LeftAlone(refused[node.name])
            rule = rule_of(plan, node)
            facts = rule.facts()
        except LeftAlone as reason:
            if _matters(plan, node):
                left[_name(plan, node)] = str(reason)
            continue
        rules[node], plan.facts[node] = rule, facts
    for node in reversed(nodes):
        plan.settle(node)
        if node in rules:
            for part, wanted in zip(rules[node].inputs, rules[node].wants(plan.wanted[node])):
                if wanted is not None:
                    plan.want(part, wanted)
        elif node.op == "output" or not _shape_only(node):
            for part in node.all_input_nodes:
                if part in plan.facts:
                    live = plan.facts[part].live
                    plan.want(part, ease(torch.ones_like(live), live))
    for node in nodes:
        name = _name(plan, node)
        try:
            if node in rules:
                plan.kept[node] = rules[node].edit(plan.wanted[node])
            elif not _shape_only(node) and node not in plan.constants:
                for part in list(node.all_input_nodes):
                    if part in plan.facts:
                        node.replace_input_with(part, plan.restored(node, part))
        except LeftAlone as reason:
            raise _Refused(reason, node.name) from reason
        if node in rules and rules[node].loss:
            left[name] = rules[node].loss
    filled = _filled(plan)
    for edit in plan.after:
        edit()
    drop_dead(graph)
    graph.lint()
    module.recompile()
    drop_unread(module)
    return left, _with_zeros(module) | filled


def _filled(plan: Plan) -> dict[str, str]:
    """Layers of which many channels are kept that nobody wants or that are constant, with the reason."""
    found = {}
    for node, rule in plan.rules.items():
        if not isinstance(rule, Mix):
            continue
        sizes = []
        for part, wanted in ((node, plan.wanted[node]), (rule.source, None)):
            facts = plan.facts_of(part)
            kept = mask_of(plan.kept_of(part), facts.live.shape)
            alive = kept & facts.live if wanted is None else kept & facts.live & wanted
            sizes.append((int(kept.sum()), int(alive.sum())))
        (outputs, live_outputs), (inputs, live_inputs) = sizes
        if outputs * inputs > CLOSE * live_outputs * live_inputs:
            idle = [f"{n - m} of its {n} {what}" for n, m, what in zip(*zip(*sizes), ("outputs", "inputs")) if n > m]
            found[_name(plan, node)] = (
                f"{' and '.join(idle)} are constant or not wanted, and fill up heads or groups to equal sizes or are "
                "needed as they are by what follows"
            )
    return found


def _with_zeros(module: nn.Module) -> dict[str, str]:
    """Weights that still hold many zeros, with the reason."""
    found = {}
    for name, weight in module.named_parameters():
        zero = weight.detach() == 0
        if weight.dim() < 2 or weight.numel() <= CLOSE * int((~zero).sum()):
            continue
        whole = [int(zero.transpose(0, dim).flatten(1).all(1).sum()) for dim in range(weight.dim())]
        some = [
            f"{n} of its {of} slices along dimension {d}" for d, (n, of) in enumerate(zip(whole, weight.shape)) if n
        ]
        found[name.removesuffix(".weight")] = (
            f"{' and '.join(some)} are zero, but nothing makes it smaller"
            if some
            else "its zeros fill no whole slice along a dimension"
        )
    return found


def _name(plan: Plan, node: fx.Node) -> str:
    """The name of the layer that an operation stands for, or its own."""
    if op_name(node) in ("linear", "convolution", "batch_norm", "layer_norm", "group_norm", "embedding"):
        weights = [a for a in (*node.args[1:], node.args[0]) if isinstance(a, fx.Node) and a in plan.constants]
        if weights and (name := layer_name(plan, weights[0])):
            return name
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    if stack and "torch.nn.modules" in str(stack[-1][1]) and "container" not in str(stack[-1][1]):
        return str(stack[-1][0])
    return node.name


def _matters(plan: Plan, node: fx.Node) -> bool:
    """Whether leaving this node alone costs anything: it has weights, or some of its input is dead."""
    if node.op in ("output", "placeholder") or _shape_only(node) or isinstance(node.target, type):
        return False
    if op_name(node) in RECURRENT | {"linear", "convolution"}:
        return True
    return any(part in plan.facts and not plan.facts[part].live.all() for part in node.all_input_nodes)


def _shape_only(node: fx.Node) -> bool:
    """Whether a node reads a tensor's sizes and none of its values; those that vary are never channels."""
    return op_name(node) == "sym_size"
