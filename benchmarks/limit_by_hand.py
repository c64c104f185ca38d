"""The clicks model, and DLRM, in plain TensorFlow with all that is known to help: kinds `limit`, `local_limit`, `dlrm`.

DLRM has one stacked table: ids are rows of the stack already. Rows are gathered and put back by vectorised kernels,
under a lock; all dense weights are one flat variable.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf
from click_examples import (
    ADAM_RATE,
    DLRM_BOTTOM_UNITS,
    DLRM_TOP_UNITS,
    EPSILON,
    HIDDEN_UNITS,
    INITIAL_ACCUMULATOR,
    LEARNING_RATE,
    NUM_FEATURES,
    NUM_NUMBERS,
)

UNROLLED = 10
BETA_1, BETA_2 = 0.9, 0.999


class Rule(Protocol):
    """The update rule of an optimizer, with slots of the shape of the values that begin as `start`."""

    num_slots: int
    start: float

    def rate(self, at: tf.Tensor) -> Any:
        """The learning rate after `at` steps."""

    def updated(self, values: tf.Tensor, slots: list[tf.Tensor], gradient: tf.Tensor, rate: Any) -> list[tf.Tensor]:
        """The new values and slots."""


class Adagrad:
    num_slots, start = 1, INITIAL_ACCUMULATOR

    def rate(self, at: tf.Tensor) -> Any:
        return LEARNING_RATE

    def updated(self, values: tf.Tensor, slots: list[tf.Tensor], gradient: tf.Tensor, rate: Any) -> list[tf.Tensor]:
        grown = slots[0] + tf.square(gradient)
        return [values - rate * gradient * tf.math.rsqrt(grown + EPSILON), grown]


class Adam:
    num_slots, start = 2, 0.0

    def rate(self, at: tf.Tensor) -> Any:
        now = tf.cast(at + 1, tf.float32)
        return ADAM_RATE * tf.sqrt(1 - tf.pow(BETA_2, now)) / (1 - tf.pow(BETA_1, now))

    def updated(self, values: tf.Tensor, slots: list[tf.Tensor], gradient: tf.Tensor, rate: Any) -> list[tf.Tensor]:
        m = slots[0] + (gradient - slots[0]) * (1 - BETA_1)
        v = slots[1] + (tf.square(gradient) - slots[1]) * (1 - BETA_2)
        return [values - rate * m / (tf.sqrt(v) + EPSILON), m, v]


RULES: dict[str, type[Rule]] = {"adagrad": Adagrad, "adam": Adam}


class Shard(NamedTuple):
    """A part of the table with its slots, and the lock under which they are written."""

    table: tf.Variable
    slots: list[tf.Variable]
    lock: tf.CriticalSection


Layers = Sequence[tuple[int, int]]  # (inputs, outputs) of each


def initial_weights(layers: Layers) -> tf.Tensor:
    """Kernels as of Glorot and biases of zero, all in a row."""
    parts = []
    for fan_in, fan_out in layers:
        parts += [tf.random.uniform([fan_in * fan_out], -1.0, 1.0) * (6.0 / (fan_in + fan_out)) ** 0.5]
        parts += [tf.zeros([fan_out])]
    return tf.concat(parts, 0)


def logits(hidden: tf.Tensor, layers: Layers, flat: tf.Tensor, at: int = 0) -> tf.Tensor:
    """The perceptron with the weights `flat` from `at` on, as `initial_weights` orders them."""
    for index, (fan_in, fan_out) in enumerate(layers):
        kernel = tf.reshape(flat[at : at + fan_in * fan_out], [fan_in, fan_out])
        at += fan_in * fan_out
        hidden = tf.matmul(hidden, kernel) + flat[at : at + fan_out]
        at += fan_out
        hidden = tf.nn.relu(hidden) if index + 1 < len(layers) else hidden
    return hidden


class Network(Protocol):
    """Dense layers over the rows of an example, (batch, NUM_FEATURES, dim), and its numbers."""

    layers: Layers

    def logits(self, rows: tf.Tensor, numbers: tf.Tensor, flat: tf.Tensor) -> tf.Tensor: ...


class Perceptron:
    def __init__(self, dim: int) -> None:
        self._width = NUM_FEATURES * dim
        self.layers: Layers = list(itertools.pairwise([self._width + NUM_NUMBERS, *HIDDEN_UNITS, 1]))

    def logits(self, rows: tf.Tensor, numbers: tf.Tensor, flat: tf.Tensor) -> tf.Tensor:
        return logits(tf.concat([tf.reshape(rows, [-1, self._width]), numbers], 1), self.layers, flat)


class Dlrm:
    """See `psrun.recsys.models.dlrm`, with its default layers."""

    def __init__(self, dim: int) -> None:
        self._vectors = NUM_FEATURES + 1
        pairs = [(row, column) for row in range(self._vectors) for column in range(row)]
        self._below = [row * self._vectors + column for row, column in pairs]
        self._bottom = list(itertools.pairwise([NUM_NUMBERS, *DLRM_BOTTOM_UNITS, dim]))
        self._top = list(itertools.pairwise([dim + len(pairs), *DLRM_TOP_UNITS, 1]))
        self.layers: Layers = [*self._bottom, *self._top]

    def logits(self, rows: tf.Tensor, numbers: tf.Tensor, flat: tf.Tensor) -> tf.Tensor:
        bottom = tf.nn.relu(logits(numbers, self._bottom, flat))
        vectors = tf.concat([bottom[:, None], rows], 1)
        products = tf.reshape(tf.matmul(vectors, vectors, transpose_b=True), [-1, self._vectors**2])
        top = tf.concat([bottom, tf.gather(products, self._below, axis=1)], 1)
        return logits(top, self._top, flat, sum((before + 1) * after for before, after in self._bottom))


class Limit:
    """Variables of the model, and its steps.

    Args:
      remote: whether there are parameter servers; else all lies in this process.
    """

    def __init__(self, options: argparse.Namespace, network: Network, *, remote: bool) -> None:
        self._remote = remote
        self._num_ps = options.num_ps if remote else 1
        self._share = -(-options.rows // self._num_ps)
        self._rule: Rule = RULES[options.optimizer]()
        self._network, self._dim = network, options.dim
        weights = initial_weights(network.layers)
        self._shards = [self._shard(ps, options.dim) for ps in range(self._num_ps)]
        with self._on(0):
            self._dense = [tf.Variable(weights), *self._slots(weights.shape)]
            self._iterations = tf.Variable(0, dtype=tf.int64)
        self._updaters = [self._updater(ps) for ps in range(self._num_ps)]

    def steps(self) -> Any:
        """A function of an iterator that does `UNROLLED` steps."""

        @tf.function
        def steps(iterator: Any) -> None:
            first = self._iterations.read_value()
            for index in range(UNROLLED):
                self.step(*next(iterator), first + index)
            self._iterations.assign_add(UNROLLED)

        return steps

    def step(self, features: dict[str, tf.Tensor], labels: tf.Tensor, at: tf.Tensor) -> tf.Tensor:
        """One step after `at` others; returns the loss before it."""
        rate = self._rule.rate(at)
        local, places = self._divided(tf.reshape(features["ids"], [-1]))
        pulled = []
        for ps, shard in enumerate(self._shards):
            with self._on(ps):
                pulled.append(tf.gather(shard.table, local[ps]))
        flat = self._dense[0].read_value()
        with tf.GradientTape() as tape:
            tape.watch([pulled, flat])
            rows = tf.dynamic_stitch(places, pulled) if self._num_ps > 1 else pulled[0]
            rows = tf.reshape(rows, [-1, NUM_FEATURES, self._dim])
            logit = self._network.logits(rows, features["numbers"], flat)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logit))
        by_shard, by_weight = tape.gradient(loss, [pulled, flat])
        for ps, update in enumerate(self._updaters):
            with self._on(ps):
                update(local[ps], by_shard[ps], tf.convert_to_tensor(rate))
        with self._on(0):
            slots = [slot.read_value() for slot in self._dense[1:]]
            new_values = self._rule.updated(self._dense[0].read_value(), slots, by_weight, rate)
            for variable, values in zip(self._dense, new_values):
                variable.assign(values)
        return loss

    def _on(self, ps: int) -> Any:
        return tf.device(f"/job:ps/task:{ps}/device:CPU:0" if self._remote else None)

    def _slots(self, shape: Sequence[int]) -> list[tf.Variable]:
        return [tf.Variable(tf.fill(shape, self._rule.start)) for _ in range(self._rule.num_slots)]

    def _shard(self, ps: int, dim: int) -> Shard:
        with self._on(ps):
            table = tf.Variable(tf.random.uniform([self._share, dim], -0.05, 0.05))
            return Shard(table, self._slots([self._share, dim]), tf.CriticalSection(shared_name=f"lock-{ps}"))

    def _divided(self, ids: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """For each shard: the rows of it that `ids` name, and where they stand in `ids`."""
        share, num_ps = self._share, self._num_ps
        which = tf.cast(ids >= share, tf.int32) if num_ps == 2 else tf.cast(ids // share, tf.int32)
        local = tf.dynamic_partition(ids - tf.cast(which, tf.int64) * share, which, num_ps)
        return local, tf.dynamic_partition(tf.range(tf.size(ids)), which, num_ps)

    def _updater(self, ps: int) -> Callable[..., None]:
        """A separate function, so that no lock is held while another one is waited for.

        It stays one: merged with its caller it would have rows sent to the worker and back.
        """
        table, slots, lock = self._shards[ps]

        def replace(rows: tf.Tensor, summed: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
            slot_rows = [tf.gather(slot, rows) for slot in slots]
            new_values = self._rule.updated(tf.gather(table, rows), slot_rows, summed, rate)
            for variable, values in zip([table, *slots], new_values):
                variable.scatter_update(tf.IndexedSlices(values, rows))
            return tf.size(rows)

        @tf.function(experimental_attributes={"_noinline": True})
        def update(rows: tf.Tensor, gradient: tf.Tensor, rate: tf.Tensor) -> None:
            with self._on(ps):
                distinct, position = tf.unique(rows)
                summed = tf.math.unsorted_segment_sum(gradient, position, tf.size(distinct))
                lock.execute(lambda: replace(distinct, summed, rate))

        return update
