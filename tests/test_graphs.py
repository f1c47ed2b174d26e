"""Graphs of spins: colours without pairs inside, sums over pairs, an elimination that forgets nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gibbsprune.graphs import WIDTH, Graph, all_pairs, grid_pairs


@st.composite
def graphs(draw):
    size = draw(st.integers(1, 12))
    every = all_pairs(size).tolist()
    chosen = draw(st.lists(st.sampled_from(every), unique_by=tuple)) if every else []
    turned = [pair[::-1] if draw(st.booleans()) else pair for pair in chosen]
    return Graph(size, turned)


@given(graphs())
def test_a_colour_has_no_pair_and_every_pair_is_seen_from_both_ends(graph):
    colours = graph.colours(torch.device("cpu"))
    nodes = torch.cat([colour.nodes for colour in colours])
    assert sorted(nodes.tolist()) == list(range(graph.size))
    seen = []
    for colour in colours:
        for node, others, edges in zip(*(part.tolist() for part in colour)):
            for other, edge in zip(others, edges):
                assert (other == graph.size) == (edge == len(graph))
                if other < graph.size:
                    assert graph.colouring[other] != graph.colouring[node]
                    assert sorted(graph.pairs[edge]) == sorted((node, other))
                    seen.append((node, edge))
    assert len(set(seen)) == len(seen) == 2 * len(graph)


@given(graphs())
def test_sums_over_the_pairs_of_each_spin(graph):
    strengths = torch.randn(3, len(graph), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    by_hand = torch.zeros(3, graph.size, dtype=torch.float64)
    for edge, (a, b) in enumerate(graph.pairs):
        by_hand[:, a] += strengths[:, edge]
        by_hand[:, b] += strengths[:, edge]
    torch.testing.assert_close(graph.total(strengths), by_hand)


@given(graphs())
def test_elimination_meets_every_pair_once_and_joins_what_it_must(graph):
    steps = graph.elimination
    if steps is None:
        return
    when = {step.node: t for t, step in enumerate(steps)}
    assert sorted(when) == list(range(graph.size))
    assert sorted(edge for step in steps for _, edge in step.edges) == list(range(len(graph)))
    for t, step in enumerate(steps):
        assert all(when[other] > t for other in step.rest)
        if step.rest:  # whoever comes next among the neighbours has the others around it by then
            heir = min(step.rest, key=when.__getitem__)
            assert set(step.rest) - {heir} <= set(steps[when[heir]].rest)


@pytest.mark.parametrize(
    ("graph", "width", "colours"),
    [
        (Graph(5, []), 0, 1),
        (Graph(600, [(i, i + 1) for i in range(599)]), 1, 2),
        (Graph(7, [(0, i) for i in range(1, 7)]), 1, 2),
        (Graph(7, [(i, (i + 1) % 7) for i in range(7)]), 2, 3),
        (Graph(9, grid_pairs((3, 3))), 3, 2),
        (Graph(25, grid_pairs((5, 5))), 5, 2),
        (Graph(40, all_pairs(40)), None, 40),
        (Graph(64 * 9, grid_pairs((64, 3, 3))), None, 2),
        (Graph(36_864, grid_pairs((64, 64, 3, 3))), None, 2),
    ],
)
def test_widths_and_colours(graph, width, colours):
    assert graph.width == width or (width == 5 and graph.width in (5, WIDTH))
    assert graph.colouring.max() + 1 == colours


def test_many_components_are_coloured_at_once():
    pairs = np.concatenate([grid_pairs((3, 3)) + 9 * k for k in range(4096)])
    assert Graph(9 * 4096, pairs).colouring.max() == 1


def test_pairs_on_a_grid():
    assert len(grid_pairs((3, 3))) == 12
    assert grid_pairs((2, 3), axes=[1]).tolist() == [[0, 1], [3, 4], [1, 2], [4, 5]]
    assert grid_pairs((1, 1)).shape == (0, 2)
    assert grid_pairs(()).shape == (0, 2)
