"""Exact times in columns of files: numbers, dates and times, of which no two can be confused. No TensorFlow."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from psrun.errors import ConfigError, DataError, Problem
from psrun.tables import notations
from psrun.tables.columns import is_list, plain
from psrun.tables.rows import codes_of

MISSING, NUMBER, TIME, ZONED, UNREADABLE = range(5)
_KINDS = {NUMBER: "a number", TIME: "a date or time", ZONED: "a time with an offset from UTC"}
_MOST = 2**63 - 1
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_ZONE = r"[T ][0-9]{2}.*(?:Z|UTC|GMT|[+-][0-9]{2}(?::?[0-9]{2})?)$"
# Numbers of seconds since 1970 from 1973 to 2099. In other units such a time is 1,000, 10^6 or 10^9 times as large.
_FIRST_SECOND = 10**8
_LAST_SECOND = 4_102_444_800
_UNITS = ("seconds", "milliseconds", "microseconds", "nanoseconds")
# Numbers that stand for "none" or "never": the largest ones of their types, the end of 9999, and nines.
_END = 253_402_300_800
_SENTINELS = np.array(
    [2**31 - 1, 2**32 - 1, _MOST]
    + [(_END - before) * unit for unit in (1, 10**3, 10**6) for before in (0, 1, 86_400)]
    + [_END * unit - 1 for unit in (10**3, 10**6)]
    + [10**digits - 1 for digits in range(9, 19)]
)


class Times(NamedTuple):
    """The times of rows. One is later than another if its pair (whole, fraction) is larger.

    Attributes:
      whole: int64: of numbers the next lower integer, of others seconds since 1970. What int64 cannot hold becomes its
        least or largest number.
      fraction: float64 from 0 to 1: the rest of the number or second.
      kinds: int8, MISSING to UNREADABLE.
    """

    whole: np.ndarray
    fraction: np.ndarray
    kinds: np.ndarray

    @property
    def are_there(self) -> np.ndarray:
        """Whether each row has a time."""
        return (self.kinds != MISSING) & (self.kinds != UNREADABLE)

    def since(self, whole: int, fraction: float) -> np.ndarray:
        """Whether each time is there, and is the given one or a later one."""
        is_late = (self.whole > whole) | ((self.whole == whole) & (self.fraction >= fraction))
        return self.are_there & is_late


def read(column: pa.Array, time_format: str | None) -> Times:
    """The times in a column.

    Args:
      time_format: of texts, and of integers such as 20210131, as strptime takes it; None: numbers or ISO 8601.
    """
    if types.is_string(column.type):
        column = column.dictionary_encode()
    if not types.is_dictionary(column.type):
        return _read(plain(column), time_format)
    known = _read(plain(column.dictionary), time_format)
    whole, fraction, kinds = (np.append(part, 0)[codes_of(column)] for part in known)
    return Times(whole, fraction, kinds.astype(np.int8))


def _read(column: pa.Array, time_format: str | None) -> Times:
    kind = column.type
    if types.is_duration(kind):
        column = column.cast(pa.int64())
    elif types.is_temporal(kind) and not types.is_interval(kind):
        return _of_temporal(column)
    is_number = types.is_integer(column.type) or types.is_floating(column.type) or types.is_decimal(column.type)
    if is_number and time_format is None:
        return _of_numbers(column)
    if types.is_floating(kind):
        column = pc.if_else(pc.is_nan(column), None, column)
    return _of_texts(column.cast(pa.string()), time_format)


def _of_temporal(column: pa.Array) -> Times:
    kind = column.type
    per_day = types.is_date32(kind)
    numbers = column.cast(pa.int32()) if per_day or types.is_time32(kind) else column
    values = numbers.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    is_there = column.is_valid().to_numpy(zero_copy_only=False)
    zoned = ZONED if getattr(kind, "tz", None) is not None else TIME
    kinds = np.where(is_there, zoned, MISSING).astype(np.int8)
    if per_day:
        return Times(values * 86_400, np.zeros(len(values)), kinds)
    per_second = _PER_SECOND["ms" if types.is_date64(kind) else kind.unit]
    return Times(values // per_second, (values % per_second) / per_second, kinds)


def _of_numbers(column: pa.Array) -> Times:
    if types.is_integer(column.type):
        is_there = column.is_valid().to_numpy(zero_copy_only=False)
        values = column.fill_null(0).to_numpy(zero_copy_only=False)
        whole = np.minimum(values, _MOST).astype(np.int64) if types.is_uint64(column.type) else values.astype(np.int64)
        return Times(whole, np.zeros(len(whole)), np.where(is_there, NUMBER, MISSING).astype(np.int8))
    if types.is_decimal(column.type):
        return _of_texts(column.cast(pa.string()), None)
    numbers = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    whole, fraction = _parts(numbers)
    kinds = np.where(np.isfinite(numbers), NUMBER, UNREADABLE)
    return Times(whole, fraction, np.where(np.isnan(numbers), MISSING, kinds).astype(np.int8))


def _parts(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Doubles as int64 and the rest."""
    numbers = np.where(np.isfinite(numbers), numbers, 0.0)
    floor = np.floor(numbers)
    fits = np.abs(floor) < 2.0**63
    whole = np.where(fits, floor, 0.0).astype(np.int64)
    whole = np.where(fits, whole, np.where(floor > 0, _MOST, -_MOST - 1))
    return whole, np.where(fits, numbers - floor, 0.0)


