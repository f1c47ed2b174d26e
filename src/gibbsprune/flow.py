"""What a network's own graph tells of its layers: whose outputs leave it, or go into a norm or a depthwise convolution.

There are two ways to a graph, torch.export for given inputs and tracing of the network's code, and networks that have
neither.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.fx import Node, Tracer
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from .looking import arguments, plain_eval, quiet
from .structures import PRUNABLE
from .weights import Layer, prunable

CONVOLUTIONS = tuple(kind for kind in PRUNABLE if kind is not nn.Linear)

MIXING = (
    *("linear", "addmm", "mm", "bmm", "matmul", "bilinear", "_grouped_mm", "lstm", "gru", "rnn_tanh", "rnn_relu"),
    *(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)),
)


#: Operations that treat every channel by itself, by which a filter is still that filter.
CHANNELWISE = {
    *("relu", "relu6", "hardtanh", "silu", "hardswish", "hardsigmoid", "gelu", "elu", "leaky_relu", "mish", "sigmoid"),
    *("tanh", "dropout", "feature_dropout", "clone", "contiguous", "alias", "pad", "constant_pad_nd", "batch_norm"),
}
CHANNELWISE_LAYERS = (
    *(_BatchNorm, nn.ReLU, nn.Hardtanh, nn.SiLU, nn.Hardswish, nn.Hardsigmoid, nn.GELU, nn.ELU, nn.LeakyReLU, nn.Mish),
    *(nn.Sigmoid, nn.Tanh, nn.Dropout, nn.Dropout2d, nn.Identity, nn.ZeroPad2d),
)

#: What undoes a factor of all that it reads, the first also where every channel has a bias.
CHANNEL_NORMS = {"batch_norm", "instance_norm"}
NORMS = CHANNEL_NORMS | {"group_norm", "layer_norm", "rms_norm"}
CHANNEL_NORM_LAYERS = (_BatchNorm, _InstanceNorm)
NORM_LAYERS = (*CHANNEL_NORM_LAYERS, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
#: What hands it on.
SCALED = {
    *("relu", "leaky_relu", "dropout", "feature_dropout", "clone", "contiguous", "alias", "pad", "constant_pad_nd"),
    *("permute", "transpose", "movedim", "reshape", "view", "flatten", "unflatten", "squeeze", "unsqueeze"),
    *(f"{kind}_pool{n}d" for kind in ("max", "avg", "adaptive_max", "adaptive_avg") for n in (1, 2, 3)),
}
SCALED_LAYERS = (
    *(nn.ReLU, nn.LeakyReLU, nn.Dropout, nn.Dropout2d, nn.Identity, nn.ZeroPad2d, nn.Flatten, nn.Unflatten),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
)


@dataclass
class Seen:
    """What is seen in a network's graph: the modules whose outputs leave it, those whose outputs only norms read, and
    the one before a depthwise one.

    ``owners`` are the steps that multiply by weights, with the module of these; ``exported`` whether the graph is that
    of torch.export, of operators and with shapes.
    """

    leaving: set[str] = field(default_factory=set)
    normed: set[str] = field(default_factory=set)
    before: dict[str, str] = field(default_factory=dict)
    owners: dict[Node, str] = field(default_factory=dict)
    exported: bool = False


def leaving(model: nn.Module, examples: Any = None) -> set[str]:
    """The names of the layers whose outputs leave the network, but for what has no such weights.

    They are found in the graph of the network: by torch.export where ``examples`` of its inputs are given, otherwise by
    tracing its own code. Where neither can be, the layer that was defined last is taken for the output. Of a recurrent
    module with several layers it is the last of them.

    Args:
        model: the network.
        examples: a tensor, a sequence of the arguments of ``forward``, or a dict of named ones.
    """
    return outputs(prunable(model), look(model, examples))


def outputs(layers: Mapping[str, Layer], seen: Seen | None) -> set[str]:
    """The layers that leave a network in which that was seen."""
    found = {layer.owner for layer in list(layers.values())[-1:]} if seen is None else seen.leaving
    return {name for name, layer in layers.items() if layer.owner in found and _last(layer)}


def _last(layer: Layer) -> bool:
    depth = getattr(layer.module, "num_layers", 1) if isinstance(layer.module, nn.RNNBase) else 1
    return depth == 1 or layer.parameter.removesuffix("_reverse").endswith(f"_l{depth - 1}")


def look(model: nn.Module, examples: Any = None) -> Seen | None:
    """What is seen in the network's graph; None where there is no graph of it."""
    if examples is not None and (exported := _exported(model, examples)) is not None:
        return exported
    names = {layer.module: layer.owner for layer in prunable(model).values()}
    before = [(module, dict(module.__dict__)) for module in model.modules()]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = _Layers(names).trace(model)
    except Exception:  # whatever the network's own code does with what is no tensor
        return None
    finally:
        for module, attributes in before:  # what the code has put aside meanwhile
            module.__dict__.clear()
            module.__dict__.update(attributes)
    seen = Seen()
    owners = seen.owners
    reached = {node for node in graph.nodes if node.op == "output"}
    for node in reversed(graph.nodes):  # each comes after its inputs
        if node.op == "call_module":
            parts = list(model.get_submodule(str(node.target)).modules())
        else:  # a function of a weight without its layer
            weights = [str(source.target) for source in node.all_input_nodes if source.op == "get_attr"]
            parts = [model.get_submodule(weight.rpartition(".")[0]) for weight in weights]
        inner = [names[part] for part in parts if part in names]
        if inner and node.op == "call_module":
            owners[node] = inner[-1]
        if node in reached:
            seen.leaving.update(inner[-1:])
            reached.update([] if inner else node.all_input_nodes)

    seen.before = _before(model, owners, lambda node: channelwise(model, node))
    seen.normed = _normed(model, owners)
    return seen


