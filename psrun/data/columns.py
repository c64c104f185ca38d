"""Converts the values of columns of files, and reports malformed ones."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from psrun.data.lists import Lists, objects

_TYPES = {"float32": np.float32, "int64": np.int64, "string": object}
_INT64 = 2**63
_QUOTED_BOOLEANS = """'data.label_vocabulary=["False","True"]'"""
_FLOAT32 = float(np.finfo(np.float32).max)
_NUMBERS = "fiub"  # kinds of NumPy's types


@dataclass(frozen=True)
class Wanted:
    """The required content of a column.

    Attributes:
      column: its name in the file.
      dtype: float32, int64 or string; `width`: values per row.
      default: replaces a missing value; None: such a row is malformed, except for an empty string.
      num_classes: for a label, which must be in 0 to num_classes - 1.
      vocabulary: for a label, the valid values, all strings or all integers; converted to class numbers.
      weight: whether it is a weight, which must be 0 or more.
      max_values: for lists, the length to which they are truncated; None: rows have `width` values.
      separator: of the values of a list in a text; None: a text is one value.
      weights_of: for the weights of the values of a list, the name of that list.
    """

    column: str
    dtype: str
    width: int = 1
    default: float | int | str | None = None
    num_classes: int | None = None
    vocabulary: tuple[str, ...] | tuple[int, ...] | None = None
    weight: bool = False
    max_values: int | None = None
    separator: str | None = None
    weights_of: str | None = None


@dataclass(frozen=True)
class Rows:
    """Some unconverted rows of a file.

    Attributes:
      numbers: of the rows in the file.
      columns: by name, rows along the first axis: numbers, or objects (text, bytes, numbers, several of them, None);
        or lists of such values.
      bad: malformed rows, which are not in the columns: number and problem of each.
    """

    numbers: Sequence[int]
    columns: Mapping[str, np.ndarray | Lists]
    bad: Sequence[tuple[int, str]] = ()


def converted(values: np.ndarray, want: Wanted) -> tuple[np.ndarray, dict[int, str]]:
    """The column of a file as (rows, width), and the problems of rows by index."""
    values = values.reshape(len(values), -1) if values.ndim > 1 else values
    array, todo = _numbers(values, want)
    convert, wrong = _conversion(want), dict[int, str]()
    for index in todo:
        try:
            array[index] = _row(values[index], want, convert)
        except ValueError as error:
            wrong[index] = str(error)
    if want.num_classes is not None:
        label = array[:, 0]
        for index in np.flatnonzero((label != label // 1) | (label < 0) | (label >= want.num_classes)).tolist():
            wrong.setdefault(index, f"{label[index]:g} is not a class from 0 to {want.num_classes - 1}")
    return array, wrong


def _numbers(values: np.ndarray, want: Wanted) -> tuple[np.ndarray, Sequence[int]]:
    """The column as converted by NumPy at once, and the indices of rows to convert one by one."""
    array: np.ndarray = np.full((len(values), want.width), b"" if want.dtype == "string" else 0, _TYPES[want.dtype])
    table = values[:, np.newaxis] if values.ndim == 1 else values
    by_value = want.dtype == "string" or want.vocabulary is not None
    if values.dtype.kind == "O" and values.ndim == 1 and want.width == 1 and want.vocabulary is None:
        return array, _plain(values.tolist(), want, array)
    if values.dtype.kind == "b" and not by_value:
        table = table.astype(np.uint8)  # a bool cannot be compared with the limit of int64
    if values.dtype.kind not in _NUMBERS or by_value or table.shape[1] != want.width:
        return array, range(len(values))
    with np.errstate(over="ignore", invalid="ignore"):
        cast: np.ndarray = table.astype(_TYPES[want.dtype])
    fine = np.isfinite(cast) if want.dtype == "float32" else cast == table
    if want.dtype == "int64":  # the limit is not an int64, but equals the largest one as a float
        fine &= table < _INT64
    if want.weight:
        fine &= table >= 0
    whole = fine.all(axis=1)
    array[whole] = cast[whole]
    return array, np.flatnonzero(~whole).tolist()


def _plain(items: Sequence[Any], want: Wanted, array: np.ndarray) -> Sequence[int]:
    """Converts text that needs no care, ten times as fast as value by value; returns the indices of the rest."""
    if not items or not {str, bytes} >= set(map(type, items)):
        return range(len(items))
    filled = [index for index, item in enumerate(items) if item and not item.isspace()]
    text = [items[index] for index in filled]
    if want.dtype == "string":
        array[filled, 0] = objects([_text(item) for item in text])
        fine: np.ndarray = np.ones(len(text), bool)
    else:
        try:
            if any(map(_grouped, text)):
                return range(len(items))
            numbers: np.ndarray = np.array(list(map(int if want.dtype == "int64" else float, text)))
        except (ValueError, OverflowError):
            return range(len(items))
        if want.dtype == "int64" and numbers.dtype != np.int64:  # too large, or none at all
            return range(len(items))
        fine = np.abs(numbers) <= _FLOAT32 if want.dtype == "float32" else np.ones(len(text), bool)
        fine &= (numbers >= 0) | (not want.weight)
        array[np.array(filled, np.int64)[fine], 0] = numbers[fine]
    rest = set(range(len(items))).difference(np.array(filled, np.int64)[fine].tolist())
    return sorted(rest)


def _conversion(want: Wanted) -> Callable[[Any], Any]:
    if want.vocabulary is not None:
        return _class_number(want.vocabulary)
    if want.weight:
        return _weight
    convert = CONVERSIONS[want.dtype]
    if want.num_classes is None:
        return convert

    def number_of_class(item: Any) -> Any:
        try:
            return convert(item)
        except ValueError as error:
            raise ValueError(f"{error}; name such classes with data.label_vocabulary=[...]") from error

    return number_of_class


def _class_number(vocabulary: Sequence[str] | Sequence[int]) -> Callable[[Any], int]:
    """A function from a value of the vocabulary to its index; it raises ValueError for other values."""
    kind = _text if isinstance(vocabulary[0], str) else _integer
    numbers = {kind(value): number for number, value in enumerate(vocabulary)}
    shown = f"[{', '.join(map(str, vocabulary))}]"

    def class_number(item: Any) -> int:
        with contextlib.suppress(ValueError, KeyError):
            return numbers[kind(item)]
        value = item.decode(errors="replace") if isinstance(item, bytes) else item
        message = f"{value!r} is not in data.label_vocabulary={shown}"
        if {"no", "yes"} >= set(vocabulary) and str(value).lower() in ("false", "true"):
            message += f"; quote False and True, which YAML reads as booleans: {_QUOTED_BOOLEANS}"
        raise ValueError(message)

    return class_number


def _row(value: Any, want: Wanted, convert: Callable[[Any], Any]) -> list[Any]:
    several = isinstance(value, list | tuple | np.ndarray)
    items = list(value) if several else [value]
    if not items:
        items = [None] * want.width
    if len(items) != want.width:
        raise ValueError(f"has {len(items)} values instead of {want.width}")
    return [_value(item, want, convert) for item in items]


def _value(item: Any, want: Wanted, convert: Callable[[Any], Any]) -> Any:
    """One value.

    Raises:
      ValueError: the value cannot be converted.
    """
    item = item.item() if isinstance(item, np.generic) else item
    not_a_number = isinstance(item, float | np.floating) and math.isnan(item)
    nothing = item is None or not_a_number
    empty = isinstance(item, str | bytes) and not item.strip()
    if (nothing or empty) and want.default is not None:
        return convert(want.default)
    if nothing or (empty and want.dtype != "string"):
        raise ValueError("is NaN" if not_a_number else "is empty")
    return convert(item)


def number(item: Any) -> float:
    """A float32.

    Raises:
      ValueError: it is not a number.
    """
    try:
        value = math.nan if _grouped(item) else float(item)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if math.isnan(value):
        raise ValueError(f"{item!r} is not a number")
    if abs(value) > _FLOAT32:
        raise ValueError(f"{item!r} is too large for a float32, or infinite")
    return value


def _weight(item: Any) -> float:
    value = number(item)
    if value < 0:
        raise ValueError(f"{item!r} is negative; a weight must be 0 or more")
    return value


def _integer(item: Any) -> int:
    try:
        value = None if _grouped(item) else int(item)
        if not isinstance(item, str | bytes) and value != item:
            value = None
    except (TypeError, ValueError, OverflowError):
        value = None
    if value is None:
        raise ValueError(f"{item!r} is not an integer")
    if not -_INT64 <= value < _INT64:
        raise ValueError(f"{item!r} is too large for an int64")
    return value


def _grouped(item: Any) -> bool:
    """Whether it is a number only in Python's notation, such as 1_000."""
    return isinstance(item, str | bytes) and ("_" in item if isinstance(item, str) else b"_" in item)


def _text(item: Any) -> bytes:
    if isinstance(item, bytes):
        return bytes(item)
    if isinstance(item, str):
        return item.encode("utf-8", "surrogateescape")
    if isinstance(item, int | np.integer) and not isinstance(item, bool):
        return str(int(item)).encode()
    raise ValueError(f"{item!r} is not a string")


CONVERSIONS: dict[str, Callable[[Any], Any]] = {"float32": number, "int64": _integer, "string": _text}
