"""Ids that occur several times in a batch: the first step with psrun, and with Keras 3 alone."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

pytestmark = pytest.mark.tensorflow

IDS = [[1, 1, 1, 1, 2]]


# The first step of row 1, whose gradient is 4, at a learning rate of 0.1.
@pytest.mark.parametrize(
    ("name", "dense", "keras3"),
    [("SGD", 0.4, 0.4), ("Adagrad", 0.09969, 0.19755), ("Adam", 0.1, 0.2), ("RMSprop", 0.31623, 0.63246)],
)
def test_only_keras3_alone_takes_other_steps_for_ids_that_repeat(name: str, dense: float, keras3: float) -> None:
    import keras

    from psrun.keras3.adapter import Keras3Adapter
    from psrun.models.model import Model
    from psrun.program.adapters import ModelFunction

    def model() -> keras.Model:
        table = keras.layers.Embedding(4, 2, embeddings_initializer="ones")
        return keras.Sequential([keras.Input((5,), dtype="int32"), table])

    returned = Keras3Adapter().adapt(ModelFunction(lambda: keras, model, seed=1))
    assert isinstance(returned, Model)
    network = returned.network
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(network(tf.constant(IDS)))
    gradients = tape.gradient(total, network.trainable_variables)
    getattr(tf_keras.optimizers, name)(0.1).apply_gradients(zip(gradients, network.trainable_variables))
    assert 1 - network.trainable_variables[0].numpy()[1] == pytest.approx(dense, rel=1e-4)

    alone = model()
    values = [variable.value for variable in alone.trainable_variables]
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(alone(tf.constant(IDS)))
    getattr(keras.optimizers, name)(0.1).apply(tape.gradient(total, values), alone.trainable_variables)
    assert 1 - alone.trainable_variables[0].numpy()[1] == pytest.approx(keras3, rel=1e-4), (
        "Keras 3 takes another step than the guide says: change 'Not as in fit of Keras 3' in docs/guides/keras3.md"
    )


def test_the_dropouts_of_a_step_drop_different_values() -> None:
    """Also those of one layer. Workers share no state of random numbers: each operation has a seed of its own."""
    import keras

    from psrun.keras3.adapter import Keras3Adapter
    from psrun.program.adapters import ModelFunction

    def model() -> keras.Model:
        inputs = keras.Input((200,))
        dropout = keras.layers.Dropout(0.5)
        return keras.Model(inputs, [dropout(inputs), dropout(inputs)])

    network = Keras3Adapter().adapt(ModelFunction(lambda: keras, model, seed=1)).network
    step = tf.function(lambda: network(tf.ones([1, 200]), training=True))
    first, second = (np.stack(step()) for _ in range(2))
    assert np.any(first[0] != first[1])
    assert np.any(first != second)


def test_checkpoints_describe_the_tables_of_keras3_without_ids_and_those_of_psrun_with_them() -> None:
    import keras

    from psrun.keras3.adapter import Keras3Adapter
    from psrun.keras3.layers import Embedding, EmbeddingCollection, Table
    from psrun.program import embeddings
    from psrun.program.adapters import ModelFunction

    def model() -> keras.Model:
        ids = keras.Input((5,), dtype="int64", name="item")
        tables = [Table(name, (name,), 8, 2) for name in ("one", "two")]
        collection = EmbeddingCollection(tables, stack=True, name="tables")({"one": ids, "two": ids})
        layers = [keras.layers.Embedding(8, 2, name="plain"), Embedding(8, 2, name="own")]
        return keras.Model(ids, keras.layers.Add()([*collection.values(), *(layer(ids) for layer in layers)]))

    network = Keras3Adapter().adapt(ModelFunction(lambda: keras, model, seed=1)).network
    described = embeddings.described(network, {})
    assert {name: each["num_ids"] for name, each in described.items()} == {"plain": None, "own": 8, "one": 8, "two": 8}
