"""The modules that a compact network has beside ordinary layers, and ordinary layers in place of ATen operators."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from .aten import attribute, drop_dead, op_name

aten = torch.ops.aten
LANES = 16  # channels that a CPU computes at once: the last few up to a multiple of it are free


class Scatter(nn.Module):
    """y = base, then y[position] = x[source] along ``dims``, which are taken as one and then have ``sizes``.

    No source or position stands for all channels.
    """

    base: Tensor
    source: Tensor | None
    position: Tensor | None

    def __init__(
        self, dims: list[int], sizes: list[int], base: Tensor, source: Tensor | None, position: Tensor | None
    ) -> None:
        super().__init__()
        self.dims, self.sizes = dims, sizes
        self.register_buffer("base", None if position is None else base)
        self.register_buffer("source", source)
        self.register_buffer("position", position)

    def forward(self, x: Tensor) -> Tensor:
        dim, several = self.dims[0], len(self.dims) > 1
        if several:
            dim = x.dim() - len(self.dims)
            last = list(range(dim, x.dim()))
            x = x.movedim(self.dims, last).flatten(dim)
        if self.source is not None:
            x = x.index_select(dim, self.source)
        if self.position is not None:
            shape = list(x.shape)
            shape[dim] = len(self.base)
            base = self.base.to(x.dtype).view(-1, *[1] * (x.dim() - 1 - dim))
            x = base.expand(shape).index_copy(dim, self.position, x)
        return x.unflatten(dim, self.sizes).movedim(last, self.dims) if several else x


class Overwriting(nn.Module):
    """An operation that may write its result into its first input."""

    reuse = False  # whether nobody reads that input later
    kept = False  # whether layers that read it before may keep it for their gradients

    def owns(self, x: Tensor) -> bool:
        return self.reuse and not (torch.is_grad_enabled() and (self.kept or x.requires_grad))


class SumInto(Overwriting):
    """y = a + base, then y[position] += b[source] along ``axis``; no base stands for zero, no b for none of it."""

    base: Tensor | None
    source: Tensor | None
    position: Tensor | None

    def __init__(self, axis: int, base: Tensor | None, source: Tensor | None, position: Tensor | None) -> None:
        super().__init__()
        self.axis = axis
        self.register_buffer("base", base)
        self.register_buffer("source", source)
        self.register_buffer("position", position)

    def forward(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        own = self.owns(a)
        if self.base is not None:
            base = self.base.to(a.dtype).view(-1, *[1] * (a.dim() - 1 - self.axis))
            a, own = a.add_(base) if own else a + base, True
        if b is None:
            return a
        if self.source is not None:
            b = b.index_select(self.axis, self.source)
        if a.dtype != b.dtype:  # under autocast
            kind = torch.promote_types(a.dtype, b.dtype)
            own, a, b = own or a.dtype != kind, a.to(kind), b.to(kind)
        if self.position is None:
            return a.add_(b) if own else a + b
        if a.dtype == torch.float16 and torch.compiler.is_compiling():  # ONNX Runtime has no such sum in float16
            return a.index_copy(self.axis, self.position, a.index_select(self.axis, self.position) + b)
        return a.index_add_(self.axis, self.position, b) if own else a.index_add(self.axis, self.position, b)


class AddBorders(Overwriting):
    """y + Σ_c W_c * v_c for constant inputs v_c of a zero-padded convolution, a map of the image's size."""

    weight: Tensor

    def __init__(self, weight: Tensor, stride: Any, padding: Any, dilation: Any) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.options = (stride, padding, dilation)
        self._map: tuple[Any, Tensor] | None = None  # of the last image size and type

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return y + self.map(x)
        weight = self.weight
        version = None if weight.is_inference() else weight._version
        key = (x.shape[2:], y.dtype, weight.dtype, weight.device, weight.data_ptr(), version)
        found = self._map  # looked at once: another thread may replace it
        if found is None or found[0] != key:
            with torch.autocast(weight.device.type, enabled=False):
                found = self._map = (key, self.map(x).to(y.dtype))
        return y.add_(found[1]) if self.owns(y) else y + found[1]

    def map(self, x: Tensor) -> Tensor:
        """What to add, for images of the size of ``x``."""
        convolution: Any = (F.conv1d, F.conv2d, F.conv3d)[x.dim() - 3]
        return convolution(self.weight.new_ones(1, 1, *x.shape[2:]), self.weight, None, *self.options)


