"""A stack: embedding tables of the same width in one variable, looked up, deduplicated and updated together."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from psrun.layers import first_values
from psrun.layers.layout import RowOrder, StackLayout, Table
from psrun.tf_internals import cluster
from psrun.tf_internals.table_views import Part, TableView, Views
from psrun.tf_internals.variables import shards_of

EMBEDDINGS = "embeddings"
# Compared with each boundary up to so many shards: comparing is much faster than dividing.
_FEW_SHARDS = 16
# Of a stack: positions are int32, and each table may have some rows without an id in each shard.
_MAX_IDS = 2**31 - 2**24

_alone: ContextVar[bool] = ContextVar("alone", default=False)
_num_servers: ContextVar[int | None] = ContextVar("num_servers", default=None)


@contextlib.contextmanager
def stored_alone() -> Iterator[None]:
    """Within it each table of a new collection is a variable, whatever `stack` asks for."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def is_alone() -> bool:
    """Whether a new collection is within `stored_alone`."""
    return _alone.get()


@contextlib.contextmanager
def arranged_for(num_servers: int) -> Iterator[None]:
    """Within it new stacks have shards for so many parameter servers, whatever the strategy is: for plans."""
    token = _num_servers.set(num_servers)
    try:
        yield
    finally:
        _num_servers.reset(token)


def grouped(tables: Sequence[Table], *, stack: bool | str, max_table_bytes: int) -> list[tuple[Table, ...]]:
    """The tables of each variable, in the order of their first ones.

    Args:
      stack, max_table_bytes: as in `EmbeddingCollection`.
    """
    groups: dict[Any, list[Table]] = {}
    rows: Counter[tuple[int, int]] = Counter()
    for table in tables:
        large = stack == "auto" and table.num_ids * table.dim * tf.float32.size > max_table_bytes
        if large or stack is False:
            groups[table.name] = [table]
            continue
        number = next(number for number in count() if rows[table.dim, number] + table.num_ids <= _MAX_IDS)
        rows[table.dim, number] += table.num_ids
        groups.setdefault((table.dim, number), []).append(table)
    return [tuple(group) for group in groups.values()]


