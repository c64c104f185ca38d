"""Two towers (Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations", 2019)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.data.source import DataSource
from psrun.layers.collection import MAX_STACKED_TABLE_BYTES
from psrun.models.model import ArgumentError, Model, concatenated, hidden, network_inputs, prepared
from psrun.recsys.models import in_batch, tables


def two_tower(
    source: DataSource,
    *,
    query_features: Sequence[str],
    embedding_dim: int | Mapping[str, int] = 16,
    shared_tables: Mapping[str, Sequence[str]] | None = None,
    hidden_units: Sequence[int] = (64, 32),
    objective: str = "labels",
    item: str | None = None,
    temperature: float = 0.1,
    normalize: bool = True,
    correct_popularity: bool = True,
    stack: bool | str = "auto",
    max_stacked_table_bytes: int = MAX_STACKED_TABLE_BYTES,
    deduplicate: bool | str = "auto",
) -> Model:
    """A tower of ReLU layers on the features of the query and one on all others; their dot product is the logit.

    Tables are (ids, embedding_dim), one per feature with ids unless features, also of both towers, share one; numbers
    are direct inputs, and lists are pooled by their combiners.

    Args:
      objective: labels: towers are trained on binary labels of pairs, and the prediction is a probability; softmax: on
        interactions alone, by the softmax over the items of the batch, and the prediction is a score.
      item, temperature, normalize, correct_popularity: of the softmax, see
        `psrun.recsys.models.in_batch.InBatchSoftmax`; `item` is the feature with the ids.
      embedding_dim, shared_tables: see `psrun.recsys.models.tables.make_tables`.
      stack, max_stacked_table_bytes, deduplicate: see `psrun.layers.EmbeddingCollection`.

    Raises:
      ArgumentError: `query_features` names an unknown feature, repeats one, or leaves a tower without features; there
        are no `hidden_units`, the objective does not fit the labels, or a list cannot be pooled.
    """
    if not hidden_units:
        raise ArgumentError(("hidden_units", "is required: the last number is the width of the towers' outputs"))
    if objective == "labels" and source.task != "binary":
        raise ArgumentError(("", f"two_tower requires binary labels (task=binary); got task={source.task}"))
    preprocessing, num_ids = prepared(source)
    tables.check_lists(source, num_ids, "two_tower")
    tensors = network_inputs(source, num_ids)
    names = [name for name in tensors if name not in tables.of_weights(source.features)]
    unknown = [name for name in query_features if name not in names]
    twice = len(set(query_features)) < len(query_features)
    if unknown or twice or not query_features or len(query_features) == len(names):
        problem = (
            f"lists the unknown feature '{unknown[0]}'" if unknown else "leaves one of the towers without features"
        )
        problem = "lists a feature twice" if twice else problem
        raise ArgumentError(("query_features", f"{problem}; the data has {', '.join(names)}"))
    item_features = [name for name in names if name not in query_features]
    warnings = in_batch.check_objective(objective, source, item, num_ids, temperature, item_features)

    shared = tables.make_tables(source, num_ids, embedding_dim=embedding_dim, shared_tables=shared_tables)
    stored: dict[str, Any] = {
        "stack": stack,
        "max_stacked_table_bytes": max_stacked_table_bytes,
        "deduplicate": deduplicate,
    }
    rows = tables.rows(shared, tensors, source.features, suffix="rows", **stored) if num_ids else {}

    def tower(names: Sequence[str]) -> tf.Tensor:
        flat = tf_keras.layers.Flatten()
        parts = [flat(rows[name] if name in num_ids else tensors[name]) for name in names]
        *most, last = hidden_units
        return tf_keras.layers.Dense(last)(hidden(concatenated(parts), most))

    if objective == "softmax" and item not in item_features:
        raise ArgumentError(("item", f"is {item!r}, which is a feature of the query; choose one of the item"))
    model = in_batch.model(
        tensors,
        tower(query_features),
        tower(item_features),
        preprocessing=preprocessing,
        item_features=item_features,
        item=item,
        num_items=num_ids.get(item or "", 0),
        objective=objective,
        warnings=warnings,
        temperature=temperature,
        normalize=normalize,
        correct_popularity=correct_popularity,
    )
    read = f"query tower: {', '.join(query_features)}; item tower: {', '.join(item_features)}"
    return replace(model, notes=[read])
