"""The order of examples: computes the numbers of the examples of any batch, without state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

# Rounds of the block cipher. With TensorFlow's default, 4, adjacent seeds may have the same order.
_ROUNDS = 12


@dataclass(frozen=True)
class Order:
    """Each example once per pass, in an order that depends only on the seed and the pass.

    Attributes:
      num_examples: numbered from 0.
      batch_size: examples of a batch.
      block: number of consecutive examples that stay together, because reading them at once is faster. An incomplete
        block is the last of each pass.
      whole_passes: whether the last batch of a pass is smaller; else it is filled from the next pass.
    """

    num_examples: int
    batch_size: int
    block: int = 1
    whole_passes: bool = False

    @property
    def geometry(self) -> list[int]:
        """The numbers that, with the seed, determine the batch of each example."""
        return [self.num_examples, self.batch_size, self.block]

    def taken_up(self, batch: int, before: Sequence[int] | None) -> tuple[int, int]:
        """The position to resume from: the number of the next batch, and the number of skipped examples.

        A pass that started with another geometry cannot be resumed: the next pass begins.

        Args:
          batch: the next batch in the previous order; before: the `geometry` of that order, None for none.
        """
        if before is None or list(before) == self.geometry:
            return batch, 0
        old = Order(before[0], before[1], before[2], whole_passes=True)
        passes, batches = divmod(batch, old.batches_per_pass)
        if not batches:
            return passes * self.batches_per_pass, 0
        return (passes + 1) * self.batches_per_pass, old.num_examples - batches * old.batch_size

    @property
    def batches_per_pass(self) -> int:
        return -(-self.num_examples // self.batch_size)

    def numbers(self, batch: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """The numbers of the examples of a batch.

        Args:
          batch: its number, from 0 on, over all passes; int64 scalar.
          seed: int64 scalar.

        Returns:
          int64, shape (batch_size,), or less in the last batch of a whole pass.
        """
        places = self._places(batch)
        within = places % self.num_examples
        number = places // self.num_examples
        num_blocks = self.num_examples // self.block
        if num_blocks < 2:  # then passes follow one another
            return within
        last = tf.constant(num_blocks - 1, tf.int64)
        block = tf.minimum(within // self.block, last)
        if self.block == 1:
            return self._shuffled(block, number, last, seed)
        # The cipher is slow: once per block.
        firsts, which = runs((block[1:] != block[:-1]) | (number[1:] != number[:-1]))
        shuffled = self._shuffled(tf.gather(block, firsts), tf.gather(number, firsts), last, seed)
        block = tf.gather(shuffled, which)
        return tf.where(within < num_blocks * self.block, block * self.block + within % self.block, within)

    def _shuffled(self, blocks: tf.Tensor, number: tf.Tensor, last: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """The shuffled blocks at the positions `blocks`, each in the pass of that number."""
        low = tf.cast(seed % 2**31, tf.int32)
        high = tf.cast(seed // 2**31 % 2**31, tf.int32)
        number = tf.cast(number % 2**31, tf.int32)
        keys = tf.stack([tf.fill(tf.shape(number), low), tf.fill(tf.shape(number), high), number], axis=1)
        # Shuffling whole batches costs a third of shuffling single numbers. The public `index_shuffle` does not accept
        # a key per number, contrary to its documentation.
        return tf.raw_ops.RandomIndexShuffle(index=blocks, seed=keys, max_index=last, rounds=_ROUNDS)

    def _places(self, batch: tf.Tensor) -> tf.Tensor:
        """The positions of the examples of a batch in the endless sequence of passes."""
        if not self.whole_passes or self.num_examples % self.batch_size == 0:
            return batch * self.batch_size + tf.range(self.batch_size, dtype=tf.int64)
        first = batch % self.batches_per_pass * self.batch_size
        within = tf.range(first, tf.minimum(first + self.batch_size, self.num_examples))
        return batch // self.batches_per_pass * self.num_examples + within


def runs(begins: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The starts of runs of n values, and the run of each value; int64.

    Args:
      begins: of each value but the first, whether a run begins with it; bool, shape (n - 1,).
    """
    firsts = tf.concat([[0], 1 + tf.where(begins)[:, 0]], 0)
    return firsts, tf.cumsum(tf.concat([[0], tf.cast(begins, tf.int64)], 0))
