"""The threshold Q and the converged mask: numpy's quantile, exact counts, ties, and huge tensors."""

import sys

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import gibbsprune as gp
from gibbsprune.threshold import (
    Segments,
    keep_largest,
    kept_count,
    mean_squares,
    order_statistic,
    position,
)

SPARSITIES = st.one_of(
    st.floats(0, 0.999),
    st.integers(0, 99).map(lambda k: k / 100),
    st.tuples(st.integers(0, 20), st.integers(1, 20)).map(lambda t: min(t) / (max(t) + 1)),
)
WEIGHTS = arrays.arrays(np.float64, st.integers(1, 60), elements=st.floats(-2, 2, allow_subnormal=False))
TIED = st.lists(st.integers(0, 3), min_size=1, max_size=30)  # few values, so that many are equal


@given(WEIGHTS, SPARSITIES)
def test_threshold_is_numpys_quantile_of_the_squares(weights, sparsity):
    ours = gp.threshold(torch.from_numpy(weights), sparsity)
    np.testing.assert_allclose(ours, np.quantile(weights**2, sparsity), rtol=1e-9, atol=1e-15)
    ours = gp.threshold(torch.from_numpy(weights).float(), sparsity)
    np.testing.assert_allclose(ours, np.quantile(weights**2, sparsity), rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize(("structure", "axes"), [("kernel", (2, 3)), ("filter", (1, 2, 3))])
def test_threshold_of_neighbourhoods_is_the_quantile_of_their_means(structure, axes):
    weight = np.random.default_rng(0).normal(size=(8, 3, 3, 3))
    expected = np.quantile((weight**2).mean(axes), 0.35)
    np.testing.assert_allclose(gp.threshold(torch.from_numpy(weight), 0.35, structure), expected, rtol=1e-12)


@given(st.permutations(range(1, 24)), SPARSITIES)
def test_without_ties_those_strictly_above_the_threshold_are_kept(values, sparsity):
    weight = torch.tensor(values, dtype=torch.float64)
    mask = gp.converged_mask(weight, sparsity)
    if sparsity:
        assert torch.equal(mask, weight.square() > gp.threshold(weight, sparsity) * (1 + 1e-13))
    assert int(mask.sum()) == kept_count(sparsity, len(values))


@given(TIED, SPARSITIES)
@example([1, 1, 1, 1, 1], 0.5)
def test_with_ties_the_count_is_exact_and_the_lowest_index_comes_first(values, sparsity):
    weight = torch.tensor(values, dtype=torch.float32)
    mask = gp.converged_mask(weight, sparsity)
    keep = kept_count(sparsity, len(values))
    by_hand = sorted(range(len(values)), key=lambda i: (-values[i], i))[:keep]
    assert mask.nonzero().flatten().tolist() == sorted(by_hand)


@pytest.mark.parametrize(
    ("sparsity", "count", "kept"),
    [
        (0.9, 16, 2),  # 0.875 achieved
        (0.75, 16, 4),
        (0.8, 16, 3),  # p(M − 1) = 12 exactly: the one on Q goes
        (0.0, 16, 16),
        (0.29, 101, 71),  # 0.29 · 100 is 28.999… in floating point
        (1 / 3, 4, 2),  # as is 1/3 · 3 in decimals
        (2 / 3, 4, 1),
        (0.9, 36_864, 3687),
        (0.5, 1, 0),
        (0.999999, 2, 1),
    ],
)
def test_how_many_are_kept(sparsity, count, kept):
    assert kept_count(sparsity, count) == kept
    assert int(gp.converged_mask(torch.arange(1.0, count + 1), sparsity).sum()) == kept


@given(st.integers(2, 400), st.data())
def test_a_sparsity_of_whole_neighbourhoods_is_met(count, data):
    """k/(M − 1) as a float is k, whatever its rounding."""
    whole = data.draw(st.integers(0, count - 2))
    assert position(whole / (count - 1), count) == (whole, 0.0)


def test_more_elements_than_torch_quantile_takes():
    count = (1 << 24) + 1001
    weight = torch.arange(count, dtype=torch.float64).flip(0)
    assert float(gp.threshold(weight, 0.25)) == pytest.approx((0.25 * (count - 1)) ** 2, rel=1e-6)
    assert int(gp.converged_mask(weight, 0.25).sum()) == kept_count(0.25, count)
    with pytest.raises(RuntimeError):
        torch.quantile(weight, 0.25)


@given(TIED, st.integers(0, 40))
def test_order_statistic(values, rank):
    rank = min(rank, len(values) - 1)
    low, high = order_statistic(torch.tensor(values).float(), rank)
    order = sorted(values)
    assert (float(low), float(high)) == (order[rank], order[min(rank + 1, len(values) - 1)])


def test_keep_largest_at_its_ends():
    values = torch.tensor([1.0, 2.0, 2.0])
    assert keep_largest(values, 0).tolist() == [False] * 3
    assert keep_largest(values, 3).tolist() == [True] * 3
    assert keep_largest(values, 1).tolist() == [False, True, False]


@given(st.lists(st.tuples(TIED, SPARSITIES), min_size=1, max_size=6))
def test_segments_are_their_layers_and_both_ways_agree(layers):
    """The selection of the CPU and the sort that serves other devices, ties and all."""
    values = torch.cat([torch.tensor(v).float() for v, _ in layers])
    segments = Segments([len(v) for v, _ in layers], [p for _, p in layers])
    single = [torch.tensor(v).float().sqrt() for v, _ in layers]
    expected = torch.stack([gp.threshold(w, p) for w, (_, p) in zip(single, layers)])
    torch.testing.assert_close(segments._selected(values), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(segments._selected(values), segments._sorted(values))
    masks = torch.cat([gp.converged_mask(w, p) for w, (_, p) in zip(single, layers)])
    assert torch.equal(segments.converged(values), masks)
    assert torch.equal(segments._converged_sorted(values), masks)
    device = values.device
    assert torch.equal(segments.spread(expected), expected[segments.segment(device)])


def test_half_precision_is_squared_in_single():
    weight = torch.tensor([1e-3, 2e-3, 300.0], dtype=torch.float16)
    squares = mean_squares(weight, gp.Weight())
    assert squares.dtype == torch.float32
    assert torch.isfinite(squares).all()
    assert (squares > 0).all()


@pytest.mark.parametrize("bad", [1.0, 1.5, -0.1, float("nan"), float("inf"), "many"])
def test_sparsity_outside_its_range(bad):
    for call in (gp.threshold, gp.converged_mask, lambda w, p: gp.sample(w, sparsity=p)):
        with pytest.raises(gp.UserError) as error:
            call(torch.ones(3), bad)
        assert str(error.value) == f"sparsity is {bad!r}: allowed are numbers from 0 up to but not 1"


def test_weights_that_are_none():
    with pytest.raises(gp.UserError, match=r"^weight is torch.int64: allowed are floating-point tensors$"):
        gp.threshold(torch.arange(3), 0.5)
    with pytest.raises(gp.UserError, match=r"^weight is list: allowed are floating-point tensors$"):
        gp.converged_mask([1.0, 2.0], 0.5)
    with pytest.raises(gp.UserError, match=r"^weight has shape \(0, 3\), which holds no element$"):
        gp.threshold(torch.ones(0, 3), 0.5)


@pytest.mark.parametrize("size", [1, 9])
@pytest.mark.parametrize("programs", [1, 4, 10**6])
def test_pieces_cover_every_segment_once(monkeypatch, programs, size):
    module = sys.modules[Segments.__module__]
    monkeypatch.setattr(module, "PROGRAMS", programs)
    lengths = [1, 5000, 2048, 70, 30_000]
    segments = Segments(lengths, [0.5] * 5)
    pieces = segments.pieces(torch.device("cpu"), size).numpy()
    found = np.concatenate([
        np.stack([np.full(n, k), start + np.arange(n), first + np.arange(n)]) for k, start, first, n in pieces
    ], 1)  # fmt: skip
    segment = np.repeat(np.arange(5), np.array(lengths) * size)
    inside = np.concatenate([np.arange(length * size) for length in lengths])
    assert np.array_equal(found, np.stack([segment, np.arange(len(segment)), inside]))
    assert (pieces[:, 2] % module.PIECE == 0).all()
    assert len(pieces) <= programs + len(lengths)
