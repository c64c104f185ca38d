"""Batches of examples from the prepared rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from psrun.data.loading import LabelVocabulary
from psrun.data.source import Batches, ByNumber, Convert, Feature, as_read
from psrun.tables.prepared_rows import PreparedRows
from psrun.tables.table_reader import HeldOutRows, RowsToPredict

# The recommended training, tuned with model=wide_deep on the tables of `benchmarks/tables.py`.
_EPOCHS = 20
_EPOCHS_OF_CLASSES = 40  # of more than two
_STEPS = 5000  # over all epochs, at most
_BATCHES = 40  # of an epoch, at least
_SMALLEST_BATCH = 32
_LARGEST_BATCH = 1024
_BATCH_SIZES = ((60_000, 256), (120_000, 512))  # the largest one for up to as many rows
_LEARNING_RATE = 0.003


@dataclass(kw_only=True, eq=False, repr=False)
class TableSource(ByNumber):
    """A data source of prepared rows; see `psrun.data.source.DataSource` for members that are not described here.

    Attributes:
      training_rows, evaluation_rows: the examples; None: there are no evaluation examples.
      label_columns: the names of the labels; none where `has_labels` is false.
      weight_column: the name of the weights; None for none.
      guessed: a row for each inferred feature, to display; see `proposals.Proposal.row`.
      notes: what was decided for the user, a line each.
      differences: how rows differ from those that the model was trained on, a line each; among `warnings`, too.
      rows_to_predict: where the evaluation examples are in the files, for predictions; None if there are none.
    """

    is_checked = True  # value by value, when the rows are prepared

    features: Mapping[str, Feature]
    training_rows: PreparedRows
    evaluation_rows: PreparedRows | None
    num_train_examples: int
    num_eval_examples: int
    label_columns: Sequence[str]
    weight_column: str | None
    task: Any = None
    has_labels: bool = True
    num_classes: int = 1
    label_vocabulary: LabelVocabulary | None = None
    label_mean: float = 0.0
    label_deviation: float = 0.0
    label_tasks: Mapping[str, str] = field(default_factory=dict)
    label_scales: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    classes: Mapping[str, LabelVocabulary] = field(default_factory=dict)
    files: Sequence[str]
    facts: Mapping[str, Any]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    differences: tuple[str, ...]
    guessed: Sequence[dict[str, Any]]
    rows_to_predict: RowsToPredict | HeldOutRows | None

    def recommended(self, global_batch_size: int | None) -> dict[str, Any]:
        """See `DataSource`."""
        batch_size = _batch_size(self.num_train_examples)
        steps_per_epoch = -(-self.num_train_examples // (global_batch_size or batch_size))
        most_epochs = _EPOCHS
        if self.task == "multiclass":
            most_epochs = _EPOCHS_OF_CLASSES
        return {
            "global_batch_size": batch_size,
            "epochs": min(most_epochs, max(1, -(-_STEPS // steps_per_epoch))),
            "steps_per_epoch": None,
            "learning_rate": _LEARNING_RATE,
            "learning_rate_falls": True,
        }

    def block(self, batch_size: int) -> int:
        return self.training_rows.block(batch_size)

    def read(self, batches: Batches, convert: Convert = as_read) -> tf.data.Dataset:
        def examples(number: tf.Tensor, numbers: tf.Tensor, columns: dict[str, tf.Tensor]) -> Any:
            return convert(number, numbers, self._example(columns))

        return self.training_rows.read(batches, examples)

    def evaluation(self, *, batch_size: int, shard: tuple[tf.Tensor, int] | None = None) -> tf.data.Dataset:
        def examples(number: tf.Tensor, numbers: tf.Tensor, columns: dict[str, tf.Tensor]) -> Any:
            return self._example(columns)

        assert self.evaluation_rows is not None
        return self.evaluation_rows.in_order(batch_size, shard, examples)

    def _example(self, columns: dict[str, tf.Tensor]) -> tuple[Any, ...]:
        """The features, the label and, where the set has them, the weights of rows."""
        features = dict(columns)
        labels = {}
        num_rows = tf.shape(next(iter(columns.values())))[0]
        none = tf.zeros([num_rows, 1])  # of rows that are only predicted
        for name in self.label_columns:
            labels[name] = features.pop(name, none)
        weights = []
        if self.weight_column in features:
            weights.append(features.pop(self.weight_column)[:, 0])
        if not self.has_labels:
            return features, tf.ones([num_rows, 1]), *weights
        if self.label_tasks:
            return features, labels, *weights
        label = labels[self.label_columns[0]]
        if self.task == "multiclass":
            label = tf.cast(label[:, 0], tf.int64)
        return features, label, *weights


def _batch_size(num_examples: int) -> int:
    """The recommended batch size: a power of 2."""
    most = next((size for rows, size in _BATCH_SIZES if num_examples <= rows), _LARGEST_BATCH)
    return min(most, max(_SMALLEST_BATCH, 1 << max(1, num_examples // _BATCHES).bit_length() - 1))
