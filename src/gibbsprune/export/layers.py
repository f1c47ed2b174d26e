"""Layers with weights: convolutions, dense layers, batch norms and embeddings, made smaller without another function.

A layer y_o = b_o + Σ_c W_oc * x_c (* a convolution, or a product) whose input channel c is constant v_c and is
not kept adds Σ_c v_c (W_oc * 1) to its output. Without zero padding that is a number, and goes into the bias. With
zero padding W_oc * 1 is smaller at the borders; then one constant input channel d with v_d ≠ 0 is kept to carry
them all: W_od ← W_od + Σ_c W_oc v_c / v_d, tap by tap, which is exact at every place and for every input size. Where
that one channel more would be dear, Σ_c W_oc v_c * 1 is computed once for the image's size and added as a map.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from .aten import attribute, op_name, shape
from .channels import Facts, LeftAlone, from_line, place, product, reduce_to, rows
from .parts import LANES, AddBorders
from .plan import Plan, carrier


class Rule:
    """How one operation treats channels: facts forwards, wants backwards, then the edit of the graph."""

    loss = ""  # what keeps constant channels from staying constant, once the facts are known

    def __init__(self, plan: Plan, node: fx.Node) -> None:
        self.plan, self.node = plan, node
        self.inputs: list[fx.Node] = [n for n in node.all_input_nodes if shape(n) or n in plan.constants]

    @property
    def source(self) -> fx.Node:
        return self.inputs[0]

    def facts(self) -> Facts:
        raise NotImplementedError

    def wants(self, wanted: Tensor) -> list[Tensor | None]:
        """The atoms wanted of each input when these are wanted of the output; None for those of constants."""
        raise NotImplementedError

    def edit(self, wanted: Tensor) -> Tensor:
        """Make the operation smaller, and tell the grid of its output."""
        raise NotImplementedError


def layer_name(plan: Plan, node: Any) -> str:
    """The name of the layer that owns a weight, which may be computed from parameters."""
    while isinstance(node, fx.Node) and node.op != "get_attr":
        sources = [n for n in node.all_input_nodes if n in plan.constants]
        node = sources[0] if sources else None
    name = str(node.target) if node is not None else ""
    return name.partition(".parametrizations.")[0] if ".parametrizations." in name else name.rpartition(".")[0]


class Layer(Rule):
    """An operation with weights of its own; ``calls`` are all operations of the same layer, in a network's order."""

    weights: tuple[int, ...] = (1, 2)
    shares = False  # whether there is a smaller form of a layer that is called more than once

    def __init__(self, plan: Plan, node: fx.Node) -> None:
        super().__init__(plan, node)
        self.calls = [node]
        for index in self.weights:
            part: Any = node.args[index] if len(node.args) > index else None
            if part is not None and part not in plan.constants:
                raise LeftAlone("its weight depends on the inputs")
            if part is not None and part.op == "get_attr" and plan.readers[id(attribute(plan.module, part))] > 1:
                users = list(part.users)
                again = len(users) > 1 and all(op_name(u) == op_name(node) and u.args[index] is part for u in users)
                which = str(part.target).rpartition(".")[2]
                if not again or plan.readers[id(attribute(plan.module, part))] > len(users):
                    raise LeftAlone(f"its {which} is read elsewhere too")
                if not self.shares:
                    raise LeftAlone("it is called more than once")
                self.calls = sorted(users)
        if any([u.args[i] for i in self.weights if i < len(u.args)] != self._tensors() for u in self.calls):
            raise LeftAlone("one of its tensors is read elsewhere too")
        self.name = layer_name(plan, node.args[self.weights[0]])
        self.inputs = [node.args[0]]  # type: ignore[list-item]

    def _tensors(self) -> list[Any]:
        return [self.node.args[i] for i in self.weights if i < len(self.node.args)]

    def together(self) -> list[Any]:
        """The rules of all calls of this layer; none where some call has no rule, and the layer stays as it is."""
        found = [self.plan.rules.get(call) for call in self.calls]
        return found if None not in found else []

    def put(self, index: int, which: str, value: Tensor | None) -> None:
        self.node.args = (*self.node.args, *[None] * (index + 1 - len(self.node.args)))
        if self.node is not self.calls[0]:  # which has the same, and comes first
            args = list(self.node.args)
            args[index] = self.calls[0].args[index]
            self.node.args = tuple(args)
            return
        self.plan.put(self.node, index, f"{self.name}.{which}" if self.name else f"{self.node.name}_{which}", value)


