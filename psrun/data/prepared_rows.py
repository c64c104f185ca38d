"""Prepared rows of files, with random access by number.

They are an Arrow IPC file: columns without nulls, in record batches of 65,536 rows (the last one has fewer). Workers
map the file into memory and gather the values of a batch from it with TensorFlow's operations, without Python: each
column of a record batch is one buffer, of which the place in the file is known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf
from pyarrow import ipc, types

from psrun.data.columns import Column
from psrun.data.source import Batches, Convert, as_read, shard_of

TYPES = {"float32": tf.float32, "int64": tf.int64, "string": tf.string}
BATCH_ROWS = 1 << 16  # of a record batch
_BLOCK_ROWS = 128  # at most, which stay together in the order of examples
_PLACES = 8  # from which a batch is read
_BYTES = {tf.float32: 4, tf.int64: 8}


@dataclass(frozen=True)
class PreparedRows:
    """Prepared rows, numbered from 0 in the order of the files and of their rows.

    Attributes:
      path: of the Arrow IPC file.
      columns: by name.
      places: of the buffers of each record batch, in bytes from the start of the file; int64, by column: those of
        values, or of offsets and values, from the outer lists to the inner ones.
      num_bytes: of the file.
    """

    path: str
    columns: Mapping[str, Column]
    num_examples: int
    places: Mapping[str, np.ndarray]
    num_bytes: int

    def block(self, batch_size: int) -> int:
        """The number of consecutive examples to read together; smaller for small batches and data sets, so that a batch
        still comes from many places.
        """
        most = min(_BLOCK_ROWS, batch_size // _PLACES, self.num_examples // _PLACES**2)
        return 1 << max(0, most.bit_length() - 1)

    def read(self, batches: Batches, convert: Convert = as_read) -> tf.data.Dataset:
        """Examples of batches, converted.

        Args:
          convert: of the columns by name, of shape (n, width) or, of lists, RaggedTensors (n, None). Called here and
            not in another `map`, because each `map` packs and unpacks RaggedTensors.
        """

        def columns(number: tf.Tensor, numbers: tf.Tensor) -> Any:
            return convert(number, numbers, self._gathered(numbers))

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

    def _gathered(self, numbers: tf.Tensor) -> dict[str, Any]:
        file = _MappedFile(self.path, self.num_bytes)
        which = numbers // BATCH_ROWS
        rows = numbers % BATCH_ROWS
        columns: dict[str, Any] = {}
        for dtype, size in _BYTES.items():
            names = [name for name, each in self.columns.items() if TYPES[each.dtype] == dtype and not _is_list(each)]
            if names:
                widths = [self.columns[name].width for name in names]
                begins = np.stack([self.places[name][:, 0] for name in names], 1) // size
                columns |= zip(names, _fixed(file.view(dtype), tf.constant(begins), widths, which, rows))
        texts = [name for name, each in self.columns.items() if each.dtype == "string" and not _is_list(each)]
        if texts:
            columns |= zip(texts, self._texts(file, texts, which, rows))
        for name, column in self.columns.items():
            if _is_list(column):
                columns[name] = self._lists(file, name, which, rows)
        return {name: columns[name] for name in self.columns}

    def _texts(self, file: _MappedFile, names: Sequence[str], which: tf.Tensor, rows: tf.Tensor) -> list[tf.Tensor]:
        """Columns of texts, read together: (n, width) each."""
        widths = [self.columns[name].width for name in names]
        offsets = tf.constant(np.stack([self.places[name][:, 0] for name in names], 1) // 4)
        firsts = tf.constant(np.stack([self.places[name][:, 1] for name in names], 1))
        index = _indices(offsets, widths, which, rows)
        base = tf.gather(tf.gather(firsts, which), np.repeat(np.arange(len(names)), widths), axis=1)
        begins = base + tf.cast(tf.gather(file.int32, index), tf.int64)
        ends = base + tf.cast(tf.gather(file.int32, index + 1), tf.int64)
        # By column, so that each is one part of the result.
        texts = file.texts(tf.reshape(tf.transpose(begins), [-1]), tf.reshape(tf.transpose(ends), [-1]))
        table = tf.transpose(tf.reshape(texts, [sum(widths), -1])) if max(widths) > 1 else None
        if table is not None:
            return tf.split(table, widths, axis=1)
        return tf.unstack(tf.reshape(texts, [len(names), -1, 1]))

    def _lists(self, file: _MappedFile, name: str, which: tf.Tensor, rows: tf.Tensor) -> tf.RaggedTensor:
        column = self.columns[name]
        places = tf.gather(tf.constant(self.places[name]), which)
        offsets = tf.gather(file.int32, tf.stack([places[:, 0] // 4 + rows, places[:, 0] // 4 + rows + 1]))
        offsets = tf.cast(offsets, tf.int64)
        lengths = offsets[1] - offsets[0]
        if column.dtype == "string":
            index = _ranges(places[:, 1] // 4 + offsets[0], places[:, 1] // 4 + offsets[1])
            base = tf.repeat(places[:, 2], lengths)
            begins = base + tf.cast(tf.gather(file.int32, index), tf.int64)
            ends = base + tf.cast(tf.gather(file.int32, index + 1), tf.int64)
            values = file.texts(begins, ends)
        else:
            dtype = TYPES[column.dtype]
            base = places[:, 1] // _BYTES[dtype]
            values = tf.gather(file.view(dtype), _ranges(base + offsets[0], base + offsets[1]))
        return tf.RaggedTensor.from_row_lengths(values, lengths, validate=False)


class _MappedFile:
    """A file in the memory of the process that executes the graph, as tensors of its bytes and numbers.

    TensorFlow maps the file anew each time that a graph is executed, which takes some microseconds.
    """

    def __init__(self, path: str, num_bytes: int) -> None:
        self._path, self._num_bytes = path, num_bytes
        self.int32 = self.view(tf.int32, 4)

    def view(self, dtype: tf.DType, size: int | None = None) -> tf.Tensor:
        shape = [self._num_bytes // (size or _BYTES[dtype])]
        return tf.raw_ops.ImmutableConst(dtype=dtype, shape=shape, memory_region_name=self._path)

    def texts(self, begins: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
        """Texts by where they begin and end in the file.

        TensorFlow has no operation that makes a string of bytes. A serialized tensor ends with its bytes.
        """
        index = tf.raw_ops.RaggedRange(starts=begins, limits=ends, deltas=tf.ones([], tf.int64), Tsplits=tf.int64)
        content = tf.gather(self.view(tf.uint8, 1), index.rt_dense_values)
        text = tf.io.serialize_tensor(content)
        first = tf.strings.length(text) - tf.size(content)
        return tf.strings.substr(
            text, first + tf.cast(index.rt_nested_splits[:-1], tf.int32), tf.cast(ends - begins, tf.int32)
        )


def _is_list(column: Column) -> bool:
    return column.max_values is not None


def _fixed(
    values: tf.Tensor, begins: tf.Tensor, widths: Sequence[int], which: tf.Tensor, rows: tf.Tensor
) -> list[tf.Tensor]:
    """Columns of numbers of one type, read together: (n, width) each."""
    return tf.split(tf.gather(values, _indices(begins, widths, which, rows)), list(widths), axis=1)


def _indices(begins: tf.Tensor, widths: Sequence[int], which: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Where the values of rows are: (n, sum of widths).

    Args:
      begins: of each column in each record batch.
      widths: of the columns.
      which: the record batch of each row.
    """
    begin = tf.gather(begins, which)
    if max(widths) == 1:
        return begin + rows[:, tf.newaxis]
    column: np.ndarray = np.repeat(np.arange(len(widths)), widths)
    within = np.concatenate([np.arange(width) for width in widths])
    return tf.gather(begin, column, axis=1) + rows[:, tf.newaxis] * np.repeat(widths, widths) + within


