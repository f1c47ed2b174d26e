"""Which layers to prune, by name pattern, by type or by a predicate, and how far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from .checks import check_sparsity
from .errors import UserError
from .structures import PRUNABLE, Structure

Rule = str | type | Callable[[str, nn.Module], bool]
Rules = Rule | Iterable[Rule] | None
Sparsity = float | Mapping[str, float] | Callable[[str], float]

RULES = "allowed are name patterns, types and functions of (name, module), one or several"
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
CONVOLUTIONS = tuple(kind for kind in PRUNABLE if kind is not nn.Linear)


def select(
    model: nn.Module, structure: Structure, include: Rules = None, exclude: Rules = None
) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """The layers to prune by name, and the others that could be pruned with the reason why they are not.

    Without ``include`` all convolutions and Linears are taken but the first convolution, and with filters but a
    last Linear, whose rows are the network's outputs. A rule is a name pattern (``"stage1.*"``), a module type or
    a function of (name, module); one that matches nothing is an error.
    """
    candidates: dict[str, nn.Module] = {n: m for n, m in model.named_modules() if isinstance(m, PRUNABLE)}
    if not candidates:
        raise UserError("the model has nothing to prune: it holds no convolution and no Linear layer")
    skipped: dict[str, str] = {}
    if include is None:
        convolutions = [name for name, module in candidates.items() if isinstance(module, CONVOLUTIONS)]
        if convolutions and len(candidates) > 1:
            skipped[convolutions[0]] = "first convolution"
        last = list(candidates)[-1]
        rest = len(candidates) - len(skipped)
        if structure.name == "filter" and isinstance(candidates[last], nn.Linear) and rest > 1:
            skipped[last] = "last Linear: its rows are the outputs"
    else:
        chosen = _matching(candidates, include, "include")
        skipped |= {name: "not included" for name in candidates if name not in chosen}
    if exclude is not None:
        skipped |= dict.fromkeys(_matching(candidates, exclude, "exclude"), "excluded")
    layers = {name: module for name, module in candidates.items() if name not in skipped}
    if not layers:
        raise UserError("the model has nothing to prune: include and exclude leave no layer")
    _check(model, layers)
    return layers, skipped


def _matching(candidates: dict[str, nn.Module], rules: Rules, what: str) -> set[str]:
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


def _matches(rule: Rule, name: str, module: nn.Module) -> bool:
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
