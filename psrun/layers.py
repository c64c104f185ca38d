"""Layers for sharded tables; they work in any tf-keras model, with and without parameter servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.errors import ConfigError, Problem
from psrun.tf_internals import keras
from psrun.tf_internals.tracing import record_operation, stop_recording, variable_accessed

# Repeated ids are deduplicated if at most this share of the ids of a batch is distinct: then the saved traffic is worth
# more than the deduplication costs.
_DISTINCT_TO_PAY = 0.75
_FEW_SHARDS = 16
_WIRES = ("float32", "bfloat16")
_OOV = ("error", "row")


@tf_keras.utils.register_keras_serializable(package="psrun")
class Embedding(tf_keras.layers.Layer):
    """Rows of a table by id: Keras' Embedding for sharded tables, without masks. Several calls share the table.

    Row `position(id)` of the variable `embeddings` is the row of an id. Ids are placed as in a
    matrix that is written row by row and read column by column: adjacent ids, which are often similarly frequent, are
    far apart, evenly over contiguous shards. The position of an id does not depend on the number of shards: a
    checkpoint of one sharding fits every other.

    Args:
      input_dim: number of ids; ids start at 0.
      output_dim: numbers per row.
      embeddings_initializer, embeddings_regularizer: as in Keras; a regularizer makes each step read the whole table.
      deduplicate: whether an id that occurs several times in a batch is fetched once, and its gradients summed before
        they are sent. 'auto': decided by the ids of the first batch (see `decide`); false until then.
      wire: 'float32', or 'bfloat16' to send rows and gradients rounded to 8 significant bits. The table keeps float32.
      oov: for ids below 0 or from `input_dim` on: 'error', or 'row' for one row that they share.

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
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"autocast": False, **kwargs})  # half precision cannot represent ids
        if not 0 < input_dim < 2**31 - 1024 or output_dim < 1:
            raise ValueError(
                f"a table of {input_dim} x {output_dim}: both must be positive, the rows below 2**31 - 1024"
            )
        if deduplicate not in (True, False, "auto"):
            raise ValueError(f"deduplicate is {deduplicate!r}, must be true, false or auto")
        if wire not in _WIRES:
            raise ValueError(f"wire is {wire!r}, must be one of {', '.join(_WIRES)}")
        if oov not in _OOV:
            raise ValueError(f"oov is {oov!r}, must be one of {', '.join(_OOV)}")
        self.input_dim, self.output_dim = input_dim, output_dim
        self.embeddings_initializer = tf_keras.initializers.get(embeddings_initializer)
        self.embeddings_regularizer = tf_keras.regularizers.get(embeddings_regularizer)
        self.deduplicate, self.wire, self.oov = deduplicate, wire, oov
        num_rows = input_dim + (oov == "row")
        # A power of two near the square root, at most 1024: then few rows have no id.
        self._column_bits = min(10, (num_rows.bit_length() - 1) // 2)
        self._column_rows = -(-num_rows >> self._column_bits)
        self.num_rows = self._column_rows << self._column_bits
        self._ahead: Any = _Waiting()

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
            least, greatest = tf.reduce_min(ids), tf.reduce_max(ids)
            message = (
                f"{self._description()}: ids must be from 0 to {self.input_dim - 1}; the minimum and the maximum are"
            )
            inside = (tf.size(ids) == 0) | ((least >= 0) & (greatest < self.input_dim))
            # tf.debugging.Assert would add a branch, and so another function call.
            check = tf.raw_ops.Assert(condition=inside, data=[message, least, greatest])
            with tf.control_dependencies([] if check is None else [check]):
                ids = tf.identity(ids)
        ids = tf.cast(ids, tf.int32)
        bits = self._column_bits
        return tf.bitwise.bitwise_and(ids, (1 << bits) - 1) * self._column_rows + tf.bitwise.right_shift(ids, bits)

    def _description(self) -> str:
        """The name of the layer, with the names of its features in a functional model."""
        called_on = tf.nest.flatten([node.keras_inputs for node in self.inbound_nodes])
        features = {source.name for ids in called_on for source in tf_keras.utils.get_source_inputs(ids)}
        return f"{self.name} of {', '.join(sorted(features))}" if features else self.name

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        """Rows of ids, with the shape of the ids and a last axis of `output_dim`."""
        if isinstance(ids, tf.RaggedTensor | tf.SparseTensor):
            raise ValueError(f"{self.name} requires dense ids, not a {type(ids).__name__}; convert them with to_tensor")
        fetch = self._ahead.pop(0) if self._ahead else Fetch(self, ids)
        return tf.cast(fetch.rows(), self.compute_dtype)

    def ask_ahead(self, ids: tf.Tensor) -> None:
        """Requests the rows that a later call for the same ids returns, in the order of the calls."""
        self._ahead.append(Fetch(self, ids))

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_initializer": tf_keras.initializers.serialize(self.embeddings_initializer),
            "embeddings_regularizer": tf_keras.regularizers.serialize(self.embeddings_regularizer),
            "deduplicate": self.deduplicate,
            "wire": self.wire,
            "oov": self.oov,
        }

    def compute_output_shape(self, input_shape: Any) -> tf.TensorShape:
        return tf.TensorShape([*input_shape, self.output_dim])


