"""DCN-v2 (Wang et al., "DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank
Systems", WWW 2021).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.data.source import DataSource
from psrun.layers.collection import MAX_STACKED_TABLE_BYTES
from psrun.models.model import ArgumentError, Model, concatenated, head, hidden, network_inputs, numbers_of, prepared
from psrun.recsys.models import tables

STRUCTURES = ("stacked", "parallel")


def dcn(
    source: DataSource,
    *,
    embedding_dim: int | Mapping[str, int] = 16,
    shared_tables: Mapping[str, Sequence[str]] | None = None,
    cross_layers: int = 2,
    rank: int | None = None,
    hidden_units: Sequence[int] = (128, 64),
    structure: str = "stacked",
    dropout: float = 0.0,
    stack: bool | str = "auto",
    max_stacked_table_bytes: int = MAX_STACKED_TABLE_BYTES,
    deduplicate: bool | str = "auto",
) -> Model:
    """Cross layers on the embeddings and the numbers, which multiply features explicitly, and an MLP.

    Tables are (ids, embedding_dim), one per feature with ids unless features share one; lists are pooled by their
    combiners.

    Args:
      embedding_dim, shared_tables: see `psrun.recsys.models.tables.make_tables`.
      rank: of the matrices of the cross layers, as the product of two; None: full.
      structure: stacked: the MLP is on the output of the cross layers; parallel: beside them.
      stack, max_stacked_table_bytes, deduplicate: see `psrun.layers.EmbeddingCollection`.

    Raises:
      ArgumentError: an option is out of range, or a list cannot be pooled.
    """
    if cross_layers < 1:
        raise ArgumentError(("cross_layers", f"is {cross_layers}, must be 1 or more"))
    if structure not in STRUCTURES:
        raise ArgumentError(("structure", f"is {structure!r}, must be one of {', '.join(STRUCTURES)}"))
    if rank is not None and rank < 1:
        raise ArgumentError(("rank", f"is {rank}, must be 1 or more, or null"))
    preprocessing, num_ids = prepared(source)
    tables.check_lists(source, num_ids, "dcn")
    tensors = network_inputs(source, num_ids)
    rows = []
    if num_ids:
        arranged = tables.make_tables(source, num_ids, embedding_dim=embedding_dim, shared_tables=shared_tables)
        rows.append(
            tables.side_by_side(
                arranged,
                tensors,
                source.features,
                list(num_ids),
                suffix="rows",
                stack=stack,
                max_stacked_table_bytes=max_stacked_table_bytes,
                deduplicate=deduplicate,
            )
        )
    first = concatenated([*rows, *numbers_of(tensors)])
    crossed = first
    for _ in range(cross_layers):
        crossed = Cross(rank)([first, crossed])
    deep = hidden(crossed if structure == "stacked" else first, hidden_units, dropout)
    top = deep if structure == "stacked" else concatenated([crossed, deep])
    return Model(tf_keras.Model(tensors, head(top, source)), preprocessing)


@tf_keras.utils.register_keras_serializable(package="psrun")
class Cross(tf_keras.layers.Layer):
    """x0 * (W x + b) + x, of x0 and x of (batch, d).

    Args:
      rank: of W, as U V with U of (d, rank); None: W is one matrix.
    """

    def __init__(self, rank: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rank = rank

    def build(self, input_shape: Any) -> None:
        width = input_shape[0][-1]
        self._narrow = None if self.rank is None else tf_keras.layers.Dense(self.rank, use_bias=False, name="narrow")
        self._wide = tf_keras.layers.Dense(width, name="wide")
        super().build(input_shape)

    def call(self, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        first, current = inputs
        narrow = current if self._narrow is None else self._narrow(current)
        return first * self._wide(narrow) + current

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rank": self.rank}
