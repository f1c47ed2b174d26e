"""A chain for any pairs: p(x) ∝ exp(−J Σ_{pairs} A_ij x_i x_j − Σ h_i x_i), resampled colour by colour.

Spins of one colour have no pair among them, so that given the others they are independent, and a whole colour is drawn
at once: P(x_i = +1) = σ(−2(h_i + J Σ_j A_ij x_j)). One sweep resamples every colour once. A cold chain starts from the
law without pairs, P(x_i = +1) = σ(−2 h_i); a warm one from the mask before. After finitely many sweeps its law is only
near the stationary one: docs/how_to/diagnostics.md shows how to see whether it is near enough.

All shapes are fixed and nothing waits for the host, so that a sweep can be captured in a CUDA graph.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .rows import Rows


def draw(rows: Rows) -> Tensor:
    """A mask (rows, n) after ``rows.sweeps`` sweeps."""
    assert rows.pairs is not None
    graph, source = rows.pairs.graph, rows.source
    # A row of the law is a column here, so that an element and its neighbours are read along memory.
    field, strengths, coupling = (t.T.to(rows.field.dtype) for t in (rows.field, rows.pairs.strengths, rows.coupling))
    strengths = F.pad(strengths, (0, 0, 0, 1))  # a last one of 0, for neighbours that are not there
    colours = [(c.nodes, c.others, strengths[c.edges], field[c.nodes]) for c in graph.colours(field.device)]
    kept = (-2 * field).sigmoid() > source.uniform(graph.size).T if rows.start is None else rows.start.T
    spins = F.pad(2.0 * kept.to(field.dtype) - 1.0, (0, 0, 0, 1))
    for _ in range(rows.sweeps):
        uniform = source.uniform(graph.size).T
        for nodes, others, pull, own in colours:
            local = (pull * spins[others]).sum(1).mul_(coupling).add_(own)
            spins[nodes] = 2.0 * (uniform[nodes] < local.mul_(-2).sigmoid_()).to(spins.dtype) - 1.0
    return (spins[:-1] > 0).T
