"""The values that a model's own `train_step` returns: its training reports and checks them, as Keras' `fit` does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
import tf_keras

from psrun.errors import ConfigError, Problem
from psrun.program import objective
from psrun.tf_internals.replaced import replace
from psrun.tf_internals.tracing import converted

# A model that overrides one of these decides what a step returns.
_METHODS = ("train_step", "compute_loss", "compute_metrics", "get_metrics_result")


def is_in(network: tf_keras.Model) -> bool:
    """Whether the network itself decides what a training step returns."""
    return any(
        getattr(getattr(network, name), "__func__", None) is not getattr(tf_keras.Model, name) for name in _METHODS
    )


class OwnTrainStep:
    """Wraps the `train_step` of a network, and records which values it returns.

    A value that is the result of one of the network's metrics is read from the metric at the end of an epoch, which
    includes the steps of all workers. Other values are those of the last step.

    Create it in the scope of the strategy, because it has a metric.

    Args:
      num_replicas: replicas that do a step together; their values are summed, as Keras does.

    Attributes:
      own_loss: mean of the returned loss over the steps of the epoch; NaN after a step with a NaN.
    """

    def __init__(self, network: tf_keras.Model, num_replicas: int) -> None:
        self._network = network
        self._num_replicas = num_replicas
        # A tf.function in the step would be a graph in a replica, in which no gradients can be applied.
        self._own = getattr(network.train_step, "python_function", network.train_step)
        self.own_loss = tf_keras.metrics.Mean(name="own_loss")
        self._watched: set[int] = set()
        self._updated: set[int] = set()
        self._step = threading.local()  # replicas are traced in threads
        self._names: tuple[str, ...] = ()
        self._metrics: dict[str, tf_keras.metrics.Metric] = {}
        replace(network, "train_step", lambda _: self._do)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the returned values; empty before the first trace."""
        return self._names

    @property
    def running_loss(self) -> tf_keras.metrics.Mean:
        """The metric with the mean loss of the running epoch."""
        metric = self._metrics.get("loss")
        return metric if isinstance(metric, tf_keras.metrics.Mean) else self.own_loss

    def trace(self, batch_spec: Any, run: Callable[[Callable[[Any], Any], Any], Any]) -> None:
        """Traces a step, without running it, to learn its values. Call in the scope of the strategy.

        Args:
          run: calls a step with a batch on each replica.
        """
        tf.function(lambda batch: run(self._network.train_step, batch)).get_concrete_function(batch_spec)

    def results(self, last: Any) -> dict[str, float | None]:
        """The metrics of an epoch, None for undefined ones; call when its steps are done.

        Args:
          last: the values of `plain` in the last step; None without a step.
        """
        measured = {name: objective.value_of(metric) for name, metric in self._metrics.items()}
        fetched = last.fetch() if hasattr(last, "fetch") else last
        values = {name: float(value) for name, value in fetched.items()} if fetched else {}
        reported = {**values, **measured}
        return {name: reported[name] for name in self._names if name in reported}

    def plain(self, returned: Mapping[str, Any]) -> dict[str, tf.Tensor] | None:
        """The values of a step that are in no metric; None if there are none, because closures return values slowly."""
        return {name: returned[name] for name in self._names if name not in self._metrics} or None

    def _do(self, data: Any) -> Any:
        self._begin()
        returned = converted(self._own)(data)
        self._end(returned)
        return returned

    def _begin(self) -> None:
        self._step.results = {}
        for metric in self._network.metrics:
            if id(metric) not in self._watched:
                self._watch(metric)

    def _watch(self, metric: tf_keras.metrics.Metric) -> None:
        """Records in a step that the metric is updated, and its result."""
        self._watched.add(id(metric))
        update_state, result = metric.update_state, metric.result

        def watched_update(*arguments: Any, **options: Any) -> Any:
            if hasattr(self._step, "results"):
                self._updated.add(id(metric))
            return update_state(*arguments, **options)

        def watched_result(*arguments: Any, **options: Any) -> Any:
            value = result(*arguments, **options)
            if hasattr(self._step, "results"):
                self._step.results[id(value)] = (value, metric)  # kept, so that no other tensor gets its id
            return value

        replace(metric, "update_state", lambda _: watched_update)
        replace(metric, "result", lambda _: watched_result)

    def _end(self, returned: Any) -> None:
        results = self._step.results
        del self._step.results
        _check(returned)
        own_metrics = self._network.metrics
        # For these names `fit` reports the metrics, whatever the values are.
        by_name = (
            {metric.name: metric for metric in own_metrics}
            if {metric.name for metric in own_metrics} == set(returned)
            else {}
        )
        names, metrics = [], {}
        for name, value in returned.items():
            result = results.get(id(value))
            metric = result[1] if result else by_name.get(name)
            if metric is not None and id(metric) in self._updated:
                metrics[name] = metric
            if name in metrics or result is None:  # 0 of a metric without updates is not a result
                names.append(name)
        self._names = tuple(names)
        self._metrics = metrics
        if "loss" in names and self.running_loss is self.own_loss:
            loss, count = tf.cast(returned["loss"], tf.float32), self._num_replicas
            self.own_loss.update_state(loss * count, sample_weight=1 / count)


def _check(returned: Any) -> None:
    """Raises ConfigError if it is not a dict, as Keras requires."""
    if not isinstance(returned, dict):
        message = f"its train_step returned {type(returned).__name__}; return a dict of numbers by name"
        raise ConfigError([Problem("model", message)])
    for name, value in returned.items():
        shape = tf.TensorShape(getattr(value, "shape", ()))
        if shape.rank:
            message = (
                f"its train_step returned {name} of shape {shape}; return a scalar, such as tf.reduce_mean({name})"
            )
            raise ConfigError([Problem("model", message)])
