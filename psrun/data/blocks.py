"""Prepared examples of files: columns in blocks of 128 rows, with random access.

A prepared set is a folder: `examples.tfrecord`, with records of tf.train.Examples with the values of 128 rows per
feature (the last one is padded) and, of lists, also their lengths; `offsets.npy`, the start of each record; and
`prepared.json`, written last, which describes the source.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from psrun.data.order import runs
from psrun.data.source import Batches, Convert, as_read, shard_of
from psrun.data.statistics import Scale

ROWS = 128  # of a record
_PLACES = 8  # from which a batch is read
_AT_ONCE = 16  # records that a batch waits for together
TYPES = {"float32": tf.float32, "int64": tf.int64, "string": tf.string}


@dataclass(frozen=True)
class Column:
    """`dtype`: float32, int64 or string; `width`: values of a row; `max_values`: of lists, None for no lists."""

    dtype: str
    width: int = 1
    max_values: int | None = None


@dataclass(frozen=True)
class Blocks:
    """A prepared set. Examples are numbered from 0, in the order of the files and of their rows.

    Attributes:
      path: of the records, for workers to read.
      offsets: where each record begins, in bytes, and the end of the last one.
      num_bad: number of skipped rows; `bad`: the problems of the first of them.
      scales: of float columns, by name.
      num_truncated: number of truncated lists, by name.
    """

    path: str
    columns: Mapping[str, Column]
    num_examples: int
    offsets: np.ndarray
    num_bad: int
    bad: Sequence[str]
    scales: Mapping[str, Scale]
    num_truncated: Mapping[str, int]

    def block(self, batch_size: int) -> int:
        """The number of consecutive examples to read together; smaller for small batches and data sets, so that a batch
        still comes from many places.
        """
        most = min(ROWS, batch_size // _PLACES, self.num_examples // _PLACES**2)
        return 1 << max(0, most.bit_length() - 1)

    def read(self, batches: Batches, convert: Convert = as_read) -> tf.data.Dataset:
        """Examples of batches, converted.

        Args:
          convert: of the columns by name, of shape (n, width) or, of lists, RaggedTensors (n, None). Called here and
            not in another `map`, because each `map` packs and unpacks RaggedTensors.
        """
        offsets = tf.constant(self.offsets)
        specs: dict[str, Any] = {}
        for name, column in self.columns.items():
            specs |= _specs(name, column)

        def record(index: tf.Tensor) -> tf.Tensor:
            # One operation without function calls: a dataset per record would take fifty times as long.
            place, size = offsets[index], offsets[index + 1] - offsets[index]
            records = tf.raw_ops.TFRecordDatasetV2(
                filenames=[self.path], compression_type="", buffer_size=size, byte_offsets=[place]
            )
            return tf.data.experimental.from_variant(records, tf.TensorSpec([], tf.string)).take(1).get_single_element()

        def columns(number: tf.Tensor, numbers: tf.Tensor) -> Any:
            of = numbers // ROWS
            firsts, which = runs(of[1:] != of[:-1])
            records = tf.map_fn(
                record, tf.gather(of, firsts), fn_output_signature=tf.string, parallel_iterations=_AT_ONCE
            )
            rows = which * ROWS + numbers % ROWS
            parsed = tf.io.parse_example(records, specs)
            batch = {name: tf.gather(_rows(name, column, parsed), rows) for name, column in self.columns.items()}
            return convert(number, numbers, batch)

        return batches.map(columns, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    def in_order(
        self, batch_size: int, shard: tuple[tf.Tensor, int] | None = None, convert: Convert = as_read
    ) -> tf.data.Dataset:
        """All examples once, as from `read`; with a shard, only its batches."""
        num_batches = -(-self.num_examples // batch_size)
        batches = tf.data.Dataset.range(*((0, num_batches) if shard is None else shard_of(num_batches, shard)))

        def numbers(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            first = number * batch_size
            return number, tf.range(first, tf.minimum(first + batch_size, self.num_examples))

        return self.read(batches.map(numbers), convert)


def lengths_of(name: str) -> str:
    """The name of the lengths of lists in a record; no feature has such a name."""
    return f"{name}:lengths"


def _specs(name: str, column: Column) -> dict[str, Any]:
    if column.max_values is None:
        return {name: tf.io.FixedLenFeature([ROWS * column.width], TYPES[column.dtype])}
    values = tf.io.RaggedFeature(TYPES[column.dtype], row_splits_dtype=tf.int64)
    return {name: values, lengths_of(name): tf.io.FixedLenFeature([ROWS], tf.int64)}


def _rows(name: str, column: Column, parsed: Mapping[str, Any]) -> Any:
    """All rows of some parsed records."""
    if column.max_values is None:
        return tf.reshape(parsed[name], [-1, column.width])
    lengths = tf.reshape(parsed[lengths_of(name)], [-1])
    return tf.RaggedTensor.from_row_lengths(parsed[name].flat_values, lengths, validate=False)


def opened(folder: Path, columns: Mapping[str, Column]) -> Blocks:
    """Opens the prepared set in a folder.

    Raises:
      OSError, ValueError: the set is incomplete.
    """
    manifest = json.loads((folder / "prepared.json").read_text(encoding="utf-8"))
    offsets, path = np.load(folder / "offsets.npy"), folder / "examples.tfrecord"
    if path.stat().st_size != offsets[-1]:
        raise ValueError(f"{path} does not have {offsets[-1]} bytes")
    scales = {name: Scale(**scale) for name, scale in manifest["scales"].items()}
    num_examples, num_bad, bad = manifest["num_examples"], manifest["num_bad"], manifest["bad"]
    truncated = manifest.get("num_truncated", {})  # sets without lists may lack it
    return Blocks(str(path), columns, num_examples, offsets, num_bad, bad, scales, truncated)
