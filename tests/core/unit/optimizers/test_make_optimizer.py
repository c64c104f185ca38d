"""Optimizers that psrun makes, or refuses since their numbers would differ from those of Keras alone."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from support import SMALL, run_config
from user_optimizers import FailsLate, Lamb, Noisy

import psrun.layers
from psrun.config.groups import CONF
from psrun.data import loading
from psrun.errors import ConfigError
from psrun.optimizers import sparse
from psrun.program import embeddings, make_optimizer
from psrun.roles import planner
from psrun.tf_internals import keras

pytestmark = pytest.mark.tensorflow

CUT = ("cluster=local", "partitioner=fixed_shards", "model=dense", "data=regression")
OWN = "optimizer._target_=user_optimizers."


def planned(*pieces: str) -> planner.Plan:
    run = run_config(*pieces)
    return planner.make(run, loading.load_source(run))


def test_optimizers_of_a_model_are_found():
    inner, outer, compiled = (tf_keras.optimizers.SGD() for _ in range(3))
    layer, network = tf_keras.layers.Dense(1), tf_keras.Sequential()
    layer.own = {"one": inner}
    network.add(layer)
    network.several = [outer]
    network.compile(compiled, "mse")
    assert {id(each) for each in keras.optimizers_within(network)} == {id(inner), id(outer), id(compiled)}
    assert {id(each) for each in make_optimizer.others_of(network)} == {id(inner), id(outer)}


@pytest.mark.parametrize(
    ("make", "by_row"),
    [
        (lambda: tf_keras.optimizers.Adafactor(0.1), False),
        (lambda: tf_keras.optimizers.Adam(0.1), True),
        (lambda: Lamb(0.1), False),
        (lambda: Noisy(0.1), True),
    ],
)
def test_steps_of_shards_are_compared_with_those_of_the_whole(make, by_row):
    assert make_optimizer.equal_in_shards(make) == by_row


def test_an_own_optimizer_that_steps_by_row_is_allowed():
    assert planned(*CUT, f"{OWN}ByRow").warnings == []


def test_an_optimizer_that_cannot_be_tried_is_a_warning():
    (warning,) = planned(*CUT, f"{OWN}Choosy").warnings
    assert "KeyError: 'prediction'" in warning


def test_an_optimizer_like_that_of_a_model_can_be_made():
    own = Lamb(0.1, clipnorm=0.5)
    own.build([tf.Variable([1.0])])
    like = make_optimizer.like(own, run_config())
    assert (type(like), like.clipnorm) == (Lamb, 0.5)
    assert not make_optimizer.equal_in_shards(lambda: make_optimizer.like(own, run_config()))


def test_a_rule_for_stale_updates_that_is_never_called_is_a_warning():
    (warning,) = planned(*CUT, f"{OWN}Fading", "optimizer.learning_rate=0.1").warnings
    assert warning == "late_rate of Fading is never called; set optimizer.staleness_aware=true"
    aware = ("optimizer.staleness_aware=true", "optimizer.learning_rate=0.1")
    assert planned(*CUT, "optimizer=sparse_adagrad", f"{OWN}Fading", *aware).warnings == []


def test_a_rule_for_stale_updates_that_raises_is_named_with_its_line():
    optimizer = FailsLate(0.1, staleness_aware=True)
    raises = pytest.raises(
        ConfigError, match=r"late_rate of FailsLate failed: TypeError: .*user_optimizers.py, line \d+"
    )
    with raises, sparse.applying_late(optimizer, tf.constant(2)):
        _ = optimizer.learning_rate


# -- an optimizer for tables beside another one

TABLES_CUT = ("cluster=local", "partitioner=fixed_shards", "model=embedding")
ADAFACTOR = "optimizer._target_=tf_keras.optimizers.Adafactor"


def test_the_choices_for_tables_are_those_of_the_optimizer():
    tables, all_variables = (
        {path.stem for path in (CONF / group).iterdir()} for group in ("table_optimizer", "optimizer")
    )
    assert tables == {*all_variables, "none"}


def test_each_of_two_must_step_by_row_where_its_own_variables_are_cut():
    with pytest.raises(ConfigError, match="cuts embedding/embeddings, but Adafactor computes the step of a row"):
        planned(*TABLES_CUT, "table_optimizer=sgd", f"table_{ADAFACTOR}")
    with pytest.raises(ConfigError, match="cuts prediction/kernel, but Adafactor"):
        planned(*TABLES_CUT, "table_optimizer=sgd", ADAFACTOR)
    only_rows = ("partitioner=custom", "partitioner._target_=user_optimizers.cut_tables")
    assert planned(*TABLES_CUT[:1], *only_rows, "model=embedding", "table_optimizer=ftrl", ADAFACTOR).placed


def test_a_plan_has_the_slots_of_both_and_says_what_each_updates():
    plan = planned("optimizer=adam", "table_optimizer=rowwise_adagrad")
    slots = {shard.variable: shard.variable_shape for shard in plan.placed if shard.kind == "optimizer"}
    assert slots["accumulator/embedding/embeddings"] == (8, 1)
    assert {*slots} >= {"m/prediction/kernel", "v/prediction/kernel", "iteration"}
    assert plan.notes == ["RowwiseAdagrad updates embedding/embeddings; Adam updates all other variables"]


class _Dense(tf_keras.Model):
    """Has variables after its first call only."""

    def __init__(self):
        super().__init__()
        self.dense = tf_keras.layers.Dense(1)

    def call(self, features):
        return self.dense(features)


def test_an_optimizer_of_tables_is_refused_where_it_is_made_or_where_it_is_built_if_there_are_none():
    run = run_config("model=dense", *SMALL["regression"], "table_optimizer=ftrl")
    network = _Dense()
    optimizer = make_optimizer.make_optimizer(run, network)
    network(tf.zeros([1, 2]))
    for refused in (
        lambda: optimizer.build(network.trainable_variables),
        lambda: make_optimizer.make_optimizer(run, network),
    ):
        with pytest.raises(ConfigError, match="table_optimizer: has nothing to update: the model has no layer such as"):
            refused()


def test_a_model_without_tables_has_no_use_for_an_optimizer_of_tables():
    with pytest.raises(ConfigError, match="table_optimizer: has nothing to update: the model has no layer such as"):
        planned("model=dense", "data=regression", "table_optimizer=ftrl")


class _WithBias:
    """Adds to a layer of look-ups a weight that is no table."""

    def build(self, shape):
        super().build(shape)
        self.bias = self.add_weight(name="bias", shape=(2,))

    def call(self, ids):
        return super().call(ids) + self.bias


@pytest.mark.parametrize("kind", [tf_keras.layers.Embedding, psrun.layers.Embedding])
@pytest.mark.parametrize("trainable", [True, False])
def test_of_a_layer_of_look_ups_only_its_trained_table_is_a_table(kind, trainable):
    layer = type("Own", (_WithBias, kind), {})(3, 2, name="own", trainable=trainable)
    network = tf_keras.Sequential([tf_keras.Input((2,)), layer, tf_keras.layers.Dense(1)])
    network.unused = kind(3, 2, name="unused")  # has no variable
    assert embeddings.table_names(network) == (["own/embeddings"] if trainable else [])


def test_the_optimizer_asks_once_which_variables_are_tables():
    tables = [tf.Variable([[1.0]], name=f"table_{number}/embeddings") for number in range(3)]
    variables = [*tables, tf.Variable([1.0], name="bias")]
    asked = []

    def tables_among(given):
        asked.append(len(given))
        return tables

    optimizer = keras.CompositeOptimizer(tf_keras.optimizers.SGD(1.0), tf_keras.optimizers.SGD(0.5), tables_among)
    for _ in range(2):
        optimizer.apply_gradients([(tf.ones_like(variable), variable) for variable in variables])
    assert asked == [4]
    assert [float(tf.squeeze(variable)) for variable in variables] == [0.0, 0.0, 0.0, -1.0]


def test_rules_for_stale_updates_are_those_of_each():
    fading = ("table_optimizer=sparse_adagrad", "table_optimizer._target_=user_optimizers.Fading")
    (warning,) = planned(*TABLES_CUT[::2], *fading).warnings
    assert warning == "late_rate of Fading is never called; set table_optimizer.staleness_aware=true"
    aware = sparse.SparseSGD(0.5, staleness_aware=True, delay_compensation=0.3)
    both = keras.CompositeOptimizer(tf_keras.optimizers.SGD(0.5), aware, list)
    assert sparse.is_staleness_aware(both)
    assert sparse.compensation_factor(both) == 0
    with sparse.applying_late(both, tf.constant(2)):
        assert [float(part.learning_rate) for part in both.parts] == [0.5, 0.25]
    assert float(aware.learning_rate) == 0.5


@pytest.mark.parametrize("scaled", [False, True])
def test_weight_decay_is_that_of_each_and_a_file_of_keras_has_both(scaled, tmp_path):
    table, kernel = tf_keras.layers.Embedding(3, 2, name="table"), tf_keras.layers.Dense(1, name="dense")
    network = tf_keras.Sequential([tf_keras.Input((2,)), table, tf_keras.layers.Flatten(), kernel])
    parts = tf_keras.optimizers.Adam(0.1, weight_decay=0.2), tf_keras.optimizers.SGD(0.5, weight_decay=0.4)
    optimizer = keras.CompositeOptimizer(*parts, lambda variables: embeddings.tables_of(network))
    if scaled:
        optimizer = tf_keras.mixed_precision.LossScaleOptimizer(optimizer)
    network.compile(optimizer, "mse")
    before = [layer.get_weights()[0] for layer in (table, kernel)]
    optimizer.build(network.trainable_variables)
    gradients = [tf.zeros_like(variable) for variable in network.trainable_variables]
    optimizer.apply_gradients(zip(gradients, network.trainable_variables))
    after = [layer.get_weights()[0] for layer in (table, kernel)]
    for decayed, start, factor in zip(after, before, (1 - 0.5 * 0.4, 1 - 0.1 * 0.2)):
        np.testing.assert_allclose(decayed, factor * start, rtol=1e-6)
    network.save(tmp_path / "whole.keras")
    loaded = tf_keras.models.load_model(tmp_path / "whole.keras", {"CompositeOptimizer": keras.CompositeOptimizer})
    dense, tables = keras.parts_of(loaded.optimizer)
    assert (float(dense.weight_decay), float(tables.weight_decay)) == pytest.approx((0.2, 0.4))
    assert int(loaded.optimizer.iterations) == 1
    assert len(loaded.optimizer.variables()) == len(optimizer.variables())
