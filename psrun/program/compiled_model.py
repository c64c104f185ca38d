"""The program of a run: data, model, optimizer, loss and metrics, built in the strategy's scope.

Its training batches have the weights of their classes, as with Keras' `fit(class_weight=...)`. A
model's own `train_step` returns values: its training reports and checks them, as Keras' `fit` does.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tf_keras

from psrun import parts
from psrun.cluster.strategy import Distribution
from psrun.config.run_config import RunConfig
from psrun.data import loading
from psrun.data.source import (
    ByNumber,
    DataSource,
    Order,
    checked_dataset,
    converted_batches,
    endless,
    evaluation_batches,
    num_batches_of,
    shard_of,
    task_of,
    trains_by_number,
)
from psrun.errors import ConfigError, Problem
from psrun.models.model import Model
from psrun.parts import GatheredMetric, Gathering, name_of_output_metric
from psrun.program import batch_checks, embeddings, objective
from psrun.program.batch_checks import BatchChecks, Place, check_spec, evaluated, is_scanned, spec_of, zeros
from psrun.program.objective import ExamplesSeen
from psrun.tf_internals import keras
from psrun.tf_internals.names import replace
from psrun.tf_internals.strategies import being_scheduled
from psrun.tf_internals.tracing import converted, unconverted

_CLASS_WEIGHT = "model.class_weight"
# A model that overrides one of these decides what a step returns.
_OF_STEP = ("train_step", "compute_loss", "compute_metrics", "get_metrics_result")
# The shuffles of workers must differ, and so must those of adjacent seeds in a sweep.
_SEED_STRIDE = 1_000_003
_STEP_STRIDE = 7919


def weights_by_class(class_weight: Mapping[Any, float], source: DataSource, names: Sequence[str] | None) -> list[float]:
    """The weights of the classes 0, 1 and so on, from those by the number or the name of the class.

    Raises:
      ConfigError: the weights do not match the classes of the data.
    """
    task = task_of(source)
    if task == "regression":
        raise ConfigError([Problem(_CLASS_WEIGHT, "requires a classification task; got task=regression")])
    numbers = {name: number for number, name in enumerate(names or ())}
    weights = {
        numbers.get(str(name), int(name) if str(name).isdigit() else name): float(weight)
        for name, weight in class_weight.items()
    }
    count = source.num_classes if task == "multiclass" else 2 if task == "binary" else len(weights)
    if set(weights) != set(range(count)):
        classes = ", ".join(map(str, weights))
        message = f"has weights for {classes}, must have one for each of the classes 0 to {count - 1}"
        raise ConfigError([Problem(_CLASS_WEIGHT, message)])
    return [weights[number] for number in range(count)]


def weights_of_examples(weights: list[float], label: Any, weight: tf.Tensor | None = None) -> tf.Tensor:
    """The weights of the examples of a batch by their class, multiplied by their own weights.

    Args:
      label: class numbers, (batch,) or (batch, 1), or one-hot, (batch, classes).
      weight: (batch,) or (batch, 1); None for 1.

    Raises:
      ConfigError: there are several labels, one per output.
    """
    if tf.nest.is_nested(label):
        raise ConfigError([Problem(_CLASS_WEIGHT, "requires a model with one output; the labels have several")])
    if label.shape.rank == 1:
        classes = label
    elif label.shape[-1] == 1:
        classes = tf.squeeze(label, axis=-1)
    else:
        classes = tf.argmax(label, axis=-1)
    if classes.dtype.is_floating:
        classes = tf.round(classes)
    by_example = tf.gather(tf.constant(weights), tf.cast(classes, tf.int64))
    if weight is None:
        return by_example
    return weight * tf.reshape(tf.cast(by_example, weight.dtype), tf.shape(weight))


def num_eval_batches(run: RunConfig, source: DataSource) -> int:
    """The number of evaluation batches."""
    return -(-source.num_eval_examples // eval_batch_size(run))


def eval_batch_size(run: RunConfig) -> int:
    """Examples per evaluation batch."""
    return run.evaluation.batch_size or run.data.batch_size


def num_eval_shards(run: RunConfig, source: DataSource, num_workers: int) -> int:
    """Shards of Keras' exact evaluation: a few per worker, and at most one per batch, as Keras requires."""
    return max(1, min(num_eval_batches(run, source), 4 * num_workers))


