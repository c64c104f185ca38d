"""Loss, count of examples and metrics of one evaluation."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import tensorflow as tf
import tf_keras

from psrun import atomic
from psrun.metrics import ExamplesSeen
from psrun.program import Program


@dataclass(frozen=True)
class Evaluation:
    """What one evaluation found. `examples_seen` was counted, example by example."""

    mode: str
    step: int
    examples_seen: int
    metrics: dict[str, float]

    @property
    def values(self) -> dict[str, float]:
        """The metrics by the names that they have among those of the training."""
        return {f"val_{name}": value for name, value in self.metrics.items()}

    def keep(self, folder: Path, checkpoint: str) -> Path:
        """Writes a file of this evaluation of the checkpoint with that digest of its files; returns its path."""
        folder.mkdir(exist_ok=True)
        path = folder / f"{self.step}-{self.mode}.json"
        atomic.write(path, json.dumps({**asdict(self), "checkpoint": checkpoint}, indent=2) + "\n")
        return path


def kept(folder: Path, mode: str) -> Iterator[tuple[Evaluation, str]]:
    """The evaluations of a mode that were kept in a folder, in the order of their steps, each with its checkpoint."""
    found = []
    for path in folder.glob(f"*-{mode}.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            told = json.loads(path.read_text(encoding="utf-8"))
            checkpoint = told.pop("checkpoint")
            found.append((Evaluation(**told), checkpoint))
    yield from sorted(found, key=lambda pair: pair[0].step)


class Meters:
    """Metric objects of an evaluation's own: training metrics stay untouched. Made in the scope of the caller."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._loss, self._seen = tf_keras.metrics.Mean(name="loss"), ExamplesSeen()
        self._metrics = program.new_metrics()

    def reset(self) -> None:
        for metric in (self._loss, self._seen, *self._metrics):
            metric.reset_state()

    def measure(self, features: dict[str, tf.Tensor], label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The prediction for a batch, and its mean loss with the model's regularisation."""
        network = self._program.network
        prediction = network(features, training=False)
        return prediction, self._program.loss(label, prediction) + tf.add_n([0.0, *network.losses])

    def update(self, label: tf.Tensor, prediction: tf.Tensor, loss: tf.Tensor) -> None:
        """Takes in batches of examples; `loss` is their mean."""
        self._loss.update_state(loss, sample_weight=tf.shape(label)[0])
        for metric in (self._seen, *self._metrics):
            metric.update_state(label, prediction)

    def found(self, mode: str, step: int) -> Evaluation:
        values = {metric.name: float(metric.result()) for metric in (self._loss, *self._metrics)}
        return Evaluation(mode, step, int(self._seen.result()), values)
