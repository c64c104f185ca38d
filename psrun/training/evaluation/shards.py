"""Splits evaluation data into shards; one closure on a worker reads a shard and runs the model on it.

A shard is a number of consecutive batches. Its closure returns plain values and changes no variable, so that it can run
again elsewhere if its worker is lost: each example counts exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from psrun.closures.training_closures import InFlightClosures
from psrun.program.compiled_model import Program
from psrun.program.zeros import any_number, spec_of

_IN_FLIGHT_PER_WORKER = 2
# Enough that a fast worker finds more work, and little work is repeated when a worker is lost.
SHARDS_PER_WORKER = 4


class Shards:
    """Runs a function over the evaluation data of a program on its workers, when no step runs.

    Args:
      num_shards: at most the number of batches.
      dataset: `evaluation_dataset` or `measured_dataset` of the program.
      of_batch: a function of a batch that returns a nest of tensors with the examples along the first axis.

    Attributes:
      spec: of the result of `of_batch`, for any number of examples.
    """

    def __init__(
        self,
        program: Program,
        num_shards: int,
        of_batch: Callable[[Any], Any],
        dataset: Callable[..., tf.data.Dataset],
    ) -> None:
        distribution = program.distribution
        assert distribution.coordinator is not None
        self._program = program
        self._dataset = dataset
        self._coordinator = distribution.coordinator
        self._num_shards = num_shards
        self._of_batch = of_batch
        # Traced now, and concrete, because `schedule` would trace again in the strategy's scope: a trace is sent to all
        # workers under Python's GIL, and a hung or unreachable worker would stop every thread of this process.
        self.spec: Any = None
        self._closure = tf.function(self._over_shard).get_concrete_function(tf.TensorSpec([], tf.int64))

    def results(self) -> Iterator[Any]:
        """The results of `of_batch` as arrays, shard by shard, in the order of the examples.

        Few shards are in flight at a time, which bounds the memory for results.

        Raises:
          tf.errors.OpError: a parameter server was lost, or the data cannot be read.
        """
        in_flight = InFlightClosures(self._program.distribution, _IN_FLIGHT_PER_WORKER, in_order=True)
        for index in range(self._num_shards):
            for result in in_flight.add(
                self._coordinator.schedule(self._closure, args=(tf.constant(index, tf.int64),))
            ):
                yield self._assembled(result.fetch())
        for result in in_flight.rest():
            yield self._assembled(result.fetch())

    def _over_shard(self, index: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """The parts of all values of a shard; runs on a worker."""
        dataset = self._dataset(shard=(index, self._num_shards))
        outputs = tf.function(self._of_batch).get_concrete_function(dataset.element_spec).structured_outputs
        self.spec = tf.nest.map_structure(lambda value: any_number(spec_of(value)), outputs)
        iterator = iter(dataset)

        def add(batch: Any, num_batches: tf.Tensor, arrays: Any) -> tuple[Any, tf.Tensor, Any]:
            parts = [part for value in tf.nest.flatten(self._of_batch(batch.get_value())) for part in _parts(value)]
            written = tuple(array.write(num_batches, part) for array, part in zip(arrays, parts))
            return iterator.get_next_as_optional(), num_batches + 1, written

        # Not a loop in Python: where AutoGraph cannot convert it, it goes on adding operations to the graph for ever.
        arrays = tuple(_array(spec) for value in tf.nest.flatten(self.spec) for spec in _part_specs(value))
        begin = (iterator.get_next_as_optional(), tf.constant(0), arrays)
        *_, arrays = tf.while_loop(lambda batch, *_: batch.has_value(), add, begin)
        return tuple(array.concat() for array in arrays)

    def _assembled(self, parts: Sequence[Any]) -> Any:
        """The values of a shard from their parts."""
        remaining = iter(parts)

        def value(spec: tf.TypeSpec) -> Any:
            values = next(remaining)
            if not isinstance(spec, tf.RaggedTensorSpec):
                return values
            return tf.RaggedTensor.from_nested_row_lengths(values, [next(remaining) for _ in range(spec.ragged_rank)])

        return tf.nest.map_structure(value, self.spec)


def _parts(value: Any) -> list[tf.Tensor]:
    """The tensors of a value, which the parts of several batches are put together of, one behind the other."""
    if isinstance(value, tf.RaggedTensor):
        return [value.flat_values, *value.nested_row_lengths()]
    return [value]


def _part_specs(spec: Any) -> list[tf.TensorSpec]:
    if isinstance(spec, tf.RaggedTensorSpec):
        lengths = [tf.TensorSpec([None], spec.row_splits_dtype)] * spec.ragged_rank
        return [tf.TensorSpec([None, *spec.shape[spec.ragged_rank + 1 :]], spec.dtype), *lengths]
    return [spec]


def _array(batch: tf.TensorSpec) -> tf.TensorArray:
    """Selects the batches of a shard, of any size."""
    shape = [None, *batch.shape[1:]]
    return tf.TensorArray(batch.dtype, size=0, dynamic_size=True, infer_shape=False, element_shape=shape)
