"""Loss, number of examples and metrics of one evaluation."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras

from psrun import files
from psrun.data.source import task_of
from psrun.errors import ConfigError, Problem
from psrun.metrics import counters
from psrun.program import objective
from psrun.program.compiled_model import Program
from psrun.program.example_counter import ExamplesSeen
from psrun.recsys.candidates import CandidateRanking
from psrun.tf_internals import keras
from psrun.training.evaluation.kept_examples import KeptExamples

# The metrics of Keras' kind that estimates have too, by the same definition.
_ESTIMATED = (*counters.BY_NAME.values(), tf_keras.metrics.MeanAbsoluteError, tf_keras.metrics.RootMeanSquaredError)


@dataclass(frozen=True)
class Evaluation:
    """The result of one evaluation.

    Attributes:
      examples_seen: counted, example by example.
      metrics: by name; None for one that is undefined.
      estimates: by output ('' for the only one), the metrics by user and by segment with their intervals, as of
        `KeptExamples.result`; empty if there are none.
    """

    mode: str
    step: int
    examples_seen: int
    metrics: dict[str, float | None]
    estimates: dict[str, Any] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, float]:
        """The metrics that are defined, with their names among the metrics of the training."""
        return {f"val_{name}": value for name, value in self.metrics.items() if value is not None}

    @property
    def recorded(self) -> dict[str, Any]:
        """What events and files hold of it."""
        recorded = asdict(self)
        if not self.estimates:
            del recorded["estimates"]
        return recorded

    @property
    def undefined(self) -> str | None:
        """A warning about the metrics that are undefined; None if there are none."""
        return undefined_warning({f"val_{name}": value for name, value in self.metrics.items()}, "evaluation examples")

    def keep(self, folder: Path, checkpoint: str) -> Path:
        """Writes this evaluation of the checkpoint with this digest to a file; returns its path."""
        folder.mkdir(exist_ok=True)
        path = folder / f"{self.step}-{self.mode}.json"
        files.write_atomic(path, json.dumps({**self.recorded, "checkpoint": checkpoint}, indent=2) + "\n")
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


def kept(folder: Path, mode: str) -> Iterator[tuple[Evaluation, str]]:
    """The recorded evaluations of a mode in a folder, in the order of their steps, each with its checkpoint."""
    evaluations = []
    for path in folder.glob(f"*-{mode}.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            recorded = json.loads(path.read_text(encoding="utf-8"))
            checkpoint = recorded.pop("checkpoint")
            evaluations.append((Evaluation(**recorded), checkpoint))
    yield from sorted(evaluations, key=lambda pair: pair[0].step)


class Measured(NamedTuple):
    """Labels, predictions, weights and losses of examples, each as the network and the data have it, or by output.

    Attributes:
      masks: of the predictions, for each output; () for one without a mask.
      weight: of the examples; () without weights.
      losses: their means by name (`Program.loss_names`).
      keys: by what metrics group the examples (`EvaluationKeys.of`); () if none does.
    """

    label: Any
    prediction: Any
    masks: tuple[Any, ...]
    weight: Any
    losses: Any
    keys: Any = ()

    @property
    def num_examples(self) -> tf.Tensor:
        return tf.shape(tf.nest.flatten(self.label)[0])[0]


class Meters:
    """The metric objects of an evaluation, separate from those of the training, with the same names.

    The scope of the caller decides the placement of their variables. They use the weights of examples, if any.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._seen = ExamplesSeen()
        self._losses = {name: tf_keras.metrics.Mean(name=name) for name in program.loss_names}
        metrics = objective.metrics_of(program.model, task_of(program.source), evaluating=True)
        self._metrics = keras.built_metrics(
            metrics, program.network, program.prediction_spec, program.batch_spec[1], program.metric_names
        )
        self._kept = kept_examples(program, self._intervals())
        self._candidates: CandidateRanking | None = None
        if program.config.evaluation.candidates is not None:
            self._candidates = CandidateRanking(program, program.ranking_metrics[""])
        self._outside: tf_keras.metrics.Sum | None = None
        if program.may_be_logits:
            self._outside = tf_keras.metrics.Sum(name="outside", dtype=tf.int64)

    def _intervals(self) -> counters.Intervals:
        """The intervals of the AUC among the metrics, or of the usual one."""
        for metric in self._metrics.metrics:
            if isinstance(metric, counters.AUC):
                return metric.intervals
        return counters.Intervals(from_logits=bool(self._program.model.from_logits))

    @property
    def metrics(self) -> list[tf_keras.metrics.Metric]:
        """The metrics of predictions and labels, without losses and counts."""
        return self._metrics.metrics

    def reset(self) -> None:
        outside = [] if self._outside is None else [self._outside]
        for metric in (self._seen, *self._losses.values(), *self._metrics.metrics, *outside):
            metric.reset_state()
        for kept in self._kept.values():
            kept.reset()

    def measure(self, batch: tuple[Any, ...]) -> Measured:
        """Runs the model on a batch of `Program.measured_dataset`."""
        keys = batch[3] if len(batch) == 4 else ()
        features, label, weight = tf_keras.utils.unpack_x_y_sample_weight(batch[:3])
        prediction = self._program.network(features, training=False)
        losses = self._losses_of(label, prediction, weight if tf.nest.flatten(weight) else None)
        return Measured(label, prediction, keras.masks_of(prediction), () if weight is None else weight, losses, keys)

    def _losses_of(self, label: Any, prediction: Any, weight: Any) -> dict[str, tf.Tensor]:
        """The mean losses of a batch by name: the total, with regularization, and those of several outputs."""
        network = self._program.network
        by_output = keras.losses_by_output(network.compiled_loss, label, prediction, weight)
        several = {f"{name}_loss": value for name, value in by_output.items()} if len(self._losses) > 1 else {}
        return {"loss": tf.add_n([*by_output.values(), *network.losses]), **several}

    def update(self, measured: Measured) -> None:
        """Updates the metrics with batches of examples."""
        label, prediction, masks, weight, losses, _ = measured
        keras.attach_masks(prediction, masks)
        for name, loss in losses.items():
            self._losses[name].update_state(loss, sample_weight=measured.num_examples)
        self._seen.update_state(label, prediction)
        self._metrics.update_state(label, prediction, sample_weight=weight if tf.nest.flatten(weight) else None)
        if self._outside is not None:
            self._outside.update_state(objective.num_outside(prediction))

    def rows(self, measured: Measured) -> dict[str, Any]:
        """What is kept of batches of examples, by output: the arguments of `KeptExamples.add`; runs where the model
        does.
        """
        return {output: self._row(measured, output) for output in self._kept}

    def _row(self, measured: Measured, output: str) -> tuple[Any, ...]:
        label, prediction, weight = (
            each[output] if isinstance(each, Mapping) and output else each
            for each in (measured.label, measured.prediction, measured.weight)
        )
        program = self._program
        probability = objective.to_probabilities(prediction, program.model, task_of(program.source))
        flat = [tf.reshape(each, [-1]) for each in (label, prediction, probability)]
        return (measured.keys, *flat, tf.reshape(weight, [-1]) if tf.nest.flatten(weight) else ())

    def keep(self, rows: Mapping[str, Any]) -> None:
        """Keeps the `rows` of batches, for metrics that need all examples of a user or a segment together."""
        for output, row in rows.items():
            keys, label, score, prediction, weight = tf.nest.map_structure(np.asarray, row)
            self._kept[output].add(keys, label, score, prediction, weight if len(weight) else None)

    def result(self, mode: str, step: int, progress: Callable[[], None] = lambda: None) -> Evaluation:
        """The metrics since the last reset.

        Args:
          progress: called again and again while lists are ranked, which may take long.

        Raises:
          ConfigError: predictions were no probabilities, which loss and metrics need.
        """
        if self._outside is not None and (count := int(self._outside.result())):
            raise objective.outside_error(count, "the evaluation data")
        kept = {output: each.result(progress) for output, each in self._kept.items()}
        if self._candidates is not None:
            kept[""] = self._candidates.result(progress)
        of_lists = {
            objective.name_in(output, metric): kept[output]["metrics"][metric.name]
            for output, metrics in self._program.ranking_metrics.items()
            for metric in metrics
        }
        values = {**self._with_estimated(self.values(), kept), **of_lists}
        return Evaluation(mode, step, int(self._seen.result()), values, kept)

    def _with_estimated(self, values: dict[str, float | None], kept: Mapping[str, Any]) -> dict[str, float | None]:
        """The metrics, with the values of the estimates where these are of the same examples: one value for a name."""
        whole = kept.get("")
        if whole is None or whole["share_of_users"] < 1:
            return values
        for metric in self._metrics.metrics:
            estimated = whole["metrics"].get(metric.name)
            if isinstance(metric, _ESTIMATED) and estimated is not None:
                values[metric.name] = estimated
        return values

    def values(self) -> dict[str, float | None]:
        """The current metrics by name; None for one that is undefined."""
        losses = {metric.name: float(metric.result()) for metric in self._losses.values()}
        return losses | {metric.name: objective.value_of(metric) for metric in self._metrics.metrics}


