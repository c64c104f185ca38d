"""Splits the rows of files into training and evaluation examples.

A split depends on the rows and on `data.split.seed` alone: it is the same for a resumed run, for evaluation, for
prediction, and on every worker.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from psrun.config import schema
from psrun.errors import ConfigError, Problem
from psrun.tables import contents, formats, times
from psrun.tables.columns import flattened, is_list, plain
from psrun.tables.rows import Layout, Rows, codes_of
from psrun.tables.times import Times

PARTS = ("train", "eval")
KEY = "data.split"
BY = ("rows", "group", "time", "last", "none")
_RULE = 2  # of how rows are split: prepared rows of another one are not reused
_LARGE = 5  # times the mean number of rows
_FEW = 50  # rows or groups to choose by a hash: it may choose less than half, or more than twice as many
_KEPT_ROWS = 1 << 23  # of which a split by time keeps the times in memory, 17 bytes each
_SORTED = 1 << 20  # numbers that are sorted in memory
_SIGN = np.uint64(1 << 63)  # so that int64 are in the order of uint64
_COUNTED = 1 << 16  # different rows or groups, which are counted to explain the size of a split
_PRIME = np.uint64(0x100000001B3)
_GOLDEN = 0x9E3779B97F4A7C15
_POWERS = np.cumprod(np.full(1 << 12, _PRIME))  # of the place of a byte in a text, modulo 2**64
_ONE_BY_ONE = 64  # bytes of all texts that are added one place after another, which takes a sixth of the time


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
      seed: by rows and by group, another number holds out others. It is not the seed of the run: runs that differ in
        that one are evaluated on the same rows.
    """

    by: str = schema.one_of(*BY, default="rows")
    fraction: float = 0.1
    column: str | None = None
    user: str | None = None
    time_format: str | None = None
    seed: int = dataclasses.field(default=0, metadata={"at_least": 0})


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
        yield Problem(f"{KEY}.user", f"requires {KEY}.by=last; set it to null")
    if spec.by not in ("rows", "group") and spec.seed:
        yield Problem(f"{KEY}.seed", f"requires {KEY}.by=rows or group; {spec.by} leaves nothing to chance")


def options(spec: SplitSpec) -> dict[str, Any]:
    """The keys of a split, without those that are not set."""
    return {key: value for key, value in asdict(spec).items() if value is not None}


def sentence(spec: SplitSpec, facts: Mapping[str, Any], num_held_out: int, num_rows: int) -> str:
    """A line for the user about a split.

    Args:
      facts: of the split.
    """
    how = {
        "rows": "chosen by a hash of the row",
        "group": f"whole groups by {spec.column}",
        "time": f"the latest by {spec.column}",
        "last": f"the latest of each {spec.user} by {spec.column}, of equal ones the last in the file",
    }[spec.by]
    held = f"{num_held_out:,} of {num_rows:,} rows are evaluation examples: {how}"
    for name, count in facts.get("num_missing", {}).items():
        if count:
            held += f"; {count:,} rows without {name} are training examples"
    return f"{held} ({KEY}.by={spec.by}; {KEY}.by=none to train on all, or data.eval_path=FILE)"


def warnings(spec: SplitSpec, facts: Mapping[str, Any], num_held_out: int, num_rows: int) -> Iterator[str]:
    """What a user should know about a split: names of one group in several spellings, and a size that was not asked.

    Args:
      facts: of the split.
      num_held_out: of the `num_rows` rows with a label.
    """
    if facts.get("spellings"):
        yield contents.spelling_warning(f"{KEY}: {spec.user or spec.column}", facts["spellings"])
    asked = _asked(spec, facts, num_rows)
    if not asked / 2 <= num_held_out <= asked * 2:
        reason = size_reason(spec, facts, num_rows)
        held = f"holds out {num_held_out:,} of {num_rows:,} rows instead of about {asked:,.0f}"
        yield f"{KEY}: {held}: {reason}"


