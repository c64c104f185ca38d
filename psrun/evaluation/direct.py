"""Evaluation by the coordinator itself: it reads the variables and runs the model over the whole evaluation set."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf
import tf_keras

from psrun.program import ExamplesSeen, Program


@dataclass(frozen=True)
class Evaluation:
    """What one evaluation found. `examples_seen` was counted, example by example."""

    mode: str
    step: int
    examples_seen: int
    metrics: dict[str, float]


class DirectEvaluation:
    """Evaluates a program in this process, between epochs. Its metrics are its own: training metrics stay untouched."""

    def __init__(self, program: Program) -> None:
        self._program = program
        # Made outside the strategy's scope, so that their variables are here and not on a parameter server.
        self._loss, self._seen = tf_keras.metrics.Mean(name="loss"), ExamplesSeen()
        self._metrics = program.new_metrics()
        self._dataset = program.evaluation_dataset()
        self._step = tf.function(self._batch, reduce_retracing=True)
        if program.config.trainer.run_eagerly:
            self._step = self._batch

    def evaluate(self, step: int) -> Evaluation:
        """Metrics over every evaluation example, once each; `step` is what the training has reached."""
        for metric in (self._loss, self._seen, *self._metrics):
            metric.reset_state()
        for features, label in self._dataset:
            self._step(features, label)
        values = {metric.name: float(metric.result()) for metric in (self._loss, *self._metrics)}
        return Evaluation("direct", step, int(self._seen.result()), values)

    def _batch(self, features: dict[str, tf.Tensor], label: tf.Tensor) -> None:
        network = self._program.network
        prediction = network(features, training=False)
        # The loss is a mean over the batch (with the model's regularisation): weigh it by the batch's size.
        loss = self._program.loss(label, prediction) + tf.add_n([0.0, *network.losses])
        self._loss.update_state(loss, sample_weight=tf.shape(label)[0])
        for metric in (self._seen, *self._metrics):
            metric.update_state(label, prediction)
