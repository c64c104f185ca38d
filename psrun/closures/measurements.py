"""What is measured of steps on workers: how stale their updates are, and where their time goes.

Staleness is how many other updates were applied between the read of an update's weights and its own
application. A parameter server counts the updates that it applies. Its count travels with the dense
weights to the worker, and back with the gradients: the server subtracts it from its count at that
time, and adds the difference to the histogram of the worker. No message is sent for it, and a lost
worker loses none of its updates but one that it was sending.

The time of a step is divided into waiting for its batch, waiting for parameters and updates, and
computing.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from psrun.closures.stage import Inputs, Stage, Step, Take
from psrun.cluster import placement
from psrun.program.compiled_model import Program
from psrun.results.events import Histogram
from psrun.tf_internals.strategies import remote
from psrun.tf_internals.tracing import FuncGraph, in_outermost_graph, operations

LONGEST = 4095  # greater staleness counts as this one
# Counts travel as numbers of the type of the weights, which are exact below this one in float32.
_MODULUS = 2**22
_MOST_UPDATES = 2**31 - 1
_EVERY_S = 0.25  # a measured closure sends one more message to every parameter server
# Operations that call another function: the devices of the operations in it are unknown here.
_CALLS = ("While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase")
_HANDLES = (tf.resource, tf.variant)


class StalenessMeter:
    """Counts the updates on one parameter server, and how stale they are; one for all closures of a training.

    An update is what a step applies. If the gradients of n steps are pushed together, they count as n updates, one
    after the other.
    """

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._applied: Any = None
        self._counts: Any = None
        self._noted: dict[str, Counter[int]] = {}  # by task

    def place(self, device: str) -> None:
        """Creates the counters on a parameter server, unless they exist. Call outside of functions."""
        if self._applied is None:
            with tf.device(device):
                self._applied = tf.Variable(0, dtype=tf.int32, trainable=False)
                self._counts = tf.Variable(tf.zeros([self._num_workers * (LONGEST + 1)], tf.int32), trainable=False)

    @property
    def device(self) -> str:
        """The parameter server that counts."""
        return self._applied.device

    def applied(self, dtype: tf.DType = tf.float32) -> tf.Tensor:
        """The number of updates applied so far, on the parameter server: shape (1,). Call in a closure."""
        with tf.device(self.device):
            return tf.cast(tf.math.floormod(self._applied.read_value(), _MODULUS), dtype)[tf.newaxis]

    def count(self, numbers: Sequence[tf.Tensor]) -> tf.Tensor:
        """Counts an update when it is applied; call in a closure.

        Args:
          numbers: `UpdatesInClosure.numbers`, on the parameter server: the place of the worker's histogram, and of each
            gradient in the update, `applied` when its oldest weights were read.

        Returns:
          The staleness of the last gradient, on the parameter server: int32, shape (1,).
        """
        first, *reads = numbers
        # Without the dependency the server would count as soon as the closure starts: the count has no input.
        with tf.device(self.device), tf.control_dependencies(numbers):
            for read in reads:
                staleness = tf.math.floormod(self._next() - tf.cast(read, tf.int32), _MODULUS)
                place = tf.cast(first, tf.int32) + tf.minimum(staleness, LONGEST)
                tf.raw_ops.ResourceScatterAdd(resource=self._counts.handle, indices=place, updates=1)
            return staleness

    def _next(self) -> tf.Tensor:
        """Counts an update. One operation reads and adds: no two updates get the same number."""
        return tf.raw_ops.ResourceCountUpTo(resource=self._applied.handle, limit=_MOST_UPDATES, T=tf.int32)

    def count_averaged(self, ages: Sequence[int]) -> None:
        """Counts an update that the chief applies, as old as the oldest of its gradients; call outside of functions.

        Args:
          ages: the staleness of the gradients.
        """
        self.note("chief-0", max(ages))

    def note(self, task: str, staleness: int, count: int = 1) -> None:
        """Counts updates that this process applies; call outside of functions."""
        self._noted.setdefault(task, Counter())[min(staleness, LONGEST)] += count

    def take(self) -> dict[str, Histogram]:
        """The histograms by task since the last call; call when all steps are joined.

        Updates of averaged gradients belong to no single worker: they are counted for `chief-0`.
        """
        histograms: dict[str, Histogram] = {}
        for task, counted in self._noted.items():
            histograms[task] = dict(sorted(counted.items()))
        self._noted.clear()
        if self._applied is None:
            return histograms
        counts = self._counts.numpy().reshape(self._num_workers, LONGEST + 1)
        self._counts.assign(tf.zeros_like(self._counts))
        for index, row in enumerate(counts):
            if row.any():
                histogram = {int(staleness): int(row[staleness]) for staleness in row.nonzero()[0]}
                histograms[f"worker-{index}"] = histogram
        return histograms


class UpdatesInClosure:
    """The updates of the unrolled steps of a closure: when their weights were read, and that they are applied.

    Create it in the closure, outside of other functions.

    Args:
      rows_ahead: whether rows of tables are requested when the previous step begins.
    """

    def __init__(self, meter: StalenessMeter, *, rows_ahead: bool) -> None:
        self._meter = meter
        self._rows_ahead = rows_ahead
        index = in_outermost_graph(tf.distribute.coordinator.experimental_get_current_worker_index)
        self._first = tf.cast(index * (LONGEST + 1), tf.float32)[tf.newaxis]
        self._weights: Any = None  # `applied` when the weights of the current step were read
        self._began: Any = None  # and when the step began
        self._oldest: Any = None  # when the oldest weights of the current step were read
        self._reads: list[tf.Tensor] = []  # of the gradients that are not applied yet

    def begin_step(self, applied: tf.Tensor | None, *, reads_weights: bool) -> None:
        """Call when a step begins.

        Args:
          applied: `StalenessMeter.applied`, if it came with the weights; shape (1,).
          reads_weights: whether dense weights are read for the step.
        """
        if applied is None and (reads_weights or self._rows_ahead):
            applied = tf.identity(self._meter.applied())
        previous = self._began
        self._began = applied
        if reads_weights:
            self._weights = applied
        self._oldest = self._weights
        if reads_weights and self._rows_ahead and previous is not None:
            self._oldest = previous

    def add(self) -> None:
        """Call when a step has a gradient."""
        if _in_first_replica():
            self._reads.append(tf.cast(self._oldest, tf.float32))

    def numbers(self) -> list[tf.Tensor]:
        """What travels with an update: shape (1,) each; for `StalenessMeter.count`."""
        numbers = [self._first, *self._reads]
        self._reads = []
        return numbers

    @property
    def are_waiting(self) -> bool:
        """Whether there are updates whose numbers no weights have carried."""
        return bool(self._reads)

    def count_alone(self, gradients: Iterable[Any]) -> tf.Tensor:
        """As `StalenessMeter.count`; sends the numbers by themselves, once there are gradients on the worker."""
        tensors = tf.nest.flatten(list(gradients), expand_composites=True)
        here = [each for each in tensors if each is not None and "/job:ps" not in each.device]
        with tf.control_dependencies(here):
            together = tf.concat(self.numbers(), 0)
        with tf.device(self._meter.device):
            received = tf.identity(together)
            return self._meter.count(tf.split(received, received.shape[0]))


def _in_first_replica() -> bool:
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return True
    return int(tf.get_static_value(context.replica_id_in_sync_group)) == 0


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
      deviation: the standard deviation of the seconds of a step up to its last gradient, as a multiple of `input_s` and
        `compute_s` together.
    """

    input_s: float
    traffic_s: float
    compute_s: float
    other_s: float
    bottleneck: str
    deviation: float


