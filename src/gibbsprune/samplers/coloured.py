"""A chain for any pairs: p(x) ∝ exp(−J Σ_{pairs} A_ij x_i x_j − Σ h_i x_i), resampled colour by colour.

Spins of one colour have no pair among them, so that given the others they are independent, and a whole colour is drawn
at once: P(x_i = +1) = σ(−2(h_i + J Σ_j A_ij x_j)). One sweep resamples every colour once. A cold chain starts from the
law without pairs, P(x_i = +1) = σ(−2 h_i); a warm one from the mask before. After finitely many sweeps its law is only
near the stationary one: docs/how_to/diagnostics.md shows how to see whether it is near enough.

With k_i = 1 where an element is kept and x = 2k − 1, u < P(x_i = +1) is the same as

    2J Σ_j A_ij k_j < J Σ_j A_ij − h_i − logit(u)/2,

whose right side is worked out for a whole sweep at once. All shapes are fixed and nothing waits for the host, so that a
sweep can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..graphs import Graph
from .rows import Rows

DENSE = 12  # colours from which on a matrix of all elements is quicker than tables of neighbours


def draw(rows: Rows) -> Tensor:
    """A mask (rows, n) after ``rows.sweeps`` sweeps."""
    assert rows.pairs is not None
    graph, source = rows.pairs.graph, rows.source
    # A row of the law is a column here, so that an element and its neighbours are read along memory.
    field, strengths, coupling = (t.to(rows.field.dtype) for t in (rows.field, rows.pairs.strengths, rows.coupling))
    level = (graph.total(strengths) * coupling - field).T.contiguous()
    begin = rows.start if rows.start is not None else source.uniform(graph.size) < (-2 * field).sigmoid()
    kept = F.pad(begin.T, (0, 0, 0, 1))  # a last one that is not kept, for neighbours that are not there
    dense = len(graph.colours(field.device)) > DENSE
    sweep = (_by_elements if dense else _by_colours)(graph, strengths.T, 2 * coupling.T)
    for _ in range(rows.sweeps):
        sweep(kept, level - source.uniform(graph.size).T.logit() / 2)
    return kept[:-1].T


def _by_colours(graph: Graph, strengths: Tensor, coupling: Tensor) -> Callable[[Tensor, Tensor], None]:
    """A sweep over the tables of neighbours, colour by colour."""
    padded = F.pad(strengths, (0, 0, 0, 1))
    colours = [(nodes, others, padded[edges]) for nodes, others, edges in graph.colours(strengths.device)]

    def sweep(kept: Tensor, limit: Tensor) -> None:
        for nodes, others, near in colours:
            kept[nodes] = (near * kept[others]).sum(1).mul_(coupling) < limit[nodes]

    return sweep


def _by_elements(graph: Graph, strengths: Tensor, coupling: Tensor) -> Callable[[Tensor, Tensor], None]:
    """A sweep over the whole matrix of strengths, element by element, where nearly all interact."""
    one, two = graph.ends(strengths.device)
    matrix = strengths.new_zeros(graph.size, graph.size, coupling.shape[1])
    matrix[one, two] = matrix[two, one] = strengths * coupling

    def sweep(kept: Tensor, limit: Tensor) -> None:
        for node in range(graph.size):
            torch.lt((matrix[node] * kept[:-1]).sum(0), limit[node], out=kept[node])

    return sweep
