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

from psrun.data.source import Batches, Convert, as_read, run_starts, shard_of
from psrun.tables.columns import Column
from psrun.tables.rows import decoded

TYPES = {"float32": tf.float32, "int64": tf.int64, "string": tf.string}
BATCH_ROWS = 1 << 16  # of a record batch
_BLOCK_ROWS = 128  # at most, which stay together in the order of examples
_PLACES = 8  # from which a batch is read


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
        for dtype in (tf.float32, tf.int64):
            names = [name for name, each in self.columns.items() if TYPES[each.dtype] == dtype and not _is_list(each)]
            if names:
                widths = [self.columns[name].width for name in names]
                begins = np.stack([self.places[name][:, 0] for name in names], 1) // dtype.size
                columns |= zip(names, _fixed(file.view(dtype), tf.constant(begins), widths, which, rows))
        texts = {
            name: each.width for name, each in self.columns.items() if each.dtype == "string" and not _is_list(each)
        }
        for width in set(texts.values()):
            names = [name for name in texts if texts[name] == width]
            columns |= zip(names, self._texts(file, names, which, rows))
        for name, column in self.columns.items():
            if _is_list(column):
                columns[name] = self._lists(file, name, which, rows)
        return {name: columns[name] for name in self.columns}

    def _texts(self, file: _MappedFile, names: Sequence[str], which: tf.Tensor, rows: tf.Tensor) -> list[tf.Tensor]:
        """Columns of texts of one width, read together: (n, width) each."""
        width = self.columns[names[0]].width
        if width > 1:
            which = tf.repeat(which, width)
            rows = tf.reshape(rows[:, tf.newaxis] * width + tf.range(width, dtype=tf.int64), [-1])
        offsets = np.stack([self.places[name][:, 0] for name in names], 1)
        contents = np.stack([self.places[name][:, 1] for name in names], 1)
        texts = file.texts(offsets, contents, which, rows)
        return tf.unstack(tf.reshape(texts, [len(names), -1, width]))

    def _lists(self, file: _MappedFile, name: str, which: tf.Tensor, rows: tf.Tensor) -> tf.RaggedTensor:
        column = self.columns[name]
        places = tf.gather(tf.constant(self.places[name]), which)
        offsets = tf.gather(file.view(tf.int32), tf.stack([places[:, 0] // 4 + rows, places[:, 0] // 4 + rows + 1]))
        begins, ends = tf.unstack(tf.cast(offsets, tf.int64))
        lengths = ends - begins
        if column.dtype == "string":
            outer = self.places[name]
            items = _ranges(begins, ends).rt_dense_values
            values = file.texts(outer[:, 1:2], outer[:, 2:3], tf.repeat(which, lengths), items)[0]
        else:
            dtype = TYPES[column.dtype]
            base = places[:, 1] // dtype.size
            values = tf.gather(file.view(dtype), _ranges(base + begins, base + ends).rt_dense_values)
        return tf.RaggedTensor.from_row_lengths(values, lengths, validate=False)


class _MappedFile:
    """A file in the memory of the process that executes the graph, as tensors of numbers.

    TensorFlow maps the file anew each time that a graph is executed, which takes some microseconds.
    """

    def __init__(self, path: str, num_bytes: int) -> None:
        shape = [num_bytes // 8]  # an Arrow file ends with its footer, so that the rest of a division does not matter
        self._words = tf.raw_ops.ImmutableConst(dtype=tf.int64, shape=shape, memory_region_name=path)

    def view(self, dtype: tf.DType) -> tf.Tensor:
        return self._words if dtype == tf.int64 else tf.reshape(tf.bitcast(self._words, dtype), [-1])

    def texts(self, offsets: np.ndarray, contents: np.ndarray, which: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """The texts of rows in several columns: (columns, n).

        The bytes of consecutive rows are next to each other, so they are read together, in words of eight.

        Args:
          offsets: where the offsets of each column begin in each record batch, in bytes of the file.
          contents: where its bytes do.
          which: the record batch of each row.
          rows: their numbers in the record batch.
        """
        num_rows = tf.size(rows, tf.int64)
        firsts, run = run_starts((rows[1:] != rows[:-1] + 1) | (which[1:] != which[:-1]))
        firsts = firsts[:num_rows]  # none of no rows, as of lists that are all empty
        run = run[:num_rows]
        first = tf.gather(rows, firsts)
        count = tf.concat([firsts[1:], [num_rows]], 0) - firsts
        batch = tf.gather(which, firsts)
        begin = tf.gather(tf.constant(contents), batch)  # (runs, columns), as what follows
        # A run of n rows has n + 1 offsets.
        numbers = _ranges(first, first + count + 1)
        index = tf.gather(tf.gather(tf.constant(offsets // 4), batch), tf.repeat(tf.range(tf.size(first)), count + 1))
        ends = tf.cast(tf.gather(self.view(tf.int32), index + numbers.rt_dense_values[:, tf.newaxis]), tf.int64)
        bounds = numbers.rt_nested_splits
        first_word = (begin + tf.gather(ends, bounds[:-1])) // 8
        last_word = (begin + tf.gather(ends, bounds[1:] - 1) + 7) // 8
        words = _ranges(_flat(first_word), _flat(last_word))
        # TensorFlow has no operation that makes a string of bytes. A serialized tensor ends with its bytes.
        content = tf.gather(self.view(tf.int64), words.rt_dense_values)
        text = tf.io.serialize_tensor(content)
        head = tf.cast(tf.strings.length(text), tf.int64) - 8 * tf.size(content, tf.int64)
        place = tf.transpose(tf.reshape(words.rt_nested_splits[:-1], [contents.shape[1], -1]))
        shift = tf.gather(head + 8 * (place - first_word) + begin, run)
        row = tf.range(num_rows) + run  # among the offsets
        starts = tf.gather(ends, row)
        lengths = tf.gather(ends, row + 1) - starts
        places = tf.cast(_flat(shift + starts), tf.int32)
        texts = tf.strings.substr(text, places, tf.cast(_flat(lengths), tf.int32))
        return tf.reshape(texts, [contents.shape[1], -1])


def _flat(values: tf.Tensor) -> tf.Tensor:
    """A matrix column by column."""
    return tf.reshape(tf.transpose(values), [-1])


def _is_list(column: Column) -> bool:
    return column.max_values is not None


def _fixed(
    values: tf.Tensor, begins: tf.Tensor, widths: Sequence[int], which: tf.Tensor, rows: tf.Tensor
) -> list[tf.Tensor]:
    """Columns of numbers of one type, read together: (n, width) each.

    Args:
      begins: of each column in each record batch.
      widths: of the columns.
      which: the record batch of each row.
    """
    places = tf.gather(begins, which)
    if max(widths) == 1:
        places = places + rows[:, tf.newaxis]
    else:
        column: np.ndarray = np.repeat(np.arange(len(widths)), widths)
        within = np.concatenate([np.arange(width) for width in widths])
        places = tf.gather(places, column, axis=1) + rows[:, tf.newaxis] * np.repeat(widths, widths) + within
    return tf.split(tf.gather(values, places), list(widths), axis=1)


def _ranges(begins: tf.Tensor, ends: tf.Tensor) -> Any:
    return tf.raw_ops.RaggedRange(starts=begins, limits=ends, deltas=tf.ones([], tf.int64), Tsplits=tf.int64)


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
        """Adds rows, of which columns may be dictionaries."""
        batch = pa.record_batch([decoded(column) for column in batch.columns], self._schema)
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
