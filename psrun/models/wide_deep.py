"""Wide and deep learning (Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.data.source import DataSource
from psrun.layers.collection import MAX_STACKED_TABLE_BYTES
from psrun.layers.layout import Table
from psrun.models import lists, numbers, tables
from psrun.models.model import (
    ArgumentError,
    Model,
    concatenated,
    head,
    hidden,
    is_ragged,
    label_scale,
    network_inputs,
    prepared,
)

AUTO = "auto"
_WEIGHT_DECAY = 0.002  # tuned on the tables of benchmarks/tables.py


def wide_deep(
    source: DataSource,
    *,
    embedding_dim: int | str | Mapping[str, int | str] = AUTO,
    shared_tables: Mapping[str, Sequence[str]] | None = None,
    hidden_units: Sequence[int] = (256, 128),
    dropout: float = 0.3,
    weight_decay: float | str = AUTO,
    stack: bool | str = "auto",
    max_stacked_table_bytes: int = MAX_STACKED_TABLE_BYTES,
    deduplicate: bool | str = "auto",
) -> Model:
    """The sum of a linear model (one weight per value of a categorical feature) and an MLP on embeddings and floats.

    The last layer combines both parts, as in the paper. Tables are (ids, 1), one per feature with ids, and
    (ids, embedding_dim), one per feature with ids unless features share one; with a vocabulary, row 0 is for values
    outside of it. The weights of the linear part are never shared. Both parts pool lists by their combiners.

    Both parts take the standardized numbers; the MLP takes the codes of `psrun.models.numbers.NumberEncoding` too.

    Args:
      embedding_dim: as in `psrun.models.tables.of`; 'auto' in place of a number: `automatic_dim` of the ids.
      shared_tables: see `psrun.models.tables.of`.
      weight_decay: of the kernels of the MLP, in units of the variance of the labels of a regression; 'auto': 0.002 if
        features have boundaries, else 0.
      stack, max_stacked_table_bytes, deduplicate: see `psrun.layers.EmbeddingCollection`.

    Raises:
      ArgumentError: a list cannot be pooled, or `weight_decay` is another text.
    """
    preprocessing, num_ids = prepared(source, keep_missing=True)
    lists.check(source, num_ids, "wide_deep")
    shared = tables.of(source, num_ids, embedding_dim=_dims(embedding_dim, num_ids), shared_tables=shared_tables)
    tensors = network_inputs(source, num_ids)
    stored = {"stack": stack, "max_stacked_table_bytes": max_stacked_table_bytes, "deduplicate": deduplicate}
    # Rows by id, as in checkpoints of psrun 0.1.0.
    linear = [Table(name, (name,), size, 1, "zeros", spread=False) for name, size in num_ids.items()]
    shared = [replace(table, spread=False) for table in shared]
    wide = [tables.side_by_side(linear, tensors, source.features, num_ids, suffix="wide", **stored)] if num_ids else []
    deep = [tables.side_by_side(shared, tensors, source.features, num_ids, suffix="deep", **stored)] if num_ids else []
    floats = {name: each for name, each in tensors.items() if each.dtype == tf.float32 and not is_ragged(each)}
    standardized, codes = numbers.encoded(floats, source.features)
    # The loss of a regression, and its gradient, has the unit of the variance of the labels.
    decay = _decay(weight_decay, source) * label_scale(source)[1] ** 2
    mlp = hidden(concatenated([*deep, *standardized, *codes]), hidden_units, dropout, decay)
    return Model(tf_keras.Model(tensors, head(concatenated([*wide, *standardized, mlp]), source)), preprocessing)


def _decay(weight_decay: float | str, source: DataSource) -> float:
    if isinstance(weight_decay, str):
        if weight_decay != AUTO:
            raise ArgumentError(("weight_decay", f"is {weight_decay!r}, must be a number or auto"))
        return _WEIGHT_DECAY if any(feature.boundaries for feature in source.features.values()) else 0.0
    return weight_decay


def automatic_dim(num_ids: int) -> int:
    """The width of a table: 1.6 ids^0.56 as a power of two from 4 to 16, so that tables share few widths.

    The rule is fastai's; tables of one width are stored together.
    """
    return next((dim for dim in (4, 8) if dim >= 1.6 * num_ids**0.56), 16)


def _dims(embedding_dim: int | str | Mapping[str, int | str], num_ids: Mapping[str, int]) -> int | dict[str, Any]:
    """`embedding_dim` with numbers in place of 'auto'."""
    if isinstance(embedding_dim, int):
        return embedding_dim
    given = {"default": embedding_dim} if isinstance(embedding_dim, str) else dict(embedding_dim)
    default = given.pop("default", None)
    widths = {name: given.get(name, default) for name in num_ids}
    automatic = {name: automatic_dim(num_ids[name]) for name, width in widths.items() if width == AUTO}
    return {**given, **widths, **automatic}
