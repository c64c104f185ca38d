"""The items that an approximate index finds, beside all products."""

from __future__ import annotations

import numpy as np
import pytest

from psrun.recsys.approximate_index import ApproximateIndex

pytestmark = pytest.mark.thorough  # needs the extra psrun[faiss]


def test_most_of_the_first_items_are_found_and_none_that_is_excluded():
    pytest.importorskip("faiss")
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(20, 8))
    items = (centers[rng.integers(20, size=3000)] + 0.3 * rng.normal(size=(3000, 8))).astype(np.float32)
    query = (centers[rng.integers(20, size=50)] + 0.3 * rng.normal(size=(50, 8))).astype(np.float32)
    scores = query @ items.T
    best = np.argsort(-scores, axis=1)[:, :3]
    excluded = np.repeat(np.arange(50), 3), best.reshape(-1)
    scores[excluded] = -np.inf
    expected = np.argsort(-scores, axis=1)[:, :10]
    found, values = ApproximateIndex(items).top(query, 10, excluded)
    assert not any(set(row) & set(taken) for row, taken in zip(found.tolist(), best.tolist()))
    shared = [len(set(row) & set(right)) for row, right in zip(found.tolist(), expected.tolist())]
    assert np.mean(shared) > 9
    assert (np.diff(values, axis=1) <= 0).all()
    assert values == pytest.approx(np.take_along_axis(query @ items.T, found, axis=1), rel=1e-4)


def test_what_is_not_found_has_no_score():
    pytest.importorskip("faiss")
    items = np.eye(3, dtype=np.float32)
    none = np.zeros(0, np.int64), np.zeros(0, np.int64)
    found, values = ApproximateIndex(items).top(items[:1], 5, none)
    assert found[0, 0] == 0
    assert np.isfinite(values).sum() == 3
