"""Display advertising as Criteo published it (Kaggle 2014): a label, 13 counts and 26 categories a row, with tabs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import tensorflow as tf

from psrun.data import rows
from psrun.data.source import Feature, Task
from psrun.errors import ConfigError, DataError, Problem

NUM_COUNTS = 13
CATEGORIES = tuple(f"C{number}" for number in range(1, 27))
NUM_FIELDS = 1 + NUM_COUNTS + len(CATEGORIES)
_NUMBER = r"(-?(\d+(\.\d*)?|\.\d+))?"


class Criteo:
    """Rows of text files, gzipped where their names end in .gz.

    Features are `counts` (13 numbers, 0 where a field is empty) and `C1` to `C26` (strings, empty where the field is).
    TensorFlow takes a gzipped file that is cut short for one that ends there, and nothing here looks for that in the
    files to train on.

    Args:
      path: files to train on: one, a folder, or a pattern with * ? and [].
      eval_path: the same to evaluate on; None for none.
      vocabulary: a folder that `psrun data vocabulary` has written; None to hash the categories.
      num_buckets: ids of each category, where there is no vocabulary.

    Raises:
      ConfigError: `num_buckets` is below 1, the folder has no vocabulary in it, or a file is both to train on and to
        evaluate on.
      DataError: there are no such files, one is empty, one to evaluate on cannot be read to its end, or the first row
        to train on is not as it should be.
    """

    task: Task = "binary"
    num_classes = 1
    num_train_examples = None

    def __init__(
        self, *, path: str, eval_path: str | None = None, vocabulary: str | None = None, num_buckets: int = 100_000
    ) -> None:
        if num_buckets < 1:
            raise ConfigError([Problem("data.num_buckets", f"is {num_buckets}, must be 1 or more")])
        self._train = rows.find(path)
        self._evaluation = rows.find(eval_path) if eval_path else []
        if both := sorted({*self._train} & {*self._evaluation}):
            raise ConfigError([Problem("data.eval_path", f"{both[0]} is also one of the files to train on")])
        _read_first(self._train)
        self.num_eval_examples = rows.count(self._evaluation)
        words = _vocabularies(Path(vocabulary).expanduser().absolute()) if vocabulary else {}
        self.features: Mapping[str, Feature] = {
            "counts": Feature((NUM_COUNTS,), tf.float32, logarithm=True),
            **{
                name: Feature((1,), tf.string, words[name])
                if words
                else Feature((1,), tf.string, num_buckets=num_buckets)
                for name in CATEGORIES
            },
        }
        self.facts = {"num_train_files": len(self._train), "num_eval_files": len(self._evaluation)}

    def train(self, *, batch_size: int, seed: tf.Tensor, shard: tuple[tf.Tensor, int] | None = None) -> tf.data.Dataset:
        read = rows.shuffled(self._train, batch_size, seed, shard)
        return read.map(parser(self._train), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    def evaluation(self, *, batch_size: int, shard: tuple[tf.Tensor, int] | None = None) -> tf.data.Dataset:
        read = rows.in_order(self._evaluation, shard).rebatch(batch_size)
        return read.map(parser(self._evaluation), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def parser(files: Sequence[str]) -> Callable[[rows.Rows], tuple[dict[str, tf.Tensor], tf.Tensor]]:
    """A function from rows of `files` to features by name and label, of shape (n, 1).

    It raises tf.errors.InvalidArgumentError, when run, that tells file and number of the first row that has not 40
    fields, a label other than 0 and 1 or a count that is no number.
    """

    def parse(batch: rows.Rows) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        fields = tf.strings.split(batch["line"], "\t")
        names = tf.constant(list(files))
        whole = _checked(batch, names, fields.row_lengths() == NUM_FIELDS, f"not {NUM_FIELDS} fields with tabs between")
        with tf.control_dependencies([whole]):
            table = tf.reshape(fields.flat_values, [-1, NUM_FIELDS])
        labels, counts = table[:, 0], table[:, 1 : 1 + NUM_COUNTS]
        binary = _checked(batch, names, (labels == "0") | (labels == "1"), "the label is neither 0 nor 1")
        numbers = tf.reduce_all(tf.strings.regex_full_match(counts, _NUMBER), axis=1)
        told = _checked(batch, names, numbers, "a count is no number")
        with tf.control_dependencies([binary, told]):
            values = tf.strings.to_number(tf.where(counts == "", "0", counts))
        features = {"counts": values}
        for index, name in enumerate(CATEGORIES):
            features[name] = table[:, 1 + NUM_COUNTS + index :][:, :1]
        return features, tf.cast(labels == "1", tf.float32)[:, tf.newaxis]

    return parse


def _read_first(files: Sequence[str]) -> None:
    """Raises DataError where there is no first row, or it is not as it should be: what is no such file at all is told
    before anything starts.
    """
    try:
        for _ in rows.in_order(files).rebatch(1).take(1).map(parser(files)):
            return
    except tf.errors.OpError as error:
        raise DataError(f"{files[0]} cannot be used: {error.message}") from error
    raise DataError(f"there is no row in {files[0]}" + (" and the others" if len(files) > 1 else ""))


def _checked(batch: rows.Rows, names: tf.Tensor, good: tf.Tensor, problem: str) -> tf.Operation:
    """Fails where a row is not good, and tells the first one."""
    first = tf.argmin(tf.cast(good, tf.int32))
    where = tf.strings.join(
        [names[batch["file"][first]], ", row ", tf.strings.as_string(batch["row"][first]), f": {problem}"]
    )
    return tf.debugging.Assert(tf.reduce_all(good), [where])


def _vocabularies(folder: Path) -> dict[str, Path]:
    files = {name: folder / f"{name}.txt" for name in CATEGORIES}
    try:
        json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            [Problem("data.vocabulary", f"{folder} holds no vocabulary ({error}); psrun data vocabulary writes one")]
        ) from error
    missing = [file for file in files.values() if not file.exists()]
    if missing:
        raise DataError(f"{missing[0]} is missing: the vocabulary is not whole")
    return files
