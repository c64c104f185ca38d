"""SASRec (Kang and McAuley, "Self-Attentive Sequential Recommendation", ICDM 2018)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.data.lists import ENDS
from psrun.data.source import DataSource
from psrun.models.model import ArgumentError, Model, network_inputs, prepared
from psrun.recsys.models import in_batch, tables

LIST_ENDS = {"history": "newest"}  # psrun reads it: the end that truncated histories keep


def sasrec(
    source: DataSource,
    *,
    history: str,
    item: str,
    embedding_dim: int = 64,
    blocks: int = 2,
    dropout: float = 0.2,
    newest: str = "last",
    temperature: float = 1.0,
    correct_popularity: bool = True,
) -> Model:
    """The next item from a history of items: attention of the newest item on itself and those before it.

    History and item share one table, (ids, embedding_dim). An example is a history and the item that followed; the
    paper trains on all places of a history at once, with one negative item each. Here the other items of the batch are
    the negatives, see `psrun.recsys.models.in_batch.InBatchSoftmax`. Other features are not used.

    Args:
      history: a list feature.
      item: the feature with the item that followed.
      blocks: of attention and two dense layers, each with one head.
      newest: whether the newest item of a history is its first or its last value; tables keep this end of longer lists.
      temperature, correct_popularity: of the softmax.

    Raises:
      ArgumentError: `history` is no list of ids, or `item` no single id; they cannot share a table; or an option is out
        of range; or longer histories lose their newest values.
    """
    if newest not in ENDS:
        raise ArgumentError(("newest", f"is {newest!r}, must be one of {', '.join(ENDS)}"))
    if blocks < 1:
        raise ArgumentError(("blocks", f"is {blocks}, must be 1 or more"))
    preprocessing, num_ids = prepared(source)
    tables.check_sequence(source, num_ids, history=history, item=item)
    _check_end(source, history, newest)
    warnings = in_batch.check_objective("softmax", source, item, num_ids, temperature)
    tensors = network_inputs(source, num_ids)
    ids = {name: num_ids[name] for name in num_ids if name in (history, item)}
    shared = tables.shared_by(source, None, history, item)
    arranged = tables.make_tables(source, ids, embedding_dim=embedding_dim, shared_tables=shared)
    rows = tables.rows(arranged, tensors, source.features, suffix="rows", sequences=[history])
    encoded = Newest(embedding_dim, source.features[history].max_values or 1, blocks, dropout, newest, name="encoder")
    model = in_batch.model(
        tensors,
        encoded(rows[history]),
        tf_keras.layers.Flatten()(rows[item]),
        preprocessing=preprocessing,
        item_features=[item],
        item=item,
        num_items=num_ids[item],
        objective="softmax",
        warnings=warnings,
        temperature=temperature,
        correct_popularity=correct_popularity,
    )
    return replace(model, unused=[name for name in source.features if name not in (history, item)])


def _check_end(source: DataSource, history: str, newest: str) -> None:
    """Raises ArgumentError if longer histories lose their newest values."""
    keep = source.features[history].keep
    if keep is not None and keep != newest:
        found = f"is {newest}, but longer lists of {history} keep their {keep} values"
        raise ArgumentError(("newest", f"{found}; set data.features.{history}.keep={newest}, or model.newest={keep}"))


@tf_keras.utils.register_keras_serializable(package="psrun")
class Newest(tf_keras.layers.Layer):
    """The encoding of the newest item of histories by causal self-attention: (batch, length, dim) to (batch, dim).

    Places count from the newest item on, so that a history that was truncated is encoded as it was before. An empty
    history is 0.

    Args:
      longest: greatest length.
      newest: first or last.
    """

    def __init__(self, dim: int, longest: int, blocks: int, dropout: float, newest: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dim = dim
        self.longest = longest
        self.blocks = blocks
        self.dropout = dropout
        self.newest = newest

    def build(self, input_shape: Any) -> None:
        self.places = self.add_weight("places", (self.longest, self.dim), initializer="uniform")
        layers = tf_keras.layers
        self._blocks = [
            {
                "query": layers.Dense(self.dim, use_bias=False, name=f"query_{index}"),
                "key": layers.Dense(self.dim, use_bias=False, name=f"key_{index}"),
                "value": layers.Dense(self.dim, use_bias=False, name=f"value_{index}"),
                "inner": layers.Dense(self.dim, "relu", name=f"inner_{index}"),
                "outer": layers.Dense(self.dim, name=f"outer_{index}"),
                "before": layers.LayerNormalization(name=f"before_{index}"),
                "between": layers.LayerNormalization(name=f"between_{index}"),
            }
            for index in range(self.blocks)
        ]
        self._last = layers.LayerNormalization(name="last")
        self._drop = layers.Dropout(self.dropout)
        super().build(input_shape)

    def call(self, inputs: tf.Tensor, mask: tf.Tensor | None = None, training: bool | None = None) -> tf.Tensor:
        length = tf.shape(inputs)[1]
        is_there = tf.ones(tf.shape(inputs)[:2], tf.bool) if mask is None else mask
        lengths = tf.reduce_sum(tf.cast(is_there, tf.int32), 1)
        place = tf.range(length)[tf.newaxis]  # how many items are newer
        age = place if self.newest == "first" else tf.nn.relu(lengths[:, tf.newaxis] - 1 - place)
        age = tf.broadcast_to(tf.minimum(age, self.longest - 1), tf.shape(is_there))
        values = inputs * self.dim**0.5 + tf.gather(tf.convert_to_tensor(self.places), age)
        values = self._drop(values, training=training) * tf.cast(is_there, inputs.dtype)[..., tf.newaxis]
        is_older = age[:, tf.newaxis, :] >= age[:, :, tf.newaxis]
        allowed = is_older & is_there[:, tf.newaxis, :]
        for layers in self._blocks:
            values = self._block(layers, values, allowed, training) * tf.cast(is_there, inputs.dtype)[..., tf.newaxis]
        newest = tf.zeros_like(lengths) if self.newest == "first" else tf.nn.relu(lengths - 1)
        padded = tf.pad(self._last(values), [[0, 0], [0, 1], [0, 0]])  # where all histories are empty
        encoded = tf.gather(padded, newest, batch_dims=1)
        return encoded * tf.cast(lengths > 0, inputs.dtype)[:, tf.newaxis]

    def _block(self, layers: dict[str, Any], values: tf.Tensor, allowed: tf.Tensor, training: bool | None) -> tf.Tensor:
        normal = layers["before"](values)
        scores = tf.matmul(layers["query"](normal), layers["key"](values), transpose_b=True) / self.dim**0.5
        weights = tf.nn.softmax(tf.where(allowed, scores, -1e9))
        attended = normal + self._drop(tf.matmul(weights, layers["value"](values)), training=training)
        normal = layers["between"](attended)
        inner = self._drop(layers["inner"](normal), training=training)
        return normal + self._drop(layers["outer"](inner), training=training)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "dim": self.dim,
            "longest": self.longest,
            "blocks": self.blocks,
            "dropout": self.dropout,
            "newest": self.newest,
        }
