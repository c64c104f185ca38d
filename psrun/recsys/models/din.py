"""Deep interest network (Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD 2018)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.data.source import DataSource
from psrun.layers.collection import MAX_STACKED_TABLE_BYTES
from psrun.layers.lookup import Table, assertion
from psrun.models.model import ArgumentError, Model, concatenated, head, hidden, network_inputs, numbers_of, prepared
from psrun.recsys.models import tables


def din(
    source: DataSource,
    *,
    history: str,
    target: str,
    embedding_dim: int | Mapping[str, int] = 16,
    shared_tables: Mapping[str, Sequence[str]] | None = None,
    attention_units: Sequence[int] = (36,),
    hidden_units: Sequence[int] = (80, 40),
    stack: bool | str = "auto",
    max_stacked_table_bytes: int = MAX_STACKED_TABLE_BYTES,
    deduplicate: bool | str = "auto",
) -> Model:
    """A history of items, pooled by what each of them says about the target item; an MLP on that and all features.

    History and target share one table, (ids, embedding_dim). Other features with ids have tables as in `wide_deep`, and
    other lists are pooled by their combiners.

    Args:
      history: a list feature; its combiner is not used. Its weights, if any, multiply those of the attention.
      target: the feature with the item to score.
      embedding_dim, shared_tables: see `psrun.recsys.models.tables.make_tables`.
      attention_units: of the layers that compute the weight of an item of the history.
      hidden_units: of the MLP, with ReLU; the paper has PReLU or Dice.
      stack, max_stacked_table_bytes, deduplicate: see `psrun.layers.EmbeddingCollection`.

    Raises:
      ArgumentError: `history` is not a list of ids, `target` is not a single id, they cannot share a table, or
        another list cannot be pooled.
    """
    preprocessing, num_ids = prepared(source)
    tables.check_sequence(source, num_ids, history=history, target=target)
    tables.check_lists(source, num_ids, "din", sequences=[history])
    shared = tables.shared_by(source, shared_tables, history, target)
    arranged = tables.make_tables(source, num_ids, embedding_dim=embedding_dim, shared_tables=shared)
    _check_shared(arranged, history, target)
    tensors = network_inputs(source, num_ids)
    rows = tables.rows(
        arranged, tensors, source.features, sequences=[history], suffix="rows", stack=stack,
        max_stacked_table_bytes=max_stacked_table_bytes, deduplicate=deduplicate,
    )  # fmt: skip
    flat = {name: tf_keras.layers.Flatten()(rows[name]) for name in num_ids if name != history}
    weights = source.features[history].weights
    inputs = [rows[history], flat[target], *([] if weights is None else [tensors[weights]])]
    interest = Attention(attention_units, name="attention")(inputs)
    top = hidden(concatenated([interest, *flat.values(), *numbers_of(tensors)]), hidden_units)
    return Model(tf_keras.Model(tensors, head(top, source)), preprocessing)


@tf_keras.utils.register_keras_serializable(package="psrun")
class Attention(tf_keras.layers.Layer):
    """Sums the rows of a history, each times a weight that a small network computes from the row and the target's.

    The weights are not normalized: the paper keeps the intensity of interests.

    Args:
      units: of the hidden layers of that network, with PReLU.

    Call arguments:
      inputs: [history (batch, longest, dim), target (batch, dim)], and perhaps given weights, a RaggedTensor (batch,
        None).
      mask: that of the history first.

    Returns:
      (batch, dim).
    """

    def __init__(self, units: Sequence[int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = tuple(units)
        self._layers = [
            layer
            for width in self.units
            for layer in (tf_keras.layers.Dense(width), tf_keras.layers.PReLU(shared_axes=[1]))
        ]
        self._layers.append(tf_keras.layers.Dense(1))

    def call(self, inputs: Sequence[Any], mask: Sequence[Any] | None = None) -> tf.Tensor:
        history, target, *extra = inputs
        target = tf.broadcast_to(target[:, tf.newaxis], tf.shape(history))
        target.set_shape(history.shape)
        weights = tf.concat([history, target, history - target, history * target], -1)
        for layer in self._layers:
            weights = layer(weights)
        if mask is not None and mask[0] is not None:
            weights *= tf.cast(mask[0], weights.dtype)[:, :, tf.newaxis]
        if extra:
            weights *= tf.cast(_padded(extra[0], mask), weights.dtype)[:, :, tf.newaxis]
        return tf.reduce_sum(weights * history, 1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}


def _padded(weights: tf.RaggedTensor, mask: Sequence[Any] | None) -> tf.Tensor:
    """(batch, longest). Other lengths than those of the history, which would be broadcast, are an error."""
    if mask is None or mask[0] is None:
        return weights.to_tensor()
    lengths = tf.reduce_sum(tf.cast(mask[0], weights.row_splits.dtype), 1)
    same = tf.reduce_all(tf.equal(weights.row_lengths(), lengths))
    with tf.control_dependencies(assertion(same, "the weights of the history must have the lengths of the history")):
        return weights.to_tensor()


def _check_shared(arranged: Sequence[Table], history: str, target: str) -> None:
    if not any({history, target} <= set(table.features) for table in arranged):
        message = f"{history} and {target} must share a table; remove their names from data.features and shared_tables"
        raise ArgumentError(("history", message))
