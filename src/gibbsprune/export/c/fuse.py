"""Fewer passes over memory: what follows a layer becomes a part of it, and strided layers read planes of one phase.

Moves that follow each other become one. Scales and shifts behind a layer go into its weights (in float64, rounded
once), a sum with another value starts its accumulators, an activation ends them. A layer of stride s reads
x[s·y + k]: with k = s·a + r that is plane r of the input, whose rows are every s-th row from r on, at y + a. So behind
:class:`Phases` every layer has stride 1.
"""

from __future__ import annotations

import torch

from .network import (
    NONE,
    Affine,
    Join,
    Layer,
    Move,
    Network,
    Op,
    Phases,
    Pointwise,
    Value,
)


def fused(network: Network) -> Network:
    """The same network in fewer operations."""
    _without_dead(network)
    for kind in (_activation_first, _once, _one_move):
        for op in list(network.ops):
            kind(network, op)
    _without_dead(network)
    for kind in (_affine, _sum, _activation):
        for op in list(network.ops):
            kind(network, op)
    for layer in [op for op in network.ops if isinstance(op, Layer)]:
        _without_unreachable(layer)
    _phases(network)
    return network


def _maker(network: Network, value: Value) -> Op | None:
    return next((op for op in network.ops if op.output is value), None)


def _without_dead(network: Network) -> None:
    for op in reversed(list(network.ops)):
        if not network.readers(op.output):
            network.ops.remove(op)


def _activation_first(network: Network, op: Op) -> None:
    """Activations before the moves between them and their layer, so that they can become a part of it."""
    while isinstance(op, Pointwise):
        move = _maker(network, op.inputs[0])
        if not isinstance(move, Move) or network.readers(move.output) > 1 or not _everything(move):
            return
        place = network.ops.index(move)
        network.ops.remove(op)
        network.ops.insert(place, op)
        between = Value(move.inputs[0].shape)
        op.inputs, move.inputs, move.output, op.output = move.inputs, [between], op.output, between


def _everything(move: Move) -> bool:
    """Whether a move keeps every number of one input, once."""
    index = move.index
    return len(move.inputs) == 1 and len(index) == move.inputs[0].size == len(index[index >= 0].unique())


def _once(network: Network, op: Op) -> None:
    """What two moves of the same kind make of the same values is made once."""
    if not isinstance(op, Move):
        return
    for before in network.ops[: network.ops.index(op)]:
        if not isinstance(before, Move) or before.inputs != op.inputs or op.output in network.outputs:
            continue
        if before.output.shape == op.output.shape and torch.equal(before.index, op.index):
            _forward(network, op, before.output)
            return


def _one_move(network: Network, op: Op) -> None:
    """Moves of moves in one go, and none where all stays in its place."""
    if not isinstance(op, Move) or len(op.inputs) > 1:
        return
    before = _maker(network, op.inputs[0])
    if isinstance(before, Move):
        index = torch.where(op.index < 0, -1, before.index[op.index.clamp(min=0)])
        whole = Move(before.inputs, op.output, index)
        if network.readers(before.output) == 1 or whole.loops is not None:
            op.inputs, op.index = list(before.inputs), index
    if op.view and op.inputs[0].shape == op.output.shape and op.output not in network.outputs:
        _forward(network, op, op.inputs[0])


def _forward(network: Network, op: Op, value: Value) -> None:
    """Leave an operation out; its readers read another value."""
    network.ops.remove(op)
    for reader in network.ops:
        reader.inputs = [value if x is op.output else x for x in reader.inputs]


def _layer_before(network: Network, value: Value) -> Layer | None:
    """The layer that alone makes this value, if nothing else reads that and nothing is fused behind it yet."""
    maker = _maker(network, value)
    if isinstance(maker, Layer) and network.readers(value) == 1 and maker.act == NONE:
        return maker
    return None


