"""Models of Keras 3 and of tf-keras with layers that write to their own weights when they are called."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras
from keras3_models import weights_of

from psrun.data.source import ArraySource, Feature

BATCH = 8
STEPS = 3


def _arrays(seed: int, num_batches: int) -> Any:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_batches * BATCH, 6)).astype(np.float32)
    ids = rng.integers(5, size=(num_batches * BATCH, 4))
    label = x.sum(axis=1, keepdims=True) + (ids == 1).sum(axis=1, keepdims=True)
    return {"x": x, "ids": ids}, label.astype(np.float32)


TRAIN = _arrays(1, STEPS)
EVALUATION = _arrays(2, 2)


class Batches(ArraySource):
    """The same three batches again and again, in their order."""

    def __init__(self) -> None:
        features = {"x": Feature((6,), tf.float32), "ids": Feature((4,), tf.int64)}
        super().__init__(features=features, task="regression", train=TRAIN, evaluation=EVALUATION)

    def train(self, *, batch_size: int, seed: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(TRAIN).batch(batch_size).repeat()


class Projected(keras.layers.Layer):
    """Uses its kernel, scales it to a norm, and uses it again; counts calls.

    Args:
      always: whether it does so in evaluations, too.
      twice: whether it assigns the kernel once more.
    """

    def __init__(self, *, always: bool = False, twice: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._always = always
        self._twice = twice

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 4), initializer=weights_of(keras)(1), name="kernel")
        self.calls = self.add_weight(shape=(), initializer="zeros", dtype="int32", trainable=False, name="calls")

    def call(self, x, training=False):
        before = keras.ops.mean(keras.ops.matmul(x, self.kernel))
        if training or self._always:
            self.calls.assign_add(1)
            self.kernel.assign(self.kernel * 2.0 / keras.ops.norm(self.kernel))
            if self._twice:
                self.kernel.assign(keras.ops.clip(self.kernel, -0.5, 0.5))
        return keras.ops.matmul(x, self.kernel) + before + 0.01 * keras.ops.cast(self.calls, "float32")


class Bounded(keras.layers.Layer):
    """Bounds the norms of the rows of an Embedding that it holds, before it looks up rows."""

    def build(self, shape):
        self.embedding = keras.layers.Embedding(5, 3, embeddings_initializer=weights_of(keras)(4))
        self.embedding.build(shape)

    def call(self, ids, training=False):
        rows = self.embedding.embeddings
        if training:
            rows.assign(rows * keras.ops.minimum(1.0, 0.5 / keras.ops.norm(rows, axis=1, keepdims=True)))
        return keras.ops.mean(self.embedding(ids), axis=1)


class Codebook(keras.layers.Layer):
    """Adds a code to its inputs, which it has moved towards their mean: no gradient goes through the assignment."""

    def build(self, shape):
        own = {"initializer": weights_of(keras)(5), "trainable": False, "name": "code"}
        self.code = self.add_weight(shape=(shape[-1],), **own)

    def call(self, x, training=False):
        if training:
            self.code.assign(0.9 * self.code + 0.1 * keras.ops.mean(x, axis=0))
        self.add_loss(0.1 * keras.ops.mean((self.code - x) ** 2))
        return x + self.code


class OfTfKeras(tf_keras.layers.Layer):
    """As `Projected`, in tf-keras."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 4), initializer=weights_of(tf_keras)(1), name="kernel")

    def call(self, x, training=False):
        if training:
            kernel = tf.convert_to_tensor(self.kernel)
            self.kernel.assign(kernel * 2.0 / tf.norm(kernel))
        return tf.matmul(x, tf.convert_to_tensor(self.kernel))


class InBranch(Projected):
    """Assigns its kernel in a branch."""

    def call(self, x, training=False):
        if training:
            large = keras.ops.norm(self.kernel) > 2.0
            keras.ops.cond(large, lambda: self.kernel.assign(self.kernel * 0.9), lambda: keras.ops.copy(self.kernel))
        return keras.ops.matmul(x, self.kernel)


