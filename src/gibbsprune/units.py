"""Units of a network: which slices of several weights are kept or removed together.

=======  ===============================================================================================================
neuron   An output of a dense layer or convolution that a single other layer reads, after steps that treat every channel
         by itself, gates included: its filter there (and in the gate), its column in the reader. In a chain of layers a
         weight lies between two neurons: it is that of the one which it leads to.
head     An attention head: its rows of the queries, keys and values, its columns in the layer that reads it. Heads that
         share keys and values are one. Those of ``nn.MultiheadAttention`` are known; others are found in the graph of
         torch.export, for which inputs must be given (:mod:`gibbsprune.heads`).
unit     What :class:`gibbsprune.Unit` says.
=======  ===============================================================================================================

A unit is a neighbourhood whose weights are the rows of several layers, side by side (:mod:`gibbsprune.site`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import translate
from typing import Any

from torch import nn
from torch.fx import Node

from .errors import UserError
from .flow import CONVOLUTIONS, Seen, channelwise, operator
from .heads import heads_of
from .slices import Part, cut, inputs, outputs, plain
from .structures import Head, Joint, Neuron, Structure, Unit, as_structure
from .weights import Layer

#: Steps from several tensors of the same channels to one.
ARITHMETIC = {
    "mul",
    "add",
    "sub",
    "div",
    "pow",
    "square",
    "neg",
    "exp",
    "erf",
    "abs",
    "clamp",
    "to",
    "type_as",
    "float",
}
MOVES = {"view", "reshape", "_unsafe_view", "unflatten", "flatten", "squeeze", "unsqueeze"}


def united(
    layers: Mapping[str, Layer], structure: Structure, model: nn.Module, seen: Seen | None
) -> tuple[dict[str, Layer], dict[str, str]]:
    """The layers, those of units tied to the first of their unit; and the others with the reason why they are left.

    Args:
        layers: what may be pruned, by name.
        structure: of those that have none of their own.
        model: the network.
        seen: in its graph; None where there is none.
    """
    kinds = {name: as_structure(layer.own or structure) for name, layer in layers.items()}
    found, left = dict(layers), dict[str, str]()
    for kind in dict.fromkeys(kind for kind in kinds.values() if isinstance(kind, Joint)):
        mine = {name: layers[name] for name, own in kinds.items() if own == kind}
        tied = _tied(mine, _units(kind, mine, model, seen))
        if not tied:
            raise UserError(f"no {kind.plural} were found among {', '.join(mine)}{_help(kind, seen)}")
        found |= tied
        left |= {name: f"part of no {kind.name}" for name in mine if name not in tied}
    return {name: layer for name, layer in found.items() if name not in left}, left


def _help(kind: Structure, seen: Seen | None) -> str:
    if isinstance(kind, Unit):
        return ""
    graph = "" if seen is not None and seen.exported else "give example_inputs, in whose graph they are looked for, or "
    return f": {graph}say which layers belong together with gp.Unit"


def _units(kind: Structure, layers: Mapping[str, Layer], model: nn.Module, seen: Seen | None) -> list[list[Part]]:
    if isinstance(kind, Unit):
        return _given(kind, layers)
    if isinstance(kind, Head):
        return heads_of(layers, seen)
    assert isinstance(kind, Neuron)
    return [*_encoders(layers, model), *(_neurons(layers, model, seen) if seen is not None else [])]


def _tied(layers: Mapping[str, Layer], units: Iterable[Sequence[Part]]) -> dict[str, Layer]:
    """The layers of units: the rows of the first lead."""
    found: dict[str, Layer] = {}
    places = {name: place for place, name in enumerate(layers)}
    for unit in units:
        if any(part.layer in found for part in unit):
            continue
        parts = sorted(unit, key=lambda part: (part.side != "filter", places[part.layer]))
        for part in parts:
            first = "" if part is parts[0] else parts[0].layer
            found[part.layer] = replace(cut(layers[part.layer], part), tied=first)
    return {name: found[name] for name in layers if name in found}


# -- a user's own ------------------------------------------------------------------------------------------------------


def _given(kind: Unit, layers: Mapping[str, Layer]) -> list[list[Part]]:
    """The layers that match each part, by what its wildcards stand for."""
    blocks: dict[tuple[str, ...], list[Part]] = {}
    for pattern, side in kind.parts:
        form = translate(pattern).replace(".*", "(.*)")
        hits = {name: match.groups() for name in layers if (match := re.fullmatch(form, name))}
        if not hits:
            raise UserError(f"parts name {pattern!r}, which matches no layer: there are {', '.join(layers)}")
        for name, block in hits.items():
            blocks.setdefault(block, []).append(Part(name, side, kind.units))
    for parts in blocks.values():
        _check(parts, layers, len(kind.parts))
    return list(blocks.values())


def _check(parts: Sequence[Part], layers: Mapping[str, Layer], expected: int) -> None:
    names = ", ".join(part.layer for part in parts)
    if len({part.layer for part in parts}) < expected:
        raise UserError(f"parts match {names} alone of a unit of {expected} layers: what * stands for must be the same")
    counts = {part.layer: outputs(layers[part.layer]) if part.side == "filter" else inputs(layers[part.layer])
              for part in parts}  # fmt: skip
    units = parts[0].units
    if units is None and len(set(counts.values())) > 1:
        told = ", ".join(f"{count} of {name}" for name, count in counts.items())
        raise UserError(f"parts of a unit have {told}: allowed are as many of each, or units=")
    for name, count in counts.items():
        if units is not None and (count % units or layers[name].groups > 1):
            raise UserError(f"units is {units}: allowed are divisors of {count}, of which layer {name!r} has so many")


# -- neurons -----------------------------------------------------------------------------------------------------------


def _encoders(layers: Mapping[str, Layer], model: nn.Module) -> list[list[Part]]:
    """Those of torch's own layers of a transformer, which tracing does not look into."""
    kinds = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
    owners = [f"{name}." if name else "" for name, module in model.named_modules() if isinstance(module, kinds)]
    both = [(f"{owner}linear1", f"{owner}linear2") for owner in owners]
    return [[Part(one, "filter"), Part(two, "column")] for one, two in both if one in layers and two in layers]


