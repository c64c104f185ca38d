"""Measures how long a step waits for its batch, waits for parameters and updates, and computes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from psrun.closures.stage import Inputs, Stage, Step, Take
from psrun.cluster import placement
from psrun.program.compiled_model import Program
from psrun.tf_internals.tracing import FuncGraph
from psrun.tf_internals.variables import remote

_EVERY_S = 0.25  # a measured closure sends one more message to every parameter server
# Operations that call another function: the devices of the operations in it are unknown here.
_CALLS = ("While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase")
_HANDLES = (tf.resource, tf.variant)


@dataclass(frozen=True)
class StepTime:
    """Mean seconds of a step on a worker, from one step to the next.

    Attributes:
      input_s: waiting for the batch, after the previous step had its gradients.
      traffic_s: from then on, until the last of the parameters for the gradients had arrived; and, after the last step
        of a closure, until its updates were done.
      compute_s: from then until the last gradient.
      other_s: the rest: workers wait for the chief or at joins, or are lost.
      bottleneck: the name of the longest of these.
    """

    input_s: float
    traffic_s: float
    compute_s: float
    other_s: float
    bottleneck: str


def step_time(measured: Sequence[float], step_s: float) -> StepTime | None:
    """The mean times of a step; None if nothing was measured.

    Args:
      measured: number of measured steps, and their total seconds of input, traffic and computing.
      step_s: mean seconds from one step to the next on a worker.
    """
    steps, *seconds = measured
    if not steps or not step_s:
        return None
    each = [value / steps for value in seconds]
    times = dict(zip(("input", "traffic", "compute", "other"), [*each, max(0.0, step_s - sum(each))]))
    longest = max(times, key=lambda name: times[name])
    return StepTime(**{f"{name}_s": value for name, value in times.items()}, bottleneck=longest)


class StepProfiler(Stage):
    """Measures some of the closures on the workers of a coordinator.

    It records when batches arrive, and when the tensors that cross between the worker and parameter servers arrive,
    which it finds in the graph of a traced step. It does not look into functions that a step calls, loops or branches:
    their reads and writes count as computing. Steps overlap: a batch that arrives before the gradients of the previous
    step costs no time. The first closure of each worker is not measured: it starts the input, which counts as time to
    the first step.
    """

    def __init__(self, program: Program) -> None:
        self._num_left_out = program.distribution.num_workers
        self._next_s = time.monotonic()
        with tf.device(placement.server_device(0)):
            self._sums: Any = tf.Variable(tf.zeros([4], tf.float64), trainable=False)
        largest: dict[str, Any] = {}
        for variable in remote(program.network.trainable_variables):
            current = largest.setdefault(variable.device, variable)
            if variable.shape.num_elements() > current.shape.num_elements():
                largest[variable.device] = variable
        self._largest = list(largest.values())

    def wanted(self) -> bool:
        """Whether to measure the closure that is scheduled now."""
        now_s = time.monotonic()
        if self._num_left_out or now_s < self._next_s:
            self._num_left_out = max(0, self._num_left_out - 1)
            return False
        self._next_s = now_s + _EVERY_S
        return True

    def measured(self) -> list[float]:
        """The argument of `step_time`, for all closures so far; call when all steps are joined."""
        return self._sums.numpy().tolist()

    def inputs(self) -> dict[str, tf.TensorSpec]:
        """Whether the closure is measured."""
        return {"measured": tf.TensorSpec([], tf.bool)}

    def begin(self, inputs: Inputs) -> None:
        """Carries the time of the previous step's gradients, steps, and seconds of input, traffic and computing."""
        self.carried = tf.concat([tf.timestamp()[tf.newaxis], tf.zeros([4], tf.float64)], 0)

    def unrolled(self, num_steps: int) -> contextlib.AbstractContextManager[None]:
        self._graph = tf.compat.v1.get_default_graph()
        self._servers = _Servers()
        self._ready: list[tf.Tensor] = []  # arrival times of batches taken for later steps
        self._num_ops = len(self._graph.get_operations())
        return contextlib.nullcontext()

    def batches(self, take: Take, num_steps: int) -> Take:
        def timed() -> Any:
            batch = take()
            self._ready.append(_when_there(tf.nest.flatten(batch, expand_composites=True)))
            return batch

        return timed

    def around(self, step: Step) -> Step:
        def timed(batch: Any) -> Any:
            outputs = step(batch)
            assert self.carried is not None
            self.carried = self._with_step(self.carried)
            return outputs

        return timed

    def _with_step(self, spent: tf.Tensor) -> tf.Tensor:
        operations = self._graph.get_operations()
        parameters, gradients = self._servers.crossings(operations[self._num_ops :])
        before, batch = spent[0], tf.maximum(spent[0], self._ready.pop(0))
        there = tf.maximum(batch, _when_there(parameters)) if parameters else batch
        computed = tf.maximum(there, _when_there(gradients)) if gradients else there
        self._num_ops = len(self._graph.get_operations())
        step = tf.stack([computed - before, 1.0, batch - before, there - batch, computed - there])
        return spent + step

    def end(self, inputs: Inputs) -> None:
        spent = self.carried
        self.carried = None

        def end() -> tuple[()]:
            self._add(spent)
            return ()

        tf.cond(inputs["measured"], end, lambda: ())

    def _add(self, spent: tf.Tensor) -> None:
        rows = []
        for variable in self._largest:  # a read waits for earlier updates of the same variable
            with tf.device(variable.device):
                rows.append(tf.gather(variable, [0]) if variable.shape.rank else variable.read_value())
        ended = _when_there(rows)
        zero = tf.zeros([], tf.float64)
        rest = tf.stack([zero, zero, tf.maximum(ended - spent[0], zero), zero])
        self._sums.assign_add(spent[1:] + rest, read_value=False)