def kept_examples(program: Program, intervals: counters.Intervals | None = None) -> dict[str, KeptExamples]:
    """By output, '' for the only one, what keeps the examples of metrics that need all of a user or a segment.

    Args:
      intervals: as in `psrun.recsys.metrics.estimates.estimates`.

    Raises:
      ConfigError: an output has several predictions for an example.
    """
    if program.evaluation_keys is None:
        return {}
    of_lists = program.ranking_metrics
    if program.config.evaluation.candidates is not None:
        if list(of_lists) != [""]:
            message = "requires metrics of lists, of a model with one output"
            raise ConfigError([Problem("evaluation.candidates", message)])
        return {}
    by = program.config.evaluation.by
    spec = program.prediction_spec
    outputs = spec if isinstance(spec, Mapping) else {"": spec}
    has_task = by and list(outputs) == [""] and not program.model.has_scores
    task = task_of(program.source) if has_task else None
    for name in of_lists:
        _require_one_value(name, outputs.get(name), of_lists[name][0].name)
    if by and not of_lists:
        _require_one_value("", outputs.get(""), "evaluation.by")
    return {name: KeptExamples(of_lists.get(name, []), task, intervals=intervals) for name in of_lists or [""]}


def _require_one_value(output: str, spec: Any, what: str) -> None:
    shape = getattr(spec, "shape", None)
    if shape is not None and list(shape[1:]) in ([], [1]):
        return
    has = f"output {output!r} has" if output else "the model has"
    found = "several outputs" if shape is None else f"predictions of shape {shape}"
    key, whose = ("evaluation.by", "") if what == "evaluation.by" else ("model.metrics", f"{what} ")
    raise ConfigError([Problem(key, f"{whose}needs one score for each example, but {has} {found}")])
