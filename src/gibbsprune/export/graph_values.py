"""A compact network as plain values for JSON, and back: known operators and layers alone, whatever the values say.

- ``tensors``: what each tensor is, ``[name, "parameter" | "frozen" | "buffer", name in the file]``; tied ones have the
  same name in the file;
- ``layers``: the modules that the graph calls, by name: a class of :data:`LAYERS` and its arguments;
- ``nodes``: the graph in order: ``["placeholder", name]``, ``["tensor", name]``, ``["layer", name, [inputs]]``,
  ``["call", function, [arguments], {named ones}]``, ``["record", {named}]``, ``["output", value]``. Values refer to
  earlier nodes by their number.

A ``function`` is an ATen operator of :data:`CALLED`, or one of :data:`FUNCTIONS`: arithmetic of sizes and two ways to
reuse memory. Nothing else can be called, and names that become code are checked to be names.
"""

from __future__ import annotations

import keyword
import math
import operator
import re
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from ..errors import UserError
from .aten import OPERATORS, attribute
from .compaction import CompactReport
from .parts import AddBorders, Overwriting, Scatter, SumInto, add_into

#: Operators that a file may call beside those that graphs keep whole: comparisons, indices, constants, some functions.
CALLED = OPERATORS | {
    *("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "logical_xor", "isnan", "isinf"),
    *("bitwise_and", "bitwise_or", "bitwise_not", "bitwise_xor", "any", "all", "argmax", "argmin", "max", "min"),
    *("arange", "full", "full_like", "zeros", "zeros_like", "ones", "ones_like", "scalar_tensor", "eye", "tril"),
    *("triu", "topk"),
    *("index", "index_put", "index_add", "index_copy", "gather", "scatter", "scatter_add", "select_scatter", "sort"),
    *("slice_scatter", "nonzero", "masked_scatter", "cumsum", "cumprod", "var", "std", "prod", "norm", "one_hot"),
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "atan2", "sinh", "cosh", "tan", "ceil", "trunc", "expm1"),
    *("log1p", "log2", "log10", "fmod", "remainder", "exp2", "erfinv", "logsumexp", "_softmax", "_log_softmax"),
    *("mm", "addmm", "baddbmm", "addbmm", "dot", "mv", "outer", "einsum", "_adaptive_avg_pool2d", "diagonal"),
    *("_adaptive_avg_pool3d", "native_layer_norm", "native_group_norm", "reflection_pad1d", "reflection_pad2d"),
    *("reflection_pad3d", "replication_pad1d", "replication_pad2d", "replication_pad3d", "col2im", "im2col"),
    *("grid_sampler_2d", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "clone", "alias", "detach", "narrow"),
    *("split_with_sizes", "split", "chunk", "unbind", "movedim", "contiguous", "glu", "sym_size", "sym_numel"),
    *("linalg_vector_norm", "bincount", "histc", "bucketize", "searchsorted", "repeat_interleave", "_grouped_mm"),
}  # fmt: skip

#: The other functions: arithmetic of sizes, and operations that overwrite what nobody reads again.
FUNCTIONS: dict[str, Any] = {
    **{f"operator.{name}": getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "truediv", "mod")},
    **{f"operator.{name}": getattr(operator, name) for name in ("pow", "neg", "eq", "ne", "lt", "le", "gt", "ge")},
    "operator.getitem": operator.getitem,
    **{name: getattr(torch, name) for name in ("sym_max", "sym_min", "sym_int", "sym_float", "sym_not", "sym_ite")},
    **{f"math.{name}": getattr(math, name) for name in ("floor", "ceil", "trunc")},
    "relu": F.relu,
    "add_into": add_into,
}
_NAMES = {function: name for name, function in FUNCTIONS.items()}

_CONVOLUTION = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")
_NORM = ("num_features", "eps", "momentum", "affine")
#: The classes of modules that a file may name, with the attributes that are their arguments.
LAYERS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "Linear": (nn.Linear, ("in_features", "out_features")),
    "Dropout": (nn.Dropout, ("p",)),
    **{f"Conv{n}d": (getattr(nn, f"Conv{n}d"), _CONVOLUTION) for n in (1, 2, 3)},
    **{f"ConvTranspose{n}d": (getattr(nn, f"ConvTranspose{n}d"), (*_CONVOLUTION, "output_padding")) for n in (1, 2, 3)},
    **{f"BatchNorm{n}d": (getattr(nn, f"BatchNorm{n}d"), _NORM) for n in (1, 2, 3)},
    "Scatter": (Scatter, ("dims", "sizes")),
    "SumInto": (SumInto, ("axis",)),
    "AddBorders": (AddBorders, ("options",)),
}
_PART = r"(?!__)[A-Za-z0-9_]+"