class _Servers:
    """Finds the operations of a graph that run on parameter servers, and the local ones that depend on them."""

    def __init__(self) -> None:
        self._captured: dict[int, dict[str, Any]] = {}
        self._there: set[str] = set()
        self._computed: set[str] = set()

    def crossings(self, operations: Sequence[tf.Operation]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The tensors that cross within a step: values of parameters, and the gradients computed from them.

        An operation that calls a function, loops or branches, and takes a variable of a server, is assumed to run here
        and to read and write the variable, unless it is placed on the server. If nothing is sent, the last computed
        values stand for the gradients.

        Args:
          operations: of the step, in the order of creation: each after the operations of its inputs, and after those of
            earlier steps.
        """
        asking = {operation.name for operation in operations if self._asks(operation)}
        calling = {each.name for each in operations if each.name in asking and _calls(each) and not _there(each)}
        self._there |= asking - calling
        self._computed |= calling
        step = _Step(self._there, self._computed)
        for operation in operations:
            step.add(operation, asks=operation.name in asking)
        results = (value for operation in operations if operation.name in self._computed for value in operation.outputs)
        last = [value for value in results if value.name not in step.taken and value.dtype not in _HANDLES]
        return list(step.parameters.values()), list(step.gradients.values()) or last

    def _asks(self, operation: tf.Operation) -> bool:
        """Whether it runs on a parameter server, or takes a variable of one."""
        handles = [value for value in operation.inputs if value.dtype == tf.resource]
        return _there(operation) or any("/job:ps" in self._device(handle) for handle in handles)

    def _device(self, handle: Any) -> str:
        """The device of the variable of a handle, through the functions that have captured it."""
        while isinstance(graph := getattr(handle, "graph", None), FuncGraph):
            captured = self._captured.get(id(graph), {})
            if handle.name not in captured:
                captured = self._captured[id(graph)] = {inner.name: outer for outer, inner in graph.captures}
            if handle.name not in captured:
                return handle.device or ""
            handle = captured[handle.name]
        return handle.device or ""


class _Step:
    """The tensors that cross within a step.

    Args:
      there: names of operations that run on servers.
      computed: names of local operations that depend on values of servers; those of the step are added.
    """

    def __init__(self, there: set[str], computed: set[str]) -> None:
        self._there = there
        self._computed = computed
        self.parameters: dict[str, tf.Tensor] = {}
        self.gradients: dict[str, tf.Tensor] = {}
        self.taken: set[str] = set()
        self._late: set[str] = set()  # operations on servers that wait for values computed in this step
        self._written: set[str] = set()  # their handles

    def add(self, operation: tf.Operation, *, asks: bool) -> None:
        values = {value.name: value for value in operation.inputs if value.dtype not in _HANDLES}
        sources = {name: value.op.name for name, value in values.items()}
        self.taken.update(values)
        if asks:
            self.gradients |= {name: values[name] for name in values if sources[name] in self._computed}
        if operation.name in self._there:
            handles = {value.name for value in operation.inputs if value.dtype == tf.resource}
            waits = any(source in self._late or source in self._computed for source in sources.values())
            if waits or not self._written.isdisjoint(handles):
                self._late.add(operation.name)
                self._written |= handles
            return
        from_servers = {name: value for name, value in values.items() if sources[name] in self._there}
        self.parameters |= {name: value for name, value in from_servers.items() if sources[name] not in self._late}
        if from_servers or not self._computed.isdisjoint(sources.values()):
            self._computed.add(operation.name)


def _there(operation: tf.Operation) -> bool:
    return "/job:ps" in operation.device


def _calls(operation: tf.Operation) -> bool:
    return operation.type in _CALLS or operation.type.endswith("PartitionedCall")


def _when_there(values: Iterable[tf.Tensor]) -> tf.Tensor:
    """The time at which all values have arrived."""
    with tf.device(None), tf.control_dependencies([tf.identity(value) for value in values]):
        return tf.timestamp()
