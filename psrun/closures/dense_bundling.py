"""Sends variables that steps read and update as a whole in one message per parameter server and direction.

A message costs about 0.1 ms of processor time, whatever its size: for the weights of a multilayer perceptron, the
number of messages costs more than the bytes. If weights may be stale, they are fetched, and their gradients pushed,
only every few steps (n_fetch and n_push in Dean et al.: Large Scale Distributed Deep
Networks, NIPS 2012).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.closures.applied_steps import AppliedSteps
from psrun.closures.dense_bundle import Bundle, GradientsAndVariables
from psrun.closures.staleness_meter import StalenessMeter, UpdatesInClosure
from psrun.closures.variable_proxy import VariableProxy, taking_over
from psrun.errors import ConfigError, Problem
from psrun.optimizers import late_gradients
from psrun.program.compiled_model import Program, traced_forward
from psrun.tf_internals import optimizers
from psrun.tf_internals.tracing import FuncGraph
from psrun.tf_internals.variables import remote, wrapped


class DenseBundles:
    """The trainable variables of a program that its model reads as a whole, by parameter server.

    Args:
      meter: measures the staleness of updates; its numbers travel with a bundle.
      sync_every: number of steps per read of the variables, and per push of their summed gradients.
      rows_ahead: whether rows of tables are requested one step ahead, so that they are staler than the variables.
      applied: decides which gradients are applied; None for all.
    """

    def __init__(
        self,
        program: Program,
        meter: StalenessMeter,
        sync_every: int = 1,
        *,
        rows_ahead: bool = False,
        applied: AppliedSteps | None = None,
    ) -> None:
        self._applied = applied
        self._optimizer, self._every = program.optimizer, sync_every
        self._meter, self._rows_ahead = meter, rows_ahead
        by_server: dict[tuple[str, tf.DType], list[Any]] = {}
        if optimizers.updates_together(self._optimizer):
            for variable in _read_as_a_whole(program):
                by_server.setdefault((variable.device, variable.dtype), []).append(variable)
        self._bundles = [Bundle(variables) for variables in by_server.values()]
        own = getattr(type(self._optimizer), "aggregate_gradients", None)
        keras = tf_keras.optimizers.Optimizer.aggregate_gradients
        self._has_one_replica = program.distribution.strategy.num_replicas_in_sync == 1
        self._alone = self._has_one_replica and own is keras
        for option, stops in (
            ("staleness_aware", late_gradients.is_staleness_aware(self._optimizer) and not self._alone),
            ("delay_compensation", late_gradients.compensation(self._optimizer) and not (self._alone and self)),
        ):
            if stops:
                message = "is not supported with this model, or with several replicas per worker; remove it"
                raise ConfigError([Problem(f"optimizer.{option}", message)])
        exact = [bundle for bundle in self._bundles if bundle.dtype in (tf.float32, tf.float64)]
        self._carrier = max(exact, key=lambda bundle: bundle.num_values, default=None)
        meter.place(program.optimizer.iterations.device if self._carrier is None else self._carrier.device)

    def __bool__(self) -> bool:
        return bool(self._bundles)

    @contextlib.contextmanager
    def in_closure(self, num_steps: int) -> Iterator[Callable[[], None]]:
        """Traces the operations in this context on bundles; yields a function to call before each of the steps."""
        for bundle in self._bundles:
            bundle.begin()
        variables = [variable for bundle in self._bundles for variable in bundle.variables]
        stand_ins = [stand_in for bundle in self._bundles for stand_in in bundle.stand_ins]
        optimizer = self._optimizer
        updates = UpdatesInClosure(self._meter, rows_ahead=self._rows_ahead)
        applied = self._applied if self._has_one_replica else None
        steps = _Steps(optimizer, self._bundles, self._carrier, updates, self._every, num_steps, applied)
        with taking_over(variables, stand_ins), optimizers.updating(optimizer, steps.applying):
            if not self._bundles:
                yield steps.next
                return
            with optimizers.applying(optimizer, steps.updating), self._aggregating():
                yield steps.next

    def _aggregating(self) -> contextlib.AbstractContextManager[None]:
        """In a closure on one device, there is nothing to aggregate; Keras would fetch gradients for it."""
        if not self._alone:
            return contextlib.nullcontext()
        return optimizers.replaced(self._optimizer, "aggregate_gradients", lambda _: _as_they_are)


def _as_they_are(grads_and_vars: GradientsAndVariables) -> GradientsAndVariables:
    return grads_and_vars


class _Steps:
    """Wraps the steps of a closure.

    Args:
      carrier: the bundle with which the numbers of `updates` travel; None if they travel alone.
    """

    def __init__(
        self,
        optimizer: Any,
        bundles: Sequence[Bundle],
        carrier: Bundle | None,
        updates: UpdatesInClosure,
        every: int,
        num_steps: int,
        applied: AppliedSteps | None,
    ) -> None:
        self._applied = applied
        self._optimizer, self._factor = optimizer, late_gradients.compensation(optimizer)
        self._bundles, self._carrier, self._updates = bundles, carrier, updates
        self._every, self._num_steps = every, num_steps
        self._step = -1
        self._apply: Callable[..., Any]

    def applying(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        """The replacement of `apply`, which updates variables."""
        self._apply = apply
        return self.apply_gradients

    def updating(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        """`apply`; afterwards, until the next step, reads of the variables go to the parameter servers."""

        def apply_gradients(*arguments: Any, **options: Any) -> Any:
            self._mark(True)
            return apply(*arguments, **options)

        return apply_gradients

    def _mark(self, updating: bool) -> None:
        for bundle in self._bundles:
            for stand_in in bundle.stand_ins:
                stand_in.updating = updating

    def next(self) -> None:
        self._step += 1
        self._mark(False)
        fetches = self._step % self._every == 0
        carried = None
        for bundle in self._bundles if fetches else ():
            if bundle is self._carrier:
                (carried,) = bundle.fetch([self._updates.applied(bundle.dtype)])
            else:
                bundle.fetch()
        self._updates.begin_step(carried, reads_weights=fetches)

    def apply_gradients(self, grads_and_vars: GradientsAndVariables, *arguments: Any, **options: Any) -> Any:
        """Applies the gradients outside of bundles, and those of bundles when a push is due."""
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
        if self._applied is not None:
            rest = self._applied.arrived(rest)
        with late_gradients.applying(self._optimizer, staleness):
            return self._apply(rest, *arguments, **options)


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