def _of_texts(texts: pa.StringArray, time_format: str | None) -> Times:
    missing = notations.is_missing(texts).to_numpy(zero_copy_only=False)
    kinds = np.where(missing, MISSING, UNREADABLE).astype(np.int8)
    whole: np.ndarray = np.zeros(len(texts), np.int64)
    fraction: np.ndarray = np.zeros(len(texts))
    if time_format is None:
        numbers = notations.numbers(texts)
        is_number = _valid(numbers) & ~missing
        if is_number.any():
            whole, fraction = _parts_of_texts(texts, numbers)
            kinds[is_number] = NUMBER
    rest = kinds == UNREADABLE
    if rest.any():
        left = texts.filter(pa.array(rest))
        instants = notations.times(left, time_format)
        micros = instants.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        nanos = micros % 10**6 * 1000 + notations.nanoseconds(left, time_format)
        whole[rest] = micros // 10**6
        fraction[rest] = nanos / 10**9
        zoned = pc.match_substring_regex(pc.utf8_trim_whitespace(left), _ZONE).to_numpy(zero_copy_only=False)
        is_zoned = zoned.astype(bool) & (time_format is None)
        kinds[rest] = np.where(_valid(instants), np.where(is_zoned, ZONED, TIME), UNREADABLE)
    return Times(whole, fraction, kinds)


