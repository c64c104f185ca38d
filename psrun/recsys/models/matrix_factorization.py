"""Matrix factorization with biases (Koren et al., "Matrix factorization techniques for recommender systems", 2009)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

from psrun.data.source import DataSource
from psrun.models.model import ArgumentError, Model, Towers, label_scale, network_inputs, prepared
from psrun.recsys.models import in_batch


def matrix_factorization(
    source: DataSource,
    *,
    user: str,
    item: str,
    embedding_dim: int = 32,
    regularization: float = 0.0,
    objective: str = "labels",
    temperature: float = 1.0,
    correct_popularity: bool = True,
) -> Model:
    """mean + bias of the user + bias of the item + the product of their vectors: a rating, or the logit of a click.

    Args:
      user, item: features with ids.
      regularization: by which the squares of the vectors of a batch's users and items are added to the loss.
      objective: labels: ratings (task=regression) or clicks (binary); softmax: interactions alone, see
        `psrun.recsys.models.in_batch.InBatchSoftmax`; the biases of users, which change no order, are left out.

    Raises:
      ArgumentError: `user` or `item` is no single feature with ids, or the objective does not fit the labels.
    """
    preprocessing, num_ids = prepared(source)
    for name, feature in (("user", user), ("item", item)):
        if feature not in num_ids or source.features[feature].is_list:
            message = f"is {feature!r}, which is no feature with one id; the data has {', '.join(num_ids)}"
            raise ArgumentError((name, message))
    if regularization < 0:
        raise ArgumentError(("regularization", f"is {regularization}, must be 0 or more"))
    if user == item:
        raise ArgumentError(("item", f"is {item!r}, as is the user"))
    if source.task not in ("binary", "regression"):
        raise ArgumentError(("", "matrix_factorization takes numbers or clicks; set data.task=regression"))
    warnings = in_batch.check_objective(objective, source, item, num_ids, temperature)
    tensors = network_inputs(source, num_ids)
    flat = tf_keras.layers.Flatten()
    penalty: Any = tf_keras.layers.ActivityRegularization(l2=regularization) if regularization else lambda each: each

    def looked_up(feature: str, width: int, name: str, initializer: str = "uniform") -> tf.Tensor:
        layer = tf_keras.layers.Embedding(num_ids[feature], width, name=name, embeddings_initializer=initializer)
        return flat(layer(tensors[feature]))

    user_vector = penalty(looked_up(user, embedding_dim, "user_vectors"))
    item_vector = penalty(looked_up(item, embedding_dim, "item_vectors"))
    item_bias = looked_up(item, 1, "item_biases", "zeros")
    one = tf_keras.layers.Lambda(lambda vectors: tf.ones_like(vectors[:, :1]))(user_vector)
    query = tf_keras.layers.Concatenate()([user_vector, one])
    candidate = tf_keras.layers.Concatenate()([item_vector, item_bias])
    if objective == "softmax":
        return in_batch.model(
            tensors,
            query,
            candidate,
            preprocessing=preprocessing,
            item_features=[item],
            item=item,
            num_items=num_ids[item],
            objective=objective,
            warnings=warnings,
            temperature=temperature,
            correct_popularity=correct_popularity,
        )
    product = tf_keras.layers.Dot(axes=1)([query, candidate])
    score = _Mean(name="mean")(product + looked_up(user, 1, "user_biases", "zeros"))
    if source.task == "binary":
        prediction = tf_keras.layers.Activation("sigmoid", name="prediction")(score)
    else:
        mean, deviation = label_scale(source)
        prediction = tf_keras.layers.Rescaling(deviation, mean, name="prediction")(score)
    towers = Towers(tf_keras.Model(tensors, {"query": query, "item": candidate}), (item,))
    return Model(tf_keras.Model(tensors, prediction), preprocessing, towers=towers)


@tf_keras.utils.register_keras_serializable(package="psrun")
class _Mean(tf_keras.layers.Layer):
    """Adds a trained number to all values."""

    def build(self, input_shape: Any) -> None:
        self.value = self.add_weight("value", (1,), initializer="zeros")
        super().build(input_shape)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs + self.value
