"""The program of a run: data, model, optimizer, loss and metrics, built in the strategy's scope.

A model's own `train_step` returns values: its training reports and checks them, as Keras' `fit` does.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tf_keras

from psrun import parts
from psrun.cluster.strategy import Distribution
from psrun.config.run_config import RunConfig
from psrun.data.source import DataSource, task_of
from psrun.errors import ConfigError, Problem
from psrun.models.model import Model
from psrun.parts import GatheredMetric, Gathering, name_of_output_metric
from psrun.program import embeddings, objective
from psrun.program.batch_checks import spec_of, zeros
from psrun.program.batches import ProgramData
from psrun.program.objective import ExamplesSeen
from psrun.tf_internals import keras
from psrun.tf_internals.coordinator import being_scheduled
from psrun.tf_internals.names import replace
from psrun.tf_internals.tracing import converted, unconverted

# A model that overrides one of these decides what a step returns.
_OF_STEP = ("train_step", "compute_loss", "compute_metrics", "get_metrics_result")


def own_train_step(network: tf_keras.Model, num_replicas: int) -> OwnTrainStep | None:
    """Wraps the `train_step` of a network; None if the network has Keras' step.

    Call it in the scope of the strategy, because it creates a metric.

    Args:
      num_replicas: replicas that do a step together; their values are summed, as Keras does.
    """
    if not _has_own_step(network):
        return None
    # A tf.function in the step would be a graph in a replica, in which no gradients can be applied.
    function = getattr(network.train_step, "python_function", network.train_step)
    own_step = OwnTrainStep(network, function, tf_keras.metrics.Mean(name="own_loss"), num_replicas)
    replace(network, "train_step", lambda _: own_step.do)
    return own_step


def _has_own_step(network: tf_keras.Model) -> bool:
    """Whether the network itself decides what a training step returns."""
    for name in _OF_STEP:
        method = getattr(network, name)
        if getattr(method, "__func__", None) is not getattr(tf_keras.Model, name):
            return True
    return False


class OwnTrainStep:
    """The own `train_step` of a network, which records which values it returns.

    A value that is the result of one of the network's metrics is read from the metric at the end of an epoch, which
    includes the steps of all workers. Other values are the last step's.

    Args:
      function: the network's step, in Python.
      num_replicas: as in `own_train_step`.

    Attributes:
      own_loss: mean of the returned loss over the steps of the epoch; NaN after a step with a NaN.
    """

    def __init__(
        self,
        network: tf_keras.Model,
        function: Callable[[Any], Any],
        own_loss: tf_keras.metrics.Mean,
        num_replicas: int,
    ) -> None:
        self._network = network
        self._function = function
        self.own_loss = own_loss
        self._num_replicas = num_replicas
        self._watched: set[int] = set()
        self._updated: set[int] = set()
        self._step = threading.local()  # replicas are traced in threads
        self._names: tuple[str, ...] = ()
        self._metrics: dict[str, tf_keras.metrics.Metric] = {}

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
        values = {name: float(value) for name, value in (fetched or {}).items()}
        reported = {**values, **measured}
        return {name: reported[name] for name in self._names if name in reported}

    def plain(self, returned: Mapping[str, Any]) -> dict[str, tf.Tensor] | None:
        """The values of a step that are in no metric; None if there are none, because closures return values slowly."""
        return {name: returned[name] for name in self._names if name not in self._metrics} or None

    def do(self, data: Any) -> Any:
        """The step, as Keras calls it."""
        self._begin()
        returned = converted(self._function)(data)
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
        _check_returned(returned)
        own_metrics = self._network.metrics
        # For these names `fit` reports the metrics, whatever the values are.
        by_name = {metric.name: metric for metric in own_metrics}
        if by_name.keys() != returned.keys():
            by_name = {}
        names: list[str] = []
        metrics: dict[str, tf_keras.metrics.Metric] = {}
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
            loss = tf.cast(returned["loss"], tf.float32)
            count = self._num_replicas
            self.own_loss.update_state(loss * count, sample_weight=1 / count)


def _check_returned(returned: Any) -> None:
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


@dataclass(frozen=True)
class Program:
    """A compiled network and its data. `network.optimizer` and all metrics are built: no variable is created later.

    Attributes:
      own_step: wraps the network's own `train_step`; None if the network has Keras'.
    """

    config: RunConfig
    source: DataSource
    model: Model
    distribution: Distribution
    data: ProgramData
    own_step: OwnTrainStep | None = None

    @property
    def network(self) -> tf_keras.Model:
        return self.model.network

    @property
    def optimizer(self) -> Any:
        return self.network.optimizer

    @property
    def iterations(self) -> int:
        """The number of steps applied so far."""
        return int(tf.convert_to_tensor(self.optimizer.iterations).numpy())

    @property
    def loss_names(self) -> list[str]:
        """Names of the reported losses: 'loss', and with several outputs one per output."""
        return [metric.name for metric in self.network.compiled_loss.metrics]

    @property
    def metric_names(self) -> list[str]:
        """Names of the metrics that the network was compiled with."""
        return [metric.name for metric in self.network.compiled_metrics.metrics if not isinstance(metric, ExamplesSeen)]

    @functools.cached_property
    def gathered_metrics(self) -> dict[str, list[GatheredMetric]]:
        """The metrics of gathered examples, which only evaluations have, by output ('' for the only one).

        They are made once, because `model.metrics` makes Keras' metrics too, which have variables.
        """
        return objective.gathered_metrics_of(self.model)

    @property
    def gathered_metric_names(self) -> list[str]:
        """Names of the metrics of gathered examples."""
        names = []
        for output, metrics in self.gathered_metrics.items():
            names += [name_of_output_metric(output, metric) for metric in metrics]
        return names

    @functools.cached_property
    def gatherings(self) -> tuple[Gathering, ...]:
        """How evaluations gather examples; empty if nothing needs it.

        Raises:
          ConfigError: no part computes one of the metrics.
        """
        names = self.gathered_metric_names
        if not names and not self.config.evaluation.set_for_gathering:
            return ()  # the parts are not imported
        found = []
        computed: set[str] = set()
        for name in parts.gatherings():
            gathering: Gathering | None = parts.load(name)(self)
            if gathering is not None:
                found.append(gathering)
                computed.update(gathering.metric_names)
        for metric in names:
            if metric not in computed:
                message = parts.with_missing(f"has {metric}, which no part computes")
                raise ConfigError([Problem("model.metrics", message)])
        return tuple(found)

    @property
    def gradients_per_update(self) -> int:
        """The number of batches that a step, which is one update, is computed from."""
        return self.config.consistency.gradients_per_update(self.distribution.num_workers)

    @property
    def examples_per_step(self) -> int:
        return self.gradients_per_update * self.config.data.batch_size

    @property
    def may_be_logits(self) -> bool:
        """Whether loss or metrics need probabilities, and the network may return something else."""
        return objective.may_be_logits(self.model, task_of(self.source))

    @functools.cached_property
    def prediction_spec(self) -> Any:
        """The spec of the network's outputs for a batch; builds a network that is not built yet."""
        if tf.executing_eagerly() and self.network.built:
            return tf.nest.map_structure(spec_of, traced_forward(self).structured_outputs)
        features = tf.nest.map_structure(zeros, self.data.batch_spec[0])
        return tf.nest.map_structure(spec_of, self.network(features, training=False))

    @property
    def evaluation_examples(self) -> tf.data.Dataset:
        """Every evaluation example once, in this process; made once, each iterator reads every example."""
        return self.data.evaluation_examples

    @functools.cached_property
    def measured_examples(self) -> tf.data.Dataset:
        """`measured_dataset` of this process; made once, each iterator reads every example."""
        return self.measured_dataset() if self.gatherings else self.evaluation_examples

    def measured_dataset(self, context: Any = None, *, shard: tuple[tf.Tensor, int] | None = None) -> tf.data.Dataset:
        """`ProgramData.evaluation_dataset` with what the gatherings of the program need."""
        return self.data.evaluation_dataset(context, shard=shard, gatherings=self.gatherings)


