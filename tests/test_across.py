"""Pairs by the names of layers: what is refused, and in which words."""

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import gibbsprune as gp
from gibbsprune.across import Across
from gibbsprune.errors import UserError


def network(pairs, strengths=-1.0, **options):
    return gp.Pairwise(pairs, strengths, "network", **options)


def pruner(pairs, strengths=-1.0, **options):
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 4))
    energy = pairs if isinstance(pairs, gp.Pairwise) else network(pairs, strengths)
    return gp.GibbsPruner(model, 0.5, "filter", energy, **{"include": ["0", "2"]} | options)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: network([(0, 1)]), "pairs is [(0, 1)]: allowed are mappings from two layer names to pairs of their"),
        (lambda: network({}), "pairs is {}: allowed are mappings"),
        (lambda: network({"a": [(0, 1)]}), "the key of pairs is 'a': allowed are two layer names"),
        (lambda: network({("a", 1): [(0, 1)]}), "the key of pairs is ('a', 1): allowed are two layer names"),
        (lambda: network({("a", "b"): [(0.5, 1)]}), "pairs are float64 of shape (1, 2)"),
        (lambda: network({("a", "b"): [(0, -1)]}), "pairs name element -1 of layer 'b'"),
        (lambda: network({("a", "a"): [(0, 1), (2, 2)]}), "pairs couple element 2 of layer 'a' with itself"),
        (lambda: network({("a", "b"): [(0, 1)], ("b", "a"): [(1, 0)]}),
         "pairs name 0 of layer 'a' and 1 of layer 'b' more than once: allowed is each pair once"),
        (lambda: network({("a", "b"): [(0, 1)]}, [1.0, 2.0]), "strengths have shape (2,): allowed are one number and"),
        (lambda: network({("a", "b"): [(0, 1)]}, math.inf), "strengths hold NaN or infinite numbers"),
        (lambda: network({("a", "b"): [(0, 1)]}, "strong"), "strengths is 'strong'"),
        (lambda: gp.Pairwise({("a", "b"): [(0, 1)]}, 1.0), "within is 'neighbourhood': allowed are 'network' where"),
        (lambda: pruner({("0", "4"): [(0, 0)]}), "pairs name layer '4': allowed are those that are pruned, '0', '2'"),
        (lambda: pruner({("0", "none"): [(0, 0)]}), "pairs name layer 'none': allowed are those that are pruned"),
        (lambda: pruner({("0", "2"): [(0, 3)]}), "pairs name element 3 of layer '2': allowed are 0 to 2"),
        (lambda: pruner({("0", "2"): gp.kth_pairs}), "counts are 4 and 3: allowed are two equal ones"),
        (lambda: pruner({("0", "0"): lambda n: gp.all_pairs(n[0])}, [1.0] * 5),
         "strengths have shape (5,): allowed are one number and 6"),
        (lambda: pruner({("0", "2"): [(0, 0)]}, sampler="low_rank"), "sampler is 'low_rank': allowed are 'auto', 'tr"),
        (lambda: gp.sample(torch.ones(4, 3), network({("a", "b"): [(0, 1)]}), "filter"),
         "within is 'network': allowed are those of a layer where there is a single one"),
        (lambda: gp.energy(torch.ones(4, 3) > 0, torch.rand(4, 3), network({("a", "b"): [(0, 1)]}), "filter"),
         "within is 'network': allowed are those of a layer where there is a single one"),
        (lambda: gp.sample(torch.ones(4, 8), network({("a", "b"): [(0, 1)]}), "2:4"), "hamiltonian is Pairwise"),
        (lambda: gp.Pairwise.low_rank(np.ones((1, 4)), "network"), "vectors is array"),
        (lambda: gp.Pairwise.low_rank({"a": np.ones((1, 4))}), "vectors is {'a'"),
        (lambda: gp.Pairwise.low_rank({"a": np.ones((1, 4)), "b": np.ones((2, 4))}, "network"), "vectors is {'a'"),
        (lambda: pruner(gp.Pairwise.low_rank({"0": np.ones((1, 4)), "2": np.ones((1, 2))}, "network")),
         "vectors have 2 elements of layer '2': allowed are 3, as it has"),
    ],
)  # fmt: skip
def test_bad_pairs_are_refused_in_one_sentence(make, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)) as caught:
        make()
    assert "\n" not in str(caught.value)


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 5), min_size=1), st.data())
def test_any_pairs_are_taken_or_refused_in_a_sentence(counts, data):
    """Taken where every pair is of two known elements, and each there once."""
    name, number = st.sampled_from(["a", "b", "c"]), st.integers(-1, 5)
    some = st.lists(st.tuples(number, number), max_size=4)
    given_ = data.draw(st.dictionaries(st.tuples(name, name), some, min_size=1, max_size=3))
    edges = [frozenset([(a, i), (b, j)]) for (a, b), pairs in given_.items() for i, j in pairs]
    ends = [end for edge in edges for end in edge]
    good = all(n in counts for names in given_ for n in names) and all(0 <= k < counts[n] for n, k in ends)
    good = good and all(len(edge) == 2 for edge in edges) and len(set(edges)) == len(edges)

    def make():
        across = Across(given_)
        return across.names, across.graph(across.of(counts))

    if not good:
        with pytest.raises(UserError, match=r"^[^\n]* allowed [^\n]*$"):
            make()
        return
    names, graph = make()
    places = [(n, k) for n in names for k in range(counts[n])]
    assert [frozenset(places[k] for k in pair) for pair in graph.pairs.tolist()] == edges


def test_equal_pairs_are_equal_energies():
    one, two = (network({("a", "b"): np.array([(0, 1)])}) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert repr(one) == repr(two) == "Pairwise(pairs of 'a', 'b', -1, within='network', base=Linear('square'))"
    assert one != network({("a", "b"): np.array([(1, 1)])})
    assert one != network({("a", "c"): np.array([(0, 1)])})