class Strange(Exception):
    """What a file must not say."""


class Outputs(dict[str, Any]):
    """Outputs by name, as items, as attributes and in order: ``y["logits"]``, ``y.logits``, ``y[0]``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, key: str | int) -> Any:
        return list(self.values())[key] if isinstance(key, int) else super().__getitem__(key)


pytree.register_pytree_node(
    Outputs,
    lambda found: (list(found.values()), list(found)),
    lambda values, names: Outputs(zip(names, values)),
    serialized_type_name="gibbsprune.export.portable.Outputs",
)


def as_values(model: fx.GraphModule) -> dict[str, Any]:
    """The network as plain values; what has no such form is refused by name."""
    return _Writer(model).network()


def from_values(network: Mapping[str, Any], tensors: Mapping[str, Tensor], device: torch.device) -> fx.GraphModule:
    """The network in eval mode on ``device``; :class:`Strange` where the values are none of :func:`as_values`."""
    return _Reader(network, tensors, device).module()


# -- writing -----------------------------------------------------------------------------------------------------------


class _Writer:
    """A graph module as plain values; what has no form in a file is refused by name."""

    def __init__(self, model: fx.GraphModule) -> None:
        if type(model.graph._codegen) is not fx.CodeGen:
            raise UserError("the network takes containers of tensors: allowed are networks whose inputs are tensors")
        self.model = model
        self.numbers = {node: i for i, node in enumerate(model.graph.nodes)}

    def network(self) -> dict[str, Any]:
        nodes = [self.node(node) for node in self.model.graph.nodes]
        called = sorted({str(n.target) for n in self.model.graph.nodes if n.op == "call_module"})
        report = getattr(self.model, "report", None)
        told = None
        if isinstance(report, CompactReport):
            told = [report.parameters_before, report.parameters_after, report.difference, report.left, report.larger]
        return {
            "tensors": self.tensors(), "layers": {name: self.layer(name) for name in called}, "nodes": nodes,
            "report": told,
        }  # fmt: skip

    def tensors(self) -> list[list[str]]:
        found: dict[str, Tensor] = dict(self.model.named_parameters(remove_duplicate=False))
        found |= dict(self.model.named_buffers(remove_duplicate=False))
        for node in self.model.graph.find_nodes(op="get_attr"):
            value = attribute(self.model, node)
            if not isinstance(value, Tensor):
                raise UserError(f"'{node.target}' is a {type(value).__name__}, which a file of a network cannot hold")
            found.setdefault(str(node.target), value)
        first: dict[int, str] = {}
        rows = []
        for name, value in found.items():
            kind = "buffer" if not isinstance(value, nn.Parameter) else "parameter" if value.requires_grad else "frozen"
            rows.append([name, kind, first.setdefault(id(value), name)])
        return rows

    def layer(self, name: str) -> list[Any]:
        layer = self.model.get_submodule(name)
        kind = type(layer).__name__
        if kind not in LAYERS or type(layer) is not LAYERS[kind][0]:
            raise UserError(f"'{name}' is a {kind}: allowed in a file are {', '.join(LAYERS)}")
        if getattr(layer, "padding_mode", "zeros") != "zeros":
            raise UserError(f"'{name}' pads with {layer.padding_mode!r}: allowed in a file are zeros")
        options = {option: self.value(getattr(layer, option)) for option in LAYERS[kind][1]}
        if "bias" in layer._parameters and kind.startswith(("Linear", "Conv")):
            options["bias"] = layer.bias is not None
        if isinstance(layer, Overwriting):
            options |= {"reuse": layer.reuse, "kept": layer.kept}
        return [kind, options]

    def node(self, node: fx.Node) -> list[Any]:
        if node.op == "placeholder":
            if node.args:
                raise UserError(f"the network's input '{node.target}' has a default, which a file cannot hold")
            return ["placeholder", str(node.target)]
        if node.op == "get_attr":
            return ["tensor", str(node.target)]
        if node.op == "output":
            return ["output", self.value(node.args[0])]
        args, named = [self.value(a) for a in node.args], {k: self.value(v) for k, v in node.kwargs.items()}
        if node.op == "call_module":
            return ["layer", str(node.target), args]
        if isinstance(node.target, type) and issubclass(node.target, Mapping) and not args:
            return ["record", named]
        return ["call", self.function(node), args, named]

    def function(self, node: fx.Node) -> str:
        target: Any = node.target
        if isinstance(target, torch._ops.OpOverload):
            name = str(target)
            if _operator(name) is target:
                return name
        elif callable(target) and target in _NAMES:
            return _NAMES[target]
        raise UserError(f"the network calls {target}, which is not among the operators that a file may name")

    def value(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            return {"node": self.numbers[value]}
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": str(value)}
        if isinstance(value, (tuple, list)):
            items = [self.value(item) for item in value]
            return {"tuple": items} if isinstance(value, tuple) else items
        if isinstance(value, Mapping):
            return {"dict": [[self.value(k), self.value(v)] for k, v in value.items()]}
        if isinstance(value, slice):
            return {"slice": [self.value(value.start), self.value(value.stop), self.value(value.step)]}
        if isinstance(value, torch.device):
            return {"device": None}  # wherever it is loaded
        for kind in (torch.dtype, torch.layout, torch.memory_format):
            if isinstance(value, kind):
                return {kind.__name__: str(value).removeprefix("torch.")}
        raise UserError(f"the network holds a {type(value).__name__}, which a file of a network cannot hold")


# -- reading -----------------------------------------------------------------------------------------------------------


def _operator(name: str) -> Any:
    """An ATen operator by its full name, if a file may call it: a known one that writes into none of its arguments."""
    found = re.fullmatch(r"aten\.([a-z0-9_]+)\.([A-Za-z0-9_]+)", name)
    if found and found[1] in CALLED and found[2] in getattr(torch.ops.aten, found[1]).overloads():
        op = getattr(getattr(torch.ops.aten, found[1]), found[2])
        return None if op._schema.is_mutable else op
    return None


def _function(name: Any) -> Any:
    found = FUNCTIONS.get(name) or _operator(name) if isinstance(name, str) else None
    if found is None:
        raise Strange(f"it calls {str(name)[:60]!r}, which is not among the operators that a file may name")
    return found


def _word(name: Any) -> str:
    """A name that may become a part of code."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or keyword.iskeyword(name):
        raise Strange(f"{str(name)[:60]!r} is no name of an argument")
    return name


