"""Whether a metric of two classes is defined by the examples that it has seen."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
import tf_keras

from psrun.program.objective import is_undefined

pytestmark = pytest.mark.tensorflow

PREDICTIONS = [[0.2], [0.7], [0.4]]
METRICS: dict[str, Any] = {
    "AUC": {}, "Recall": {}, "SensitivityAtSpecificity": {"specificity": 0.5}, "PrecisionAtRecall": {"recall": 0.5},
    "SpecificityAtSensitivity": {"sensitivity": 0.5}, "RecallAtPrecision": {"precision": 0.5}, "Precision": {},
    "BinaryAccuracy": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("labels", "weights", "undefined"),
    [
        ([0, 1, 0], None, set()),
        ([0, 0, 0], None, METRICS.keys() - {"Precision", "BinaryAccuracy"}),
        ([0, 1, 0], [1, 0, 1], METRICS.keys() - {"Precision", "BinaryAccuracy"}),
        ([1, 1, 1], None, {"AUC", "SensitivityAtSpecificity", "SpecificityAtSensitivity"}),
    ],
)
def test_a_metric_is_undefined_where_a_class_that_it_is_about_has_no_example(labels, weights, undefined):
    found = set()
    for name, options in METRICS.items():
        metric = getattr(tf_keras.metrics, name)(**options)
        metric.update_state(tf.constant(labels)[:, None], tf.constant(PREDICTIONS), sample_weight=weights)
        if is_undefined(metric):
            found.add(name)
    assert found == undefined


@pytest.mark.parametrize(
    ("label", "other", "undefined"),
    [([0, 1, 0], [0, 1, 1], False), ([0, 1, 0], [1, 1, 1], False), ([0, 0, 0], [1, 1, 1], True)],
)
def test_an_auc_of_several_labels_is_undefined_where_those_of_all_are(label, other, undefined):
    metric = tf_keras.metrics.AUC(multi_label=True, num_labels=2)
    labels = tf.stack([tf.constant(label), tf.constant(other)], axis=1)
    metric.update_state(labels, tf.concat([PREDICTIONS, PREDICTIONS], axis=1))
    assert is_undefined(metric) == undefined
    precision_recall = tf_keras.metrics.AUC(curve="PR")
    precision_recall.update_state([[1], [1], [1]], PREDICTIONS)
    assert not is_undefined(precision_recall)
