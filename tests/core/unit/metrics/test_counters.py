"""Metrics that are sums and counts, against their definitions in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from psrun import metrics
from psrun.config import rules
from psrun.program.objective import value_of

pytestmark = pytest.mark.tensorflow

SIZE = 20_000


def updated(metric, label, score, weight=None, *, parts: int = 3):
    """The metric after batches in a function, as evaluations update it."""

    @tf.function
    def update(*batch):
        metric.update_state(*batch)

    weights = np.ones(len(label), np.float32) if weight is None else weight
    for batch in zip(*(np.array_split(column, parts) for column in (label[:, None], score[:, None], weights))):
        update(*batch)
    return metric


@pytest.fixture(scope="module")
def label():
    return (np.random.default_rng(0).random(SIZE) < 0.2).astype(np.float32)


def auc_of_pairs(label, score, weight=None) -> float:
    """The share of the weight of pairs that are in order."""
    weight = np.ones(len(label)) if weight is None else weight
    order = np.argsort(score, kind="stable")
    label, score, weight = label[order], score[order].astype(np.float64), weight[order].astype(np.float64)
    negatives = np.append(0, np.cumsum(weight * (label == 0)))
    below = negatives[np.searchsorted(score, score, "left")]
    up_to = negatives[np.searchsorted(score, score, "right")]
    positives = weight * (label > 0)
    return float((positives * (below + up_to) / 2).sum() / positives.sum() / negatives[-1])


def log_loss(label, probability, weight) -> float:
    losses = -(label * np.log(probability) + (1 - label) * np.log(1 - probability))
    return float(np.average(losses, weights=weight))


def scores(name: str, label: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(1)
    return {
        "uniform": np.clip(0.8 * rng.random(SIZE) + 0.2 * label, 0, 1),
        "of rare clicks": rng.beta(1, 2000, SIZE) * (1 + label),
        "almost certain": 1 - rng.beta(1, 2000, SIZE) * (2 - label),
        "around a half": 0.49 + 0.02 * rng.beta(2 + label, 2),
        "few values": rng.integers(0, 5, SIZE) / 4,
        "below the smallest interval": 10.0 ** rng.uniform(-20, -11, SIZE),
    }[name].astype(np.float32)


@pytest.mark.parametrize(
    ("name", "in_training"),
    [("uniform", 1e-4), ("of rare clicks", 1e-3), ("almost certain", 1e-3), ("around a half", 2e-3), ("few values", 0)],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_an_auc_is_that_of_ranks(label, name, in_training, weighted):
    score = scores(name, label)
    weight = np.random.default_rng(2).integers(0, 4, SIZE).astype(np.float32) if weighted else None
    expected = auc_of_pairs(label, score, weight)
    assert value_of(updated(metrics.AUC(), label, score, weight)) == pytest.approx(expected, abs=1e-5)
    coarse = updated(metrics.AUC(bits=8), label, score, weight)
    assert value_of(coarse) == pytest.approx(expected, abs=in_training + 1e-9)
    coarse.reset_state()
    assert value_of(updated(coarse, label, score, weight)) == pytest.approx(expected, abs=in_training + 1e-9)


def test_scores_that_no_interval_tells_apart_are_equal(label):
    assert value_of(updated(metrics.AUC(), label, scores("below the smallest interval", label))) == 0.5


def test_an_auc_of_logits_is_that_of_ranks_where_probabilities_are_all_1(label):
    logits = (30 + np.random.default_rng(1).normal(size=SIZE) + label).astype(np.float32) - 18
    expected = auc_of_pairs(label, logits)
    assert value_of(updated(metrics.AUC(from_logits=True), label, logits)) == pytest.approx(expected, abs=1e-4)


def test_scores_beyond_0_and_1_count_as_these():
    label = np.array([1, 0, 0, 1], np.float32)
    beyond = updated(metrics.AUC(), label, np.array([3, 1, 0, -1], np.float32), parts=1)
    assert value_of(beyond) == value_of(updated(metrics.AUC(), label, np.array([1, 1, 0, 0], np.float32), parts=1))


@pytest.mark.parametrize("from_logits", [False, True])
def test_losses_and_calibration_are_their_definitions_over_all_batches(label, from_logits):
    rng = np.random.default_rng(4)
    weight = rng.integers(0, 4, SIZE).astype(np.float32)
    logit = rng.normal(-1, 2, SIZE).astype(np.float32)
    probability = 1 / (1 + np.exp(-logit.astype(np.float64)))
    score = logit if from_logits else probability.astype(np.float32)
    loss = log_loss(label, probability, weight)
    base = np.full(SIZE, np.average(label, weights=weight))
    expected = {
        "log_loss": loss,
        "normalized_entropy": loss / log_loss(label, base, weight),
        "calibration": (weight * probability).sum() / (weight * label).sum(),
    }
    made = {name: metrics.OF_PROBABILITIES[name](from_logits=from_logits) for name in expected}
    assert {name: value_of(updated(each, label, score, weight)) for name, each in made.items()} == pytest.approx(
        expected, rel=1e-5
    )
    for each in made.values():
        each.reset_state()
        assert type(each).from_config(each.get_config()).from_logits == from_logits


@pytest.mark.parametrize(
    ("name", "label", "is_undefined"),
    [
        ("auc", 0.0, True),
        ("auc", 1.0, True),
        ("normalized_entropy", 0.0, True),
        ("normalized_entropy", 1.0, True),
        ("calibration", 0.0, True),
        ("calibration", 1.0, False),
        ("log_loss", 0.0, False),
    ],
)
def test_one_class(name, label, is_undefined):
    metric = updated(metrics.OF_PROBABILITIES[name](), np.full(6, label, np.float32), np.full(6, 0.5, np.float32))
    assert (value_of(metric) is None) == is_undefined


def test_the_configuration_knows_the_names_of_all_metrics_of_probabilities():
    assert set(rules.METRICS_OF_PROBABILITIES) == set(metrics.OF_PROBABILITIES)