def _parts_of_texts(texts: pa.StringArray, numbers: pa.DoubleArray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers in texts as int64 and the rest, with all digits: no double has nanoseconds beside today's seconds.

    Args:
      numbers: in the texts, as doubles.
    """
    whole, fraction = _parts(numbers.fill_null(0.0).to_numpy(zero_copy_only=False))
    integers = notations.integers(texts)
    whole = np.where(_valid(integers), integers.fill_null(0).to_numpy(zero_copy_only=False), whole)
    found = pc.extract_regex(pc.utf8_trim_whitespace(texts), r"^(?P<whole>[0-9]{1,18})(?P<rest>\.[0-9]+)$")
    is_found = _valid(found)
    if is_found.any():
        digits = pc.struct_field(found, "whole").cast(pa.int64()).fill_null(0)
        rest = pc.struct_field(found, "rest").cast(pa.float64()).fill_null(0.0)
        whole = np.where(is_found, digits.to_numpy(zero_copy_only=False), whole)
        fraction = np.where(is_found, rest.to_numpy(zero_copy_only=False), fraction)
    return whole, fraction


def _valid(array: pa.Array) -> np.ndarray:
    return array.is_valid().to_numpy(zero_copy_only=False)


Where = Callable[[int], str]  # the file and the row of a value, by its place in a block


class Check:
    """Refuses a column whose values are not all of one kind, or are numbers in several units.

    Args:
      key: of the split in the configuration, for messages.
      column: the name of the column.
    """

    def __init__(self, key: str, column: str, time_format: str | None) -> None:
        self._key = key
        self._column = column
        self._time_format = time_format
        self._seen: dict[int, str] = {}  # by kind, the first value
        self._units: dict[int, str] = {}  # by unit, the first value
        self._others: set[int] = set()  # the units after which there are numbers that are of none
        self.num_missing = 0

    @property
    def are_instants(self) -> bool:
        return NUMBER not in self._seen

    def add(self, times: Times, column: pa.Array, where: Where) -> None:
        """Adds a block of the column.

        Raises:
          ConfigError: no value can be read.
          DataError: a value is of another kind than the others.
        """
        self.num_missing += int((times.kinds == MISSING).sum())
        for kind in _KINDS:
            places = np.flatnonzero(times.kinds == kind)
            if len(places) and kind not in self._seen:
                self._seen[kind] = _shown(column, int(places[0]), where)
        unreadable = np.flatnonzero(times.kinds == UNREADABLE)
        if len(unreadable):
            self._refuse(_shown(column, int(unreadable[0]), where))
        if len(self._seen) > 1:
            (one, first), (other, second) = self._seen.items()
            message = f"{self._key}.column: {self._column} is written in two ways: {first} is {_KINDS[one]}, and"
            remedy = "write all in one way, or leave a value empty that is not known"
            raise DataError(f"{message} {second} is {_KINDS[other]}; {remedy}")
        if NUMBER in self._seen:
            self._add_numbers(times, column, where)

    def _refuse(self, shown: str) -> None:
        if self._seen:
            first = next(iter(self._seen.values()))
            message = f"{self._key}.column: {self._column} has {shown}, which is not a time like {first}"
            raise DataError(f"{message}; correct it, or leave it empty: a row without a time is a training example")
        message = f"is null, and {self._column} has {shown}, which is neither a number nor ISO 8601"
        remedy = "set it to the format of the column, such as '%d.%m.%Y' or '%m/%d/%Y'"
        if self._time_format is not None:
            message = f"is {self._time_format!r}, and {self._column} has {shown}, which has another format"
            remedy = "set it to the format of all values"
        raise ConfigError([Problem(f"{self._key}.time_format", f"{message}; {remedy}")])

    def _add_numbers(self, times: Times, column: pa.Array, where: Where) -> None:
        is_number = (times.kinds == NUMBER) & ~np.isin(times.whole, _SENTINELS)
        for unit in range(len(_UNITS)):
            factor = 1000**unit
            found = is_number & (times.whole >= _FIRST_SECOND * factor) & (times.whole <= _LAST_SECOND * factor)
            if unit not in self._units and found.any():
                self._units[unit] = _shown(column, int(np.argmax(found)), where)
            after = is_number & (times.whole > _LAST_SECOND * factor)
            if unit + 1 < len(_UNITS):
                after &= times.whole < _FIRST_SECOND * factor * 1000
                if after.any():
                    self._others.add(unit)
        if (is_number & (times.whole < -_FIRST_SECOND)).any():  # before 1967: such times may have any size
            self._others.update(range(len(_UNITS)))

    def finish(self) -> None:
        """Checks what only all values together tell.

        Times of two units are far apart, with nothing between: other numbers that grow have values there.

        Raises:
          ConfigError: there is no time.
          DataError: the numbers are in two units.
        """
        if not self._seen:
            message = f"{self._column} has no time in any row; choose another column, or {self._key}.by=rows"
            raise ConfigError([Problem(f"{self._key}.column", message)])
        units = sorted(self._units)
        for one, other in itertools.pairwise(units):
            if not self._others.intersection(range(one, other)):
                values = f"{self._units[one]} would be {_UNITS[one]} since 1970, {self._units[other]} {_UNITS[other]}"
                remedy = "write all in one unit, or leave a value empty that is not known"
                raise DataError(f"{self._key}.column: {self._column} has times in two units: {values}; {remedy}")


def _shown(column: pa.Array, place: int, where: Where) -> str:
    value: Any
    if types.is_temporal(column.type):  # Python has no nanoseconds, and no years beyond 9999
        value = column.slice(place, 1).cast(pa.string())[0].as_py()
    else:
        value = column[place].as_py()
    return f"{value if isinstance(value, int | float) else repr(value)} ({where(place)})"


def check_type(key: str, name: str, kind: pa.DataType) -> None:
    """Raises ConfigError if the values of a column are lists or structures."""
    if is_list(kind) or types.is_nested(kind):
        raise ConfigError([Problem(key, f"{name} holds {kind}, not single values; choose another column")])


def text(whole: int, fraction: float, *, are_instants: bool) -> int | float | str:
    """A time for run.json: a number, its digits if no double has them all, or ISO 8601."""
    if not are_instants:
        number = whole + fraction if fraction else whole
        is_exact = whole < 0 or number - whole == fraction
        return number if is_exact else f"{whole}{np.format_float_positional(fraction, trim='-').lstrip('0')}"
    shown = str(np.datetime64(whole, "s"))
    nanoseconds = round(fraction * 10**9)
    return f"{shown}.{nanoseconds:09d}" if nanoseconds else shown


def parsed(recorded: float | str, *, are_instants: bool) -> tuple[int, float]:
    """The time that `text` returned.

    Args:
      are_instants: whether the column has dates and times.

    Raises:
      ValueError: it is a time of the other kind.
    """
    if not are_instants:
        if isinstance(recorded, str) and "T" in recorded:
            raise ValueError(f"{recorded} is not a number")
        times = _of_texts(pa.array([str(recorded)]), None)
        return int(times.whole[0]), float(times.fraction[0])
    if not isinstance(recorded, str) or "T" not in recorded:
        raise ValueError(f"{recorded} is not a date or time")
    shown, _, nanoseconds = recorded.partition(".")
    return int(np.datetime64(shown, "s").astype(np.int64)), int(nanoseconds or 0) / 10**9
