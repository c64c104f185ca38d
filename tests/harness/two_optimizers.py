"""A model of one table and a dense layer in float64, its data, and the same training in NumPy.

All batches are the same: the order of examples and the number of workers change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from psrun.data.source import Feature
from psrun.layers import Embedding

ROWS, DIM, BATCH = 10, 3, 4
IDS = np.array([[0, 9], [1, 7], [2, 4], [3, 8]])  # each row once: a norm is the same before and after a sum by row
PLACES = IDS % 2 * (ROWS // 2) + IDS // 2  # of the ids in a table of psrun's layer
LABELS = np.array([1.0, -2.0, 0.5, 3.0], np.float32)
ARGUMENTS = (
    "model=dense", "~model.hidden_units", "model._target_=two_optimizers.model", "data._target_=two_optimizers.Same",
    "~data.num_train_examples", "~data.num_eval_examples", "~data.noise", "~data.num_features", "evaluation=none",
    "tracker=none", f"data.global_batch_size={BATCH}", "trainer.epochs=1", "trainer.steps_per_epoch=6",
)  # fmt: skip


class Same:
    """One batch, for ever."""

    facts: dict[str, Any] = {}
    task = "regression"
    num_classes = 1
    num_train_examples = num_eval_examples = BATCH
    features = {"ids": Feature((2,), tf.int64)}

    def train(self, *, batch_size: int, seed: tf.Tensor) -> tf.data.Dataset:
        return self.evaluation(batch_size=batch_size).repeat()

    def evaluation(self, *, batch_size: int) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors(({"ids": IDS}, LABELS))


def table() -> np.ndarray:
    return np.linspace(-0.5, 0.5, ROWS * DIM).reshape(ROWS, DIM)


def kernel() -> np.ndarray:
    return np.linspace(0.3, 0.8, 2 * DIM).reshape(2 * DIM, 1)


def model(source: Any, *, keras_layer: bool = False) -> tf_keras.Model:
    """The model.

    Args:
      keras_layer: whether the table is Keras' own layer, with another name than that of a table.
    """
    kind = tf_keras.layers.Embedding if keras_layer else Embedding
    inputs = tf_keras.Input((2,), dtype=tf.int64, name="ids")
    rows = kind(ROWS, DIM, embeddings_initializer=_Starting(table()), dtype="float64", name="words")(inputs)
    dense = tf_keras.layers.Dense(1, kernel_initializer=_Starting(kernel()), dtype="float64", name="dense")
    return tf_keras.Model({"ids": inputs}, dense(tf_keras.layers.Reshape((2 * DIM,), dtype="float64")(rows)))


class _Starting(tf_keras.initializers.Initializer):
    def __init__(self, values: np.ndarray) -> None:
        self._values = values

    def __call__(self, shape: Any, dtype: Any = None, **kwargs: Any) -> tf.Tensor:
        begin = kwargs.get("partition_offset") or [0] * len(shape)
        sizes = kwargs.get("partition_shape") or shape
        return tf.constant(self._values[tuple(slice(at, at + size) for at, size in zip(begin, sizes))], dtype)


def by_numpy(
    update_table: Callable[[np.ndarray, np.ndarray, int], None],
    *,
    steps: int,
    rate: Callable[[int], float] = lambda step: 0.01,
    clip: Callable[[list[np.ndarray]], list[np.ndarray]] = lambda gradients: gradients,
    decay: float = 0.0,
    ids: np.ndarray = PLACES,
) -> dict[str, np.ndarray]:
    """The variables after some steps, dense weights by Adam.

    Args:
      update_table: changes the table by a gradient, in a step from 0.
      rate: the learning rate of Adam in a step.
      clip: changes the gradients of the table, the kernel and the bias.
      decay: of dense weights, in each step times its learning rate.
      ids: the rows of each example.
    """
    rows, weights, bias = table(), kernel(), np.zeros(1)
    adams = [Adam(each.shape, rate) for each in (weights, bias)]
    for step in range(steps):
        read = rows[ids].reshape(BATCH, -1)
        error = 2 * (read @ weights + bias - LABELS[:, np.newaxis]) / BATCH
        of_rows = np.zeros_like(rows)
        np.add.at(of_rows, ids, (error @ weights.T).reshape(*ids.shape, DIM))
        gradients = clip([of_rows, read.T @ error, error.sum(0)])
        update_table(rows, gradients[0], step)
        for variable, gradient, adam in zip((weights, bias), gradients[1:], adams):
            variable -= variable * decay * rate(step)
            adam(variable, gradient, step)
    return {"words/embeddings": rows, "dense/kernel": weights, "dense/bias": bias}


def by_norm(gradients: list[np.ndarray], norm: float) -> list[np.ndarray]:
    """Clips the norm of all gradients together."""
    own = np.sqrt(sum(np.sum(each**2) for each in gradients))
    return [each * min(1.0, norm / own) for each in gradients]


class Adam:
    """Keras' Adam, which takes the powers of its decays, though of float64, from numbers of float32."""

    def __init__(self, shape: tuple[int, ...], rate: Callable[[int], float] = lambda step: 0.01) -> None:
        self._m, self._v = np.zeros(shape), np.zeros(shape)
        self._rate = rate

    def __call__(self, variable: np.ndarray, gradient: np.ndarray, step: int) -> None:
        self._m += 0.1 * (gradient - self._m)
        self._v += 0.001 * (gradient**2 - self._v)
        unbiased = [1 - float(np.float32(decay)) ** (step + 1) for decay in (0.9, 0.999)]
        alpha = self._rate(step) * np.sqrt(unbiased[1]) / unbiased[0]
        variable -= alpha * self._m / (np.sqrt(self._v) + 1e-7)


class Rowwise:
    """Row-wise Adagrad."""

    def __init__(self, rate: Callable[[int], float] = lambda step: 0.05) -> None:
        self.accumulator = np.full((ROWS, 1), 0.1)
        self._rate = rate

    def __call__(self, rows: np.ndarray, gradient: np.ndarray, step: int) -> None:
        used = np.flatnonzero(gradient.any(-1))
        self.accumulator[used] += np.mean(gradient[used] ** 2, -1, keepdims=True)
        rows[used] -= self._rate(step) * gradient[used] / np.sqrt(self.accumulator[used] + 1e-7)


class Ftrl:
    """Follow the regularized leader, without regularization."""

    def __init__(self) -> None:
        self.accumulator = np.full((ROWS, DIM), 0.1)
        self._linear = np.zeros((ROWS, DIM))

    def __call__(self, rows: np.ndarray, gradient: np.ndarray, step: int) -> None:
        used = np.flatnonzero(gradient.any(-1))
        grown = self.accumulator[used] + gradient[used] ** 2
        self._linear[used] += gradient[used] - (np.sqrt(grown) - np.sqrt(self.accumulator[used])) / 0.05 * rows[used]
        self.accumulator[used] = grown
        rows[used] = -self._linear[used] / (np.sqrt(grown) / 0.05)
