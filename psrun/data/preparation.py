"""Writes prepared sets (see `psrun.data.blocks`) once: the next run on the same files reuses them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from psrun.data import files, lists
from psrun.data.blocks import ROWS, Blocks, Column, lengths_of, opened
from psrun.data.files import cache
from psrun.data.lists import Lists
from psrun.data.pieces import Piece
from psrun.data.remote import os_errors
from psrun.data.statistics import Scaling
from psrun.errors import ConfigError, DataError, Problem
from psrun.files import write_atomic

_VERSION = 2
_LOOK_EVERY_S = 0.5
_FIRST_BAD = 20  # of the bad rows, remembered


@dataclass(frozen=True)
class Preparing:
    """How files are prepared.

    Attributes:
      max_bad_rows: number of malformed rows to skip; one more is an error.
      cache: the folder for prepared sets; None for `cache()`.
      tell: called repeatedly with the progress.
    """

    max_bad_rows: int = 0
    cache: str | None = None
    tell: Callable[[str], None] = lambda text: None


def prepared(
    names: Sequence[str],
    columns: Mapping[str, Column],
    pieces: Callable[[str], Iterator[Piece]],
    *,
    layout: str,
    how: Preparing,
) -> Blocks:
    """The prepared examples of files; reuses an earlier set if the files have not changed.

    Args:
      pieces: reads a file.
      layout: how the files are read; part of the key of the set.

    Raises:
      ConfigError: `how.cache` is not a folder.
      DataError: a file cannot be read to its end, there are more malformed rows, no rows, or the folder cannot be
        written.
    """
    if how.cache and "://" in how.cache:
        raise ConfigError([Problem("data.cache", f"is {how.cache!r}, must be a folder on a mounted disk")])
    key = json.dumps(
        [_VERSION, layout, [files.stamp(name) for name in names], {n: _key(c) for n, c in columns.items()}]
    )
    digest = hashlib.sha256(key.encode()).hexdigest()[:32]
    folder = (Path(how.cache).expanduser() if how.cache else cache()).absolute() / digest
    prepared = _whole(folder, columns)
    if prepared is None:
        with _writes(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with _alone(folder.with_suffix(".lock"), how.tell) as alone:
                prepared = _whole(folder, columns) or _write(folder, names, columns, pieces, how, alone=alone)
    _check(prepared.num_bad, prepared.bad, how.max_bad_rows)
    return prepared


def _key(column: Column) -> dict[str, Any]:
    """Sets without lists keep the keys that they had before there were lists."""
    return {key: value for key, value in asdict(column).items() if key != "max_values" or value is not None}


@contextlib.contextmanager
def _writes(folder: Path) -> Iterator[None]:
    """Raises errors of writing a set as DataError."""
    try:
        with os_errors():
            yield
    except OSError as error:
        reason = error.strerror or str(error)
        remedy = "free disk space, or choose" if "No space left" in reason else "choose"
        remedy += " a folder on another disk: data.cache=FOLDER"
        raise DataError(f"the prepared rows cannot be written to {folder}: {reason}; {remedy}") from error


def _whole(folder: Path, columns: Mapping[str, Column]) -> Blocks | None:
    with contextlib.suppress(OSError, ValueError, KeyError):
        return opened(folder, columns)
    return None


def _write(
    folder: Path,
    names: Sequence[str],
    columns: Mapping[str, Column],
    pieces: Callable[[str], Iterator[Piece]],
    how: Preparing,
    *,
    alone: bool,
) -> Blocks:
    """Writes a set; its folder appears when the set is complete.

    Args:
      alone: whether no other process can be writing it.
    """
    if alone:
        for abandoned in folder.parent.glob(f".{folder.name}.{socket.gethostname()}.*"):  # of a killed process
            shutil.rmtree(abandoned)
    temporary = folder.with_name(f".{folder.name}.{socket.gethostname()}.{os.getpid()}")
    temporary.mkdir()
    writing = _Writing(columns, how.max_bad_rows)
    try:
        with tf.io.TFRecordWriter(str(temporary / "examples.tfrecord")) as writer:
            for number, name in enumerate(names, 1):
                for piece in _read(name, pieces):
                    writing.add(writer, name, piece)
                    how.tell(f"preparing {name} ({number} of {len(names)} files): {writing.num_examples:,} rows so far")
            writing.rest(writer)
        offsets = io.BytesIO()  # on a full disk np.save reports only the number of bytes
        np.save(offsets, np.array(writing.offsets, np.int64))
        (temporary / "offsets.npy").write_bytes(offsets.getbuffer())
        manifest = {
            "files": list(names),
            "num_examples": writing.num_examples,
            "num_bad": writing.num_bad,
            "bad": writing.bad,
            "num_truncated": writing.num_truncated,
            "scales": {name: asdict(scaling.scale()) for name, scaling in writing.scalings.items()},
        }
        write_atomic(temporary / "prepared.json", json.dumps(manifest, indent=2) + "\n", durable=True)
        if not alone and (other := _whole(folder, columns)):  # another process was faster
            shutil.rmtree(temporary)
            return other
        shutil.rmtree(folder, ignore_errors=True)  # an incomplete set
        temporary.rename(folder)
        return opened(folder, columns)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _read(name: str, pieces: Callable[[str], Iterator[Piece]]) -> Iterator[Piece]:
    with files.data_errors(name):  # only errors of reading, not of processing a piece
        yield from pieces(name)


class _Writing:
    """Splits pieces into records; the rest of a piece precedes the next one."""

    def __init__(self, columns: Mapping[str, Column], max_bad: int) -> None:
        self._columns, self._max_bad = columns, max_bad
        self._left: dict[str, np.ndarray | Lists] = {
            name: np.zeros((0, column.width)) if column.max_values is None else lists.empty(0)
            for name, column in columns.items()
        }
        self.offsets, self.num_examples, self.num_bad, self.bad = [0], 0, 0, list[str]()
        self.num_truncated: dict[str, int] = {}
        self.scalings = {name: Scaling() for name, column in columns.items() if column.dtype == "float32"}

    def add(self, writer: tf.io.TFRecordWriter, name: str, piece: Piece) -> None:
        self.num_bad += len(piece.bad)
        room = _FIRST_BAD - len(self.bad)
        self.bad += [f"{name}, row {row}: {problem}" for row, problem in piece.bad[: max(0, room)]]
        _check(self.num_bad, self.bad, self._max_bad)
        for key, count in piece.num_truncated.items():
            self.num_truncated[key] = self.num_truncated.get(key, 0) + count
        for key, scaling in self.scalings.items():
            scaling.add(_values(piece.columns[key]))
        rows = {key: _joined(left, piece.columns[key]) for key, left in self._left.items()}
        count = len(next(iter(rows.values())))
        whole = count - count % ROWS
        for first in range(0, whole, ROWS):
            self._record(writer, {key: _part(values, first, first + ROWS) for key, values in rows.items()})
        self._left = {key: _part(values, whole, count) for key, values in rows.items()}

    def rest(self, writer: tf.io.TFRecordWriter) -> None:
        count = len(next(iter(self._left.values())))
        if count:
            self._record(writer, {key: _padded(values) for key, values in self._left.items()})
            self.num_examples += count - ROWS

    def _record(self, writer: tf.io.TFRecordWriter, rows: Mapping[str, np.ndarray | Lists]) -> None:
        example = tf.train.Example()
        for name, column in self._columns.items():
            feature, values = example.features.feature[name], rows[name]
            kind = {"float32": feature.float_list, "int64": feature.int64_list, "string": feature.bytes_list}
            kind[column.dtype].value.extend(_values(values).ravel().tolist())
            if isinstance(values, Lists):
                lengths = example.features.feature[lengths_of(name)]
                lengths.int64_list.value.extend(values.lengths.tolist())
        record = example.SerializeToString()
        writer.write(record)
        self.offsets.append(self.offsets[-1] + files.RECORD_BYTES + len(record))
        self.num_examples += ROWS


def _values(rows: np.ndarray | Lists) -> np.ndarray:
    return rows.values if isinstance(rows, Lists) else rows


def _joined(rest: np.ndarray | Lists, more: np.ndarray | Lists) -> np.ndarray | Lists:
    if isinstance(rest, Lists) and isinstance(more, Lists):
        return rest.followed_by(more)
    return np.concatenate([rest, more]) if len(rest) else more


def _part(rows: np.ndarray | Lists, first: int, last: int) -> np.ndarray | Lists:
    return rows.part(first, last) if isinstance(rows, Lists) else rows[first:last]


def _padded(rows: np.ndarray | Lists) -> np.ndarray | Lists:
    """As many rows as a record has."""
    if isinstance(rows, Lists):
        return rows.followed_by(lists.empty(ROWS - len(rows)))
    return np.resize(rows, (ROWS, rows.shape[1]))


def _check(num_bad: int, bad: Sequence[str], max_bad: int) -> None:
    if num_bad > max_bad:
        allowed = f" (malformed rows: {num_bad:,} so far, data.max_bad_rows={max_bad})" if max_bad else ""
        example = max(100, 2 * max_bad)
        remedy = f"set data.max_bad_rows={example} to skip up to {example} malformed rows"
        raise DataError(f"{bad[min(max_bad, len(bad) - 1)]}{allowed}; {remedy}")


@contextlib.contextmanager
def _alone(path: Path, tell: Callable[[str], None]) -> Iterator[bool]:
    """Locks out other processes (True); without locks on the file system several processes do the same work (False)."""
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                alone = True
            except BlockingIOError:
                tell("waiting for another process that prepares the same rows")
                time.sleep(_LOOK_EVERY_S)
                continue
            except OSError:
                alone = False
            break
        yield alone
