"""Splits the rows of files into training and evaluation examples.

A split depends on the rows alone, never on chance or on the order of reading: it is the same for a resumed run, for
evaluation, prediction, and on every worker.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from psrun.config import schema
from psrun.data import formats, notations
from psrun.data.rows import Layout, Rows, decoded
from psrun.errors import ConfigError, DataError, Problem

PARTS = ("train", "eval")
KEY = "data.split"
BY = ("rows", "group", "time", "last", "none")
_TIME_FORMS = f"times are numbers, ISO 8601, or texts as {KEY}.time_format says, such as %d.%m.%Y"
_COUNTERS = 1 << 22  # of equal rows
_BINS = 1 << 16  # of the times, between the first and the last
_PRIME = np.uint64(0x100000001B3)
_POWERS = np.cumprod(np.full(1 << 12, _PRIME))  # of the place of a byte in a text, modulo 2**64


@dataclass(frozen=True)
class SplitSpec:
    """The keys of `data.split`.

    Attributes:
      by: rows: a hash of the whole row; group: a hash of `column`, so that no group is on both sides; time: the latest
        rows by `column`; last: the latest row of each `user` by `column`; none: no evaluation examples.
      fraction: of the rows (by time, of the rows with a time) or groups to evaluate on.
      column: of the groups, or of the times.
      user: the column of the users.
      time_format: of the times as text, as strptime takes it; null: numbers or ISO 8601.
    """

    by: str = schema.one_of(*BY, default="rows")
    fraction: float = 0.1
    column: str | None = None
    user: str | None = None
    time_format: str | None = None


def read(node: Any) -> SplitSpec:
    """Parses `data.split`: its keys, or the fraction alone.

    Raises:
      ConfigError: lists all problems.
    """
    if isinstance(node, int | float) and not isinstance(node, bool):
        node = {"fraction": float(node)}
    if node is None:
        node = {"by": "none"}
    if isinstance(node, str):
        node = {"by": node}
    problems: list[Problem] = []
    if not isinstance(node, Mapping):
        raise ConfigError([Problem(KEY, f"is {node!r}, must be a fraction, or keys such as by: time, column: date")])
    spec = schema.read(SplitSpec, node, key=KEY, problems=problems)
    if spec is not None:
        problems += _wrong(spec)
    if problems or spec is None:
        raise ConfigError(problems)
    return spec


def _wrong(spec: SplitSpec) -> Iterator[Problem]:
    if spec.by != "none" and spec.by != "last" and not 0 < spec.fraction < 1:
        yield Problem(f"{KEY}.fraction", f"is {spec.fraction:g}, must be between 0 and 1; {KEY}.by=none for no split")
    if spec.by in ("group", "time", "last") and spec.column is None:
        what = "the groups" if spec.by == "group" else "the times"
        yield Problem(f"{KEY}.column", f"is required with {KEY}.by={spec.by}: the column of {what}")
    if spec.by == "last" and spec.user is None:
        yield Problem(f"{KEY}.user", f"is required with {KEY}.by=last: the column of the users")
    if spec.by in ("rows", "none") and spec.column is not None:
        yield Problem(f"{KEY}.by", f"is {spec.by}, which has no column; set it to group, time or last")
    if spec.by != "last" and spec.user is not None:
        yield Problem(f"{KEY}.user", f"requires {KEY}.by=last")


def options(spec: SplitSpec) -> dict[str, Any]:
    """The keys of a split, without those that are not set."""
    return {key: value for key, value in asdict(spec).items() if value is not None}


def sentence(spec: SplitSpec, num_held_out: int, num_rows: int) -> str:
    """A line for the user about a split."""
    how = {
        "rows": "chosen by a hash of the row",
        "group": f"whole groups by {spec.column}",
        "time": f"the latest by {spec.column}",
        "last": f"the latest of each {spec.user} by {spec.column}, of equal ones the last in the file",
    }[spec.by]
    held = f"{num_held_out:,} of {num_rows:,} rows are evaluation examples: {how}"
    return f"{held} ({KEY}.by={spec.by}; {KEY}.by=none to train on all, or data.eval_path=FILE)"


def columns_of(spec: SplitSpec) -> dict[str, str]:
    """The columns that a split needs, by their keys."""
    named = {f"{KEY}.column": spec.column, f"{KEY}.user": spec.user}
    return {key: column for key, column in named.items() if column is not None}


def check_columns(spec: SplitSpec, known: Sequence[str] | None, name: str) -> None:
    """Raises ConfigError if the file `name` does not have the columns of the split."""
    if known is None and spec.by in ("group", "time", "last"):
        message = f"is {spec.by}, which TFRecord files have no columns for; choose rows or none, or set data.eval_path"
        raise ConfigError([Problem(f"{KEY}.by", message)])
    missing = [each for each in columns_of(spec).items() if known is not None and each[1] not in known]
    if missing:
        raise ConfigError(
            Problem(key, f"{name} has no column {each!r}.{schema.did_you_mean(each, known or ())}")
            for key, each in missing
        )


class Split(abc.ABC):
    """A split of files.

    Attributes:
      columns: that it needs; None: all.
      key: identifies it among the splits of the same files.
    """

    columns: Sequence[str] | None
    key: str

    def facts(self) -> Mapping[str, Any]:
        """What is known about it once it was used, for run.json."""
        return {}

    @abc.abstractmethod
    def held_out(self, rows: Rows, first: int) -> np.ndarray:
        """Whether each row is an evaluation example.

        Args:
          rows: with the `columns`.
          first: number of the rows in the files before, malformed ones included.
        """


Read = Callable[[Sequence[str]], Iterator[tuple[int, Rows]]]  # columns of all files, with the number of rows before


def make(spec: SplitSpec, read_columns: Read, since: float | None = None) -> Split | None:
    """The split of files; None for none.

    Args:
      read_columns: reads some columns of all files; a split by time, and one of the last rows, looks at these first,
        when it is used.
      since: of a split by time, the time from which on rows are evaluation examples; None: by the fraction.
    """
    if spec.by == "none":
        return None
    if spec.by in ("rows", "group"):
        return _ByHash(spec)
    assert spec.column is not None
    return _ByTime(spec, read_columns, since) if spec.by == "time" else _Last(spec, read_columns)


def held_out(names: Sequence[str], layout: Layout, spec: SplitSpec) -> np.ndarray:
    """Whether each well-formed row of files is an evaluation example, in their order."""
    read_columns = functools.partial(formats.rows_of_files, names, layout=layout)
    split = make(spec, read_columns)
    columns = (split.columns if split else None) or formats.columns(names[0], layout) or ()
    parts = [
        split.held_out(rows, first) if split else np.zeros(rows.batch.num_rows, bool)
        for first, rows in read_columns(columns)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, bool)


class _ByHash(Split):
    """Rows, or groups, of which the hash is in a part of all hashes: more rows change nothing for those before.

    Of equal rows each has another hash, so that they are on both sides: a table of few columns may have few different
    rows. Their numbers are counted by a part of the hash, in memory of a fixed size; rows that share it by chance count
    as equal, which changes nothing but the side of the later one.
    """

    def __init__(self, spec: SplitSpec) -> None:
        self.columns = None if spec.column is None else (spec.column,)
        self.key = f"{spec.by} {spec.fraction!r} {spec.column}"
        self._limit = np.uint64(spec.fraction * 2.0**64)
        self._num_equal: np.ndarray = np.zeros(_COUNTERS, np.uint32)

    def held_out(self, rows: Rows, first: int) -> np.ndarray:
        hashes = hash_of_rows(rows.batch.select(list(self.columns or rows.batch.schema.names)))
        if self.columns is None:
            hashes = _mixed(hashes + self._numbers(hashes))
        return hashes < self._limit

    def _numbers(self, hashes: np.ndarray) -> np.ndarray:
        """The number of each row among equal ones, from 0."""
        counters = (hashes % np.uint64(_COUNTERS)).astype(np.int64)
        order = np.argsort(counters, kind="stable")
        counters = counters[order]
        used, firsts, counts = np.unique(counters, return_index=True, return_counts=True)
        within = np.arange(len(counters)) - np.repeat(firsts, counts)
        numbers: np.ndarray = np.zeros(len(counters), np.uint64)
        numbers[order] = self._num_equal[counters] + within
        self._num_equal[used] += counts.astype(np.uint32)
        return numbers


class _ByTime(Split):
    """The rows from a time on.

    Raises:
      DataError: from all members but `columns` and `key`: the column has no two times.
    """

    columns: tuple[str, ...]

    def __init__(self, spec: SplitSpec, read_columns: Read, since: float | None) -> None:
        assert spec.column is not None
        self.columns = (spec.column,)
        self._spec = spec
        self._read_columns = read_columns
        self._given = since
        self.key = f"time {spec.column} {spec.time_format} {spec.fraction if since is None else f'since {since!r}'}"

    def facts(self) -> Mapping[str, Any]:
        return {"since": self._since}

    @functools.cached_property
    def _since(self) -> float:
        """The time from which on there are about as many rows as the fraction says, exact to a bin."""
        if self._given is not None:
            return self._given
        least = np.inf
        most = -np.inf
        for _, rows in self._read_columns(self.columns):
            times = _times(rows, self._spec)
            if not np.isnan(times).all():
                least = min(least, float(np.nanmin(times)))
                most = max(most, float(np.nanmax(times)))
        if not least < most:
            raise DataError(f"{KEY}.column: {self._spec.column} has no two different times to split at; {_TIME_FORMS}")
        edges = np.linspace(least, most, _BINS + 1)
        counts: np.ndarray = np.zeros(_BINS, np.int64)
        for _, rows in self._read_columns(self.columns):
            counts += np.histogram(_times(rows, self._spec), edges)[0]
        from_the_end = np.cumsum(counts[::-1])[::-1]
        first = int(np.searchsorted(-from_the_end, -self._spec.fraction * counts.sum(), side="left"))
        return float(edges[min(first, _BINS - 1)])

    def held_out(self, rows: Rows, first: int) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            return _times(rows, self._spec) >= self._since


class _Last(Split):
    """The latest row of each user; of rows of the same time, the last one in the files."""

    columns: tuple[str, ...]

    def __init__(self, spec: SplitSpec, read_columns: Read) -> None:
        assert spec.column is not None
        assert spec.user is not None
        self.columns = (spec.user, spec.column)
        self._spec = spec
        self._read_columns = read_columns
        self.key = f"last {spec.user} {spec.column} {spec.time_format}"

    @functools.cached_property
    def _numbers(self) -> np.ndarray:
        """Those of the held-out rows, increasing."""
        latest: pa.Table | None = None
        for first, rows in self._read_columns(self.columns):
            times = pa.array(_times(rows, self._spec), from_pandas=True)
            users = _as_text(rows.batch.column(self.columns[0]))
            order = _integer_times(rows, self._spec)
            part = pa.table({"user": users, "time": times, "order": order, "number": pa.array(first + rows.places)})
            part = part.filter(pc.is_valid(times))
            latest = _latest(part if latest is None else pa.concat_tables([latest, part]))
        if latest is None or not latest.num_rows:
            raise DataError(f"{KEY}.column: {self._spec.column} has no times; {_TIME_FORMS}")
        return np.sort(latest.column("number").to_numpy())

    def held_out(self, rows: Rows, first: int) -> np.ndarray:
        numbers: np.ndarray = first + rows.places
        places = np.minimum(np.searchsorted(self._numbers, numbers), len(self._numbers) - 1)
        return self._numbers[places] == numbers


def _latest(rows: pa.Table) -> pa.Table:
    """The latest row of each user."""
    order = pc.sort_indices(rows, [(key, "ascending") for key in ("user", "time", "order", "number")])
    ordered = rows.take(order).combine_chunks()
    users = ordered.column("user").combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    return ordered.filter(pa.array(np.append(users[1:] != users[:-1], True)))


def _times(rows: Rows, spec: SplitSpec) -> np.ndarray:
    """The times of rows as numbers, NaN where there is none."""
    assert spec.column is not None
    column = decoded(rows.batch.column(spec.column))
    if types.is_temporal(column.type):
        return notations.instants(column).cast(pa.int64()).cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    if types.is_integer(column.type) or types.is_floating(column.type):
        return column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    text = _as_text(column)
    if spec.time_format is None:
        numbers = notations.numbers(text)
        if numbers.null_count < len(numbers) or not len(numbers):
            return numbers.to_numpy(zero_copy_only=False)
    instants = notations.times(text, spec.time_format)
    return instants.cast(pa.int64()).cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)


def _integer_times(rows: Rows, spec: SplitSpec) -> pa.Array:
    """The times of rows that are integers, and 0 for others: doubles beyond 2**53, as of nanoseconds, may be equal."""
    assert spec.column is not None
    column = decoded(rows.batch.column(spec.column))
    if types.is_integer(column.type):
        integers = column.cast(pa.int64(), safe=False)
    elif types.is_string(column.type) and spec.time_format is None:
        integers = notations.integers(column)
    else:
        integers = pa.nulls(len(column), pa.int64())
    return integers.fill_null(0)


def _as_text(array: pa.Array) -> pa.Array:
    array = decoded(array)
    return array if types.is_string(array.type) or types.is_binary(array.type) else array.cast(pa.string())


def hash_of_rows(batch: pa.RecordBatch) -> np.ndarray:
    """A hash of each row, uint64, that depends on names and values of its columns, not on their order.

    Lists and other nested values do not count.
    """
    total = np.zeros(batch.num_rows, np.uint64)
    for name, column in zip(batch.schema.names, batch.columns):
        if types.is_nested(column.type):
            continue
        encoded = column if types.is_dictionary(column.type) else column.dictionary_encode()
        hashes = _hash_of_texts(_as_text(encoded.dictionary).fill_null(""))
        mixed = pa.array(_mixed(hashes ^ _hash_of_texts(pa.array([name]))[0]))
        total += mixed.take(encoded.indices).fill_null(0).to_numpy(zero_copy_only=False)
    return _mixed(total)


def _hash_of_texts(texts: pa.Array) -> np.ndarray:
    """A polynomial in the bytes of each text, modulo 2**64."""
    buffers = texts.buffers()
    count = len(texts)
    if not count:
        return np.zeros(0, np.uint64)
    offsets = np.frombuffer(buffers[1], np.int32, count + 1, 4 * texts.offset).astype(np.int64)
    lengths = np.diff(offsets)
    hashes = lengths.astype(np.uint64)
    filled = np.flatnonzero(lengths)
    if len(filled):
        data = np.frombuffer(buffers[2], np.uint8, offsets[-1] - offsets[0], offsets[0]).astype(np.uint64)
        place = np.arange(len(data)) - np.repeat(offsets[:-1] - offsets[0], lengths)
        terms = (data + np.uint64(1)) * _POWERS[place % len(_POWERS)]
        hashes[filled] += np.add.reduceat(terms, offsets[filled] - offsets[0])
    return _mixed(hashes)


def _mixed(values: np.ndarray) -> np.ndarray:
    """Spreads differences over all bits (Steele, Lea, Flood: "Fast splittable pseudorandom number generators")."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