def add_into(own: Tensor, other: Tensor) -> Tensor:
    """The sum, written into ``own`` unless that is of another type than ``other``, as under autocast."""
    return own.add_(other) if own.dtype == other.dtype else own + other


def as_modules(module: fx.GraphModule) -> None:
    """Let convolutions, dense layers, batch norms and dropout be modules again, under their old names.

    So the network trains and is profiled like any other.
    """
    readers = Counter(id(attribute(module, n)) for n in module.graph.nodes if n.op == "get_attr" for _ in n.users)
    for node in list(module.graph.nodes):
        made = _made(module, node, readers)
        if made is None:
            continue
        name, layer = made
        if any(
            _reads(a, f"{name}.weight") and not isinstance(attribute(module, a), nn.Parameter) for a in node.args[1:5]
        ):
            continue  # a constant, which nobody trains
        for which in ("weight", "bias", "running_mean", "running_var"):
            old = next((a for a in node.args[1:5] if _reads(a, f"{name}.{which}")), None)
            if old is not None:
                setattr(layer, which, attribute(module, old))
        module.add_submodule(name, layer.to(_device(layer)).eval())
        node.op, node.target, node.args, node.kwargs = "call_module", name, (node.args[0],), {}
    drop_dead(module.graph)
    module.recompile()
    module.delete_all_unused_submodules()


def _reads(node: Any, name: str) -> bool:
    return isinstance(node, fx.Node) and node.op == "get_attr" and node.target == name


def _device(layer: nn.Module) -> torch.device:
    return next((t.device for t in (*layer.parameters(), *layer.buffers())), torch.device("cpu"))


def _made(module: fx.GraphModule, node: Any, readers: Counter[int]) -> tuple[str, Any] | None:
    """The name and the layer that a node stands for, where its parameters are that layer's own and nobody else's."""
    kind, args = op_name(node), node.args
    if kind == "dropout" and isinstance(args[0], fx.Node):
        stack = list((node.meta.get("nn_module_stack") or {"": ("", None)}).values())[-1]
        name = stack[0] if str(stack[1]).endswith("Dropout") else ""
        free = name and not hasattr(module, name) and _free(module, name)
        return (name if free else f"dropout_{node.name}", nn.Dropout(args[1]))
    if kind not in ("convolution", "linear", "batch_norm"):
        return None
    tensors = [a for a in args[1 : 5 if kind == "batch_norm" else 3] if isinstance(a, fx.Node)]
    if not tensors or any(a.op != "get_attr" or readers[id(attribute(module, a))] > 1 for a in tensors):
        return None
    name = str(tensors[0].target).rpartition(".")[0]
    holder = module.get_submodule(name)
    own = {n for n, _ in (*holder.named_parameters(), *holder.named_buffers())}
    expected = {str(a.target).removeprefix(name + ".") for a in tensors}
    if not name or type(holder) is not nn.Module or expected != own or list(holder.children()):
        return None
    if kind == "batch_norm":
        if not {"running_mean", "running_var"} <= own or ("weight" in own) != ("bias" in own):
            return None
        rank = node.args[0].meta["val"].dim()
        norm: Any = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[rank]
        width = len(attribute(module, tensors[-1]))
        momentum, eps = args[6], args[7]
        return name, norm(width, eps=eps, momentum=momentum, affine="weight" in own, device="meta").to_empty(
            device=_device(holder)
        )
    if "weight" not in own or own - {"weight", "bias"}:
        return None
    weight: Any = holder.weight
    kind_of: Any
    with torch.device("meta"):
        if kind == "linear":
            return name, nn.Linear(weight.shape[1], weight.shape[0], bias="bias" in own)
        stride, padding, dilation, transposed, output_padding, groups = args[3:9]
        rank = weight.dim() - 2
        options: dict[str, Any] = {"stride": tuple(stride), "padding": tuple(padding), "dilation": tuple(dilation)}
        options |= {"groups": groups, "bias": "bias" in own}
        if transposed:
            kind_of = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[rank - 1]
            sizes = (weight.shape[0], weight.shape[1] * groups)
            return name, kind_of(*sizes, tuple(weight.shape[2:]), output_padding=tuple(output_padding), **options)
        kind_of = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1]
        return name, kind_of(weight.shape[1] * groups, weight.shape[0], tuple(weight.shape[2:]), **options)


def _free(module: fx.GraphModule, name: str) -> bool:
    try:
        module.get_submodule(name)
    except AttributeError:
        return True
    return False
