"""How parameter servers apply the gradients of steps: step by step, each counted, or several in one update.

An execution of a lost worker runs again on another one. The counts tell where it goes on, so that
no step is applied twice. A server counts a step behind its updates of this step, without a message:
a step whose worker is lost before all servers have its gradients is applied by some of them. Such a
step is cut; the others get it later.

Gradients of which several make an update wait in a queue of each parameter server until they are averaged and applied
once.
"""

from __future__ import annotations

import contextlib
import math
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from psrun.closures.stage import Apply, Inputs, Stage, Step
from psrun.cluster import placement
from psrun.errors import ConfigError, Problem
from psrun.program.compiled_model import Program
from psrun.tf_internals import keras
from psrun.tf_internals.coordinator import being_scheduled, has_ended
from psrun.tf_internals.strategies import num_parameter_servers
from psrun.tf_internals.tracing import operations

# A server may still be at work on gradients that have arrived when the chief learns that their worker is lost. Counts
# are read until they stay the same for this time, or for two steps if that is longer.
_SETTLED_S = 0.5
_MOST_READS = 20
# Operations with a state that change no variable. Gradients that wait in a queue may be pushed twice.
_NO_UPDATES = (
    "FIFOQueueV2", "QueueEnqueueV2", "ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarHandleOp",
)  # fmt: skip


@dataclass
class Execution:
    """An execution in flight.

    Attributes:
      slot: the place of its counts.
      before: the count of each server when none of its steps was applied.
      servers: those that apply it, where it completes a step that the others have applied; None for all.
    """

    slot: int
    num_steps: int
    before: dict[int, int]
    servers: Collection[int] | None = None
    _scheduled: Any = field(default=None, init=False, repr=False)

    def follow(self, scheduled: Any) -> None:
        """Call with its remote value when it is scheduled."""
        self._scheduled = scheduled

    @property
    def has_ended(self) -> bool:
        return self._scheduled is not None and has_ended(self._scheduled)

    def begin_at(self, step: int, applied: Mapping[int, int]) -> None:
        """Leaves out the first steps, of which each server has applied so many: the counts begin anew at `step`."""
        for task, number in applied.items():
            self.before[task] += number - step

    @property
    def after(self) -> dict[int, int]:
        """The count of each server when all of its steps are applied."""
        counts = dict(self.before)
        servers = counts if self.servers is None else self.servers
        for task in servers:
            counts[task] += self.num_steps
        return counts