def _replace(network: Network, op: Op, layer: Layer) -> None:
    """Let the layer run where ``op`` did, and give what it gave."""
    network.ops.remove(layer)
    network.ops[network.ops.index(op)] = layer
    layer.output = op.output


def _affine(network: Network, op: Op) -> None:
    if not isinstance(op, Affine) or op.slope:
        return
    before = _maker(network, op.inputs[0])
    alone = network.readers(op.inputs[0]) == 1
    if isinstance(before, Affine) and alone and not before.slope:
        before.scale, before.shift = before.scale * op.scale, before.shift * op.scale + op.shift
    elif isinstance(before, Layer) and alone:
        before.weight = before.weight * op.scale[:, None, None, None]
        before.bias = before.bias * op.scale + op.shift
    else:
        return
    before.output = op.output
    network.ops.remove(op)


def _sum(network: Network, op: Op) -> None:
    if not isinstance(op, Join) or op.kind != "+" or op.inputs[0].shape != op.inputs[1].shape:
        return
    layers = [layer for value in op.inputs if (layer := _layer_before(network, value)) is not None]
    layers = [layer for layer in layers if len(layer.inputs) == 1]
    if op.inputs[0] is op.inputs[1] or not layers:
        return
    layer = max(layers, key=network.ops.index)
    other = next(value for value in op.inputs if value is not layer.output)
    layer.inputs = [layer.inputs[0], other]
    _replace(network, op, layer)


def _activation(network: Network, op: Op) -> None:
    if not isinstance(op, Pointwise):
        return
    layer = _layer_before(network, op.inputs[0])
    if layer is not None:
        layer.act = op.act
        _replace(network, op, layer)


def _without_unreachable(layer: Layer) -> None:
    """Zero the weights that only ever meet padding, and cut kernels of one pixel to it."""
    weight = layer.weight.clone()
    for axis in (0, 1):
        size, count = layer.inputs[0].planes[1 + axis], layer.output.planes[1 + axis]
        for k, shift in enumerate(layer.shifts(axis)):
            if shift >= size or shift + layer.stride[axis] * (count - 1) < 0:
                weight.select(2 + axis, k).zero_()
    layer.weight = weight


def used_shifts(layer: Layer) -> list[tuple[int, int]]:
    """Where the layer's kernels have any weight, relative to stride × the output's place."""
    alive = (layer.weight != 0).flatten(0, 1).any(0)
    return [(a, b) for i, a in enumerate(layer.shifts(0)) for j, b in enumerate(layer.shifts(1)) if alive[i, j]]


def _phases(network: Network) -> None:
    """Put the planes that strided layers read before the first of them."""
    groups: dict[tuple[Value, tuple[int, int], tuple[int, ...]], list[Layer]] = {}
    for op in network.ops:
        if isinstance(op, Layer) and op.stride != (1, 1):
            groups.setdefault((op.inputs[0], op.stride, op.output.planes[1:]), []).append(op)
    for (x, stride, size), layers in groups.items():
        shifts = [shift for layer in layers for shift in used_shifts(layer)] or [(0, 0)]
        phases = sorted({(a % stride[0], b % stride[1]) for a, b in shifts})
        rows, columns = size
        for axis in (0, 1):  # rows that are needed beyond the output's own, and that have pixels
            far = max(shift[axis] // stride[axis] for shift in shifts) + size[axis]
            there = max(-(-(x.planes[1 + axis] - p[axis]) // stride[axis]) for p in phases)
            if axis:
                columns = max(columns, min(far, there))
            else:
                rows = max(rows, min(far, there))
        planes = Value((x.planes[0] * len(phases), rows, columns))
        network.ops.insert(network.ops.index(layers[0]), Phases([x], planes, stride, phases))
        for layer in layers:
            layer.inputs = [planes, *layer.inputs[1:]]


def views(network: Network) -> list[Move]:
    """The moves that move nothing."""
    return [op for op in network.ops if isinstance(op, Move) and op.view]