def _asked(spec: SplitSpec, facts: Mapping[str, Any], num_rows: int) -> float:
    if spec.by == "last":
        return facts["num_different"]
    if spec.by == "time":
        return spec.fraction * (num_rows - facts["num_missing"]["a time"])
    return spec.fraction * num_rows


def size_reason(spec: SplitSpec, facts: Mapping[str, Any], num_rows: int) -> str:
    """Why a split holds out another number of rows than was asked for."""
    if spec.by == "time" and facts.get("num_at_since", 0) > 1:
        return f"{facts['num_at_since']:,} rows have the time {facts['since']}, and stay on one side"
    if spec.by in ("rows", "group"):
        what = "row" if spec.by == "rows" else "group"
        largest = facts["largest"]
        count = facts["num_different"]
        if largest > spec.fraction * num_rows / 2 and largest > _LARGE * num_rows / count:
            return f"one {what} is in {largest:,} rows, which stay on one side"
        if count * spec.fraction < _FEW:
            return f"there are {count:,} different {what}s, too few for this fraction"
    if spec.by == "last" and facts["num_different"] > num_rows / 2:
        return f"there are {facts['num_different']:,} different values of {spec.user}, each with a row to hold out"
    return "other rows of the split have no label, or are malformed"


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

    @abc.abstractmethod
    def facts(self) -> Mapping[str, Any]:
        """What is known about it once it was used, for run.json.

        `num_missing` has the rows without a group, a user or a time; `num_different` and `largest` count groups, users
        or different rows, and the rows of the largest; `since` is the first time that is held out, and `num_at_since`
        the rows that have it.
        """

    @abc.abstractmethod
    def held_out(self, rows: Rows, first: int) -> np.ndarray:
        """Whether each row is an evaluation example.

        Args:
          rows: with the `columns`.
          first: number of the rows in the files before, malformed ones included.
        """


# Some columns of all files: the name of the file, the number of rows in the files before, and rows.
Read = Callable[[Sequence[str]], Iterator[tuple[str, int, Rows]]]


def make(spec: SplitSpec, read_columns: Read, since: float | str | None = None) -> Split | None:
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
    if spec.by == "time":
        return _ByTime(spec, read_columns, since)
    return _Last(spec, read_columns)


def held_out(names: Sequence[str], layout: Layout, spec: SplitSpec) -> np.ndarray:
    """Whether each well-formed row of files is an evaluation example, in their order."""
    read_columns = functools.partial(formats.rows_of_files, names, layout=layout)
    split = make(spec, read_columns)
    columns = split.columns if split else None
    parts = []
    for _, first, rows in read_columns(columns or formats.suggestions(names[0], layout)):
        sides: np.ndarray = np.zeros(rows.batch.num_rows, bool)
        parts.append(split.held_out(rows, first) if split else sides)
    return np.concatenate(parts) if parts else np.zeros(0, bool)


class _ByHash(Split):
    """Rows, or groups, of which the hash is in a part of all hashes: more rows change nothing for those before.

    Equal rows have equal hashes. Rows without a group are training examples: nothing tells to which group they belong.
    """

    def __init__(self, spec: SplitSpec) -> None:
        self.columns = None if spec.column is None else (spec.column,)
        self.key = f"{spec.by} {spec.fraction!r} {spec.column} {spec.seed} {_RULE}"
        self._spec = spec
        self._limit = np.uint64(spec.fraction * 2.0**64)
        self._counts = _Counts()
        self._names: dict[str, None] = {}  # of groups
        self._num_missing = 0

    def facts(self) -> Mapping[str, Any]:
        facts = {"num_different": self._counts.num_different, "largest": self._counts.largest}
        if self._spec.by == "rows":
            return facts
        missing = {str(self._spec.column): self._num_missing}
        return {**facts, "num_missing": missing, "spellings": _spellings(self._names)}

    def held_out(self, rows: Rows, first: int) -> np.ndarray:
        batch = rows.batch
        if self.columns is not None:
            batch = batch.select(list(self.columns))
            times.check_type(f"{KEY}.column", self.columns[0], batch.column(0).type)
        hashes = hash_of_rows(batch, self._spec.seed)
        if self.columns is None:
            self._counts.add(hashes)
            return _mixed(hashes) < self._limit
        is_there = _are_named(batch.column(0))
        self._num_missing += int((~is_there).sum())
        self._counts.add(hashes[is_there])
        if len(self._names) < _COUNTED:
            self._names |= dict.fromkeys(_names(batch.column(0)))
        return is_there & (hashes < self._limit)


