"""Metrics of lists against their definitions, one user after another, and against libraries where these agree."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from psrun.parts import gathered_metric
from psrun.recsys.metrics import ranking
from psrun.recsys.metrics.ranking import Examples, mean


def lists(user, label, score, weight) -> dict[int, list[tuple[float, float, float]]]:
    """(score, label, weight) of each user by rank: of equal scores, the less relevant first."""
    found = defaultdict(list)
    for key, *example in zip(user.tolist(), score.tolist(), label.tolist(), weight.tolist()):
        if example[2]:
            found[key].append(tuple(example))
    return {key: sorted(examples, key=lambda each: (-each[0], each[1])) for key, examples in found.items()}


def gain(labels: list[float], exponential: bool) -> float:
    return sum((2**label - 1 if exponential else label) / math.log2(rank + 1) for rank, label in enumerate(labels, 1))


def expected(metric: ranking.RankingMetric, ranked: list[tuple[float, float, float]]) -> float:
    """The value of a user with a relevant example."""
    k = metric.k
    labels = [label for _, label, _ in ranked]
    hits = [rank for rank, label in enumerate(labels, 1) if label > 0 and rank <= k]
    num_relevant = sum(label > 0 for label in labels)
    if isinstance(metric, ranking.NDCG):
        exponential = metric.gain == "exponential"
        return gain(labels[:k], exponential) / gain(sorted(labels, reverse=True)[:k], exponential)
    return {
        "hit_rate": lambda: float(bool(hits)),
        "recall": lambda: len(hits) / (num_relevant if metric.divisor == "relevant" else min(k, num_relevant)),
        "precision": lambda: len(hits) / (k if metric.divisor == "k" else min(k, len(ranked))),
        "mrr": lambda: 1 / hits[0] if hits else 0.0,
        "map": lambda: (
            sum(number / rank for number, rank in enumerate(hits, 1))
            / (num_relevant if metric.divisor == "relevant" else min(k, num_relevant))
        ),
    }[metric.base]()


AT_K = [
    *(kind(k) for kind in (ranking.HitRate, ranking.NDCG, ranking.MRR) for k in (1, 3)),
    *(kind(2, divisor=divisor) for kind in (ranking.Recall, ranking.MAP) for divisor in ("relevant", "achievable")),
    *(ranking.Precision(4, divisor=divisor) for divisor in ("k", "length")),
    ranking.NDCG(2, gain="exponential"),
]


@st.composite
def tables(draw):
    """Users, labels 0 to 2, scores with ties, and weights of which some are 0."""
    size = draw(st.integers(1, 40))
    user = draw(arrays(np.int64, size, elements=st.integers(0, 5)))
    label = draw(arrays(np.float32, size, elements=st.sampled_from([0.0, 0.0, 1.0, 2.0])))
    score = draw(arrays(np.float32, size, elements=st.sampled_from([0.1, 0.2, 0.25, 0.5, 0.75, 0.9])))
    weight = draw(arrays(np.float32, size, elements=st.sampled_from([0.0, 1.0, 1.0, 2.5])))
    return user, label, score, weight


@given(tables(), st.sampled_from(AT_K), st.sampled_from(["skip", "zero"]), st.randoms())
def test_a_metric_is_the_mean_of_its_definition_over_users_in_any_order_of_examples(table, metric, empty, random):
    metric = type(metric)(**{**vars(metric), "empty": empty, "name": ""})
    ranked = lists(*table)
    values = [expected(metric, each) if any(label > 0 for _, label, _ in each) else 0.0 for each in ranked.values()]
    counts = [empty == "zero" or any(label > 0 for _, label, _ in each) for each in ranked.values()]
    order = list(range(len(table[0])))
    random.shuffle(order)
    user, label, score, weight = (column[order] for column in table)
    found = mean(*metric.values(Examples(user, label, score, weight)))
    assert found == pytest.approx(np.average(values, weights=counts) if any(counts) else None)


@given(tables(), st.sampled_from(["impressions", "equal"]))
def test_gauc_is_the_weighted_mean_of_the_aucs_of_users_with_both_classes(table, users):
    aucs, weights = [], []
    for examples in lists(*table).values():
        score, label, weight = np.array(examples).T
        if 0 < (label > 0).sum() < len(label):
            pairs = np.outer(weight[label > 0], weight[label == 0])
            difference = np.subtract.outer(score[label > 0], score[label == 0])
            aucs.append((pairs * ((difference > 0) + (difference == 0) / 2)).sum() / pairs.sum())
            weights.append(weight.sum() if users == "impressions" else 1.0)
    user, label, score, weight = table
    found = mean(*ranking.GroupAUC(users=users).values(Examples(user, label, score, weight)))
    assert found == pytest.approx(np.average(aucs, weights=weights) if aucs else None)


@pytest.mark.thorough
def test_values_are_those_of_scikit_learn_and_trec_eval_where_their_definitions_agree():
    ndcg_score = pytest.importorskip("sklearn.metrics").ndcg_score
    pytrec_eval = pytest.importorskip("pytrec_eval")
    rng = np.random.default_rng(3)
    num_users, num_items, k = 30, 20, 5
    score = rng.permuted(np.tile(np.arange(num_items, dtype=np.float32), (num_users, 1)), axis=1)  # no ties
    label = rng.choice(3, size=(num_users, num_items), p=[0.8, 0.1, 0.1])
    label[:, 0] = 1
    examples = Examples(np.repeat(np.arange(num_users), num_items), label.ravel(), score.ravel())

    def value(metric):
        return mean(*metric.values(examples))

    assert value(ranking.NDCG(k)) == pytest.approx(ndcg_score(label, score, k=k))
    assert value(ranking.NDCG(k, gain="exponential")) == pytest.approx(ndcg_score(2.0**label - 1, score, k=k))
    relevant = {f"{u}": {f"{i}": int(label[u, i]) for i in range(num_items)} for u in range(num_users)}
    run = {f"{u}": {f"{i}": float(score[u, i]) for i in range(num_items)} for u in range(num_users)}
    measures = {f"ndcg_cut_{k}", f"recall_{k}", f"P_{k}", f"map_cut_{k}", f"success_{k}", "recip_rank"}
    trec = pytrec_eval.RelevanceEvaluator(relevant, measures).evaluate(run).values()
    assert {
        f"ndcg_cut_{k}": value(ranking.NDCG(k)),
        f"recall_{k}": value(ranking.Recall(k)),
        f"P_{k}": value(ranking.Precision(k)),
        f"map_cut_{k}": value(ranking.MAP(k, divisor="relevant")),
        f"success_{k}": value(ranking.HitRate(k)),
        "recip_rank": value(ranking.MRR(num_items)),
    } == pytest.approx({name: np.mean([each[name] for each in trec]) for name in measures})


def test_a_model_that_gives_all_items_one_score_gains_nothing():
    examples = Examples(np.zeros(10), np.eye(1, 10)[0], np.full(10, 0.5))
    assert [mean(*gathered_metric(name).values(examples)) for name in ("hit_rate@9", "mrr@10", "gauc")] == [0, 0.1, 0.5]


def test_labels_that_are_ratings_are_relevant_from_a_value_on():
    examples = Examples(np.zeros(4), np.array([5, 3, 4, 1]), np.array([0.1, 0.9, 0.8, 0.2]))
    assert mean(*ranking.Recall(2, relevant_from=4).values(examples)) == 0.5
    assert mean(*ranking.NDCG(1, relevant_from=4).values(examples)) == 0


def test_what_a_metric_cannot_be():
    with pytest.raises(ValueError, match="NaN"):
        Examples(np.zeros(2), np.zeros(2), np.array([np.nan, 1]))
    for make in (
        lambda: ranking.Recall(0),
        lambda: ranking.Recall(True),
        lambda: ranking.NDCG(5, gain="square"),
        lambda: ranking.GroupAUC(users="all"),
        lambda: ranking.MRR(5, empty="drop"),
        lambda: gathered_metric("ndcg"),
        lambda: gathered_metric("ndcg@0"),
        lambda: gathered_metric("ndcg@ten"),
    ):
        with pytest.raises(ValueError, match=r"must be|needs"):
            make()
    assert gathered_metric("AUC") is None
