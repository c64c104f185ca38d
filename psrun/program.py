"""What a run trains: data, model, optimizer, loss and metrics, built inside the strategy's scope."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tf_keras

from psrun import choices, filling, layers, sharding, targets
from psrun.config import RunConfig
from psrun.data.order import Order
from psrun.data.source import ByNumber, DataSource
from psrun.errors import ConfigError, Problem
from psrun.metrics import ExamplesSeen
from psrun.models.model import Model, refuse_single_files
from psrun.strategy import Distribution

losses, metrics = tf_keras.losses, tf_keras.metrics

_LOSS = {
    "binary": losses.BinaryCrossentropy,
    "multiclass": losses.SparseCategoricalCrossentropy,
    "regression": losses.MeanSquaredError,
}
_METRICS: dict[str, Callable[[], list]] = {
    "binary": lambda: [metrics.AUC(name="auc"), metrics.BinaryAccuracy(name="accuracy")],
    "multiclass": lambda: [metrics.SparseCategoricalAccuracy(name="accuracy")],
    "regression": lambda: [metrics.MeanAbsoluteError(name="mae")],
}
# Workers' shuffles must differ, and so must those of seeds that stand side by side in a sweep.
_SEED_STRIDE = 1_000_003
_STEP_STRIDE = 7919


@dataclass(frozen=True)
class Program:
    """A compiled network and its data. `network.optimizer` and all metrics are built: no variable is made later.

    Attributes:
      metric_names: of the metrics that it was compiled with; Keras numbers those that have none, anew each time.
    """

    config: RunConfig
    source: DataSource
    model: Model
    loss: tf_keras.losses.Loss
    distribution: Distribution
    metric_names: tuple[str, ...]

    @property
    def network(self) -> tf_keras.Model:
        return self.model.network

    @property
    def optimizer(self) -> Any:
        return self.network.optimizer

    def new_metrics(self) -> list[tf_keras.metrics.Metric]:
        """Fresh metric objects; where their variables live is decided by the scope of the caller."""
        made = _metrics_of(self.model, self.source)
        for metric, name in zip(made, self.metric_names):
            metric._name = name  # no other way to name an object that somebody else makes; a test pins it
        return made

    @property
    def dealt(self) -> bool:
        """Whether workers are told which batches they are to read; else each has a stream of its own."""
        return self.config.data.visitation == "once" and self.distribution.coordinator is not None

    @functools.cached_property
    def sharding(self) -> str | None:
        """By which policy workers that do every step together share the training data; see `sharding.policy`."""
        return sharding.policy(self.config, self._batches)

    @property
    def own_streams(self) -> bool:
        """Whether each worker reads a stream of its own; else each batch is read by all, who take parts of it."""
        return self.distribution.coordinator is not None or self.sharding not in (None, "data")

    def train_dataset(
        self, context: Any = None, *, first_step: int = 0, num_batches_done: int = 0, numbers: Any = None
    ) -> tf.data.Dataset:
        """Endless batches of `data.global_batch_size`. Called on each worker: every one shuffles all of the examples
        differently.

        Args:
          context: anything but None where called on a worker of a coordinator.
          first_step: of a run that goes on; where there is more than one stream, it shuffles differently from the run
            before.
          num_batches_done: how many of the first batches to leave out.
          numbers: makes a dataset of the numbers of the batches to read. Then they come with numbers: that of the
            batch, and those of its examples plus the worker's index times how many examples there are.
        """
        made = self._batches(context, first_step=first_step, num_batches_done=num_batches_done, numbers=numbers)
        return sharding.applied(made, self.sharding)

    def _batches(
        self, context: Any = None, *, first_step: int = 0, num_batches_done: int = 0, numbers: Any = None
    ) -> tf.data.Dataset:
        seed, batch_size = self.config.seed * _SEED_STRIDE, self.config.data.global_batch_size
        once, worker = self.config.data.visitation != "every_worker", tf.constant(0, tf.int64)
        if self.distribution.coordinator is not None and context is not None:
            worker = tf.cast(tf.distribute.coordinator.experimental_get_current_worker_index(), tf.int64)
        elif self.config.data.sharding == "off":  # else all would read the same at the same time
            worker = tf.constant(sharding.index(self.distribution.strategy), tf.int64)
        own = tf.constant(seed, tf.int64) if once else worker + (seed + first_step * _STEP_STRIDE)
        if not once and numbers is None:
            batches = self.source.train(batch_size=batch_size, seed=own)
            return self._preprocessed(batches.skip(num_batches_done) if num_batches_done else batches)
        assert isinstance(self.source, ByNumber)
        wanted = tf.data.Dataset.counter(num_batches_done) if numbers is None else numbers()
        read = self.source.batches(wanted, self.order or self.source.order(batch_size), own)
        if numbers is None:
            return self._preprocessed(read.map(lambda number, examples, batch: batch))
        first = worker * self.source.num_train_examples
        return self._preprocessed(read, lambda number, examples, batch: (number, first + examples, self._ready(*batch)))

    @functools.cached_property
    def batch_spec(self) -> Any:
        """What a batch is like that the network is trained on.

        Raises:
          ConfigError: the training data ends.
        """
        dataset = self.train_dataset()
        cardinality = int(dataset.cardinality()) if tf.executing_eagerly() else tf.data.INFINITE_CARDINALITY
        if cardinality not in (tf.data.INFINITE_CARDINALITY, tf.data.UNKNOWN_CARDINALITY):
            raise ConfigError(
                [Problem("data", f"the training data ends after {cardinality} batches; make it endless with .repeat()")]
            )
        return dataset.element_spec

    @property
    def order(self) -> Order | None:
        """Of the batches; None where they are not numbered."""
        if self.config.data.visitation == "every_worker":
            return None
        assert isinstance(self.source, ByNumber)
        return self.source.order(self.config.data.global_batch_size, whole_passes=True)

    def evaluation_dataset(self, context: Any = None, *, shard: tuple[tf.Tensor, int] | None = None) -> tf.data.Dataset:
        """Every evaluation example once.

        Args:
          context: as in `train_dataset`.
          shard: the index of a shard, from 0, and how many there are; for only the examples of that one.
        """
        batch_size = eval_batch_size(self.config)
        if shard is None:
            return self._preprocessed(self.source.evaluation(batch_size=batch_size))
        if _in_shards(self.source.evaluation):
            own = self.source.evaluation(batch_size=batch_size, shard=shard)  # type: ignore[call-arg]
        else:
            index, count = shard
            own = self.source.evaluation(batch_size=batch_size).shard(count, index)
        return self._preprocessed(own)

    def _ready(self, features: Any, *rest: Any) -> Any:
        preprocessing = self.model.preprocessing
        return (features if preprocessing is None else preprocessing(features), *rest)

    def _preprocessed(self, dataset: tf.data.Dataset, ready: Callable[..., Any] | None = None) -> tf.data.Dataset:
        if ready is None and self.model.preprocessing is not None:
            ready = self._ready
        return (dataset if ready is None else dataset.map(ready)).prefetch(2)


def _in_shards(read: Callable[..., tf.data.Dataset]) -> bool:
    return "shard" in inspect.signature(read).parameters


def start_afresh(seed: int) -> None:
    """Names and random numbers of a new process, whatever was built before in this one. Call before `build`."""
    tf_keras.backend.clear_session()
    tf_keras.utils.set_random_seed(seed)


def build(run: RunConfig, source: DataSource, distribution: Distribution) -> Program:
    """Makes the model and everything that trains it, in the scope of the run's strategy.

    Raises:
      ConfigError: model, data and options do not fit each other.
    """
    with filling.in_place(), distribution.strategy.scope():
        model = make_model(run, source)
        if run.parameter_servers and not isinstance(run.partitioner, choices.NoPartitioner):
            refuse_single_files(model.network)
        made = _metrics_of(model, source)
        names = tuple(metric.name for metric in made)
        program = Program(run, source, model, model.loss or _LOSS[source.task](), distribution, names)
        counters = [ExamplesSeen()] if isinstance(run.evaluation, choices.Validation) else []
        exact = isinstance(run.evaluation, choices.Validation) and run.parameter_servers
        model.network.compile(
            optimizer=targets.called(run.optimizer),
            loss=program.loss,
            metrics=[*made, *counters],
            steps_per_execution=run.trainer.num_steps_packed,
            run_eagerly=run.trainer.run_eagerly,
            pss_evaluation_shards=_num_eval_shards(run, source, distribution.num_workers) if exact else 0,
        )
    _ = program.sharding  # within a function, as a plan is made in, it cannot be found
    return program


def _metrics_of(model: Model, source: DataSource) -> list[tf_keras.metrics.Metric]:
    return (model.metrics or _METRICS[source.task])()


def make_model(run: RunConfig, source: DataSource) -> Model:
    """The model of the run; where its variables live is decided by the scope of the caller.

    Raises:
      ConfigError: model, data and options do not fit each other.
    """
    made = targets.called(run.model, source=source, seed=run.seed)
    model = Model(made) if isinstance(made, tf_keras.Model) else made
    if not isinstance(model, Model):
        raise ConfigError([Problem("model._target_", f"{run.model.name} returned {type(made).__name__}, not a model")])
    return model


def build_state(program: Program) -> None:
    """Makes the variables that Keras would make at the first step: slots, metrics, layers not built yet.

    On workers they could not be made, and a checkpoint restored before they exist loses the slots without a word.
    """
    network = program.network
    with filling.in_place(), program.distribution.strategy.scope():
        spec = program.batch_spec
        features, label = tf.nest.map_structure(zeros, spec)
        if tf.executing_eagerly() and network.built:
            prediction = tf.nest.map_structure(zeros, traced_forward(program).structured_outputs)
        else:
            prediction = network(features, training=False)
        optimizer = network.optimizer
        if isinstance(optimizer, tf_keras.optimizers.legacy.Optimizer):
            _ = optimizer.iterations
            optimizer._create_all_weights(network.trainable_variables)  # the only way; Keras calls it at the first step
        else:
            optimizer.build(network.trainable_variables)
        network.compiled_loss.build(prediction)
        network.compiled_metrics.build(prediction, label)


def metric_variables(program: Program) -> list[tf.Variable]:
    return [variable for metric in program.network.metrics for variable in metric.variables]


def check_metric(key: str, metric: str, program: Program) -> None:
    """Raises ConfigError where epochs and evaluations of the program will have no metric of that name."""
    names = ["loss", *program.metric_names]
    if not isinstance(program.config.evaluation, choices.NoEvaluation):
        names += [f"val_{name}" for name in names]
    if metric not in names:
        raise ConfigError([Problem(key, f"is '{metric}', no metric of this run; there are {', '.join(names)}")])


def decide_lookups(program: Program) -> list[layers.Decided]:
    """Decides for embedding layers what they leave open, by the first batch of the training data, if any does."""
    if program.distribution.coordinator is None or all(
        layer.deduplicate != "auto" for layer in layers.of(program.network)
    ):
        return []
    features, _ = next(iter(program.train_dataset()))
    return layers.decide(program.network, features)


def traced_forward(program: Program) -> Any:
    """The network as a concrete function of a batch's features. It is traced, not run: Keras' Embedding, called outside
    of a function, would fetch the whole of a table that is cut in shards.
    """
    features, _ = program.batch_spec
    return tf.function(lambda batch: program.network(batch, training=False)).get_concrete_function(features)


def zeros(spec: tf.TensorSpec, batch_size: int = 1) -> tf.Tensor:
    """Zeros, or empty strings, of a spec whose first axis is the batch."""
    shape = [batch_size, *spec.shape[1:]]
    return tf.fill(shape, "") if spec.dtype == tf.string else tf.zeros(shape, spec.dtype)


def num_eval_batches(run: RunConfig, source: DataSource) -> int:
    """How many batches the evaluation examples make."""
    return -(-source.num_eval_examples // eval_batch_size(run))


def eval_batch_size(run: RunConfig) -> int:
    """Examples of a batch that is evaluated."""
    return getattr(run.evaluation, "batch_size", None) or run.data.global_batch_size


def _num_eval_shards(run: RunConfig, source: DataSource, num_workers: int) -> int:
    """Shards of Keras' exact evaluation: a few a worker, but never more than there are batches, which it cannot do."""
    return max(1, min(num_eval_batches(run, source), 4 * num_workers))
