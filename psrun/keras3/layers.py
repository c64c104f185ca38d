"""psrun's embedding layers for Keras 3 models, with TensorFlow's backend. Imports Keras 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import keras
import tensorflow as tf

from psrun.keras3 import internals
from psrun.keras3.initial_values import Blocks, OfTable
from psrun.layers import collection, embedding
from psrun.layers.lookup import EmbeddingLayer, Table

__all__ = ["Embedding", "EmbeddingCollection", "Table", "TableLayer"]


class TableLayer(keras.layers.Layer):
    """A Keras 3 layer whose look-ups are those of a layer of `psrun.layers`.

    Attributes:
      table: that layer. Its variables are those of Keras 3 variables.
    """

    table: EmbeddingLayer

    def __init__(self, table: EmbeddingLayer, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.table.add_weight = self._variable

    def _variable(self, *, name: str, shape: Any, initializer: Any, regularizer: Any = None, **options: Any) -> Any:
        """The TensorFlow variable of a new weight; takes the place of tf-keras' `add_weight`."""
        variable = self.add_weight(
            name=name, shape=shape, initializer=self._initial(name, initializer), regularizer=regularizer
        )
        return internals.value_of(variable)

    def _initial(self, name: str, initializer: Any) -> Any:
        return initializer

    def build(self, inputs_shape: Any = None, weights_shape: Any = None) -> None:
        with internals.creating_now():
            self.table.build(None)
        self.built = True

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        return self.table.compute_mask(inputs)


@keras.saving.register_keras_serializable(package="psrun")
class Embedding(TableLayer):
    """`psrun.layers.Embedding` for Keras 3 models: rows of a table by id, for tables that are cut in shards.

    The initial values depend on the seed only, not on the number of shards.

    Args:
      input_dim, output_dim: as in `psrun.layers.Embedding`.
      embeddings_initializer, embeddings_regularizer: as in Keras 3's Embedding; a regularizer makes each step read the
        whole table.
      name, trainable, dtype: as in Keras 3's layers.
      options: deduplicate, wire, oov and combiner of `psrun.layers.Embedding`.

    Call arguments:
      inputs, weights: as the ids and weights of `psrun.layers.Embedding`.

    Returns:
      As `psrun.layers.Embedding`.

    Raises:
      ValueError, tf.errors.InvalidArgumentError: where that layer does.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        *,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        name: str | None = None,
        trainable: bool = True,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        self._own_initializer = keras.initializers.get(embeddings_initializer)
        self._own_regularizer = keras.regularizers.get(embeddings_regularizer)
        initial = Blocks(self._own_initializer)
        name = name or internals.new_name("embedding")
        table = embedding.Embedding(input_dim, output_dim, embeddings_initializer=initial, name=name, **options)
        super().__init__(table, name=name, trainable=trainable, dtype=dtype)
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.combiner = table.combiner

    def _variable(self, *, regularizer: Any = None, **options: Any) -> Any:
        return super()._variable(regularizer=self._own_regularizer, **options)

    def call(self, inputs: Any, weights: Any = None) -> tf.Tensor:
        return tf.cast(self.table(inputs, weights), self.compute_dtype)

    def compute_output_spec(self, inputs: Any, weights: Any = None) -> keras.KerasTensor:
        leading = inputs.shape[:1] if self.combiner else inputs.shape
        return keras.KerasTensor((*leading, self.output_dim), dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            **{name: getattr(self.table, name) for name in embedding.OPTIONS},
            "embeddings_initializer": keras.initializers.serialize(self._own_initializer),
            "embeddings_regularizer": keras.regularizers.serialize(self._own_regularizer),
        }


@keras.saving.register_keras_serializable(package="psrun")
class EmbeddingCollection(TableLayer):
    """`psrun.layers.EmbeddingCollection` for Keras 3 models: rows of several tables by feature, stored together.

    Args:
      tables: as in `psrun.layers.EmbeddingCollection`; their initializers are those of Keras 3.
      name, trainable, dtype: as in Keras 3's layers.
      options: stack, max_stacked_table_bytes, deduplicate, wire, oov, concatenate and combiner, as there.

    Call arguments:
      inputs, weights: by feature, as there.

    Returns:
      As `psrun.layers.EmbeddingCollection`.

    Raises:
      ValueError, tf.errors.InvalidArgumentError: where that layer does.
    """

    def __init__(
        self,
        tables: Sequence[Table | Mapping[str, Any]],
        *,
        name: str | None = None,
        trainable: bool = True,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        given = map(Table.of, tables)
        own = [replace(table, initializer=keras.initializers.get(table.initializer)) for table in given]
        self._own_tables = tuple(own)
        name = name or internals.new_name("embedding_collection")
        in_blocks = [replace(each, initializer=Blocks(each.initializer)) for each in own]
        table = collection.EmbeddingCollection(in_blocks, name=name, **options)
        super().__init__(table, name=name, trainable=trainable, dtype=dtype)

    def _initial(self, name: str, initializer: Any) -> Any:
        # The layer has opened the scope of a table, or of a stack: checkpoints go by these names.
        return OfTable(initializer, f"{tf.get_current_name_scope()}/{name}")

    def call(self, inputs: Mapping[str, Any], weights: Mapping[str, Any] | None = None) -> Any:
        rows = self.table(inputs, weights=weights) if weights else self.table(inputs)
        return tf.nest.map_structure(lambda each: tf.cast(each, self.compute_dtype), rows)

    def compute_output_spec(self, inputs: Mapping[str, Any], weights: Mapping[str, Any] | None = None) -> Any:
        specs = {}
        for table in self._own_tables:
            for feature in table.features:
                shape = inputs[feature].shape
                leading = shape[:1] if feature in self.table.combiners else shape
                specs[feature] = keras.KerasTensor((*leading, table.dim), dtype=self.compute_dtype)
        if not self.table.concatenate:
            return specs
        numbers = [1 if len(spec.shape) == 2 else spec.shape[1] for spec in specs.values()]
        num_ids = None if None in numbers else sum(numbers)
        return keras.KerasTensor((None, num_ids, self._own_tables[0].dim), dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        serialize = keras.initializers.serialize
        tables = [{**asdict(each), "initializer": serialize(each.initializer)} for each in self._own_tables]
        own = {name: getattr(self.table, name) for name in collection.OPTIONS}
        return {**super().get_config(), **own, "tables": tables, "combiner": dict(self.table.combiners)}
