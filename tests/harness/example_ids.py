"""Data whose labels are the examples' own numbers, and a model whose metrics count how often each was seen."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf
import tf_keras

from psrun import files
from psrun.data.source import ArraySource, Feature
from psrun.models import model as plain
from psrun.models.model import Model


class Numbered(ArraySource):
    """Examples 0, 1, 2, ...: the label is the number, the feature a hundredth of it.

    Args:
      num_users: whose examples they are, in turns.
    """

    def __init__(self, *, num_eval_examples: int = 100, num_users: int | None = None) -> None:
        def examples(count: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
            numbers = np.arange(count, dtype=np.float32)[:, np.newaxis]
            users = {} if num_users is None else {"user": np.arange(count)[:, np.newaxis] % num_users}
            return {"x": numbers / 100, **users}, numbers

        features = {"x": Feature((1,), tf.float32)}
        if num_users is not None:
            features["user"] = Feature((1,), tf.int64)
        super().__init__(
            features=features, task="regression", train=examples(200), evaluation=examples(num_eval_examples)
        )


class Recommending(Numbered):
    """The same data, which recommends one pass in each of a number of epochs."""

    def __init__(self, *, epochs: int) -> None:
        super().__init__()
        self._epochs = epochs

    def recommended(self, global_batch_size: int | None) -> Mapping[str, int | None]:
        return {"global_batch_size": global_batch_size or 60, "steps_per_epoch": None, "epochs": self._epochs}


class InRows(Numbered):
    """The same data as if read from rows of a file, two of which are malformed.

    Args:
      labeled: whether the file has labels.
      kept_rows: how many rows it has now.
      all_malformed: whether all rows are.
    """

    PROBLEMS = {7: "eval.csv, row 8: price is 'x'", 31: "eval.csv, row 32: 3 fields"}
    columns = ("id", "name", "prediction")

    def __init__(
        self,
        *,
        num_eval_examples: int = 40,
        labeled: bool = True,
        kept_rows: int | None = None,
        all_malformed: bool = False,
    ) -> None:
        super().__init__(num_eval_examples=num_eval_examples)
        self.labeled, self.problems, self.num_rows = labeled, self.PROBLEMS, num_eval_examples
        if all_malformed:
            self.problems = dict.fromkeys(range(num_eval_examples), "no number")
        self._kept_rows = num_eval_examples if kept_rows is None else kept_rows
        self.rows_to_predict = self

    def kept(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for first in range(0, self._kept_rows, 17):
            numbers = range(first, min(first + 17, self._kept_rows))
            yield pa.record_batch({name: [f"{number:03}" for number in numbers] for name in columns})


class AsOthersHaveIt:
    """The same data from a class that knows nothing of shards."""

    def __init__(self, *, num_eval_examples: int = 100, endless: bool = False, wide: bool = False) -> None:
        self._inner, self._endless, self._wide = Numbered(num_eval_examples=num_eval_examples), endless, wide
        self.features, self.task, self.num_classes, self.facts = self._inner.features, "regression", 1, {}
        self.num_train_examples, self.num_eval_examples = 200, num_eval_examples

    def train(self, *, batch_size: int, seed: tf.Tensor) -> tf.data.Dataset:
        return self._inner.train(batch_size=batch_size, seed=seed)

    def evaluation(self, *, batch_size: int) -> tf.data.Dataset:
        batches = self._inner.evaluation(batch_size=batch_size)
        if self._wide:
            batches = batches.map(lambda features, label: ({"x": tf.tile(features["x"], [1, 2])}, label))
        return batches.repeat() if self._endless else batches


class InFiles:
    """Examples 0 to 199 as lines of files, which the pipeline begins with, as in many scripts.

    Args:
      folder: where the files are, or are to be written.
      policy: of sharding that the pipeline itself chooses; None for none.
    """

    def __init__(self, *, folder: str, num_files: int = 4, policy: str | None = None) -> None:
        self.features, self.task, self.num_classes, self.facts = {"x": Feature((1,), tf.float32)}, "regression", 1, {}
        self.num_train_examples, self.num_eval_examples, self._policy = 200, 0, policy
        self._names = [f"{folder}/{index}.txt" for index in range(num_files)]
        for name, numbers in zip(self._names, np.array_split(np.arange(200), num_files)):
            files.write_atomic(Path(name), "".join(f"{number}\n" for number in numbers))

    def train(self, *, batch_size: int, seed: tf.Tensor) -> tf.data.Dataset:
        lines = tf.data.TextLineDataset(self._names).shuffle(200, seed=seed)
        numbers = lines.map(lambda line: tf.reshape(tf.strings.to_number(line), [1])).repeat()
        batches = numbers.map(lambda number: ({"x": number / 100}, number)).batch(batch_size, drop_remainder=True)
        if self._policy is None:
            return batches
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[self._policy]
        return batches.with_options(options)

    def evaluation(self, *, batch_size: int) -> tf.data.Dataset:
        raise NotImplementedError


class Telling(tf_keras.Model):
    """Writes the labels of each step into a file of its process, in the folder that the environment names."""

    def train_step(self, data):
        where = f"file://{os.environ['SEEN']}/{os.getpid()}"
        tf.print(tf.reshape(data[1], [-1]), summarize=-1, output_stream=where)
        return super().train_step(data)


def telling(source: Any) -> tf_keras.Model:
    x = tf_keras.Input((1,), name="x")
    return Telling({"x": x}, tf_keras.layers.Dense(1)(x))


class NotOnce(tf_keras.metrics.Metric):
    """How many of the examples were not seen exactly once."""

    def __init__(self, count: int, name: str = "not_once") -> None:
        super().__init__(name=name)
        self.seen = self.add_weight(name="seen", shape=(count,), initializer="zeros", dtype=tf.int32)

    def update_state(self, y_true, y_pred, sample_weight=None):
        count = self.seen.shape[0]
        numbers = tf.cast(tf.reshape(y_true, [-1]), tf.int32) % count
        self.seen.assign_add(tf.math.bincount(numbers, minlength=count, maxlength=count))

    def reset_state(self):
        self.seen.assign(tf.zeros_like(self.seen))

    def result(self):
        return tf.reduce_sum(tf.cast(self.seen != 1, tf.float32))


def model(source: Numbered) -> Model:
    """A perceptron; R2 is a metric that cannot be merged by adding."""
    network = plain.dense(source, hidden_units=(4,)).network

    def metrics() -> list[Any]:
        made = [NotOnce(source.num_eval_examples), tf_keras.metrics.MeanAbsoluteError(), tf_keras.metrics.R2Score()]
        if "user" not in source.features:
            return made
        # Metrics of lists are of a part; the core's tests have no users.
        from psrun.recsys.metrics import ranking

        middle = source.num_eval_examples / 2
        of_lists = [ranking.NDCG(5), ranking.Recall(5, relevant_from=middle), ranking.GroupAUC(relevant_from=middle)]
        return [*made, *of_lists]

    return Model(network, metrics=metrics)


def scheduled(rate: float = 0.1) -> tf_keras.optimizers.Optimizer:
    """An optimizer whose learning rate no configuration shows to be a schedule."""
    return tf_keras.optimizers.SGD(tf_keras.optimizers.schedules.CosineDecay(rate, 10))
