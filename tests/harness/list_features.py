"""Data with lists, and models for it that need no layers for lists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import counting
import numpy as np
import tensorflow as tf
import tf_keras

from psrun.data.lists import Lists, of_lengths
from psrun.data.source import ArraySource, Feature
from psrun.models.model import Model, head, inputs, network_inputs, prepared

NUM_TRAIN, NUM_EVAL = 200, 53  # the last batch of an evaluation is a small one
MAX_VALUES = 6


def drawn(rng: np.random.Generator, count: int) -> tuple[Lists, Lists]:
    """Lists of 0 to 6 ids, some of them empty, and the weights of these."""
    lengths = rng.integers(0, MAX_VALUES + 1, size=count)
    ids = rng.integers(0, 50, size=lengths.sum())
    weights = rng.random(lengths.sum()).astype(np.float32)
    return of_lengths(ids, lengths), of_lengths(weights, lengths)


class Histories(ArraySource):
    """The label is the sum of the ids times their weights; evaluation examples have other lists.

    Args:
      declared: whether the features are declared as lists.
      sample_weights: whether examples have weights.
      numbered: whether examples have their number as the feature `row`.
      combiner: of the ids.
      spoiled: the evaluation examples have no lists.
    """

    def __init__(
        self,
        *,
        declared: bool = True,
        sample_weights: bool = False,
        numbered: bool = False,
        combiner: str = "mean",
        spoiled: bool = False,
    ) -> None:
        rng = np.random.default_rng(7)

        def examples(count: int) -> Any:
            ids, weights = drawn(rng, count)
            row_of = np.repeat(np.arange(count), ids.lengths)
            label = np.bincount(row_of, ids.values / 50 * weights.values, minlength=count)
            label = label.astype(np.float32)[:, np.newaxis]
            x = rng.normal(size=(count, 2)).astype(np.float32)
            features: dict[str, Any] = {"history": ids, "history_weights": weights, "x": x}
            if numbered:
                features["row"] = np.arange(count)[:, np.newaxis]
            if spoiled and count == NUM_EVAL:
                features["history"] = np.zeros((count, 2), np.int64)
            return (features, label, np.ones(count, np.float32)) if sample_weights else (features, label)

        most = MAX_VALUES if declared else None
        super().__init__(
            features={
                "history": Feature((None,), tf.int64, max_values=most, combiner=combiner, weights="history_weights"),
                "history_weights": Feature((None,), tf.float32, max_values=most),
                "x": Feature((2,), tf.float32),
                **({"row": Feature((1,), tf.int64)} if numbered else {}),
            },
            task="regression",
            train=examples(NUM_TRAIN),
            evaluation=examples(NUM_EVAL),
        )


class SparseHistories(Histories):
    """As `Histories`, with SparseTensors."""

    def train(self, **options: Any) -> tf.data.Dataset:
        return super().train(**options).map(_sparse)

    def batches(self, *arguments: Any) -> tf.data.Dataset:
        numbered = super().batches(*arguments)
        return numbered.map(lambda number, examples, batch: (number, examples, _sparse(*batch)))

    def evaluation(self, **options: Any) -> tf.data.Dataset:
        return super().evaluation(**options).map(_sparse)


def _sparse(features: Any, label: Any) -> Any:
    lists = {name: each.to_sparse() for name, each in features.items() if isinstance(each, tf.RaggedTensor)}
    return {**features, **lists}, label


class _Ids(tf_keras.layers.Layer):
    """Sums of ids times their weights, sums of ids, and numbers of ids: (batch, 3)."""

    def call(self, ids: tf.RaggedTensor, weights: tf.RaggedTensor) -> tf.Tensor:
        values = tf.cast(ids, tf.float32) / 50
        return tf.stack(
            [
                tf.reduce_sum(values * weights, axis=1),
                tf.reduce_sum(values.to_tensor(), axis=1),
                tf.cast(ids.row_lengths(), tf.float32),
            ],
            axis=1,
        )


def sums(source: Any, initial: Any = "glorot_uniform") -> tf_keras.Model:
    """A linear model on sums of the values of a list and its weights, and on other numbers."""
    tensors = inputs(dict(source.features))
    return tf_keras.Model(tensors, _prediction(tensors, initial))


def _prediction(tensors: Mapping[str, Any], initial: Any = "glorot_uniform") -> tf.Tensor:
    held = [_Ids()(tensors["history"], tensors["history_weights"])]
    held += [tensors[name] for name in ("x",) if name in tensors]
    return tf_keras.layers.Dense(1, kernel_initializer=initial)(tf.concat(held, 1))


def counted(source: Any) -> tf_keras.Model:
    """As `sums`, and counts how often each example is applied by its number, the feature `row`: see `counting`."""
    tensors = inputs(dict(source.features))
    numbers = dict.fromkeys(counting.TABLES, tf.squeeze(tensors["row"], 1))
    return tf_keras.Model(tensors, counting.counted(numbers, source.num_train_examples, _prediction(tensors)))


def started(source: Any) -> tf_keras.Model:
    """As `sums`, from the same weights in every run."""
    return sums(source, tf_keras.initializers.Constant(0.1))


def embedded(source: Any) -> Model:
    """The means of the rows of ids, also of lists of strings, by Keras' own layers."""
    preprocessing, num_ids = prepared(source)
    tensors = network_inputs(source, num_ids)
    means = [tf.reduce_sum(tf_keras.layers.Embedding(size, 4)(tensors[name]), axis=1) for name, size in num_ids.items()]
    return Model(tf_keras.Model(tensors, head(tf.concat(means, 1), source)), preprocessing)


class Called(tf_keras.Model):
    """As `sums`, without declared inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.ids, self.top = _Ids(), tf_keras.layers.Dense(1)

    def call(self, features: Any) -> tf.Tensor:
        return self.top(self.ids(features["history"], features["history_weights"]))


def called(source: Any) -> tf_keras.Model:
    return Called()


def dense_inputs(source: Any) -> tf_keras.Model:
    """A model that takes one value of each feature."""
    tensors = {name: tf_keras.Input((1,), dtype=feature.dtype, name=name) for name, feature in source.features.items()}
    values = [tf.cast(tensor, tf.float32) for tensor in tensors.values()]
    return tf_keras.Model(tensors, tf_keras.layers.Dense(1)(tf.concat(values, 1)))


def own_data(*pieces: str, model: str = "sums") -> tuple[str, ...]:
    """A run on `Histories`, without options of the data or model that it is chosen in place of."""
    return (
        "model=dense", "~model.hidden_units", f"model._target_=list_features.{model}",
        "data._target_=list_features.Histories", "~data.num_train_examples", "~data.num_eval_examples",
        "~data.noise", "~data.num_features", "data.global_batch_size=16", "optimizer=sgd",
        "optimizer.learning_rate=0.01", *pieces,
    )  # fmt: skip


def write_csv(path: Path, count: int, *, seed: int) -> tuple[list[list[str]], list[float]]:
    """Lists of 0 to 4 words a to e, 2 in the mean; the label is 1 where one of them is a."""
    rng = np.random.default_rng(seed)
    words = [rng.choice([*"abcde"], size=index % 5).tolist() for index in range(count)]
    labels = [float("a" in each) for each in words]
    lines = [f"{'|'.join(each)},{label:.0f}\n" for each, label in zip(words, labels)]
    path.write_text("".join(["words,label\n", *lines]))
    return words, labels