def metric_variables(program: Program) -> list[tf.Variable]:
    """The variables of all metrics, also of what an own training step counts."""
    metrics = [*program.network.metrics]
    if program.own_step is not None:
        metrics.append(program.own_step.own_loss)
    return [variable for metric in metrics for variable in metric.variables]


def decide_lookups(program: Program) -> list[embeddings.Deduplication]:
    """Decides `deduplicate='auto'` of embedding layers by the first training batch, if a layer has it."""
    undecided = any(layer.has_undecided for layer in embeddings.embedding_layers(program.network))
    if program.distribution.coordinator is None or not undecided:
        return []
    if keras.clips_gradients(program.optimizer):
        return []  # as Keras, which clips the gradients of all look-ups before it sums the gradients of a row
    return embeddings.decide_deduplication(program.network, next(iter(program.data.first_batches))[0])


def traced_forward(program: Program) -> Any:
    """The network as a concrete function of a batch's features. It is traced, not run: Keras' Embedding, called outside
    of a function, would fetch the whole of a table that is cut in shards.
    """
    forward = unconverted(lambda batch: program.network(batch, training=False))
    return forward.get_concrete_function(program.data.batch_spec[0])


def check_monitored_metric(key: str, metric: str, program: Program) -> None:
    """Raises ConfigError if neither epochs nor evaluations of the program have a metric of this name."""
    names = monitored_metric_names(program)
    if names and metric not in names:
        message = f"is '{metric}', which this run does not have; choose one of {', '.join(names)}"
        raise ConfigError([Problem(key, message)])


def monitored_metric_names(program: Program) -> list[str]:
    """Names of the metrics of the program's epochs and evaluations.

    None if only the first step reveals them: a custom `train_step` that runs eagerly cannot be traced before.
    """
    own = program.own_step
    usual = [*program.loss_names, *program.metric_names]
    if own is not None and not own.names:
        if program.config.trainer.run_eagerly:
            return []
        strategy = program.distribution.strategy
        with strategy.scope(), being_scheduled(strategy):
            own.trace(program.data.batch_spec, lambda step, batch: strategy.run(step, args=(batch,)))
    names = usual if own is None else [*own.names]
    if program.config.evaluation.runs_on is not None:
        names += [f"val_{name}" for name in (*usual, *program.gathered_metric_names)]
    return names
