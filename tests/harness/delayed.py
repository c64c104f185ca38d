"""A model that is linear in a table and in weights, and delayed stochastic gradient descent on it by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

import psrun.layers
from psrun.data.source import Feature

ROWS, BATCH_SIZE = 5, 4
_BATCHES = 7
LINEAR = ("~model.embedding_dim", "~data.num_train_examples", "~data.num_eval_examples", "evaluation=none",
          "model._target_=delayed.linear", "data._target_=delayed.Numbers", "optimizer=sparse_sgd",
          f"data.global_batch_size={BATCH_SIZE}")  # fmt: skip


class Numbers:
    """Batches of ids, numbers and targets in one order, over and over."""

    facts: dict[str, Any] = {}
    task, num_classes = "regression", 1
    num_train_examples, num_eval_examples = _BATCHES * BATCH_SIZE, 0
    features = {"id": Feature((1,), tf.int64), "x": Feature((2,), tf.float32)}

    def train(self, *, batch_size: int, seed: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(examples()).repeat().batch(batch_size, drop_remainder=True)

    def evaluation(self, *, batch_size: int) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(examples()).take(0).batch(batch_size)


def examples() -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(3)
    size = _BATCHES * BATCH_SIZE
    features = {"id": rng.integers(ROWS, size=(size, 1)), "x": rng.normal(size=(size, 2)).astype(np.float32)}
    return features, rng.normal(size=(size, 1)).astype(np.float32)


def linear(source: Any) -> tf_keras.Model:
    """table[id] + x w"""
    ids, x = tf_keras.Input((1,), dtype=tf.int64, name="id"), tf_keras.Input((2,), name="x")
    rows = psrun.layers.Embedding(ROWS, 1, embeddings_initializer=tf_keras.initializers.Constant(0.1))(ids)
    weights = tf_keras.layers.Dense(1, use_bias=False, kernel_initializer=tf_keras.initializers.Constant(0.2))
    return tf_keras.Model({"id": ids, "x": x}, tf_keras.layers.Flatten()(rows) + weights(x))


def delayed(delay: int, steps: int) -> list[tuple[int, int]]:
    """The updates of `by_hand` where each is late by `delay`, as far as there were that many."""
    return [(step, max(0, step - delay)) for step in range(steps)]


LateRate = Callable[[float, int], float]


def same_rate(rate: float, delay: int) -> float:
    return rate


def divided_rate(rate: float, delay: int) -> float:
    """That of `optimizer.staleness_aware`."""
    return rate / max(1, delay)


def by_hand(
    updates: Sequence[tuple[int, int]], rate: float, *, late_rate: LateRate = same_rate, compensation: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Table and weights after gradient descent on the mean squared error.

    Args:
      updates: of each one the number of its batch, and the number of updates before those weights that it reads.
      late_rate: the rate of an update, from `rate` and its delay.
      compensation: lambda in g + lambda g g (w_now - w_read), for the weights.
    """
    features, targets = examples()
    table, weights = np.full([ROWS, 1], 0.1), np.full([2, 1], 0.2)
    versions = []
    for number, (batch, version) in enumerate(updates):
        versions.append((table.copy(), weights.copy()))
        read_table, read_weights = versions[version]
        places = slice(batch % _BATCHES * BATCH_SIZE, (batch % _BATCHES + 1) * BATCH_SIZE)
        ids, x = features["id"][places, 0], features["x"][places]
        error = 2 / BATCH_SIZE * (read_table[ids] + x @ read_weights - targets[places])
        gradient = x.T @ error
        gradient += compensation * gradient**2 * (weights - read_weights)
        now = late_rate(rate, number - version)
        weights -= now * gradient
        np.subtract.at(table, ids, now * error)
    return table, weights


def check(trained: Mapping[str, np.ndarray], table: np.ndarray, weights: np.ndarray) -> None:
    """Compares the variables of a checkpoint; psrun's layer has rows in another order, and some that nothing uses."""
    for name, values in trained.items():
        if "embeddings" in name:
            used = values[np.abs(values - np.float32(0.1)).max(axis=1) > 0]
            np.testing.assert_allclose(np.sort(used, axis=0), np.sort(table, axis=0), rtol=1e-5, atol=1e-6)
        elif "kernel" in name:
            np.testing.assert_allclose(values, weights, rtol=1e-5, atol=1e-6)
