"""A network without its tables: a function that says which of their rows it needs, and one that takes these rows.

A server may keep the tables elsewhere then, and they need no memory here.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.errors import ConfigError, Problem
from psrun.layers import EmbeddingCollection, lookup
from psrun.layers.collection import EMBEDDINGS, StackFetch
from psrun.layers.lookup import EmbeddingLayer, GivenRows
from psrun.program import embeddings
from psrun.program.adapters import AdaptedModel
from psrun.tf_internals import keras
from psrun.tf_internals.names import name_of
from psrun.tf_internals.strategies import UninitializedVariable

_ONLY_SHAPE = ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike")  # operations that read no value
# Gives vectors, (n, dim), for n ids. Its arguments: the variable of their table, the name of their feature ('' if it is
# unknown), the ids as the layer got them, and their rows in the variable, (n,).
_Answer = Callable[[Any, str, Any, tf.Tensor], tf.Tensor]


@dataclass(frozen=True)
class LookUp:
    """A look-up of ids in a table.

    Attributes:
      table: as checkpoints call it.
      column_bits: of the table, see `psrun.program.embeddings.described`.
      vectors: the shape of the ids and, as the last axis, the width of the table.
    """

    table: str
    column_bits: int
    vectors: tf.TensorSpec


@dataclass(frozen=True)
class Split:
    """A network without its tables.

    Attributes:
      look_ups: by name.
      rows: from raw features to the numbers of the rows of each look-up, in the order of ids: int64, of the shape of
        the ids, lists padded with 0.
      dense: from the vectors of each look-up, and the raw features that are used otherwise, to the outputs.
      resources: what the functions need of the network.
    """

    look_ups: dict[str, LookUp]
    rows: Any
    dense: Any
    resources: list[Any]


@contextlib.contextmanager
def without_memory() -> Iterator[None]:
    """In this context tables of tf-keras' and of psrun's layers have a shape, but no values.

    Operations would take them for empty ones (TensorFlow 2.21): compute nothing with them.
    """

    def create(next_creator: Any, **kwargs: Any) -> Any:
        shape = kwargs.get("shape")
        if shape is None or len(shape) != 2 or kwargs.get("name") != EMBEDDINGS:
            return next_creator(**kwargs)
        options = {option: kwargs.get(option) for option in ("name", "trainable", "dtype")}
        return UninitializedVariable(shape=shape, **options)

    with tf.variable_creator_scope(create):
        yield


def tables_of(network: tf_keras.Model) -> dict[str, Any]:
    """The variables of tables that are looked up by psrun's layers or by tf-keras' Embedding, by their names."""
    return {name_of(variable): variable for layer, variable in embeddings.held_tables(network) if _is_answered(layer)}


def _is_answered(layer: Any) -> bool:
    """Whether `_answered` knows how the layer looks up: not of a user's subclass of tf-keras' Embedding."""
    return isinstance(layer, EmbeddingLayer) or type(layer) is tf_keras.layers.Embedding


@contextlib.contextmanager
def _answered(network: tf_keras.Model, answer: _Answer) -> Iterator[None]:
    """In this context the network looks nothing up, but gets vectors from `answer`."""
    layers = [layer for layer in keras.layers_within(network) if _is_answered(layer)]
    try:
        for layer in layers:
            if type(layer) is tf_keras.layers.Embedding:
                layer.call = functools.partial(_called, layer, answer)
            else:
                layer.fetched = functools.partial(_fetched, layer, answer)
        yield
    finally:
        for layer in layers:
            vars(layer).pop("call", None)
            vars(layer).pop("fetched", None)


def _called(layer: Any, answer: _Answer, inputs: Any) -> tf.Tensor:
    """In place of the call of tf-keras' Embedding."""
    positions = tf.cast(lookup.values_of(inputs), tf.int64)
    message = f"{layer.name}: ids must be from 0 to {layer.input_dim - 1}; they are"
    inside = tf.reduce_all((positions >= 0) & (positions < layer.input_dim))
    with tf.control_dependencies(lookup.assertion(inside, message, positions)):
        positions = tf.identity(positions)
    vectors = answer(layer.embeddings, "", inputs, positions)
    vectors = tf.cast(vectors, layer.compute_dtype)
    return inputs.with_values(vectors) if lookup.is_list(inputs) else lookup.shaped(vectors, inputs)


def _fetched(layer: Any, answer: _Answer, ids: Any) -> Any:
    """In place of `EmbeddingLayer.fetched`."""
    if not isinstance(layer, EmbeddingCollection):
        return GivenRows(answer(layer.embeddings, "", ids, layer.position(lookup.values_of(ids))))
    fetches = []
    for each in layer.fetch(ids):
        vectors = {
            feature: answer(each.stack.variable, feature, ids[feature], positions)
            for feature, positions in each.ids.split(each.ids.positions).items()
        }
        fetches.append(StackFetch(each.stack, GivenRows(each.ids.joined(vectors)), each.ids))
    return fetches