def has_own_step(network: tf_keras.Model) -> bool:
    """Whether the network itself decides what a training step returns."""
    return any(
        getattr(getattr(network, name), "__func__", None) is not getattr(tf_keras.Model, name) for name in _OF_STEP
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
        _check_returned(returned)
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
    def dealt(self) -> bool:
        """Whether the chief assigns batches to workers; otherwise each worker has its own stream."""
        return self.config.data.visitation == "once" and self.distribution.coordinator is not None

    @property
    def may_be_logits(self) -> bool:
        """Whether loss or metrics need probabilities, and the network may return something else."""
        return objective.may_be_logits(self.model, task_of(self.source))

    @functools.cached_property
    def sharding(self) -> str | None:
        """The policy by which synchronous workers share the training data; see `loading.sharding_policy`."""
        return loading.sharding_policy(self.config, self._batches)

    @property
    def own_streams(self) -> bool:
        """Whether each worker reads a separate stream; else all workers read each batch and use parts of it."""
        return self.distribution.coordinator is not None or self.sharding not in (None, "data")

    def train_dataset(
        self, context: Any = None, *, first_step: int = 0, num_batches_done: int = 0, numbers: Any = None
    ) -> tf.data.Dataset:
        """Endless batches of `data.global_batch_size`. Called on each worker: every one shuffles all of the examples
        differently.

        Args:
          context: not None if called on a worker of a coordinator.
          first_step: of a resumed run; where there is more than one stream, it shuffles differently from the run
            before.
          num_batches_done: number of batches to skip at the start.
          numbers: makes a dataset of the numbers of the batches to read. Each element is then the number and the batch.
        """
        dataset = self._batches(context, first_step=first_step, num_batches_done=num_batches_done, numbers=numbers)
        return loading.sharded(dataset, self.sharding)

    @functools.cached_property
    def class_weight(self) -> list[float] | None:
        """The weights of the classes 0, 1, ... in training; None where all are 1."""
        weights = self.config.model_keys.class_weight
        names = loading.class_names(self.source, self.config.data.label_vocabulary)
        return None if weights is None else weights_by_class(weights, self.source, names)

    def _batches(
        self, context: Any = None, *, first_step: int = 0, num_batches_done: int = 0, numbers: Any = None
    ) -> tf.data.Dataset:
        seed = self.config.seed * _SEED_STRIDE
        batch_size = self.config.data.batch_size
        once = self.config.data.visitation != "every_worker"
        worker = tf.constant(0, tf.int64)
        if self.distribution.coordinator is not None and context is not None:
            worker = tf.cast(tf.distribute.coordinator.experimental_get_current_worker_index(), tf.int64)
        elif self.config.data.sharding == "off":  # else all would read the same batches at the same time
            worker = tf.constant(loading.worker_index(self.distribution.strategy), tf.int64)
        own = tf.constant(seed, tf.int64) if once else worker + (seed + first_step * _STEP_STRIDE)
        ready = self._ready if self.class_weight is None else self._by_class
        source = self.source
        if not once and numbers is None and not trains_by_number(source):
            batches = checked_dataset(source, "train", batch_size=batch_size, seed=own)
            self._check_spec(batches.element_spec)
            if num_batches_done:
                batches = batches.skip(num_batches_done)
            return batches.map(lambda *batch: ready(batch, Place("training"))).prefetch(2)
        assert isinstance(source, ByNumber)
        batch_numbers = endless(num_batches_done) if numbers is None else numbers()

        def convert(number: tf.Tensor, examples: tf.Tensor, batch: Any) -> Any:
            batch_checks.note_spec(specs, batch)
            prepared = ready(batch, Place("training", examples))
            return prepared if numbers is None else (number, prepared)

        order = self.order or source.order(batch_size)
        specs: list[Any] = []
        with batch_checks.checking_noted_spec(specs, self._check_spec):
            return converted_batches(source, batch_numbers, order, own, convert).prefetch(2)

    @functools.cached_property
    def first_batches(self) -> tf.data.Dataset:
        """`train_dataset` of this process, for checks before training; made once, each iterator begins anew."""
        return self.train_dataset()

    @functools.cached_property
    def evaluation_examples(self) -> tf.data.Dataset:
        """`evaluation_dataset` of this process; made once, each iterator reads every example."""
        return self.evaluation_dataset()

    @functools.cached_property
    def measured_examples(self) -> tf.data.Dataset:
        """`measured_dataset` of this process; made once, each iterator reads every example."""
        return self.measured_dataset() if self.gatherings else self.evaluation_examples

    @functools.cached_property
    def batch_spec(self) -> Any:
        """The spec of a training batch.

        Raises:
          ConfigError: the training data ends.
        """
        dataset = self.first_batches
        if (num_batches := num_batches_of(dataset)) is not None:
            message = f"the training data ends after {num_batches} batches; make it endless with .repeat()"
            raise ConfigError([Problem("data", message)])
        loading.check_label_specs(dataset.element_spec[1])
        return dataset.element_spec

    @functools.cached_property
    def weighted(self) -> bool:
        """Whether training or evaluation examples have weights; class weights do not count."""
        trained = self.batch_spec
        if self.class_weight is not None:
            trained = checked_dataset(self.source, "train", batch_size=1, seed=tf.constant(0, tf.int64)).element_spec
        if len(trained) > 2:
            return True
        evaluated = self.source.num_eval_examples and self.config.evaluation.runs_on is not None
        return bool(evaluated) and len(self.evaluation_examples.element_spec) > 2

    @functools.cached_property
    def prediction_spec(self) -> Any:
        """The spec of the network's outputs for a batch; builds a network that is not built yet."""
        if tf.executing_eagerly() and self.network.built:
            return tf.nest.map_structure(spec_of, traced_forward(self).structured_outputs)
        features = tf.nest.map_structure(zeros, self.batch_spec[0])
        return tf.nest.map_structure(spec_of, self.network(features, training=False))

    @functools.cached_property
    def to_class_numbers(self) -> Callable[[tf.Tensor], tf.Tensor] | None:
        """Converts a batch of labels to class numbers; None if they are class numbers."""
        return loading.to_class_numbers(self.source, self.config.data.label_vocabulary)

    @property
    def order(self) -> Order | None:
        """The order of the batches; None if they are not numbered."""
        if self.config.data.visitation == "every_worker":
            return None
        assert isinstance(self.source, ByNumber)
        return self.source.order(self.config.data.batch_size, whole_passes=True)

    def evaluation_dataset(self, context: Any = None, *, shard: tuple[tf.Tensor, int] | None = None) -> tf.data.Dataset:
        """Every evaluation example once.

        Args:
          context: as in `train_dataset`.
          shard: the index of a shard, from 0, and how many there are; for only the examples of that one.
        """
        return self._evaluated(shard, self._ready)

    def measured_dataset(self, context: Any = None, *, shard: tuple[tf.Tensor, int] | None = None) -> tf.data.Dataset:
        """As `evaluation_dataset`; if examples are gathered, each batch has four elements: features, label, weight (()
        without weights) and columns, a tuple of `Gathering.columns`.
        """
        gatherings = self.gatherings
        if not gatherings:
            return self.evaluation_dataset(context, shard=shard)

        def with_columns(batch: tuple[Any, ...], place: Place) -> Any:
            raw = batch_checks.ragged_features(batch[0])
            columns = tuple(each.columns(raw) for each in gatherings)
            features, label, *weight = self._ready(batch, place)
            return features, label, weight[0] if weight else (), columns

        return self._evaluated(shard, with_columns)

    def _evaluated(
        self, shard: tuple[tf.Tensor, int] | None, ready: Callable[[tuple[Any, ...], Place], Any]
    ) -> tf.data.Dataset:
        batch_size = eval_batch_size(self.config)
        batches = evaluation_batches(self.source, batch_size, shard)
        first: tf.Tensor | int = 0
        if shard is not None:
            first, _ = shard_of(-(-self.source.num_eval_examples // batch_size), shard)
        return evaluated(batches, batch_size, ready, first)

    def _check_spec(self, batch: Any) -> None:
        batch_checks.check_list_features(self.source.features, batch)
        check_spec(self.source, batch)

    @functools.cached_property
    def checks(self) -> BatchChecks:
        """The checks of batches by what the source declares."""
        has_labels = self.to_class_numbers is None and self.config.mode != "predict"
        return BatchChecks(self.source, self.model, has_labels=has_labels)

    def _ready(self, batch: tuple[Any, ...], place: Place) -> Any:
        """A batch as the network gets it. Its values are checked, unless all training examples have been."""
        known = is_scanned(self.source) or getattr(self.source, "is_checked", False)
        if place.kind == "evaluation" or not known:
            batch = self.checks.checked(batch, place)
        features, label, *weight = batch
        if self.to_class_numbers is not None:
            label = self.to_class_numbers(label)
        label = tf.nest.map_structure(_number, label)
        return (self.model.preprocessed(batch_checks.ragged_features(features)), label, *weight)

    def _by_class(self, batch: tuple[Any, ...], place: Place) -> Any:
        features, label, *weight = self._ready(batch, place)
        assert self.class_weight is not None
        return features, label, weights_of_examples(self.class_weight, label, *weight)


def _number(label: Any) -> Any:
    """Labels as Keras' losses and metrics compare them: false is 0, true is 1."""
    return tf.cast(label, tf.float32) if label.dtype == tf.bool else label


def metric_variables(program: Program) -> list[tf.Variable]:
    """Those of all metrics, also of what an own training step counts."""
    own = [] if program.own_step is None else [program.own_step.own_loss]
    return [variable for metric in (*program.network.metrics, *own) for variable in metric.variables]


def decide_lookups(program: Program) -> list[embeddings.Deduplication]:
    """Decides `deduplicate='auto'` of embedding layers by the first training batch, if a layer has it."""
    undecided = any(layer.has_undecided for layer in embeddings.embedding_layers(program.network))
    if program.distribution.coordinator is None or not undecided:
        return []
    if keras.clips_gradients(program.optimizer):
        return []  # as Keras, which clips the gradients of all look-ups and then sums those of a row
    return embeddings.decide_deduplication(program.network, next(iter(program.first_batches))[0])


def traced_forward(program: Program) -> Any:
    """The network as a concrete function of a batch's features. It is traced, not run: Keras' Embedding, called outside
    of a function, would fetch the whole of a table that is cut in shards.
    """
    return unconverted(lambda batch: program.network(batch, training=False)).get_concrete_function(
        program.batch_spec[0]
    )


def check_monitored_metric(key: str, metric: str, program: Program) -> None:
    """Raises ConfigError if neither epochs nor evaluations of the program have a metric of this name."""
    names = monitored_metric_names(program)
    if names and metric not in names:
        raise ConfigError(
            [Problem(key, f"is '{metric}', which this run does not have; choose one of {', '.join(names)}")]
        )


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
            own.trace(program.batch_spec, lambda step, batch: strategy.run(step, args=(batch,)))
    names = usual if own is None else [*own.names]
    if program.config.evaluation.runs_on is not None:
        names += [f"val_{name}" for name in (*usual, *program.gathered_metric_names)]
    return names