class Fetch:
    """Requested rows. Created outside of any gradient tape; gradients are taken of `rows`."""

    def __init__(self, layer: Embedding, ids: tf.Tensor) -> None:
        self._layer, self._shape = layer, tf.shape(ids)
        self._static = [*ids.shape, layer.output_dim]
        with stop_recording():
            positions = tf.reshape(layer.position(ids), [-1])
            self._inverse = None
            if layer.deduplicate is True:
                positions, self._inverse = tf.unique(positions)
            self._positions = positions
            shards = getattr(layer.embeddings, "variables", [layer.embeddings])
            self._parts: list[_Part] = []
            if all("/job:ps" in (shard.device or "") for shard in shards):
                self._places, asked = _by_shard(positions, [shard.shape[0] for shard in shards])
                self._parts = [_Part(shard, wanted, layer.wire) for shard, wanted in zip(shards, asked)]

    def rows(self) -> tf.Tensor:
        """The rows, with the shape of the ids and a last axis of `output_dim`."""
        if not self._parts:
            rows = tf.gather(self._layer.embeddings, self._positions)
        elif len(self._parts) == 1:
            rows = self._parts[0].rows()
        else:
            rows = tf.dynamic_stitch(self._places, [part.rows() for part in self._parts])
        if self._inverse is not None:
            rows = tf.gather(rows, self._inverse)
        rows = tf.reshape(rows, tf.concat([self._shape, [self._layer.output_dim]], 0))
        rows.set_shape(self._static)
        return rows


class _Part:
    """Rows of one shard on a parameter server."""

    def __init__(self, shard: tf.Variable, wanted: tf.Tensor, wire: str) -> None:
        self._shard, self._wire = shard, tf.as_dtype(wire) if wire != "float32" else shard.dtype
        with tf.device(shard.device):
            self._there = tf.identity(wanted)  # read once, also for the gradient
            self._sent = tf.cast(tf.gather(shard, self._there), self._wire)

    def rows(self) -> tf.Tensor:
        variable_accessed(self._shard)
        with stop_recording():
            received = tf.cast(tf.identity(self._sent), self._shard.dtype)
        record_operation("ResourceGather", [received], [self._shard.handle], self._gradient)
        return received

    def _gradient(self, gradient: Any) -> list[tf.IndexedSlices]:
        # The gradient of a gather with duplicates sums their gradients.
        sent = tf.cast(tf.convert_to_tensor(gradient), self._wire)
        with tf.device(self._shard.device):
            values = tf.cast(tf.identity(sent), self._shard.dtype)
            shape = tf.constant(self._shard.shape.as_list(), tf.int64)
            return [tf.IndexedSlices(values, self._there, shape)]


def _by_shard(positions: tf.Tensor, sizes: list[int]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """For each shard: the positions of its rows in the result, and the indices of the rows in the shard."""
    if len(sizes) == 1:
        return [], [positions]
    first = [sum(sizes[:shard]) for shard in range(len(sizes))]
    if len(sizes) <= _FEW_SHARDS:  # comparing is much faster than dividing
        which = tf.add_n([tf.cast(positions >= start, tf.int32) for start in first[1:]])
    else:
        which = tf.searchsorted(tf.constant(first), positions, side="right") - 1
    places = tf.dynamic_partition(tf.range(tf.size(positions)), which, len(sizes))
    parts = tf.dynamic_partition(positions, which, len(sizes))
    return places, [part - start if start else part for part, start in zip(parts, first)]


@dataclass(frozen=True)
class Decided:
    """Whether a layer deduplicates, and the share of distinct ids in the batch that decided it."""

    layer: str
    deduplicate: bool
    distinct: float


def of(network: tf_keras.Model) -> list[Embedding]:
    """The Embedding layers in a network."""
    return [layer for layer in keras.layers_within(network) if isinstance(layer, Embedding)]


class Lookup:
    """The ids of a layer, as a function of a network's features."""

    def __init__(self, network: tf_keras.Model, layer: Embedding, ids: Any) -> None:
        self.layer, self._names = layer, [tensor.name for tensor in network.inputs]
        self._ids = tf_keras.Model(network.inputs, ids)

    @classmethod
    def of(cls, network: tf_keras.Model, layer: Embedding) -> Lookup | None:
        """None if there is no such function: the network is no functional model, or calls the layer twice."""
        nodes = layer.inbound_nodes
        own = any(each is layer for each in network.layers)  # not in a nested model
        if not own or not keras.is_functional(network) or len(nodes) != 1:
            return None
        return cls(network, layer, nodes[0].keras_inputs[0])

    def ids(self, features: Any) -> tf.Tensor:
        by_name = isinstance(features, dict)
        return self._ids([features[name] for name in self._names] if by_name else tf.nest.flatten(features))

    def check(self, num_batches: int) -> None:
        """Drops prefetched rows after a failed trace.

        Raises:
          ConfigError: the layer was not called exactly once for each prefetched batch.
        """
        waiting = len(self.layer._ahead)
        if num_batches == 0:
            self.layer._ahead.clear()
        elif waiting != num_batches:
            message = f"requires that each step calls {self.layer.name} exactly once; set it to false"
            raise ConfigError([Problem("trainer.prefetch_rows", message)])

    def ask(self, features: Any) -> None:
        """Prefetches the rows of a batch for a later call of the network."""
        self.layer.ask_ahead(self.ids(features))


def decide(network: tf_keras.Model, features: Any) -> list[Decided]:
    """Decides `deduplicate='auto'` by a batch of features, for layers with ids that are a function of the features."""
    decisions = []
    for layer in of(network):
        lookup = Lookup.of(network, layer)
        if layer.deduplicate == "auto" and lookup is not None:
            ids = tf.reshape(lookup.ids(features), [-1])
            distinct = int(tf.size(tf.unique(ids)[0])) / max(int(tf.size(ids)), 1)
            layer.deduplicate = distinct < _DISTINCT_TO_PAY
            decisions.append(Decided(layer.name, layer.deduplicate, round(distinct, 3)))
    return decisions


class _Waiting(list):
    """A list that Keras does not track: its tensors belong to a function that is being traced."""