class Mix(Layer):
    """Convolution (ordinary or transposed, one group) or dense layer: every output reads every input.

    Calls of one layer have what any of them reads and gives; an input is constant if it is the same one in all of them.
    """

    shares = True

    def __init__(self, plan: Plan, node: fx.Node) -> None:
        super().__init__(plan, node)
        self.dense = op_name(node) == "linear"
        args: Any = (*node.args, *[None] * (3 - len(node.args)))
        self.transposed = not self.dense and args[6]
        self.x = plan.facts_of(self.source)
        self.dim = len(self.x.dims) - 1 if self.dense else 1
        self.own = self.given = self.x.along(self.dim)
        weight, self.bias = plan.tensor(args[1]), plan.tensor(args[2])
        assert weight is not None
        self.weight = weight.transpose(0, 1) if self.transposed else weight
        self.reach = self.weight.reshape(*self.weight.shape[:2], -1).ne(0).any(2)
        self.bordered = not self.dense and (self.transposed or any(p > 0 for p in args[4]))

    def shift(self, rows: Tensor, values: Tensor) -> Tensor:
        """Σ_c W_oc v_c, tap by tap, for these outputs o."""
        return torch.einsum("oi...,i->o...", self.weight[rows], values)

    def facts(self) -> Facts:
        everything = torch.ones(len(self.weight), dtype=torch.bool)
        shift = self.shift(everything, self.given.value).reshape(len(everything), -1)
        live = (self.reach & self.given.live).any(1)
        if self.bordered:
            live = live | shift.ne(0).any(1)
        value = (0 if self.bordered else shift.sum(1)) + torch.zeros(len(live), dtype=torch.float64)
        return self.channels(live, value if self.bias is None else value + self.bias)

    def channels(self, live: Tensor, value: Tensor) -> Facts:
        """Facts of the output, whose channels lie along the same dimension."""
        dims: list[tuple[int, ...]] = [(size,) for size in shape(self.node)]
        if self.dense:
            dims[:-1] = list(self.x.dims[:-1])
        self.axis = sum(len(d) for d in dims[: self.dim])
        self.rank = sum(len(d) for d in dims)
        along = [-1 if axis == self.axis else 1 for axis in range(self.rank)]
        return Facts.of(tuple(dims), live.view(along), value.view(along))

    def wants(self, wanted: Tensor) -> list[Tensor | None]:
        if len(self.calls) == 1:
            return [from_line(self.x, self.dim, self.read(wanted))]
        self.given, self.bordered = _joint(self.own, self.together()), any(r.bordered for r in self.together())
        return [from_line(self.x, self.dim, self.read(wanted) & self.own.live)]

    def read(self, wanted: Tensor) -> Tensor:
        """The inputs that have to be there for these outputs."""
        read = self.reach[wanted.flatten()].any(0)
        channels = read & self.given.live
        if self.bordered and (read & self.given.value.ne(0)).any() and not self.mapped(int(channels.sum())):
            channels[carrier(self.given, torch.ones_like(read))] = True
        return channels

    def mapped(self, channels: int) -> bool:
        """Whether constants at borders come as a map: where one more channel would open another set of lanes."""
        return not self.transposed and len(self.calls) == 1 and channels > 0 and channels % LANES == 0

    def cost(self, outputs: int) -> int:
        """Multiply-adds at one place of the output, with this many outputs, for the live inputs."""
        taps = self.weight[0, 0].numel() if not self.dense else 1
        return -(-outputs // LANES) * LANES * taps * int((self.reach.any(0) & self.given.live).sum())

    def edit(self, wanted: Tensor) -> Tensor:
        plan, node = self.plan, self.node
        outputs = wanted.flatten()
        x, line = plan.line(node, self.source, self.dim)
        if len(self.calls) > 1:
            outputs, inputs = self.shared()
            x, line = plan.picked(node, x, self.dim, self.own, line, inputs), inputs
        weight = self.weight[outputs][:, line]
        kept = torch.zeros_like(self.given.live)
        kept[line] = True
        shift = self.shift(outputs, self.given.value.masked_fill(kept, 0))
        bias = None if self.bias is None else self.bias[outputs]
        if self.bordered and shift.ne(0).any():
            channel = carrier(self.given, kept)
            if kept[channel] and self.given.value[channel].ne(0):
                weight[:, int((line == channel).nonzero())] += shift / self.given.value[channel]
            else:
                self.add_borders(AddBorders(shift[:, None].to(plan.dtype), *node.args[3:6]))
        elif shift.ne(0).any():
            bias = shift.reshape(len(shift), -1).sum(1) + (0 if bias is None else bias)
        self.put(1, "weight", weight.transpose(0, 1) if self.transposed else weight)
        self.put(2, "bias", bias)
        node.args = (x, *node.args[1:])
        return outputs.nonzero().view([-1 if axis == self.axis else 1 for axis in range(self.rank)])

    def shared(self) -> tuple[Tensor, Tensor]:
        """Which outputs, and the indices of the inputs, that any call of the layer needs."""
        rules = self.together()
        if not rules:
            return torch.ones(len(self.reach), dtype=torch.bool), torch.arange(self.reach.shape[1])
        wanted = [self.plan.wanted[rule.node].flatten() for rule in rules]
        inputs = torch.stack([rule.read(mask) for rule, mask in zip(rules, wanted)]).any(0)
        inputs[0] |= not inputs.any()
        return torch.stack(wanted).any(0), inputs.nonzero().flatten()

    def add_borders(self, made: AddBorders) -> None:
        """Let the map be added to the layer's output, once no rule speaks of it any more."""

        def added() -> None:
            following = self.node.next
            new = self.plan.insert(following, made, self.node, self.node.args[0])  # type: ignore[arg-type]
            new.meta = dict(self.node.meta)
            self.node.replace_all_uses_with(new, lambda user: user is not new)

        self.plan.after.append(added)


def _joint(own: Facts, rules: Sequence[Mix]) -> Facts:
    """What is known of the inputs of all calls of a layer; live throughout where some call is not known."""
    if not rules:
        return Facts.of(own.dims, torch.ones_like(own.live), own.value)
    lives, values = (torch.stack([getattr(rule.own, which) for rule in rules]) for which in ("live", "value"))
    return Facts.of(own.dims, lives.any(0) | (values != values[:1]).any(0), values[0])


class Grouped(Mix):
    """Convolution in groups, depthwise ones among them: groups leave, and the others keep as many channels each."""

    shares = False

    def __init__(self, plan: Plan, node: fx.Node) -> None:
        super().__init__(plan, node)
        args: Any = node.args
        self.groups = args[8]
        weight = plan.tensor(args[1])
        assert weight is not None
        taps = weight.shape[2:]
        if self.transposed:
            weight = weight.reshape(self.groups, -1, weight.shape[1], *taps).transpose(1, 2)
        else:
            weight = weight.reshape(self.groups, -1, weight.shape[1], *taps)
        self.weight = weight  # (groups, outputs, inputs, …)
        self.reach = weight.flatten(3).ne(0).any(3) if taps else weight.ne(0)

    def inputs_of(self, x: Tensor) -> Tensor:
        return x.view(self.groups, 1, -1)

    def facts(self) -> Facts:
        value = self.inputs_of(self.given.value)
        shift = (self.weight.flatten(3) * value[..., None]).sum(2)
        live = (self.reach & self.inputs_of(self.given.live)).any(2)
        if self.bordered:
            live = live | shift.ne(0).any(2)
        number = (torch.zeros_like(shift) if self.bordered else shift).sum(2).flatten()
        return self.channels(live.flatten(), number if self.bias is None else number + self.bias)

    def read_of(self, wanted: Tensor, fill: bool = True) -> tuple[Tensor, Tensor]:
        """Which outputs and inputs of each group have to be there; with ``fill`` a group has some of both, or none."""
        outputs = wanted.view(self.groups, -1)
        read = (self.reach & outputs[..., None]).any(1)
        live, value = (self.inputs_of(x)[:, 0] for x in (self.given.live, self.given.value))
        inputs = read & live
        if self.bordered:  # one constant channel carries those of its group
            carried = (read & value.ne(0)).any(1)
            inputs[torch.arange(self.groups), value.abs().argmax(1)] |= carried
        if fill:
            inputs[:, 0] |= outputs.any(1) & ~inputs.any(1)
        return outputs, inputs

    def wants(self, wanted: Tensor) -> list[Tensor | None]:
        _, inputs = self.read_of(wanted, fill=self.plan.prefer == "speed")  # any input fills a group that reads none
        asked = self.plan.rounded(inputs).flatten()
        return [from_line(self.x, 1, asked & self.given.live if self.plan.prefer == "size" else asked)]

    def edit(self, wanted: Tensor) -> Tensor:
        plan, node = self.plan, self.node
        outputs, inputs = self.read_of(wanted)
        given, taken = rows(outputs), rows(inputs)
        x, line = plan.line(node, self.source, 1)
        where = {int(c): i for i, c in enumerate(line)}
        size, each = inputs.shape[1], outputs.shape[1]
        order = sorted(range(len(taken)), key=lambda g: min(where.get(int(c), len(line)) for c in taken[g]))
        given, taken = given[order], taken[order]
        x = plan.picked(node, x, 1, self.given, line, taken.flatten())
        group = taken[:, 0] // size
        if given.numel() * taken.shape[1] > int((outputs.sum(1) * inputs.sum(1)).sum()):
            self.loss = "its groups keep different numbers of channels, and are filled up to the largest"
        weight = self.weight[group[:, None, None], (given % each)[:, :, None], (taken % size)[:, None, :]]
        kept = torch.zeros_like(self.given.live)
        kept[taken.flatten()] = True
        value = self.given.value.masked_fill(kept, 0).view(self.groups, 1, -1, *[1] * (self.weight.dim() - 3))
        shift = (self.weight * value).sum(2).flatten(0, 1)[given.flatten()]
        bias = None if self.bias is None else self.bias[given.flatten()]
        if self.bordered and shift.ne(0).any():
            numbers = self.given.value.view(self.groups, -1)[group]
            at = numbers.abs().argmax(1)
            local = (taken % size == at[:, None]).int().argmax(1)
            carry = numbers[torch.arange(len(group)), at].masked_fill(numbers.abs().amax(1) == 0, 1)
            shift = shift.view(len(group), -1, *shift.shape[1:])
            weight[torch.arange(len(group)), :, local] += shift / carry.view(-1, *[1] * (shift.dim() - 1))
        elif shift.ne(0).any():
            bias = shift.flatten(1).sum(1) + (0 if bias is None else bias)
        weight = weight.transpose(1, 2).flatten(0, 1) if self.transposed else weight.flatten(0, 1)
        self.put(1, "weight", weight)
        self.put(2, "bias", bias)
        node.args = (x, *node.args[1:8], len(group))
        return given.flatten().view([-1 if axis == self.axis else 1 for axis in range(self.rank)])


class Norm(Layer):
    """Batch norm with running statistics, y = γ (x − μ) / √(σ² + ε) + β, or PReLU: one number per channel.

    Instance norm takes μ and σ of each channel from its places, so that a constant one gives β.
    """

    shares = True

    def __init__(self, plan: Plan, node: fx.Node) -> None:
        self.slopes, self.places = op_name(node) == "prelu", op_name(node) == "instance_norm"
        self.weights = (1,) if self.slopes else (1, 2) if self.places else (3, 4, 1, 2)
        if not self.slopes and not self.places and (node.args[3] is None or node.args[5]):
            raise LeftAlone("it has no running statistics")
        if self.places and not node.args[5]:
            raise LeftAlone("it takes its statistics from elsewhere")
        super().__init__(plan, node)
        self.name = layer_name(plan, next((node.args[i] for i in self.weights if node.args[i] is not None), None))
        x = plan.facts_of(self.source)
        self.tensors = {index: plan.tensor(node.args[index]) for index in self.weights}
        self.single = all(t is None or t.numel() == 1 for t in self.tensors.values())
        self.given = x if self.single else x.spread(x.axes(1))

    def facts(self) -> Facts:
        x, args = self.given, self.node.args
        axes = x.axes(1) if len(x.dims) > 1 else []
        along = [x.factors[axis] if axis in axes else 1 for axis in range(x.live.dim())]
        parts: list[Any] = [t if t is None or t.numel() == 1 else t.view(along) for t in self.tensors.values()]
        if self.slopes:
            return Facts.of(x.dims, x.live, torch.where(x.value > 0, x.value, parts[0] * x.value))
        *statistics, scale, shift = parts
        value: Any = x.value * 0
        if statistics:
            value = (x.value - statistics[0]) / (statistics[1] + args[7]).sqrt()
        value = value if scale is None else value * scale
        live = x.live if scale is None else x.live & scale.ne(0)
        return Facts.of(x.dims, live, value if shift is None else value + shift)

    def wants(self, wanted: Tensor) -> list[Tensor | None]:
        return [reduce_to(wanted, self.plan.facts_of(self.source).live.shape)]

    def edit(self, wanted: Tensor) -> Tensor:
        plan = self.plan
        facts, grid = plan.seen(self.source, self.given.dims, [] if self.single else self.given.axes(1))
        if self.single:
            return grid
        if len(self.calls) > 1:  # the channels that any call wants; what this one has not are not read
            target = product(from_line(facts, 1, self.shared()))
            self.node.replace_input_with(self.source, plan.aligned(self.node, self.source, (facts, grid), target))
            grid = target
        line = place(grid, facts, 1)
        if line is None:
            raise LeftAlone("its channels are laid out by other dimensions")
        names = {1: "weight", 2: "bias", 3: "running_mean", 4: "running_var"}
        for index, tensor in self.tensors.items():
            if tensor is not None:
                self.put(index, names[index], tensor[line])
        return grid

    def shared(self) -> Tensor:
        """The channels that any call of the norm wants."""
        found = torch.zeros(shape(self.node)[1], dtype=torch.bool)
        for rule in self.together():
            mask = self.plan.wanted[rule.node]
            found |= Facts(rule.given.dims, mask, mask.double() * 0).along(1).live
        return found if self.together() else ~found


class Embedding(Layer):
    """Rows of a table: its columns are channels."""

    weights = (0,)

    def __init__(self, plan: Plan, node: fx.Node) -> None:
        super().__init__(plan, node)
        self.inputs = [node.args[1]]  # type: ignore[list-item]
        table = plan.tensor(node.args[0])
        assert table is not None
        self.table = table

    def facts(self) -> Facts:
        live = (self.table != self.table[:1]).any(0)
        dims = tuple((size,) for size in shape(self.node))
        along = [1] * (len(dims) - 1) + [-1]
        return Facts.of(dims, live.view(along), self.table[0].view(along))

    def wants(self, wanted: Tensor) -> list[Tensor | None]:
        return [torch.ones_like(self.plan.facts_of(self.source).live)]

    def edit(self, wanted: Tensor) -> Tensor:
        columns = wanted.flatten().nonzero().flatten()
        restored = self.plan.restored(self.node, self.source)
        self.put(0, "weight", self.table[:, columns])
        self.node.args = (self.node.args[0], restored, *self.node.args[2:])
        return columns.view([1] * (wanted.dim() - 1) + [-1])