@dataclass
class Stack:
    """The variable of one or more tables. A single table is stored as `psrun.layers.Embedding` would store it.

    Attributes:
      name: of a stack of several tables, or of its only table.
      tables: in the order in which they are stored.
      oov: see `psrun.layers.Embedding`.
      deduplicate: true, false or 'auto'.
      layout: of several tables; None of a single one.
      variable: (rows, dim), perhaps in shards.
    """

    name: str
    tables: tuple[Table, ...]
    oov: str
    deduplicate: bool | str
    layout: StackLayout | None = None
    variable: Any = None
    orders: tuple[RowOrder, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.orders = tuple(
            RowOrder.of(table.num_ids + (self.oov == "row"), spread=table.spread) for table in self.tables
        )

    @property
    def dim(self) -> int:
        return self.tables[0].dim

    @property
    def num_rows(self) -> int:
        """Rows of the variable."""
        return self.orders[0].num_rows if self.layout is None else self.layout.num_rows

    def arrange(self) -> None:
        """Lays several tables out over the parameter servers; a single table is cut as the strategy decides."""
        if len(self.tables) > 1:
            num_shards = _num_servers.get() or cluster.num_parameter_servers()
            self.layout = StackLayout(tuple(order.num_rows for order in self.orders), num_shards)

    def holds(self, name: str, shape: Sequence[int]) -> bool:
        """Whether a variable of this name and shape is the stack, or a slot of it with a row for each of its rows."""
        return f"/{self.variable_name}/" in f"/{name}/" and bool(len(shape)) and shape[0] == self.num_rows

    def initializer(self) -> Any:
        """What makes the first values of the variable or of one of its shards, as Keras calls an initializer."""
        own = [tf_keras.initializers.get(table.initializer) for table in self.tables]
        return own[0] if self.layout is None else first_values.of(self.layout, own)

    def attach(self, variable: Any) -> None:
        """Takes the variable, and notes at each shard which tables it holds."""
        self.variable = variable
        if self.layout is not None:
            offsets = tuple(self.layout.offset(table) for table in range(len(self.tables)))
            held = Held(tuple(table.name for table in self.tables), offsets)
            for shard in shards_of([variable]):
                for copy in getattr(shard, "values", None) or [shard]:
                    copy.psrun_held = held

    # -- checkpoints

    @property
    def variable_name(self) -> str:
        return f"{self.name}/{EMBEDDINGS}"

    def views(self, variable: Any, name: str) -> Views:
        """The tables in the variable, or in a slot of it.

        Args:
          name: of the variable or slot; that of the table takes the place of the stack's in it.
        """
        if self.layout is None:
            return Views({self.tables[0].name: variable})
        shards = shards_of([variable])
        whole = len(shards) == 1  # in a plan, which has a layout for servers that are not there
        children = {}
        for index, table in enumerate(self.tables):
            parts = []
            for block in self.layout.blocks(index):
                before = block.shard * self.layout.shard_rows if whole else 0
                shard = shards[0 if whole else block.shard]
                parts.append(Part(shard, block.first, block.num_rows, before + block.offset))
            children[table.name] = TableView(name.replace(self.name, table.name), parts)
        return Views(children)

    # -- ids

    def positions(self, ids: Mapping[str, tf.Tensor], title: str) -> tuple[tf.Tensor, list[int] | None]:
        """Where in the variable the rows of the ids of all features are.

        Returns:
          int32 (n,), and how many ids an example has of each feature, by which they are ordered: example by example.
          None where that is not known; then they are ordered feature by feature.

        Raises:
          tf.errors.InvalidArgumentError: an id is outside of its table, and `oov` is 'error'.
        """
        features = [(name, table) for table, each in enumerate(self.tables) for name in each.features]
        tensors = [ids[name] for name, _ in features]
        widths = [_width(tensor) for tensor in tensors]
        if None in widths:
            flat = [
                self._rows(tf.reshape(tensor, [-1, 1]), [name], [table], title)
                for tensor, (name, table) in zip(tensors, features)
            ]
            return tf.concat([tf.reshape(rows, [-1]) for rows in flat], 0), None
        columns = tf.concat([tf.reshape(tf.cast(ids, tf.int64), [-1, width]) for ids, width in zip(tensors, widths)], 1)
        names = [name for (name, _), width in zip(features, widths) for _ in range(width or 0)]
        tables = [table for (_, table), width in zip(features, widths) for _ in range(width or 0)]
        return tf.reshape(self._rows(columns, names, tables, title), [-1]), [width or 0 for width in widths]

    def _rows(self, ids: tf.Tensor, features: Sequence[str], tables: Sequence[int], title: str) -> tf.Tensor:
        """Rows of the variable for ids of shape (n, columns), each column of a feature and its table."""
        ids = self._within(tf.cast(ids, tf.int64), features, tables, title)
        orders = [self.orders[table] for table in tables]
        bits = _numbers([order.column_bits for order in orders])
        mask = _numbers([(1 << order.column_bits) - 1 for order in orders])
        column_rows = _numbers([order.column_rows for order in orders])
        rows = tf.bitwise.bitwise_and(ids, mask) * column_rows + tf.bitwise.right_shift(ids, bits)
        if self.layout is None:
            return rows
        layout, num_shards = self.layout, self.layout.num_shards
        size = [layout.block_rows(table) for table in tables]
        if num_shards > _FEW_SHARDS:
            block = rows // _numbers(size)
            moved = np.array([np.cumsum([layout.base(table), *self._steps(table)]) for table in tables])
            first = tf.range(len(tables)) * num_shards
            return rows + tf.gather(tf.constant(np.ravel(moved), tf.int32), first + block)
        rows_there = rows + _numbers([layout.base(table) for table in tables])
        for block in range(1, num_shards):
            beyond = tf.cast(rows >= _numbers([block * each for each in size]), tf.int32)
            rows_there += beyond * _numbers([layout.step(table, block) for table in tables])
        return rows_there

    def _steps(self, table: int) -> list[int]:
        assert self.layout is not None
        return [self.layout.step(table, block) for block in range(1, self.layout.num_shards)]

    def _within(self, ids: tf.Tensor, features: Sequence[str], tables: Sequence[int], title: str) -> tf.Tensor:
        """The ids as int32, once it is certain that each has a row."""
        limits = np.array([self.tables[table].num_ids for table in tables])
        if self.oov == "row":
            bound = tf.constant(limits, tf.int64)
            return tf.cast(tf.where((ids >= 0) & (ids < bound), ids, bound), tf.int32)
        least, greatest = tf.reduce_min(ids, 0), tf.reduce_max(ids, 0)
        inside = (least >= 0) & (greatest < limits)
        empty = tf.equal(tf.size(ids), 0)
        named = [
            f"{feature} (table {self.tables[table].name}, ids from 0 to {limits[column] - 1})"
            for column, (feature, table) in enumerate(zip(features, tables))
        ]
        bad = tf.reshape(tf.where(~inside), [-1])
        message = f"{title}: ids must be within their tables; the features, their minimum and maximum ids are"
        data = [message, tf.gather(tf.constant(named), bad), tf.gather(least, bad), tf.gather(greatest, bad)]
        # tf.debugging.Assert would be a branch, and so another function to call.
        check = tf.raw_ops.Assert(condition=empty | tf.reduce_all(inside), data=data)
        with tf.control_dependencies([] if check is None else [check]):
            return tf.cast(ids, tf.int32)


def _width(ids: tf.Tensor) -> int | None:
    """Ids of one example; None where that is not known before it is run."""
    return ids.shape[1:].num_elements() if ids.shape.rank else None


def _numbers(values: Any) -> tf.Tensor:
    """The numbers of columns as one of int32 where all are equal: broadcasting a vector takes several times as long."""
    numbers = np.asarray(values, np.int32)
    return tf.constant(numbers[0] if (numbers == numbers[0]).all() else numbers)


# -- what a shard of a stack holds, for those who see only the variable


@dataclass(frozen=True)
class Held:
    """The tables of a shard of a stack; all shards hold the same tables at the same offsets.

    Attributes:
      names: of the tables.
      offsets: where the rows of each begin.
    """

    names: tuple[str, ...]
    offsets: tuple[int, ...]


def held_by(variable: Any) -> Held | None:
    """The tables of a shard of a stack; None of any other variable."""
    held = getattr(variable, "psrun_held", None)
    return held if isinstance(held, Held) else None
