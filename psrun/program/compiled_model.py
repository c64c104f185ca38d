"""The program of a run: data, model, optimizer, loss and metrics, built in the strategy's scope."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tf_keras

from psrun import parts
from psrun.cluster.strategy import Distribution
from psrun.config.run_config import RunConfig
from psrun.data import autoshard, labels
from psrun.data.order import Order
from psrun.data.source import (
    ByNumber,
    DataSource,
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
from psrun.metrics.gathered import GatheredMetric, Gathering, name_in
from psrun.models.model import Model
from psrun.program import class_weights, list_inputs, lookups, objective
from psrun.program.batch_checks import BatchChecks, Place, check_spec, evaluated, is_scanned
from psrun.program.evaluation_sizes import eval_batch_size
from psrun.program.example_counter import ExamplesSeen
from psrun.program.train_step import OwnTrainStep
from psrun.program.zeros import spec_of, zeros
from psrun.tf_internals import optimizers
from psrun.tf_internals.tracing import unconverted

# The shuffles of workers must differ, and so must those of adjacent seeds in a sweep.
_SEED_STRIDE = 1_000_003
_STEP_STRIDE = 7919


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
            names += [name_in(output, metric) for metric in metrics]
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
        """The policy by which synchronous workers share the training data; see `autoshard.policy`."""
        return autoshard.policy(self.config, self._batches)

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
        return autoshard.applied(dataset, self.sharding)

    @functools.cached_property
    def class_weight(self) -> list[float] | None:
        """The weights of the classes 0, 1, ... in training; None where all are 1."""
        weights = self.config.model_keys.class_weight
        names = labels.class_names(self.source, self.config.data.label_vocabulary)
        return None if weights is None else class_weights.by_class(weights, self.source, names)

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
            worker = tf.constant(autoshard.index(self.distribution.strategy), tf.int64)
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
            list_inputs.note_spec(specs, batch)
            prepared = ready(batch, Place("training", examples))
            return prepared if numbers is None else (number, prepared)

        order = self.order or source.order(batch_size)
        specs: list[Any] = []
        with list_inputs.noted(specs, self._check_spec):
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
        labels.check_specs(dataset.element_spec[1])
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
        return labels.to_class_numbers(self.source, self.config.data.label_vocabulary)

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
            raw = list_inputs.ragged(batch[0])
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
        list_inputs.check_features(self.source.features, batch)
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
        return (self.model.preprocessed(list_inputs.ragged(features)), label, *weight)

    def _by_class(self, batch: tuple[Any, ...], place: Place) -> Any:
        features, label, *weight = self._ready(batch, place)
        assert self.class_weight is not None
        return features, label, class_weights.weight_of(self.class_weight, label, *weight)


def _number(label: Any) -> Any:
    """Labels as Keras' losses and metrics compare them: false is 0, true is 1."""
    return tf.cast(label, tf.float32) if label.dtype == tf.bool else label


def metric_variables(program: Program) -> list[tf.Variable]:
    """Those of all metrics, also of what an own training step counts."""
    own = [] if program.own_step is None else [program.own_step.own_loss]
    return [variable for metric in (*program.network.metrics, *own) for variable in metric.variables]


def decide_lookups(program: Program) -> list[lookups.Deduplication]:
    """Decides `deduplicate='auto'` of embedding layers by the first training batch, if a layer has it."""
    undecided = any(layer.has_undecided for layer in lookups.of(program.network))
    if program.distribution.coordinator is None or not undecided:
        return []
    if optimizers.clips(program.optimizer):
        return []  # as Keras, which clips the gradients of all look-ups and then sums those of a row
    return lookups.decide(program.network, next(iter(program.first_batches))[0])


def traced_forward(program: Program) -> Any:
    """The network as a concrete function of a batch's features. It is traced, not run: Keras' Embedding, called outside
    of a function, would fetch the whole of a table that is cut in shards.
    """
    return unconverted(lambda batch: program.network(batch, training=False)).get_concrete_function(
        program.batch_spec[0]
    )