def step_time(measured: Sequence[float], step_s: float) -> StepTime | None:
    """The mean times of a step; None if nothing was measured.

    Args:
      measured: number of measured steps; their total seconds of input, traffic and computing; and the totals of their
        seconds up to the last gradient, and of the squares of these.
      step_s: mean seconds from one step to the next on a worker.
    """
    steps, *seconds, whole, squared = measured
    if not steps or not step_s:
        return None
    input_s, traffic_s, compute_s = (value / steps for value in seconds)
    other_s = max(0.0, step_s - sum([input_s, traffic_s, compute_s]))
    times = {"input": input_s, "traffic": traffic_s, "compute": compute_s, "other": other_s}
    bottleneck = max(times, key=lambda name: times[name])
    worked_s = input_s + compute_s
    variance = max(0.0, squared / steps - (whole / steps) ** 2)
    deviation = math.sqrt(variance) / worked_s if worked_s else 0.0
    return StepTime(input_s, traffic_s, compute_s, other_s, bottleneck, deviation)


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
        # Without real workers nothing is measured.
        device = None if program.distribution.coordinator is None else placement.server_device(0)
        with tf.device(device):
            self._sums: Any = tf.Variable(tf.zeros([6], tf.float64), trainable=False)
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
        """Carries the time of the previous step's gradients, and `measured` of `step_time`."""
        self.carried = tf.concat([tf.timestamp()[tf.newaxis], tf.zeros([6], tf.float64)], 0)

    def unrolled(self, num_steps: int) -> contextlib.AbstractContextManager[None]:
        self._servers = _Servers()
        self._ready: list[tf.Tensor] = []  # arrival times of batches taken for later steps
        self._num_before = len(operations())  # before the next step
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
        parameters, gradients = self._servers.crossings(operations(self._num_before))
        before, batch = spent[0], tf.maximum(spent[0], self._ready.pop(0))
        there = tf.maximum(batch, _when_there(parameters)) if parameters else batch
        computed = tf.maximum(there, _when_there(gradients)) if gradients else there
        self._num_before = len(operations())
        whole = computed - before
        step = tf.stack([whole, 1.0, batch - before, there - batch, computed - there, whole, tf.square(whole)])
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
                row = tf.gather(variable, [0]) if variable.shape.rank else variable.read_value()
            rows.append(row)
        ended = _when_there(rows)
        zero = tf.zeros([], tf.float64)
        rest = tf.stack([zero, zero, tf.maximum(ended - spent[0], zero), zero, zero, zero])
        self._sums.assign_add(spent[1:] + rest, read_value=False)