class _Counts:
    """The number of occurrences of each of the first 65,536 different hashes; all later ones share one number."""

    def __init__(self) -> None:
        self._hashes: np.ndarray = np.zeros(0, np.uint64)
        self._counts: np.ndarray = np.zeros(0, np.int64)
        self._num_others = 0

    @property
    def num_different(self) -> int:
        """A lower bound, if there are very many."""
        return len(self._hashes) + min(1, self._num_others)

    @property
    def largest(self) -> int:
        return int(self._counts.max(initial=0))

    def add(self, hashes: np.ndarray) -> None:
        found, counts = np.unique(hashes, return_counts=True)
        places: Any = np.searchsorted(self._hashes, found)
        is_known: np.ndarray = np.zeros(len(found), bool)
        inside = places < len(self._hashes)
        is_known[inside] = self._hashes[places[inside]] == found[inside]
        self._counts[places[is_known]] += counts[is_known]
        new = np.flatnonzero(~is_known)
        kept = new[: max(0, _COUNTED - len(self._hashes))]
        self._num_others += int(counts[new[len(kept) :]].sum())
        order = np.argsort(np.concatenate([self._hashes, found[kept]]), kind="stable")
        self._hashes = np.concatenate([self._hashes, found[kept]])[order]
        self._counts = np.concatenate([self._counts, counts[kept]])[order]


class _ByTime(Split):
    """The rows from a time on.

    Raises:
      ConfigError, DataError: from all members but `columns` and `key`: there are no two times, or they are not written
        in one way.
    """

    columns: tuple[str, ...]

    def __init__(self, spec: SplitSpec, read_columns: Read, since: float | str | None) -> None:
        assert spec.column is not None
        self.columns = (spec.column,)
        self._spec = spec
        self._read_columns = read_columns
        self._given = since
        until = spec.fraction if since is None else f"since {since!r}"
        self.key = f"time {spec.column} {spec.time_format} {until} {_RULE}"

    def facts(self) -> Mapping[str, Any]:
        return self._found.facts

    @functools.cached_property
    def _found(self) -> _Boundary:
        scan = _Scan(self._spec, self._read_columns, self.columns)
        scan.check_all()
        facts = {"num_missing": {"a time": scan.check.num_missing}}
        if self._given is not None:
            try:
                whole, fraction = times.parsed(self._given, are_instants=scan.check.are_instants)
            except ValueError as error:
                message = f"the run held out the rows since {self._given}; now {self.columns[0]} has others: {error}"
                raise ConfigError([Problem(f"{KEY}.column", message)]) from error
            return _Boundary(whole, fraction, {**facts, "since": self._given})
        place = _boundary(scan, self._spec)
        found = {"since": place.shown(scan), "num_at_since": place.num_equal}
        return _Boundary(place.whole, place.fraction, {**facts, **found})

    def held_out(self, rows: Rows, first: int) -> np.ndarray:
        boundary = self._found  # checks the column
        found = times.read(rows.batch.column(self.columns[0]), self._spec.time_format)
        return found.since(boundary.whole, boundary.fraction)


@dataclass(frozen=True)
class _Boundary:
    """The first time that is held out, and the facts of the split."""

    whole: int
    fraction: float
    facts: Mapping[str, Any]


