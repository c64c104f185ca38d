"""Where in the variable of a stack the rows of ids are: for ids in columns, and for lists of any length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from psrun.layers.base import check
from psrun.layers.layout import RowOrder, StackLayout

# Up to this number of shards, ids are compared with each boundary: comparing is much faster than dividing.
_FEW_SHARDS = 16

# Numbers of features, for their ids.
PerId = Callable[[Any], tf.Tensor]


@dataclass(frozen=True)
class Place:
    """The table of a feature, which has the number `index` in the stack."""

    feature: str
    table: str
    index: int
    num_ids: int
    order: RowOrder

    def __str__(self) -> str:
        return f"{self.feature} (table {self.table}, ids from 0 to {self.num_ids - 1})"


def rows_of_columns(
    ids: tf.Tensor, places: Sequence[Place], layout: StackLayout | None, oov: str, title: str
) -> tf.Tensor:
    """Rows of the variable for ids of shape (n, features).

    Args:
      layout: None for a single table.
    """
    inside = _or_last_row(ids, places, _numbers) if oov == "row" else _checked_columns(ids, places, title)
    return _rows_of(inside, places, layout, _numbers)


def rows_of_parts(
    ids: tf.Tensor,
    sizes: Sequence[int | tf.Tensor],
    places: Sequence[Place],
    layout: StackLayout | None,
    oov: str,
    title: str,
) -> tf.Tensor:
    """Rows of the variable for ids of shape (n,), feature by feature.

    Args:
      sizes: the number of ids of each feature.
      layout: None for a single table.
    """
    per_id = _per_id_of_parts(sizes)
    inside = _or_last_row(ids, places, per_id) if oov == "row" else _checked_parts(ids, places, per_id, title)
    return _rows_of(inside, places, layout, per_id)


def _rows_of(ids: tf.Tensor, places: Sequence[Place], layout: StackLayout | None, per_id: PerId) -> tf.Tensor:
    orders = [place.order for place in places]
    mask = per_id([(1 << order.column_bits) - 1 for order in orders])
    rows = tf.bitwise.bitwise_and(ids, mask) * per_id([order.column_rows for order in orders])
    rows += tf.bitwise.right_shift(ids, per_id([order.column_bits for order in orders]))
    if layout is None:
        return rows
    num_shards = layout.num_shards
    size = [layout.block_rows(place.index) for place in places]
    base = [layout.base(place.index) for place in places]
    steps = [[layout.step(place.index, block) for block in range(1, num_shards)] for place in places]
    if num_shards > _FEW_SHARDS:
        moved = np.cumsum(np.concatenate([np.transpose([base]), steps], 1), 1)
        first = per_id(np.arange(len(places)) * num_shards)
        return rows + tf.gather(tf.constant(np.ravel(moved), tf.int32), first + rows // per_id(size))
    rows_there = rows + per_id(base)
    for block in range(1, num_shards):
        beyond = tf.cast(rows >= per_id([block * each for each in size]), tf.int32)
        rows_there += beyond * per_id([step[block - 1] for step in steps])
    return rows_there


def _or_last_row(ids: tf.Tensor, places: Sequence[Place], per_id: PerId) -> tf.Tensor:
    """The ids as int32, those outside of their tables as the number of ids."""
    bound = tf.cast(per_id([place.num_ids for place in places]), tf.int64)
    return tf.cast(tf.where((ids >= 0) & (ids < bound), ids, bound), tf.int32)


def _checked_columns(ids: tf.Tensor, places: Sequence[Place], title: str) -> tf.Tensor:
    """The ids as int32, once it is certain that each has a row."""
    least = tf.reduce_min(ids, 0)
    greatest = tf.reduce_max(ids, 0)
    inside = (least >= 0) & (greatest < np.array([place.num_ids for place in places]))
    bad = tf.reshape(tf.where(~inside), [-1])
    labels = tf.gather(tf.constant([str(place) for place in places]), bad)
    empty = tf.equal(tf.size(ids), 0)
    checked = _assert(empty | tf.reduce_all(inside), title, [labels, tf.gather(least, bad), tf.gather(greatest, bad)])
    with tf.control_dependencies(checked):
        return tf.cast(ids, tf.int32)


def _per_id_of_parts(sizes: Sequence[int | tf.Tensor]) -> PerId:
    if len(sizes) == 1:
        return _numbers
    index = part_of_each(tf.stack(sizes))

    def per_id(values: Any) -> tf.Tensor:
        numbers = _numbers(values)
        return numbers if numbers.shape.rank == 0 else tf.gather(numbers, index)

    return per_id


def part_of_each(sizes: tf.Tensor) -> tf.Tensor:
    """The index of the part that each value is in: int32 (sum of sizes,).

    Args:
      sizes: int32, of the parts; some may be 0.
    """
    # One operation counts from index * 2**32 on for each part; `tf.repeat` needs memory for parts * the largest size.
    first = tf.bitwise.left_shift(tf.range(tf.size(sizes, tf.int64), dtype=tf.int64), 32)
    last = first + tf.cast(sizes, tf.int64)
    one = tf.ones([], tf.int64)
    counted = tf.raw_ops.RaggedRange(starts=first, limits=last, deltas=one, Tsplits=tf.int32).rt_dense_values
    return tf.cast(tf.bitwise.right_shift(counted, 32), tf.int32)


def _checked_parts(ids: tf.Tensor, places: Sequence[Place], per_id: PerId, title: str) -> tf.Tensor:
    """The ids as int32, once it is certain that each has a row."""
    if len(places) == 1:  # with fewer operations
        return tf.reshape(_checked_columns(ids[:, tf.newaxis], places, title), [-1])
    # Without a sign, a negative id is greater than all others.
    inside = tf.bitcast(ids, tf.uint64) < tf.cast(per_id([place.num_ids for place in places]), tf.uint64)
    bad = tf.reshape(tf.where(~inside), [-1])
    feature = per_id(np.arange(len(places)))
    of_bad = tf.zeros_like(bad, tf.int32) if feature.shape.rank == 0 else tf.gather(feature, bad)
    which, group = tf.unique(of_bad)
    ids_of_bad = tf.gather(ids, bad)
    num_features = tf.size(which)
    data = [
        tf.gather(tf.constant([str(place) for place in places]), which),
        tf.math.unsorted_segment_min(ids_of_bad, group, num_features),
        tf.math.unsorted_segment_max(ids_of_bad, group, num_features),
    ]
    with tf.control_dependencies(_assert(tf.reduce_all(inside), title, data)):
        return tf.cast(ids, tf.int32)


def _assert(condition: tf.Tensor, title: str, data: list[tf.Tensor]) -> list[tf.Operation]:
    message = f"{title}: ids must be within their tables; the features, their minimum and maximum ids are"
    return check(condition, message, *data)


def _numbers(values: Any) -> tf.Tensor:
    """The numbers of columns as one where all are equal: broadcasting a vector takes several times as long."""
    numbers = np.asarray(values, np.int32)
    return tf.constant(numbers[0] if (numbers == numbers[0]).all() else numbers)
