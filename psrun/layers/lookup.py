"""Looking ids up in embedding tables: where rows lie, fetching them from shards, pooling them.

A table may be alone, or stored with others as one stack. Ids come in columns, or in lists of any
length as RaggedTensors and SparseTensors. `EmbeddingLayer` is the common part of the layers: rows
fetched before the layer is called, and undecided choices.
"""

from __future__ import annotations

import abc
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from psrun.data.lists import COMBINERS
from psrun.tf_internals.strategies import shards_of
from psrun.tf_internals.tracing import record_operation, stop_recording, variable_accessed

# Up to this number of shards, ids are compared with each boundary: comparing is much faster than dividing.
_FEW_SHARDS = 16
# Repeated ids are deduplicated if at most this share of the ids of a batch is distinct: then the saved traffic is worth
# more than the deduplication costs.
DISTINCT_TO_PAY = 0.75
WIRES = ("float32", "bfloat16")
OOV = ("error", "row")


@dataclass(frozen=True)
class Table:
    """An embedding table.

    Attributes:
      name: its variable is called `NAME/embeddings`, whether the table is stored alone or in a stack.
      features: whose ids are looked up in it.
      num_ids: ids are from 0 to `num_ids` - 1.
      dim: numbers a row.
      initializer: as Keras' Embedding takes it.
      spread: whether ids that are neighbours lie far from each other, as in `psrun.layers.Embedding`; else row i is of
        id i, as in Keras' Embedding.
    """

    name: str
    features: tuple[str, ...]
    num_ids: int
    dim: int
    initializer: Any = "uniform"
    spread: bool = True

    @classmethod
    def of(cls, given: Table | Mapping[str, Any]) -> Table:
        """A table, or one from its attributes by name.

        Raises:
          ValueError: an attribute is missing, or a table has no such attribute.
        """
        if isinstance(given, Table):
            return given
        known = {each.name: each.default is MISSING for each in fields(cls)}
        title = f"table {given.get('name', '?')}"
        if "optimizer" in given:
            message = f"{title} has the optimizer {given['optimizer']!r}, but a run has one optimizer for all tables"
            raise ValueError(f"{message}; remove it, or make a collection for each optimizer, with trainer=own_loop")
        if unknown := [name for name in given if name not in known]:
            raise ValueError(f"{title} has the attribute {unknown[0]!r}; a table has {', '.join(known)}")
        if missing := [name for name, required in known.items() if required and name not in given]:
            raise ValueError(f"{title} lacks {', '.join(missing)}")
        return cls(**given)