class _Scan:
    """The times of all rows, read once if there are up to 8 million rows, and else each time.

    Attributes:
      check: of the values of the column.
      num_times: rows with a time.
    """

    def __init__(self, spec: SplitSpec, read_columns: Read, columns: Sequence[str]) -> None:
        assert spec.column is not None
        self.check = times.Check(KEY, spec.column, spec.time_format)
        self._spec = spec
        self._read_columns = read_columns
        self._columns = columns
        self._kept: list[Times] | None = None
        self.num_times = 0

    def check_all(self) -> None:
        """Reads and checks all times, once."""
        kept: list[Times] = []
        num_rows = 0
        for found, _ in self.blocks():
            num_rows += len(found.whole)
            self.num_times += int(found.are_there.sum())
            if num_rows <= _KEPT_ROWS:
                kept.append(found)
        if num_rows <= _KEPT_ROWS:
            self._kept = kept

    def blocks(self) -> Iterator[tuple[Times, tuple[int, Rows]]]:
        """The times of each block, checked, with the number of rows before its file and its rows."""
        for name, first, rows in self._read_columns(self._columns):
            column = rows.batch.column(str(self._spec.column))
            times.check_type(f"{KEY}.column", str(self._spec.column), column.type)
            found = times.read(column, self._spec.time_format)
            self.check.add(found, column, functools.partial(_row, name, rows))
            yield found, (first, rows)
        self.check.finish()

    def times(self) -> Iterator[Times]:
        """The times of each block, after `check_all`."""
        if self._kept is not None:
            yield from self._kept
            return
        for _, _, rows in self._read_columns(self._columns):
            yield times.read(rows.batch.column(str(self._spec.column)), self._spec.time_format)


def _row(name: str, rows: Rows, place: int) -> str:
    return f"{name}, row {rows.number(int(rows.places[place]))}"


def _boundary(scan: _Scan, spec: SplitSpec) -> _Place:
    """The time from which on there are about as many rows as the fraction says.

    Rows of one time stay on one side: of the two times beside the exact place, the one whose number of rows is nearer
    to the fraction.

    Raises:
      ConfigError: there are no two times.
    """
    num_rows = scan.num_times
    asked = spec.fraction * num_rows
    place = _at_rank(scan, max(1, math.ceil(asked)))
    at_least = place.num_later + place.num_equal
    if not place.num_later and at_least == num_rows:
        message = f"{spec.column} has one time, {place.shown(scan)}, in all {num_rows:,} rows with a time"
        raise ConfigError([Problem(f"{KEY}.column", f"{message}; choose another column, or {KEY}.by=rows")])
    is_too_late = at_least == num_rows or at_least * place.num_later > asked**2
    if place.num_later and is_too_late:
        place = _at_rank(scan, place.num_later)
    return place


@dataclass(frozen=True)
class _Place:
    """A time, and the numbers of rows that are later and that have it."""

    whole: int
    fraction: float
    num_later: int
    num_equal: int

    def shown(self, scan: _Scan) -> int | float | str:
        return times.text(self.whole, self.fraction, are_instants=scan.check.are_instants)


def _at_rank(scan: _Scan, rank: int) -> _Place:
    """The time of the row at a rank, from 1 for the latest."""

    def wholes() -> Iterator[np.ndarray]:
        for each in scan.times():
            yield each.whole[each.are_there].view(np.uint64) ^ _SIGN

    whole, num_later, num_equal = _ranked(wholes, rank, scan.num_times)

    def fractions() -> Iterator[np.ndarray]:
        for each in scan.times():
            is_equal = each.are_there & (each.whole.view(np.uint64) ^ _SIGN == whole)
            yield each.fraction[is_equal].view(np.uint64)  # of floats that are not negative, the order of their bits

    fraction, num_later_still, num_equal = _ranked(fractions, rank - num_later, num_equal)
    return _Place(
        int((whole ^ _SIGN).view(np.int64)), float(fraction.view(np.float64)), num_later + num_later_still, num_equal
    )


