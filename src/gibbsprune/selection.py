"""Which layers to prune, by name pattern, by type or by a predicate, and how far."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.fx import Tracer
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from .checks import check_sparsity
from .errors import UserError
from .looking import arguments, plain_eval
from .structures import PRUNABLE, Structure

Selector = str | type | Callable[[str, nn.Module], bool]
Selectors = Selector | Iterable[Selector] | None
Sparsity = float | Mapping[str, float] | Callable[[str], float]

RULES = "allowed are name patterns, types and functions of (name, module), one or several"
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
MIXING = ("linear", "addmm", "matmul", *(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)))
CONVOLUTIONS = tuple(kind for kind in PRUNABLE if kind is not nn.Linear)


def select(
    model: nn.Module,
    structure: Structure,
    include: Selectors = None,
    exclude: Selectors = None,
    examples: Any = None,
) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """The layers to prune by name, and the others that could be pruned with the reason why they are not.

    Without ``include`` all convolutions and Linears are taken but those of :func:`spared`. A rule that matches nothing
    is an error.

    Args:
        model: any module.
        structure: what is pruned; with filters more layers are spared.
        include: the layers to take, by name patterns (``"stage1.*"``), module types or functions of (name, module).
        exclude: the layers to leave out, in the same way.
        examples: inputs of the model, for :func:`leaving`.
    """
    candidates: dict[str, nn.Module] = {n: m for n, m in model.named_modules() if isinstance(m, PRUNABLE)}
    if not candidates:
        raise UserError("the model has nothing to prune: it holds no convolution and no Linear layer")
    if include is None:
        skipped = spared(model, candidates, structure, examples)
    else:
        chosen = _matching(candidates, include, "include")
        skipped = {name: "not included" for name in candidates if name not in chosen}
    if exclude is not None:
        skipped |= dict.fromkeys(_matching(candidates, exclude, "exclude"), "excluded")
    layers = {name: module for name, module in candidates.items() if name not in skipped}
    if not layers:
        raise UserError("the model has nothing to prune: include and exclude leave no layer")
    _check(model, layers)
    return layers, skipped


def spared(
    model: nn.Module,
    candidates: Mapping[str, nn.Module],
    structure: Structure,
    examples: Any = None,
) -> dict[str, str]:
    """The layers that are not pruned by default, with the reason; never all of them.

    They are the layers whose outputs leave the network, the first convolution, which sees the data, and with filters
    the projections of residual shortcuts, known as 1×1 convolutions with a stride: their outputs are added to others.

    Args:
        model: the network.
        candidates: its layers that could be pruned, by name.
        structure: what is pruned.
        examples: inputs of the model, for :func:`leaving`.
    """
    outputs = leaving(model, examples)
    if structure.name == "filter" and _leaving(model, examples) is None:
        warnings.warn(
            f"the network has no graph, so its last layer, {', '.join(outputs)}, is taken for its only output: give "
            "example_inputs, or name the layers of other outputs in exclude",
            stacklevel=4,
        )
    convolutions = [name for name, module in candidates.items() if isinstance(module, CONVOLUTIONS)]
    reasons = {
        "its outputs leave the network": sorted(outputs),
        "first convolution": [name for name in convolutions if name not in outputs][:1],
        "projection of a shortcut": [name for name in convolutions if _projects(candidates[name])],
    }
    if structure.name != "filter":
        del reasons["projection of a shortcut"]
    skipped: dict[str, str] = {}
    for reason, names in reasons.items():
        if candidates.keys() - skipped.keys() - set(names):
            skipped |= {name: reason for name in names if name not in skipped}
    return skipped


def _projects(convolution: Any) -> bool:
    return all(size == 1 for size in convolution.kernel_size) and any(step > 1 for step in convolution.stride)


def leaving(model: nn.Module, examples: Any = None) -> set[str]:
    """The names of the convolutions and Linears whose outputs leave the network, but for what has no such weights.

    They are found in the graph of the network: by torch.export where ``examples`` of its inputs are given, otherwise by
    tracing its own code. Where neither can be, the layer that was defined last is taken for the output.

    Args:
        model: the network.
        examples: a tensor, a sequence of the arguments of ``forward``, or a dict of named ones.
    """
    names = [name for name, module in model.named_modules() if isinstance(module, PRUNABLE)]
    found = _leaving(model, examples)
    return set(names[-1:]) if found is None else found & set(names)


def _leaving(model: nn.Module, examples: Any) -> set[str] | None:
    """The layers that are found to leave the network; None where there is no graph of it."""
    if examples is not None and (exported := _exported(model, examples)) is not None:
        return exported
    names = {module: name for name, module in model.named_modules() if isinstance(module, PRUNABLE)}
    before = [(module, dict(module.__dict__)) for module in model.modules()]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = _Layers().trace(model)
    except Exception:  # whatever the network's own code does with what is no tensor
        return None
    finally:
        for module, attributes in before:  # what the code has put aside meanwhile
            module.__dict__.clear()
            module.__dict__.update(attributes)
    found: set[str] = set()
    reached = {node for node in graph.nodes if node.op == "output"}
    for node in reversed(graph.nodes):  # each comes after its inputs
        if node not in reached:
            continue
        if node.op == "call_module":
            parts = list(model.get_submodule(str(node.target)).modules())
        else:  # a function of a weight without its layer
            weights = [str(source.target) for source in node.all_input_nodes if source.op == "get_attr"]
            parts = [model.get_submodule(weight.rpartition(".")[0]) for weight in weights]
        inner = [names[part] for part in parts if part in names]
        found.update(inner[-1:])
        reached.update([] if inner else node.all_input_nodes)
    return found


def _exported(model: nn.Module, examples: Any) -> set[str] | None:
    """The modules whose weights give the outputs, on the graph of torch.export; None where there is none."""
    args, kwargs = arguments(examples)
    with plain_eval(model), torch.no_grad():
        try:
            program = torch.export.export(model, args, kwargs, strict=False)
        except Exception:  # of the network's own code or of the exporter's many steps
            return None
    weights = program.graph_signature.inputs_to_parameters
    found: set[str] = set()
    reached = {node for node in program.graph.nodes if node.op == "output"}
    for node in reversed(program.graph.nodes):
        if node not in reached:
            continue
        matrices = [
            weights[part.name]
            for part in node.all_input_nodes
            if part.name in weights and part.meta["val"].dim() > 1 and len(node.all_input_nodes) > 1
        ]
        mixes = str(node.target).split(".")[:2] in [["aten", name] for name in MIXING]
        if matrices and mixes:
            found.add(matrices[0].rpartition(".")[0])
        else:
            reached.update(node.all_input_nodes)
    return found


class _Layers(Tracer):
    """The network's own code, without hooks; a layer that can be pruned is one step, whatever its class.

    Tracing takes over every module call of the process. Those of other threads are let through.
    """

    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, PRUNABLE) or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        if threading.get_ident() != self.thread:
            return forward(*args, **kwargs)
        if self.is_leaf_module(m, self.path_of_module(m)):
            return super().call_module(m, forward, args, kwargs)
        return m.forward(*args, **kwargs)


def _matching(candidates: dict[str, nn.Module], rules: Selectors, what: str) -> set[str]:
    single = isinstance(rules, (str, type)) or callable(rules)
    found: set[str] = set()
    if not single and not isinstance(rules, Iterable):
        raise UserError(f"{what} is {rules!r}: {RULES}")
    for rule in [rules] if single else list(rules):  # type: ignore[arg-type]
        if not (isinstance(rule, (str, type)) or callable(rule)):
            raise UserError(f"{what} has the rule {rule!r}: {RULES}")
        hits = {name for name, module in candidates.items() if _matches(rule, name, module)}
        if not hits:
            raise UserError(f"{what} rule {rule!r} matches no layer: there are {', '.join(candidates)}")
        found |= hits
    return found


def _matches(rule: Selector, name: str, module: nn.Module) -> bool:
    if isinstance(rule, str):
        return fnmatchcase(name, rule)
    if isinstance(rule, type):
        return isinstance(module, rule)
    return bool(rule(name, module))


def _check(model: nn.Module, layers: dict[str, nn.Module]) -> None:
    users: dict[int, list[str]] = {}
    for owner, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            users.setdefault(id(parameter), []).append(owner)
    for name, module in layers.items():
        weight = module.weight
        if parametrize.is_parametrized(module, "weight") or not isinstance(weight, nn.Parameter):
            raise UserError(f"layer {name!r} already has a parametrised weight: remove that, or exclude the layer")
        if isinstance(weight, UninitializedParameter):
            raise UserError(f"layer {name!r} has no weight yet: run the model once before pruning it")
        if weight.is_meta:
            raise UserError(f"layer {name!r} is on the meta device and has no values: give it some before pruning it")
        if weight.dtype not in DTYPES:
            allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            raise UserError(f"layer {name!r} has weights of {weight.dtype}: allowed are {allowed}; or exclude it")
        if weight.numel() == 0:
            raise UserError(f"layer {name!r} has no weights (its shape is {tuple(weight.shape)}): exclude it")
        if others := [owner for owner in users[id(weight)] if owner != name]:
            raise UserError(
                f"layers {name!r} and {others[0]!r} share one weight, so that pruning one prunes the other: "
                f"exclude both or untie them"
            )


def targets(sparsity: Sparsity, names: list[str]) -> dict[str, float]:
    """The sparsity of each layer, from one number, a mapping by name or a function of the name."""
    if callable(sparsity):
        return {name: check_sparsity(sparsity(name)) for name in names}
    if isinstance(sparsity, Mapping):
        if unknown := [name for name in sparsity if name not in names]:
            raise UserError(f"sparsity names layer {unknown[0]!r}, which is not pruned: there are {', '.join(names)}")
        if missing := [name for name in names if name not in sparsity]:
            raise UserError(
                f"sparsity says nothing of layer {missing[0]!r}: give it a value (0 keeps all) or exclude it"
            )
        return {name: check_sparsity(sparsity[name]) for name in names}
    return dict.fromkeys(names, check_sparsity(sparsity))
