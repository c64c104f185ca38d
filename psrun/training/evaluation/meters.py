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
from psrun.program import objective
from psrun.program.compiled_model import Program
from psrun.program.example_counter import ExamplesSeen
from psrun.tf_internals import keras


@dataclass(frozen=True)
class Evaluation:
    """The result of one evaluation.

    Attributes:
      examples_seen: counted, example by example.
      metrics: by name; None for one that is undefined.
      estimates: by output ('' for the only one), what `psrun.metrics.gathered.Gathered.result` gives to record; empty
        if there is none.
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
        losses = self._losses_of(label, prediction, weight if tf.nest.flatten(weight) else None)
        masks = keras.masks_of(prediction)
        return Measured(label, prediction, masks, () if weight is None else weight, losses, columns)

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
        for gathered in self._gathered:
            metrics, more = gathered.result(progress)
            values |= metrics
            recorded |= more
        return Evaluation(mode, step, int(self._seen.result()), values, recorded)

    def values(self) -> dict[str, float | None]:
        """The current metrics by name; None for one that is undefined."""
        losses = {metric.name: float(metric.result()) for metric in self._losses.values()}
        return losses | {metric.name: objective.value_of(metric) for metric in self._metrics.metrics}
