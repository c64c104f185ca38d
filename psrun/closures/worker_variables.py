"""What the steps of one closure keep of variables on the worker, by proxies that replace the
variables in a trace.

The step counter, the learning rate and the state of metrics are on parameter servers, where every
step of every worker would read and write them. Instead, a closure sums its additions on the worker,
and sends one addition to the parameter server. The sums over all workers are the same; a read in a
closure does not include concurrent additions of other workers.

Variables that steps read and update as a whole travel in one message per parameter server and
direction. A message costs about 0.1 ms of processor time, whatever its size: for the weights of a
multilayer perceptron, the number of messages costs more than the bytes. If weights may be stale,
they are fetched, and their gradients pushed, only every few steps (n_fetch and n_push in Dean et
al.: Large Scale Distributed Deep Networks, NIPS 2012).

Rows of tables can be requested one step ahead, so that they travel while the previous step
computes.
"""

from __future__ import annotations

import abc
import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.closures.measurements import StalenessMeter, UpdatesInClosure
from psrun.closures.stage import Apply, Stage, Step, Take
from psrun.errors import ConfigError, Problem
from psrun.optimizers import sparse
from psrun.program import embeddings
from psrun.program.compiled_model import Program, traced_forward
from psrun.tf_internals import keras
from psrun.tf_internals.strategies import ConvertibleToTensor, remote, wrapped, wrapping
from psrun.tf_internals.tracing import (
    ControlFlowFuncGraph,
    FuncGraph,
    record_operation,
    stop_recording,
    variable_accessed,
)


class VariableProxy(ConvertibleToTensor):
    """Replaces a variable; forwards whatever a subclass does not implement."""

    def __init__(self, variable: Any) -> None:
        self.variable = variable
        self._graph = tf.compat.v1.get_default_graph()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.variable, name)

    @abc.abstractmethod
    def value(self, *_: Any, **__: Any) -> tf.Tensor:
        """The value of the variable in the current graph."""

    def read_value(self, *_: Any, **__: Any) -> tf.Tensor:
        return self.value()

    def _within(self) -> bool:
        """Whether the current graph is the traced function, or a branch or loop of it, not a function that it calls.

        A called function is traced once, and would keep tensors of that trace.
        """
        graph = tf.compat.v1.get_default_graph()
        while graph is not self._graph and isinstance(graph, ControlFlowFuncGraph):
            graph = graph.outer_graph
        return graph is self._graph


class CannotBeKept(Exception):
    """A branch, loop or nested function of the traced function changes variables that were to be worker-local."""


class WorkerLocalVariables(Stage):
    """The variables to keep on workers; those that are not on parameter servers are unaffected.

    Args:
      added_to: variables that are worker-local as long as a closure only adds to them.
      assigned: variables that a closure may also assign, because all workers assign the same value.
    """

    def __init__(self, added_to: Iterable[tf.Variable], assigned: Iterable[tf.Variable]) -> None:
        shared = remote(assigned)
        self._assigned = {id(variable) for variable in shared}
        self._variables = [*remote(added_to), *shared]

    @contextlib.contextmanager
    def unrolled(self, num_steps: int) -> Iterator[None]:
        """Traces steps on worker-local variables, and the write-back at the end.

        Raises:
          CannotBeKept: some variables cannot be worker-local; repeat the trace without them.
        """
        stand_ins = [_OnWorker(wrapped(variable), id(variable) in self._assigned) for variable in self._variables]
        with wrapping(self._variables, stand_ins):
            yield
        still_local = [variable for variable, stand_in in zip(self._variables, stand_ins) if not stand_in.left]
        if len(still_local) < len(stand_ins):
            self._variables = still_local
            raise CannotBeKept
        for stand_in in stand_ins:
            stand_in.write_back()


