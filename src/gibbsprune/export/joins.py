"""Operations without weights: channel by channel, reshaping, concatenation, sums and products of branches.

A residual sum of branches that keep different channels is taken over the channels that are live in any of them
and wanted: the largest branch is the base, the constants of the others are added to it, and their live channels
are added in at their places.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from gibbsprune.export.layers import Mix, Norm, Rule
from gibbsprune.export.plan import SCATTER_COST, Facts, LeftAlone, Plan, SumInto, ease, moves, shape_of


class ChannelWise(Rule):
    """Output channel c depends on input channel c alone; ``constant`` tells what becomes of constant ones.

    ``constant(v)`` gives the values, and not a number where the result is not the same everywhere, of which ``why``
    tells the reason.
    """

    why = "gives no finite number"

    def __init__(self, plan: Plan, node: fx.Node, constant: Callable[[Tensor], Tensor], removed: tuple[int, ...] = ()):
        super().__init__(plan, node)
        if self.source not in plan.facts:
            raise LeftAlone("nothing is known of its input")
        self.given = plan.facts[self.source]
        self.axis = self.given.axis - sum(dim < self.given.axis for dim in removed)
        shape = shape_of(node)
        if self.axis >= len(shape) or shape[self.axis] != len(self.given.live):
            raise LeftAlone("it moves the channels")
        self.constant = constant

    def facts(self) -> Facts:
        value = self.constant(self.given.value)
        lost = ~self.given.live & ~value.isfinite()
        if lost.any():
            self.loss = f"it {self.why}, which leaves {int(lost.sum())} of {len(lost)} channels no longer constant"
        return Facts.of(self.axis, self.given.live | lost, value)

    def wants(self, wanted: Tensor) -> list[Tensor]:
        return [wanted]

    def edit(self, wanted: Tensor) -> Tensor:
        return self.plan.kept_on(self.source, self.given.axis)


class Reshape(Rule):
    """(N, C, s…) to (N, C · Πs), or between (N, C) and (N, C, 1, …)."""

    def __init__(self, plan: Plan, node: fx.Node) -> None:
        super().__init__(plan, node)
        if len(self.inputs) != 1 or self.source not in plan.facts:
            raise LeftAlone("nothing is known of its input")
        self.given = plan.facts_on(self.source, 1)
        before, self.after = shape_of(self.source), shape_of(node)
        self.repeat = 1
        for size in before[2:]:
            self.repeat *= size
        flat = self.after == (before[0], before[1] * self.repeat)
        same = self.repeat == 1 and self.after[:2] == before[:2] and all(size == 1 for size in self.after[2:])
        if not flat and not same:
            raise LeftAlone(f"it reshapes {before} to {self.after}")

    def facts(self) -> Facts:
        return Facts(1, *(x.repeat_interleave(self.repeat) for x in (self.given.live, self.given.value)))

    def wants(self, wanted: Tensor) -> list[Tensor]:
        return [wanted.view(-1, self.repeat).any(1)]

    def edit(self, wanted: Tensor) -> Tensor:
        if len(self.after) == 2:
            self.plan.turn(self.node, "call_function", torch.flatten, self.source, 1)
        else:
            self.plan.turn(self.node, "call_function", trailing_ones, self.source, len(self.after) - 2)
        return self.plan.kept_on(self.source, 1).repeat_interleave(self.repeat)


def trailing_ones(x: Tensor, count: int) -> Tensor:
    """(N, C) or (N, C, 1, …) as (N, C, 1, …) with ``count`` ones."""
    return x.reshape(x.shape[0], x.shape[1], *[1] * count)


class Concat(Rule):
    """torch.cat along the channels."""

    def __init__(self, plan: Plan, node: fx.Node) -> None:
        super().__init__(plan, node)
        parts = node.args[0] if node.args else node.kwargs.get("tensors")
        dim: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", node.kwargs.get("axis", 0))
        if not isinstance(parts, (list, tuple)) or not isinstance(dim, int):
            raise LeftAlone("it concatenates what is not a plain list")
        self.inputs = list(parts)
        self.axis = dim % len(shape_of(node))
        if self.axis == 0:
            raise LeftAlone("it concatenates along the batch")
        self.given = [plan.facts_on(part, self.axis) for part in self.inputs]

    def facts(self) -> Facts:
        return Facts(self.axis, torch.cat([g.live for g in self.given]), torch.cat([g.value for g in self.given]))

    def wants(self, wanted: Tensor) -> list[Tensor]:
        return list(wanted.split([len(g.live) for g in self.given]))

    def edit(self, wanted: Tensor) -> Tensor:
        return torch.cat([self.plan.kept_on(part, self.axis) for part in self.inputs])


class Product(Rule):
    """An operation on two tensors, entry by entry; one may be the same for all channels."""

    def __init__(self, plan: Plan, node: fx.Node, function: Callable[..., Any]) -> None:
        super().__init__(plan, node)
        self.function = function
        self.inputs = [arg for arg in node.args if isinstance(arg, fx.Node)]
        if len(self.inputs) != 2 or len(node.args) != 2 or node.kwargs:
            raise LeftAlone("it has arguments beside two tensors")
        axes = {plan.facts[part].axis for part in self.inputs if part in plan.facts}
        shape = shape_of(node)
        if len(axes) != 1 or any(len(shape_of(part)) != len(shape) for part in self.inputs):
            raise LeftAlone("its two inputs have different numbers of dimensions or channels along different axes")
        self.axis = axes.pop()
        self.channels = shape[self.axis]
        self.given = [plan.facts_on(part, self.axis) for part in self.inputs]
        self.shared = [len(g.live) == 1 and self.channels > 1 for g in self.given]

    def facts(self) -> Facts:
        first, second = (g.value.expand(self.channels) for g in self.given)
        live = self.given[0].live | self.given[1].live
        value = self.function(first, second)
        if self.function is operator.mul:  # 0 · x = 0
            nought = [~g.live & g.value.eq(0) for g in self.given]
            live = live & ~(nought[0] | nought[1])
        return Facts.of(self.axis, (live | ~value.isfinite()).expand(self.channels), value)

    def wants(self, wanted: Tensor) -> list[Tensor]:
        return [wanted.any()[None] if shared else ease(wanted, g.live) for g, shared in zip(self.given, self.shared)]

    def edit(self, wanted: Tensor) -> Tensor:
        args = []
        for part, shared in zip(self.inputs, self.shared):
            target = torch.ones(1, dtype=torch.bool) if shared else wanted
            args.append(self.plan.align(self.node, part, target, self.axis))
        self.node.args = tuple(args)
        return wanted


class Sum(Product):
    """The sum of two branches of the same shape, of which each may keep channels of its own."""

    def __init__(self, plan: Plan, node: fx.Node) -> None:
        super().__init__(plan, node, operator.add)

    def wants(self, wanted: Tensor) -> list[Tensor]:
        asked = super().wants(wanted)
        if self.plan.prefer == "size" or any(self.shared):
            return asked
        return [
            wanted if self._cheap(part, wanted, part_wanted) else part_wanted
            for part, part_wanted in zip(self.inputs, asked)
        ]

    def _cheap(self, part: fx.Node, wanted: Tensor, asked: Tensor) -> bool:
        """Whether the layer behind a branch computes the constants too at less than the cost of scattering."""
        rule = self.plan.rules.get(part)
        while isinstance(rule, (Norm, ChannelWise)) and len(rule.inputs[0].users) == 1:
            rule = self.plan.rules.get(rule.source)
        if not isinstance(rule, Mix) or len(rule.node.users) > 1:
            return False
        return rule.cost(int(wanted.sum())) - rule.cost(int(asked.sum())) <= SCATTER_COST * int(wanted.sum())

    def edit(self, wanted: Tensor) -> Tensor:
        plan, node = self.plan, self.node
        if any(shape_of(part) != shape_of(node) for part in self.inputs):
            return super().edit(wanted)
        sides = [(part, plan.kept_on(part, self.axis), given) for part, given in zip(self.inputs, self.given)]
        sides.sort(key=lambda side: [-int((side[1] & mask).sum()) for mask in (wanted, wanted & side[2].live)])
        (base, _, _), (part, kept, given) = sides
        base = plan.align(node, base, wanted, self.axis)
        if not (kept & wanted & given.live).any():
            kept = torch.zeros_like(kept)  # constant throughout: this branch need not be computed
        constant = given.value.masked_fill(kept, 0)[wanted]
        shift = constant.to(plan.dtype) if constant.ne(0).any() else None
        if shift is None and torch.equal(kept, wanted):
            node.args = (base, part)
        elif (kept & wanted).any():
            plan.turn_into(node, SumInto(self.axis, shift, *moves(kept, wanted)), base, part)
        elif shift is not None:
            plan.turn_into(node, SumInto(self.axis, shift, None, None), base)
        else:
            plan.same[node] = base
        return wanted