def _exported(model: nn.Module, examples: Any) -> Seen | None:
    """The same on the graph of torch.export; None where there is none."""
    args, kwargs = arguments(examples)
    with plain_eval(model), torch.no_grad(), quiet():
        try:
            program = torch.export.export(model, args, kwargs, strict=False)
        except Exception:  # of the network's own code or of the exporter's many steps
            return None
    weights: dict[Any, str] = {}  # what is computed from a weight alone, and of which
    for node in program.graph.nodes:
        named = program.graph_signature.inputs_to_parameters.get(node.name)
        if named is not None and node.meta["val"].dim() > 1:
            weights[node] = named
        elif node.op == "call_function" and node.all_input_nodes and all(n in weights for n in node.all_input_nodes):
            weights[node] = weights[node.all_input_nodes[0]]
    seen = Seen(exported=True)
    owners = seen.owners
    reached = {node for node in program.graph.nodes if node.op == "output"}
    for node in reversed(program.graph.nodes):
        matrices = [weights[part] for part in node.all_input_nodes if part in weights]
        if matrices and operator(node) in MIXING and node not in weights:
            owners[node] = matrices[0].rpartition(".")[0]
        if node in reached and node in owners:
            seen.leaving.add(owners[node])
        elif node in reached:
            reached.update(node.all_input_nodes)
    seen.before = _before(model, owners, lambda node: channelwise(model, node))
    seen.normed = _normed(model, owners)
    return seen


def operator(node: Node) -> str:
    """The name of a function, a method or an operator of torch; "" for anything else."""
    if node.op not in ("call_function", "call_method"):
        return ""
    parts = str(node.target).split(".")
    return parts[1] if parts[0] == "aten" else str(getattr(node.target, "__name__", node.target))


def channelwise(model: nn.Module, node: Node) -> bool:
    """Whether a step treats every channel of its first argument by itself."""
    if node.op == "call_module":
        return isinstance(model.get_submodule(str(node.target)), CHANNELWISE_LAYERS)
    return operator(node).strip("_") in CHANNELWISE


def _normed(model: nn.Module, owners: Mapping[Node, str]) -> set[str]:
    """The modules whose outputs are read by norms alone, which undo a factor of them, at every use."""

    def read(node: Node, by: Node, layers: tuple[type, ...], operations: Container[str]) -> bool:
        """Whether a step of such a kind reads a node, as the first of its arguments."""
        called = model.get_submodule(str(by.target)) if by.op == "call_module" else None
        kind = operator(by).strip("_") in operations if called is None else isinstance(called, layers)
        return kind and by.args[:1] == (node,)

    def undone(node: Node, biased: bool) -> bool:
        norms = (CHANNEL_NORM_LAYERS, CHANNEL_NORMS) if biased else (NORM_LAYERS, NORMS)
        return bool(node.users) and all(
            read(node, user, *norms)
            or (not biased and read(node, user, SCALED_LAYERS, SCALED) and undone(user, biased))
            for user in node.users
        )

    left = {
        owner for node, owner in owners.items()
        if not undone(node, getattr(model.get_submodule(owner), "bias", None) is not None)
    }  # fmt: skip
    return set(owners.values()) - left


def _before(model: nn.Module, owners: Mapping[Node, str], passes: Callable[[Node], bool]) -> dict[str, str]:
    """The module whose filters a depthwise convolution reads, each for itself, where it is one and used once."""
    found = {}
    used = Counter(owners.values())
    for node, owner in owners.items():
        module: Any = model.get_submodule(owner)
        depthwise = isinstance(module, CONVOLUTIONS) and 1 < int(module.groups) == module.in_channels  # type: ignore[arg-type]
        if not depthwise or used[owner] > 1:
            continue
        source: Any = node.args[0]
        while isinstance(source, Node) and source not in owners and passes(source):
            source = source.args[0]
        producer = owners.get(source, "")
        made: Any = model.get_submodule(producer)
        if isinstance(made, CONVOLUTIONS) and made.out_channels == module.in_channels and used[producer] == 1:
            found[owner] = producer
    return found


class _Layers(Tracer):
    """The network's own code, without hooks; a layer that can be pruned is one step, whatever its class.

    Tracing takes over every module call of the process. Those of other threads are let through.
    """

    def __init__(self, layers: Container[nn.Module]) -> None:
        super().__init__()
        self.layers, self.thread = layers, threading.get_ident()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m in self.layers or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        if threading.get_ident() != self.thread:
            return forward(*args, **kwargs)
        if self.is_leaf_module(m, self.path_of_module(m)):
            return super().call_module(m, forward, args, kwargs)
        return m.forward(*args, **kwargs)
