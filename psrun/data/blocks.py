"""Examples of files, prepared once so that any of them can be read without the others: columns, in blocks of 64 rows.

A prepared set is a folder: `examples.tfrecord`, whose records are tf.train.Examples with the values of 64 rows a
feature; `offsets.npy`, where each of them begins; and, last, `prepared.json`, what it was made of.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from psrun import atomic
from psrun.data.moments import Scale, Scaling
from psrun.data.source import Batches
from psrun.errors import DataError

_ROWS = 64  # of a record
_VERSION = 2
_AT_ONCE = 16  # records that a batch waits for together
_RECORD_BYTES = 16  # of a TFRecord beside its content: length and checksums
_FIRST_BAD = 20  # of the bad rows, remembered

_FEATURES = {"float32": tf.float32, "int64": tf.int64, "string": tf.string}


@dataclass(frozen=True)
class Column:
    """`dtype`: float32, int64 or string; `width`: values of a row."""

    dtype: str
    width: int = 1


@dataclass(frozen=True)
class Piece:
    """Some rows of a file.

    Attributes:
      columns: by name, of shape (rows, width).
      bad: rows left out: their numbers in the file, from 1 on, and what is wrong with each.
    """

    columns: Mapping[str, np.ndarray]
    bad: Sequence[tuple[int, str]] = ()


@dataclass(frozen=True)
class Blocks:
    """A prepared set. Examples are numbered from 0, in the order of the files and of their rows.

    Attributes:
      path: of the records, for workers to read.
      offsets: where each record begins, in bytes, and the end of the last one.
      num_bad: rows left out; `bad`: what is wrong with the first of them.
      scales: of float columns, by name.
    """

    path: str
    columns: Mapping[str, Column]
    num_examples: int
    offsets: np.ndarray
    num_bad: int
    bad: Sequence[str]
    scales: Mapping[str, Scale]

    def block(self, batch_size: int) -> int:
        """How many examples with consecutive numbers are best read together. Of a smaller batch or of few examples they
        are fewer, for a batch to come from many places.
        """
        fitting = (rows for rows in (_ROWS, 16, 4) if 16 * rows <= batch_size and _ROWS * rows <= self.num_examples)
        return next(fitting, 1)

    def read(self, batches: Batches) -> Batches:
        """Columns of batches: (number, numbers, {name: (n, width)}) of each."""
        offsets = tf.constant(self.offsets)
        specs = {name: tf.io.RaggedFeature(_FEATURES[column.dtype]) for name, column in self.columns.items()}

        def record(index: tf.Tensor) -> tf.Tensor:
            # In one operation, with nothing called: a dataset made for each record would take fifty times as long.
            place, size = offsets[index], offsets[index + 1] - offsets[index]
            found = tf.raw_ops.TFRecordDatasetV2(
                filenames=[self.path], compression_type="", buffer_size=size, byte_offsets=[place]
            )
            return tf.data.experimental.from_variant(found, tf.TensorSpec([], tf.string)).take(1).get_single_element()

        def columns(number: tf.Tensor, numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, dict[str, tf.Tensor]]:
            of = numbers // _ROWS
            others = tf.concat([[0], tf.cast(of[1:] != of[:-1], tf.int64)], 0)  # where another record begins
            needed = tf.gather(of, tf.concat([[0], tf.where(others == 1)[:, 0]], 0))
            records = tf.map_fn(record, needed, fn_output_signature=tf.string, parallel_iterations=_AT_ONCE)
            rows = tf.gather(tf.range(tf.size(needed, tf.int64)) * _ROWS, tf.cumsum(others)) + numbers % _ROWS
            parsed = tf.io.parse_example(records, specs)
            return number, numbers, {
                # Only the last record has fewer rows, and it stands where its rows are looked for.
                name: self._rows(parsed[name], column, rows)
                for name, column in self.columns.items()
            }  # fmt: skip

        return batches.map(columns, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    def _rows(self, values: tf.RaggedTensor, column: Column, rows: tf.Tensor) -> tf.Tensor:
        padded = values.to_tensor(shape=[None, _ROWS * column.width])
        return tf.gather(tf.reshape(padded, [-1, column.width]), rows)

    def in_order(self, batch_size: int, shard: tuple[tf.Tensor, int] | None = None) -> Batches:
        """All examples once, as `read` gives them; of a shard (index, count) every so many-th batch."""
        batches = tf.data.Dataset.range(-(-self.num_examples // batch_size))
        if shard is not None:
            batches = batches.shard(shard[1], shard[0])

        def numbers(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            first = number * batch_size
            return number, tf.range(first, tf.minimum(first + batch_size, self.num_examples))

        return self.read(batches.map(numbers))


def cache() -> Path:
    """The folder for what can be made again, of all runs of a person."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "psrun" / "data"


def prepared(
    names: Sequence[str],
    columns: Mapping[str, Column],
    pieces: Callable[[str], Iterator[Piece]],
    *,
    layout: str,
    max_bad: int = 0,
    within: str | None = None,
) -> Blocks:
    """Examples of files, prepared now or, while the files have not changed since, at an earlier time.

    Args:
      pieces: reads a file.
      layout: says how; what was prepared otherwise is another set.
      max_bad: how many rows may be left out.
      within: the folder for prepared sets; None for `cache()`.

    Raises:
      DataError: a file cannot be read to its end, there are more bad rows, no rows at all, or the folder cannot be
        written.
    """
    key = json.dumps([_VERSION, layout, [_stamp(name) for name in names], {n: asdict(c) for n, c in columns.items()}])
    folder = (Path(within).expanduser() if within else cache()).absolute() / hashlib.sha256(key.encode()).hexdigest()[
        :32
    ]
    with _told(str(folder)):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder.with_suffix(".lock")) as alone:
            for left in folder.parent.glob(f".{folder.name}.*") if alone else ():
                shutil.rmtree(left)  # by a process that was killed
            if not (folder / "prepared.json").exists():
                _write(folder, names, columns, pieces, max_bad)
    found = _opened(folder, columns)
    _check(found.num_bad, found.bad, max_bad)
    return found