class AppliedSteps(Stage):
    """The counts of all executions in flight of one kind of step.

    Args:
      most: maximum number of executions in flight.
      is_plain: whether the step is Keras' own, which updates outside of functions, branches and loops.
      runs_whole: whether an execution of a lost worker runs again as a whole: servers that have applied it are an input
        of the closure, and do not update rows of tables again.
    """

    def __init__(self, program: Program, most: int, *, is_plain: bool, runs_whole: bool = False) -> None:
        self._is_plain = is_plain
        self._runs_whole = runs_whole
        self._have_applied: Any = None
        self._uncounted: dict[int, int] = {}  # steps of a closure in which a server did not update yet
        self._counts: list[Any] = []
        with program.distribution.strategy.scope():
            num_servers = num_parameter_servers()
        for task in range(num_servers):
            with tf.device(placement.server_device(task)):
                self._counts.append(tf.Variable(tf.zeros([2 * most], tf.int32), trainable=False))
        self._in_slot: list[Execution | None] = [None] * (2 * most)
        self._next = 0
        self._updating: set[int] = set()  # servers
        self._slot: Any = None
        self._skipped: Collection[int] = ()
        self._gates = program.distribution.strategy.num_replicas_in_sync == 1

    # -- in a closure

    @contextlib.contextmanager
    def skipping(self, servers: Collection[int]) -> Iterator[None]:
        """These servers do not apply the steps that are traced in this context."""
        self._skipped = servers
        try:
            yield
        finally:
            self._skipped = ()

    def inputs(self) -> dict[str, tf.TensorSpec]:
        """The slot of an execution's counts, and the servers that have applied it already."""
        specs = {"counts": tf.TensorSpec([], tf.int32)}
        if self._runs_whole:
            specs["have_applied"] = tf.TensorSpec([len(self._counts)], tf.bool)
        return specs

    def begin(self, inputs: Inputs) -> None:
        self._slot = inputs["counts"]
        self._have_applied = inputs.get("have_applied")

    def unrolled(self, num_steps: int) -> contextlib.AbstractContextManager[None]:
        self._uncounted = {}
        return contextlib.nullcontext()

    def around(self, step: Step) -> Step:
        """The servers count a step when they have applied it."""

        def counted(batch: Any) -> Any:
            num_before = len(operations())
            outputs = step(batch)
            self._count(operations(num_before))
            return outputs

        return counted

    def update(self, apply: Apply) -> Apply:
        def update(grads_and_vars: Any, *arguments: Any, **options: Any) -> Any:
            if self._gates:
                grads_and_vars = self._arrived(grads_and_vars)
            return apply(grads_and_vars, *arguments, **options)

        return update

    def _arrived(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """The gradients that are applied. A server applies the first when it has all of a step.

        Thus a lost worker does not leave a server with a part of a step.
        """
        pairs: list[tuple[Any, Any]] = []
        for server, own in _by_server(grads_and_vars).items():
            if _task(server) in self._skipped:
                continue
            parts = [part for gradient, _ in own for part in _parts(gradient)]
            if len(parts) > 1:
                with tf.device(server):
                    parts = tf.raw_ops.IdentityN(input=parts)  # runs when the last one is there
            gated = iter(parts)
            for gradient, variable in own:
                if isinstance(gradient, tf.IndexedSlices):
                    values, indices = next(gated), next(gated)
                    if self._have_applied is not None:
                        with tf.device(server):
                            num_rows = tf.where(self._have_applied[_task(server)], 0, tf.shape(indices)[0])
                            values, indices = values[:num_rows], indices[:num_rows]
                    gradient = tf.IndexedSlices(values, indices, gradient.dense_shape)
                else:
                    gradient = next(gated)
                pairs.append((gradient, variable))
        return pairs

    def _count(self, of_step: Sequence[tf.Operation]) -> None:
        """Counts a step of these operations."""
        writes = _writes(of_step, len(self._counts), is_plain=self._is_plain)
        for task in self.servers.difference(writes):
            self._uncounted[task] = self._uncounted.get(task, 0) + 1  # with `dense_sync_every` it has the step later
        if not self._skipped:
            self._updating.update(writes)
        for task, changes in writes.items():
            if task in self._skipped:
                continue
            number: Any = 1 + self._uncounted.pop(task, 0)
            if self._have_applied is not None:
                number = tf.where(self._have_applied[task], 0, number)
            with tf.device(placement.server_device(task)), tf.control_dependencies(changes):
                tf.raw_ops.ResourceScatterAdd(resource=self._counts[task].handle, indices=self._slot, updates=number)

    # -- on the chief

    @property
    def servers(self) -> frozenset[int]:
        """All parameter servers."""
        return frozenset(range(len(self._counts)))

    def claim(self, num_steps: int, servers: Collection[int] | None = None) -> Execution:
        """A slot for an execution. Call its `follow` at once; the slot is free again when it has ended."""
        self._next = self._free_slot()
        last = self._in_slot[self._next]
        before = dict.fromkeys(range(len(self._counts)), 0)
        if last is not None:
            before = last.after
        execution = Execution(self._next, num_steps, before, servers)
        self._in_slot[self._next] = execution
        return execution

    def _free_slot(self) -> int:
        """The next slot, in turn, without an execution in flight."""
        num_slots = len(self._in_slot)
        for offset in range(1, num_slots + 1):
            slot = (self._next + offset) % num_slots
            last = self._in_slot[slot]
            if last is None or last.has_ended:
                return slot
        raise AssertionError("more executions are in flight than there may be")

    def done(self, execution: Execution, step_s: float) -> dict[int, int]:
        """How many steps of an execution of a lost worker each server has applied.

        Args:
          step_s: seconds that a step takes.

        Raises:
          tf.errors.OpError: a parameter server does not answer.
        """
        servers = self._updating if execution.servers is None else execution.servers
        counts: dict[int, int] = {}
        for _ in range(_MOST_READS):
            before = counts
            counts = {task: int(self._counts[task][execution.slot].numpy()) for task in servers}
            if counts == before:
                break
            time.sleep(max(_SETTLED_S, 2 * step_s))
        applied: dict[int, int] = {}
        for task, count in counts.items():
            applied[task] = min(max(count - execution.before[task], 0), execution.num_steps)
        return applied


def _by_server(grads_and_vars: Iterable[tuple[Any, Any]]) -> dict[str, list[tuple[Any, Any]]]:
    """The pairs that have a gradient, by the device of the variable."""
    by_server: dict[str, list[tuple[Any, Any]]] = {}
    for gradient, variable in grads_and_vars:
        if gradient is not None:
            by_server.setdefault(variable.device, []).append((gradient, variable))
    return by_server


def _task(device: str) -> int | None:
    """The index of a parameter server; None if the device is not one."""
    job, _, index = placement.task_of(device).partition("-")
    return int(index) if job == "ps" else None


def _parts(gradient: Any) -> list[tf.Tensor]:
    """What is sent of a gradient."""
    if isinstance(gradient, tf.IndexedSlices):
        return [gradient.values, gradient.indices]
    return [gradient]


def _writes(of_step: Sequence[tf.Operation], num_servers: int, *, is_plain: bool) -> dict[int, list[tf.Operation]]:
    """The operations of a step that change variables, by server.

    If a step may have updates in a function, a branch or a loop, each server waits for all that has variables.
    """
    stateful = [each for each in of_step if each.op_def.is_stateful and each.type not in _NO_UPDATES]
    writes: dict[int, list[tf.Operation]] = {}
    for operation in stateful:
        task = _task(operation.device)
        if task is not None:
            writes.setdefault(task, []).append(operation)
    if is_plain and writes:
        return writes
    within = [operation for operation in stateful if _may_write(operation)]
    return {task: [*writes.get(task, ()), *within] for task in (writes or range(num_servers))}


def _may_write(operation: tf.Operation) -> bool:
    """Whether an operation that runs on no server has variables: a function, a branch or a loop."""
    if _task(operation.device) is not None:
        return False
    return any(tensor.dtype == tf.resource for tensor in operation.inputs)


def require_separable(program: Program) -> None:
    """Raises ConfigError if the optimizer needs the gradients of rows and of dense weights together."""
    if keras.clips_by_global_norm(program.optimizer):
        mode = program.config.consistency.kind
        why = f"is not supported with '{mode}', which never has all gradients of a batch together"
        raise ConfigError([Problem("optimizer.global_clipnorm", f"{why}; use clipnorm")])


def rows_and_dense(
    grads_and_vars: Sequence[tuple[Any, Any]], mode: str
) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
    """The gradients of rows of tables, and the others.

    Raises:
      ConfigError: there are no rows, which the consistency mode is for.
    """
    rows: list[tuple[Any, Any]] = []
    dense: list[tuple[Any, Any]] = []
    for gradient, variable in grads_and_vars:
        pairs = rows if isinstance(gradient, tf.IndexedSlices) else dense
        pairs.append((gradient, variable))
    if not rows:
        message = f"'{mode}' requires a model that looks up rows of tables, which this one does not"
        raise ConfigError([Problem("consistency", f"{message}; choose gba or sync")])
    return rows, dense


class GradientQueue(Stage):
    """Replaces the update of a step by a push of its gradients; the gradients of several steps make an update.

    Gradients never pass the chief. The optimizer clips, decays and updates as it would with the gradients of one large
    batch: the mean over the gradients, in the order of their numbers; rows of sparse gradients one after another.

    Args:
      has_weights: whether gradients have other weights than 1.
      only_dense: whether the step updates rows of tables itself. They do not count as updates of the optimizer.

    Raises:
      ConfigError: a worker has several replicas.
    """

    def __init__(self, program: Program, *, has_weights: bool = False, only_dense: bool = False) -> None:
        self._mode = program.config.consistency.kind
        if program.distribution.strategy.num_replicas_in_sync > 1:
            message = f"'{self._mode}' is not supported with several replicas per worker"
            raise ConfigError([Problem("consistency", f"{message}; set cluster.replicas_per_worker=1")])
        if only_dense:
            require_separable(program)
        self._program = program
        self._has_weights = has_weights
        self._only_dense = only_dense
        self._name = f"psrun-{uuid.uuid4().hex}"  # parameter servers may outlive a chief and keep its queues
        self._queues: dict[str, _Queue] = {}
        self._number: Any = None
        self._num_pushes = 0

    def inputs(self) -> dict[str, tf.TensorSpec]:
        """The number of the gradient."""
        return {"gradient": tf.TensorSpec([], tf.int64)}

    def begin(self, inputs: Inputs) -> None:
        self._number = inputs["gradient"]
        self._num_pushes = 0

    def end(self, inputs: Inputs) -> None:
        """Raises ConfigError if the step does not update exactly once."""
        if self._num_pushes != 1:
            message = f"'{self._mode}' requires a step that applies gradients once"
            raise ConfigError([Problem("consistency", f"{message}; this one applies {self._num_pushes} times")])

    def gradients(self, apply: Apply) -> Apply:
        def push(grads_and_vars: Any, *arguments: Any, **options: Any) -> Any:
            pairs = list(grads_and_vars)
            iterations = self._program.optimizer.iterations
            if self._only_dense:
                rows, pairs = rows_and_dense(pairs, self._mode)
                apply(rows, *arguments, **options)
                iterations.assign_sub(1)
            self._push(pairs)
            return iterations

        return push

    def _push(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> None:
        by_server = _by_server(grads_and_vars)
        self._num_pushes += 1
        self._queues = {server: _Queue(server, self._name, pairs) for server, pairs in by_server.items()}
        for server, pairs in by_server.items():
            self._queues[server].push(self._number, pairs)

    def apply_function(self) -> Any:
        """A function that updates from gradients that have been pushed.

        It takes the numbers of the gradients, shape (gradients,) and sorted; the numbers of the gradients that a later
        update may have, shape (any,); and the weights of the gradients, shape (gradients,). All other gradients are
        dropped, and gradients that were pushed again because a worker was lost.
        """
        program = self._program
        strategy = program.distribution.strategy

        def replica(numbers: tf.Tensor, pending: tf.Tensor, weights: tf.Tensor) -> None:
            pairs = []
            for server, queue in self._queues.items():
                with tf.device(server):
                    pairs += queue.take(numbers, pending, weights if self._has_weights else None)
            program.optimizer.apply_gradients(pairs)

        @tf.function
        def apply(numbers: tf.Tensor, pending: tf.Tensor, weights: tf.Tensor) -> None:
            with being_scheduled(strategy):
                strategy.run(replica, args=(numbers, pending, weights))

        several = tf.TensorSpec([None], tf.int64)
        with strategy.scope():
            return apply.get_concrete_function(several, several, tf.TensorSpec([None], tf.float32))


class _Queue:
    """The gradients of the variables of one parameter server."""

    def __init__(self, server: str, name: str, grads_and_vars: Sequence[tuple[Any, Any]]) -> None:
        self._server = server
        self._name = f"{name}-{server}"
        self._dense: dict[tf.DType, list[Any]] = {}
        self._sparse: list[Any] = []
        slices: list[tuple[tf.DType, list[int | None]]] = []
        for gradient, variable in grads_and_vars:
            if isinstance(gradient, tf.IndexedSlices):
                self._sparse.append(variable)
                slices.append((gradient.values.dtype, [None, *variable.shape[1:]]))
                slices.append((gradient.indices.dtype, [None]))
            else:
                self._dense.setdefault(gradient.dtype, []).append(variable)
        # What an element has after its head: of dense gradients all values of a type, of sparse ones values and rows.
        self._parts: list[tuple[tf.DType, list[int | None]]] = []
        for dtype, variables in self._dense.items():
            num_values = sum(math.prod(variable.shape) for variable in variables)
            self._parts.append((dtype, [num_values]))
        self._parts += slices

    @property
    def _types(self) -> list[tf.DType]:
        return [tf.int64, *(dtype for dtype, _ in self._parts)]

    def _handle(self) -> tf.Tensor:
        """The queue, created by its first use on the server."""
        return tf.raw_ops.FIFOQueueV2(component_types=self._types, shapes=[], capacity=-1, shared_name=self._name)

    def push(self, number: tf.Tensor, grads_and_vars: Sequence[tuple[Any, Any]]) -> None:
        dense: dict[tf.DType, list[tf.Tensor]] = {}
        slices: list[tf.Tensor] = []
        for gradient, variable in grads_and_vars:
            if isinstance(gradient, tf.IndexedSlices):
                slices.append(tf.reshape(gradient.values, [-1, *variable.shape[1:]]))
                slices.append(gradient.indices)
            else:
                dense.setdefault(gradient.dtype, []).append(tf.reshape(gradient, [-1]))
        values = [tf.concat(dense[dtype], 0) for dtype in self._dense]
        with tf.device(self._server):
            self._enqueue([number, *values, *slices])

    def _enqueue(self, element: Sequence[tf.Tensor]) -> None:
        tf.raw_ops.QueueEnqueueV2(handle=self._handle(), components=element)

    def take(self, numbers: tf.Tensor, pending: tf.Tensor, weights: tf.Tensor | None) -> list[tuple[Any, Any]]:
        """The mean of the gradients with these numbers; call on the server. The arguments are of `apply_function`."""
        num_gradients = tf.size(numbers)
        arrays = []
        for dtype, shape in self._parts:
            arrays.append(tf.TensorArray(dtype, num_gradients, infer_shape=False, element_shape=shape))
        state = (tf.zeros_like(numbers, tf.bool), *arrays)
        _, *arrays = tf.while_loop(
            lambda seen, *_: tf.logical_not(tf.reduce_all(seen)),
            lambda *state: self._take_one(numbers, pending, weights, *state),
            state,
            parallel_iterations=1,
        )
        count = tf.cast(num_gradients, tf.float32)
        parts = iter(arrays)
        pairs: list[tuple[Any, Any]] = []
        for dtype, variables in self._dense.items():
            mean = tf.reduce_sum(next(parts).stack(), 0) / tf.cast(count, dtype)
            sizes = [math.prod(variable.shape) for variable in variables]
            for part, variable in zip(tf.split(mean, sizes), variables):
                pairs.append((tf.reshape(part, variable.shape), variable))
        for variable in self._sparse:
            values = next(parts).concat()
            rows = next(parts).concat()
            shape = tf.constant(variable.shape.as_list(), rows.dtype)
            mean = tf.IndexedSlices(values / tf.cast(count, values.dtype), rows, shape)
            pairs.append((mean, variable))
        return pairs

    def _take_one(
        self,
        numbers: tf.Tensor,
        pending: tf.Tensor,
        weights: tf.Tensor | None,
        seen: tf.Tensor,
        *arrays: Any,
    ) -> tuple[Any, ...]:
        number, *values = tf.raw_ops.QueueDequeueV2(handle=self._handle(), component_types=self._types)
        number = tf.ensure_shape(number, [])
        values = [tf.ensure_shape(value, shape) for value, (_, shape) in zip(values, self._parts)]
        place = tf.equal(numbers, number)
        index = tf.argmax(tf.cast(place, tf.int32), output_type=tf.int32)

        def keep() -> tuple[Any, ...]:
            written = []
            for array, value in zip(arrays, values):
                if weights is not None and value.dtype.is_floating:
                    value = value * tf.cast(weights[index], value.dtype)
                written.append(array.write(index, value))
            return (seen | place, *written)

        def leave() -> tuple[Any, ...]:
            is_pending = tf.reduce_any(tf.equal(pending, number))
            tf.cond(is_pending, lambda: self._enqueue([number, *values]), lambda: None)
            return (seen, *arrays)

        return tf.cond(tf.reduce_any(place & ~seen), keep, leave)
