"""Lists of ids as RaggedTensors and SparseTensors: their checks, and one row for each list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from psrun.data.lists import COMBINERS
from psrun.layers import positions
from psrun.layers.base import check


@dataclass(frozen=True)
class Rows:
    """Rows of a table for some ids: (m, dim).

    Attributes:
      indices: int32 (n,), which of the rows each id has; None if they are in the order of the ids.
    """

    rows: tf.Tensor
    indices: tf.Tensor | None = None

    def gathered(self) -> tf.Tensor:
        """(n, dim)."""
        return self.rows if self.indices is None else tf.gather(self.rows, self.indices)

    def split(self, sizes: Sequence[int | tf.Tensor]) -> list[Rows]:
        """The rows of the first ids, of the next ones, and so on."""
        if len(sizes) == 1:
            return [self]
        if self.indices is None:
            return [Rows(part) for part in tf.split(self.rows, sizes)]
        return [Rows(self.rows, part) for part in tf.split(self.indices, sizes)]


def check_combiner(combiner: str | None, title: str) -> None:
    """Raises ValueError for an unknown combiner."""
    if combiner is not None and combiner not in COMBINERS:
        raise ValueError(f"{title} is {combiner!r}, must be one of {', '.join(COMBINERS)}, or None")


def is_list(ids: Any) -> bool:
    """Whether examples may have different numbers of ids."""
    return isinstance(ids, tf.RaggedTensor | tf.SparseTensor)


def check_lists(ids: Any, title: str) -> None:
    """Raises ValueError for lists of lists."""
    nested = isinstance(ids, tf.RaggedTensor) and (ids.ragged_rank != 1 or ids.flat_values.shape.rank != 1)
    if nested or (isinstance(ids, tf.SparseTensor) and ids.shape.rank not in (2, None)):
        raise ValueError(f"{title} must have lists of ids, (batch, None), not a {type(ids).__name__} of {ids.shape}")


def ragged(ids: Any) -> tf.RaggedTensor:
    """Ids or weights as lists; the indices of a SparseTensor must be in their canonical order."""
    if isinstance(ids, tf.RaggedTensor):
        return ids
    if isinstance(ids, tf.SparseTensor):
        rows = ids.indices[:, 0]
        num_rows = ids.dense_shape[0]
        return tf.RaggedTensor.from_value_rowids(ids.values, rows, nrows=num_rows, validate=False)
    batch_size = ids.shape[0] or tf.shape(ids)[0]
    flat = tf.reshape(ids, [batch_size, -1])
    return tf.RaggedTensor.from_uniform_row_length(tf.reshape(ids, [-1]), tf.shape(flat)[1], nrows=batch_size)


def values_of(ids: Any) -> tf.Tensor:
    """The ids of a batch: (n,)."""
    return ids.values if is_list(ids) else tf.reshape(ids, [-1])


def num_values(ids: Any) -> int | tf.Tensor:
    """The number of ids in a batch, as an int if it is static."""
    values = ids.values if is_list(ids) else ids
    static = values.shape.num_elements()
    return tf.size(values) if static is None else static


def mask(ids: Any) -> tf.Tensor | None:
    """Which places of padded lists have ids: bool (batch, longest); None for tensors, which are not padded."""
    return tf.sequence_mask(ragged(ids).row_lengths()) if is_list(ids) else None


def shaped(rows: tf.Tensor, ids: Any) -> tf.Tensor:
    """A row per id: of the shape of the ids, lists padded with zeros, and `dim` as the last axis."""
    dim = rows.shape[-1]
    if is_list(ids):
        lists = ragged(ids)
        padded = tf.RaggedTensor.from_row_splits(rows, lists.row_splits, validate=False).to_tensor()
        padded.set_shape([lists.shape[0], None, dim])
        return padded
    rows = tf.reshape(rows, tf.concat([tf.shape(ids), [dim]], 0))
    rows.set_shape([*ids.shape, dim])
    return rows


def pooled(rows: Rows, ids: Sequence[Any], combiner: str, weights: Sequence[tf.Tensor | None]) -> tf.Tensor:
    """A row for each list of several features: (features, batch, dim); zeros for empty lists.

    As `tf.nn.safe_embedding_lookup_sparse`, which ignores values without a positive weight except in sums, and 'max'.

    Args:
      rows: of the ids of one feature after the other.
      ids: of each feature.
      weights: as `checked_weights` returns them.

    Raises:
      tf.errors.InvalidArgumentError: when run: the features have different numbers of lists.
    """
    lists = [ragged(each) for each in ids]
    lengths = _lengths(lists)
    values = rows.gathered()
    if any(each is not None for each in weights):
        flat = [
            tf.ones([num_values(each)], tf.float32) if weight is None else weight
            for each, weight in zip(lists, weights)
        ]
        vectors = _weighted(values, tf.concat(flat, 0), lengths, combiner)
    elif not values.shape[:1].is_compatible_with(lengths.shape):
        vectors = _unweighted(values, lengths, combiner)
    else:  # Often all lists have one value: then nothing is left to do.
        vectors = tf.cond(tf.reduce_all(lengths == 1), lambda: values, lambda: _unweighted(values, lengths, combiner))
    return tf.reshape(vectors, [len(ids), lists[0].shape[0] or -1, values.shape[-1]])


def _lengths(lists: Sequence[tf.RaggedTensor]) -> tf.Tensor:
    """The number of values of each list, of one feature after the other: int64 (features * batch,)."""
    # Few operations for any number of features; `row_lengths` of each would take several.
    splits = [tf.cast(each.row_splits, tf.int64) for each in lists]
    if len(splits) > 1:
        counts = tf.concat(tf.shape_n(splits), 0) - 1
        message = "pooled features must have the same number of examples; got"
        with tf.control_dependencies(check(tf.reduce_all(counts == counts[0]), message, counts)):
            splits = [tf.concat(splits, 0)]
    bounds = tf.reshape(splits[0], [len(lists), -1])
    return tf.reshape(bounds[:, 1:] - bounds[:, :-1], [-1])


def _in_each(reduce: Callable[..., tf.Tensor], values: tf.Tensor, which: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """(n, d) by list: (lists, d). The last lists are missing in what `reduce` returns if they are empty."""
    # Operations that take the number of lists, such as `tf.sparse.segment_mean`, take four times as long.
    reduced = reduce(values, which)
    return tf.pad(reduced, [[0, tf.size(lengths) - tf.shape(reduced)[0]], [0, 0]])


def _unweighted(values: tf.Tensor, lengths: tf.Tensor, combiner: str) -> tf.Tensor:
    which = positions.part_of_each(lengths)
    if combiner == "max":
        most = _in_each(tf.math.segment_max, values, which, lengths)
        return tf.where((lengths > 0)[:, tf.newaxis], most, 0)
    summed = _in_each(tf.math.segment_sum, values, which, lengths)
    if combiner == "sum":
        return summed
    norm = tf.cast(tf.maximum(lengths, 1), values.dtype)[:, tf.newaxis]
    return summed / (norm if combiner == "mean" else tf.sqrt(norm))


def _weighted(rows: tf.Tensor, weights: tf.Tensor, lengths: tf.Tensor, combiner: str) -> tf.Tensor:
    which = positions.part_of_each(lengths)
    if combiner != "sum":
        weights = tf.where(weights > 0, weights, 0)
    weights = tf.cast(weights, rows.dtype)[:, tf.newaxis]
    total = _in_each(tf.math.segment_sum, rows * weights, which, lengths)
    if combiner == "sum":
        return total
    squared = combiner == "sqrtn"
    norm = _in_each(tf.math.segment_sum, weights**2 if squared else weights, which, lengths)
    norm = tf.where(norm > 0, norm, 1)  # before the root, whose gradient at 0 is not finite
    return total / (tf.sqrt(norm) if squared else norm)


def checked_weights(ids: Any, weights: Any, combiner: str | None, title: str) -> tf.Tensor | None:
    """The weights of the ids of a feature: float32 (n,); None if there are none.

    Raises:
      ValueError: the ids are not pooled, or their maximum is taken; the weights are of another kind, type or length.
      tf.errors.InvalidArgumentError: when run: they have other lengths.
    """
    if weights is None:
        return None
    if combiner in (None, "max"):
        how = "are not pooled" if combiner is None else "are pooled by 'max'"
        raise ValueError(f"{title} has weights, but its rows {how}; choose the combiner sum, mean or sqrtn")
    if not tf.as_dtype(weights.dtype).is_floating:
        raise ValueError(f"{title} must have weights of a floating point type, not of {weights.dtype.name}")
    if is_list(ids) != is_list(weights) or not weights.shape.is_compatible_with(ids.shape):
        kinds = f"a {type(weights).__name__} of {weights.shape} for ids in a {type(ids).__name__} of {ids.shape}"
        raise ValueError(f"{title} has weights of another shape than its ids: {kinds}")
    values = values_of(ids)
    flat = values_of(weights)
    message = f"{title} must have as many weights as ids"
    if not flat.shape.is_compatible_with(values.shape):
        raise ValueError(f"{message}; it has {flat.shape[0]} and {values.shape[0]}")
    if not is_list(ids) or ragged(ids).row_splits is ragged(weights).row_splits:
        return tf.cast(flat, tf.float32)
    ends, of_weights = (tf.cast(ragged(each).row_splits, tf.int64) for each in (ids, weights))
    both = tf.minimum(tf.size(ends), tf.size(of_weights))
    same = tf.equal(tf.size(ends), tf.size(of_weights)) & tf.reduce_all(ends[:both] == of_weights[:both])
    data = [f"{message} in each example; ids and weights of the batch:", tf.size(values), tf.size(flat)]
    with tf.control_dependencies(check(same, *data)):
        return tf.identity(tf.cast(flat, tf.float32))
