"""The cost of an optimizer's step on an embedding table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tf_keras
from rich.filesize import decimal

from psrun.cluster.placement import Placed
from psrun.tf_internals import optimizers

MANY_ROWS = 100_000
_SPARSE = (
    tf_keras.optimizers.Adagrad,
    tf_keras.optimizers.legacy.Adagrad,
    tf_keras.optimizers.legacy.Ftrl,
    tf_keras.optimizers.legacy.SGD,
)


def updates_all_rows(optimizer: Any) -> bool:
    """Whether a step reads and writes the whole table, not only the rows of the batch."""
    kind = isinstance(optimizer, _SPARSE) or optimizers.has_momentum_of_0(optimizer)
    return not getattr(optimizer, "touches_rows_only", kind)


def of_dense_tables(optimizer: Any, placed: Iterable[Placed]) -> list[str]:
    """Warnings with the cost of each table of more than `MANY_ROWS` rows that the optimizer updates as a whole."""
    placed = list(placed)
    if not updates_all_rows(optimizer):
        return []
    tables = {
        shard.variable: tuple(shard.variable_shape)
        for shard in placed
        if shard.kind == "model" and "embeddings" in shard.variable and shard.variable_shape[0] > MANY_ROWS
    }
    return [
        f"{type(optimizer).__name__} updates all {shape[0]:,} rows of {name} in every step, and with its slots reads "
        f"and writes {decimal(sum(shard.bytes for shard in placed if _is_of(shard, name)))}; sparse_adagrad, "
        "rowwise_adagrad, lazy_adam and sparse_sgd update only the rows of the batch"
        for name, shape in tables.items()
    ]


def _is_of(shard: Placed, table: str) -> bool:
    """Whether the variable is the table or a slot of it: names of slots end with the name of the table."""
    return shard.variable == table or shard.variable.endswith(f"/{table}")
