"""The embedding layer: its rows, its gradients, what it sends, and ids that are outside of the table."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from outcomes import check_same
from support import TABLED, run_config

from psrun.cluster import strategy
from psrun.errors import NonFiniteLossError
from psrun.layers import Embedding
from psrun.program import lookups

pytestmark = pytest.mark.inprocess

MODEL = (*TABLED, "model._target_=embeddings.model", "optimizer=sparse_adagrad", "partitioner=fixed_shards")


def test_the_layer_gives_what_keras_does_and_its_gradients():
    ids = tf.constant([[3, 3, 0], [9, 1, 3]])
    for deduplicate, oov in itertools.product([True, False], ["error", "row"]):
        ours, theirs = Embedding(10, 4, deduplicate=deduplicate, oov=oov), tf_keras.layers.Embedding(10, 4)
        with tf.GradientTape() as tape:
            rows = ours(ids)
            loss = tf.reduce_sum(rows * rows)
        theirs.build(None)
        theirs.embeddings.assign(tf.gather(ours.embeddings, ours.position(tf.range(10))))
        np.testing.assert_array_equal(rows, theirs(ids))
        gradient = tf.convert_to_tensor(tape.gradient(loss, ours.embeddings))
        counts = np.bincount(np.ravel(ids), minlength=10)[:, np.newaxis]
        np.testing.assert_allclose(
            tf.gather(gradient, ours.position(tf.range(10))), 2 * counts * theirs.embeddings.numpy(), rtol=1e-6
        )
        clone = Embedding.from_config(ours.get_config())
        assert clone.get_config() == ours.get_config()


@pytest.mark.thorough
def test_what_is_frozen_stays_and_the_rest_trains_as_in_one_process(train):
    pieces = (*MODEL, "model._target_=embeddings.partly_frozen", "trainer.steps_per_execution=3")
    (_, here), (_, there) = (train(*pieces, f"cluster={cluster}", num_workers=1) for cluster in ("none", "inprocess"))
    held = check_same(there, here)
    weights = [value for name, value in held.items() if name.startswith("model") and value.ndim == 2]
    assert sorted(bool((value == 1).all()) for value in weights) == [False, False, True, True, True]


def test_a_gradient_that_is_not_finite_ends_the_run_and_names_the_table(train):
    """A row that is seldom looked up would stay spoilt without a loss that shows it."""
    with pytest.raises(NonFiniteLossError, match=r"embedding/embeddings"):
        train(*MODEL, "model._target_=embeddings.rooted", "cluster=none", "trainer=custom_loop")


def test_rows_and_gradients_that_travel_in_bfloat16_are_rounded(cluster_spec):
    partitioner = run_config("partitioner=fixed_shards").partitioner
    with strategy.parameter_servers(cluster_spec[1], partitioner).strategy.scope():
        layer = Embedding(10, 4, wire="bfloat16", embeddings_initializer="normal")
        layer.build(None)
    shards = layer.embeddings.variables
    ids = tf.constant([[3, 3, 0], [9, 1, 3]])

    @tf.function
    def computed():
        with tf.GradientTape() as tape:
            rows = layer(ids)
            loss = tf.reduce_sum(rows * 0.3)
        return rows, [tf.convert_to_tensor(each) for each in tape.gradient(loss, shards)]

    rows, gradients = computed()
    place = layer.position(tf.range(10))
    table = tf.gather(tf.concat([*shards], 0), place)
    rounded = tf.cast(tf.cast(table, tf.bfloat16), tf.float32)
    np.testing.assert_array_equal(rows, tf.gather(rounded, ids))
    assert np.any(rounded != table)
    sent = float(tf.cast(tf.constant(0.3, tf.bfloat16), tf.float32))
    times = np.bincount(np.ravel(ids), minlength=10)[:, np.newaxis]
    np.testing.assert_allclose(tf.gather(tf.concat(gradients, 0), place), np.tile(sent * times, (1, 4)), rtol=1e-6)


def test_whether_duplicates_are_sent_once_is_decided_by_a_batch():
    few = tf.constant(np.arange(32).reshape(8, 4) % 5)
    for batch, share, deduplicates in ((few, 5 / 32, True), (tf.reshape(tf.range(32), [8, 4]), 1.0, False)):
        ids = tf_keras.Input((4,), dtype="int64", name="ids")
        layer = Embedding(50, 3)
        inner = tf_keras.Sequential([tf_keras.Input((4,), dtype="int64"), Embedding(50, 3)])
        network = tf_keras.Model({"ids": ids}, [layer(ids), inner(ids)])
        (decided,) = lookups.decide(network, {"ids": batch})  # nothing for a table in a model within the model
        assert (decided.layer, decided.distinct) == (layer.name, pytest.approx(share, abs=1e-3))
        assert (layer.deduplicate, decided.deduplicate) == (deduplicates, deduplicates)


def test_ids_of_other_kinds():
    layer = Embedding(3000, 2)
    assert len(set(layer.position(tf.range(3000)).numpy())) == 3000
    wanted = layer(tf.constant([[2999, 0]]))
    np.testing.assert_array_equal(layer(tf.constant([[2999.0, 0.0]])), wanted)
    assert layer(tf.zeros([0, 2], tf.int64)).shape == (0, 2, 2)
    assert Embedding(300, 2)(tf.constant([255], tf.uint8)).shape == (1, 2)


def test_ids_outside_of_the_table_share_the_last_row_where_that_is_chosen():
    layer = Embedding(50, 3, oov="row", embeddings_initializer="normal")
    inside, shared, negative = layer(tf.constant([49, 77, -1]))
    np.testing.assert_array_equal(shared, negative)
    assert np.any(shared != inside)
    assert layer.num_rows > 50
