"""Files of predictions: one row for each row of the input, in its order."""

from __future__ import annotations

import contextlib
import csv
import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf
from pyarrow import parquet

from psrun.errors import ConfigError, Problem, PsrunError

CLASS = "class"
PROBLEM = "problem"
_ROWS_PER_GROUP = 65536  # of Parquet: batches of predictions are much smaller


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of the output.

    Attributes:
      kept: columns of the input.
      labels, predictions: by the name of their column; the examples are the first axis.
      problems: what is wrong with a malformed row, by its index; it has no label and no prediction.
    """

    kept: pa.Table | None
    labels: Mapping[str, np.ndarray]
    predictions: Mapping[str, np.ndarray]
    problems: Mapping[int, str]


@dataclass(frozen=True)
class Layout:
    """What all rows of a file have in common.

    Attributes:
      class_names: of the classes 0, 1, ...; None without names, or if labels are not classes.
      has_problems: whether there is a malformed row, and so a column for what is wrong.
    """

    class_names: Sequence[str] | None = None
    has_problems: bool = False

    def groups(self, rows: Rows) -> dict[str, np.ndarray]:
        """Labels and predictions by name: arrays of shape (rows, values), where a malformed row has meaningless values.

        If classes have names, labels are names, and the name of the most probable class is in `class`, or in
        OUTPUT_class if there are several outputs.

        Raises:
          ConfigError: two of them have one name.
        """
        labels = {name: _flat(values) for name, values in rows.labels.items()}
        predictions = {name: _flat(values) for name, values in rows.predictions.items()}
        most_probable = {}
        if self.class_names is not None:
            names, has_one_output = np.array(self.class_names), len(predictions) == 1
            if has_one_output:
                labels = {name: self._named(names, rows, values) for name, values in labels.items()}
            for name, values in predictions.items():
                if self._is_by_class(values):
                    column = CLASS if has_one_output else f"{name}_{CLASS}"
                    most_probable[column] = names[values.argmax(axis=1)][:, np.newaxis]
        _require_distinct([*labels, *predictions, *most_probable])
        return labels | predictions | most_probable

    def _is_by_class(self, values: np.ndarray) -> bool:
        return self.class_names is not None and values.shape[1] == len(self.class_names) and values.dtype.kind == "f"

    def _named(self, names: np.ndarray, rows: Rows, numbers: np.ndarray) -> np.ndarray:
        numbers = numbers.astype(np.int64)
        numbers[list(rows.problems)] = 0  # placeholders may be no classes
        return names[numbers]

    def table(self, rows: Rows) -> pa.Table:
        """The rows with a column for each value; the values of a group have names or numbers: prediction_0, ...

        Raises:
          ConfigError: two columns have one name.
        """
        groups = self.groups(rows)
        num_rows = len(next(iter(groups.values())))
        is_malformed: np.ndarray = np.zeros(num_rows, bool)
        is_malformed[list(rows.problems)] = True
        columns = []
        if rows.kept is not None:
            columns += list(zip(rows.kept.column_names, rows.kept.columns))
        for base, values in groups.items():
            for name, column in zip(self._names(base, values), values.T):
                columns.append((name, pa.array(np.ascontiguousarray(column), mask=is_malformed)))
        if self.has_problems:
            columns.append((PROBLEM, pa.array(map(rows.problems.get, range(num_rows)), pa.string())))
        names = [name for name, _ in columns]
        _require_distinct(names, () if rows.kept is None else rows.kept.column_names)
        return pa.table([column for _, column in columns], names)

    def _names(self, base: str, values: np.ndarray) -> list[str]:
        if values.shape[1] == 1:
            return [base]
        suffixes = self.class_names if self._is_by_class(values) else None
        return [f"{base}_{suffix}" for suffix in suffixes or range(values.shape[1])]


Write = Callable[[Rows], None]


@contextlib.contextmanager
def csv_writer(path: Path, layout: Layout) -> Iterator[Write]:
    """Reading the numbers of predictions as what they are, float32 or float64, gives the same bits."""
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        header: list[str] = []

        def write(rows: Rows) -> None:
            table = layout.table(rows)
            if not header:
                header.extend(table.column_names)
                lines.writerow(header)
            lines.writerows(zip(*map(_texts, table.columns)))

        yield write


@contextlib.contextmanager
def parquet_writer(path: Path, layout: Layout) -> Iterator[Write]:
    with contextlib.ExitStack() as stack:
        waiting: list[pa.Table] = []
        writers: list[parquet.ParquetWriter] = []

        def flush() -> None:
            table = pa.concat_tables(waiting)
            if not writers:
                writers.append(stack.enter_context(parquet.ParquetWriter(path, table.schema)))
            writers[0].write_table(table)
            waiting.clear()

        def write(rows: Rows) -> None:
            waiting.append(layout.table(rows))
            if sum(len(table) for table in waiting) >= _ROWS_PER_GROUP:
                flush()

        yield write
        if waiting:
            flush()


@contextlib.contextmanager
def tfrecord_writer(path: Path, layout: Layout) -> Iterator[Write]:
    """A `tf.train.Example` for each row. The values of an output are one feature; what is missing has none."""
    with tf.io.TFRecordWriter(str(path)) as writer:

        def write(rows: Rows) -> None:
            groups = layout.groups(rows)
            kept = {} if rows.kept is None else dict(zip(rows.kept.column_names, map(_features, rows.kept.columns)))
            _require_distinct([*kept, *groups, PROBLEM], kept)
            for index, values in enumerate(zip(*groups.values())):
                features = {name: column[index] for name, column in kept.items() if column[index] is not None}
                if index in rows.problems:
                    features[PROBLEM] = _feature([rows.problems[index]])
                else:
                    features |= {name: _feature(each.tolist()) for name, each in zip(groups, values)}
                writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())

        yield write


WRITERS = {"csv": csv_writer, "parquet": parquet_writer, "tfrecord": tfrecord_writer}


@contextlib.contextmanager
def written(path: Path, file_format: str, layout: Layout) -> Iterator[Write]:
    """A writer of a format of `WRITERS`; the file appears at `path` when it is complete.

    Raises:
      PsrunError: the disk is full or the file cannot be written.
      ConfigError: two columns have one name.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with WRITERS[file_format](part, layout) as write:
            yield write
        part.replace(path)
    except (OSError, tf.errors.ResourceExhaustedError, tf.errors.PermissionDeniedError) as error:
        raise PsrunError(f"the predictions could not be written to {path}: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _require_distinct(names: Sequence[str], kept: Collection[str] = ()) -> None:
    """Raises ConfigError if a column has the name of another one."""
    for name, count in Counter(names).items():
        if count == 1:
            continue
        if name in kept:
            message = f"names {name!r}, but a column of the output has that name already; rename it, or leave it out"
            raise ConfigError([Problem("predict.keep", message)])
        message = f"has an output {name!r}, but another column of the predictions has that name; rename the output"
        raise ConfigError([Problem("model", message)])


def _flat(values: np.ndarray) -> np.ndarray:
    flat = values.reshape(len(values), -1)
    if flat.dtype.kind == "S" or flat.dtype.kind == "O":  # strings of TensorFlow
        return np.array([[value.decode(errors="replace") for value in row] for row in flat.tolist()])
    return flat


def _texts(column: pa.ChunkedArray) -> list[str]:
    """The values as CSV has them; a missing one is empty."""
    kind = column.type
    if pa.types.is_floating(kind):
        text = repr if kind == pa.float64() else "{:.9g}".format
        return ["" if value is None else text(value) for value in column.to_pylist()]
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
    if pa.types.is_nested(kind):
        return ["" if value is None else json.dumps(value, default=str) for value in column.to_pylist()]
    if _is_binary(kind):
        return ["" if value is None else value.decode(errors="backslashreplace") for value in column.to_pylist()]
    return ["" if value is None else value for value in column.cast(pa.string()).to_pylist()]


def _is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)


def _features(column: pa.ChunkedArray) -> list[tf.train.Feature | None]:
    """The values of a kept column as TFRecord has them; None where one is missing."""
    kind, values = column.type, column.to_pylist()
    has_numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if not (has_numbers or _is_binary(kind)) or kind == pa.uint64():  # larger than an int64
        missing = column.is_null().to_pylist()
        values = [None if is_missing else text for is_missing, text in zip(missing, _texts(column))]
    return [None if value is None else _feature([value]) for value in values]


def _feature(values: list[Any]) -> tf.train.Feature:
    if isinstance(values[0], str | bytes):
        texts = [value.encode() if isinstance(value, str) else value for value in values]
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=texts))
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