class _OnWorker(VariableProxy):
    """Sums additions on the worker.

    Attributes:
      left: whether the variable cannot be worker-local: a nested function, which cannot see the sum, changes or reads
        it; or a closure assigns it, and one of two concurrent assignments would be lost.
    """

    def __init__(self, variable: Any, may_be_assigned: bool) -> None:
        super().__init__(variable)
        self._may_be_assigned = may_be_assigned
        self._read = tf.identity(variable.read_value())  # pruned from the graph if nothing uses it
        self._added: Any = None
        self._assigned: Any = None
        self.left = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("scatter"):
            self.left = True
        return super().__getattr__(name)

    def value(self, *_: Any, **__: Any) -> tf.Tensor:
        if not self._within():
            self.left = self.left or not tf.executing_eagerly()  # else another thread reads the variable
            return self.variable.value()
        if self._assigned is not None:
            return self._assigned
        return self._read if self._added is None else self._read + self._added

    def assign(self, value: Any, *arguments: Any, **options: Any) -> Any:
        if self._leaves(also=not self._may_be_assigned):
            return self.variable.assign(value, *arguments, **options)
        self._assigned = tf.convert_to_tensor(value, self.variable.dtype)
        self._added = None
        return self._assigned

    def assign_add(self, delta: Any, *arguments: Any, **options: Any) -> Any:
        return self._add(tf.convert_to_tensor(delta, self.variable.dtype), *arguments, **options)

    def assign_sub(self, delta: Any, *arguments: Any, **options: Any) -> Any:
        return self._add(-tf.convert_to_tensor(delta, self.variable.dtype), *arguments, **options)

    def _add(self, delta: tf.Tensor, *arguments: Any, **options: Any) -> Any:
        if self._leaves():
            return self.variable.assign_add(delta, *arguments, **options)
        if self._assigned is not None:
            self._assigned += delta
        elif self._added is not None:
            self._added += delta
        else:
            self._added = tf.broadcast_to(delta, self.variable.shape)
        return self.value()

    def _leaves(self, also: bool = False) -> bool:
        if tf.executing_eagerly():  # another thread
            return True
        self.left = self.left or also or tf.compat.v1.get_default_graph() is not self._graph
        return self.left

    def write_back(self) -> None:
        if self._assigned is not None:
            self.variable.assign(self._assigned, read_value=False)
        elif self._added is not None:
            self.variable.assign_add(self._added, read_value=False)


GradientsAndVariables = Sequence[tuple[Any, tf.Variable]]


