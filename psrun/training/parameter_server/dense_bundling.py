"""Sends variables that steps read and update as a whole in one message per parameter server and direction.

A message costs about 0.1 ms of processor time, whatever its size: for the weights of a multilayer perceptron, the
number of messages costs more than the bytes. If weights may be stale, they are fetched, and their gradients pushed,
only every few steps (n_fetch and n_push in Dean et al.: Large Scale Distributed Deep
Networks, NIPS 2012).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.program.compiled_model import Program, traced_forward
from psrun.tf_internals import optimizers
from psrun.tf_internals.tracing import FuncGraph, record_operation, stop_recording, variable_accessed
from psrun.tf_internals.variables import remote, wrapped
from psrun.training.parameter_server.variable_proxy import VariableProxy, taking_over

GradientsAndVariables = Sequence[tuple[Any, tf.Variable]]


class DenseBundles:
    """The trainable variables of a program that its model reads as a whole, by parameter server.

    Args:
      sync_every: number of steps per read of the variables, and per push of their summed gradients.
    """

    def __init__(self, program: Program, sync_every: int = 1) -> None:
        self._optimizer, self._every = program.optimizer, sync_every
        by_server: dict[tuple[str, tf.DType], list[Any]] = {}
        if optimizers.updates_together(self._optimizer):
            for variable in _read_as_a_whole(program):
                by_server.setdefault((variable.device, variable.dtype), []).append(variable)
        self._bundles = [_Bundle(variables) for variables in by_server.values()]
        own = getattr(type(self._optimizer), "aggregate_gradients", None)
        keras = tf_keras.optimizers.Optimizer.aggregate_gradients
        self._alone = program.distribution.strategy.num_replicas_in_sync == 1 and own is keras

    def __bool__(self) -> bool:
        return bool(self._bundles)

    @contextlib.contextmanager
    def in_closure(self, num_steps: int) -> Iterator[Callable[[], None]]:
        """Traces the operations in this context on bundles; yields a function to call before each of the steps."""
        if not self._bundles:
            yield lambda: None
            return
        for bundle in self._bundles:
            bundle.begin()
        variables = [variable for bundle in self._bundles for variable in bundle.variables]
        stand_ins = [stand_in for bundle in self._bundles for stand_in in bundle.stand_ins]
        optimizer = self._optimizer
        steps = _Steps(self._bundles, self._every, num_steps)
        with (
            taking_over(variables, stand_ins),
            optimizers.updating(optimizer, steps.applying),
            optimizers.applying(optimizer, steps.updating),
        ):
            if self._alone:
                # There is nothing to aggregate; Keras would fetch gradients from parameter servers for it.
                optimizer.aggregate_gradients = _as_they_are
            try:
                yield steps.next
            finally:
                if self._alone:
                    del optimizer.aggregate_gradients


@tf.autograph.experimental.do_not_convert
def _as_they_are(grads_and_vars: GradientsAndVariables) -> GradientsAndVariables:
    return grads_and_vars


class _Steps:
    """Wraps the steps of a closure."""

    def __init__(self, bundles: Sequence[_Bundle], every: int, num_steps: int) -> None:
        self._bundles, self._every, self._num_steps = bundles, every, num_steps
        self._step = -1
        self._apply: Callable[..., Any]

    def applying(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        """The replacement of `apply`, which updates variables."""
        self._apply = apply
        return self.apply_gradients

    def updating(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        """`apply`; afterwards, until the next step, reads of the variables go to the parameter servers."""

        @tf.autograph.experimental.do_not_convert
        def apply_gradients(*arguments: Any, **options: Any) -> Any:
            self._mark(True)
            return apply(*arguments, **options)

        return apply_gradients

    def _mark(self, updating: bool) -> None:
        for bundle in self._bundles:
            for stand_in in bundle.stand_ins:
                stand_in.updating = updating

    @tf.autograph.experimental.do_not_convert
    def next(self) -> None:
        self._step += 1
        self._mark(False)
        if self._step % self._every == 0:
            for bundle in self._bundles:
                bundle.fetch()

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(self, grads_and_vars: GradientsAndVariables) -> Any:
        """Applies the gradients outside of bundles, and those of bundles when a push is due."""
        rest = list(grads_and_vars)
        for bundle in self._bundles:
            rest = bundle.take(rest)
        if (self._step + 1) % self._every == 0 or self._step + 1 == self._num_steps:
            for bundle in self._bundles:
                rest += bundle.push()
        return self._apply(rest)


class _Bundle:
    """Variables of one type on one parameter server."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = variables
        self.stand_ins: list[_Fetched] = []
        self._sizes = [math.prod(variable.shape) for variable in variables]
        self._summed: Any = None
        self._pushed: list[int] = []

    def begin(self) -> None:
        self.stand_ins, self._summed = [_Fetched(wrapped(variable)) for variable in self.variables], None

    def fetch(self) -> None:
        """Reads all variables, for the steps until the next call."""
        with stop_recording():
            with tf.device(self.variables[0].device):
                values = [tf.reshape(stand_in.variable.read_value(), [-1]) for stand_in in self.stand_ins]
                together = tf.concat(values, 0)
            for stand_in, part in zip(self.stand_ins, tf.split(tf.identity(together), self._sizes)):
                stand_in.fetched = tf.reshape(part, stand_in.variable.shape)

    def take(self, grads_and_vars: GradientsAndVariables) -> list[tuple[Any, tf.Variable]]:
        """Adds up the gradients of its variables; returns the others."""
        places = {id(variable): place for place, variable in enumerate(self.variables)}
        own: list[Any] = [None] * len(places)
        others = []
        for gradient, variable in grads_and_vars:
            place = places.get(id(variable))
            if place is None or isinstance(gradient, tf.IndexedSlices):
                others.append((gradient, variable))
            else:
                own[place] = gradient
        if any(gradient is not None for gradient in own):
            flat = [
                tf.zeros([size], variable.dtype) if gradient is None else tf.reshape(gradient, [-1])
                for gradient, variable, size in zip(own, self.variables, self._sizes)
            ]
            self._pushed = [place for place, gradient in enumerate(own) if gradient is not None]
            together = tf.concat(flat, 0)
            self._summed = together if self._summed is None else self._summed + together
        return others

    def push(self) -> list[tuple[tf.Tensor, tf.Variable]]:
        """The summed gradients, on the parameter server."""
        if self._summed is None:
            return []
        with tf.device(self.variables[0].device):
            parts = tf.split(tf.identity(self._summed), self._sizes)
            self._summed = None
            pairs = [(tf.reshape(part, variable.shape), variable) for part, variable in zip(parts, self.variables)]
            return [pairs[place] for place in self._pushed]


class _Fetched(VariableProxy):
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
