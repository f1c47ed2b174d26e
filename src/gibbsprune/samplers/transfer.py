"""Exact draws where few spins stand between the others: chains, trees, kernels (forward filtering, backward sampling).

p(x) ∝ exp(−J Σ_{pairs} A_ij x_i x_j − Σ h_i x_i). Spins are summed out one after another, in the order of
:attr:`gibbsprune.graphs.Graph.elimination`: everything that still holds spin v together with its neighbours N is one
table T(x_v, x_N) of logarithms, and the sum over x_v is a message about N alone,

    m(x_N) = log(e^{T(+1, x_N)} + e^{T(−1, x_N)}),

which goes to the table of the spin of N that is summed out next. Then spins are drawn in the opposite order, each given
its N: P(x_v = +1 | x_N) = σ(T(+1, x_N) − T(−1, x_N)). On a chain that is the transfer matrix. A table has 2^(1 + width)
numbers; everything is in float64, so that log-weights of 10^7 at β = 10^4 do no harm.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..graphs import Graph, Step
from .rows import Rows

BLOCK = {"cpu": 1 << 21, "cuda": 1 << 27}  # numbers of all tables held at once


class Turn(NamedTuple):
    """What is done with one spin: the same for all rows."""

    node: int
    rest: tuple[int, ...]
    edges: Tensor  # its own pairs
    spins: Tensor  # of their other ends in every state of ``rest``, (2^rest, pairs)
    inbox: list[tuple[int, Tensor, Tensor]]  # whose message, and where in it: with the spin up, with it down


def draw(rows: Rows) -> Tensor:
    """A mask (rows, n) from the law of every row."""
    assert rows.pairs is not None
    graph, device = rows.pairs.graph, rows.field.device
    turns = graph.constant("turns", device, lambda: plan(graph, device))
    uniform = rows.source.uniform(graph.size)
    mask = torch.empty(uniform.shape, dtype=torch.bool, device=device)
    step = max(1, BLOCK.get(device.type, 1 << 21) // sum(1 << len(turn.rest) for turn in turns))
    for first in range(0, len(uniform), step):
        part = slice(first, first + step)
        pulls = rows.coupling[part].double() * rows.pairs.of(part).double()
        mask[part] = _draw(turns, rows.field[part].double(), pulls, uniform[part])
    return mask


def _draw(turns: list[Turn], field: Tensor, pulls: Tensor, uniform: Tensor) -> Tensor:
    messages: dict[int, Tensor] = {}
    odds = []  # log P(+1)/P(−1) of each spin given its neighbours, (rows, 2^neighbours)
    for turn in turns:
        up = -field[:, turn.node, None].expand(-1, 1 << len(turn.rest))
        if len(turn.edges):
            up = up - pulls[:, turn.edges] @ turn.spins.T
        down = -up
        for sender, with_up, with_down in turn.inbox:
            message = messages.pop(sender)
            up, down = up + message[:, with_up], down + message[:, with_down]
        odds.append((up - down).float())
        messages[turn.node] = torch.logaddexp(up, down)
    mask = torch.empty(field.shape, dtype=torch.bool, device=field.device)
    for turn, lean in zip(reversed(turns), reversed(odds)):
        place = torch.zeros(len(field), dtype=torch.long, device=field.device)
        for bit, other in enumerate(turn.rest):
            place += mask[:, other].long() << bit
        mask[:, turn.node] = uniform[:, turn.node] < lean.gather(1, place[:, None]).squeeze(1).sigmoid_()
    return mask


def plan(graph: Graph, device: torch.device) -> list[Turn]:
    """The elimination of a graph that has one, with the tables that are the same for all rows."""
    assert graph.elimination is not None
    when = {step.node: t for t, step in enumerate(graph.elimination)}
    waiting: dict[int, list[Step]] = {}
    turns = []
    for step in graph.elimination:
        states = _states(len(step.rest))
        columns = [step.rest.index(other) for other, _ in step.edges]
        inbox = [
            (sender.node, _places(sender.rest, step, 1).to(device), _places(sender.rest, step, 0).to(device))
            for sender in waiting.pop(step.node, [])
        ]
        edges = torch.tensor([edge for _, edge in step.edges], dtype=torch.long, device=device)
        turns.append(Turn(step.node, step.rest, edges, (2.0 * states[:, columns] - 1.0).double().to(device), inbox))
        if step.rest:
            waiting.setdefault(min(step.rest, key=when.__getitem__), []).append(step)
    return turns


def _states(count: int) -> Tensor:
    """All states of some spins as rows of 0 and 1; the first spin is the lowest bit of the row's number."""
    return (torch.arange(1 << count)[:, None] >> torch.arange(count)) & 1


def _places(scope: tuple[int, ...], step: Step, up: int) -> Tensor:
    """The number of the state of ``scope`` in each state of the step's neighbours, with its spin up or down."""
    states = _states(len(step.rest))
    place = torch.zeros(len(states), dtype=torch.long)
    for bit, spin in enumerate(scope):
        place |= (torch.full_like(place, up) if spin == step.node else states[:, step.rest.index(spin)]) << bit
    return place