class _Servers:
    """Finds the operations of a graph that run on parameter servers, and the local ones that depend on them."""

    def __init__(self) -> None:
        self._captured: dict[int, dict[str, Any]] = {}
        self._there: set[str] = set()
        self._computed: set[str] = set()

    def crossings(self, of_step: Sequence[tf.Operation]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The tensors that cross within a step: values of parameters, and the gradients computed from them.

        An operation that calls a function, loops or branches, and takes a variable of a server, is assumed to run here
        and to read and write the variable, unless it is placed on the server. If nothing is sent, the last computed
        values stand for the gradients.

        Args:
          of_step: the operations of the step, in the order of creation: each after the operations of its inputs.
        """
        asking = {operation.name for operation in of_step if self._asks(operation)}
        callers = [operation for operation in of_step if _calls(operation) and not _there(operation)]
        calling = asking.intersection(operation.name for operation in callers)
        self._there |= asking - calling
        self._computed |= calling
        step = _Step(self._there, self._computed)
        for operation in of_step:
            step.add(operation, asks=operation.name in asking)
        gradients = list(step.gradients.values())
        return list(step.parameters.values()), gradients or self._last_computed(of_step, step)

    def _last_computed(self, of_step: Sequence[tf.Operation], step: _Step) -> list[tf.Tensor]:
        """The computed values that no operation of the step takes."""
        last = []
        for operation in of_step:
            if operation.name in self._computed:
                last += [value for value in operation.outputs if value.name not in step.taken]
        return [value for value in last if value.dtype not in _HANDLES]

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
      computed: names of local operations that depend on values of servers; the step adds its own.
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
        """Adds the next operation of the step.

        Args:
          asks: whether it runs on a parameter server, or takes a variable of one.
        """
        values = [value for value in operation.inputs if value.dtype not in _HANDLES]
        self.taken.update(value.name for value in values)
        if asks:
            for value in values:
                if value.op.name in self._computed:
                    self.gradients[value.name] = value
        sources = {value.op.name for value in values}
        if operation.name in self._there:
            self._add_on_server(operation, sources)
            return
        for value in values:
            if value.op.name in self._there and value.op.name not in self._late:
                self.parameters[value.name] = value
        if not sources.isdisjoint(self._there) or not sources.isdisjoint(self._computed):
            self._computed.add(operation.name)

    def _add_on_server(self, operation: tf.Operation, sources: set[str]) -> None:
        handles = {value.name for value in operation.inputs if value.dtype == tf.resource}
        waits = not sources.isdisjoint(self._late) or not sources.isdisjoint(self._computed)
        if waits or not self._written.isdisjoint(handles):
            self._late.add(operation.name)
            self._written |= handles


def _there(operation: tf.Operation) -> bool:
    return "/job:ps" in operation.device


def _calls(operation: tf.Operation) -> bool:
    return operation.type in _CALLS or operation.type.endswith("PartitionedCall")


def _when_there(values: Iterable[tf.Tensor]) -> tf.Tensor:
    """The time at which all values have arrived."""
    with tf.device(None), tf.control_dependencies([tf.identity(value) for value in values]):
        return tf.timestamp()
