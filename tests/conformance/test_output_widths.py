"""Models whose predictions do not fit the labels are refused before the training, by what the last layer must be."""

from __future__ import annotations

import pytest
import tensorflow as tf
import tf_keras
from support import SMALL, run_config

from psrun.cluster.strategy import Distribution
from psrun.data.source import Feature
from psrun.errors import ConfigError
from psrun.models.model import Model
from psrun.program import output_widths
from psrun.program.build import build, build_state, start_afresh
from psrun.program.compiled_model import Program

pytestmark = pytest.mark.tensorflow


class Labelled:
    """Data of one feature, with labels as the test wants them."""

    features = {"x": Feature((2,), tf.float32)}
    num_train_examples = num_eval_examples = 64
    facts = {}

    def __init__(self, task: str, num_classes: int = 1) -> None:
        self.task, self.num_classes = task, num_classes

    def evaluation(self, *, batch_size: int) -> tf.data.Dataset:
        label = tf.zeros([64], tf.int64) if self.task == "multiclass" else tf.zeros([64, 1])
        return tf.data.Dataset.from_tensor_slices(({"x": tf.zeros([64, 2])}, label)).batch(batch_size)

    def train(self, *, batch_size: int, seed: tf.Tensor) -> tf.data.Dataset:
        return self.evaluation(batch_size=batch_size).repeat()


class Computing(tf_keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        return tf.reduce_mean(y_pred)


def layered(source, *, units: int, own_loss: bool = False, computing: bool = False):
    x = tf_keras.Input((2,), name="x")
    kind = Computing if computing else tf_keras.Model
    network = kind({"x": x}, tf_keras.layers.Dense(units, activation="sigmoid")(x))
    return Model(network, loss=tf_keras.losses.MeanSquaredError()) if own_loss else network


def built(task: str, units: int, *more: str) -> Program:
    data = {"binary": 1, "multiclass": 10, "regression": 1}
    run = run_config(
        "cluster=none", "data=regression", *SMALL["regression"], "model=dense", "~model.hidden_units",
        "model._target_=test_output_widths.layered", f"+model.units={units}", *more,
    )  # fmt: skip
    start_afresh(1)
    program = build(run, Labelled(task, data[task]), Distribution(tf.distribute.get_strategy()))
    build_state(program)
    return program


@pytest.mark.parametrize(
    ("task", "units", "message"),
    [
        ("multiclass", 3, r"shape \(batch, 3\), but the data has 10 classes .*: end the model with Dense\(10\)"),
        ("multiclass", 1, r"end the model with Dense\(10\)"),
        ("binary", 2, r"shape \(batch, 2\), but labels have shape \(batch, 1\) \(task=binary\): .* Dense\(1\)"),
        ("regression", 3, r"labels have shape \(batch, 1\) \(task=regression\): end the model with Dense\(1\)"),
    ],
)
def test_a_model_of_another_width_is_refused_by_what_it_must_end_with(task, units, message):
    with pytest.raises(ConfigError, match=f"model: returns predictions of .*{message}"):
        built(task, units)


@pytest.mark.parametrize(("task", "units"), [("multiclass", 10), ("binary", 1), ("regression", 1)])
def test_a_model_that_fits_is_built(task, units):
    assert built(task, units).network.built


def test_a_model_with_a_loss_of_its_own_may_return_anything():
    assert built("binary", 3, "+model.own_loss=true").network.built
    assert built("regression", 3, "+model.computing=true").network.built


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
        (None, (None, 1), "binary", True),  # not known
    ],
)
def test_what_keras_compares_without_broadcasting_fits(prediction, label, task, fits):
    specs = [tf.TensorSpec(shape, tf.float32) for shape in (prediction, label)]
    given = (Model(tf_keras.Sequential()), Labelled(task, 10))
    if fits:
        output_widths.check(*specs, *given)
        return
    with pytest.raises(ConfigError, match="model: returns predictions of shape"):
        output_widths.check(*specs, *given)
