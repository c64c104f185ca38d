"""The embedding layer: one table that may be cut in shards."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

from psrun.layers import lookup
from psrun.layers.lookup import DeduplicationChoice, EmbeddingLayer, Fetch, RowOrder, assertion, check_options
from psrun.tf_internals.tracing import stop_recording

OPTIONS = ("input_dim", "output_dim", "deduplicate", "wire", "oov", "combiner")


@tf_keras.utils.register_keras_serializable(package="psrun")
class Embedding(EmbeddingLayer):
    """Rows of a table by id: Keras' Embedding for sharded tables. Several calls share the table.

    Row `position(id)` of the variable `embeddings` is the row of an id. Ids are placed as in a matrix that is written
    row by row and read column by column: adjacent ids, which are often similarly frequent, are far apart, evenly over
    contiguous shards. The position of an id does not depend on the number of shards: a checkpoint of one sharding fits
    every other.

    Args:
      input_dim: number of ids; ids start at 0.
      output_dim: numbers per row.
      embeddings_initializer, embeddings_regularizer: as in Keras; a regularizer makes each step read the whole table.
      deduplicate: whether an id that occurs several times in a batch is fetched once, and its gradients summed before
        they are sent. 'auto': decided by the ids of the first batch
        (see `embeddings.decide_deduplication`); false until then.
      wire: 'float32', or 'bfloat16' to send rows and gradients rounded to 8 significant bits. The table keeps float32.
      oov: for ids below 0 or from `input_dim` on: 'error', or 'row' for one row that they share.
      combiner: how the rows of an example's ids are pooled: 'sum', 'mean', 'sqrtn' or 'max'; None: they are not.

    Call arguments:
      ids: (batch, ...) of int. RaggedTensors and SparseTensors, (batch, None), are lists; the indices of a
        SparseTensor must be in canonical order (`tf.sparse.reorder`).
      weights: of the ids, in a tensor of the same kind and shape; with the combiners sum, mean and sqrtn. Ids without a
        positive weight are ignored except in sums, as by `tf.nn.safe_embedding_lookup_sparse`.

    Returns:
      With a combiner, (batch, output_dim), with zeros for examples without ids. Without one, the shape of the ids and a
      last axis of `output_dim`; lists are padded with zeros to the longest, and have a Keras mask, which layers get as
      their argument `mask`, and `compute_mask(ids)` returns.

    Raises:
      ValueError: an argument is invalid.
      tf.errors.InvalidArgumentError: when called: an id is outside the table; names the layer, its features and
        the ids.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        *,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        deduplicate: bool | str = "auto",
        wire: str = "float32",
        oov: str = "error",
        combiner: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not 0 < input_dim < 2**31 - 1024 or output_dim < 1:
            raise ValueError(
                f"a table of {input_dim} x {output_dim}: both must be positive, the rows below 2**31 - 1024"
            )
        check_options(deduplicate, wire, oov)
        lookup.check_combiner(combiner, "combiner")
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.embeddings_initializer = tf_keras.initializers.get(embeddings_initializer)
        self.embeddings_regularizer = tf_keras.regularizers.get(embeddings_regularizer)
        self.deduplicate = deduplicate
        self.wire = wire
        self.oov = oov
        self.combiner = combiner
        self.order = RowOrder.of(input_dim + (oov == "row"))
        self.num_rows = self.order.num_rows

    def build(self, input_shape: Any) -> None:
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.num_rows, self.output_dim),
            initializer=self.embeddings_initializer,
            regularizer=self.embeddings_regularizer,
            experimental_autocast=False,
        )
        super().build(input_shape)

    def position(self, ids: tf.Tensor) -> tf.Tensor:
        """The rows of ids in the table; int32, of the same shape.

        Raises:
          tf.errors.InvalidArgumentError: an id is outside of the table and `oov` is 'error'.
        """
        ids = tf.cast(ids, tf.int64)
        if self.oov == "row":
            ids = tf.where((ids >= 0) & (ids < self.input_dim), ids, tf.cast(self.input_dim, ids.dtype))
        else:
            least = tf.reduce_min(ids)
            greatest = tf.reduce_max(ids)
            message = f"{self.title()}: ids must be from 0 to {self.input_dim - 1}; the minimum and the maximum are"
            inside = (tf.size(ids) == 0) | ((least >= 0) & (greatest < self.input_dim))
            with tf.control_dependencies(assertion(inside, message, least, greatest)):
                ids = tf.identity(ids)
        return lookup.rows_in_tables(tf.cast(ids, tf.int32), [self.order])

    def call(self, ids: Any, weights: Any = None) -> tf.Tensor:
        checked = lookup.checked_weights(ids, weights, self.combiner, f"{self.name}: the input")
        rows = self.fetched(ids).rows()
        if self.combiner is None:
            vectors = lookup.shaped(rows.gathered(), ids)
        else:
            vectors = lookup.pooled(rows, [ids], self.combiner, [checked])[0]
        return tf.cast(vectors, self.compute_dtype)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        return lookup.mask(inputs) if self.combiner is None else None

    def fetch(self, ids: Any) -> Fetch:
        lookup.check_lists(ids, f"{self.name}: the input")
        with stop_recording():
            positions = self.position(lookup.values_of(ids))
        return Fetch(self.embeddings, positions, deduplicate=self.deduplicate is True, wire=self.wire)

    @property
    def has_undecided(self) -> bool:
        return self.deduplicate == "auto"

    def undecided(self, ids: Any) -> list[DeduplicationChoice]:
        return [DeduplicationChoice(self.name, self.position(lookup.values_of(ids)), self._decide)]

    def _decide(self, deduplicate: bool) -> None:
        self.deduplicate = deduplicate

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in OPTIONS},
            "embeddings_initializer": tf_keras.initializers.serialize(self.embeddings_initializer),
            "embeddings_regularizer": tf_keras.regularizers.serialize(self.embeddings_regularizer),
        }

    def compute_output_shape(self, input_shape: Any) -> tf.TensorShape:
        return tf.TensorShape([*(input_shape if self.combiner is None else input_shape[:1]), self.output_dim])
