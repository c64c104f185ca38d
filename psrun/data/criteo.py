"""Display advertising as Criteo published it (Kaggle 2014): rows of a label, 13 counts and 26 categories with tabs."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from psrun.data import blocks, files, preparation
from psrun.data.pieces import Piece
from psrun.data.prepared_source import PreparedSource, found, with_rows
from psrun.data.source import Feature, Task
from psrun.data.synthesis import NUM_CATEGORIES, NUM_COUNTS
from psrun.errors import ConfigError, DataError, Problem

CATEGORIES = tuple(f"C{number}" for number in range(1, NUM_CATEGORIES + 1))
NUM_FIELDS = 1 + NUM_COUNTS + len(CATEGORIES)
# TensorFlow's numbers, except infinite and very large ones.
_NUMBER = r"(\s*[-+]?(\d{1,30}(\.\d*)?|\.\d+)([eE][-+]?\d)?\s*)?"
_PROBLEMS = (
    "",
    f"not {NUM_FIELDS} fields separated by tabs",
    "the label is neither 0 nor 1",
    "a count is not a number",
)
_COLUMNS = {
    "label": blocks.Column("float32"),
    "counts": blocks.Column("float32", NUM_COUNTS),
    **{name: blocks.Column("string") for name in CATEGORIES},
}


class Criteo(PreparedSource):
    """Rows of text files, gzipped if their names end in .gz.

    Features are `counts` (13 numbers, 0 for an empty field) and `C1` to `C26` (strings, also empty ones).

    Args:
      path: training files: one, a folder, or a pattern with * ? and [].
      eval_path: the same for evaluation; None for none.
      vocabulary: a folder written by `psrun data vocabulary`; None to hash the categories.
      num_buckets: ids per category without a vocabulary.
      max_bad_rows: number of malformed rows (fields, label or counts) to skip, with a report; one more is an error.
      cache: the folder for prepared sets, which all workers must see; None for one in the home folder.
      tell: called repeatedly during preparation with the progress.

    Raises:
      ConfigError: `num_buckets` is below 1, `max_bad_rows` below 0, the folder has no vocabulary, or a file is used
        for training and evaluation.
      DataError: a file does not exist or cannot be read to its end, or there are more malformed rows.
    """

    task: Task = "binary"
    num_classes = 1

    def __init__(
        self,
        *,
        path: str,
        eval_path: str | None = None,
        vocabulary: str | None = None,
        num_buckets: int = 100_000,
        max_bad_rows: int = 0,
        cache: str | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        if num_buckets < 1:
            raise ConfigError([Problem("data.num_buckets", f"is {num_buckets}, must be 1 or more")])
        train, evaluation = found(path, eval_path, max_bad_rows)
        prepare = functools.partial(_set, preparation.Preparing(max_bad_rows, cache, tell))
        super().__init__(train, evaluation, prepare, label="label")
        words, digest = _vocabularies(Path(vocabulary).expanduser().absolute()) if vocabulary else ({}, None)
        self.features: Mapping[str, Feature] = {
            "counts": Feature((NUM_COUNTS,), tf.float32, logarithm=True),
            **{
                name: Feature((1,), tf.string, words[name])
                if words
                else Feature((1,), tf.string, num_buckets=num_buckets)
                for name in CATEGORIES
            },
        }
        if digest:
            self.facts = {**self.facts, "vocabulary": digest}


def prepared(names: Sequence[str]) -> blocks.Blocks:
    """The prepared rows of files.

    Raises:
      DataError: as `preparation.prepared`, or there is no row in them.
    """
    return with_rows(names, functools.partial(_set, preparation.Preparing()))


def _set(how: preparation.Preparing, names: Sequence[str]) -> blocks.Blocks:
    return preparation.prepared(names, _COLUMNS, _pieces, layout="criteo", how=how)


def _pieces(name: str) -> Iterator[Piece]:
    first = 1
    for problems, columns in files.in_threads(_checked, files.texts(name)):
        bad = [(first + int(row), _PROBLEMS[problems[row]]) for row in np.flatnonzero(problems)]
        first += len(problems)
        yield Piece(columns, bad)


def _checked(text: bytes) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The problem of each line (an index of _PROBLEMS), and the columns of the well-formed lines."""
    try:
        good, columns = _read(text)
        if good:
            return np.zeros(len(columns["label"]), np.int32), {key: values.numpy() for key, values in columns.items()}
    except tf.errors.InvalidArgumentError:
        pass
    problems, columns = _sorted_out(text)
    return problems.numpy(), {key: values.numpy() for key, values in columns.items()}


@tf.function(input_signature=[tf.TensorSpec([], tf.string)])
def _read(text: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Whether all lines are well-formed, and the columns. Three times as fast as the check that finds the errors.

    Raises:
      tf.errors.InvalidArgumentError: a line does not have 40 fields, or a count is not a number.
    """
    defaults = [[], *[[0.0]] * NUM_COUNTS, *[[""]] * NUM_CATEGORIES]
    types = [tf.string, *[tf.float32] * NUM_COUNTS, *[tf.string] * NUM_CATEGORIES]
    label, *fields = tf.io.decode_csv(
        tf.strings.split(text, "\n"),
        [tf.constant(default, kind) for default, kind in zip(defaults, types)],
        field_delim="\t",
        use_quote_delim=False,
    )
    counts = tf.stack(fields[:NUM_COUNTS], axis=1)
    good = tf.reduce_all((label == "0") | (label == "1")) & tf.reduce_all(tf.math.is_finite(counts))
    categories = {name: values[:, tf.newaxis] for name, values in zip(CATEGORIES, fields[NUM_COUNTS:])}
    return good, {"label": tf.cast(label == "1", tf.float32)[:, tf.newaxis], "counts": counts, **categories}


@tf.function(input_signature=[tf.TensorSpec([], tf.string)])
def _sorted_out(text: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """As `_checked`."""
    fields = tf.strings.split(tf.strings.split(text, "\n"), "\t")
    long = fields.row_lengths() == NUM_FIELDS
    table = tf.reshape(tf.ragged.boolean_mask(fields, long).flat_values, [-1, NUM_FIELDS])
    labels, counts = table[:, 0], table[:, 1 : 1 + NUM_COUNTS]
    binary = (labels == "0") | (labels == "1")
    numbers = tf.reduce_all(tf.strings.regex_full_match(counts, _NUMBER), axis=1)
    within = tf.where(binary, tf.where(numbers, 0, 3), 2)
    problems = tf.tensor_scatter_nd_update(tf.where(long, 0, 1), tf.where(long), within)
    good = tf.boolean_mask(table, within == 0)
    counts = good[:, 1 : 1 + NUM_COUNTS]
    columns = {
        "label": tf.cast(good[:, :1] == "1", tf.float32),
        "counts": tf.strings.to_number(tf.where(counts == "", "0", counts)),
    }
    for index, name in enumerate(CATEGORIES):
        columns[name] = good[:, 1 + NUM_COUNTS + index :][:, :1]
    return problems, columns


def _vocabularies(folder: Path) -> tuple[dict[str, Path], str]:
    """The files of a vocabulary, and its digest."""
    files = {name: folder / f"{name}.txt" for name in CATEGORIES}
    try:
        digest = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))["digest"]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            [
                Problem(
                    "data.vocabulary", f"{folder} holds no vocabulary ({error}); create one with psrun data vocabulary"
                )
            ]
        ) from error
    missing = [file for file in files.values() if not file.exists()]
    if missing:
        raise DataError(f"{missing[0]} is missing; create the vocabulary again with psrun data vocabulary")
    return files, digest
