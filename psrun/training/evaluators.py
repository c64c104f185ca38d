"""Evaluations: the metric objects and the result of one, and the evaluators that psrun runs between
epochs.

`direct` evaluates in this process, `distributed` and `exact` on the workers. For `exact` the
evaluation data is split into shards: numbers of consecutive batches. A closure returns labels,
predictions, weights and losses of one shard as plain values and changes no variable, so that it can
run again elsewhere if its worker is lost: each example counts exactly once. The coordinator has the
only metrics, and updates them once with each shard, so that any Keras metric works, also one that
cannot be merged. `validation` is part of Keras' `fit`; here is only its check.
"""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf
import tf_keras

from psrun import files
from psrun.closures.training_closures import InFlightClosures
from psrun.config import choices
from psrun.data.source import task_of
from psrun.errors import ConfigError, Problem
from psrun.program import objective
from psrun.program.adapters import AdaptedModel
from psrun.program.batch_checks import any_number, spec_of, zeros
from psrun.program.batches import num_eval_batches
from psrun.program.compiled_model import Program
from psrun.program.objective import ExamplesSeen
from psrun.tf_internals import keras
from psrun.tf_internals.coordinator import per_worker_iterator
from psrun.tf_internals.strategies import iterator_spec
from psrun.tf_internals.tracing import unconverted

_IN_FLIGHT_PER_WORKER = 2
# Enough that a fast worker finds more work, and little work is repeated when a worker is lost.
SHARDS_PER_WORKER = 4


@dataclass(frozen=True)
class Evaluation:
    """The result of one evaluation.

    Attributes:
      examples_seen: counted, example by example.
      metrics: by name; None for one that is undefined.
      estimates: by output ('' for the only one), what `psrun.parts.Gathered.result` gives to record; empty
        if there is none.
      warnings: of what was gathered (`psrun.parts.Gathered.warnings`); not recorded with the metrics.
      seconds: that it took; None if nobody measured it.
    """

    mode: str
    step: int
    examples_seen: int
    metrics: dict[str, float | None]
    estimates: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    seconds: float | None = field(default=None, compare=False)

    @property
    def values(self) -> dict[str, float]:
        """The metrics that are defined, with their names among the metrics of the training."""
        return {f"val_{name}": value for name, value in self.metrics.items() if value is not None}

    @property
    def recorded(self) -> dict[str, Any]:
        """What events and files hold of it."""
        recorded = asdict(self)
        del recorded["warnings"]
        if not self.estimates:
            del recorded["estimates"]
        if self.seconds is None:
            del recorded["seconds"]
        return recorded

    @property
    def undefined(self) -> str | None:
        """A warning about the metrics that are undefined; None if there are none."""
        return undefined_warning({f"val_{name}": value for name, value in self.metrics.items()}, "evaluation examples")

    def keep(self, folder: Path, checkpoint: str, settings: Mapping[str, Any] | None = None) -> Path:
        """Writes this evaluation of the checkpoint with this digest to a file; returns its path.

        It is STEP-MODE.json, or STEP-MODE-2.json and so on beside evaluations with other settings.

        Args:
          settings: the keys that it follows from, as a plain value; None to replace STEP-MODE.json whatever it has.
        """
        folder.mkdir(exist_ok=True)
        kept = {**self.recorded, "checkpoint": checkpoint}
        path = folder / f"{self.step}-{self.mode}.json"
        if settings is not None:
            kept["settings"] = settings
            number = 1
            while path.exists() and files.load_mapping(path)[0].get("settings") != settings:
                number += 1
                path = folder / f"{self.step}-{self.mode}-{number}.json"
        files.write_atomic(path, json.dumps(kept, indent=2) + "\n")
        return path


def undefined_warning(metrics: Mapping[str, float | None], examples: str) -> str | None:
    """A warning about the metrics that are None; None if there are none.

    Args:
      examples: what they were measured on.
    """
    names = [name for name, value in metrics.items() if value is None]
    if not names:
        return None
    return (
        f"{', '.join(names)}: undefined, because all {examples} whose weight is not 0 are of one class, or no user's "
        "list has what is compared. It is null in run.json; best checkpoint, early stopping and reduce_lr do not "
        "compare it"
    )


