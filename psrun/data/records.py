"""Rows of TFRecord files, one tf.train.Example each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from psrun.data import files
from psrun.data.columns import Rows
from psrun.data.lists import Lists, objects
from psrun.errors import DataError
from psrun.tf_internals.messages import reason_of

_AT_ONCE = 1000
_FIRST = 16  # records in which the types of the columns are looked for
_KINDS = {"float_list": tf.float32, "int64_list": tf.int64, "bytes_list": tf.string}


def rows(name: str, wanted: Sequence[str]) -> Iterator[Rows]:
    """The rows of a file, in order, in pieces.

    Raises:
      DataError: the file cannot be read to its end.
    """
    records = _records(name)
    while part := list(itertools.islice(records, _AT_ONCE)):
        columns = _at_once([record for _, record in part], wanted)
        yield Rows([number for number, _ in part], columns) if columns else _one_at_a_time(part, wanted)


def columns(name: str) -> list[str]:
    """The columns of the first record of a file; none if there is no record, or it is not an Example."""
    example = tf.train.Example()
    first = next(_records(name), None)
    return sorted(example.features.feature) if first and _parsed(example, first[1]) else []


def _at_once(records: Sequence[bytes], wanted: Sequence[str]) -> dict[str, np.ndarray | Lists] | None:
    """The columns of records, ten times as fast as in Python; None if the first records lack a column, or one is no
    Example or has a column of another kind.
    """
    kinds: dict[str, str] = {}
    for record in records[:_FIRST]:
        first = tf.train.Example()
        if not _parsed(first, record):
            return None
        features = first.features.feature
        kinds |= {name: kind for name in wanted if name in features and (kind := features[name].WhichOneof("kind"))}
        if len(kinds) == len(wanted):
            break
    else:
        return None
    specs = {column: tf.io.RaggedFeature(_KINDS[kinds[column]]) for column in wanted}
    try:
        parsed = tf.io.parse_example(tf.constant(records), specs)
    except (tf.errors.InvalidArgumentError, UnicodeDecodeError):  # decoding its message, which contains the record
        return None
    return {column: _array(values) for column, values in parsed.items()}


def _array(values: tf.RaggedTensor) -> np.ndarray | Lists:
    lengths = values.row_lengths().numpy()
    if lengths[0] and (lengths == lengths[0]).all():
        return values.flat_values.numpy().reshape(len(lengths), -1)
    return Lists(values.flat_values.numpy(), values.row_splits.numpy())


def _one_at_a_time(part: Sequence[tuple[int, bytes]], wanted: Sequence[str]) -> Rows:
    numbers, bad, examples = list[int](), list[tuple[int, str]](), list[dict[str, Any]]()
    for number, record in part:
        example = tf.train.Example()
        if not _parsed(example, record):
            bad.append((number, "is not a tf.train.Example"))
            continue
        numbers.append(number)
        examples.append({column: _values(example.features.feature[column]) for column in wanted})
    return Rows(numbers, {column: objects([row[column] for row in examples]) for column in wanted}, bad)


def _parsed(example: Any, record: bytes) -> bool:
    try:
        example.ParseFromString(record)
    except Exception:  # of protobuf, which is an indirect dependency
        return False
    return True


def _values(feature: Any) -> list[Any] | None:
    """None also for a missing feature: protobuf creates one on access."""
    kind = feature.WhichOneof("kind")
    return list(getattr(feature, kind).value) if kind else None


def _records(name: str) -> Iterator[tuple[int, bytes]]:
    """The records of a TFRecord file, numbered from 1.

    TensorFlow reports no error for a file that is truncated within the first 12 bytes of a record, or, gzipped, at many
    places: so the number of bytes read is compared with the size.
    """
    size, num_bytes, number = _size(name), 0, 0
    records = tf.data.TFRecordDataset(name, "GZIP" if files.zipped(name) else "")
    try:
        for record in _one_by_one(records):
            num_bytes, number = num_bytes + files.RECORD_BYTES + len(record), number + 1
            yield number, record
    except tf.errors.OpError as error:
        raise DataError(f"{name}, record {number + 1} cannot be read: {reason_of(error)}") from error
    if num_bytes != size:
        raise DataError(f"{name}, record {number + 1} cannot be read: the file is cut short")


def _one_by_one(records: tf.data.Dataset) -> Iterator[bytes]:
    """The records as TensorFlow reads many at once; on an error, those before the unreadable record."""
    number = 0
    try:
        for batch in records.batch(_AT_ONCE).as_numpy_iterator():
            yield from batch.tolist()
            number += len(batch)
    except tf.errors.OpError:
        yield from records.skip(number).as_numpy_iterator()


def _size(name: str) -> int:
    if not files.zipped(name):
        return files.system(name).num_bytes(name)
    with files.opened(name) as stream:
        return sum(len(chunk) for chunk in iter(lambda: stream.read(1 << 20), b""))
