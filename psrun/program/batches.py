"""The data of a program: its batches of training and evaluation as the network gets them.

Training batches have the weights of their classes, as with Keras' `fit(class_weight=...)`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

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
from psrun.parts import Gathering
from psrun.program import batch_checks
from psrun.program.batch_checks import BatchChecks, Place, check_spec, evaluated, is_scanned

_CLASS_WEIGHT = "model.class_weight"
# The shuffles of workers must differ, and so must the shuffles of adjacent seeds in a sweep.
_SEED_STRIDE = 1_000_003
_STEP_STRIDE = 7919


def program_data(run: RunConfig, source: DataSource, model: Model, distribution: Distribution) -> ProgramData:
    """The data of a program. Call it eagerly: inside a tf.function TensorFlow reports no errors of sharding.

    Raises:
      ConfigError: the labels have another type than their vocabulary, or the data cannot be shared by its policy.
    """
    to_class_numbers = loading.to_class_numbers(source, run.data.label_vocabulary)
    data = ProgramData(run, source, model, distribution, to_class_numbers)
    return replace(data, sharding=loading.sharding_policy(run, data.batches))


@dataclass(frozen=True)
class ProgramData:
    """The batches of a program.

    Attributes:
      to_class_numbers: converts a batch of labels to class numbers; None if they are class numbers.
      sharding: the policy by which synchronous workers share the training data; see `loading.sharding_policy`.
    """

    config: RunConfig
    source: DataSource
    model: Model
    distribution: Distribution
    to_class_numbers: Callable[[tf.Tensor], tf.Tensor] | None
    sharding: str | None = None

    @property
    def dealt(self) -> bool:
        """Whether the chief assigns batches to workers; otherwise each worker has its own stream."""
        has_workers = self.distribution.coordinator is not None or bool(self.config.cluster.played_by)
        return self.config.data.visitation == "once" and has_workers

    @property
    def own_streams(self) -> bool:
        """Whether each worker reads a separate stream; else all workers read each batch and use parts of it."""
        return self.distribution.coordinator is not None or self.sharding not in (None, "data")

    @property
    def order(self) -> Order | None:
        """The order of the batches; None if they are not numbered."""
        if self.config.data.visitation == "every_worker":
            return None
        assert isinstance(self.source, ByNumber)
        return self.source.order(self.config.data.batch_size, whole_passes=True)

    @functools.cached_property
    def class_weight(self) -> list[float] | None:
        """The weights of the classes 0, 1, ... in training; None where all are 1."""
        weights = self.config.model_keys.class_weight
        if weights is None:
            return None
        names = loading.class_names(self.source, self.config.data.label_vocabulary)
        return weights_by_class(weights, self.source, names)

    @functools.cached_property
    def checks(self) -> BatchChecks:
        """The checks of batches by what the source declares."""
        has_labels = self.to_class_numbers is None and self.config.mode != "predict"
        return BatchChecks(self.source, self.model, has_labels=has_labels)

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
        if not self.source.num_eval_examples or self.config.evaluation.runs_on is None:
            return False
        return len(self.evaluation_examples.element_spec) > 2

    # -- training

    @functools.cached_property
    def first_batches(self) -> tf.data.Dataset:
        """`train_dataset` of this process, for checks before training; made once, each iterator begins anew."""
        return self.train_dataset()

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
        dataset = self.batches(context, first_step=first_step, num_batches_done=num_batches_done, numbers=numbers)
        return loading.sharded(dataset, self.sharding)

    def batches(
        self, context: Any = None, *, first_step: int = 0, num_batches_done: int = 0, numbers: Any = None
    ) -> tf.data.Dataset:
        """As `train_dataset`, before a policy shares the batches among workers."""
        ready = self._ready if self.class_weight is None else self._weighted_by_class
        every_worker = self.config.data.visitation == "every_worker"
        seed = tf.constant(self.config.seed * _SEED_STRIDE, tf.int64)
        if every_worker:
            seed = self._worker(context) + (self.config.seed * _SEED_STRIDE + first_step * _STEP_STRIDE)
        if every_worker and numbers is None and not trains_by_number(self.source):
            return self._streamed(seed, num_batches_done, ready)
        return self._numbered(seed, num_batches_done, numbers, ready)

    def _worker(self, context: Any) -> tf.Tensor:
        """The number of the worker that reads."""
        if self.distribution.coordinator is not None and context is not None:
            return tf.cast(tf.distribute.coordinator.experimental_get_current_worker_index(), tf.int64)
        if self.config.data.sharding == "off":  # else all would read the same batches at the same time
            return tf.constant(loading.worker_index(self.distribution.strategy), tf.int64)
        return tf.constant(0, tf.int64)

    def _streamed(
        self, seed: tf.Tensor, num_batches_done: int, ready: Callable[[tuple[Any, ...], Place], Any]
    ) -> tf.data.Dataset:
        batches = checked_dataset(self.source, "train", batch_size=self.config.data.batch_size, seed=seed)
        self._check_spec(batches.element_spec)
        if num_batches_done:
            batches = batches.skip(num_batches_done)
        return batches.map(lambda *batch: ready(batch, Place("training"))).prefetch(2)

    def _numbered(
        self, seed: tf.Tensor, num_batches_done: int, numbers: Any, ready: Callable[[tuple[Any, ...], Place], Any]
    ) -> tf.data.Dataset:
        source = self.source
        assert isinstance(source, ByNumber)
        batch_numbers = endless(num_batches_done) if numbers is None else numbers()
        specs: list[Any] = []

        def convert(number: tf.Tensor, examples: tf.Tensor, batch: Any) -> Any:
            batch_checks.note_spec(specs, batch)
            prepared = ready(batch, Place("training", examples))
            return prepared if numbers is None else (number, prepared)

        order = self.order or source.order(self.config.data.batch_size)
        with batch_checks.checking_noted_spec(specs, self._check_spec):
            return converted_batches(source, batch_numbers, order, seed, convert).prefetch(2)

    def _check_spec(self, batch: Any) -> None:
        batch_checks.check_list_features(self.source.features, batch)
        check_spec(self.source, batch)

    def _weighted_by_class(self, batch: tuple[Any, ...], place: Place) -> Any:
        features, label, *weight = self._ready(batch, place)
        assert self.class_weight is not None
        return features, label, weights_of_examples(self.class_weight, label, *weight)

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

    # -- evaluation

    @functools.cached_property
    def evaluation_examples(self) -> tf.data.Dataset:
        """`evaluation_dataset` of this process; made once, each iterator reads every example."""
        return self.evaluation_dataset()

    def evaluation_dataset(
        self,
        context: Any = None,
        *,
        shard: tuple[tf.Tensor, int] | None = None,
        gatherings: Sequence[Gathering] = (),
    ) -> tf.data.Dataset:
        """Every evaluation example once.

        Args:
          context: as in `train_dataset`.
          shard: the index of a shard, from 0, and how many there are; for only the examples of that one.
          gatherings: if there are any, each batch has four elements: features, label, weight (() without weights) and
            columns, a tuple of `Gathering.columns`.
        """
        batch_size = eval_batch_size(self.config)
        batches = evaluation_batches(self.source, batch_size, shard)
        first: tf.Tensor | int = 0
        if shard is not None:
            first, _ = shard_of(num_eval_batches(self.config, self.source), shard)

        def with_columns(batch: tuple[Any, ...], place: Place) -> Any:
            raw = batch_checks.ragged_features(batch[0])
            columns = tuple(each.columns(raw) for each in gatherings)
            features, label, *weight = self._ready(batch, place)
            return features, label, weight[0] if weight else (), columns

        ready = with_columns if gatherings else self._ready
        return evaluated(batches, batch_size, ready, first)


def _number(label: Any) -> Any:
    """Labels as Keras' losses and metrics compare them: false is 0, true is 1."""
    return tf.cast(label, tf.float32) if label.dtype == tf.bool else label


def weights_by_class(class_weight: Mapping[Any, float], source: DataSource, names: Sequence[str] | None) -> list[float]:
    """The weights of the classes 0, 1 and so on, from weights by the number or the name of the class.

    Raises:
      ConfigError: the weights do not match the classes of the data.
    """
    task = task_of(source)
    if task == "regression":
        raise ConfigError([Problem(_CLASS_WEIGHT, "requires a classification task; got task=regression")])
    numbers: dict[Any, int] = {name: number for number, name in enumerate(names or ())}
    weights: dict[Any, float] = {}
    for name, weight in class_weight.items():
        number = int(name) if str(name).isdigit() else name
        weights[numbers.get(str(name), number)] = float(weight)
    count = len(weights)
    if task == "multiclass":
        count = source.num_classes
    elif task == "binary":
        count = 2
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
