"""Several embedding tables behind one layer, stored in as few variables as their widths allow."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.layers import pooling
from psrun.layers.base import DeduplicationChoice, EmbeddingLayer
from psrun.layers.fetch import Fetch, check_options
from psrun.layers.layout import Table
from psrun.layers.stack import EMBEDDINGS, Stack, StackFetch, grouped, is_alone
from psrun.tf_internals import cluster, keras
from psrun.tf_internals.table_views import Views
from psrun.tf_internals.tracing import stop_recording

# Larger tables gain little from a stack, and a checkpoint copies the tables of a stack while it is written.
MAX_STACKED_TABLE_BYTES = 64 << 20
OPTIONS = ("stack", "max_stacked_table_bytes", "deduplicate", "wire", "oov", "concatenate")


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
        _check(self.tables, concatenate)
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
            whole = cluster.cut_over_all_servers() if stack.layout is not None else contextlib.nullcontext()
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
        """The weights of each feature's ids, as `pooling.pooled` takes them."""
        if unknown := [name for name in weights if name not in self.features]:
            raise ValueError(f"{self.name}: there are weights for {unknown[0]}, which is in no table")
        return {
            name: pooling.checked_weights(ids[name], each, self.combiners.get(name), self._title(name))
            for name, each in weights.items()
        }

    def _check_ids(self, feature: str, ids: Any) -> None:
        title = self._title(feature)
        dtype = tf.as_dtype(ids.dtype)
        if not dtype.is_integer:
            raise ValueError(f"{title} must have ids of an integer type, not of {dtype.name}")
        pooling.check_lists(ids, title)
        if self.concatenate and pooling.is_list(ids) and feature not in self.combiners:
            raise ValueError(f"{title} has lists; with concatenate=True it requires a combiner")

    def _title(self, feature: str) -> str:
        return f"{self.name}: the feature {feature}"

    def compute_mask(self, inputs: Mapping[str, Any], mask: Any = None) -> Any:
        if self.concatenate:
            return None
        masks = {name: None if name in self.combiners else pooling.mask(inputs[name]) for name in self.features}
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
        return [
            DeduplicationChoice(
                stack.name, stack.positions(ids, self.name).positions, functools.partial(setattr, stack, "deduplicate")
            )
            for stack in self.stacks
            if stack.deduplicate == "auto"
        ]

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
        pooling.check_combiner(combiner, "combiner")
        return {} if combiner is None else dict.fromkeys(features, combiner)
    for name, each in combiner.items():
        if name not in features:
            raise ValueError(f"combiner names {name!r}, which is in no table; the features are {', '.join(features)}")
        pooling.check_combiner(each, f"combiner of {name}")
    return {name: each for name, each in combiner.items() if each is not None}


def _check(tables: Sequence[Table], concatenate: bool) -> None:
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
