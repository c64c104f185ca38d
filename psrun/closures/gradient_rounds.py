"""Gradients that wait in a queue of each parameter server until those of a round are averaged and applied once."""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from psrun.closures.stage import Apply, Inputs, Stage
from psrun.errors import ConfigError, Problem
from psrun.program.compiled_model import Program
from psrun.tf_internals.cluster import being_scheduled

_HEAD = 2  # the first values of an element: round and slot


class GradientRounds(Stage):
    """Replaces the update of a step by a push of its gradients, and makes the update from those of several workers.

    Gradients never pass the chief. The optimizer clips, decays and updates as it would with the gradients of one large
    batch: the mean over the slots, in the order of the slots; rows of sparse gradients one after another.

    Raises:
      ConfigError: a worker has several replicas.
    """

    def __init__(self, program: Program) -> None:
        if program.distribution.strategy.num_replicas_in_sync > 1:
            message = "'sync' is not supported with several replicas per worker; set cluster.replicas_per_worker=1"
            raise ConfigError([Problem("consistency", message)])
        self._program = program
        self._name = f"psrun-{uuid.uuid4().hex}"  # parameter servers may outlive a chief and keep its queues
        self._queues: dict[str, _Queue] = {}
        self._head: tuple[tf.Tensor, ...] = ()
        self._num_pushes = 0

    def inputs(self) -> dict[str, tf.TensorSpec]:
        """The round, and the slot in it."""
        return {"round": tf.TensorSpec([], tf.int64), "slot": tf.TensorSpec([], tf.int64)}

    def begin(self, inputs: Inputs) -> None:
        self._head = inputs["round"], inputs["slot"]
        self._num_pushes = 0

    def end(self, inputs: Inputs) -> None:
        """Raises ConfigError if the step does not update exactly once."""
        if self._num_pushes != 1:
            message = f"'sync' requires a step that applies gradients once; this one applies {self._num_pushes} times"
            raise ConfigError([Problem("consistency", message)])

    def gradients(self, apply: Apply) -> Apply:
        def push(grads_and_vars: Any, *arguments: Any, **options: Any) -> Any:
            self._push(list(grads_and_vars))
            return self._program.optimizer.iterations

        return push

    def _push(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> None:
        by_server: dict[str, list[tuple[Any, Any]]] = {}
        for gradient, variable in grads_and_vars:
            if gradient is not None:
                by_server.setdefault(variable.device, []).append((gradient, variable))
        self._num_pushes += 1
        self._queues = {server: _Queue(server, self._name, pairs) for server, pairs in by_server.items()}
        for server, pairs in by_server.items():
            self._queues[server].push(self._head, pairs)

    def apply_function(self) -> Any:
        """A function of a round and its slots, shape (slots,) and sorted, that updates from the gradients of these.

        All of them must have been pushed. Those of earlier rounds, those that are no such slot, and those that are
        pushed again because a worker was lost are dropped.
        """
        program = self._program
        strategy = program.distribution.strategy

        def replica(number: tf.Tensor, slots: tf.Tensor) -> None:
            pairs = []
            for server, queue in self._queues.items():
                with tf.device(server):
                    pairs += queue.take(number, slots)
            program.optimizer.apply_gradients(pairs)

        @tf.function
        def apply(number: tf.Tensor, slots: tf.Tensor) -> None:
            with being_scheduled(strategy):
                strategy.run(replica, args=(number, slots))

        with strategy.scope():
            return apply.get_concrete_function(tf.TensorSpec([], tf.int64), tf.TensorSpec([None], tf.int64))


class _Queue:
    """The gradients of the variables of one parameter server."""

    def __init__(self, server: str, name: str, grads_and_vars: Sequence[tuple[Any, Any]]) -> None:
        self._name = f"{name}-{server}"
        self._sparse = [variable for gradient, variable in grads_and_vars if isinstance(gradient, tf.IndexedSlices)]
        self._dense: dict[tf.DType, list[Any]] = {}
        for gradient, variable in grads_and_vars:
            if not isinstance(gradient, tf.IndexedSlices):
                self._dense.setdefault(gradient.dtype, []).append(variable)
        self._server = server
        # What an element has after its head: of dense gradients all values of a type, of sparse ones values and rows.
        self._parts: list[tuple[tf.DType, list[int | None]]] = [
            (dtype, [sum(math.prod(each.shape) for each in variables)]) for dtype, variables in self._dense.items()
        ]
        slices = [gradient for gradient, _ in grads_and_vars if isinstance(gradient, tf.IndexedSlices)]
        for gradient, variable in zip(slices, self._sparse):
            self._parts += [(gradient.values.dtype, [None, *variable.shape[1:]]), (gradient.indices.dtype, [None])]

    @property
    def _types(self) -> list[tf.DType]:
        return [tf.int64] * _HEAD + [dtype for dtype, _ in self._parts]

    def _handle(self) -> tf.Tensor:
        """The queue, created by its first use on the server."""
        return tf.raw_ops.FIFOQueueV2(component_types=self._types, shapes=[], capacity=-1, shared_name=self._name)

    def push(self, head: Sequence[tf.Tensor], grads_and_vars: Sequence[tuple[Any, Any]]) -> None:
        values: list[tf.Tensor] = []
        for dtype in self._dense:
            own = [gradient for gradient, _ in grads_and_vars if not isinstance(gradient, tf.IndexedSlices)]
            values.append(tf.concat([tf.reshape(each, [-1]) for each in own if each.dtype == dtype], 0))
        for gradient, variable in grads_and_vars:
            if isinstance(gradient, tf.IndexedSlices):
                values += [tf.reshape(gradient.values, [-1, *variable.shape[1:]]), gradient.indices]
        with tf.device(self._server):
            tf.raw_ops.QueueEnqueueV2(handle=self._handle(), components=[*head, *values])

    def take(self, number: tf.Tensor, slots: tf.Tensor) -> list[tuple[Any, Any]]:
        """The mean gradients of a round; call on the server."""
        num_slots = tf.size(slots)
        arrays = [
            tf.TensorArray(dtype, num_slots, infer_shape=False, element_shape=shape) for dtype, shape in self._parts
        ]
        state = (tf.zeros_like(slots, tf.bool), *arrays)
        _, *arrays = tf.while_loop(
            lambda seen, *_: tf.logical_not(tf.reduce_all(seen)),
            lambda *state: self._take_one(number, slots, *state),
            state,
            parallel_iterations=1,
        )
        count, parts = tf.cast(num_slots, tf.float32), iter(arrays)
        pairs: list[tuple[Any, Any]] = []
        for dtype, variables in self._dense.items():
            mean = tf.reduce_sum(next(parts).stack(), 0) / tf.cast(count, dtype)
            sizes = [math.prod(variable.shape) for variable in variables]
            pairs += [
                (tf.reshape(each, variable.shape), variable) for each, variable in zip(tf.split(mean, sizes), variables)
            ]
        for variable in self._sparse:
            values, rows = next(parts).concat(), next(parts).concat()
            shape = tf.constant(variable.shape.as_list(), rows.dtype)
            pairs.append((tf.IndexedSlices(values / tf.cast(count, values.dtype), rows, shape), variable))
        return pairs

    def _take_one(self, number: tf.Tensor, slots: tf.Tensor, seen: tf.Tensor, *arrays: Any) -> tuple[Any, ...]:
        its_round, slot, *values = tf.raw_ops.QueueDequeueV2(handle=self._handle(), component_types=self._types)
        its_round, slot = tf.ensure_shape(its_round, []), tf.ensure_shape(slot, [])
        values = [tf.ensure_shape(value, shape) for value, (_, shape) in zip(values, self._parts)]
        place = tf.equal(slots, slot)
        wanted = tf.equal(its_round, number) & tf.reduce_any(place & ~seen)
        index = tf.argmax(tf.cast(place, tf.int32), output_type=tf.int32)

        def keep() -> tuple[Any, ...]:
            return (seen | place, *(array.write(index, value) for array, value in zip(arrays, values)))

        return tf.cond(wanted, keep, lambda: (seen, *arrays))
