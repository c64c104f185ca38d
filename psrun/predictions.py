"""Files of predictions, one row an example, in the order in which they come."""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from psrun.errors import PsrunError

Write = Callable[[np.ndarray, np.ndarray], None]  # labels and predictions of a batch, examples along the first axis


@contextlib.contextmanager
def csv_writer(path: Path) -> Iterator[Write]:
    """Rows of label and prediction; more than one value of either in columns with numbers: prediction_0, ...

    Numbers are written such that reading them as float32 gives the same bits.
    """
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        headed = False

        def write(labels: np.ndarray, predictions: np.ndarray) -> None:
            nonlocal headed
            columns = {"label": _flat(labels), "prediction": _flat(predictions)}
            if not headed:
                rows.writerow([name for base, values in columns.items() for name in _names(base, values.shape[1])])
                headed = True
            for parts in zip(*columns.values()):
                rows.writerow([_text(value) for part in parts for value in part])

        yield write


@contextlib.contextmanager
def tfrecord_writer(path: Path) -> Iterator[Write]:
    """A `tf.train.Example` an example, with the features label and prediction."""
    with tf.io.TFRecordWriter(str(path)) as writer:

        def write(labels: np.ndarray, predictions: np.ndarray) -> None:
            for label, prediction in zip(_flat(labels), _flat(predictions)):
                features = {"label": _feature(label), "prediction": _feature(prediction)}
                writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())

        yield write


WRITERS = {"csv": csv_writer, "tfrecord": tfrecord_writer}


@contextlib.contextmanager
def written(path: Path, file_format: str) -> Iterator[Write]:
    """A writer of 'csv' or 'tfrecord'; the file is at `path` once all is written, and not before.

    Raises:
      PsrunError: the disk is full or the file cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with WRITERS[file_format](part) as write:
            yield write
        part.replace(path)
    except (OSError, tf.errors.ResourceExhaustedError, tf.errors.PermissionDeniedError) as error:
        raise PsrunError(f"the predictions could not be written to {path}: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _flat(values: np.ndarray) -> np.ndarray:
    return values.reshape(len(values), -1)


def _names(base: str, count: int) -> list[str]:
    return [base] if count == 1 else [f"{base}_{index}" for index in range(count)]


def _text(value: np.generic) -> str:
    return f"{value:.9g}" if isinstance(value, np.floating) else str(value)


def _feature(values: np.ndarray) -> tf.train.Feature:
    if values.dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
