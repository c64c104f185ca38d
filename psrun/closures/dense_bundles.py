"""Sends variables that steps read and update as a whole in one message per parameter server and direction.

A message costs about 0.1 ms of processor time, whatever its size: for the weights of a multilayer perceptron, the
number of messages costs more than the bytes. If weights may be stale, they are fetched, and their gradients pushed,
only every few steps (n_fetch and n_push in Dean et al.: Large Scale Distributed Deep
Networks, NIPS 2012).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from psrun.closures.dense_bundle import Bundle, GradientsAndVariables
from psrun.closures.stage import Apply, Stage, Step
from psrun.closures.staleness_meter import StalenessMeter, UpdatesInClosure
from psrun.closures.variable_proxy import VariableProxy, taking_over
from psrun.errors import ConfigError, Problem
from psrun.optimizers import late_gradients
from psrun.program.compiled_model import Program, traced_forward
from psrun.tf_internals import optimizers
from psrun.tf_internals.tracing import FuncGraph
from psrun.tf_internals.variables import remote, wrapped


class DenseBundles(Stage):
    """The trainable variables of a program that its model reads as a whole, by parameter server.

    Args:
      meter: measures the staleness of updates; its numbers travel with a bundle.
      sync_every: number of steps per read of the variables, and per push of their summed gradients.
      rows_ahead: whether rows of tables are requested one step ahead, so that they are staler than the variables.

    Raises:
      ConfigError: the model, the optimizer or several replicas per worker do not allow what is configured.
    """

    def __init__(self, program: Program, meter: StalenessMeter, sync_every: int, *, rows_ahead: bool) -> None:
        self._optimizer = program.optimizer
        self._every = sync_every
        self._meter = meter
        self._rows_ahead = rows_ahead
        self._factor = late_gradients.compensation(self._optimizer)
        by_server: dict[tuple[str, tf.DType], list[Any]] = {}
        if optimizers.updates_together(self._optimizer):
            for variable in _read_as_a_whole(program):
                by_server.setdefault((variable.device, variable.dtype), []).append(variable)
        self._bundles = [Bundle(variables) for variables in by_server.values()]
        has_one_replica = program.distribution.strategy.num_replicas_in_sync == 1
        self._alone = has_one_replica and optimizers.aggregates_as_keras(self._optimizer)
        # On one device there is nothing to add up; Keras would fetch gradients for it.
        self._options = optimizers.without_aggregation(self._optimizer) if self._bundles and self._alone else {}
        self._check()
        exact = [bundle for bundle in self._bundles if bundle.dtype in (tf.float32, tf.float64)]
        # The bundle with which the numbers of the meter travel; None if they travel alone.
        self._carrier = max(exact, key=lambda bundle: bundle.num_values, default=None)
        meter.place(program.optimizer.iterations.device if self._carrier is None else self._carrier.device)

    def _check(self) -> None:
        for key, is_set, is_possible, instead in (
            ("trainer.dense_sync_every", self._every > 1, bool(self._bundles), "set it to 1"),
            ("optimizer.staleness_aware", late_gradients.is_staleness_aware(self._optimizer), self._alone, "remove it"),
            ("optimizer.delay_compensation", self._factor, self._alone and bool(self._bundles), "remove it"),
        ):
            if is_set and not is_possible:
                why = "is not supported with this optimizer and model, or with several replicas per worker"
                raise ConfigError([Problem(key, f"{why}; {instead}")])

    @contextlib.contextmanager
    def unrolled(self, num_steps: int) -> Iterator[None]:
        for bundle in self._bundles:
            bundle.begin()
        self._updates = UpdatesInClosure(self._meter, rows_ahead=self._rows_ahead)
        self._num_steps = num_steps
        self._step = -1
        variables = [variable for bundle in self._bundles for variable in bundle.variables]
        stand_ins = [stand_in for bundle in self._bundles for stand_in in bundle.stand_ins]
        with taking_over(variables, stand_ins):
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
                    (carried,) = bundle.fetch([self._updates.applied(bundle.dtype)])
                else:
                    bundle.fetch()
            self._updates.begin_step(carried, reads_weights=fetches)
            return step(batch)

        return with_weights

    def gradients(self, apply: Apply) -> Apply:
        """After it, until the next step, reads of the variables go to the parameter servers."""

        def apply_gradients(*arguments: Any, **options: Any) -> Any:
            self._updating(True)
            return apply(*arguments, **options, **self._options)

        return apply_gradients

    def _updating(self, updating: bool) -> None:
        for bundle in self._bundles:
            for stand_in in bundle.stand_ins:
                stand_in.updating = updating

    def update(self, apply: Apply) -> Apply:
        """Applies the gradients outside of bundles, and those of bundles when a push is due."""

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
                    staleness = self._updates.count(carried)
            if pushes and self._updates.are_waiting:
                staleness = self._updates.count_alone(gradient for gradient, _ in grads_and_vars)
            with late_gradients.applying(self._optimizer, staleness):
                return apply(rest, *arguments, **options)

        return update


class _Asked(VariableProxy):
    """Records whether the value was read."""

    asked = False

    def value(self, *_: Any, **__: Any) -> tf.Tensor:
        graph = tf.compat.v1.get_default_graph()
        if not isinstance(getattr(graph, "outer_graph", None), FuncGraph):  # not in a loop or a branch
            self.asked = True
        return self.variable.value()


def _read_as_a_whole(program: Program) -> list[Any]:
    """The trainable variables that the network reads completely, instead of rows of them."""
    variables = remote(program.network.trainable_variables)
    stand_ins = [_Asked(wrapped(variable)) for variable in variables]
    with program.distribution.strategy.scope(), taking_over(variables, stand_ins):
        traced_forward(program)
    return [variable for variable, stand_in in zip(variables, stand_ins) if stand_in.asked]
