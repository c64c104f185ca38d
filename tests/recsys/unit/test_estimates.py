"""Intervals and segments of metrics, and the examples that are kept for them."""

from __future__ import annotations

import numpy as np
import pytest

from psrun import metrics
from psrun.errors import ConfigError
from psrun.parts import gathered_metric
from psrun.recsys.kept_examples import KeptExamples
from psrun.recsys.metrics.estimates import OTHERS, Columns, by_segment, estimates

pytestmark = pytest.mark.tensorflow

METRICS = [gathered_metric("hit_rate@1"), gathered_metric("gauc")]


def columns(num_users: int, seed: int = 0, by=None) -> Columns:
    """Ten examples of each user, of whom one in two has the relevant one first."""
    rng = np.random.default_rng(seed)
    user = np.repeat(np.arange(num_users), 10)
    label = np.tile(np.eye(1, 10)[0], num_users)
    is_liked = np.repeat(rng.random(num_users) < 0.5, 10)
    score = np.where(label * is_liked > 0, 1.0, rng.random(len(user)) * 0.9).astype(np.float32)
    return Columns(user, label, score, score, np.ones(len(user)), by or {})


def test_an_interval_has_the_width_of_the_spread_of_the_metric_over_samples_of_users():
    whole = estimates(columns(400), METRICS, "binary")
    low, high = whole["intervals"]["hit_rate@1"]
    standard_error = np.sqrt(0.25 / 400)
    assert (high - low) / 2 == pytest.approx(1.96 * standard_error, rel=0.3)
    assert (low + high) / 2 == pytest.approx(whole["metrics"]["hit_rate@1"])
    values = [estimates(columns(400, seed), METRICS, "binary")["metrics"]["auc"] for seed in range(20)]
    low, high = whole["intervals"]["auc"]
    assert (high - low) / 2 == pytest.approx(1.96 * np.std(values), rel=0.6)


def test_more_users_than_blocks_have_about_the_same_interval(monkeypatch):
    low, high = estimates(columns(400), METRICS)["intervals"]["gauc"]
    monkeypatch.setattr("psrun.recsys.metrics.estimates._BLOCKS", 100)
    other_low, other_high = estimates(columns(400), METRICS)["intervals"]["gauc"]
    assert other_high - other_low == pytest.approx(high - low, rel=0.5)


def test_a_single_user_has_no_interval():
    alone = estimates(columns(1), METRICS, "binary")
    assert (alone["users"], alone["intervals"]) == (1, {})
    assert alone["metrics"]["hit_rate@1"] is not None


def test_segments_are_values_or_quarters_and_each_is_measured_alone():
    num_users = 100
    country = np.repeat(np.arange(num_users) % 25, 10)
    age = np.repeat(np.arange(num_users) * 1.0, 10)
    rows = columns(num_users, by={"country": country, "age": age})
    segments = by_segment(rows, METRICS, "binary", {"country": [f"c{index:02}" for index in range(25)]})
    names = [each["value"] for each in segments if each["column"] == "country"]
    assert (len(names), names[0], names[-1]) == (21, "c00", OTHERS)
    quarters = [each for each in segments if each["column"] == "age"]
    assert [(each["value"], each["users"]) for each in quarters] == [
        ("0 to 24.75", 25), ("24.75 to 49.5", 25), ("49.5 to 74.25", 25), ("74.25 to 99", 25)
    ]  # fmt: skip
    alone = estimates(rows.at(np.flatnonzero(age < 24.75)), METRICS, "binary")
    assert quarters[0]["metrics"] == alone["metrics"]


def test_a_regression_has_the_errors_of_its_numbers():
    label = np.array([1.0, 2.0, 3.0])
    rows = Columns(None, label, label, label + np.array([1, -1, 3]), np.array([1.0, 1.0, 2.0]), {})
    found = estimates(rows, [], "regression")
    assert (found["users"], found["metrics"]) == (None, pytest.approx({"mae": 2.0, "rmse": 5**0.5}))


@pytest.mark.parametrize(("from_logits", "shift"), [(False, -1), (True, -1), (True, 14), (True, -14)])
def test_probabilities_are_measured_as_the_counters_of_an_evaluation_do(from_logits, shift):
    rng = np.random.default_rng(3)
    label = (rng.random(3000) < 0.3).astype(np.float32)
    logit = (label + shift + 2 * rng.normal(size=3000)).astype(np.float32)
    probability = (1 / (1 + np.exp(-logit.astype(np.float64)))).astype(np.float32)
    score = logit if from_logits else probability
    weight = rng.integers(0, 4, 3000).astype(np.float32)
    rows = Columns(None, label, score, probability, weight, {})
    found = estimates(rows, [], "binary", intervals=metrics.Intervals(from_logits))["metrics"]
    made = {name: kind(from_logits=from_logits) for name, kind in metrics.OF_PROBABILITIES.items()}
    for metric in made.values():
        metric.update_state(label, score, weight)
    assert found == pytest.approx({name: float(metric.result()) for name, metric in made.items()}, rel=1e-6)
    auc = pytest.importorskip("sklearn.metrics").roc_auc_score(label, score.astype(np.float64), sample_weight=weight)
    assert found["auc"] == pytest.approx(auc, abs=2e-5)
    counted = metrics.AUC(from_logits=from_logits)
    counted.update_state(label, score, weight)
    assert found["auc"] == pytest.approx(float(counted.result()), abs=1e-12)


def kept(rows: Columns, order: np.ndarray, most: int) -> dict:
    examples = KeptExamples(METRICS, "binary", most)
    for part in np.array_split(order, 7):
        chosen = rows.at(part)
        examples.add({"user": chosen.user * 7919, "by": {}}, chosen.label, chosen.score, chosen.score, None)
    return examples.result()


def test_memory_is_bounded_by_a_sample_of_whole_users_whatever_the_order():
    rows = columns(500)
    order = np.random.default_rng(1).permutation(len(rows.label))
    sampled = kept(rows, np.arange(len(order)), 2000)
    assert sampled["examples"] <= 2000
    assert sampled["examples"] == 10 * sampled["users"]
    assert sampled["users"] / 500 == pytest.approx(sampled["share_of_users"], rel=0.4)
    again = kept(rows, order, 2000)
    assert again["metrics"] == pytest.approx(sampled["metrics"], abs=1e-12)
    assert kept(rows, order, 5000)["share_of_users"] == 1


def test_examples_without_users_that_do_not_fit_and_scores_that_are_nan_are_errors():
    examples = KeptExamples([], "binary", most=10)
    with pytest.raises(ConfigError, match=r"evaluation\.user"):
        examples.add({"by": {}}, *np.zeros((3, 11)), None)
    with pytest.raises(ConfigError, match="kept no examples"):
        KeptExamples(METRICS, None).result()
    examples = KeptExamples(METRICS, None)
    examples.add({"user": np.zeros(2, np.int64), "by": {}}, *np.full((3, 2), np.nan), None)
    with pytest.raises(ConfigError, match="NaN"):
        examples.result()
