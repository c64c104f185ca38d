"""Counts how often each example was trained on, and by which worker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from psrun.data.source import ByNumber
from psrun.program.compiled_model import Program

_MOST = 3  # examples seen at least this often are counted together


class Audit:
    """Counters on the first parameter server, one for each example and worker: 4 bytes each.

    A batch counts when a step takes it. A step of a worker that is killed in between may count and not be applied.
    """

    def __init__(self, program: Program) -> None:
        assert isinstance(program.source, ByNumber)
        self._shape: tuple[int, int] = (program.distribution.num_workers, program.source.num_train_examples)
        self._deferred: list[tf.Tensor] | None = None
        with tf.device("/job:ps/replica:0/task:0/device:CPU:0"):
            self._counts: Any = tf.Variable(tf.zeros([self._shape[0] * self._shape[1]], tf.int32), trainable=False)

    def count(self, examples: tf.Tensor) -> None:
        """Call in a closure.

        Args:
          examples: the number of each example, plus the worker's index times the number of examples.
        """
        if self._deferred is not None:
            self._deferred.append(examples)
            return
        self._counts.scatter_add(tf.IndexedSlices(tf.ones_like(examples, tf.int32), examples))

    @contextlib.contextmanager
    def deferring(self) -> Iterator[list[tf.Tensor]]:
        """In this context examples are not counted, but added to the list, to be counted when they are applied."""
        self._deferred = []
        try:
            yield self._deferred
        finally:
            self._deferred = None

    def epoch(self) -> dict[str, Any]:
        """The counts since the last call; call when all steps are joined.

        Returns:
          `seen`: how many examples were seen '0', '1', '2' and '3+' times. `by_worker`: how many each worker saw, of
          all and of those seen more than once.
        """
        counts = self._counts.numpy().reshape(self._shape)
        self._counts.assign(tf.zeros_like(self._counts))
        total = counts.sum(axis=0)
        histogram = np.bincount(np.minimum(total, _MOST), minlength=_MOST + 1)
        return {
            "seen": {f"{times}{'+' if times == _MOST else ''}": int(number) for times, number in enumerate(histogram)},
            "by_worker": {
                f"worker-{index}": {
                    "seen": int((own > 0).sum()),
                    "also_elsewhere": int(((own > 0) & (total > own)).sum()),
                }
                for index, own in enumerate(counts)
            },
        }
