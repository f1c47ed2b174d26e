"""Which layers to prune: by name pattern, by type, or by a predicate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from .errors import UserError
from .structures import PRUNABLE, Structure

Rule = str | type | Callable[[str, nn.Module], bool]
Rules = Rule | Iterable[Rule] | None

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
    for rule in [rules] if single else list(rules):  # type: ignore[arg-type]
        hits = {name for name, module in candidates.items() if _matches(rule, name, module)}  # type: ignore[arg-type]
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
        if others := [owner for owner in users[id(weight)] if owner != name]:
            raise UserError(
                f"layers {name!r} and {others[0]!r} share one weight, so that pruning one prunes the other: "
                f"exclude both or untie them"
            )
