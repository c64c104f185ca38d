"""Ranks among all candidates, against full lists of scores."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from psrun.parts import gathered_metric
from psrun.recsys.metrics import ranking, retrieval
from psrun.recsys.metrics.ranking import Examples, RelevantExamples, mean

NUM_USERS, NUM_ITEMS = 5, 12
AT_K = ("hit_rate", "recall", "precision", "ndcg", "mrr", "map")
METRICS = [
    *(gathered_metric(f"{base}@{k}") for base in AT_K for k in (1, 4)),
    ranking.Precision(20, divisor="length"),
    ranking.GroupAUC(users="equal"),
]


@st.composite
def scored(draw):
    """Scores with ties, and which items are relevant and which excluded; each user has a relevant one."""
    score = draw(arrays(np.float32, (NUM_USERS, NUM_ITEMS), elements=st.sampled_from([0.0, 0.1, 0.5, 0.9])))
    relevant = draw(arrays(bool, (NUM_USERS, NUM_ITEMS), elements=st.booleans()))
    relevant[:, draw(st.integers(0, NUM_ITEMS - 1))] = True
    excluded = draw(arrays(bool, (NUM_USERS, NUM_ITEMS), elements=st.booleans())) & ~relevant
    return score, relevant, excluded


@pytest.mark.parametrize("counted", [0, 100], ids=["sorted", "counted"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=scored())
def test_metrics_of_ranks_are_those_of_whole_lists(monkeypatch, counted, drawn):
    score, relevant, excluded = drawn
    monkeypatch.setattr(retrieval, "_COUNTED", counted)
    users, items = np.nonzero(~excluded)
    whole = Examples(users, relevant[users, items].astype(float), score[users, items])
    user, item = np.nonzero(relevant)
    pairs = np.nonzero(excluded)
    rank, equal_or_higher, higher = retrieval.ranks(score.copy(), (user, item), pairs)
    lengths = (~excluded).sum(1)[user]
    found = RelevantExamples(user, np.ones(len(user)), rank, higher, equal_or_higher - higher, lengths)
    for metric in METRICS:
        assert mean(*metric.values(found)) == pytest.approx(mean(*metric.values(whole))), metric.name


def test_pairs_are_distinct_and_in_the_order_of_users():
    pairs = retrieval.Pairs.of(np.array([2, 0, 2, 0, 2]), np.array([1, 5, 1, 5, 0]))
    assert [pairs.user.tolist(), pairs.item.tolist()] == [[0, 2, 2], [5, 0, 1]]
    assert [each.tolist() for each in pairs.of_users(1, 3)] == [[2, 2], [0, 1]]


def test_what_the_first_items_of_lists_cover():
    first = np.array([[1, 2], [0, 2]])
    popularity = np.array([4, 1, 3, 0])
    assert ranking.Coverage(2).value(first, popularity) == 0.75
    assert ranking.Popularity(2).value(first, popularity) == pytest.approx((1 + 3 + 4 + 3) / 4 / 4)


def test_scores_that_are_nan_are_an_error():
    with pytest.raises(ValueError, match="NaN"):
        retrieval.ranks(np.array([[np.nan, 1.0]]), (np.array([0]), np.array([1])), (np.array([0]), np.array([0])))
