"""Tables that count: minus each row is how often the updates of its example were applied, by an oracle without bounds.

The model adds up a row of each of two tables of zeros, one row per example, and a dense variable. The loss is the sum
of the outputs of a batch. With SGD and a learning rate of 1, each use of a row subtracts 1, and each step subtracts
the number of its examples from the dense variable.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from psrun.checkpoint.storage import Position, Store
from psrun.data.source import ArraySource, Feature
from psrun.layers import Embedding

TABLES = ("a", "b")


class Numbered(ArraySource):
    """Examples with their number as id, for each table."""

    def __init__(self, *, examples: int) -> None:
        ids = np.arange(examples)
        label: Any = np.zeros((examples, 1), np.float32)
        part = {name: ids for name in TABLES}, label
        features = {name: Feature((), tf.int64) for name in TABLES}
        super().__init__(features=features, task="regression", train=part, evaluation=part)


class Steps(tf_keras.layers.Layer):
    """Adds a variable of one number."""

    def build(self, shape: Any) -> None:
        self.steps = self.add_weight("steps", (1,), initializer="zeros")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs + self.steps


def model(source: Numbered) -> tf_keras.Model:
    inputs = {name: tf_keras.Input((), dtype=tf.int64, name=name) for name in TABLES}
    return tf_keras.Model(inputs, counted(inputs, source.num_train_examples))


def counted(numbers: Mapping[str, tf.Tensor], num_examples: int, *others: tf.Tensor) -> tf.Tensor:
    """The output of a model that counts the examples with these numbers, (batch,) for each table.

    Args:
      others: further terms of the output, (batch, 1).
    """
    rows = []
    for name in TABLES:
        table = Embedding(num_examples, 1, embeddings_initializer="zeros", name=f"table_{name}")
        rows.append(table(numbers[name]))
    return Steps()(tf_keras.layers.Add()([*rows, *others]))


class Total(tf_keras.losses.Loss):
    """The sum of the predictions of a batch."""

    def __init__(self) -> None:
        super().__init__(tf_keras.losses.Reduction.SUM, "total")

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        return tf.reshape(y_pred, [-1])


# Of a model whose output is `counted`. All checkpoints are kept.
COUNTS = ("model.loss={_target_: counting.Total}", "model.metrics=[]", "optimizer=sparse_sgd",
          "optimizer.learning_rate=1", "checkpoint.max_to_keep=99")  # fmt: skip


def arguments(*pieces: str, examples: int, batch: int) -> list[str]:
    """The arguments of a run that passes over all examples in each epoch."""
    return [
        "model=dense", "~model.hidden_units", "model._target_=counting.model", *COUNTS,
        "data._target_=counting.Numbered", "~data.num_train_examples", "~data.num_eval_examples",
        "~data.noise", "~data.num_features", f"+data.examples={examples}", f"data.global_batch_size={batch}",
        "data.visitation=once", "partitioner=fixed_shards", "evaluation=none", "tracker=none",
        "trainer.steps_per_epoch=null", *pieces,
    ]  # fmt: skip


def counts(checkpoints: Path, step: int | None = None) -> dict[str, np.ndarray]:
    """How often the updates of each example were applied, by table, and at `steps` of how many examples in all.

    Args:
      step: of the checkpoint; None for the newest.
    """
    store = Store(checkpoints)
    if step is None:
        step = store.steps()[0]
    reader: Any = tf.train.load_checkpoint(store.prefix(step))
    found = {}
    for name in reader.get_variable_to_shape_map():
        path, _, _ = name.partition("/.ATTRIBUTES")
        if path.endswith("/embeddings"):
            found[path] = -reader.get_tensor(name).ravel()
        elif path.endswith("/steps"):
            found["steps"] = -reader.get_tensor(name).ravel()
    assert len(found) == len(TABLES) + 1, found
    return found


def wrong(checkpoints: Path, *, epochs: int, gradients: int = 1, of_rows: int | None = None) -> list[str]:
    """What is wrong with the counts of all checkpoints of a run whose epochs are passes; empty if all are exact.

    After an epoch each example was applied once for each epoch. Within an epoch no example was applied more than once
    more, and so many as the steps have.

    Args:
      epochs: of the run, which has ended.
      gradients: the number of gradients that are averaged in an update.
      of_rows: the same for updates of tables; None: `gradients`.
    """
    store = Store(checkpoints)
    problems = []
    ends = set()
    for step in sorted(store.steps()):
        position = store.manifest(step).position
        if not position.steps:
            ends.add(position.epochs)
        for name, values in counts(checkpoints, step).items():
            averaged = gradients if name == "steps" or of_rows is None else of_rows
            if problem := _problem(name, values * averaged, position, gradients):
                problems.append(f"step {step}, {position.epochs} epochs and {position.steps} steps: {problem}")
    if missing := {*range(1, epochs + 1)} - ends:
        problems.append(f"no checkpoint after epochs {sorted(missing)}")
    return problems


def _problem(name: str, values: np.ndarray, position: Position, gradients: int) -> str | None:
    """What is wrong with the counts of a table, or the number of examples of the dense variable, at a position."""
    assert position.order is not None
    num_examples, batch_size, _ = position.order
    total = position.epochs * num_examples + position.steps * gradients * batch_size
    if name != "steps":
        total += len(position.partly) * batch_size
    if values.sum() != total:
        return f"{name} has {values.sum()} applied examples instead of {total}"
    if name == "steps":
        return None
    num_unused = values.size - num_examples  # rows that no example has
    times = np.sort(values)[num_unused:]
    allowed = [position.epochs, position.epochs + 1]
    others = times[~np.isin(times, allowed)]
    if others.size:
        return f"{name} has examples that were applied {np.unique(others).tolist()} times instead of {allowed}"
    return None