def _ranked(numbers: Callable[[], Iterator[np.ndarray]], rank: int, count: int) -> tuple[np.uint64, int, int]:
    """The uint64 at a rank, from 1 for the largest, and how many are larger and how many equal.

    Each pass over the numbers finds 16 bits, so that memory does not grow with them; few numbers are sorted.

    Args:
      count: of the numbers.
    """
    found = np.uint64(0)
    num_larger = 0
    for shift in (48, 32, 16, 0):
        if count <= _SORTED:
            return _ranked_few(numbers, rank, found, num_larger, shift)
        counts: np.ndarray = np.zeros(1 << 16, np.int64)
        for each in numbers():
            parts = each >> np.uint64(shift)
            parts = parts[parts >> np.uint64(16) == found]
            counts += np.bincount((parts & np.uint64(0xFFFF)).astype(np.int64), minlength=1 << 16)
        from_the_largest = num_larger + np.cumsum(counts[::-1])
        place = int(np.searchsorted(from_the_largest, rank))
        part = (1 << 16) - 1 - place
        count = int(counts[part])
        num_larger = int(from_the_largest[place]) - count
        found = np.uint64((int(found) << 16) | part)
    return found, num_larger, count


def _ranked_few(
    numbers: Callable[[], Iterator[np.ndarray]], rank: int, found: np.uint64, num_larger: int, shift: int
) -> tuple[np.uint64, int, int]:
    """As `_ranked`, where the bits above `shift + 16` are `found` and `num_larger` numbers have larger ones."""
    parts = []
    for each in numbers():
        parts.append(each[each >> np.uint64(shift) >> np.uint64(16) == found])
    rest = np.sort(np.concatenate(parts))
    number = rest[len(rest) - (rank - num_larger)]
    first = np.searchsorted(rest, number, side="left")
    end = np.searchsorted(rest, number, side="right")
    return number, num_larger + len(rest) - int(end), int(end - first)


class _Last(Split):
    """The latest row of each user; of rows of the same time, the last one in the files.

    Rows without a user or without a time are training examples.
    """

    columns: tuple[str, ...]

    def __init__(self, spec: SplitSpec, read_columns: Read) -> None:
        assert spec.column is not None
        assert spec.user is not None
        self.columns = (spec.user, spec.column)
        self._spec = spec
        self._read_columns = read_columns
        self._num_without_user = 0
        self.key = f"last {spec.user} {spec.column} {spec.time_format} {_RULE}"

    def facts(self) -> Mapping[str, Any]:
        latest, scan = self._latest
        names = _names(latest.column("user").combine_chunks()) if latest.num_rows <= _COUNTED else []
        missing = {str(self._spec.user): self._num_without_user, "a time": scan.check.num_missing}
        return {"num_different": latest.num_rows, "num_missing": missing, "spellings": _spellings(names)}

    @functools.cached_property
    def _latest(self) -> tuple[pa.Table, _Scan]:
        """The latest row of each user, and the scan that found them."""
        scan = _Scan(self._spec, self._read_columns, self.columns)
        latest: pa.Table | None = None
        for found, (first, rows) in scan.blocks():
            column = rows.batch.column(self.columns[0])
            times.check_type(f"{KEY}.user", self.columns[0], column.type)
            is_named = _are_named(column)
            self._num_without_user += int((~is_named).sum())
            part = pa.table(
                {
                    "user": _texts(plain(column)),
                    "whole": found.whole,
                    "fraction": found.fraction,
                    "number": first + rows.places,
                }
            )
            part = part.filter(pa.array(is_named & found.are_there))
            latest = _latest(part if latest is None else pa.concat_tables([latest, part]))
        if latest is None or not latest.num_rows:
            message = f"no row has both {self._spec.user} and {self._spec.column}; choose other columns"
            raise ConfigError([Problem(f"{KEY}.user", message)])
        return latest, scan

    @functools.cached_property
    def _numbers(self) -> np.ndarray:
        """The numbers of the held-out rows, increasing."""
        return np.sort(self._latest[0].column("number").to_numpy())

    def held_out(self, rows: Rows, first: int) -> np.ndarray:
        numbers: np.ndarray = first + rows.places
        places = np.minimum(np.searchsorted(self._numbers, numbers), len(self._numbers) - 1)
        return self._numbers[places] == numbers


