"""Rows of TFRecord files, one tf.train.Example each, as lists of values."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf

from psrun.data import storage
from psrun.errors import DataError
from psrun.tables.rows import Rows
from psrun.tf_internals.messages import reason_of

_AT_ONCE = 1000
_FIRST = 16  # records in which the types of the columns are looked for
_KINDS = {"float_list": tf.float32, "int64_list": tf.int64, "bytes_list": tf.string}
_TYPES = {"float_list": pa.float32(), "int64_list": pa.int64(), "bytes_list": pa.binary()}
_RECORD_BYTES = 16  # of a record without its content: length and checksums


def rows(name: str, wanted: Sequence[str]) -> Iterator[Rows]:
    """The rows of a file, in order, in pieces.

    Raises:
      DataError: the file cannot be read to its end.
    """
    records = _records(name)
    first = 0
    while part := list(itertools.islice(records, _AT_ONCE)):
        columns = _at_once(part, wanted)
        if columns is not None:
            places = np.arange(first, first + len(part))
            yield Rows(pa.record_batch(columns, list(wanted)), places)
        else:
            yield _one_at_a_time(part, wanted, first)
        first += len(part)


def columns(name: str) -> list[str]:
    """The columns of the first record of a file; none if there is no record, or it is not an Example."""
    example = tf.train.Example()
    first = next(_records(name), None)
    return sorted(example.features.feature) if first and _parsed(example, first) else []


def _at_once(records: Sequence[bytes], wanted: Sequence[str]) -> list[pa.Array] | None:
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
    return [_array(parsed[column], _TYPES[kinds[column]]) for column in wanted]


def _array(values: tf.RaggedTensor, kind: pa.DataType) -> pa.Array:
    splits = pa.array(values.row_splits.numpy().astype(np.int32))
    return pa.ListArray.from_arrays(splits, pa.array(values.flat_values.numpy(), kind))


def _one_at_a_time(part: Sequence[bytes], wanted: Sequence[str], first: int) -> Rows:
    places: list[int] = []
    bad: list[tuple[int, str]] = []
    examples: list[dict[str, Any]] = []
    for place, record in enumerate(part, first):
        example = tf.train.Example()
        if not _parsed(example, record):
            bad.append((place, "is not a tf.train.Example"))
            continue
        places.append(place)
        examples.append({column: example.features.feature[column] for column in wanted})
    batch = pa.record_batch([_values([row[column] for row in examples]) for column in wanted], list(wanted))
    return Rows(batch, np.array(places, np.int64), bad)


def _values(features: Sequence[Any]) -> pa.Array:
    """Lists of one type; numbers beside texts become texts. A missing feature is an empty list."""
    kinds = [feature.WhichOneof("kind") for feature in features]
    rows = [list(getattr(feature, kind).value) if kind else [] for feature, kind in zip(features, kinds)]
    types = {_TYPES[kind] for kind in kinds if kind}
    if len(types) == 1:
        return pa.array(rows, pa.list_(types.pop()))
    if pa.binary() not in types:
        return pa.array(rows, pa.list_(pa.float64()))
    texts = [[each if isinstance(each, bytes) else str(each).encode() for each in row] for row in rows]
    return pa.array(texts, pa.list_(pa.binary()))


def _parsed(example: Any, record: bytes) -> bool:
    try:
        example.ParseFromString(record)
    except Exception:  # of protobuf, which is an indirect dependency
        return False
    return True


def _records(name: str) -> Iterator[bytes]:
    """The records of a TFRecord file.

    TensorFlow reports no error for a file that is truncated within the first 12 bytes of a record, or, gzipped, at many
    places: so the number of bytes read is compared with the size.
    """
    num_bytes = 0
    number = 0
    records = tf.data.TFRecordDataset(name, "GZIP" if storage.zipped(name) else "")
    try:
        for record in _one_by_one(records):
            num_bytes += _RECORD_BYTES + len(record)
            number += 1
            yield record
    except tf.errors.OpError as error:
        raise DataError(f"{name}, record {number + 1} cannot be read: {reason_of(error)}") from error
    if num_bytes != _size(name):
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
    if not storage.zipped(name):
        return storage.num_bytes_of(name)
    with storage.opened(name) as stream:
        return sum(len(chunk) for chunk in iter(lambda: stream.read(1 << 20), b""))
