"""Layers with weights: convolutions, dense layers and norms, made smaller without changing their function.

A layer y_o = b_o + Σ_c W_oc * x_c (* a convolution, or a product) whose input channel c is constant v_c and is
not kept adds Σ_c v_c (W_oc * 1) to its output. Without zero padding that is a number, and goes into the bias. With
zero padding W_oc * 1 is smaller at the borders; then one constant input channel d with v_d ≠ 0 is kept to carry
them all: W_od ← W_od + Σ_c W_oc v_c / v_d, tap by tap, which is exact at every place and for every input size. Where
that one channel more would be dear, Σ_c W_oc v_c * 1 is computed once for the image's size and added as a map.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from gibbsprune.export.plan import LANES, AddBorders, Facts, LeftAlone, Plan, carrier, ease, shape_of

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Rule:
    """How one operation treats channels: facts forwards, wants backwards, then the edit of the graph."""

    loss = ""  # what keeps constant channels from staying constant, once the facts are known

    def __init__(self, plan: Plan, node: fx.Node) -> None:
        self.plan, self.node = plan, node
        self.inputs = [i for i in node.all_input_nodes if i.meta.get("tensor_meta") is not None]

    @property
    def source(self) -> fx.Node:
        return self.inputs[0]

    def facts(self) -> Facts | None:
        raise NotImplementedError

    def wants(self, wanted: Tensor) -> list[Tensor]:
        """The channels wanted of each input when these are wanted of the output."""
        raise NotImplementedError

    def edit(self, wanted: Tensor) -> Tensor:
        """Make the operation smaller, and tell which channels its output keeps."""
        raise NotImplementedError


def parameter(old: Any, new: Tensor) -> nn.Parameter:
    """New values for a parameter, of its type."""
    return nn.Parameter(new.to(old.dtype).contiguous(), requires_grad=old.requires_grad)


class Mix(Rule):
    """Convolution (ordinary or transposed, one group) or dense layer: every output reads every input."""

    def __init__(self, plan: Plan, node: fx.Node, layer: Any) -> None:
        super().__init__(plan, node)
        self.layer = layer
        self.dense = isinstance(layer, nn.Linear)
        self.transposed = isinstance(layer, TRANSPOSED)
        dims = len(shape_of(self.source))
        if dims != layer.weight.dim() if not self.dense else dims < 2:
            raise LeftAlone("its input has no batch dimension")
        self.given = plan.facts_on(self.source, dims - 1 if self.dense else 1)
        self.weight = layer.weight.detach().cpu().double()
        if self.transposed:
            self.weight = self.weight.transpose(0, 1)
        self.reach = self.weight.flatten(2).ne(0).any(2) if not self.dense else self.weight.ne(0)
        self.bordered = not self.dense and _bordered(layer)

    def shift(self, rows: Tensor, values: Tensor) -> Tensor:
        """Σ_c W_oc v_c, tap by tap, for these outputs o."""
        return torch.einsum("oi...,i->o...", self.weight[rows], values)

    def facts(self) -> Facts:
        everything = torch.ones(len(self.weight), dtype=torch.bool)
        shift = self.shift(everything, self.given.value).reshape(len(everything), -1)
        live = (self.reach & self.given.live).any(1)
        if self.bordered:
            live |= shift.ne(0).any(1)
        bias = 0 if self.layer.bias is None else self.layer.bias.detach().cpu().double()
        return Facts.of(self.given.axis, live, bias + (0 if self.bordered else shift.sum(1)) + torch.zeros(len(live)))

    def wants(self, wanted: Tensor) -> list[Tensor]:
        read = self.reach[wanted].any(0)
        channels = read & self.given.live
        if self.bordered and (read & self.given.value.ne(0)).any() and not self.mapped(int(channels.sum())):
            channels[carrier(self.given, torch.ones_like(read))] = True
        return [channels]

    def mapped(self, channels: int) -> bool:
        """Whether constants at borders come as a map: where one more channel would open another set of lanes."""
        return not self.transposed and channels > 0 and channels % LANES == 0

    def cost(self, outputs: int) -> int:
        """Multiply-adds at one place of the output, with this many outputs, for the live inputs."""
        taps = self.weight[0, 0].numel() if not self.dense else 1
        return -(-outputs // LANES) * LANES * taps * int((self.reach.any(0) & self.given.live).sum())

    def edit(self, wanted: Tensor) -> Tensor:
        kept = self.plan.kept_on(self.source, self.given.axis)
        layer, weight = self.layer, self.weight[wanted][:, kept]
        shift = self.shift(wanted, self.given.value.masked_fill(kept, 0))
        bias = None if layer.bias is None else layer.bias.detach().cpu().double()[wanted]
        if self.bordered and shift.ne(0).any():
            channel = carrier(self.given, kept)
            if kept[channel] and self.given.value[channel].ne(0):
                weight[:, int(kept[:channel].sum())] += shift / self.given.value[channel]
            else:
                options = (layer.stride, layer.padding, layer.dilation)
                self.plan.borders[self.node] = AddBorders(shift[:, None].to(self.plan.dtype), *options)
        elif shift.ne(0).any():
            bias = shift.reshape(len(shift), -1).sum(1) + (0 if bias is None else bias)
        device = layer.weight.device
        layer.weight = parameter(layer.weight, (weight.transpose(0, 1) if self.transposed else weight).to(device))
        if bias is not None:
            layer.bias = parameter(layer.weight, bias.to(device))
        _resize(layer, int(kept.sum()), int(wanted.sum()))
        return wanted


class Grouped(Rule):
    """Convolution in groups, depthwise ones among them: groups go as a whole, constants come in as channels."""

    def __init__(self, plan: Plan, node: fx.Node, layer: Any) -> None:
        super().__init__(plan, node)
        self.layer = layer
        if isinstance(layer, TRANSPOSED):
            raise LeftAlone("it is a transposed convolution in groups")
        if len(shape_of(self.source)) != layer.weight.dim():
            raise LeftAlone("its input has no batch dimension")
        self.given = plan.facts_on(self.source, 1)
        self.groups, self.each = layer.groups, layer.weight.shape[1]
        weight = layer.weight.detach().cpu().double()
        self.weight = weight.reshape(self.groups, len(weight) // self.groups, self.each, -1)
        self.reach = self.weight.ne(0).any(3)

    def facts(self) -> Facts:
        value, live = (x.view(self.groups, 1, self.each) for x in (self.given.value, self.given.live))
        shift = (self.weight * value[..., None]).sum(2)
        alive = (self.reach & live).any(2)
        bordered = _bordered(self.layer)
        if bordered:
            alive |= shift.ne(0).any(2)
        bias = 0 if self.layer.bias is None else self.layer.bias.detach().cpu().double()
        number = (torch.zeros_like(shift) if bordered else shift).sum(2).flatten()
        return Facts.of(1, alive.flatten(), number + bias)

    def wants(self, wanted: Tensor) -> list[Tensor]:
        groups = wanted.view(self.groups, -1).any(1)
        read = (self.reach.any(1) & groups[:, None]).flatten()
        return [ease(groups.repeat_interleave(self.each), read & self.given.live)]

    def edit(self, wanted: Tensor) -> Tensor:
        layer = self.layer
        groups = wanted.view(self.groups, -1).any(1)
        inputs = groups.repeat_interleave(self.each)
        outputs = groups.repeat_interleave(len(wanted) // self.groups)
        self.node.replace_input_with(self.source, self.plan.align(self.node, self.source, inputs, 1))
        rows = outputs.to(layer.weight.device)
        if layer.bias is not None:
            layer.bias = parameter(layer.bias, layer.bias.detach()[rows])
        layer.weight = parameter(layer.weight, layer.weight.detach()[rows])
        layer.groups = int(groups.sum())
        _resize(layer, int(inputs.sum()), int(outputs.sum()))
        return outputs


class Norm(Rule):
    """Batch norm with running statistics, y = γ (x − μ) / √(σ² + ε) + β, or PReLU: one number per channel."""

    def __init__(self, plan: Plan, node: fx.Node, layer: Any) -> None:
        super().__init__(plan, node)
        self.layer = layer
        if isinstance(layer, NORMS) and layer.running_mean is None:
            raise LeftAlone("it has no running statistics")
        self.given = plan.facts_on(self.source, 1)

    def facts(self) -> Facts:
        layer, value, live = self.layer, self.given.value[None], self.given.live
        if isinstance(layer, nn.PReLU):
            return Facts.of(1, live, F.prelu(value, layer.weight.detach().cpu().double())[0])
        names = ("running_mean", "running_var", "weight", "bias")
        mean, var, scale, shift = (
            None if (v := getattr(layer, n)) is None else v.detach().cpu().double() for n in names
        )
        result = F.batch_norm(value, mean, var, scale, shift, eps=layer.eps)[0]
        return Facts.of(1, live if scale is None else live & scale.ne(0), result)

    def wants(self, wanted: Tensor) -> list[Tensor]:
        return [wanted]

    def edit(self, wanted: Tensor) -> Tensor:
        layer, kept = self.layer, self.plan.kept_on(self.source, 1)
        for name in ("weight", "bias", "running_mean", "running_var"):
            value = getattr(layer, name, None)
            if isinstance(value, nn.Parameter):
                setattr(layer, name, parameter(value, value.detach()[kept.to(value.device)]))
            elif value is not None:
                setattr(layer, name, value[kept.to(value.device)].clone())
        count = "num_parameters" if isinstance(layer, nn.PReLU) else "num_features"
        setattr(layer, count, int(kept.sum()))
        return kept


def _bordered(layer: Any) -> bool:
    """Whether a constant input gives an output that is not the same everywhere: zero padding, or transposed."""
    if isinstance(layer, TRANSPOSED):
        return True
    if layer.padding_mode != "zeros" or layer.padding == "valid":
        return False
    if layer.padding == "same":
        return any(size > 1 for size in layer.kernel_size)
    return any(size > 0 for size in layer.padding)


def _resize(layer: Any, inputs: int, outputs: int) -> None:
    names = ("in_features", "out_features") if isinstance(layer, nn.Linear) else ("in_channels", "out_channels")
    setattr(layer, names[0], inputs)
    setattr(layer, names[1], outputs)
