"""Models whose predictions do not fit the labels are refused before the training."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tensorflow as tf
import tf_keras

from psrun.errors import ConfigError
from psrun.models.model import Model
from psrun.program import objective

pytestmark = pytest.mark.tensorflow


class Computing(tf_keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        return tf.reduce_mean(y_pred)


@pytest.mark.parametrize(
    ("prediction", "label", "task", "fits"),
    [
        ((None, 1), (None,), "binary", True),
        ((None,), (None, 1), "regression", True),
        ((None, 5), (None, 5), "binary", True),  # several labels an example
        ((None, 5), (None, 1), "binary", False),
        ((None, 7, 1), (None, 1), "binary", False),  # a sequence that was not pooled
        ((None, 7, 1), (None, 7), "regression", True),
        ((None, None), (None, 1), "regression", False),
        ((None, 10), (None, 1), "multiclass", True),
        ((None, 7, 10), (None,), "multiclass", False),
        ((None, 7, 10), (None, 7), "multiclass", True),
        ((None, 1, 1), (None, 1), "regression", True),
        ((None, 1, 1), (None,), "regression", False),  # would be (batch, batch) pairs
        ((None,), (None, 1, 1), "regression", False),
        ((None, 1), (None, 1, 1), "binary", False),
        (None, (None, 1), "binary", True),  # not known
    ],
)
def test_what_keras_compares_without_broadcasting_fits(prediction, label, task, fits):
    specs = [tf.TensorSpec(shape, tf.float32) for shape in (prediction, label)]
    given = (Model(tf_keras.Sequential()), SimpleNamespace(task=task, num_classes=10))
    if fits:
        objective.check_widths(*specs, *given)
        return
    with pytest.raises(ConfigError, match="model"):
        objective.check_widths(*specs, *given)


def test_a_model_with_a_loss_of_its_own_may_return_anything():
    specs = tf.TensorSpec((None, 3), tf.float32), tf.TensorSpec((None, 1), tf.float32)
    for model in (Model(tf_keras.Sequential(), loss="mse"), Model(Computing())):
        objective.check_widths(*specs, model, SimpleNamespace(task="binary", num_classes=1))