def _latest(rows: pa.Table) -> pa.Table:
    """The latest row of each user."""
    order = pc.sort_indices(rows, [(key, "ascending") for key in ("user", "whole", "fraction", "number")])
    ordered = rows.take(order).combine_chunks()
    if not ordered.num_rows:
        return ordered
    users = ordered.column("user").combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    return ordered.filter(pa.array(np.append(users[1:] != users[:-1], True)))


def _are_named(column: pa.Array) -> np.ndarray:
    """Whether each row has a group or a user: a value that is neither null nor NaN nor blank."""
    values = plain(column)
    missing = values.is_null(nan_is_null=True)
    if types.is_string(values.type):
        missing = pc.or_(missing, pc.equal(pc.utf8_trim_whitespace(values), "").fill_null(True))
    return ~missing.to_numpy(zero_copy_only=False)


def _names(column: pa.Array) -> list[str]:
    """The different words of a column, if it has words."""
    encoded = column if types.is_dictionary(column.type) else column.dictionary_encode()
    words = plain(encoded.dictionary)
    if not types.is_string(words.type):
        return []
    return [word for word in words.drop_null().to_pylist() if word.strip()]


def _spellings(names: Iterable[str]) -> list[Sequence[str]]:
    return list(contents.spellings(pa.array(list(names), pa.string())))


def hash_of_rows(batch: pa.RecordBatch, seed: int = 0) -> np.ndarray:
    """A hash of each row, uint64, that depends on names and values of its columns, not on their order.

    It does not depend on how a value is stored: 1 as an integer, a float or a decimal, a time in seconds or
    nanoseconds, and a missing value and an empty text, are equal.

    Args:
      seed: 0 or more; another one gives other hashes.
    """
    total: np.ndarray = np.full(batch.num_rows, np.uint64(seed * _GOLDEN % 2**64))
    for name, column in zip(batch.schema.names, batch.columns):
        total += _hash_of_column(name, column)
    return _mixed(total)


def _hash_of_column(name: str, column: pa.Array) -> np.ndarray:
    """A hash of each value and of the name; 0 for an empty list, as for a column that is not there."""
    salt = _salt(name)
    values = column if types.is_dictionary(column.type) else plain(column)
    if is_list(values.type) or types.is_map(values.type):
        return _hash_of_lists(values, salt)
    if types.is_struct(values.type):
        total: np.ndarray = np.zeros(len(values), np.uint64)
        for field, part in zip(values.type, values.flatten()):
            total += _hash_of_column(field.name, part)
        return _mixed(total ^ salt)
    encoded = values if types.is_dictionary(values.type) else values.dictionary_encode()
    hashes = _mixed(_hash_of_texts(_texts(plain(encoded.dictionary)).fill_null("")) ^ salt)
    if not encoded.null_count:
        return hashes[codes_of(encoded)]
    absent = _mixed(_hash_of_texts(pa.array([""])) ^ salt)
    return np.append(hashes, absent)[codes_of(encoded)]


@functools.lru_cache(1 << 12)
def _salt(name: str) -> Any:
    """The hash of the name of a column, of which there are many blocks."""
    return _hash_of_texts(pa.array([name]))[0]


def _hash_of_lists(lists: pa.Array, salt: np.uint64) -> np.ndarray:
    if types.is_map(lists.type):
        pairs = pa.struct([("key", lists.type.key_type), ("value", lists.type.item_type)])
        lists = lists.cast(pa.list_(pairs))
    lengths, values = flattened(lists)
    hashes: np.ndarray = np.zeros(len(lengths), np.uint64)
    filled = np.flatnonzero(lengths)
    if not len(filled):
        return hashes
    begins = np.cumsum(lengths) - lengths
    place = np.arange(len(values)) - np.repeat(begins, lengths)
    terms = _hash_of_column("", values) * _POWERS[place % len(_POWERS)]
    hashes[filled] = _mixed(np.add.reduceat(terms, begins[filled]) + lengths[filled].astype(np.uint64)) ^ salt
    hashes[filled] = _mixed(hashes[filled])
    return hashes