def _path(name: Any) -> str:
    """The name of a tensor or layer."""
    if not isinstance(name, str) or not re.fullmatch(rf"{_PART}(\.{_PART})*", name):
        raise Strange(f"{str(name)[:60]!r} is no name of a tensor or layer")
    return name


class _Reader:
    """Plain values as a graph module; anything that is not what :class:`_Writer` writes is refused."""

    def __init__(self, network: Mapping[str, Any], tensors: Mapping[str, Tensor], device: torch.device) -> None:
        self.network, self.device = network, device
        self.stored = {name: tensor.to(device) for name, tensor in tensors.items()}
        self.root, self.graph = nn.Module(), fx.Graph()
        self.nodes: list[fx.Node] = []
        self.made: dict[str, Tensor] = {}

    def module(self) -> fx.GraphModule:
        for name, row in self.network["layers"].items():
            self.put(_path(name), lambda owner, last, row=row: owner.add_module(last, self.layer(*row)))
        tied: dict[tuple[str, str], Tensor] = {}
        for name, kind, first in self.network["tensors"]:
            if kind not in ("parameter", "frozen", "buffer"):
                raise Strange(f"the tensor {name} is a {str(kind)[:60]!r}")
            value = self.stored[first]
            if kind != "buffer":
                value = tied.setdefault((first, kind), nn.Parameter(value, requires_grad=kind == "parameter"))
            self.made[_path(name)] = value
            self.put(name, lambda owner, last, value=value, name=name: self.fill(owner, last, value, name))
        for name in self.network["layers"]:
            for own, value in (*(layer := self.root.get_submodule(name)).named_parameters(), *layer.named_buffers()):
                if value.device.type == "meta":
                    raise Strange(f"it has no tensor '{name}.{own}'")
        for row in self.network["nodes"]:
            self.nodes.append(self.node(row))
        self.graph.lint()
        module = fx.GraphModule(self.root, self.graph, "Compact")
        module.report = self.report(self.network["report"])  # type: ignore[assignment]
        return module.eval()

    def report(self, told: Any) -> CompactReport | None:
        if told is None:
            return None
        before, after, difference, *names = told
        left, larger = ({str(k): str(v) for k, v in found.items()} for found in names)
        return CompactReport(int(before), int(after), float(difference), left, larger)

    def put(self, name: str, how: Any) -> None:
        """Call ``how`` with the module that holds ``name``, made where there is none, and the last part of it."""
        owner, (*parts, last) = self.root, name.split(".")
        for part in parts:
            if part not in owner._modules:
                owner.add_module(part, nn.Module())
            owner = owner._modules[part]  # type: ignore[assignment]
        how(owner, last)

    def fill(self, owner: nn.Module, last: str, value: Tensor, name: str) -> None:
        """Give a module one of its tensors: those of layers exist already, and must have the size that they say."""
        for held, kind in ((owner._parameters, nn.Parameter), (owner._buffers, Tensor)):
            if last in held:
                before: Any = held[last]
                free = before is None or type(owner) in (Scatter, SumInto, AddBorders)
                if not isinstance(value, kind) or not (free or before.shape == value.shape):
                    raise Strange(f"'{name}' is {tuple(value.shape)}, which does not fit its layer")
                held[last] = value  # type: ignore[assignment]
                return
        if type(owner) is not nn.Module:
            raise Strange(f"'{name}' belongs to a layer that has no such tensor")
        if isinstance(value, nn.Parameter):
            owner.register_parameter(last, value)
        else:
            owner.register_buffer(last, value)

    def layer(self, kind: str, options: dict[str, Any]) -> nn.Module:
        """A layer without memory; its tensors come from the file."""
        if kind not in LAYERS:
            raise Strange(f"it has a layer of the class {str(kind)[:60]!r}; allowed are {', '.join(LAYERS)}")
        made, names = LAYERS[kind]
        flags = {name: options[name] for name in ("reuse", "kept", "bias") if name in options}
        given = {name: self.value(options[name]) for name in names}
        if len(flags) + len(given) < len(options) or not all(isinstance(flag, bool) for flag in flags.values()):
            raise Strange(f"a layer of the class {kind} has options that those have not")
        layer: nn.Module
        with torch.device("meta"):
            if made is Scatter:
                layer = Scatter(given["dims"], given["sizes"], torch.zeros(0), None, None)
            elif made is SumInto:
                layer = SumInto(given["axis"], None, None, None)
            elif made is AddBorders:
                layer = AddBorders(torch.zeros(0), *given["options"])
            else:
                layer = made(**given, **flags)
        if isinstance(layer, Overwriting):
            layer.reuse, layer.kept = flags["reuse"], flags["kept"]
        return layer

    def node(self, row: list[Any]) -> fx.Node:
        what, rest = row[0], row[1:]
        if what == "placeholder":
            return self.graph.placeholder(_word(rest[0]))
        if what == "tensor":
            if rest[0] not in self.made:
                raise Strange(f"it has no tensor {str(rest[0])[:60]!r}")
            return self.graph.get_attr(rest[0])
        if what == "output":
            return self.graph.output(self.value(rest[0]))
        if what == "layer":
            if rest[0] not in self.network["layers"]:
                raise Strange(f"it has no layer {str(rest[0])[:60]!r}")
            return self.graph.call_module(rest[0], tuple(self.value(rest[1])))
        if what == "record":
            return self.graph.call_function(Outputs, (), self.named(rest[0]))
        if what == "call":
            return self.graph.call_function(_function(rest[0]), tuple(self.value(rest[1])), self.named(rest[2]))
        raise Strange(f"it has a node of the kind {str(what)[:60]!r}")

    def named(self, values: dict[str, Any]) -> dict[str, Any]:
        return {_word(name): self.value(value) for name, value in values.items()}

    def value(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if not isinstance(value, dict):
            return value
        if len(value) != 1:
            raise Strange(f"it has a value {str(value)[:60]!r}")
        ((kind, inner),) = value.items()
        if kind == "node":
            if type(inner) is not int or not 0 <= inner < len(self.nodes):
                raise Strange(f"a node reads {str(inner)[:60]!r}, which is none before it")
            return self.nodes[inner]
        if kind == "float" and inner in ("inf", "-inf", "nan"):
            return float(inner)
        if kind == "tuple":
            return tuple(self.value(item) for item in inner)
        if kind == "dict":
            return {self.value(k): self.value(v) for k, v in inner}
        if kind == "slice":
            return slice(*(self.value(item) for item in inner))
        if kind == "device" and inner is None:
            return self.device
        kinds = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}
        found = getattr(torch, inner, None) if kind in kinds and isinstance(inner, str) else None
        if kind in kinds and isinstance(found, kinds[kind]):
            return found
        raise Strange(f"it has a value {str(value)[:60]!r}")