class Bundle:
    """Variables of one type on one parameter server."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = variables
        self.stand_ins: list[Fetched] = []
        self._sizes = [math.prod(variable.shape) for variable in variables]
        self._read: list[tf.Tensor] = []  # the fetched values
        self._summed: list[tf.Tensor] = []  # parts, one after the other
        self._pushed: list[int] = []
        self.device = variables[0].device
        self.dtype = variables[0].dtype
        self.num_values = sum(self._sizes)

    @property
    def is_empty(self) -> bool:
        """Whether there are no gradients to push."""
        return not self._summed

    def begin(self) -> None:
        self.stand_ins = [Fetched(wrapped(variable)) for variable in self.variables]
        self._summed = []

    def fetch(self, carried: Sequence[tf.Tensor] = ()) -> list[tf.Tensor]:
        """Reads all variables, for the steps until the next call.

        Args:
          carried: numbers on the parameter server that travel with the variables: shape (1,) each.

        Returns:
          These numbers, on the worker.
        """
        with stop_recording():
            with tf.device(self.device):
                values = [tf.reshape(stand_in.variable.read_value(), [-1]) for stand_in in self.stand_ins]
                together = tf.concat([*values, *carried], 0)
            parts = tf.split(tf.identity(together), [*self._sizes, *(1 for _ in carried)])
            self._read = parts[: len(self._sizes)]
            for stand_in, part in zip(self.stand_ins, self._read):
                stand_in.fetched = tf.reshape(part, stand_in.variable.shape)
            return parts[len(self._sizes) :]

    def take(self, grads_and_vars: GradientsAndVariables) -> list[tuple[Any, tf.Variable]]:
        """Adds up the gradients of its variables; returns the others."""
        places = {id(variable): place for place, variable in enumerate(self.variables)}
        own: dict[int, Any] = {}
        others = []
        for gradient, variable in grads_and_vars:
            place = places.get(id(variable))
            if place is None or isinstance(gradient, tf.IndexedSlices):
                others.append((gradient, variable))
            elif gradient is not None:
                own[place] = gradient
        if own:
            self._add(own)
        return others

    def _add(self, gradients: Mapping[int, tf.Tensor]) -> None:
        """Adds up gradients, by the places of their variables."""
        flat = []
        for place, variable in enumerate(self.variables):
            if place in gradients:
                flat.append(tf.reshape(gradients[place], [-1]))
            else:
                flat.append(tf.zeros([self._sizes[place]], variable.dtype))
        if not self.is_empty:
            flat = [tf.concat(self._summed, 0) + tf.concat(flat, 0)]
        self._summed = flat
        self._pushed = sorted(gradients)

    def push(
        self, carried: Sequence[tf.Tensor], compensation: float
    ) -> tuple[list[tuple[tf.Tensor, tf.Variable]], list[tf.Tensor]]:
        """The summed gradients, on the parameter server.

        Args:
          carried: numbers on the worker that travel with them: shape (1,) each.
          compensation: the factor of `sparse.compensated_gradient`; if it is not 0, the fetched values travel, too.

        Returns:
          Pairs of gradient and variable, and the numbers.
        """
        if self.is_empty:
            return [], []
        read = self._read if compensation else []
        numbers = [tf.cast(number, self.dtype) for number in carried]
        together = tf.concat([*self._summed, *numbers, *read], 0)
        self._summed = []
        with tf.device(self.device):
            sizes = [*self._sizes, *(1 for _ in carried)]
            received = tf.identity(together)
            parts = tf.split(received, [*sizes, *(self._sizes if read else ())])
            gradients = [tf.reshape(part, variable.shape) for part, variable in zip(parts, self.variables)]
            for place, late in enumerate(parts[len(sizes) :]):
                with tf.control_dependencies([received]):  # else read when the closure starts
                    now = self.stand_ins[place].variable.read_value()
                values = gradients[place], now, tf.reshape(late, now.shape)
                gradients[place] = sparse.compensated_gradient(*values, compensation)
            pairs = [(gradients[place], self.variables[place]) for place in self._pushed]
            return pairs, parts[len(self._sizes) : len(sizes)]


class Fetched(VariableProxy):
    """Gives the value that was fetched; a gradient for it is one for the variable.

    Attributes:
      fetched: None once something else than the optimizer has changed the variable.
      updating: whether the optimizer is at work, which reads what the parameter server has.
    """

    fetched: Any = None
    updating = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("assign", "scatter")) and not self.updating:
            self.fetched = None
        return super().__getattr__(name)

    def value(self, *_: Any, **__: Any) -> tf.Tensor:
        # In a loop or a branch its gradient would be one of the fetched tensor, and not of the variable.
        if self.fetched is None or self.updating or tf.compat.v1.get_default_graph() is not self._graph:
            return self.variable.value()
        variable_accessed(self.variable)
        with stop_recording():
            tensor = tf.identity(self.fetched)
        record_operation("ReadVariableOp", [tensor], [self.variable.handle], lambda gradient: [gradient])
        return tensor


class DenseBundles(Stage):
    """The trainable variables that the model of a program reads as a whole, by parameter server.

    Args:
      variables: those that the model reads as a whole (`read_as_a_whole`).
      meter: measures the staleness of updates; its numbers travel with a bundle.
      sync_every: number of steps per read of the variables, and per push of their summed gradients.
      rows_ahead: whether rows of tables are requested one step ahead, so that they are staler than the variables.

    Raises:
      ConfigError: the model, the optimizer or several replicas per worker do not allow what is configured.
    """

    def __init__(
        self,
        program: Program,
        variables: Iterable[Any],
        meter: StalenessMeter,
        sync_every: int,
        *,
        rows_ahead: bool,
    ) -> None:
        self._optimizer = program.optimizer
        self._every = sync_every
        self._meter = meter
        self._rows_ahead = rows_ahead
        self._factor = sparse.compensation_factor(self._optimizer)
        by_server: dict[tuple[str, tf.DType], list[Any]] = {}
        for variable in variables:
            by_server.setdefault((variable.device, variable.dtype), []).append(variable)
        self._bundles = [Bundle(variables) for variables in by_server.values()]
        has_one_replica = program.distribution.strategy.num_replicas_in_sync == 1
        self._alone = has_one_replica and keras.aggregates_as_keras(self._optimizer)
        # On one device there is nothing to add up; Keras would fetch gradients for it.
        self._options: dict[str, Any] = {}
        if self._bundles and self._alone:
            self._options = keras.without_aggregation(self._optimizer)
        self._check()
        exact = [bundle for bundle in self._bundles if bundle.dtype in (tf.float32, tf.float64)]
        # The bundle with which the numbers of the meter travel; None if they travel alone.
        self._carrier = max(exact, key=lambda bundle: bundle.num_values, default=None)
        if self._carrier is None:
            meter.place(program.optimizer.iterations.device)
        else:
            meter.place(self._carrier.device)

    def _check(self) -> None:
        if self._every > 1 and not self._bundles:
            raise _unsupported("trainer.dense_sync_every", "set it to 1")
        if sparse.is_staleness_aware(self._optimizer) and not self._alone:
            raise _unsupported("optimizer.staleness_aware", "remove it")
        if self._factor and not (self._alone and self._bundles):
            raise _unsupported("optimizer.delay_compensation", "remove it")

    @contextlib.contextmanager
    def unrolled(self, num_steps: int) -> Iterator[None]:
        for bundle in self._bundles:
            bundle.begin()
        self._updates = UpdatesInClosure(self._meter, rows_ahead=self._rows_ahead)
        self._num_steps = num_steps
        self._step = -1
        variables = [variable for bundle in self._bundles for variable in bundle.variables]
        stand_ins = [stand_in for bundle in self._bundles for stand_in in bundle.stand_ins]
        with wrapping(variables, stand_ins):
            yield

    def around(self, step: Step) -> Step:
        """Fetches the weights that are due before a step."""

        def with_weights(batch: Any) -> Any:
            self._step += 1
            self._updating(False)
            fetches = self._step % self._every == 0
            carried = None
            for bundle in self._bundles if fetches else ():
                if bundle is self._carrier:
                    (carried,) = bundle.fetch([self._meter.applied(bundle.dtype)])
                else:
                    bundle.fetch()
            self._updates.begin_step(carried, reads_weights=fetches)
            return step(batch)

        return with_weights

    def gradients(self, apply: Apply) -> Apply:
        """After it, until the next step, reads of the variables go to the parameter servers."""

        def apply_gradients(*arguments: Any, **options: Any) -> Any:
            self._updating(True)
            return apply(*arguments, **{**self._options, **options})  # a step may pass the same ones

        return apply_gradients

    def _updating(self, updating: bool) -> None:
        for bundle in self._bundles:
            for stand_in in bundle.stand_ins:
                stand_in.updating = updating

    def update(self, apply: Apply) -> Apply:
        """Applies the gradients outside of bundles, and the gradients of bundles when a push is due."""

        def update(grads_and_vars: GradientsAndVariables, *arguments: Any, **options: Any) -> Any:
            grads_and_vars = rest = list(grads_and_vars)
            self._updates.add()
            staleness = None
            pushes = (self._step + 1) % self._every == 0 or self._step + 1 == self._num_steps
            for bundle in self._bundles:
                rest = bundle.take(rest)
            for bundle in self._bundles if pushes else ():
                carries = bundle is self._carrier and not bundle.is_empty
                pairs, carried = bundle.push(self._updates.numbers() if carries else [], self._factor)
                rest += pairs
                if carries:
                    staleness = self._meter.count(carried)
            if pushes and self._updates.are_waiting:
                staleness = self._updates.count_alone(gradient for gradient, _ in grads_and_vars)
            with sparse.applying_late(self._optimizer, staleness):
                return apply(rest, *arguments, **options)

        return update


def _unsupported(key: str, instead: str) -> ConfigError:
    why = "is not supported with this optimizer and model, or with several replicas per worker"
    return ConfigError([Problem(key, f"{why}; {instead}")])


class _Asked(VariableProxy):
    """Records whether the value was read."""

    asked = False

    def value(self, *_: Any, **__: Any) -> tf.Tensor:
        graph = tf.compat.v1.get_default_graph()
        if not isinstance(getattr(graph, "outer_graph", None), FuncGraph):  # not in a loop or a branch
            self.asked = True
        return self.variable.value()


def read_as_a_whole(program: Program) -> list[Any]:
    """The trainable variables that the network reads completely, instead of rows of them; traces it."""
    variables = remote(program.network.trainable_variables)
    stand_ins = [_Asked(wrapped(variable)) for variable in variables]
    with program.distribution.strategy.scope(), wrapping(variables, stand_ins):
        traced_forward(program)
    return [variable for variable, stand_in in zip(variables, stand_ins) if stand_in.asked]


class RowPrefetch(Stage):
    """The layers of a program whose rows can be prefetched.

    Raises:
      ConfigError: the program has no such layer.
    """

    def __init__(self, program: Program) -> None:
        network = program.network
        has_own_step = type(network).train_step is not tf_keras.Model.train_step
        if has_own_step or program.distribution.strategy.num_replicas_in_sync > 1:
            why = "is not supported with a custom train_step or several replicas per worker"
            raise ConfigError([Problem("trainer.prefetch_rows", f"{why}; set it to false")])
        self._lookups: list[embeddings.Lookup] = []
        for layer in embeddings.embedding_layers(network):
            lookup = embeddings.Lookup.of(network, layer)
            if lookup is not None:
                self._lookups.append(lookup)
        if not self._lookups:
            why = "requires a psrun.layers.Embedding that is called once, on inputs of the model"
            raise ConfigError([Problem("trainer.prefetch_rows", f"{why}; set it to false")])

    def batches(self, take: Take, num_steps: int) -> Take:
        """Requests the rows of a batch before the previous step is traced, and so before that step updates them."""
        waiting: list[Any] = []
        left = num_steps

        def take_and_ask() -> None:
            nonlocal left
            left -= 1
            batch = take()
            features, _, _ = tf_keras.utils.unpack_x_y_sample_weight(batch)
            for lookup in self._lookups:
                lookup.fetch_ahead(features)
            waiting.append(batch)

        def next_batch() -> Any:
            for lookup in self._lookups:
                lookup.check(len(waiting))
            while left and len(waiting) < 2:
                take_and_ask()
            return waiting.pop(0)

        return next_batch
