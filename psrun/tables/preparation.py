"""Prepares rows of files (see `psrun.tables.prepared_rows`) once: the next run on the same files reuses them.

A prepared set is a folder: an Arrow IPC file for each part of the split, and `prepared.json`, written last, which
describes the rows.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from psrun.data import storage
from psrun.errors import DataError
from psrun.files import alone, require_on_disk, write_atomic
from psrun.tables import prepared_rows
from psrun.tables.columns import Column, Piece, is_list
from psrun.tables.prepared_rows import PreparedRows
from psrun.tables.statistics import Scale, Scaling

_VERSION = 5
_FIRST_BAD = 20  # of the malformed rows, remembered


@dataclass(frozen=True)
class Options:
    """How files are prepared.

    Attributes:
      max_bad_rows: number of malformed rows to skip; one more is an error.
      cache: the folder for prepared sets; None for `storage.cache()`.
      tell: called repeatedly with the progress.
      keep_malformed: whether malformed rows stay, with any values, and are no error.
    """

    max_bad_rows: int = 0
    cache: str | None = None
    tell: Callable[[str], None] = lambda text: None
    keep_malformed: bool = False


@dataclass(frozen=True)
class PreparedSet:
    """The prepared rows of files.

    Attributes:
      parts: by name; 'train' alone without a split.
      num_bad: number of malformed rows; `bad`: the problems of the first of them.
      problems: of malformed rows that stayed, by their number from 0 in the first part.
      num_unlabeled: number of rows that were left out because they have no label.
      scales: of float columns in the first part, by name.
      num_truncated: number of truncated lists, by name.
      label_ranges: the least and the largest label of each part that has rows and labels.
      facts: of the contents.
    """

    parts: Mapping[str, PreparedRows]
    num_bad: int
    bad: Sequence[str]
    problems: Mapping[int, str]
    num_unlabeled: int
    scales: Mapping[str, Scale]
    num_truncated: Mapping[str, int]
    label_ranges: Mapping[str, Sequence[float]]
    facts: Mapping[str, Any]

    @property
    def rows(self) -> PreparedRows:
        """The first part."""
        return next(iter(self.parts.values()))

    @property
    def num_examples(self) -> int:
        return sum(part.num_examples for part in self.parts.values())


@dataclass(frozen=True)
class Contents:
    """What a prepared set holds.

    Attributes:
      columns: by name.
      pieces: reads a file; each piece comes with the part of each of its rows, None for the first part.
      key: identifies how the files are read and split.
      parts: their names.
      label: the column with the labels; None for none.
      facts: what the set records about itself; called when all rows were read.
    """

    columns: Mapping[str, Column]
    pieces: Callable[[str], Iterator[tuple[Piece, np.ndarray | None]]]
    key: str
    parts: Sequence[str] = ("train",)
    label: str | None = None
    facts: Callable[[], Mapping[str, Any]] = dict


def prepared(names: Sequence[str], contents: Contents, options: Options) -> PreparedSet:
    """The prepared rows of files; reuses an earlier set if the files have not changed.

    Raises:
      ConfigError: `options.cache` is not a folder.
      DataError: a file cannot be read to its end, there are more malformed rows, no rows, or the folder cannot be
        written.
    """
    known = _digests(names, options)
    folder = _folder(known, contents, options)
    found = _complete(folder, contents)
    if found is None:
        with _writes(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            waits = partial(options.tell, "waiting for another process that prepares the same rows")
            # Without locks on the file system several processes do the same work.
            with alone(folder.with_suffix(".lock"), within_s=math.inf, on_wait=waits) as is_alone:
                found = _complete(folder, contents) or _write(folder, names, known, contents, options, alone=is_alone)
    if not options.keep_malformed:
        check_bad(found.num_bad, found.bad, options.max_bad_rows)
    return found


def earlier(names: Sequence[str], contents: Contents, options: Options) -> PreparedSet | None:
    """The prepared rows of files, if there are some."""
    return _complete(_folder(_digests(names, options), contents, options), contents)


def cache_folder(cache: str | None) -> Path:
    """The folder of `data.cache`; the user's for None. Raises ConfigError if it is not on a disk."""
    require_on_disk("data.cache", cache)
    return (Path(cache).expanduser() if cache else storage.cache()).absolute()


