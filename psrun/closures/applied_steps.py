"""Counts, on the parameter servers, which steps of an execution they have applied.

An execution of a lost worker runs again on another one. The counts tell where it goes on, so that no step is applied
twice. A server counts a step behind its updates of this step, without a message: a step whose worker is lost before all
servers have its gradients is applied by some of them. Such a step is cut; the others get it later.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from psrun.closures.stage import Apply, Inputs, Stage, Step
from psrun.cluster import placement
from psrun.program.compiled_model import Program
from psrun.tf_internals.closure_queue import has_ended
from psrun.tf_internals.cluster import num_parameter_servers

# A server may still be at work on gradients that have arrived when the chief learns that their worker is lost. Counts
# are read until they stay the same for this time, or for two steps if that is longer.
_SETTLED_S = 0.5
_MOST_READS = 20
_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarHandleOp")


@dataclass
class Execution:
    """An execution in flight.

    Attributes:
      slot: the place of its counts.
      before: the count of each server when none of its steps was applied.
      servers: those that apply it, where it completes a step that the others have applied; None for all.
      scheduled: its remote value.
    """

    slot: int
    num_steps: int
    before: dict[int, int]
    servers: Collection[int] | None = None
    scheduled: Any = field(default=None, repr=False)


class AppliedSteps(Stage):
    """The counts of all executions in flight of one kind of step.

    Args:
      most: maximum number of executions in flight.
      is_plain: whether the step is that of Keras, which updates outside of functions, branches and loops.

    Attributes:
      skipped: servers that do not apply the steps that are traced.
    """

    def __init__(self, program: Program, most: int, *, is_plain: bool) -> None:
        self._is_plain = is_plain
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
        self.skipped: Collection[int] = ()
        self._gates = program.distribution.strategy.num_replicas_in_sync == 1

    # -- in a closure

    def inputs(self) -> dict[str, tf.TensorSpec]:
        """The slot of an execution's counts."""
        return {"counts": tf.TensorSpec([], tf.int32)}

    def begin(self, inputs: Inputs) -> None:
        self._slot = inputs["counts"]

    def unrolled(self, num_steps: int) -> contextlib.AbstractContextManager[None]:
        self._uncounted = {}
        return contextlib.nullcontext()

    def around(self, step: Step) -> Step:
        """The servers count a step when they have applied it."""

        def counted(batch: Any) -> Any:
            num_before = len(_operations())
            outputs = step(batch)
            self._count(_operations()[num_before:])
            return outputs

        return counted

    def update(self, apply: Apply) -> Apply:
        def update(grads_and_vars: Any, *arguments: Any, **options: Any) -> Any:
            return apply(self._arrived(grads_and_vars) if self._gates else grads_and_vars, *arguments, **options)

        return update

    def _arrived(self, grads_and_vars: Sequence[tuple[Any, tf.Variable]]) -> list[tuple[Any, tf.Variable]]:
        """The gradients that are applied. A server applies the first when it has all of a step.

        Thus a lost worker does not leave a server with a part of a step.
        """
        by_server: dict[str, list[tuple[Any, tf.Variable]]] = {}
        for gradient, variable in grads_and_vars:
            if gradient is not None and _task(variable.device) not in self.skipped:
                by_server.setdefault(variable.device, []).append((gradient, variable))
        pairs: list[tuple[Any, tf.Variable]] = []
        for server, own in by_server.items():
            parts = [part for gradient, _ in own for part in _parts(gradient)]
            if len(parts) > 1:
                with tf.device(server):
                    parts = tf.raw_ops.IdentityN(input=parts)  # runs when the last one is there
            gated = iter(parts)
            for gradient, variable in own:
                if isinstance(gradient, tf.IndexedSlices):
                    gradient = tf.IndexedSlices(next(gated), next(gated), gradient.dense_shape)
                else:
                    gradient = next(gated)
                pairs.append((gradient, variable))
        return pairs

    def _count(self, operations: Sequence[tf.Operation]) -> None:
        """Counts a step of these operations."""
        writes = _writes(operations, len(self._counts), is_plain=self._is_plain)
        for task in self.servers.difference(writes):
            self._uncounted[task] = self._uncounted.get(task, 0) + 1  # with `dense_sync_every` it has the step later
        if not self.skipped:
            self._updating.update(writes)
        for task, operations in writes.items():
            if task in self.skipped:
                continue
            number = 1 + self._uncounted.pop(task, 0)
            with tf.device(placement.server_device(task)), tf.control_dependencies(operations):
                tf.raw_ops.ResourceScatterAdd(resource=self._counts[task].handle, indices=self._slot, updates=number)

    # -- on the chief

    @property
    def servers(self) -> frozenset[int]:
        """All parameter servers."""
        return frozenset(range(len(self._counts)))

    def claim(self, num_steps: int, servers: Collection[int] | None = None) -> Execution:
        """A slot for an execution. Set its `scheduled` at once; the slot is free again when that has ended."""
        for _ in self._in_slot:
            self._next = (self._next + 1) % len(self._in_slot)
            last = self._in_slot[self._next]
            if last is None or (last.scheduled is not None and has_ended(last.scheduled)):
                break
        else:
            raise AssertionError("more executions are in flight than there may be")
        before = dict.fromkeys(range(len(self._counts)), 0) if last is None else self._after(last)
        execution = Execution(self._next, num_steps, before, servers)
        self._in_slot[self._next] = execution
        return execution

    def _after(self, last: Execution) -> dict[int, int]:
        """The counts of a slot when an execution has ended."""
        servers = last.before if last.servers is None else last.servers
        return {task: count + last.num_steps * (task in servers) for task, count in last.before.items()}

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
        return {
            task: min(max(count - execution.before[task], 0), execution.num_steps) for task, count in counts.items()
        }


def _task(device: str) -> int | None:
    """The index of a parameter server; None if the device is not one."""
    job, _, index = placement.task_of(device).partition("-")
    return int(index) if job == "ps" else None


def _parts(gradient: Any) -> list[tf.Tensor]:
    """What is sent of a gradient."""
    return [gradient.values, gradient.indices] if isinstance(gradient, tf.IndexedSlices) else [gradient]


def _operations() -> list[tf.Operation]:
    return tf.compat.v1.get_default_graph().get_operations()


def _writes(operations: Sequence[tf.Operation], num_servers: int, *, is_plain: bool) -> dict[int, list[tf.Operation]]:
    """The operations of a step that change variables, by server.

    If a step may have updates in a function, a branch or a loop, each server waits for all that has variables.
    """
    stateful = [each for each in operations if each.op_def.is_stateful and each.type not in _READS]
    writes: dict[int, list[tf.Operation]] = {}
    for operation in stateful:
        task = _task(operation.device)
        if task is not None:
            writes.setdefault(task, []).append(operation)
    if is_plain and writes:
        return writes
    within = [
        each
        for each in stateful
        if _task(each.device) is None and any(tensor.dtype == tf.resource for tensor in each.inputs)
    ]
    return {task: [*writes.get(task, ()), *within] for task in (writes or range(num_servers))}
