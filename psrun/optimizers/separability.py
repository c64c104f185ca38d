"""Whether an optimizer computes the step of a row from this row and its gradient alone.

Only such an optimizer gives the same numbers when a variable is cut in shards, or stored with others as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from psrun.tf_internals import optimizers

# Of tf-keras 2.21, found by the comparison of all of its optimizers in the tests.
BY_ALL_ROWS = (tf_keras.optimizers.Adafactor,)
_COMPARED = ("tf_keras", "psrun")

_ROWS = 4
_DIM = 3
_IDS = ((0, 3, 3, 1), (2, 3, 2, 2))  # of the rows of a sparse gradient, by step
_TOLERANCE = 1e-3  # relative to the largest change


def steps_by_row(optimizer: Any, make: Callable[[], Any]) -> bool:
    """Whether an optimizer computes the step of a row from this row and its gradient alone.

    An optimizer that is neither of tf-keras nor of psrun is tried, and one that transforms gradients by functions of a
    user.

    Args:
      make: returns a new optimizer like this one.
    """
    inner = optimizers.unscaled(optimizer)
    transforms = getattr(inner, "gradient_transformers", ())  # of a legacy optimizer
    if type(inner).__module__.partition(".")[0] in _COMPARED and not transforms:
        return not isinstance(inner, BY_ALL_ROWS)
    return compare(make)


def compare(make: Callable[[], Any]) -> bool:
    """Compares steps on two small variables, of dense and of sparse gradients, with steps on both cut in two shards.

    Random steps are taken for steps by row: there is nothing to compare.

    Args:
      make: returns a new optimizer, the same each time. Its learning rate should not be very small.
    """
    whole = _changes(make(), 1)
    shards = _changes(make(), 2)
    least = _TOLERANCE * np.abs(whole).max()
    if np.abs(whole - shards).max() <= least:
        return True
    return bool(np.abs(whole - _changes(make(), 1)).max() > least)


def _changes(optimizer: Any, num_shards: int) -> np.ndarray:
    """What two steps add to the variables: (2, rows, dim)."""
    start = np.linspace(-1, 1, _ROWS * _DIM, dtype=np.float32).reshape(_ROWS, _DIM)
    cut = [_cut(name, start, num_shards) for name in ("layer/kernel", "table/embeddings")]
    variables = [shard for shards in cut for shard in shards]
    optimizers.build(optimizer, variables)
    random = np.random.default_rng(0)
    for ids in _IDS:
        kernel = random.normal(size=start.shape).astype(np.float32)
        rows = random.normal(size=(len(ids), _DIM)).astype(np.float32)
        gradients = [*np.split(kernel, num_shards), *_sparse(np.array(ids), rows, num_shards)]
        converted = [each if isinstance(each, tf.IndexedSlices) else tf.constant(each) for each in gradients]
        optimizer.apply_gradients(list(zip(converted, variables)))
    return np.stack([np.concatenate([shard.numpy() for shard in shards]) - start for shards in cut])


def _cut(name: str, value: np.ndarray, num_shards: int) -> Sequence[tf.Variable]:
    """A variable with the names of its shards, if there are several."""
    if num_shards == 1:
        return [tf.Variable(value, name=name)]
    return [tf.Variable(part, name=f"{name}/part_{index}") for index, part in enumerate(np.split(value, num_shards))]


def _sparse(ids: np.ndarray, rows: np.ndarray, num_shards: int) -> list[tf.IndexedSlices]:
    """The gradient of each shard."""
    size = _ROWS // num_shards
    shards = []
    for index in range(num_shards):
        own = ids // size == index
        shape = tf.constant([size, _DIM], tf.int64)
        shards.append(tf.IndexedSlices(tf.constant(rows[own]), tf.constant(ids[own] - index * size), shape))
    return shards
