"""Profiles of columns of files: numbers of distinct and missing values, kinds. Does not import TensorFlow."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import statistics
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from psrun.data import files, formats, lists
from psrun.data.columns import CONVERSIONS, Rows
from psrun.data.lists import Lists
from psrun.files import write_atomic

FEW = 256  # values that a profile lists
_COUNTED = 100_000  # distinct values that are counted exactly; above, their number is estimated
LONG = 100  # values of a list; longer ones are counted
_VERSION = 3
_LEADING_ZERO = re.compile(r"\s*[-+]?0\d+\s*")  # of a code, such as a postal code


@dataclass(frozen=True)
class Profile:
    """The profile of a column.

    Attributes:
      kind: integers, numbers, strings, other (none of these) or empty (no value at all).
      text: whether numbers are written as text.
      whole: of numbers, whether none has a fraction.
      width: values of the first row that has any; `longest`: the most values of a row.
      varies: whether rows that are not empty lists have different numbers of values.
      num_empty, num_long: rows that are empty lists, and rows with more than 100 values.
      num_rows, num_items, num_missing: rows, their values, and those of them that are missing; an empty list has none.
      num_bad, first_bad: number of malformed rows, which are not counted, and the problem of the first.
      num_values: number of distinct values; an estimate above 100,000.
      least, most, middle: of numbers; the middle is the median of the distinct values.
      values: all of them, in order, if they are few.
      odd: the exceptions in a column of strings that are almost all numbers.
    """

    column: str
    kind: str
    text: bool = False
    whole: bool = False
    width: int = 1
    longest: int = 1
    varies: bool = False
    num_empty: int = 0
    num_long: int = 0
    num_rows: int = 0
    num_items: int = 0
    num_missing: int = 0
    num_bad: int = 0
    first_bad: str = ""
    num_values: int = 0
    least: float | None = None
    most: float | None = None
    middle: float | None = None
    values: Sequence[str | int | float] = ()
    odd: Sequence[str] = ()

    @property
    def repeats(self) -> float:
        """How often a value occurs in the mean."""
        return (self.num_items - self.num_missing) / max(1, self.num_values)


def of_files(
    names: Sequence[str],
    layout: formats.Layout,
    *,
    cache: Path | None,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Profile]:
    """The profile of each column of files, over all of their rows that have as many fields as the first.

    Args:
      cache: the folder that stores profiles until the files change; None for none.
      tell: called repeatedly with the progress.

    Raises:
      DataError: a file cannot be read to its end, or has other columns than the first.
    """
    path = None
    if cache is not None:
        key = json.dumps([_VERSION, asdict(layout), [files.stamp(name) for name in names]])
        path = cache / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.profile.json"
        with contextlib.suppress(OSError, ValueError, TypeError):
            records = json.loads(path.read_text(encoding="utf-8"))
            return {each["column"]: Profile(**each) for each in records}
    columns = formats.columns(names[0], layout) or ()
    seen = {column: _Seen(column) for column in columns}
    num_rows, num_bad, first_bad = 0, 0, ""
    for number, name in enumerate(names, 1):
        formats.check_columns(name, layout, names[0], columns)
        for rows in formats.rows(name, columns, layout):
            _add(seen, rows)
            num_rows += len(rows.numbers)
            num_bad += len(rows.bad)
            if rows.bad and not first_bad:
                first_bad = f"{name}, row {rows.bad[0][0]}: {rows.bad[0][1]}"
            tell(f"inspecting the columns of {name} ({number} of {len(names)} files): {num_rows:,} rows so far")
    profiles = {column: replace(each.profile(), num_bad=num_bad, first_bad=first_bad) for column, each in seen.items()}
    if path is not None:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps([asdict(each) for each in profiles.values()]))
    return profiles


def _add(seen: dict[str, _Seen], rows: Rows) -> None:
    for column, each in seen.items():
        each.add(rows.columns[column])


class _Seen:
    """The values of a column so far; of too many, a sample of those with a hash that ends in zeros."""

    def __init__(self, column: str) -> None:
        self._column, self._width, self._longest = column, 0, 0
        self._num_long = self._num_items = self._num_empty = 0
        self._varies = False
        self._values, self._zeros = set[Any](), 0
        self._num_rows = self._num_missing = 0
        self._text = self._plain = self._other = False  # whether there is text, numbers, and anything else
        self._whole = self._numbers = self._integers = True
        self._odd = set[str]()
        self._least, self._most = math.inf, -math.inf

    def add(self, values: np.ndarray | Lists) -> None:
        self._num_rows += len(values)
        if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind == "O":
            several = any(isinstance(item, list | tuple | np.ndarray) for item in values)
            values = lists.of_rows(values, None) if several else values
        if isinstance(values, Lists):
            self._add_lengths(values.lengths)
            values = values.values
        else:
            self._add_lengths(np.full(len(values), int(np.prod(values.shape[1:]))))
        self._num_items += values.size
        if values.dtype.kind in "fiub":
            flat = values.ravel()
            present = flat[~np.isnan(flat)] if values.dtype.kind == "f" else flat
            self._num_missing += len(flat) - len(present)
            self._take(np.unique(present.astype(np.int64) if values.dtype.kind == "b" else present).tolist())
        else:
            self._take(self._present(values.ravel().tolist()))

    def _add_lengths(self, lengths: np.ndarray) -> None:
        some = lengths[lengths > 0]
        self._num_empty += len(lengths) - len(some)
        if len(some):
            self._width = self._width or int(some[0])
            self._longest = max(self._longest, int(some.max()))
            self._varies |= bool((some != self._width).any())
            self._num_long += int((some > LONG).sum())

    def _present(self, items: Sequence[Any]) -> Iterable[Any]:
        """The distinct values without missing ones, which are counted."""
        for value, count in Counter(map(_plain, items)).items():
            if value is None or value != value or (isinstance(value, str) and (not value or value.isspace())):
                self._num_missing += count
            else:
                yield value

    def _take(self, values: Iterable[Any]) -> None:
        self._values.update(values if not self._zeros else filter(self._sampled, values))
        while len(self._values) > _COUNTED:
            self._look()
            self._zeros += 1
            self._values = set(filter(self._sampled, self._values))

    def _sampled(self, value: Any) -> bool:
        return not zlib.crc32(str(value).encode("utf-8", "surrogateescape")) & ((1 << self._zeros) - 1)

    def _look(self) -> list[float]:
        """Determines the kind of the values; returns the numbers."""
        numbers = []
        for value in self._values:
            self._text |= isinstance(value, str)
            self._plain |= isinstance(value, int | float)
            self._other |= not isinstance(value, str | int | float)
            if len(self._odd) > FEW:  # words: nothing else is needed
                continue
            number = _number(value)
            if number is None:
                self._numbers = False
                self._odd.add(str(value))
                continue
            numbers.append(number)
            code = isinstance(value, str) and _LEADING_ZERO.fullmatch(value) is not None
            self._numbers &= not code
            self._integers &= isinstance(value, int) or (isinstance(value, str) and _is_integer(value))
        if numbers:
            self._least, self._most = min(self._least, *numbers), max(self._most, *numbers)
            self._whole &= all(number == number // 1 for number in numbers)
        return numbers

    def profile(self) -> Profile:
        numbers = self._look()
        count = len(self._values) << self._zeros
        counts: dict[str, Any] = {
            "column": self._column, "text": self._text, "width": self._width or 1, "num_rows": self._num_rows,
            "longest": max(1, self._longest), "varies": self._varies, "num_empty": self._num_empty,
            "num_long": self._num_long, "num_items": self._num_items, "num_missing": self._num_missing,
            "num_values": count,
        }  # fmt: skip
        other = self._other or (self._text and self._plain and not self._numbers)
        if not self._values or other:
            return Profile(kind="other" if other else "empty", **counts)
        if self._numbers:
            kind = "integers" if self._integers else "numbers"
            values = {(int if kind == "integers" else float)(value) for value in self._values} if count <= FEW else ()
            counts |= {"least": self._least, "most": self._most, "middle": statistics.median_low(numbers)}
            return Profile(kind=kind, whole=self._whole, values=sorted(values), **counts)
        words = {str(value) for value in self._values}
        odd = sorted(self._odd) if len(numbers) > 10 * len(self._odd) else ()
        vocabulary = sorted(words) if count <= FEW and all(map(formats.is_decoded, words)) else ()
        return Profile(kind="strings", values=vocabulary, odd=odd, **counts)


def _plain(item: Any) -> Any:
    """A value as a key: text as str, with surrogates for undecodable bytes."""
    if isinstance(item, bytes):
        return item.decode("utf-8", "surrogateescape")
    return item if isinstance(item, str | int | float) or item is None else repr(type(item)).encode()


def _number(value: Any) -> float | None:
    try:
        return CONVERSIONS["float32"](value)
    except ValueError:
        return None


def _is_integer(value: str) -> bool:
    try:
        CONVERSIONS["int64"](value)
    except ValueError:
        return False
    return True
