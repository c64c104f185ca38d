"""Several embedding tables behind one layer, stored in as few variables as their widths allow.

A stack is tables of the same width in one variable, looked up, deduplicated and updated together.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from psrun.data.lists import COMBINERS
from psrun.layers import lookup
from psrun.layers.lookup import (
    Block,
    DeduplicationChoice,
    EmbeddingLayer,
    Fetch,
    GivenRows,
    Place,
    RowOrder,
    Rows,
    StackLayout,
    Table,
    check_options,
)
from psrun.tf_internals import keras, strategies
from psrun.tf_internals.checkpoints import Part, TableView, TogetherRead, Views
from psrun.tf_internals.strategies import shards_of
from psrun.tf_internals.tracing import converted, stop_recording

EMBEDDINGS = "embeddings"
# Of a stack: positions are int32, and each table may have some rows without an id in each shard.
_MAX_IDS = 2**31 - 2**24
_POOLED = (None, *COMBINERS)
# A shard is read as a whole for a checkpoint up to this size: it may be copied once more than its tables alone.
_READ_TOGETHER_BYTES = 64 << 20
# Initializers whose values do not depend on the shape of the table: one call makes the values of several tables.
_ALIKE = tuple(
    getattr(tf_keras.initializers, name)
    for name in ("Constant", "Ones", "RandomNormal", "RandomUniform", "TruncatedNormal", "Zeros")
)

_alone: ContextVar[bool] = ContextVar("alone", default=False)
_num_servers: ContextVar[int | None] = ContextVar("num_servers", default=None)
# Larger tables gain little from a stack, and a checkpoint copies the tables of a stack while it is written.
MAX_STACKED_TABLE_BYTES = 64 << 20
OPTIONS = ("stack", "max_stacked_table_bytes", "deduplicate", "wire", "oov", "concatenate")


def stored_alone() -> contextlib.AbstractContextManager[None]:
    """In this context each table of a new collection is a separate variable, whatever its `stack` is."""
    return _set(_alone, True)


def is_alone() -> bool:
    """Whether a new collection is within `stored_alone`."""
    return _alone.get()


def arranged_for(num_servers: int) -> contextlib.AbstractContextManager[None]:
    """In this context new stacks have shards for `num_servers` servers, whatever the strategy is: for plans."""
    return _set(_num_servers, num_servers)


@contextlib.contextmanager
def _set(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


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
      combiners: of the features that are pooled.
      layout: of several tables; None of a single one.
      variable: (rows, dim), perhaps in shards.
    """

    name: str
    tables: tuple[Table, ...]
    oov: str
    deduplicate: bool | str
    combiners: Mapping[str, str | None] = field(default_factory=dict)
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
        return self.orders[0].num_rows if self.layout is None else self.layout.num_rows

    def arrange(self) -> None:
        """Lays several tables out over the parameter servers; a single table is cut as the strategy decides."""
        if len(self.tables) > 1:
            num_shards = _num_servers.get() or strategies.num_parameter_servers()
            self.layout = StackLayout(tuple(order.num_rows for order in self.orders), num_shards)

    def holds(self, name: str, shape: Sequence[int]) -> bool:
        """Whether a variable of this name and shape is the stack, or a slot of it with a row for each of its rows."""
        return f"/{self.variable_name}/" in f"/{name}/" and bool(len(shape)) and shape[0] == self.num_rows

    def initializer(self) -> Any:
        own = [tf_keras.initializers.get(table.initializer) for table in self.tables]
        return own[0] if self.layout is None else first_values(self.layout, own)

    def attach(self, variable: Any) -> None:
        """Takes the variable, and notes at each shard which tables it holds."""
        self.variable = variable
        if self.layout is not None:
            offsets = tuple(self.layout.offset(table) for table in range(len(self.tables)))
            held = TableOffsets(tuple(table.name for table in self.tables), offsets)
            for shard in shards_of([variable]):
                for copy in getattr(shard, "values", None) or [shard]:
                    copy.psrun_table_offsets = held

    def decide(self, deduplicate: bool) -> None:
        """Decides `deduplicate='auto'`."""
        self.deduplicate = deduplicate

    # -- checkpoints

    @property
    def variable_name(self) -> str:
        return f"{self.name}/{EMBEDDINGS}"

    def views(self, variable: Any, name: str) -> Views:
        """The tables in the variable, or in a slot of it.

        Args:
          name: of the variable or slot. The views have it with the name of the table instead of the stack's.
        """
        if self.layout is None:
            return Views({self.tables[0].name: variable})
        shards = shards_of([variable])
        whole = len(shards) == 1  # in a plan, which has a layout for servers that are not there
        parts: dict[str, list[Part]] = {table.name: [] for table in self.tables}
        for index, table in enumerate(self.tables):
            for block in self.layout.blocks(index):
                before = block.shard * self.layout.shard_rows if whole else 0
                shard = shards[0 if whole else block.shard]
                parts[table.name].append(Part(shard, block.first, block.num_rows, before + block.offset))
        together = _read_together(shards, [part for each in parts.values() for part in each])
        children = {}
        for table in self.tables:
            read = [replace(part, together=together.get(id(part.variable))) for part in parts[table.name]]
            children[table.name] = TableView(name.replace(self.name, table.name), read)
        return Views(children)

    # -- ids

    def positions(self, ids: Mapping[str, Any], title: str) -> StackIds:
        """Where in the variable the rows of the ids of all features are.

        Raises:
          tf.errors.InvalidArgumentError: an id is outside of its table, and `oov` is 'error'.
        """
        places = [
            Place(feature, table.name, index, table.num_ids, self.orders[index])
            for index, table in enumerate(self.tables)
            for feature in table.features
        ]
        widths = {place.feature: self._width(place.feature, ids[place.feature]) for place in places}
        in_columns = [place for place in places if widths[place.feature] is not None]
        others = [place for place in places if widths[place.feature] is None]
        # Those that are pooled alike are next to each other.
        others.sort(key=lambda place: _POOLED.index(self.combiners.get(place.feature)))
        parts = [self._of_columns(in_columns, ids, title)] if in_columns else []
        parts += [self._of_lists(others, ids, title)] if others else []
        return StackIds(
            parts[0] if len(parts) == 1 else tf.concat(parts, 0),
            {place.feature: widths[place.feature] or 0 for place in in_columns},
            {place.feature: lookup.num_values(ids[place.feature]) for place in others},
            separate=_separate(in_columns, others),
        )

    def _width(self, feature: str, ids: Any) -> int | None:
        """Ids of one example; None where that is not known before it is run, and where they are pooled."""
        if lookup.is_list(ids) or self.combiners.get(feature) is not None:
            return None
        return ids.shape[1:].num_elements() if ids.shape.rank else None

    def _of_columns(self, places: Sequence[Place], ids: Mapping[str, tf.Tensor], title: str) -> tf.Tensor:
        wide = []
        flat = []
        dtypes = {ids[place.feature].dtype for place in places}
        for place in places:
            matrix = lookup.as_matrix(ids[place.feature])
            wide += [place] * matrix.shape[1]
            if len(dtypes) > 1:
                matrix = tf.cast(matrix, tf.int64)
            flat.append(matrix)
        # One operation for all columns, where there can be a thousand of them.
        whole = tf.cast(tf.concat(flat, 1), tf.int64)
        return tf.reshape(lookup.rows_of_columns(whole, wide, self.layout, self.oov, title), [-1])

    def _of_lists(self, places: Sequence[Place], ids: Mapping[str, Any], title: str) -> tf.Tensor:
        tensors = [ids[place.feature] for place in places]
        values = tf.concat([tf.cast(lookup.values_of(each), tf.int64) for each in tensors], 0)
        sizes = [lookup.num_values(each) for each in tensors]
        return lookup.rows_of_parts(values, sizes, places, self.layout, self.oov, title)