def kept_evaluations(folder: Path, mode: str) -> Iterator[tuple[Evaluation, str]]:
    """The recorded evaluations of a mode in a folder, in the order of their steps, each with its checkpoint."""
    evaluations = []
    for path in folder.glob(f"*-{mode}.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            recorded = json.loads(path.read_text(encoding="utf-8"))
            checkpoint = recorded.pop("checkpoint")
            recorded.pop("settings", None)
            evaluations.append((Evaluation(**recorded), checkpoint))
    yield from sorted(evaluations, key=lambda pair: pair[0].step)


class Measured(NamedTuple):
    """Labels, predictions, weights and losses of examples, each as the network and the data have it, or by output.

    Attributes:
      masks: of the predictions, for each output; () for one without a mask.
      weight: of the examples; () without weights.
      losses: their means by name (`Program.loss_names`).
      columns: of the examples, for each of `Program.gatherings`.
    """

    label: Any
    prediction: Any
    masks: tuple[Any, ...]
    weight: Any
    losses: Any
    columns: tuple[Any, ...] = ()

    @property
    def num_examples(self) -> tf.Tensor:
        return tf.shape(tf.nest.flatten(self.label)[0])[0]


class Meters:
    """The metric objects of an evaluation, separate from the training's metrics, with the same names.

    The scope of the caller decides the placement of their variables. They use the weights of examples, if any.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._seen = ExamplesSeen()
        self._losses = {name: tf_keras.metrics.Mean(name=name) for name in program.loss_names}
        metrics = objective.metrics_of(program.model, task_of(program.source), evaluating=True)
        self._metrics = keras.built_metrics(
            metrics, program.network, program.prediction_spec, program.data.batch_spec[1], program.metric_names
        )
        self._gathered = [each.begin(self._metrics.metrics) for each in program.gatherings]
        self._outside: tf_keras.metrics.Sum | None = None
        if program.may_be_logits:
            self._outside = tf_keras.metrics.Sum(name="outside", dtype=tf.int64)

    @property
    def metrics(self) -> list[tf_keras.metrics.Metric]:
        """The metrics of predictions and labels, without losses and counts."""
        return self._metrics.metrics

    def reset(self) -> None:
        outside = [] if self._outside is None else [self._outside]
        for metric in (self._seen, *self._losses.values(), *self._metrics.metrics, *outside):
            metric.reset_state()
        for gathered in self._gathered:
            gathered.reset()

    def measure(self, batch: tuple[Any, ...]) -> Measured:
        """Runs the model on a batch of `Program.measured_dataset`."""
        columns = batch[3] if len(batch) == 4 else ()
        features, label, weight = tf_keras.utils.unpack_x_y_sample_weight(batch[:3])
        prediction = self._program.network(features, training=False)
        losses = self._losses_of(label, prediction, _or_none(weight))
        masks = keras.masks_of(prediction)
        if weight is None:
            weight = ()
        return Measured(label, prediction, masks, weight, losses, columns)

    def _losses_of(self, label: Any, prediction: Any, weight: Any) -> dict[str, tf.Tensor]:
        """The mean losses of a batch by name: the total, with regularization, and one for each of several outputs."""
        network = self._program.network
        by_output = keras.losses_by_output(network.compiled_loss, label, prediction, weight)
        losses = {"loss": tf.add_n([*by_output.values(), *network.losses])}
        if len(self._losses) > 1:
            losses |= {f"{name}_loss": value for name, value in by_output.items()}
        return losses

    def update(self, measured: Measured) -> None:
        """Updates the metrics with batches of examples."""
        label, prediction, masks, weight, losses, _ = measured
        keras.attach_masks(prediction, masks)
        for name, loss in losses.items():
            self._losses[name].update_state(loss, sample_weight=measured.num_examples)
        self._seen.update_state(label, prediction)
        self._metrics.update_state(label, prediction, sample_weight=_or_none(weight))
        if self._outside is not None:
            self._outside.update_state(objective.num_outside(prediction))

    def take_in(self, measured: Measured) -> Any:
        """Updates the metrics with batches of examples; returns their `rows`."""
        self.update(measured)
        return self.rows(measured)

    def rows(self, measured: Measured) -> Any:
        """What is gathered of batches of examples: the argument of `keep`; runs where the model does."""
        label, prediction, _, weight, _, columns = measured
        rows = []
        for gathered, own in zip(self._gathered, columns):
            rows.append(gathered.rows(own, label, prediction, weight))
        return tuple(rows)

    def keep(self, rows: Any) -> None:
        """Keeps the `rows` of batches, for metrics that need examples of several batches together."""
        for gathered, row in zip(self._gathered, rows):
            gathered.add(tf.nest.map_structure(np.asarray, row))

    def result(self, mode: str, step: int, progress: Callable[[], None] = lambda: None) -> Evaluation:
        """The metrics since the last reset.

        Args:
          progress: called again and again while gathered examples are measured, which may take long.

        Raises:
          ConfigError: predictions were no probabilities, which loss and metrics need.
        """
        if self._outside is not None and (count := int(self._outside.result())):
            raise objective.outside_error(count, "the evaluation data")
        values = self.values()
        recorded: dict[str, Any] = {}
        warnings: list[str] = []
        for gathered in self._gathered:
            metrics, more = gathered.result(progress)
            values |= metrics
            recorded |= more
            warnings += gathered.warnings
        return Evaluation(mode, step, int(self._seen.result()), values, recorded, tuple(warnings))

    def values(self) -> dict[str, float | None]:
        """The current metrics by name; None for one that is undefined."""
        losses = {metric.name: float(metric.result()) for metric in self._losses.values()}
        return losses | {metric.name: objective.value_of(metric) for metric in self._metrics.metrics}


def _or_none(weight: Any) -> Any:
    """The weights of examples; None without weights."""
    return weight if tf.nest.flatten(weight) else None


class Evaluator(Protocol):
    """Evaluates a program when no step runs."""

    def evaluate(self, step: int, progress: Callable[[], None]) -> Evaluation:
        """Metrics of the current variables; `step` is the current step of the training.

        Args:
          progress: called periodically during the evaluation.
        """
        ...


def timed(evaluator: Evaluator, step: int, progress: Callable[[], None]) -> Evaluation:
    """`Evaluator.evaluate`, with the seconds that it took."""
    began_s = time.monotonic()
    evaluation = evaluator.evaluate(step, progress)
    return replace(evaluation, seconds=round(time.monotonic() - began_s, 3))


def make(program: Program) -> Evaluator | None:
    """The evaluation by this process; None if it runs none.

    Raises:
      ConfigError: the evaluation data never ends, or differs in shape from the training data.
    """
    evaluation = program.config.evaluation
    if evaluation.runs_on is None:
        return None
    _check_data(program)
    if evaluation.runs_on == "evaluator":
        return None
    evaluator: Evaluator = evaluation.load()(program)
    return evaluator


def _check_data(program: Program) -> None:
    evaluation = program.evaluation_examples
    if int(evaluation.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise ConfigError([Problem("data", "the evaluation data is endless; remove .repeat()")])
    here = _shapes_and_types(evaluation.element_spec)
    there = _shapes_and_types(program.data.batch_spec)
    if here != there:
        message = f"evaluation examples have the spec {here}, but training examples {there}; make them equal"
        raise ConfigError([Problem("data", message)])
    _check_gathering(program)


def _shapes_and_types(batch: Any) -> Any:
    """The texts of the specs of features and labels, which may be followed by weights."""
    return tf.nest.map_structure(lambda spec: f"{spec.shape[1:]} {spec.dtype.name}", batch[:2])


def _check_gathering(program: Program) -> None:
    """Raises ConfigError if the evaluation cannot gather examples, also for an evaluator task, before the training."""
    for metrics in program.gathered_metrics.values():
        refusal = program.config.evaluation.refusal_to_group(metrics[0].name)
        if refusal is not None:
            raise ConfigError([Problem("evaluation", refusal)])
    for gathering in program.gatherings:
        gathering.check()


class DirectEvaluation:
    """Evaluates a program in this process, between epochs.

    Args:
      callbacks: called as by `Model.evaluate`: `on_test_begin`, around each batch, `on_test_end`. Their logs have the
        metrics that are defined by their own names, without `val_`.
    """

    def __init__(self, program: Program, callbacks: Sequence[tf_keras.callbacks.Callback] = ()) -> None:
        self._meters = Meters(program)  # not in the strategy's scope: variables of this process
        self._mode = program.config.evaluation.kind
        self._network = program.network
        self._own = list(callbacks)
        self._num_batches = num_eval_batches(program.config, program.source)
        self._dataset = program.measured_examples
        self._step = self._batch
        if not program.config.trainer.run_eagerly:
            # Traced now: a trace is sent to all workers under Python's GIL, and a hung worker would stop all threads.
            self._step = unconverted(self._batch).get_concrete_function(self._dataset.element_spec)

    def evaluate(self, step: int, progress: Callable[[], None]) -> Evaluation:
        """Metrics over all evaluation examples, each counted once; `step` is the current step of the training.

        Args:
          progress: called after each batch.
        """
        self._meters.reset()
        called = tf_keras.callbacks.CallbackList(
            self._own, model=self._network, verbose=0, epochs=1, steps=self._num_batches
        )
        called.on_test_begin()
        for index, batch in enumerate(self._dataset):
            called.on_test_batch_begin(index)
            self._meters.keep(self._step(batch))
            if self._own:  # reading the metrics takes time
                called.on_test_batch_end(index, defined(self._meters.values()))
            progress()
        evaluation = self._meters.result(self._mode, step, progress)
        called.on_test_end(defined(evaluation.metrics))
        return evaluation

    def _batch(self, batch: tuple[Any, ...]) -> Any:
        return self._meters.take_in(self._meters.measure(batch))


def defined(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """The metrics that are not None."""
    return {name: value for name, value in metrics.items() if value is not None}


class DistributedEvaluation:
    """Evaluates a program on its workers, between epochs, when no step runs.

    It schedules as many batches as the evaluation set has. Each worker reads the whole set repeatedly, from a different
    position, so that some examples are seen several times and some not at all, also where the number of examples seen,
    which is counted, is the size of the evaluation set. Metrics are on the parameter servers. It gathers no
    examples: `EvaluationChoice.refusal_to_group`.
    """

    def __init__(self, program: Program) -> None:
        distribution = program.distribution
        assert distribution.coordinator is not None
        self._program = program
        self._coordinator = distribution.coordinator
        self._num_batches = num_eval_batches(program.config, program.source)
        with distribution.strategy.scope():
            self._meters = Meters(program)
            self._iterator = per_worker_iterator(self._coordinator, self._dataset)
            # Concrete, for the reason in `Shards`; the iterators of all workers are alike.
            self._batch = tf.function(self._over_batch).get_concrete_function(iterator_spec(self._iterator))

    def evaluate(self, step: int, progress: Callable[[], None]) -> Evaluation:
        """Metrics over approximately all evaluation examples; `step` is the current step of the training.

        Args:
          progress: called after each batch.

        Raises:
          tf.errors.OpError: a parameter server was lost, or the data cannot be read.
        """
        self._meters.reset()
        in_flight = InFlightClosures(self._program.distribution)
        for _ in range(self._num_batches):
            for _ended in in_flight.add(self._coordinator.schedule(self._batch, args=(self._iterator,))):
                progress()
        in_flight.join()
        return self._meters.result("distributed", step, progress)

    def _dataset(self) -> tf.data.Dataset:
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        first = tf.cast(worker, tf.int64) * (self._num_batches // self._program.distribution.num_workers)
        return self._program.measured_dataset().repeat().skip(first)

    def _over_batch(self, iterator: Any) -> None:
        self._meters.update(self._meters.measure(next(iterator)))


class Shards:
    """Runs a function over the evaluation data of a program on its workers, when no step runs.

    Args:
      num_shards: at most the number of batches.
      dataset: `evaluation_dataset` or `measured_dataset` of the program.
      of_batch: a function of a batch that returns a nest of tensors with the examples along the first axis.

    Attributes:
      spec: of the result of `of_batch`, for any number of examples.
    """

    def __init__(
        self,
        program: Program,
        num_shards: int,
        of_batch: Callable[[Any], Any],
        dataset: Callable[..., tf.data.Dataset],
    ) -> None:
        distribution = program.distribution
        assert distribution.coordinator is not None
        self._program = program
        self._dataset = dataset
        self._coordinator = distribution.coordinator
        self._num_shards = num_shards
        self._of_batch = of_batch
        # Traced now, and concrete, because `schedule` would trace again in the strategy's scope: a trace is sent to all
        # workers under Python's GIL, and a hung or unreachable worker would stop every thread of this process.
        self.spec: Any = None
        self._closure = tf.function(self._over_shard).get_concrete_function(tf.TensorSpec([], tf.int64))

    def results(self) -> Iterator[Any]:
        """The results of `of_batch` as arrays, shard by shard, in the order of the examples.

        Few shards are in flight at a time, which bounds the memory for results.

        Raises:
          tf.errors.OpError: a parameter server was lost, or the data cannot be read.
        """
        in_flight = InFlightClosures(self._program.distribution, _IN_FLIGHT_PER_WORKER, in_order=True)
        for index in range(self._num_shards):
            scheduled = self._coordinator.schedule(self._closure, args=(tf.constant(index, tf.int64),))
            for result in in_flight.add(scheduled):
                yield self._assembled(result.fetch())
        for result in in_flight.rest():
            yield self._assembled(result.fetch())

    def _over_shard(self, index: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """The parts of all values of a shard; runs on a worker."""
        dataset = self._dataset(shard=(index, self._num_shards))
        outputs = tf.function(self._of_batch).get_concrete_function(dataset.element_spec).structured_outputs
        self.spec = tf.nest.map_structure(lambda value: any_number(spec_of(value)), outputs)
        iterator = iter(dataset)

        def add(batch: Any, num_batches: tf.Tensor, arrays: Any) -> tuple[Any, tf.Tensor, Any]:
            parts: list[tf.Tensor] = []
            for value in tf.nest.flatten(self._of_batch(batch.get_value())):
                parts += _parts(value)
            written = tuple(array.write(num_batches, part) for array, part in zip(arrays, parts))
            return iterator.get_next_as_optional(), num_batches + 1, written

        # Not a loop in Python: where AutoGraph cannot convert it, it goes on adding operations to the graph for ever.
        specs: list[tf.TensorSpec] = []
        for value in tf.nest.flatten(self.spec):
            specs += _part_specs(value)
        arrays = tuple(_array(spec) for spec in specs)
        begin = (iterator.get_next_as_optional(), tf.constant(0), arrays)
        *_, arrays = tf.while_loop(lambda batch, *_: batch.has_value(), add, begin)
        return tuple(array.concat() for array in arrays)

    def _assembled(self, parts: Sequence[Any]) -> Any:
        """The values of a shard from their parts."""
        remaining = iter(parts)

        def value(spec: tf.TypeSpec) -> Any:
            values = next(remaining)
            if not isinstance(spec, tf.RaggedTensorSpec):
                return values
            lengths = [next(remaining) for _ in range(spec.ragged_rank)]
            return tf.RaggedTensor.from_nested_row_lengths(values, lengths)

        return tf.nest.map_structure(value, self.spec)


def _parts(value: Any) -> list[tf.Tensor]:
    """The tensors of a value, which the parts of several batches are put together of, one behind the other."""
    if isinstance(value, tf.RaggedTensor):
        return [value.flat_values, *value.nested_row_lengths()]
    return [value]


def _part_specs(spec: Any) -> list[tf.TensorSpec]:
    if isinstance(spec, tf.RaggedTensorSpec):
        lengths = [tf.TensorSpec([None], spec.row_splits_dtype)] * spec.ragged_rank
        values = tf.TensorSpec([None, *spec.shape[spec.ragged_rank + 1 :]], spec.dtype)
        return [values, *lengths]
    return [spec]


def _array(batch: tf.TensorSpec) -> tf.TensorArray:
    """Selects the batches of a shard, of any size."""
    shape = [None, *batch.shape[1:]]
    return tf.TensorArray(batch.dtype, size=0, dynamic_size=True, infer_shape=False, element_shape=shape)


def exact_evaluation(program: Program) -> ExactEvaluation | DirectEvaluation:
    """The exact evaluation by the workers, which is traced here; without workers, the one by this process.

    Raises:
      ConfigError: a loss is not reduced to one number for a batch.
    """
    if program.distribution.coordinator is None:
        return DirectEvaluation(program)
    _check_losses(program.network.loss)
    assert isinstance(program.config.evaluation, choices.Exact)
    requested = program.config.evaluation.num_shards or SHARDS_PER_WORKER * program.distribution.num_workers
    meters = Meters(program)  # not in the strategy's scope: variables of this process
    num_shards = max(1, min(num_eval_batches(program.config, program.source), requested))
    measured = functools.partial(_with_losses_of_examples, meters)
    shards = Shards(program, num_shards, measured, program.measured_dataset)
    spec = shards.spec
    mean = tf.nest.map_structure(lambda losses: tf.TensorSpec([], losses.dtype), spec.losses)
    take_in = tf.function(meters.take_in).get_concrete_function(spec._replace(losses=mean))
    return ExactEvaluation(meters, shards, take_in)


def _with_losses_of_examples(meters: Meters, batch: tuple[Any, ...]) -> Measured:
    """As `Meters.measure`, with the mean losses of the batch for each of its examples."""
    measured = meters.measure(batch)
    count = measured.num_examples
    return measured._replace(losses={name: tf.fill([count], loss) for name, loss in measured.losses.items()})


class ExactEvaluation:
    """Evaluates a program on its workers, between epochs, when no step runs.

    Args:
      shards: their results are `Measured`, with the losses of a batch for each of its examples.
      take_in: `Meters.take_in`, traced for the mean losses of a shard.
    """

    def __init__(self, meters: Meters, shards: Shards, take_in: Callable[[Measured], Any]) -> None:
        self._meters = meters
        self._shards = shards
        self._take_in = take_in

    def evaluate(self, step: int, progress: Callable[[], None]) -> Evaluation:
        """Metrics over all evaluation examples, each counted once; `step` is the current step of the training.

        Args:
          progress: called after each shard.

        Raises:
          tf.errors.OpError: a parameter server was lost, or the data cannot be read.
        """
        self._meters.reset()
        for result in self._shards.results():
            measured = tf.nest.map_structure(_as_tensor, result)
            if measured.num_examples:
                mean = tf.nest.map_structure(tf.reduce_mean, measured.losses)
                self._meters.keep(self._take_in(measured._replace(losses=mean)))
            progress()
        return self._meters.result("exact", step, progress)


def _check_losses(losses: Any) -> None:
    """Raises ConfigError for losses of single examples, which Keras weights by the sizes of their batches."""
    reductions = [getattr(loss, "reduction", None) for loss in tf.nest.flatten(losses)]
    if tf_keras.losses.Reduction.NONE in reductions:
        message = "'exact' requires a loss that is one number for a batch, but its reduction is none"
        remedy = "choose direct, or set reduction=sum_over_batch_size"
        raise ConfigError([Problem("evaluation", f"{message}; {remedy}")])


def _as_tensor(value: Any) -> tf.Tensor | tf.RaggedTensor:
    return value if isinstance(value, tf.RaggedTensor) else tf.constant(value)


def check_validation(program: Program) -> None:
    """Raises ConfigError if Keras' exact evaluation on workers would be wrong.

    It clones each metric on the workers, adds up the variables of new clones, and leaves losses of layers out.
    """
    if program.distribution.coordinator is None:
        return
    network = program.network
    losses = network.compiled_loss
    if network.losses or (isinstance(network, AdaptedModel) and network.has_losses):
        raise _not_mergeable("omits the regularization of the model from val_loss")
    if tf.nest.is_nested(program.prediction_spec):
        raise _not_mergeable("requires a model with one output")
    try:
        type(losses).from_config(losses.get_config())
    except Exception as error:
        raise _not_mergeable(f"copies the loss to workers, which cannot be cloned: {_shown(error)}") from error
    spec = tf.nest.map_structure(zeros, validation_examples(program).element_spec)
    features, label, weight = tf_keras.utils.unpack_x_y_sample_weight(spec)
    prediction = program.network(features, training=False)
    if tf.nest.flatten(keras.masks_of(prediction)):
        raise _not_mergeable("ignores the mask of predictions in metrics")
    for metric in Meters(program).metrics:
        reason = _why_not_mergeable(metric, label, prediction, weight)
        if reason is not None:
            raise _not_mergeable(f"adds up the workers' metrics, but {metric.name} {reason}")


def _why_not_mergeable(metric: tf_keras.metrics.Metric, label: Any, prediction: Any, weight: Any) -> str | None:
    """Why the variables of clones of a metric cannot be added up; None if they can."""
    try:
        clone = type(metric).from_config(metric.get_config())
        before = len(clone.variables)
        clone.update_state(label, prediction, sample_weight=weight)
    except Exception as error:
        return f"cannot be cloned: {_shown(error)}"
    if len(clone.variables) > before:
        return "creates variables only when called"
    return None


def validation_examples(program: Program) -> tf.data.Dataset:
    """The evaluation examples for Keras' exact evaluation.

    It gives metrics the labels and weights as the data has them. With labels of shape (batch,) and predictions of shape
    (batch, 1), a metric such as mae would count the mean of each batch as one value, whatever the size of the batch is.
    """
    dataset = program.evaluation_examples
    prediction = program.prediction_spec
    _, *label_and_weight = dataset.element_spec
    if any(tf.nest.is_nested(spec) for spec in label_and_weight):  # by output; Keras refuses it
        return dataset
    if prediction.shape.rank != 2 or all(spec.shape.rank != 1 for spec in label_and_weight):
        return dataset

    def aligned(features: Any, label: tf.Tensor, weight: tf.Tensor | None = None) -> tuple[Any, ...]:
        label, _, weight = keras.aligned(label, prediction, weight)
        return (features, label) if weight is None else (features, label, weight)

    return dataset.map(aligned)


def _not_mergeable(reason: str) -> ConfigError:
    return ConfigError([Problem("evaluation", f"'validation' {reason}; choose exact")])


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