def _opened(folder: Path, columns: Mapping[str, Column]) -> Blocks:
    with _told(str(folder)):
        told = json.loads((folder / "prepared.json").read_text(encoding="utf-8"))
        offsets = np.load(folder / "offsets.npy")
    path = str(folder / "examples.tfrecord")
    scales = {name: Scale(**scale) for name, scale in told["scales"].items()}
    return Blocks(path, columns, told["num_examples"], offsets, told["num_bad"], told["bad"], scales)


def _write(
    folder: Path,
    names: Sequence[str],
    columns: Mapping[str, Column],
    pieces: Callable[[str], Iterator[Piece]],
    max_bad: int,
) -> None:
    """Writes a set whose folder appears once it is whole."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    temporary.mkdir()
    writing = _Writing(columns, max_bad)
    try:
        with tf.io.TFRecordWriter(str(temporary / "examples.tfrecord")) as writer:
            for name in names:
                with _told(name):
                    for piece in pieces(name):
                        writing.add(writer, name, piece)
            writing.rest(writer)
        np.save(temporary / "offsets.npy", np.array(writing.offsets, np.int64))
        told = {
            "files": list(names),
            "num_examples": writing.num_examples,
            "num_bad": writing.num_bad,
            "bad": writing.bad,
            "scales": {name: asdict(scaling.scale()) for name, scaling in writing.scalings.items()},
        }
        atomic.write(temporary / "prepared.json", json.dumps(told, indent=2) + "\n", durable=True)
        with contextlib.suppress(FileExistsError):  # another process was quicker
            temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


class _Writing:
    """Cuts pieces into records; what is left of one stands before the next."""

    def __init__(self, columns: Mapping[str, Column], max_bad: int) -> None:
        self._columns, self._max_bad = columns, max_bad
        self._left = {name: np.zeros((0, column.width)) for name, column in columns.items()}
        self.offsets, self.num_examples, self.num_bad, self.bad = [0], 0, 0, list[str]()
        self.scalings = {name: Scaling() for name, column in columns.items() if column.dtype == "float32"}

    def add(self, writer: tf.io.TFRecordWriter, name: str, piece: Piece) -> None:
        self.num_bad += len(piece.bad)
        room = _FIRST_BAD - len(self.bad)
        self.bad += [f"{name}, row {row}: {problem}" for row, problem in piece.bad[: max(0, room)]]
        _check(self.num_bad, self.bad, self._max_bad)
        for key, scaling in self.scalings.items():
            scaling.add(piece.columns[key])
        rows = {
            key: np.concatenate([left, piece.columns[key]]) if len(left) else piece.columns[key]
            for key, left in self._left.items()
        }
        count = len(next(iter(rows.values())))
        whole = count - count % _ROWS
        for first in range(0, whole, _ROWS):
            self._record(writer, {key: values[first : first + _ROWS] for key, values in rows.items()})
        self._left = {key: values[whole:] for key, values in rows.items()}

    def rest(self, writer: tf.io.TFRecordWriter) -> None:
        if len(next(iter(self._left.values()))):
            self._record(writer, self._left)

    def _record(self, writer: tf.io.TFRecordWriter, rows: Mapping[str, np.ndarray]) -> None:
        example = tf.train.Example()
        for name, column in self._columns.items():
            feature, values = example.features.feature[name], rows[name].ravel().tolist()
            kind = {"float32": feature.float_list, "int64": feature.int64_list, "string": feature.bytes_list}
            kind[column.dtype].value.extend(values)
        record = example.SerializeToString()
        writer.write(record)
        self.offsets.append(self.offsets[-1] + _RECORD_BYTES + len(record))
        self.num_examples += len(rows[next(iter(self._columns))])


def _check(num_bad: int, bad: Sequence[str], max_bad: int) -> None:
    if num_bad > max_bad:
        allowed = f" (bad rows: {num_bad:,} so far, data.max_bad_rows={max_bad})" if max_bad else ""
        raise DataError(f"{bad[min(max_bad, len(bad) - 1)]}{allowed}; data.max_bad_rows=... leaves out so many")


def _stamp(name: str) -> list[Any]:
    """Another one once the file changes."""
    with _told(name):
        found = tf.io.gfile.stat(name)
    return [name if "://" in name else os.path.abspath(name), found.length, found.mtime_nsec]


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """One process at a time, where the file system can do that (True); elsewhere several do the same at once."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            alone = True
        except OSError:
            alone = False
        yield alone


@contextlib.contextmanager
def _told(name: str) -> Iterator[None]:
    """Raises what goes wrong with a file as a DataError that names it."""
    try:
        yield
    except (tf.errors.OpError, EOFError, OSError, zlib.error) as error:
        said = error.message if isinstance(error, tf.errors.OpError) else error
        raise DataError(f"{name} cannot be read to its end or written: {said}") from error