class Counting(keras.layers.Layer):
    """Counts calls in a variable that is no weight of it, since Keras does not look into functions."""

    def build(self, shape):
        calls = keras.Variable(0.0, trainable=False, name="calls")
        self.calls = lambda: calls

    def call(self, x):
        self.calls().assign_add(1.0)
        return x + 0.1 * self.calls()


def _spectral(k: Any, x: Any, ids: Any) -> Iterator[Any]:
    seeded = weights_of(k)
    pairs = k.layers.Reshape((3, 2))(x)
    wrapped = k.layers.SpectralNormalization
    yield wrapped(k.layers.Dense(4, kernel_initializer=seeded(1), kernel_regularizer="l2"))(x)
    yield k.layers.Flatten()(wrapped(k.layers.Conv1D(4, 2, kernel_initializer=seeded(2)), power_iterations=3)(pairs))
    shared = wrapped(k.layers.Dense(4, kernel_initializer=seeded(3)))
    yield shared(x)
    yield shared(k.layers.Rescaling(0.5)(x))
    numbers = k.layers.Rescaling(1.0)(ids)  # Keras 3 converts the rows to the type of the ids
    yield k.layers.Flatten()(wrapped(k.layers.Embedding(5, 3, embeddings_initializer=seeded(4)))(numbers))


def _statistics(k: Any, x: Any, ids: Any) -> Iterator[Any]:
    yield k.layers.BatchNormalization(momentum=0.7)(x)
    yield k.layers.BatchNormalization(momentum=0.7, renorm=True)(x)
    yield k.layers.BatchNormalization(momentum=0.7, synchronized=True)(x)
    if k is keras:
        yield Codebook()(k.layers.Dense(4, kernel_initializer=weights_of(k)(1))(x))


def _states(k: Any, x: Any, ids: Any) -> Iterator[Any]:
    seeded = weights_of(k)
    pairs = k.layers.Reshape((3, 2))(x)
    own = {"kernel_initializer": seeded(2), "recurrent_initializer": seeded(3)}
    yield k.layers.LSTM(3, stateful=True, **own)(pairs)
    yield k.layers.RNN([k.layers.SimpleRNNCell(3, **own), k.layers.SimpleRNNCell(2, **own)], stateful=True)(pairs)


def _own(k: Any, x: Any, ids: Any) -> Iterator[Any]:
    if k is tf_keras:
        yield OfTfKeras(name="own")(x)
        return
    yield Projected()(x)
    yield Projected(always=True, twice=True)(x)
    yield Projected(trainable=False)(x)
    yield Bounded()(ids)


def _lstm(k: Any, x: Any, ids: Any) -> Iterator[Any]:
    yield k.layers.LSTM(3, stateful=True)(k.layers.Reshape((3, 2))(x))


def _in_branch(k: Any, x: Any, ids: Any) -> Iterator[Any]:
    yield InBranch(name="own")(x)


def _counting(k: Any, x: Any, ids: Any) -> Iterator[Any]:
    yield Counting()(x)


def _float8(k: Any, x: Any, ids: Any) -> Iterator[Any]:
    yield k.layers.Dense(4, dtype="float8_from_float32")(x)


KINDS = {
    "spectral": _spectral,
    "statistics": _statistics,
    "states": _states,
    "own": _own,
    "lstm": _lstm,
    "in_branch": _in_branch,
    "counting": _counting,
    "float8": _float8,
}


def model(source: Any, *, kind: str, library: str = "keras") -> Any:
    k = keras if library == "keras" else tf_keras
    x = k.Input((6,), batch_size=BATCH, name="x")
    ids = k.Input((4,), batch_size=BATCH, dtype="int64", name="ids")
    outputs = [*KINDS[kind](k, x, ids)]
    together = outputs[0] if len(outputs) == 1 else k.layers.Concatenate()(outputs)
    score = k.layers.Dense(1, kernel_initializer=weights_of(k)(9), name="score")
    return k.Model({"x": x, "ids": ids}, score(together))