@dataclass(frozen=True)
class RowOrder:
    """The order of a table's rows: ids fill it as they would a matrix written row by row and read column by column.

    Neighbours, which are often alike in how frequent they are, come to lie far from each other, evenly over contiguous
    shards. The place of an id does not depend on the number of shards. The matrix has 2**column_bits columns.
    """

    column_bits: int
    column_rows: int

    @classmethod
    def of(cls, num_ids: int, *, spread: bool = True) -> RowOrder:
        """For `num_ids` ids; without `spread` one column, so that the row number is the id."""
        if not spread:
            return cls(0, num_ids)
        # A power of two near the square root, at most 1024: so few rows are left over that no id has.
        column_bits = min(10, (num_ids.bit_length() - 1) // 2)
        return cls(column_bits, -(-num_ids >> column_bits))

    @property
    def num_rows(self) -> int:
        """Rows of the table; a few of them may be of no id."""
        return self.column_rows << self.column_bits


@dataclass(frozen=True)
class Block:
    """Contiguous rows of one table in a shard of a stack.

    Attributes:
      first: the first row, counted within the table.
      offset: the first row, counted within the shard.
    """

    table: int
    first: int
    num_rows: int
    shard: int
    offset: int


@dataclass(frozen=True)
class StackLayout:
    """Several tables of the same width as one variable in equal shards.

    Each table is cut in blocks of equal size, the last of which may be shorter; block b of table t lies in shard
    (b + t) mod num_shards. So each table is spread over all shards, tables with few rows do not meet in the first one,
    and a table that is added moves no row of the tables before it within a shard.

    Attributes:
      table_rows: rows of each table.
      num_shards: shards of the stack.
    """

    table_rows: tuple[int, ...]
    num_shards: int = 1

    def block_rows(self, table: int) -> int:
        """Rows that a table has in each shard, those that stay unused included."""
        return -(-self.table_rows[table] // self.num_shards)

    @property
    def shard_rows(self) -> int:
        """Rows of each shard."""
        return self._offsets[-1]

    @property
    def num_rows(self) -> int:
        """Rows of the stack, those that stay unused included."""
        return self.shard_rows * self.num_shards

    def offset(self, table: int) -> int:
        """Where the block of a table begins in each shard."""
        return self._offsets[table]

    @functools.cached_property
    def _offsets(self) -> list[int]:
        """Where the block of each table begins in each shard, and where the last one ends."""
        sizes = map(self.block_rows, range(len(self.table_rows)))
        return list(itertools.accumulate(sizes, initial=0))

    def shard(self, table: int, block: int) -> int:
        """The shard that a block of a table is in."""
        return (block + table) % self.num_shards

    def blocks(self, table: int) -> Iterator[Block]:
        """The blocks of a table that have rows, in the order of these."""
        size = self.block_rows(table)
        for number in range(self.num_shards):
            first = number * size
            length = min(size, self.table_rows[table] - first)
            if length > 0:
                yield Block(table, first, length, self.shard(table, number), self.offset(table))

    def base(self, table: int) -> int:
        """The difference between a row in the stack and the row in the first block of a table."""
        return self.shard(table, 0) * self.shard_rows + self.offset(table)

    def step(self, table: int, block: int) -> int:
        """The additional difference for rows of this block and later ones."""
        between = self.shard(table, block) - self.shard(table, block - 1)
        return between * self.shard_rows - self.block_rows(table)


@dataclass(frozen=True)
class DeduplicationChoice:
    """A variable whose `deduplicate='auto'` is not decided yet: of a layer, or of a stack within it.

    Attributes:
      positions: int32 (n,), the rows that a batch looks up.
    """

    name: str
    positions: tf.Tensor
    decide: Callable[[bool], None]


class EmbeddingLayer(tf_keras.layers.Layer):
    """A layer that looks ids up in tables."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"autocast": False, **kwargs})  # half precision cannot represent ids
        self._ahead: Any = _UntrackedList()

    @abc.abstractmethod
    def fetch(self, ids: Any) -> Any:
        """Asks for the rows of ids: what `fetched` takes. Outside of any gradient."""

    @property
    @abc.abstractmethod
    def has_undecided(self) -> bool:
        """Whether `deduplicate='auto'` leaves anything open."""

    @abc.abstractmethod
    def undecided(self, ids: Any) -> list[DeduplicationChoice]:
        """The tables for which `deduplicate='auto'` is undecided, with the rows that ids look up."""

    def fetch_ahead(self, ids: Any) -> None:
        """Requests the rows that a later call for the same ids returns, in the order of the calls."""
        self._ahead.append(self.fetch(ids))

    def fetched(self, ids: Any) -> Any:
        """The fetch that was started ahead, or a new one."""
        return self._ahead.pop(0) if self._ahead else self.fetch(ids)

    @property
    def num_ahead(self) -> int:
        """The number of fetches that were started ahead and not used yet."""
        return len(self._ahead)

    def drop_ahead(self) -> None:
        """Discards the fetches that were started ahead."""
        self._ahead.clear()

    def title(self) -> str:
        """The name of the layer, with the names of its features in a functional model."""
        called_on = tf.nest.flatten([node.keras_inputs for node in self.inbound_nodes])
        features = {source.name for ids in called_on for source in tf_keras.utils.get_source_inputs(ids)}
        return f"{self.name} of {', '.join(sorted(features))}" if features else self.name


class _UntrackedList(list):
    """A list that Keras does not track: its tensors belong to a function that is being traced."""


def assertion(condition: tf.Tensor, *data: Any) -> list[tf.Operation]:
    """A check in a graph, for `tf.control_dependencies`; eagerly it is done at once, and the list is empty.

    `tf.debugging.Assert` would add a branch, and so another function call.

    Raises:
      tf.errors.InvalidArgumentError: when run: the condition is false. It shows `data`.
    """
    operation = tf.raw_ops.Assert(condition=condition, data=list(data))
    return [] if operation is None else [operation]


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
    return _rows_in_variable(inside, places, layout, _numbers)


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
    return _rows_in_variable(inside, places, layout, per_id)


def rows_in_tables(ids: tf.Tensor, orders: Sequence[RowOrder], per_id: PerId | None = None) -> tf.Tensor:
    """Rows of tables for int32 ids, of the same shape.

    Args:
      orders: of the tables.
      per_id: numbers of tables, for their ids; None for a single table.
    """
    per_id = per_id or _numbers
    mask = per_id([(1 << order.column_bits) - 1 for order in orders])
    rows = tf.bitwise.bitwise_and(ids, mask) * per_id([order.column_rows for order in orders])
    return rows + tf.bitwise.right_shift(ids, per_id([order.column_bits for order in orders]))


def in_order_of_ids(rows: tf.Tensor, num_rows: int, column_bits: int) -> tf.Tensor:
    """The ids of rows of a table, int64: the inverse of `rows_in_tables`, for all of its `num_rows` rows."""
    column_rows = num_rows >> column_bits
    rows = tf.cast(rows, tf.int64)
    return (rows % column_rows) * 2**column_bits + rows // column_rows


def _rows_in_variable(ids: tf.Tensor, places: Sequence[Place], layout: StackLayout | None, per_id: PerId) -> tf.Tensor:
    rows = rows_in_tables(ids, [place.order for place in places], per_id)
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
    checked = _assert_within_tables(
        empty | tf.reduce_all(inside), title, [labels, tf.gather(least, bad), tf.gather(greatest, bad)]
    )
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
    with tf.control_dependencies(_assert_within_tables(tf.reduce_all(inside), title, data)):
        return tf.cast(ids, tf.int32)


def _assert_within_tables(condition: tf.Tensor, title: str, data: list[tf.Tensor]) -> list[tf.Operation]:
    message = f"{title}: ids must be within their tables; the features, their minimum and maximum ids are"
    return assertion(condition, message, *data)


def _numbers(values: Any) -> tf.Tensor:
    """The numbers of columns as one where all are equal: broadcasting a vector takes several times as long."""
    numbers = np.asarray(values, np.int32)
    return tf.constant(numbers[0] if (numbers == numbers[0]).all() else numbers)


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


def as_matrix(tensor: tf.Tensor) -> tf.Tensor:
    """(batch, ...) as (batch, size). A matrix costs no operation: there can be a thousand of them."""
    if tensor.shape.rank == 2:
        return tensor
    width = tensor.shape[1:].num_elements() if tensor.shape.rank else None
    if width:
        return tf.reshape(tensor, [-1, width])
    return tf.reshape(tensor, [tf.shape(tensor)[0], -1])


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
        with tf.control_dependencies(assertion(tf.reduce_all(counts == counts[0]), message, counts)):
            splits = [tf.concat(splits, 0)]
    bounds = tf.reshape(splits[0], [len(lists), -1])
    return tf.reshape(bounds[:, 1:] - bounds[:, :-1], [-1])


def _in_each(reduce: Callable[..., tf.Tensor], values: tf.Tensor, which: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """(n, d) by list: (lists, d). The last lists are missing in what `reduce` returns if they are empty."""
    # Operations that take the number of lists, such as `tf.sparse.segment_mean`, take four times as long.
    reduced = reduce(values, which)
    return tf.pad(reduced, [[0, tf.size(lengths) - tf.shape(reduced)[0]], [0, 0]])


def _unweighted(values: tf.Tensor, lengths: tf.Tensor, combiner: str) -> tf.Tensor:
    which = part_of_each(lengths)
    if combiner == "max":
        most = _in_each(tf.math.segment_max, values, which, lengths)
        return tf.where((lengths > 0)[:, tf.newaxis], most, 0)
    summed = _in_each(tf.math.segment_sum, values, which, lengths)
    if combiner == "sum":
        return summed
    norm = tf.cast(tf.maximum(lengths, 1), values.dtype)[:, tf.newaxis]
    return summed / (norm if combiner == "mean" else tf.sqrt(norm))


def _weighted(rows: tf.Tensor, weights: tf.Tensor, lengths: tf.Tensor, combiner: str) -> tf.Tensor:
    which = part_of_each(lengths)
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
    with tf.control_dependencies(assertion(same, *data)):
        return tf.identity(tf.cast(flat, tf.float32))


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
            self._parts: list[_ShardFetch] = []
            if all("/job:ps" in (shard.device or "") for shard in shards):
                self._places, rows_by_shard = _by_shard(positions, [shard.shape[0] for shard in shards])
                self._parts = [
                    _ShardFetch(shard, rows, wire, distinct=deduplicate) for shard, rows in zip(shards, rows_by_shard)
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


@dataclass(frozen=True)
class GivenRows:
    """In place of a `Fetch` where the rows, (n, dim), are known."""

    given: tf.Tensor

    def rows(self) -> Rows:
        return Rows(self.given)


class _ShardFetch:
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
    """Whether the indices of a gradient are known to be distinct: they are of one `Fetch.rows` that deduplicates."""
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
    if len(sizes) <= _FEW_SHARDS:
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
