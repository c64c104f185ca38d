"""Files of predictions, one row per example, in order."""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from psrun.errors import PsrunError

Write = Callable[[np.ndarray, np.ndarray], None]  # of a batch, with examples along the first axis
ClassNames = Sequence[str] | None


@contextlib.contextmanager
def csv_writer(path: Path, class_names: ClassNames = None) -> Iterator[Write]:
    """Rows of label and prediction; several values of either have numbered columns: prediction_0, ...

    If classes have names, the label is one, and the columns of probabilities have these names, with the most probable
    one in `class`. Reading the numbers as float32 gives the same bits.
    """
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        headed = False

        def write(labels: np.ndarray, predictions: np.ndarray) -> None:
            nonlocal headed
            columns = _columns(labels, predictions, class_names)
            if not headed:
                suffixes = class_names if "class" in columns else None
                rows.writerow([name for base, values in columns.items() for name in _names(base, values, suffixes)])
                headed = True
            for parts in zip(*columns.values()):
                rows.writerow([_text(value) for part in parts for value in part])

        yield write


@contextlib.contextmanager
def tfrecord_writer(path: Path, class_names: ClassNames = None) -> Iterator[Write]:
    """One `tf.train.Example` per example, with the features label and prediction, and class as in `csv_writer`."""
    with tf.io.TFRecordWriter(str(path)) as writer:

        def write(labels: np.ndarray, predictions: np.ndarray) -> None:
            columns = _columns(labels, predictions, class_names)
            for parts in zip(*columns.values()):
                features = {name: _feature(values) for name, values in zip(columns, parts)}
                writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())

        yield write


WRITERS = {"csv": csv_writer, "tfrecord": tfrecord_writer}


@contextlib.contextmanager
def written(path: Path, file_format: str, class_names: ClassNames = None) -> Iterator[Write]:
    """A writer of 'csv' or 'tfrecord'; the file appears at `path` when it is complete.

    Args:
      class_names: of the classes 0, 1, ...; None without names, or if labels are not classes.

    Raises:
      PsrunError: the disk is full or the file cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with WRITERS[file_format](part, class_names) as write:
            yield write
        part.replace(path)
    except (OSError, tf.errors.ResourceExhaustedError, tf.errors.PermissionDeniedError) as error:
        raise PsrunError(f"the predictions could not be written to {path}: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _columns(labels: np.ndarray, predictions: np.ndarray, class_names: ClassNames) -> dict[str, np.ndarray]:
    """The columns of a batch by name: arrays of shape (examples, values per example)."""
    columns = {"label": _flat(labels), "prediction": _flat(predictions)}
    if class_names is None:
        return columns
    names = np.array(class_names)
    columns["label"] = names[columns["label"].astype(np.int64)]
    if columns["prediction"].shape[1] == len(names):
        columns["class"] = names[columns["prediction"].argmax(axis=1)][:, np.newaxis]
    return columns


def _flat(values: np.ndarray) -> np.ndarray:
    return values.reshape(len(values), -1)


def _names(base: str, values: np.ndarray, suffixes: ClassNames) -> list[str]:
    count = values.shape[1]
    return [base] if count == 1 else [f"{base}_{suffix}" for suffix in suffixes or range(count)]


def _text(value: np.generic) -> str:
    return f"{value:.9g}" if isinstance(value, np.floating) else str(value)


def _feature(values: np.ndarray) -> tf.train.Feature:
    if values.dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    if values.dtype.kind == "U":
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.encode() for value in values.tolist()]))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