def _neurons(layers: Mapping[str, Layer], model: nn.Module, seen: Seen) -> list[list[Part]]:
    owned = {layer.owner: layer for layer in layers.values() if plain(layer)}
    used = Counter(seen.owners.values())
    pairs = []
    for reader, name in reversed(seen.owners.items()):
        if not seen.exported and str(reader.target) != name:
            continue  # a module of torch's with several layers in it
        makers = _makers(reader, model, seen, owned) if used[name] == 1 and name in owned else set()
        names = list(dict.fromkeys(seen.owners[maker] for maker in makers))
        if names and all(n in owned and used[n] == 1 for n in names):
            counts = {inputs(owned[name]), *(outputs(owned[n]) for n in names)}
            if len(counts) == 1 and counts != {1}:
                pairs.append(([owned[n].name for n in owned if n in names], owned[name].name))
    making = {name for names, _ in pairs for name in names}
    return [
        [*(Part(name, "filter") for name in names), *([] if reader in making else [Part(reader, "column")])]
        for names, reader in pairs
    ]


def _makers(reader: Node, model: nn.Module, seen: Seen, owned: Mapping[str, Layer]) -> set[Node]:
    """The steps that make what is read, channel by channel; none where something else makes or reads it, too."""
    makers, between, open_ = set(), set(), [_data(reader)]
    dense = not isinstance(owned[seen.owners[reader]].module, CONVOLUTIONS)
    while open_:
        node = open_.pop()
        if node in between or node in makers:
            continue
        if not isinstance(node, Node):
            return set()
        if node in seen.owners and (seen.exported or str(node.target) == seen.owners[node]):
            makers.add(node)
        elif channelwise(model, node) or (dense and _keeps_channels(node)):
            between.add(node)
            open_.append(node.args[0])
        elif operator(node).strip("_") in ARITHMETIC and node.all_input_nodes:
            between.add(node)
            open_.extend(node.all_input_nodes)
        else:
            return set()
    inside = between | {reader}
    return makers if all(user in inside for node in (*makers, *between) for user in node.users) else set()


def _data(node: Node) -> Any:
    """What a step multiplies by weights."""
    return node.args[1 if operator(node) == "addmm" else 0]


def _keeps_channels(node: Node) -> bool:
    """Whether an exported step only gives its tensor another shape, with the same last axis."""
    if operator(node) not in MOVES or "val" not in node.meta:
        return False
    before, after = (tuple(part.meta["val"].shape) for part in (node.args[0], node))  # type: ignore[union-attr]
    return bool(before) and bool(after) and before[-1] == after[-1]