def _texts(values: pa.Array) -> pa.Array:
    """Values as texts or bytes, in the same way from all types; null for a missing value."""
    kind = values.type
    if types.is_string(kind) or types.is_binary(kind):
        return values
    if types.is_floating(kind):
        return _texts_of_floats(values)
    try:
        texts = values.cast(pa.string())
    except pa.ArrowNotImplementedError:  # such as intervals
        return pa.array([None if each is None else str(each) for each in values.to_pylist()], pa.string())
    if types.is_decimal(kind) or types.is_timestamp(kind) or types.is_time(kind):
        texts = pc.replace_substring_regex(texts, r"(\.[0-9]*?)0+(Z?)$", r"\1\2")
        texts = pc.replace_substring_regex(texts, r"\.(Z?)$", r"\1")
    return texts


def _texts_of_floats(values: pa.Array) -> pa.Array:
    """The digits of integers, and the fewest digits that tell a float from others of its precision."""
    doubles = values.cast(pa.float64())
    doubles = pc.add(pc.if_else(pc.is_nan(doubles), None, doubles), 0.0)  # -0.0 is 0.0
    floats = doubles.cast(pa.float32(), safe=False)
    is_float = pc.equal(floats.cast(pa.float64()), doubles)
    texts = pc.if_else(is_float, floats.cast(pa.string()), doubles.cast(pa.string()))
    is_whole = pc.and_(pc.equal(pc.floor(doubles), doubles), pc.less(pc.abs(doubles), 2.0**63))
    integers = pc.if_else(is_whole, doubles, None).cast(pa.int64())
    return pc.coalesce(integers.cast(pa.string()), texts)


def _hash_of_texts(texts: pa.Array) -> np.ndarray:
    """A polynomial in the bytes of each text, modulo 2**64."""
    count = len(texts)
    if not count:
        return np.zeros(0, np.uint64)
    _, offset_buffer, byte_buffer = texts.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, count + 1, 4 * texts.offset).astype(np.int64)
    lengths = np.diff(offsets)
    hashes = lengths.astype(np.uint64)
    longest = int(lengths.max())
    if not longest:
        return _mixed(hashes)
    order = np.argsort(-lengths, kind="stable")  # the texts that have a byte at a place are the first ones
    begins = offsets[:-1][order]
    lengths = lengths[order]
    data = np.frombuffer(byte_buffer, np.uint8)
    sums: np.ndarray = np.zeros(count, np.uint64)
    for place in range(min(longest, _ONE_BY_ONE)):
        longer = begins[: np.searchsorted(-lengths, -place)]
        sums[: len(longer)] += (data[longer + place].astype(np.uint64) + np.uint64(1)) * _POWERS[place]
    num_longer = int(np.searchsorted(-lengths, -_ONE_BY_ONE))
    if num_longer:
        sums[:num_longer] += _sums_of_ends(data, begins[:num_longer], lengths[:num_longer])
    hashes[order] += sums
    return _mixed(hashes)


def _sums_of_ends(data: np.ndarray, begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The terms of `_hash_of_texts` behind the first bytes of long texts, summed for each text."""
    rest: np.ndarray = lengths - _ONE_BY_ONE
    firsts = np.cumsum(rest) - rest
    place = np.arange(rest.sum()) - np.repeat(firsts, rest) + _ONE_BY_ONE
    values = data[np.repeat(begins, rest) + place].astype(np.uint64)
    sums: np.ndarray = np.add.reduceat((values + np.uint64(1)) * _POWERS[place % len(_POWERS)], firsts)
    return sums


def _mixed(values: np.ndarray) -> np.ndarray:
    """Spreads differences over all bits (Steele, Lea, Flood: "Fast splittable pseudorandom number generators")."""
    values = values + np.uint64(_GOLDEN)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