@dataclass(frozen=True)
class StackIds:
    """Where in the variable of a stack the rows of a batch are.

    Attributes:
      positions: int32 (n,): first the rows of `columns`, example by example; then of `lists`, feature by feature.
      columns: features whose examples all have the same number of ids, with that number; in the order of the tables.
      lists: the other features, with the number of ids of the batch, by their combiner.
      separate: whether the columns and each of the lists have tables of their own, and so no rows in common.
    """

    positions: tf.Tensor
    columns: Mapping[str, int]
    lists: Mapping[str, int | tf.Tensor]
    separate: bool

    @property
    def parts(self) -> list[int | tf.Tensor]:
        """The sizes of consecutive parts of `positions` that have no row in common; empty if there are none."""
        if not self.separate:
            return []
        sizes = list(self.lists.values())
        return [self.num_in_columns, *sizes] if self.columns else sizes

    @property
    def num_in_columns(self) -> int | tf.Tensor:
        """The number of positions of `columns`."""
        static = self.positions.shape[0]
        return (tf.size(self.positions) if static is None else static) - sum(self.lists.values())

    def split(self, values: tf.Tensor) -> dict[str, tf.Tensor]:
        """Values of all positions, (n,), by feature: of the ids of one example after the other."""
        of_columns, *of_lists = tf.split(values, [self.num_in_columns, *self.lists.values()])
        widths = list(self.columns.values())
        if not widths:
            return dict(zip(self.lists, of_lists))
        columns = tf.split(tf.reshape(of_columns, [-1, sum(widths)]), widths, axis=1)
        flat = [tf.reshape(each, [-1]) for each in columns]
        return dict(zip([*self.columns, *self.lists], [*flat, *of_lists]))

    def joined(self, vectors: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Vectors by feature, (n, dim), in the order of the positions."""
        dim = next(iter(vectors.values())).shape[-1]
        parts = [vectors[name] for name in self.lists]
        if self.columns:
            columns = [tf.reshape(vectors[name], [-1, width, dim]) for name, width in self.columns.items()]
            parts.insert(0, tf.reshape(tf.concat(columns, 1), [-1, dim]))
        return tf.concat(parts, 0)


def _read_together(shards: Sequence[Any], parts: Sequence[Part]) -> dict[int, TogetherRead]:
    """What reads the parts of each small shard together, by the id of the shard."""
    together = {}
    for shard in shards:
        num_bytes = shard.shape.num_elements() * shard.dtype.size
        if num_bytes <= _READ_TOGETHER_BYTES:
            own = [(part.offset, part.num_rows) for part in parts if part.variable is shard]
            together[id(shard)] = TogetherRead(shard, own)
    return together


def _separate(columns: Sequence[Place], lists: Sequence[Place]) -> bool:
    of_lists = [place.index for place in lists]
    return len({*of_lists}) == len(of_lists) and not {*of_lists} & {place.index for place in columns}


# -- rows of a batch


@dataclass(frozen=True)
class StackFetch:
    """Rows of a stack for a batch, by feature."""

    stack: Stack
    fetch: Fetch | GivenRows
    ids: StackIds

    def block(self, inputs: Mapping[str, Any], weights: Mapping[str, tf.Tensor | None]) -> tf.Tensor | None:
        """(batch, ids of an example over all features, dim); None unless a single operation gives that.

        Args:
          inputs: ids by feature.
          weights: as `lookup.checked_weights` returns them.
        """
        groups = self._groups()
        if not groups:
            return self._columns(self.fetch.rows())
        combiner, names = groups[0]
        if self.ids.columns or len(groups) > 1 or combiner is None:
            return None
        return tf.transpose(_pooled(self.fetch.rows(), names, combiner, inputs, weights), [1, 0, 2])

    def by_feature(
        self, inputs: Mapping[str, Any], weights: Mapping[str, tf.Tensor | None]
    ) -> Iterator[tuple[str, tf.Tensor]]:
        """Rows of each feature: (batch, dim) if they are pooled, else of the shape of its ids, and dim as last axis."""
        groups = self._groups()
        columns = self.ids.columns
        sizes = [sum(self.ids.lists[name] for name in names) for _, names in groups]
        if columns:
            sizes = [self.ids.num_in_columns, *sizes]
        parts = self.fetch.rows().split(sizes)
        if columns:
            split = tf.split(self._columns(parts.pop(0)), list(columns.values()), axis=1)
            for name, rows in zip(columns, split):
                yield name, lookup.shaped(rows, inputs[name])
        for (combiner, names), part in zip(groups, parts, strict=True):
            if combiner is None:
                yield names[0], lookup.shaped(part.gathered(), inputs[names[0]])
            else:
                yield from zip(names, tf.unstack(_pooled(part, names, combiner, inputs, weights), len(names)))

    def _groups(self) -> list[tuple[str | None, list[str]]]:
        """Features that are pooled together, and each that is not."""
        groups: list[tuple[str | None, list[str]]] = []
        for name in self.ids.lists:
            combiner = self.stack.combiners.get(name)
            if combiner is not None and groups and groups[-1][0] == combiner:
                groups[-1][1].append(name)
            else:
                groups.append((combiner, [name]))
        return groups

    def _columns(self, rows: Rows) -> tf.Tensor:
        return tf.reshape(rows.gathered(), [-1, sum(self.ids.columns.values()), self.stack.dim])


def _pooled(
    rows: Rows, names: Sequence[str], combiner: str, inputs: Mapping[str, Any], weights: Mapping[str, tf.Tensor | None]
) -> tf.Tensor:
    return lookup.pooled(rows, [inputs[name] for name in names], combiner, [weights.get(name) for name in names])


# -- the tables in a shard of a stack, for code that has only the variable


@dataclass(frozen=True)
class TableOffsets:
    """The tables of a shard of a stack, and where the rows of each begin: in all shards alike."""

    names: tuple[str, ...]
    offsets: tuple[int, ...]


def table_offsets(variable: Any) -> TableOffsets | None:
    """The tables of a shard of a stack; None of any other variable."""
    held = getattr(variable, "psrun_table_offsets", None)
    return held if isinstance(held, TableOffsets) else None


# -- first values


def first_values(layout: StackLayout, own: Sequence[Any]) -> Any:
    """The initializer of a stack and of its shards, called as Keras calls one.

    Args:
      own: the initializer of each table.
    """
    alike = all(map(_is_alike, own)) and len({repr(tf_keras.initializers.serialize(each)) for each in own}) == 1
    return own[0] if alike else _Initializer(layout, own)


def _is_alike(initializer: Any) -> bool:
    whole = np.ndim(getattr(initializer, "value", 0)) > 0  # the values of one table
    return type(initializer) in _ALIKE and not whole


class _Initializer:
    """Called as Keras' initializers are; for one shard with `partition_shape` and `partition_offset`."""

    def __init__(self, layout: StackLayout, own: Sequence[Any]) -> None:
        self._layout = layout
        self._own = own

    def __call__(self, shape: Any, dtype: Any = None, **options: Any) -> tf.Tensor:
        layout = self._layout
        offset = options.get("partition_offset")
        only = None if offset is None else int(offset[0]) // layout.shard_rows
        shards = range(layout.num_shards) if only is None else [only]
        return tf.concat([self._shard(index, int(shape[1]), dtype) for index in shards], 0)

    def _shard(self, index: int, dim: int, dtype: Any) -> tf.Tensor:
        parts = []
        for table, initializer in enumerate(self._own):
            block = next((each for each in self._layout.blocks(table) if each.shard == index), None)
            num_rows = 0 if block is None else block.num_rows
            if block is not None:
                parts.append(_part(initializer, (self._layout.table_rows[table], dim), dtype, block))
            unused = self._layout.block_rows(table) - num_rows
            if unused:
                parts.append(tf.zeros([unused, dim], dtype or tf.float32))
        return tf.concat(parts, 0)


def _part(initializer: Any, shape: tuple[int, int], dtype: Any, block: Block) -> tf.Tensor:
    """The first values of a block.

    An initializer does not say whether it can make a part. As TensorFlow does for variables in shards, this requests
    one; if it fails or makes the whole table, the part is cut out.
    """
    part = (block.num_rows, shape[1])
    make = converted(initializer)
    try:
        values = make(shape, dtype=dtype, partition_shape=part, partition_offset=(block.first, 0))
    except (TypeError, ValueError):
        values = make(shape, dtype=dtype)
    return values if tuple(values.shape) == part else values[block.first : block.first + block.num_rows]


@tf_keras.utils.register_keras_serializable(package="psrun")
class EmbeddingCollection(keras.LayerWithTables, EmbeddingLayer):
    """Rows of several tables by feature, with one look-up, one deduplication and one update for all tables of a width.

    Tables that are stored together are called a stack. Under parameter servers a stack is cut in one shard for each
    parameter server, whatever the partitioner, and each of its tables is spread over all of them. A table that is
    stored alone is cut as by the partitioner. Checkpoints hold the tables one by one: they fit every way to store them.

    Source: table batched embedding (Mudigere et al., ISCA 2022) and the EmbeddingBagCollection of TorchRec.

    Args:
      tables: their names must differ; no feature may be in two of them.
      stack: true to store all tables of the same dim together, false for each alone; 'auto': as true, but a table of
        more than `max_stacked_table_bytes` stays alone.
      deduplicate, wire, oov: as in `psrun.layers.Embedding`; deduplication is decided for each stack.
      concatenate: whether the layer returns one tensor for all features, side by side; all tables have the same dim
        then, and features with lists have a combiner.
      combiner: as in `psrun.layers.Embedding`, for all features or by feature.

    Call arguments:
      inputs: ids by feature, (batch, ...) of int; RaggedTensors and SparseTensors are lists, as in
        `psrun.layers.Embedding`.
      weights: of ids, by feature; as in `psrun.layers.Embedding`.

    Returns:
      By feature, as `psrun.layers.Embedding` returns them, also the masks of lists without a combiner. With
      `concatenate` one tensor, (batch, ids of an example over all features, dim), features in the order of the tables;
      a feature with a combiner counts as one id.

    Raises:
      ValueError: an argument is none of these.
      tf.errors.InvalidArgumentError: when called: an id is outside of its table; names the layer, the features, their
        tables and ids.
    """

    def __init__(
        self,
        tables: Sequence[Table | Mapping[str, Any]],
        *,
        stack: bool | str = "auto",
        max_stacked_table_bytes: int = MAX_STACKED_TABLE_BYTES,
        deduplicate: bool | str = "auto",
        wire: str = "float32",
        oov: str = "error",
        concatenate: bool = False,
        combiner: str | Mapping[str, str | None] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_options(deduplicate, wire, oov)
        if not isinstance(stack, bool) and stack != "auto":
            raise ValueError(f"stack is {stack!r}, must be true, false or auto")
        self.tables: tuple[Table, ...] = self.untracked(tuple(map(Table.of, tables)))
        _check_tables(self.tables, concatenate)
        stack = stack if not is_alone() else False
        self.stack = stack
        self.max_stacked_table_bytes = max_stacked_table_bytes
        self.deduplicate = deduplicate
        self.wire = wire
        self.oov = oov
        self.concatenate = concatenate
        groups = grouped(self.tables, stack=stack, max_table_bytes=max_stacked_table_bytes)
        self.combiners: Mapping[str, str] = self.untracked(_by_feature(combiner, self.features))
        stacks = [Stack(self._name_of(group), group, oov, deduplicate, self.combiners) for group in groups]
        self.stacks: tuple[Stack, ...] = self.untracked(tuple(stacks))
        self._views: Sequence[tuple[Any, Views]] = self.untracked(())

    def _name_of(self, tables: Sequence[Table]) -> str:
        return tables[0].name if len(tables) == 1 else f"{self.name}/stack_{tables[0].dim}_of_{tables[0].name}"

    def build(self, input_shape: Any) -> None:
        for stack in self.stacks:
            stack.arrange()
            whole = strategies.cut_over_all_servers() if stack.layout is not None else contextlib.nullcontext()
            # TensorFlow takes a name that ends in a slash as it is, without the name of the layer before it.
            with whole, tf.name_scope(f"{stack.name}/"):
                variable = self.add_weight(
                    name=EMBEDDINGS,
                    shape=(stack.num_rows, stack.dim),
                    initializer=stack.initializer(),
                    experimental_autocast=False,
                )
            stack.attach(variable)
        views = [(stack.variable, stack.views(stack.variable, stack.variable_name)) for stack in self.stacks]
        self._views = self.untracked(tuple(views))
        super().build(input_shape)

    def tables_by_variable(self) -> Sequence[tuple[Any, Views]]:
        return self._views

    # -- rows

    def call(self, inputs: Mapping[str, Any], weights: Mapping[str, Any] | None = None) -> Any:
        fetches = self.fetched(inputs)
        checked = self._checked(inputs, weights or {})
        block = fetches[0].block(inputs, checked) if self.concatenate and len(fetches) == 1 else None
        if block is not None:
            return tf.cast(block, self.compute_dtype)
        by_feature = dict(pair for fetch in fetches for pair in fetch.by_feature(inputs, checked))
        rows = {name: tf.cast(by_feature[name], self.compute_dtype) for name in self.features}
        if not self.concatenate:
            return rows
        return tf.concat([_block(each) for each in rows.values()], 1)

    def _checked(self, ids: Mapping[str, Any], weights: Mapping[str, Any]) -> dict[str, tf.Tensor | None]:
        """The weights of each feature's ids, as `lookup.pooled` takes them."""
        if unknown := [name for name in weights if name not in self.features]:
            raise ValueError(f"{self.name}: there are weights for {unknown[0]}, which is in no table")
        return {
            name: lookup.checked_weights(ids[name], each, self.combiners.get(name), self._title(name))
            for name, each in weights.items()
        }

    def _check_ids(self, feature: str, ids: Any) -> None:
        title = self._title(feature)
        dtype = tf.as_dtype(ids.dtype)
        if not dtype.is_integer:
            raise ValueError(f"{title} must have ids of an integer type, not of {dtype.name}")
        lookup.check_lists(ids, title)
        if self.concatenate and lookup.is_list(ids) and feature not in self.combiners:
            raise ValueError(f"{title} has lists; with concatenate=True it requires a combiner")

    def _title(self, feature: str) -> str:
        return f"{self.name}: the feature {feature}"

    def compute_mask(self, inputs: Mapping[str, Any], mask: Any = None) -> Any:
        if self.concatenate:
            return None
        masks = {name: None if name in self.combiners else lookup.mask(inputs[name]) for name in self.features}
        return masks if any(each is not None for each in masks.values()) else None

    def fetch(self, ids: Mapping[str, Any]) -> list[StackFetch]:
        missing = [name for name in self.features if name not in ids]
        if missing:
            raise ValueError(f"{self.name}: the inputs lack the features {', '.join(missing)}")
        for name in self.features:
            self._check_ids(name, ids[name])
        fetches = []
        for stack in self.stacks:
            with stop_recording():
                stack_ids = stack.positions(ids, self.name)
            fetch = Fetch(
                stack.variable,
                stack_ids.positions,
                deduplicate=stack.deduplicate is True,
                wire=self.wire,
                parts=stack_ids.parts,
            )
            fetches.append(StackFetch(stack, fetch, stack_ids))
        return fetches

    @property
    def features(self) -> list[str]:
        """In the order of the tables."""
        return [feature for table in self.tables for feature in table.features]

    @property
    def has_undecided(self) -> bool:
        return any(stack.deduplicate == "auto" for stack in self.stacks)

    def undecided(self, ids: Mapping[str, tf.Tensor]) -> list[DeduplicationChoice]:
        choices = []
        for stack in self.stacks:
            if stack.deduplicate == "auto":
                positions = stack.positions(ids, self.name).positions
                choices.append(DeduplicationChoice(stack.name, positions, stack.decide))
        return choices

    def get_config(self) -> dict[str, Any]:
        serialize = tf_keras.initializers.serialize
        tables = [
            {**asdict(table), "initializer": serialize(tf_keras.initializers.get(table.initializer))}
            for table in self.tables
        ]
        own = {name: getattr(self, name) for name in OPTIONS}
        return {**super().get_config(), **own, "tables": tables, "combiner": dict(self.combiners)}


def _block(rows: tf.Tensor) -> tf.Tensor:
    """(batch, ..., dim) as (batch, n, dim)."""
    num_ids = rows.shape[1:-1].num_elements()
    return tf.reshape(rows, [-1, num_ids, rows.shape[-1]] if num_ids else [tf.shape(rows)[0], -1, rows.shape[-1]])


def _by_feature(combiner: str | Mapping[str, str | None] | None, features: Sequence[str]) -> dict[str, str]:
    """The combiners of the features that are pooled.

    Raises:
      ValueError: a combiner does not exist, or is of an unknown feature.
    """
    if not isinstance(combiner, Mapping):
        lookup.check_combiner(combiner, "combiner")
        return {} if combiner is None else dict.fromkeys(features, combiner)
    for name, each in combiner.items():
        if name not in features:
            raise ValueError(f"combiner names {name!r}, which is in no table; the features are {', '.join(features)}")
        lookup.check_combiner(each, f"combiner of {name}")
    return {name: each for name, each in combiner.items() if each is not None}


def _check_tables(tables: Sequence[Table], concatenate: bool) -> None:
    """Raises ValueError where tables cannot be in one collection."""
    if not tables:
        raise ValueError("tables is empty; a collection requires at least one table")
    features: dict[str, str] = {}
    names = [table.name for table in tables]
    for table in tables:
        if names.count(table.name) > 1:
            raise ValueError(f"two tables are called {table.name!r}; rename one")
        if isinstance(table.features, str) or not table.features:
            raise ValueError(f"table {table.name}: features is {table.features!r}, must be a tuple of names")
        if not 0 < table.num_ids < 2**31 - 1024 or table.dim < 1:
            raise ValueError(f"table {table.name}: {table.num_ids} ids of {table.dim} numbers; both must be positive, "
                             "the ids below 2**31 - 1024")  # fmt: skip
        for feature in table.features:
            if feature in features:
                raise ValueError(f"feature {feature!r} is in the tables {features[feature]} and {table.name}; "
                                 "a feature has one table")  # fmt: skip
            features[feature] = table.name
    if concatenate and len({table.dim for table in tables}) > 1:
        raise ValueError(f"concatenate=True requires tables of one dim; these have {sorted({t.dim for t in tables})}")
