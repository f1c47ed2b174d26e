"""Which layers to prune: by what they do, by name pattern, by type or by a predicate."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from .checks import excluding, layers_told
from .errors import UserError
from .flow import CONVOLUTIONS, Seen, look, outputs
from .structures import Joint, Structure, as_structure
from .units import united
from .weights import Layer, on_request, prunable, transforms

Selector = str | type | Callable[[str, nn.Module], bool]
Selectors = Selector | Iterable[Selector] | Mapping[str, "str | Structure"] | None

RULES = "allowed are name patterns, types and functions of (name, module), one or several"
#: What is said of one layer and of several whose weights have other readers, and what helps.
SHARED = ("shares its weight", "share their weights, so that pruning one prunes another", "untie them, or")
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def select(
    model: nn.Module,
    structure: Structure,
    include: Selectors = None,
    exclude: Selectors = None,
    examples: Any = None,
) -> tuple[dict[str, Layer], dict[str, str]]:
    """The layers to prune by name, and the others that could be pruned with the reason why they are not.

    Without ``include`` all weights of :func:`gibbsprune.weights.prunable` are taken but those of :func:`spared`. A rule
    that matches none of them is tried on embeddings and all other parameters, by their names; one that matches nothing
    at all is an error.

    Args:
        model: any module.
        structure: what is pruned; with filters more layers are spared.
        include: the layers to take, by name patterns (``"stage1.*"``), module types or functions of (name, module); or
            a mapping from name patterns to the structures with which they are pruned.
        exclude: the layers to leave out, in the same way.
        examples: inputs of the model, for :func:`gibbsprune.flow.leaving`.
    """
    candidates, others = prunable(model), on_request(model)
    joint = any(isinstance(kind, Joint) for kind in (structure, *_own(include)))
    seen = look(model, examples)
    if include is None:
        if not candidates:
            kinds = "no convolution, dense, recurrent or attention layer"
            raise UserError(f"the model has nothing to prune: it holds {kinds}; name its parameters in include")
        skipped = spared(candidates, structure, seen)
    else:
        chosen = _matching(candidates, include, "include", others)
        candidates |= {name: layer for name, layer in chosen.items() if name not in candidates}
        candidates |= {name: chosen[name] for name in candidates if name in chosen}  # with their own structures
        skipped = {name: "not included" for name in candidates if name not in chosen}
    if exclude is not None:
        if isinstance(exclude, Mapping):
            raise UserError(f"exclude is {exclude!r}: {RULES}")
        skipped |= dict.fromkeys(_matching(candidates, exclude, "exclude"), "excluded")
    layers = {
        name: replace(layer.suited(structure), normed=seen is not None and layer.owner in seen.normed)
        for name, layer in candidates.items() if name not in skipped
    }  # fmt: skip
    if not layers:
        raise UserError("the model has nothing to prune: include and exclude leave no layer")
    if joint:
        layers, left = united(layers, structure, model, seen)
        skipped |= left
    _check(model, layers)
    return _tied(layers, seen) if seen and structure.name == "filter" else layers, skipped


def _own(include: Selectors) -> list[Structure]:
    """The structures that a mapping gives to layers."""
    return [as_structure(kind) for kind in include.values()] if isinstance(include, Mapping) else []


def _tied(layers: Mapping[str, Layer], seen: Seen) -> dict[str, Layer]:
    """The layers, depthwise convolutions as one with those whose filters they read: each filter with its kernels."""
    found = dict(layers)
    for name, before in seen.before.items():
        layer, producer = layers.get(name), layers.get(before)
        if layer is None or producer is None or layer.own or producer.own or layer.transposed or producer.transposed:
            continue
        view = (len(producer.weight), -1, *layer.shape[2:])
        found[name] = replace(layer, tied=before, view=tuple(layer.weight.detach().view(view).shape))
    return found


def spared(candidates: Mapping[str, Layer], structure: Structure, seen: Seen | None) -> dict[str, str]:
    """The layers that are not pruned by default, with the reason; never all of them.

    They are the layers whose outputs leave the network, the first convolution, which sees the data, and with filters
    the projections of residual shortcuts, known as 1×1 convolutions with a stride: their outputs are added to others.
    Units have none of the outputs that leave.

    Args:
        candidates: the layers of a network that could be pruned, by name.
        structure: what is pruned.
        seen: in the network's graph; None where there is none.
    """
    last = outputs(candidates, seen)
    if structure.name == "filter" and seen is None:
        warnings.warn(
            f"the network has no graph, so its last layer, {', '.join(sorted(last))}, is taken for its only output: "
            "give example_inputs that torch.export takes, or name the layers of other outputs in exclude",
            stacklevel=4,
        )
    convolutions = [name for name, layer in candidates.items() if isinstance(layer.module, CONVOLUTIONS)]
    reasons = {
        "its outputs leave the network": sorted(last),
        "first convolution": [name for name in convolutions if name not in last][:1],
        "projection of a shortcut": [name for name in convolutions if _projects(candidates[name].module)],
    }
    if structure.name != "filter":
        del reasons["projection of a shortcut"]
    if isinstance(structure, Joint):
        del reasons["its outputs leave the network"]
    skipped: dict[str, str] = {}
    for reason, names in reasons.items():
        if candidates.keys() - skipped.keys() - set(names):
            skipped |= {name: reason for name in names if name not in skipped}
    return skipped


def _projects(convolution: Any) -> bool:
    return all(size == 1 for size in convolution.kernel_size) and any(step > 1 for step in convolution.stride)


def _matching(
    candidates: Mapping[str, Layer], rules: Selectors, what: str, others: Mapping[str, Layer] | None = None
) -> dict[str, Layer]:
    """The layers that match a rule; ``others`` are those of a rule that matches no candidate."""
    single = isinstance(rules, (str, type)) or callable(rules)
    found: dict[str, Layer] = {}
    if not single and not isinstance(rules, Iterable):
        raise UserError(f"{what} is {rules!r}: {RULES}")
    for rule in [rules] if single else list(rules):  # type: ignore[arg-type]
        if not (isinstance(rule, (str, type)) or callable(rule)):
            raise UserError(f"{what} has the rule {rule!r}: {RULES}")
        hits: dict[str, Layer] = {}
        for group in (candidates, others or {}):
            hits = hits or {name: layer for name, layer in group.items() if _matches(rule, name, layer)}
        if not hits:
            raise UserError(f"{what} rule {rule!r} matches no layer: there are {', '.join(candidates)}")
        if isinstance(rules, Mapping):
            own = as_structure(rules[rule])  # type: ignore[index]
            hits = {name: replace(layer, own=own) for name, layer in hits.items()}
        found |= hits
    return found


def _matches(rule: Selector, name: str, layer: Layer) -> bool:
    if isinstance(rule, str):
        return fnmatchcase(name, rule) or fnmatchcase(layer.owner, rule)
    if isinstance(rule, type):
        return isinstance(layer.module, rule)
    return bool(rule(name, layer.module))


def _check(model: nn.Module, layers: dict[str, Layer]) -> None:
    """Refuses layers that cannot be masked: all of them in one sentence."""
    users: dict[int, list[str]] = {}
    for owner, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            users.setdefault(id(parameter), []).append(owner)
    faults: dict[tuple[str, str, str], list[str]] = {}
    owners: dict[str, None] = {}
    for name, layer in layers.items():
        if fault := _fault(layer):
            faults.setdefault(fault, []).append(name)
        elif len(users[id(layer.stored)]) > 1:
            faults.setdefault(SHARED, []).append(name)
            owners |= dict.fromkeys(users[id(layer.stored)])
    if SHARED in faults:
        faults[SHARED] = list(dict.fromkeys([*faults[SHARED], *owners]))
    if not faults:
        return
    told = ", and ".join(layers_told(names, one, many) for (one, many, _), names in faults.items())
    help_ = f" {next(iter(faults))[2]}" if len(faults) == 1 else ""
    everything = [name for names in faults.values() for name in names]
    raise UserError(f"{told}:{help_}{leave_out(everything, prunable(model) | layers)}")


def leave_out(names: Collection[str], among: Iterable[str]) -> str:
    """How these layers are left out, as the end of a sentence."""
    return f" leave {'it' if len(names) == 1 else 'them'} out with exclude={excluding(names, among)!r}"


def _fault(layer: Layer) -> tuple[str, str, str] | None:
    """Why a weight cannot be masked: said of one layer, of several, and what helps."""
    if parametrize.is_parametrized(layer.module, layer.parameter) or not isinstance(layer.weight, nn.Parameter):
        return "already has a parametrised weight", "already have parametrised weights", "remove that, or"
    weight = layer.stored
    if isinstance(weight, UninitializedParameter):
        return "has no weight yet", "have no weight yet", "run the model once before pruning it, or"
    if weight.is_meta:
        help_ = "give it some before pruning it, or"
        return "is on the meta device and has no values", "are on the meta device and have no values", help_
    if weight.dtype not in DTYPES:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        return f"has weights of {weight.dtype}", f"have weights of {weight.dtype}", f"allowed are {allowed}; or"
    if weight.numel() == 0:
        shape = f"(of shape {tuple(weight.shape)})"
        return f"has no weights {shape}", f"have no weights {shape}", "there is nothing to prune;"
    if transforms(layer):
        help_ = "masked weights would not be zero where they are used;"
        return "transforms its weight before use", "transform their weights before use", help_
    return None
