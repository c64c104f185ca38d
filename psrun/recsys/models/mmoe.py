"""MMoE (Ma et al., "Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts", 2018)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from psrun import metrics
from psrun.data.source import DataSource
from psrun.layers.collection import MAX_STACKED_TABLE_BYTES
from psrun.models.model import ArgumentError, Model, concatenated, hidden, network_inputs, numbers_of, prepared
from psrun.recsys.models import tables


def mmoe(
    source: DataSource,
    *,
    embedding_dim: int | Mapping[str, int] = 16,
    shared_tables: Mapping[str, Sequence[str]] | None = None,
    experts: int = 4,
    expert_units: Sequence[int] = (128, 64),
    tower_units: Sequence[int] = (32,),
    dropout: float = 0.0,
    stack: bool | str = "auto",
    max_stacked_table_bytes: int = MAX_STACKED_TABLE_BYTES,
    deduplicate: bool | str = "auto",
) -> Model:
    """Expert MLPs on the embeddings and the numbers; for each label, a mixture of the experts by a gate, and a tower.

    Tables are (ids, embedding_dim), one per feature with ids unless features share one; lists are pooled by their
    combiners. The output of a label is a probability or a number, its loss the binary cross-entropy or the mean squared
    error in units of the variance of the label; the loss is their sum.

    Args:
      embedding_dim, shared_tables: see `psrun.recsys.models.tables.make_tables`.
      stack, max_stacked_table_bytes, deduplicate: see `psrun.layers.EmbeddingCollection`.

    Raises:
      ArgumentError: the data has one label, an option is out of range, or a list cannot be pooled.
    """
    tasks: Mapping[str, str] = getattr(source, "label_tasks", {})
    if len(tasks) < 2:
        raise ArgumentError(("", "mmoe has an output for each of several labels; name them: data.label=[click, like]"))
    if experts < 1:
        raise ArgumentError(("experts", f"is {experts}, must be 1 or more"))
    if not expert_units:
        raise ArgumentError(("expert_units", "is required: the last number is the width of what is mixed"))
    if taken := [name for name in tasks if name in source.features]:
        raise ArgumentError(("", f"{taken[0]} is the name of a label and of a feature; rename one of them"))
    preprocessing, num_ids = prepared(source)
    tables.check_lists(source, num_ids, "mmoe")
    tensors = network_inputs(source, num_ids)
    rows = []
    if num_ids:
        arranged = tables.make_tables(source, num_ids, embedding_dim=embedding_dim, shared_tables=shared_tables)
        stored: dict[str, Any] = {
            "stack": stack,
            "max_stacked_table_bytes": max_stacked_table_bytes,
            "deduplicate": deduplicate,
        }
        rows.append(tables.side_by_side(arranged, tensors, source.features, list(num_ids), suffix="rows", **stored))
    shared = concatenated([*rows, *numbers_of(tensors)])
    stacked = tf_keras.layers.Lambda(tf.stack, arguments={"axis": 1})(
        [hidden(shared, expert_units, dropout) for _ in range(experts)]
    )
    scales = getattr(source, "label_scales", {})
    outputs: dict[str, tf.Tensor] = {}
    losses: dict[str, Any] = {}
    for name, task in tasks.items():
        gate = tf_keras.layers.Dense(experts, "softmax", name=f"{name}_gate")(shared)
        top = hidden(tf_keras.layers.Dot(axes=1)([stacked, gate]), tower_units, dropout)
        if task == "binary":
            outputs[name] = tf_keras.layers.Dense(1, "sigmoid", name=name)(top)
            losses[name] = tf_keras.losses.BinaryCrossentropy()
        else:
            scale = scales.get(name, {"mean": 0.0, "deviation": 1.0})
            deviation = scale["deviation"] or 1.0
            number = tf_keras.layers.Dense(1, name=f"{name}_standardized")(top)
            outputs[name] = tf_keras.layers.Rescaling(deviation, scale["mean"], name=name)(number)
            losses[name] = ScaledSquaredError(deviation)

    def metrics() -> dict[str, list[tf_keras.metrics.Metric]]:
        return {name: _metrics(task) for name, task in tasks.items()}

    return Model(tf_keras.Model(tensors, outputs), preprocessing, loss=losses, metrics=metrics)


def _metrics(task: str) -> list[tf_keras.metrics.Metric]:
    if task == "regression":
        return [tf_keras.metrics.MeanAbsoluteError(name="mae")]
    return [metrics.AUC(), tf_keras.metrics.BinaryAccuracy(name="accuracy")]


@tf_keras.utils.register_keras_serializable(package="psrun")
class ScaledSquaredError(tf_keras.losses.MeanSquaredError):
    """The mean squared error over the square of `deviation`."""

    def __init__(self, deviation: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.deviation = deviation

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        return super().call(y_true / self.deviation, y_pred / self.deviation)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "deviation": self.deviation}