def split(
    network: tf_keras.Model,
    serve: Callable[[dict[str, tf.Tensor]], dict[str, tf.Tensor]],
    specs: Mapping[str, tf.TensorSpec],
    lengths: Collection[str],
) -> Split:
    """Traces what a served network does before its look-ups, and after them.

    Args:
      network: it is built, and stores no two tables in one variable.
      serve: calls the network with raw features.
      specs: of these.
      lengths: the names of those that are lengths of lists.

    Raises:
      ConfigError: the network looks nothing up, uses a table otherwise than by look-ups, looks it up in a branch, or
        computes ids from rows of a table.
    """
    known = embeddings.described(network, {})
    look_ups: dict[str, LookUp] = {}
    within: set[str] = set()  # tables with look-ups within branches and loops
    unknown: list[tuple[str, tf.Tensor]] = []  # tables, and what stands for their vectors, which `rows` does not have

    def rows(features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        found: dict[str, tf.Tensor] = {}
        graph = tf.compat.v1.get_default_graph()

        def answer(variable: Any, feature: str, ids: Any, positions: tf.Tensor) -> tf.Tensor:
            num_rows, dim = variable.shape
            table = name_of(variable).rpartition("/")[0]
            no_vectors = tf.zeros([tf.size(positions), dim], variable.dtype)
            unknown.append((table, no_vectors))
            if positions.graph is not graph:
                within.add(table)
                return no_vectors
            column_bits = known[table]["column_bits"]
            name = _new_name(table, feature if len(known[table]["features"]) > 1 else "", {*specs, *found})
            numbers = lookup.in_order_of_ids(positions, num_rows, column_bits)
            found[name] = lookup.shaped(numbers[:, tf.newaxis], ids)[..., 0]
            spec = tf.TensorSpec([*found[name].shape, dim], variable.dtype, name)
            look_ups[name] = LookUp(table, column_bits, spec)
            return no_vectors

        with _answered(network, answer):
            serve(features)
        return found

    rows_function = tf.function(rows, input_signature=[dict(specs)])
    reached = _reached(rows_function.get_concrete_function())
    if within:
        raise _not_apart(f"looks rows of {min(within)} up within a branch or a loop")
    if read := [table for table, no_vectors in unknown if id(no_vectors.op) in reached]:
        raise _not_apart(f"computes ids from rows of {read[0]}")
    if not look_ups:
        raise _not_apart("looks nothing up in a table of psrun's layers or of tf-keras' Embedding")
    vectors = {name: each.vectors for name, each in look_ups.items()}

    def dense(inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        given = [inputs[name] for name in vectors]
        features = _completed(specs, lengths, inputs, tf.shape(given[0])[0])
        with _answered(network, lambda variable, feature, ids, positions: _flat(given.pop(0), ids)):
            return serve(features)

    whole = tf.function(dense, input_signature=[{**vectors, **specs}]).get_concrete_function()
    used = {name: spec for name, spec in specs.items() if name in _used(whole, {**vectors, **specs})}
    dense_function = tf.function(dense, input_signature=[{**vectors, **used}])
    graphs = [each.get_concrete_function().graph for each in (rows_function, dense_function)]
    captured = {id(outer) for graph in graphs for outer, _ in graph.captures}
    for name, variable in tables_of(network).items():
        if id(variable.handle) in captured:
            raise _not_apart(f"uses {name} otherwise than by looking rows up")
    resources = [each for each in network.variables if id(getattr(each, "handle", None)) in captured]
    return Split(look_ups, rows_function, dense_function, [*resources, *_hash_tables(network)])


def _not_apart(reason: str) -> ConfigError:
    return ConfigError([Problem("export.tables", f"is apart, but the model {reason}; set it to whole")])


def _new_name(table: str, feature: str, others: Collection[str]) -> str:
    """A name that TensorFlow takes for an argument."""
    base = re.sub(r"\W", "_", f"{table}_{feature}" if feature else table)
    names = itertools.chain([base], (f"{base}_{number}" for number in itertools.count(2)))
    return next(name for name in names if name not in others)


def _completed(
    specs: Mapping[str, tf.TensorSpec], lengths: Collection[str], inputs: Mapping[str, tf.Tensor], batch_size: tf.Tensor
) -> dict[str, tf.Tensor]:
    """All raw features: those that are no inputs have a value that is not used, in the shape that is."""
    longest = tf.zeros([], tf.int32)
    for name in lengths:
        if name in inputs:
            longest = tf.maximum(longest, tf.cast(tf.reduce_max(inputs[name]), tf.int32))
    features = {}
    for name, spec in specs.items():
        shape = [batch_size, *(longest if size is None else size for size in spec.shape[1:])]
        unused = tf.fill(shape, "") if spec.dtype == tf.string else tf.zeros(shape, spec.dtype)
        features[name] = inputs.get(name, unused)
    return features


def _flat(vectors: tf.Tensor, ids: Any) -> tf.Tensor:
    """The vectors of ids, (n, dim), without the padding of lists."""
    if lookup.is_list(ids):
        return tf.RaggedTensor.from_tensor(vectors, lengths=lookup.ragged(ids).row_lengths()).values
    return tf.reshape(vectors, [-1, vectors.shape[-1]])


def _used(function: Any, specs: Mapping[str, tf.TensorSpec]) -> set[str]:
    """The names of the inputs of a traced function whose values, not only their shapes, its outputs depend on."""
    reached = _reached(function)
    return {name for name, tensor in zip(sorted(specs), function.inputs) if id(tensor.op) in reached}


def _reached(function: Any) -> set[int]:
    """The `id` of each operation of a traced function whose values, not only their shapes, its outputs depend on."""
    reached = set()
    waiting = [tensor.op for tensor in function.outputs]
    while waiting:
        operation = waiting.pop()
        if id(operation) in reached:
            continue
        reached.add(id(operation))
        if operation.type not in _ONLY_SHAPE:
            waiting += [tensor.op for tensor in operation.inputs]
    return reached


def _hash_tables(network: tf_keras.Model) -> list[Any]:
    """The words that layers of a network know."""
    layers = network.own_layers() if isinstance(network, AdaptedModel) else keras.layers_within(network)
    kinds = tf.lookup.StaticHashTable | tf.lookup.experimental.MutableHashTable
    return [value for layer in layers for value in vars(layer).values() if isinstance(value, kinds)]
