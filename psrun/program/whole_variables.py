"""What is computed from a whole variable, where a partitioner cuts the variable into shards.

Keras applies the constraint, the regularizer and `clipnorm` of a variable to each of its shards, and `clipnorm` to all
tables of a stack together.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from psrun.cluster.placement import Placed, shard_rows
from psrun.config.run_config import RunConfig
from psrun.errors import ConfigError, Problem
from psrun.layers.collection import TableOffsets, table_offsets
from psrun.tf_internals.keras import layers_within
from psrun.tf_internals.names import name_of, split_name
from psrun.tf_internals.strategies import shards_of, variables_of

# Of what is raised where a layer needs a whole variable: half precision, functions that layers trace, tf-idf, and
# branches that return the variable.
_OF_CUT_WEIGHTS = (
    "ShardedVariable object",
    "'ShardedVariable' object",
    "referencing variables which have been deleted",
    "Argument `variables` should be a non-empty list of `variables.Variable`s",
)
_LAYER = re.compile(r"when calling layer ['\"]?([^'\"\s]+)")
_SCALES = (1e-3, 1.0, 1e3)  # of the values to try: many constraints change only values beyond a bound
_MAX_VALUES = 1_000_000  # of a variable to try

Shapes = list[tuple[int, ...]]


@contextlib.contextmanager
def naming_cut_weights(run: RunConfig) -> Iterator[None]:
    """Names the partitioner in the error of a layer that cannot use the shards of its weights."""
    try:
        yield
    except Exception as error:  # of any kind: it is the layer's
        cause = error.__cause__ if isinstance(error, ConfigError) else error
        splits = run.cluster.has_parameter_servers and run.partitioner.splits
        if not splits or not any(text in str(cause) for text in _OF_CUT_WEIGHTS):
            raise
        found = _LAYER.search(str(cause))
        layer = f"the layer {found[1]}" if found else "a layer"
        message = (
            f"is {run.partitioner.kind}, which cuts weights that {layer} needs whole, as LSTM, SpectralNormalization "
            "and layers in half precision of tf-keras do, and lookups with tf-idf of Keras 3; set partitioner=none, or "
            "use the layer of the other Keras"
        )
        others = error.problems if isinstance(error, ConfigError) else ()
        raise ConfigError([Problem("partitioner", message), *others]) from cause


def check_separable(run: RunConfig, network: tf_keras.Model, placed: Iterable[Placed]) -> None:
    """Checks constraints and regularizers of variables that are cut into shards; calls them with random values.

    Raises:
      ConfigError: one needs all rows of a variable: its result differs from the result of the shards.
    """
    shapes = shapes_of_shards(placed)
    problems = []
    for text in _misused(network, shapes):
        problems.append(Problem("partitioner", f"is {run.partitioner.kind}, which cuts {text}"))
    if problems:
        raise ConfigError(problems)


def shapes_of_shards(placed: Iterable[Placed]) -> dict[str, Shapes]:
    """The shapes of the shards of each variable that has several, by its name."""
    numbers: dict[str, int] = {}
    wholes: dict[str, tuple[int, ...]] = {}
    for shard in placed:
        if shard.kind == "model":
            numbers[shard.variable] = max(numbers.get(shard.variable, 0), shard.shard + 1)
            wholes[shard.variable] = shard.variable_shape
    return {
        name: [(rows, *wholes[name][1:]) for rows in shard_rows(wholes[name][0], number)]
        for name, number in numbers.items()
        if number > 1
    }


def _misused(network: tf_keras.Model, shapes: dict[str, Shapes]) -> Iterator[str]:
    for variable in shards_of(variables_of(network)):
        name, number = split_name(variable.name)
        constraint = variable.constraint if name in shapes and number == 0 else None
        if constraint is not None and not _separable(constraint, shapes[name], lambda parts: tf.concat(parts, 0)):
            yield (
                f"{name}; its constraint {_name(constraint)} would be applied to each shard, but depends on all rows; "
                "set partitioner=none, or use a constraint of single rows (axis=1)"
            )
    for layer in layers_within(network):
        for attribute, regularizer in vars(layer).items():
            variable = vars(layer).get(attribute.removesuffix("_regularizer"))
            if regularizer is None or variable is regularizer or not hasattr(variable, "name"):
                continue
            name = name_of(variable)
            if name in shapes and not _separable(regularizer, shapes[name], tf.add_n):
                yield (
                    f"{name}; its regularizer {_name(regularizer)} would be computed for each shard, but depends on "
                    "all rows; set partitioner=none, or remove it"
                )


def _separable(function: Callable[[Any], Any], shapes: Shapes, joined: Callable[[list[Any]], Any]) -> bool:
    """Whether a function of the whole variable equals the joined results of its shards."""
    most = max(1, _MAX_VALUES // (len(shapes) * int(np.prod(shapes[0][1:]))))
    random = np.random.default_rng(0)
    for scale in _SCALES:
        parts = [scale * random.standard_normal((min(rows, most), *row)) for rows, *row in shapes]
        apart, whole = joined([_applied(function, part) for part in parts]), _applied(function, np.concatenate(parts))
        if not np.allclose(whole, apart, rtol=1e-3, atol=1e-5 * scale):
            return False
    return True


def _applied(function: Callable[[Any], Any], value: Any) -> Any:
    """The function of a variable of this process, as Keras calls it."""
    return tf.convert_to_tensor(function(tf.Variable(value, dtype=tf.float32)))


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def name_of_whole(variable: Any) -> str:
    """The name that the variable of a shard would have as one; for any other variable, its name."""
    name, _ = split_name(variable.name)
    return f"{name}:0"


def clipped(gradients: Sequence[Any], variables: Sequence[Any], clipnorm: float) -> list[Any]:
    """Gradients clipped as by Keras, one by one; the shards of a variable are clipped together, the tables of a stack
    one by one.

    Args:
      variables: of the gradients; their names tell shards.
    """
    seen: Counter[str] = Counter()
    members: dict[tuple[str, int], list[int]] = {}
    for index, variable in enumerate(variables):
        # Layers of the same name have variables of the same name: then the n-th of each shard belong together.
        members.setdefault((split_name(variable.name)[0], seen[variable.name]), []).append(index)
        seen[variable.name] += 1
    results = list(gradients)
    for indices in members.values():
        shards = [gradients[index] for index in indices]
        held = table_offsets(variables[indices[0]])
        if held is not None:
            shards = _clipped_by_table(shards, held, clipnorm)
        elif len(indices) == 1:
            shards = [tf.clip_by_norm(shards[0], clipnorm)]
        else:
            shards, _ = tf.clip_by_global_norm(shards, clipnorm)
        for index, shard in zip(indices, shards):
            results[index] = shard
    return results


def _clipped_by_table(gradients: Sequence[Any], held: TableOffsets, clipnorm: float) -> list[Any]:
    """Gradients of the shards of a stack, of which each table is clipped as a variable."""
    sparse = [tf.IndexedSlices(*_rows_of(gradient)) for gradient in gradients]
    tables = [tf.searchsorted(tf.constant(held.offsets), each.indices, side="right") - 1 for each in sparse]
    squares = [
        tf.math.unsorted_segment_sum(tf.reduce_sum(tf.square(each.values), -1), table, len(held.names))
        for each, table in zip(sparse, tables)
    ]
    norms = tf.sqrt(tf.add_n(squares))
    factors = clipnorm / tf.maximum(norms, clipnorm)
    results = []
    for gradient, each, table in zip(gradients, sparse, tables):
        values = each.values * tf.gather(factors, table)[:, tf.newaxis]
        is_sparse = isinstance(gradient, tf.IndexedSlices)
        results.append(tf.IndexedSlices(values, gradient.indices, gradient.dense_shape) if is_sparse else values)
    return results


def _rows_of(gradient: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """The rows of a gradient, and their int32 indices."""
    if isinstance(gradient, tf.IndexedSlices):
        return gradient.values, tf.cast(gradient.indices, tf.int32)
    return gradient, tf.range(tf.shape(gradient)[0])