def _ranges(begins: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
    ranges = tf.raw_ops.RaggedRange(starts=begins, limits=ends, deltas=tf.ones([], tf.int64), Tsplits=tf.int64)
    return ranges.rt_dense_values


def opened(path: Path, columns: Mapping[str, Column]) -> PreparedRows:
    """Opens a file of prepared rows.

    Raises:
      OSError, ValueError: the file is incomplete, or has other columns.
    """
    with pa.memory_map(str(path)) as stream:
        content = stream.read_buffer()
        file = ipc.open_file(pa.BufferReader(content))
        if file.schema != schema(columns):
            raise ValueError(f"{path} has other columns")
        batches = [file.get_batch(index) for index in range(file.num_record_batches)]
        places = {
            name: np.array([_places(batch.column(name), content.address) for batch in batches], np.int64)
            for name in columns
        }
        num_examples = sum(batch.num_rows for batch in batches)
    return PreparedRows(str(path), columns, num_examples, places, path.stat().st_size)


def schema(columns: Mapping[str, Column]) -> pa.Schema:
    return pa.schema([(name, column.type) for name, column in columns.items()])


def _places(array: pa.Array, start: int) -> list[int]:
    """The places of the buffers of a column, without those of nulls."""
    buffers = array.buffers()
    kind: Any = array.type
    kept: list[Any] = []
    while types.is_list(kind) or types.is_fixed_size_list(kind):
        kept += buffers[1:2] if types.is_list(kind) else []
        buffers = buffers[2:] if types.is_list(kind) else buffers[1:]
        kind = kind.value_type
    kept += buffers[1:]
    return [0 if buffer is None or not buffer.size else buffer.address - start for buffer in kept]


class Writer:
    """Writes prepared rows.

    Raises:
      OSError: from all methods, if the file cannot be written.
    """

    def __init__(self, path: Path, columns: Mapping[str, Column]) -> None:
        self.num_examples = 0
        self._schema = schema(columns)
        self._waiting: list[pa.RecordBatch] = []
        self._num_waiting = 0
        self._writer = ipc.new_file(str(path), self._schema)

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._num_waiting += batch.num_rows
        self.num_examples += batch.num_rows
        if self._num_waiting >= BATCH_ROWS:
            self._write(self._num_waiting // BATCH_ROWS * BATCH_ROWS)

    def _write(self, num_rows: int) -> None:
        table = pa.Table.from_batches(self._waiting, self._schema).combine_chunks()
        for first in range(0, num_rows, BATCH_ROWS):
            part = table.slice(first, min(BATCH_ROWS, num_rows - first))
            self._writer.write_batch(part.combine_chunks().to_batches()[0])
        rest = table.slice(num_rows)
        self._num_waiting = rest.num_rows
        self._waiting = rest.to_batches()

    def close(self) -> None:
        """Writes the rest."""
        if self._num_waiting:
            self._write(self._num_waiting)
        self._writer.close()

    def abandon(self) -> None:
        """Closes the file, of which the content is lost."""
        self._waiting = []
        with contextlib.suppress(OSError):
            self._writer.close()
