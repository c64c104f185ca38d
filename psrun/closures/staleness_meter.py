"""Measures the staleness of updates: how many others were applied between the read of its weights and its own.

A parameter server counts the updates that it applies. Its count travels with the dense weights to the worker, and back
with the gradients: the server subtracts it from its count at that time, and adds the difference to the histogram of the
worker. No message is sent for it, and a lost worker loses none of its updates but one that it was sending.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from psrun.results.staleness import Histogram
from psrun.tf_internals.tracing import in_outermost_graph

LONGEST = 4095  # greater staleness counts as this one
# Counts travel as numbers of the type of the weights, which are exact below this one in float32.
_MODULUS = 2**22
_MOST_UPDATES = 2**31 - 1


class StalenessMeter:
    """Counts the updates on one parameter server, and how stale they are; one for all closures of a training.

    An update is what a step applies. If the gradients of n steps are pushed together, they count as n updates, one
    after the other.
    """

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._applied: Any = None
        self._counts: Any = None
        self._num_averaged = 0

    def place(self, device: str) -> None:
        """Creates the counters on a parameter server, unless they exist. Call outside of functions."""
        if self._applied is None:
            with tf.device(device):
                self._applied = tf.Variable(0, dtype=tf.int32, trainable=False)
                self._counts = tf.Variable(tf.zeros([self._num_workers * (LONGEST + 1)], tf.int32), trainable=False)

    @property
    def device(self) -> str:
        """The parameter server that counts."""
        return self._applied.device

    def applied(self, dtype: tf.DType = tf.float32) -> tf.Tensor:
        """The number of updates applied so far, on the parameter server: shape (1,). Call in a closure."""
        with tf.device(self.device):
            return tf.cast(tf.math.floormod(self._applied.read_value(), _MODULUS), dtype)[tf.newaxis]

    def count(self, numbers: Sequence[tf.Tensor]) -> tf.Tensor:
        """Counts an update when it is applied; call in a closure.

        Args:
          numbers: `UpdatesInClosure.numbers`, on the parameter server: the place of the worker's histogram, and of each
            gradient in the update, `applied` when its oldest weights were read.

        Returns:
          The staleness of the last gradient, on the parameter server: int32, shape (1,).
        """
        first, *reads = numbers
        # Without the dependency the server would count as soon as the closure starts: the count has no input.
        with tf.device(self.device), tf.control_dependencies(numbers):
            for read in reads:
                staleness = tf.math.floormod(self._next() - tf.cast(read, tf.int32), _MODULUS)
                place = tf.cast(first, tf.int32) + tf.minimum(staleness, LONGEST)
                tf.raw_ops.ResourceScatterAdd(resource=self._counts.handle, indices=place, updates=1)
            return staleness

    def _next(self) -> tf.Tensor:
        """Counts an update. One operation reads and adds: no two updates get the same number."""
        return tf.raw_ops.ResourceCountUpTo(resource=self._applied.handle, limit=_MOST_UPDATES, T=tf.int32)

    def count_averaged(self) -> None:
        """Counts an update that the chief applies from gradients at the present weights; call outside of functions."""
        self._num_averaged += 1

    def take(self) -> dict[str, Histogram]:
        """The histograms by task since the last call; call when all steps are joined.

        Updates of averaged gradients belong to no single worker: they are counted for `chief-0`.
        """
        if self._num_averaged:
            num_averaged = self._num_averaged
            self._num_averaged = 0
            return {"chief-0": {0: num_averaged}}
        if self._applied is None:
            return {}
        counts = self._counts.numpy().reshape(self._num_workers, LONGEST + 1)
        self._counts.assign(tf.zeros_like(self._counts))
        return {
            f"worker-{index}": {int(staleness): int(row[staleness]) for staleness in row.nonzero()[0]}
            for index, row in enumerate(counts)
            if row.any()
        }


class UpdatesInClosure:
    """The updates of the unrolled steps of a closure: when their weights were read, and that they are applied.

    Create it in the closure, outside of other functions.

    Args:
      rows_ahead: whether rows of tables are requested when the previous step begins.
    """

    def __init__(self, meter: StalenessMeter, *, rows_ahead: bool) -> None:
        self._meter = meter
        self._rows_ahead = rows_ahead
        index = in_outermost_graph(tf.distribute.coordinator.experimental_get_current_worker_index)
        self._first = tf.cast(index * (LONGEST + 1), tf.float32)[tf.newaxis]
        self._weights: Any = None  # `applied` when the weights of the current step were read
        self._began: Any = None  # and when the step began
        self._oldest: Any = None  # when the oldest weights of the current step were read
        self._reads: list[tf.Tensor] = []  # of the gradients that are not applied yet

    def begin_step(self, applied: tf.Tensor | None, *, reads_weights: bool) -> None:
        """Call when a step begins.

        Args:
          applied: `StalenessMeter.applied`, if it came with the weights; shape (1,).
          reads_weights: whether dense weights are read for the step.
        """
        if applied is None and (reads_weights or self._rows_ahead):
            applied = tf.identity(self._meter.applied())
        previous = self._began
        self._began = applied
        if reads_weights:
            self._weights = applied
        self._oldest = previous if reads_weights and self._rows_ahead and previous is not None else self._weights

    def add(self) -> None:
        """Call when a step has a gradient."""
        if _in_first_replica():
            self._reads.append(tf.cast(self._oldest, tf.float32))

    def numbers(self) -> list[tf.Tensor]:
        """What travels with an update: shape (1,) each; for `StalenessMeter.count`."""
        numbers = [self._first, *self._reads]
        self._reads = []
        return numbers

    @property
    def are_waiting(self) -> bool:
        """Whether there are updates whose numbers no weights have carried."""
        return bool(self._reads)

    def count_alone(self, gradients: Iterable[Any]) -> tf.Tensor:
        """As `StalenessMeter.count`; sends the numbers by themselves, once there are gradients on the worker."""
        tensors = [each for gradient in gradients for each in tf.nest.flatten(gradient, expand_composites=True)]
        here = [each for each in tensors if each is not None and "/job:ps" not in each.device]
        with tf.control_dependencies(here):
            together = tf.concat(self.numbers(), 0)
        with tf.device(self._meter.device):
            received = tf.identity(together)
            return self._meter.count(tf.split(received, received.shape[0]))


def _in_first_replica() -> bool:
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return True
    return int(tf.get_static_value(context.replica_id_in_sync_group)) == 0
