"""Two methods in pairs, image by image."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

import fake_results
from gibbsprune.errors import UserError
from paper import cells, pairs
from paper.groups import Results

IMAGES, CLASSES = 4000, 10


@given(st.integers(0, 2000), st.integers(0, 2000))
def test_mcnemar_is_an_exact_binomial_test(first, second):
    wanted = binomtest(first, first + second).pvalue if first + second else 1.0
    assert pairs.mcnemar(first, second) == pytest.approx(wanted, rel=1e-6, abs=1e-300)


def seen(labels: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Predictions that are right where they are said to be."""
    return np.where(right, labels, (labels + 1) % CLASSES).astype(np.uint8)


def made(folder, gain: float, seeds: int, generator: np.random.Generator) -> tuple:
    """Two methods that agree on most images; the second is right on ``gain`` more of all of them, in expectation."""
    labels = generator.integers(0, CLASSES, IMAGES).astype(np.uint8)
    kinds = [], []
    (folder / pairs.PREDICTIONS).mkdir(parents=True, exist_ok=True)
    for seed in range(seeds):
        draw = generator.random(IMAGES)
        right = draw < 0.9, (draw < 0.88) | ((draw > 0.96 - gain) & (draw < 0.98))
        for method, group, one in zip(("gibbs", "gradual"), kinds, right):
            record = fake_results.record(cells.run("resnet20", method, seed=seed), 0.9)
            group.append(record)
            np.savez_compressed(folder / pairs.PREDICTIONS / f"{record['name']}.npz", classes=seen(labels, one))
    results = Results([*kinds[0], *kinds[1]])
    one, other = (results.of(cells.run("resnet20", method)) for method in ("gibbs", "gradual"))
    return one, other, labels


def test_a_small_difference_is_seen_in_pairs(tmp_path):
    """A gain of one point, of which three seeds of accuracies would say nothing."""
    one, other, labels = made(tmp_path, 0.01, 3, np.random.default_rng(0))
    found = pairs.compare(tmp_path, other, one, labels)
    assert [each.seed for each in found.pairs] == [0, 1, 2]
    assert found.ahead == pytest.approx(0.01, abs=0.006)
    assert found.p < 0.01
    reverse = pairs.compare(tmp_path, one, other, labels)
    assert (reverse.ahead, reverse.p) == (-found.ahead, pytest.approx(found.p))


def test_equal_methods_differ_as_often_as_chance_says(tmp_path):
    """Within five standard errors, over 400 comparisons of two seeds."""
    generator, found = np.random.default_rng(1), []
    for _ in range(400):
        labels = np.zeros(IMAGES, np.uint8)
        draws = [generator.random((2, IMAGES)) < 0.9 for _ in range(2)]
        each = [pairs.pair(s, seen(labels, one), seen(labels, other), labels) for s, (one, other) in enumerate(draws)]
        found.append(pairs.combined(each))
    assert np.mean(np.array(found) < 0.05) == pytest.approx(0.05, abs=5 * math.sqrt(0.05 * 0.95 / 400))


def test_only_seeds_that_both_have_are_paired(tmp_path):
    one, other, labels = made(tmp_path, 0.0, 2, np.random.default_rng(2))
    (tmp_path / pairs.PREDICTIONS / f"{other.records[0]['name']}.npz").unlink()
    assert [each.seed for each in pairs.compare(tmp_path, one, other, labels).pairs] == [1]
    assert pairs.compare(tmp_path / "none", one, other, labels) is None


def test_damaged_predictions_are_told(tmp_path):
    one, other, labels = made(tmp_path, 0.0, 1, np.random.default_rng(3))
    with pytest.raises(UserError, match="predictions and labels differ in shape"):
        pairs.compare(tmp_path, one, other, labels[1:])
    file = tmp_path / pairs.PREDICTIONS / f"{one.records[0]['name']}.npz"
    for content in (b"", b"PK\x03\x04", file.read_bytes()[:-30]):
        file.write_bytes(content)
        with pytest.raises(UserError, match="holds no predictions"):
            pairs.compare(tmp_path, one, other, labels)
