"""Fetching rows of a variable that may be cut in shards on parameter servers, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from psrun.layers.pooling import Rows
from psrun.tf_internals.tracing import record_operation, stop_recording, variable_accessed
from psrun.tf_internals.variables import shards_of

# Repeated ids are deduplicated if at most this share of the ids of a batch is distinct: then the saved traffic is worth
# more than the deduplication costs.
DISTINCT_TO_PAY = 0.75
WIRES = ("float32", "bfloat16")
OOV = ("error", "row")
_FEW_SHARDS = 16


class Fetch:
    """Requested rows. Created outside of any gradient tape; gradients are taken of `rows`.

    Args:
      variable: (rows, dim), whole or in shards.
      positions: int32 (n,), rows of the variable.
      deduplicate: whether a row with several look-ups is sent once.
      wire: 'float32', or 'bfloat16' for rows and gradients that travel rounded.
      parts: the sizes of consecutive parts of `positions` that have no row in common.
    """

    def __init__(
        self,
        variable: Any,
        positions: tf.Tensor,
        *,
        deduplicate: bool,
        wire: str,
        parts: Sequence[int | tf.Tensor] = (),
    ) -> None:
        self._variable = variable
        with stop_recording():
            self._inverse = None
            if deduplicate:
                positions, self._inverse = _unique(positions, parts)
            self._positions = positions
            shards = shards_of([variable])
            self._parts: list[_Part] = []
            if all("/job:ps" in (shard.device or "") for shard in shards):
                self._places, rows_by_shard = _by_shard(positions, [shard.shape[0] for shard in shards])
                self._parts = [
                    _Part(shard, rows, wire, distinct=deduplicate) for shard, rows in zip(shards, rows_by_shard)
                ]

    def rows(self) -> Rows:
        """The rows, to be called once."""
        if not self._parts:
            rows = tf.gather(self._variable, self._positions)
        elif len(self._parts) == 1:
            rows = self._parts[0].rows()
        else:
            rows = tf.dynamic_stitch(self._places, [part.rows() for part in self._parts])
        return Rows(rows, self._inverse)


class _Part:
    def __init__(self, shard: tf.Variable, rows: tf.Tensor, wire: str, *, distinct: bool) -> None:
        self._shard = shard
        self._wire = tf.as_dtype(wire) if wire != "float32" else shard.dtype
        with tf.device(shard.device):
            self._there = tf.identity(rows)  # read once, also for the gradient
            self._there.psrun_distinct = distinct
            self._sent = tf.cast(tf.gather(shard, self._there), self._wire)

    def rows(self) -> tf.Tensor:
        variable_accessed(self._shard)
        with stop_recording():
            received = tf.cast(tf.identity(self._sent), self._shard.dtype)
        record_operation("ResourceGather", [received], [self._shard.handle], self._gradient)
        return received

    def _gradient(self, gradient: Any) -> list[tf.IndexedSlices]:
        # The gradient of a gather with duplicates sums their gradients.
        sent = tf.cast(tf.convert_to_tensor(gradient), self._wire)
        with tf.device(self._shard.device):
            values = tf.cast(tf.identity(sent), self._shard.dtype)
            shape = tf.constant(self._shard.shape.as_list(), tf.int64)
            return [tf.IndexedSlices(values, self._there, shape)]


def are_distinct(rows: tf.Tensor) -> bool:
    """Whether the indices of a gradient are known to be distinct: those of one `Fetch.rows` that deduplicates."""
    return getattr(rows, "psrun_distinct", False)


def _unique(positions: tf.Tensor, parts: Sequence[int | tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """The result of `tf.unique`, which takes half of the time, and several threads, for parts without common rows."""
    if len(parts) < 2:
        return tf.unique(positions)
    distinct = []
    inverse = []
    first = tf.zeros([], tf.int32)
    for part in tf.split(positions, parts):
        rows, indices = tf.unique(part)
        distinct.append(rows)
        inverse.append(indices + first)
        first += tf.size(rows)
    return tf.concat(distinct, 0), tf.concat(inverse, 0)


def _by_shard(positions: tf.Tensor, sizes: list[int]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """For each shard: the positions of its rows in the result, and the indices of the rows in the shard."""
    if len(sizes) == 1:
        return [], [positions]
    first = [sum(sizes[:shard]) for shard in range(len(sizes))]
    if len(sizes) <= _FEW_SHARDS:  # comparing is much faster than dividing
        which = tf.add_n([tf.cast(positions >= start, tf.int32) for start in first[1:]])
    else:
        which = tf.searchsorted(tf.constant(first), positions, side="right") - 1
    places = tf.dynamic_partition(tf.range(tf.size(positions)), which, len(sizes))
    parts = tf.dynamic_partition(positions, which, len(sizes))
    return places, [part - start if start else part for part, start in zip(parts, first)]


def check_options(deduplicate: bool | str, wire: str, oov: str) -> None:
    """Raises ValueError where an embedding layer cannot have these options."""
    if not isinstance(deduplicate, bool) and deduplicate != "auto":
        raise ValueError(f"deduplicate is {deduplicate!r}, must be true, false or auto")
    if wire not in WIRES:
        raise ValueError(f"wire is {wire!r}, must be one of {', '.join(WIRES)}")
    if oov not in OOV:
        raise ValueError(f"oov is {oov!r}, must be one of {', '.join(OOV)}")
