"""Wide and deep learning (Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from psrun.data.source import DataSource, Feature
from psrun.layers.collection import MAX_STACKED_TABLE_BYTES
from psrun.layers.lookup import Table
from psrun.models.model import (
    ArgumentError,
    Model,
    SideBySide,
    concatenated,
    head,
    hidden,
    is_ragged,
    label_scale,
    network_inputs,
    prepared,
)
from psrun.recsys.models import tables

AUTO = "auto"
CLIP = 5.0  # deviations; a larger number of a few examples would dominate the linear part
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

    Both parts take the standardized numbers; the MLP takes the codes of `NumberEncoding` too.

    Args:
      embedding_dim: as in `psrun.recsys.models.tables.make_tables`; 'auto' in place of a number:
        `automatic_dim` of the ids.
      shared_tables: see `psrun.recsys.models.tables.make_tables`.
      weight_decay: of the kernels of the MLP, in units of the variance of the labels of a regression; 'auto': 0.002 if
        features have boundaries, else 0.
      stack, max_stacked_table_bytes, deduplicate: see `psrun.layers.EmbeddingCollection`.

    Raises:
      ArgumentError: a list cannot be pooled, or `weight_decay` is another text.
    """
    preprocessing, num_ids = prepared(source, keep_missing=True)
    tables.check_lists(source, num_ids, "wide_deep")
    shared = tables.make_tables(
        source, num_ids, embedding_dim=_dims(embedding_dim, num_ids), shared_tables=shared_tables
    )
    tensors = network_inputs(source, num_ids)
    stored = {"stack": stack, "max_stacked_table_bytes": max_stacked_table_bytes, "deduplicate": deduplicate}
    # Row i of a table is id i, also in checkpoints.
    linear = [Table(name, (name,), size, 1, "zeros", spread=False) for name, size in num_ids.items()]
    shared = [replace(table, spread=False) for table in shared]
    wide = [tables.side_by_side(linear, tensors, source.features, num_ids, suffix="wide", **stored)] if num_ids else []
    deep = [tables.side_by_side(shared, tensors, source.features, num_ids, suffix="deep", **stored)] if num_ids else []
    floats = {name: each for name, each in tensors.items() if each.dtype == tf.float32 and not is_ragged(each)}
    standardized, codes = encoded(floats, source.features)
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


# -- numbers as the network takes them


@tf_keras.utils.register_keras_serializable(package="psrun")
class NumberEncoding(tf_keras.layers.Layer):
    """Standardized numbers, with NaN for missing ones, as (numbers, codes).

    `numbers` are the inputs, clipped where the column has boundaries, 0 where missing. `codes` are, for each column
    with boundaries, one number per bin: -0.5 below the bin, 0.5 above it and linear inside, 0 where missing; and for
    each nullable column 1 where missing. A network on codes can bend at every boundary. They are the piecewise linear
    encoding of Gorishniy et al., "On Embeddings for Numerical Features in Tabular Deep Learning", NeurIPS 2022, moved
    by a half so that its mean is about 0.

    Args:
      boundaries: increasing numbers for each column; empty for a column without codes.
      nullable: for each column whether it may be missing.

    Call arguments:
      inputs: (batch, columns).

    Returns:
      (batch, columns) and (batch, codes); the second may have no columns.
    """

    def __init__(self, boundaries: Sequence[Sequence[float]], nullable: Sequence[bool], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if len(boundaries) != len(nullable):
            raise ValueError(f"there are boundaries of {len(boundaries)} columns, but nullable of {len(nullable)}")
        self.boundaries = [[float(each) for each in column] for column in boundaries]
        self.nullable = [bool(each) for each in nullable]
        bins = [
            (column, low, high - low)
            for column, edges in enumerate(self.boundaries)
            for low, high in itertools.pairwise(edges)
            if np.float32(high) > np.float32(low)
        ]
        self._columns = np.array([column for column, _, _ in bins], np.int32)
        self._lows = np.array([low for _, low, _ in bins], np.float32)
        self._widths = np.array([width for _, _, width in bins], np.float32)
        self._marked: np.ndarray = np.flatnonzero(self.nullable).astype(np.int32)
        self._limits = np.array([CLIP if edges else math.inf for edges in self.boundaries], np.float32)

    def call(self, inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        missing = tf.math.is_nan(inputs)
        numbers = tf.clip_by_value(tf.where(missing, 0.0, inputs), -self._limits, self._limits)
        values = tf.gather(inputs, self._columns, axis=1)
        inside = tf.clip_by_value((values - self._lows) / self._widths, 0.0, 1.0) - 0.5
        codes = tf.where(tf.math.is_nan(values), 0.0, inside)
        marks = tf.cast(tf.gather(missing, self._marked, axis=1), inputs.dtype)
        return numbers, tf.concat([codes, marks], 1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "boundaries": self.boundaries, "nullable": self.nullable}


def encoded(
    tensors: Mapping[str, tf.Tensor], features: Mapping[str, Feature]
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """The numbers of the features in `tensors` side by side, and their codes; each a list of one tensor, or of none.

    Args:
      tensors: (batch, *shape) of float32 by feature, as `psrun.models.model.prepared` returns them with keep_missing.
    """
    if not tensors:
        return [], []
    widths = [tensor.shape[1:].num_elements() for tensor in tensors.values()]
    together = SideBySide()(list(tensors.values()))
    boundaries = [edges for name, width in zip(tensors, widths) for edges in [standardized(features[name])] * width]
    nullable = [each for name, width in zip(tensors, widths) for each in [features[name].nullable] * width]
    if not any(boundaries) and not any(nullable):
        return [together], []
    numbers, codes = NumberEncoding(boundaries, nullable)(together)
    return [numbers], [codes] if codes.shape[1] else []


def standardized(feature: Feature) -> list[float]:
    """The boundaries on the scale on which models get the feature."""
    edges = [math.log1p(max(edge, 0.0)) for edge in feature.boundaries] if feature.logarithm else feature.boundaries
    return [(edge - feature.mean) / feature.deviation for edge in edges]
