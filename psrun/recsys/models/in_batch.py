"""The softmax over the items of a batch, by which two towers are trained on interactions alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from psrun.data.source import DataSource
from psrun.models.model import ArgumentError, Model, Towers
from psrun.program import batch_checks
from psrun.tf_internals.strategies import takes_scattered

OBJECTIVES = ("labels", "softmax")
_EXCLUDED = -1e9
_CHECKED = 256  # examples of a batch
_BATCHES = 8  # in which the values of the same item are compared
# Of the neighbours in a batch, the share with the same value beyond which rows are not in random order, besides twice
# what chance gives.
_ALIKE = 0.25
_VARIES = 0.1  # of the items with several examples, the share with several values: what a corrected mistake explains
_SHUFFLE = "(head -n 1 FILE; tail -n +2 FILE | shuf) > SHUFFLED"


@tf_keras.utils.register_keras_serializable(package="psrun")
class InBatchSoftmax(tf_keras.layers.Layer):
    """Scores pairs of a query and an item, and adds a loss: for each query, the cross-entropy of its item among the
    items of the batch (Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations",
    2019). The same item of other examples is left out.

    Popular items are in more batches: the logarithm of each item's share of the training examples so far, which the
    layer counts, is subtracted from its logits (logQ correction). The scores that it returns have no correction.

    Args:
      num_items: ids are from 0 to num_items - 1.
      temperature: by which scores are divided; more than 0.
      normalize: whether vectors are scaled to length 1.
    """

    def __init__(
        self,
        num_items: int,
        *,
        temperature: float = 1.0,
        normalize: bool = False,
        correct_popularity: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_items = num_items
        self.temperature = temperature
        self.normalize = normalize
        self.correct_popularity = correct_popularity

    def build(self, input_shape: Any) -> None:
        # One row, which no partitioner cuts: shards take no scattered numbers.
        options = {
            "initializer": "zeros",
            "trainable": False,
            "dtype": tf.float32,
            # Each replica counts the examples that it sees; what is saved is their sum.
            "synchronization": tf.VariableSynchronization.ON_READ,
            "aggregation": tf.VariableAggregation.SUM,
        }
        if self.correct_popularity:
            self.counts = self.add_weight("counts", (1, self.num_items), **options)
            self.total = self.add_weight("total", (1, 1), **options)
        super().build(input_shape)

    def call(self, inputs: tuple[tf.Tensor, tf.Tensor, tf.Tensor], training: bool | None = None) -> tf.Tensor:
        """The scores of pairs, (batch, 1).

        Args:
          inputs: vectors of queries and of items, (batch, dim), and the ids of the items, integers of `batch` elements.
        """
        query, item, ids = inputs
        ids = tf.reshape(tf.cast(ids, tf.int32), [-1])
        query, item = self.scaled(query), self.scaled(item)
        scores = tf.matmul(query, item, transpose_b=True) / self.temperature
        logits = scores - self._log_share(ids) if self.correct_popularity else scores
        count = tf.shape(ids)[0]
        is_other = tf.logical_not(tf.eye(count, dtype=tf.bool))
        is_same = tf.equal(ids[:, tf.newaxis], ids[tf.newaxis])
        logits = tf.where(is_same & is_other, _EXCLUDED, logits)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(count), logits)
        self.add_loss(tf.reduce_mean(losses))
        if training and self.correct_popularity:
            self._count(ids)
        return tf.linalg.diag_part(scores)[:, tf.newaxis]

    def scaled(self, vectors: tf.Tensor) -> tf.Tensor:
        """Vectors as they are multiplied."""
        return tf.math.l2_normalize(vectors, axis=1) if self.normalize else vectors

    def _log_share(self, ids: tf.Tensor) -> tf.Tensor:
        """(1, batch), as if each item had been there once more."""
        counts = tf.gather_nd(self.counts, tf.stack([tf.zeros_like(ids), ids], axis=1))
        total = tf.convert_to_tensor(self.total)[0, 0]
        return tf.math.log((counts + 1) / (total + self.num_items))[tf.newaxis]

    def _count(self, ids: tf.Tensor) -> None:
        once = tf.ones([tf.size(ids)])
        if takes_scattered(self.counts):
            self.counts.scatter_nd_add(tf.stack([tf.zeros_like(ids), ids], axis=1), once)
        else:
            self.counts.assign_add(tf.math.unsorted_segment_sum(once, ids, self.num_items)[tf.newaxis])
        self.total.assign_add(tf.reshape(tf.reduce_sum(once), [1, 1]))

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_items": self.num_items,
            "temperature": self.temperature,
            "normalize": self.normalize,
            "correct_popularity": self.correct_popularity,
        }


def no_loss(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """0 for each example: the loss of a model whose layers add the whole loss."""
    return tf.zeros([tf.shape(y_pred)[0]], y_pred.dtype)


def check_objective(
    objective: str,
    source: DataSource,
    item: str | None,
    num_ids: dict[str, int],
    temperature: float,
    item_features: Sequence[str] = (),
) -> tuple[str, ...]:
    """Raises ArgumentError if an objective does not fit the data; returns warnings about the data, a line each.

    Args:
      item: the feature with the ids of the items.
      item_features: that the vector of an item depends on.
    """
    if objective not in OBJECTIVES:
        raise ArgumentError(("objective", f"is {objective!r}, must be one of {', '.join(OBJECTIVES)}"))
    if objective == "labels":
        return ()
    if not temperature > 0:
        raise ArgumentError(("temperature", f"is {temperature}, must be more than 0"))
    if item is None:
        raise ArgumentError(("item", "is required with objective=softmax: the feature with the ids of the items"))
    if item not in num_ids:
        names = ", ".join(num_ids)
        raise ArgumentError(("item", f"is {item!r}, which is no feature with ids; the data has {names}"))
    with tf.init_scope():
        examples = source.train(batch_size=_CHECKED, seed=tf.constant(0, tf.int64))
        batches = [*itertools.islice(examples, _BATCHES)]
    _, label, *_ = batches[0]
    if isinstance(label, Mapping) or source.task == "multiclass" or not bool(tf.reduce_all(label > 0)):
        message = "is softmax, which takes examples of interactions alone, with labels above 0, such as ratings; remove"
        raise ArgumentError(("objective", f"{message} the others, set data.task=regression, or choose labels"))
    features = [batch_checks.ragged_features(batch[0]) for batch in batches]
    ids = [name for name in num_ids if not source.features[name].is_list]
    return (*_in_order(features[0], ids), *_varying(features, item, item_features))


def _in_order(batch: Mapping[str, tf.Tensor], names: Sequence[str]) -> Iterator[str]:
    """A warning if neighbours in a batch have the same value of a feature far more often than chance explains.

    A batch has rows from several places of the file, and some rows in a row from each.
    """
    for name in names:
        values = batch[name].numpy().reshape(len(batch[name]), -1)[:, 0]
        if len(values) < 2:
            continue
        _, counts = np.unique(values, return_counts=True)
        by_chance = (counts * (counts - 1)).sum() / (len(values) * (len(values) - 1))
        alike = (values[1:] == values[:-1]).mean()
        if alike > _ALIKE + 2 * by_chance:
            yield (
                f"the training rows are not in random order: {alike:.0%} of neighbours have the same {name!r}. The "
                "other items of a batch are the negatives, and a batch has rows from a few places of the file, so that "
                f"the model learns less. Shuffle the file once: {_SHUFFLE}"
            )
            return


def _varying(batches: Sequence[Mapping[str, Any]], item: str, names: Sequence[str]) -> Iterator[str]:
    """Warnings about features that differ within one item, although the vector of an item depends on them."""
    for name in names:
        if name == item:
            continue
        values: dict[Any, set[str]] = {}
        counts: dict[Any, int] = {}
        for batch in batches:
            items = batch[item].numpy().reshape(-1).tolist()
            for key, value in zip(items, _comparable(batch[name])):
                values.setdefault(key, set()).add(value)
                counts[key] = counts.get(key, 0) + 1
        several = [key for key, count in counts.items() if count > 1]
        num_varying = sum(len(values[key]) > 1 for key in several)
        if num_varying > _VARIES * len(several):
            yield (
                f"the item tower reads {name!r}, which differs between the rows of one {item!r}, so that it is no "
                "property of the item: an item is ranked with the value of its last training row. Leave it out "
                f"(data.exclude=[{name}], or data.features without it), or name it in model.query_features if it is "
                "known with the query"
            )


def _comparable(values: Any) -> list[str]:
    """A value for each example that is equal if all its values are, also where these are NaN."""
    if isinstance(values, tf.RaggedTensor):
        return [str(each) for each in values.to_list()]
    return [str(each.tolist()) for each in values.numpy()]


def model(
    tensors: Mapping[str, tf.Tensor],
    query: tf.Tensor,
    item_vector: tf.Tensor,
    *,
    preprocessing: Any,
    item_features: Sequence[str],
    item: str | None,
    num_items: int,
    objective: str,
    warnings: Sequence[str],
    **options: Any,
) -> Model:
    """The model of two towers.

    Args:
      tensors: the inputs of the network, by feature.
      query, item_vector: the outputs of the towers, (batch, dim).
      item: the feature with the ids of the items; None with objective=labels.
      warnings: as `check_objective` returns them.
      options: of `InBatchSoftmax`.
    """
    if objective == "labels":
        dot = tf_keras.layers.Dot(axes=1)([query, item_vector])
        prediction = tf_keras.layers.Activation("sigmoid", name="prediction")(dot)
        vectors = {"query": query, "item": item_vector}
    else:
        softmax = InBatchSoftmax(num_items, name="prediction", **options)
        assert item is not None
        prediction = softmax((query, item_vector, tensors[item]))
        scale = tf_keras.layers.Lambda(softmax.scaled)
        vectors = {"query": scale(query), "item": scale(item_vector)}
    towers = Towers(tf_keras.Model(tensors, vectors), tuple(item_features))
    network = tf_keras.Model(tensors, prediction)
    if objective == "labels":
        return Model(network, preprocessing, towers=towers)
    return Model(
        network,
        preprocessing,
        loss=no_loss,
        metrics=list,
        from_logits=False,
        has_scores=True,
        towers=towers,
        warnings=warnings,
    )
