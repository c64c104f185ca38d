"""The partitioner of a run: the number of shards of each variable."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any

import tensorflow as tf

from psrun.config import choices, targets
from psrun.errors import ConfigError, Problem

# As of TensorFlow: shape and dtype of a variable to the number of shards along each of its axes.
Partitioner = Callable[..., list[int]]

_of_tensorflow = tf.distribute.experimental.partitioners


def make(partitioner: choices.Partitioner) -> Partitioner | None:
    """TensorFlow's partitioner, a function of `shape` and `dtype`; None if no variable is sharded.

    Raises:
      ConfigError: a partitioner named by `_target_` cannot be created. The returned partitioner raises it if that one
        fails for a variable or returns an invalid value.
    """
    match partitioner:
        case choices.NoPartitioner():
            return None
        case choices.FixedShards(num_shards=n):
            return _of_tensorflow.FixedShardsPartitioner(n)
        case choices.MinSize():
            return _of_tensorflow.MinSizePartitioner(partitioner.min_shard_bytes, partitioner.max_shards)
        case choices.MaxSize():
            return _of_tensorflow.MaxSizePartitioner(partitioner.max_shard_bytes, partitioner.max_shards)
        case choices.OwnPartitioner(target=target):
            return _checked(target)


def _checked(target: targets.Target) -> Partitioner:
    """The partitioner of `target`, with checked results."""
    own = targets.bound(target, choices.OwnPartitioner.PARAMETERS)

    def partition(shape: tf.TensorShape, dtype: tf.DType, axis: int = 0) -> list[int]:
        variable = f"for a variable of shape {tuple(shape)} and dtype {dtype.name}"
        try:
            counts = own(shape=shape, dtype=dtype)
        except Exception as error:
            message = f"{target.name} failed {variable}: {type(error).__name__}: {error}"
            raise ConfigError([Problem(target.key, message)]) from error
        if problem := _problem(counts):
            raise ConfigError([Problem(target.key, f"{target.name} returned {counts!r} {variable}; {problem}")])
        return [int(count) for count in counts]

    return partition


def _problem(counts: Any) -> str | None:
    """The reason why a partitioner's result is invalid; None if it is valid."""
    integers = isinstance(counts, list | tuple) and all(
        isinstance(count, Integral) and not isinstance(count, bool) for count in counts
    )
    if not integers or not counts or min(counts) < 1:
        return "it must return a list of the number of shards along each axis, integers of 1 or more"
    if any(count != 1 for count in counts[1:]):
        return "TensorFlow partitions variables along the first axis only: all other numbers must be 1"
    return None