def _digests(names: Sequence[str], options: Options) -> list[tuple[str, str]]:
    return storage.digests(names, cache_folder(options.cache), options.tell)


def _folder(known: Sequence[tuple[str, str]], contents: Contents, options: Options) -> Path:
    """The folder of a set, by the bytes of its files and by how they are read."""
    columns = {name: asdict(column) for name, column in contents.columns.items()}
    key = json.dumps([_VERSION, contents.key, list(contents.parts), options.keep_malformed, known, columns])
    return cache_folder(options.cache) / hashlib.sha256(key.encode()).hexdigest()[:32]


@contextlib.contextmanager
def _writes(folder: Path) -> Iterator[None]:
    """Raises errors of writing a set as DataError."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        remedy = "free disk space, or choose" if "No space left" in reason else "choose"
        remedy += " a folder on another disk: data.cache=FOLDER"
        raise DataError(f"the prepared rows cannot be written to {folder}: {reason}; {remedy}") from error


def _complete(folder: Path, contents: Contents) -> PreparedSet | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return _opened(folder, contents)
    return None


def _opened(folder: Path, contents: Contents) -> PreparedSet:
    """Opens a set.

    Raises:
      OSError, ValueError, KeyError, TypeError: it is incomplete.
    """
    manifest = json.loads((folder / "prepared.json").read_text(encoding="utf-8"))
    parts = {name: prepared_rows.opened(folder / f"{name}.arrow", contents.columns) for name in contents.parts}
    if {name: part.num_examples for name, part in parts.items()} != manifest["num_examples"]:
        raise ValueError(f"{folder} does not have the rows that it describes")
    return PreparedSet(
        parts,
        num_bad=manifest["num_bad"],
        bad=manifest["bad"],
        problems={int(number): problem for number, problem in manifest["problems"].items()},
        num_unlabeled=manifest["num_unlabeled"],
        scales={name: Scale.of(record) for name, record in manifest["scales"].items()},
        num_truncated=manifest["num_truncated"],
        label_ranges=manifest["label_ranges"],
        facts=manifest["facts"],
    )


def _write(
    folder: Path,
    names: Sequence[str],
    known: Sequence[tuple[str, str]],
    contents: Contents,
    options: Options,
    *,
    alone: bool,
) -> PreparedSet:
    """Writes a set; its folder appears when the set is complete.

    Args:
      known: canonical name and digest of each file.
      alone: whether no other process can be writing it.
    """
    if alone:
        for abandoned in folder.parent.glob(f".{folder.name}.{socket.gethostname()}.*"):  # of a killed process
            shutil.rmtree(abandoned)
    temporary = folder.with_name(f".{folder.name}.{socket.gethostname()}.{os.getpid()}")
    temporary.mkdir()
    writing = _Writing(contents, options)
    try:
        writing.open(temporary)
        for index, name in enumerate(names, 1):
            writing.add_file(name)
            options.tell(f"preparing {name} ({index} of {len(names)} files): {writing.num_rows:,} rows so far")
        for writer in writing.writers.values():
            writer.close()
        for name, before, now in zip(names, known, _digests(names, options)):
            if before != now:
                raise DataError(f"{name} changed while it was read; start again when it is complete")
        manifest = json.dumps({"files": dict(known), **writing.manifest()}, indent=2)
        write_atomic(temporary / "prepared.json", manifest + "\n", durable=True)
        if not alone and (other := _complete(folder, contents)):  # another process was faster
            shutil.rmtree(temporary)
            return other
        shutil.rmtree(folder, ignore_errors=True)  # an incomplete set
        temporary.rename(folder)
        return _opened(folder, contents)
    except BaseException:
        for writer in writing.writers.values():
            writer.abandon()
        shutil.rmtree(temporary, ignore_errors=True)
        raise


class _Writing:
    """Writes rows, and collects what the manifest of the set tells about them."""

    def __init__(self, contents: Contents, options: Options) -> None:
        self._contents = contents
        self._options = options
        self.writers: dict[str, prepared_rows.Writer] = {}
        self.num_rows = 0
        self._scalings = {name: Scaling() for name, each in contents.columns.items() if each.dtype == "float32"}
        self._num_bad = 0
        self._bad: list[str] = []
        self._problems: dict[int, str] = {}
        self._num_unlabeled = 0
        self._num_truncated: dict[str, int] = {}
        self._label_ranges: dict[str, tuple[float, float]] = {}

    def open(self, folder: Path) -> None:
        for part in self._contents.parts:
            self.writers[part] = prepared_rows.Writer(folder / f"{part}.arrow", self._contents.columns)

    def manifest(self) -> dict[str, Any]:
        return {
            "num_examples": {name: writer.num_examples for name, writer in self.writers.items()},
            "num_bad": self._num_bad,
            "bad": self._bad,
            "problems": self._problems,
            "num_unlabeled": self._num_unlabeled,
            "num_truncated": self._num_truncated,
            "label_ranges": self._label_ranges,
            "facts": dict(self._contents.facts()),
            "scales": {name: asdict(scaling.scale()) for name, scaling in self._scalings.items()},
        }

    def add_file(self, name: str) -> None:
        first = self.num_rows
        for piece, parts in _pieces(name, self._contents):
            self._add_problems(name, piece, first)
            for key, count in piece.num_truncated.items():
                self._num_truncated[key] = self._num_truncated.get(key, 0) + count
            self._num_unlabeled += piece.num_unlabeled
            self.num_rows += piece.batch.num_rows
            batches = [piece.batch]
            if parts is not None:
                batches = [piece.batch.filter(pa.array(parts == index)) for index in range(len(self.writers))]
            for key, scaling in self._scalings.items():
                values = batches[0].column(key)
                values = values.flatten() if is_list(values.type) else values
                scaling.add(values.to_numpy(zero_copy_only=False))
            for (part, writer), batch in zip(self.writers.items(), batches):
                writer.add(batch)
                if self._contents.label is not None:
                    self._add_labels(part, batch.column(self._contents.label))
            self._options.tell(f"preparing {name}: {self.num_rows:,} rows so far")

    def _add_problems(self, name: str, piece: Piece, first: int) -> None:
        self._num_bad += len(piece.bad)
        room = max(0, _FIRST_BAD - len(self._bad))
        self._bad += [f"{name}, row {piece.number(place)}: {problem}" for place, problem in piece.bad[:room]]
        if self._options.keep_malformed:
            self._problems |= {first + place: problem for place, problem in piece.bad}
        else:
            check_bad(self._num_bad, self._bad, self._options.max_bad_rows)

    def _add_labels(self, part: str, labels: pa.Array) -> None:
        least, most = self._label_ranges.get(part, (math.inf, -math.inf))
        ends = pc.min_max(labels)
        if ends["min"].is_valid:
            self._label_ranges[part] = (min(least, ends["min"].as_py()), max(most, ends["max"].as_py()))


def _pieces(name: str, contents: Contents) -> Iterator[tuple[Piece, np.ndarray | None]]:
    with storage.data_errors(name):  # only errors of reading, not of processing a piece
        yield from contents.pieces(name)


def check_bad(num_bad: int, bad: Sequence[str], max_bad: int) -> None:
    """Raises DataError if there are more malformed rows than `max_bad`; `bad` has the problems of the first of them."""
    if num_bad > max_bad:
        allowed = f" (malformed rows: {num_bad:,} so far, data.max_bad_rows={max_bad})" if max_bad else ""
        example = max(100, 2 * max_bad)
        remedy = f"set data.max_bad_rows={example} to skip up to {example} malformed rows"
        raise DataError(f"{bad[min(max_bad, len(bad) - 1)]}{allowed}; {remedy}")
