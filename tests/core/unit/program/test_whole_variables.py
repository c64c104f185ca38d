"""What layers and optimizers compute from a whole variable, where a partitioner cuts it into shards."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from support import run_config

from psrun.data import loading
from psrun.program import whole_variables
from psrun.roles import planner

pytestmark = pytest.mark.tensorflow

CONSTRAINTS = tf_keras.constraints
REGULARIZERS = tf_keras.regularizers


@pytest.mark.parametrize(
    ("constraint", "by_row"),
    [
        (CONSTRAINTS.NonNeg(), True),
        (CONSTRAINTS.MaxNorm(2.0, axis=1), True),
        (CONSTRAINTS.MaxNorm(2.0, axis=0), False),  # changes only large values
        (CONSTRAINTS.MinMaxNorm(0.0, 500.0, axis=0), False),
        (CONSTRAINTS.UnitNorm(axis=0), False),
    ],
)
def test_a_constraint_of_single_rows_holds_in_all_shards(constraint, by_row):
    joined = whole_variables._separable(constraint, [(3, 4), (2, 4)], lambda parts: tf.concat(parts, 0))
    assert joined == by_row


@pytest.mark.parametrize(
    ("regularizer", "adds_up"),
    [(REGULARIZERS.L2(0.1), True), (REGULARIZERS.L1(0.1), True), (REGULARIZERS.OrthogonalRegularizer(), False)],
)
def test_a_regularizer_that_is_a_sum_over_rows_adds_up_over_shards(regularizer, adds_up):
    assert whole_variables._separable(regularizer, [(3, 4), (2, 4)], tf.add_n) == adds_up


def test_a_plan_accepts_a_constraint_of_rows():
    run = run_config("model=dense", "~model.hidden_units", "model._target_=user_models.bounded", "+model.kind=rows",
                     "cluster=local", "partitioner=fixed_shards")  # fmt: skip
    assert planner.make(run, loading.load_source(run)).placed


def test_a_gradient_in_shards_is_clipped_as_that_of_the_whole_variable():
    """Layers of one name have variables of one name: the first of each shard belong together."""
    values = np.random.default_rng(0).normal(size=(2, 6, 3)).astype(np.float32)
    expected = [tf.clip_by_norm(each, 0.5) for each in values]
    shards = [part for each in values for part in np.split(each, 2)]
    variables = [tf.Variable(part, name=f"dense/kernel/part_{index % 2}") for index, part in enumerate(shards)]
    clipped = whole_variables.clipped([tf.constant(part) for part in shards], variables, 0.5)
    for index, whole in enumerate(expected):
        np.testing.assert_allclose(np.concatenate(clipped[2 * index : 2 * index + 2]), whole, rtol=1e-5)
