"""Counts how often the updates of each example were applied, and by which worker."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
import tensorflow as tf

from psrun.cluster import placement
from psrun.data.source import ByNumber
from psrun.program.compiled_model import Program

_DEVICE = placement.server_device(0)
_MOST = 3  # examples seen at least this often are counted together


class Audit:
    """Counters on the first parameter server, one for each example and worker: 4 bytes each.

    Args:
      earlier: `state` of the process before, whose steps of the present epoch count; None for none.

    Attributes:
      taken: the examples of each batch that traced steps have taken and not counted: the number of each example, plus
        the worker's index times the number of examples.
    """

    def __init__(self, program: Program, earlier: str | None = None) -> None:
        assert isinstance(program.source, ByNumber)
        self._shape: tuple[int, int] = (program.distribution.num_workers, program.source.num_train_examples)
        num_examples = self._shape[1]
        self._earlier: np.ndarray = np.zeros(num_examples, np.uint8)
        if earlier is not None:
            self._earlier = _unpacked(earlier, num_examples)
        self.taken: list[tf.Tensor] = []
        with tf.device(_DEVICE):
            self._counts: Any = tf.Variable(tf.zeros([self._shape[0] * self._shape[1]], tf.int32), trainable=False)

    def count(self, examples: tf.Tensor) -> tf.Operation:
        """Counts examples that are applied. Call in a function."""
        with tf.device(_DEVICE):
            ones = tf.ones_like(examples, tf.int32)
            return tf.raw_ops.ResourceScatterAdd(resource=self._counts.handle, indices=examples, updates=ones)

    def state(self) -> str:
        """The counts of the present epoch, of all workers together: zlib, base64; at most 255 each.

        Call when all steps are joined.
        """
        with tf.device(_DEVICE):  # of all workers together, less travels
            here = tf.reduce_sum(tf.reshape(self._counts, self._shape), 0)
        counts = np.minimum(self._earlier + here.numpy(), 255).astype(np.uint8)
        return base64.b64encode(zlib.compress(counts.tobytes())).decode()

    def _by_worker(self) -> np.ndarray:
        return self._counts.numpy().reshape(self._shape)

    def epoch(self) -> dict[str, Any]:
        """The counts of an epoch, those of earlier processes included; call when all steps are joined.

        Returns:
          `seen`: how many examples were applied '0', '1', '2' and '3+' times. `by_worker`: how many each worker of this
          process applied, of all and of those applied more than once.
        """
        counts = self._by_worker()
        self._counts.assign(tf.zeros_like(self._counts))
        total = self._earlier + counts.sum(axis=0)
        self._earlier = np.zeros_like(self._earlier)
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


def _unpacked(state: str, num_examples: int) -> np.ndarray:
    counts = np.frombuffer(zlib.decompress(base64.b64decode(state)), np.uint8)
    return counts if counts.size == num_examples else np.zeros(num_examples, np.uint8)  # the data is another
