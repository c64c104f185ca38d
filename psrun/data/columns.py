"""Converts the columns of files to those of a prepared set, and finds the malformed rows."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from psrun.data import notations
from psrun.data.formats import Rows

_INT64 = 2**63
_QUOTED_BOOLEANS = """'data.label_vocabulary=["False","True"]'"""
_FLOAT32 = float(np.finfo(np.float32).max)
ARROW_TYPES = {"float32": pa.float32(), "int64": pa.int64(), "string": pa.binary()}


@dataclass(frozen=True)
class Column:
    """A column of a prepared set.

    Attributes:
      dtype: float32, int64 or string.
      width: values of a row.
      max_values: of lists; None for no lists.
    """

    dtype: str
    width: int = 1
    max_values: int | None = None

    @property
    def type(self) -> pa.DataType:
        item = ARROW_TYPES[self.dtype]
        if self.max_values is not None:
            return pa.list_(item)
        return item if self.width == 1 else pa.list_(item, self.width)


@dataclass(frozen=True)
class Wanted:
    """The required content of a column.

    Attributes:
      column: its name in the file.
      dtype: float32, int64 or string; `width`: values per row.
      default: replaces a missing value; None: such a row is malformed, except for an empty string.
      nullable: whether missing numbers become NaN.
      decimal_mark, part, time_format: as of `feature_spec.FeatureSpec`.
      is_label: rows without it are left out, and are not malformed.
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
    nullable: bool = False
    decimal_mark: str | None = None
    part: str | None = None
    time_format: str | None = None
    is_label: bool = False
    num_classes: int | None = None
    vocabulary: tuple[str, ...] | tuple[int, ...] | None = None
    weight: bool = False
    max_values: int | None = None
    separator: str | None = None
    weights_of: str | None = None

    @property
    def prepared(self) -> Column:
        return Column(self.dtype, self.width, self.max_values)


@dataclass(frozen=True)
class Piece:
    """Rows of a file as a prepared set has them.

    Attributes:
      batch: the columns by name, without nulls.
      places: of the rows in the file, from 0.
      bad: malformed rows: place and problem of each. They are not in the batch, unless `checked` kept them.
      number: of the row at a place, as a person counts.
      num_unlabeled: number of rows that were left out because they have no label.
      num_truncated: number of truncated lists, by name.
    """

    batch: pa.RecordBatch
    places: np.ndarray
    bad: Sequence[tuple[int, str]] = ()
    number: Callable[[int], int] = lambda place: place + 1
    num_unlabeled: int = 0
    num_truncated: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Converted:
    """A converted column.

    Attributes:
      array: without nulls; any value where a row is wrong or unlabeled.
      wrong: problems by row.
      unlabeled: rows without a label.
      lengths: of lists, before they were truncated.
    """

    array: pa.Array
    wrong: Mapping[int, str]
    unlabeled: np.ndarray | None = None
    lengths: np.ndarray | None = None


def checked(rows: Rows, wanted: Mapping[str, Wanted], *, keep: bool = False) -> Piece:
    """Converts rows to the required columns.

    Args:
      keep: whether malformed rows stay, with any values.
    """
    if keep:
        rows = complete(rows)
    num_rows = rows.batch.num_rows
    columns = {name: _converted(rows.batch.column(want.column), want) for name, want in wanted.items()}
    problems: dict[int, str] = {}
    unlabeled = np.zeros(num_rows, bool)
    for name, column in columns.items():
        for index, problem in column.wrong.items():
            problems.setdefault(index, f"column {wanted[name].column}: {problem}")
        if column.unlabeled is not None:
            unlabeled |= column.unlabeled
    for name, want in wanted.items():
        if want.weights_of is not None:
            for index, problem in _other_lengths(columns[name], columns[want.weights_of], want.weights_of):
                problems.setdefault(index, f"column {want.column}: {problem}")
    bad = [*rows.bad, *((int(rows.places[index]), problem) for index, problem in problems.items())]
    good = np.ones(num_rows, bool)
    if not keep:
        good[list(problems)] = False
        good &= ~unlabeled
    lengths = {name: each.lengths[good] for name, each in columns.items() if each.lengths is not None}
    truncated = {
        name: int((length > (wanted[name].max_values or 0)).sum())
        for name, length in lengths.items()
        if wanted[name].weights_of is None
    }
    batch = pa.record_batch([each.array for each in columns.values()], list(columns))
    places = rows.places
    if not good.all():
        batch = batch.filter(pa.array(good))
        places = places[good]
    unique = {place: problem for place, problem in reversed(bad)}  # of a row that is malformed twice, the first
    return Piece(batch, places, sorted(unique.items()), rows.number, int(unlabeled.sum()), truncated)


def complete(rows: Rows) -> Rows:
    """The rows with those that could not be split into fields, as nulls."""
    lost = np.setdiff1d(np.array([place for place, _ in rows.bad], np.int64), rows.places)
    if not len(lost):
        return rows
    places = np.sort(np.concatenate([rows.places, lost]))
    index = pa.array(np.searchsorted(rows.places, places), mask=np.isin(places, lost))
    return replace(rows, batch=rows.batch.take(index), places=places)


def _converted(array: pa.Array, want: Wanted) -> _Converted:
    if types.is_dictionary(array.type) and want.max_values is None and want.width == 1:
        values, wrong, missing = _scalars(array, want)
        return _Converted(values, wrong, missing if want.is_label else None)
    array = _plain(array)
    if want.max_values is not None:
        return _list(array, want)
    if is_list(array.type):
        return _wide(array, want)
    if want.width != 1:
        problem = f"has 1 value instead of {want.width}"
        zeros: np.ndarray = np.full(len(array) * want.width, b"" if want.dtype == "string" else 0)
        values = pa.array(zeros, ARROW_TYPES[want.dtype])
        rows = pa.FixedSizeListArray.from_arrays(values, want.width)
        return _Converted(rows, dict.fromkeys(range(len(array)), problem))
    values, wrong, missing = _scalars(array, want)
    return _Converted(values, wrong, missing if want.is_label else None)


def _plain(array: pa.Array) -> pa.Array:
    """A column without dictionaries, and without the types of which there are several for one thing."""
    kind = array.type
    if types.is_dictionary(kind):
        return _plain(array.dictionary_decode())
    if types.is_null(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return array.cast(pa.string())
    if types.is_large_binary(kind) or types.is_binary_view(kind) or types.is_fixed_size_binary(kind):
        return _plain(array.cast(pa.binary()))
    if types.is_large_list(kind):
        return array.cast(pa.list_(kind.value_type))
    if types.is_binary(kind):
        with contextlib.suppress(pa.ArrowInvalid):
            return array.cast(pa.string())
    return array


def is_list(kind: pa.DataType) -> bool:
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def flattened(lists: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """The number of values of each list, and all values; lists of lists are lists of the values of these."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    values = _plain(lists.flatten())
    if not is_list(values.type):
        return lengths, values
    inner, values = flattened(values)
    ends = np.concatenate([[0], np.cumsum(inner)])[np.concatenate([[0], np.cumsum(lengths)])]
    return np.diff(ends), values


def _wide(array: pa.Array, want: Wanted) -> _Converted:
    """Rows of `width` values; an empty list is as many missing values."""
    lengths, flat = flattened(array)
    wrong = {
        int(index): f"has {lengths[index]} values instead of {want.width}"
        for index in np.flatnonzero((lengths != want.width) & (lengths != 0))
    }
    if (lengths != want.width).any():
        right = lengths == want.width
        starts = np.cumsum(lengths) - lengths
        index = starts[:, np.newaxis] + np.arange(want.width)
        absent = np.repeat(~right[:, np.newaxis], want.width, axis=1)
        flat = flat.take(pa.array(index.ravel(), mask=absent.ravel()))
    values, wrong_values, missing = _scalars(flat, want)
    for index, problem in wrong_values.items():
        wrong.setdefault(index // want.width, problem)
    unlabeled: Any = missing.reshape(-1, want.width).any(axis=1) if want.is_label else None
    array = values if want.width == 1 else pa.FixedSizeListArray.from_arrays(values, want.width)
    return _Converted(array, wrong, unlabeled)


def _list(array: pa.Array, want: Wanted) -> _Converted:
    """Lists, truncated. A missing value and an empty text are empty lists, other values lists of one."""
    array = _lists(array, want.separator)
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    most = want.max_values or 0
    if (lengths > most).any():
        array = pc.list_slice(array, 0, most)
        if types.is_fixed_size_list(array.type):
            array = array.cast(pa.list_(array.type.value_type))
    kept = np.minimum(lengths, most)
    values, wrong_values, _ = _scalars(_plain(array.flatten()), replace(want, max_values=None))
    wrong: dict[int, str] = {}
    if wrong_values:
        row_of: np.ndarray = np.repeat(np.arange(len(kept)), kept)
        for index, problem in wrong_values.items():
            wrong.setdefault(int(row_of[index]), problem)
    offsets = np.concatenate([[0], np.cumsum(kept)]).astype(np.int32)
    return _Converted(pa.ListArray.from_arrays(pa.array(offsets), values), wrong, lengths=lengths)


def _lists(array: pa.Array, separator: str | None) -> pa.Array:
    kind = array.type
    if is_list(kind):
        inner = _plain(array.flatten())
        if separator is None or not types.is_string(inner.type):
            return array
        if (pc.list_value_length(array).fill_null(1).to_numpy(zero_copy_only=False) > 1).any():
            return array
        filled: np.ndarray = np.zeros(len(array), np.int64)  # lists of one text each
        present = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False) == 1
        filled[present] = np.arange(int(present.sum()))
        array = inner.take(pa.array(filled, mask=~present))
        kind = array.type
    if types.is_string(kind):
        blank = pc.equal(pc.utf8_trim_whitespace(array), "").fill_null(True)
        texts = pc.if_else(blank, None, array)
        if separator is not None:
            return pc.split_pattern(texts, separator)
        array = texts
    present = array.is_valid().to_numpy(zero_copy_only=False)
    if types.is_floating(kind):
        present &= ~np.isnan(array.to_numpy(zero_copy_only=False))
    offsets = np.concatenate([[0], np.cumsum(present)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), array.filter(pa.array(present)))


def _other_lengths(weights: _Converted, values: _Converted, name: str) -> list[tuple[int, str]]:
    """The problems of rows that do not have one weight per value."""
    assert weights.lengths is not None
    assert values.lengths is not None
    return [
        (int(index), f"has {weights.lengths[index]} weights for the {values.lengths[index]} values of {name}")
        for index in np.flatnonzero(weights.lengths != values.lengths)
    ]


def _scalars(array: pa.Array, want: Wanted) -> tuple[pa.Array, dict[int, str], np.ndarray]:
    """Converted values without nulls, the problems of values by index, and which values are missing."""
    if want.dtype == "string" and want.vocabulary is None:
        return _texts(_plain(array), want)
    parsed = _parsed_once(array, want)
    values = parsed.values
    missing = parsed.missing
    wrong = parsed.wrong
    if missing.any():
        if want.default is not None:
            values[missing] = CONVERSIONS[want.dtype](want.default)
        elif want.nullable:
            values[missing] = math.nan
        elif not want.is_label:
            wrong = wrong | missing
    problems: dict[int, str] = {}
    if wrong.any():
        problems = {index: _problem(array[index].as_py(), want) for index in np.flatnonzero(wrong).tolist()}
        values[wrong] = 0
    if want.num_classes is not None:
        strange = ~missing & ~wrong & ((values != values // 1) | (values < 0) | (values >= want.num_classes))
        for index in np.flatnonzero(strange).tolist():
            value: int | float = values[index].item()
            shown = str(int(value)) if value == value // 1 else repr(value)
            problems[index] = f"{shown} is not a class from 0 to {want.num_classes - 1}"
    if want.dtype == "float32":
        with np.errstate(over="ignore", invalid="ignore"):
            values = values.astype(np.float32)
    return pa.array(values, ARROW_TYPES[want.dtype]), problems, missing


@dataclass(frozen=True)
class _Parsed:
    """Numbers, float64 or int64, and where there is none: because the value is missing, or because it is wrong."""

    values: np.ndarray
    missing: np.ndarray
    wrong: np.ndarray


def _parsed_once(array: pa.Array, want: Wanted) -> _Parsed:
    """The numbers in a column. Of text and of labels, each value is parsed once, however often it occurs."""
    kind = array.type
    if not (types.is_dictionary(kind) or types.is_string(kind) or types.is_binary(kind) or want.vocabulary is not None):
        return _parsed(array, want)
    encoded = array if types.is_dictionary(kind) else array.dictionary_encode()
    parsed = _parsed(_plain(encoded.dictionary), want)
    codes = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False)
    return _Parsed(
        np.append(parsed.values, 0)[codes],
        np.append(parsed.missing, True)[codes],
        np.append(parsed.wrong, False)[codes],
    )


def _parsed(array: pa.Array, want: Wanted) -> _Parsed:
    if want.vocabulary is not None:
        return _class_numbers(array, want.vocabulary)
    of_text = types.is_string(array.type)
    missing = notations.is_missing(array) if of_text else array.is_null()
    missing = missing.fill_null(True).to_numpy(zero_copy_only=False)
    if types.is_floating(array.type):
        missing = missing | np.isnan(array.to_numpy(zero_copy_only=False))
    numbers = _numbers(array, want)
    wrong = numbers.is_null().to_numpy(zero_copy_only=False) & ~missing
    values = np.array(numbers.fill_null(0).to_numpy(zero_copy_only=False))  # a copy, which may be changed
    if want.dtype == "float32":
        with np.errstate(invalid="ignore"):
            wrong |= ~missing & ~(np.abs(values) <= _FLOAT32)
            if want.weight:
                wrong |= ~missing & (values < 0)
    return _Parsed(values, missing, wrong)


def _numbers(array: pa.Array, want: Wanted) -> pa.Array:
    """Doubles or int64, null where a value is not such a number."""
    kind = array.type
    target = pa.float64() if want.dtype == "float32" else pa.int64()
    if want.part is not None:
        if types.is_temporal(kind) or types.is_string(kind) or types.is_integer(kind):
            return notations.part(notations.instants(array, want.time_format), want.part).cast(target)
        return pa.nulls(len(array), target)
    if types.is_string(kind):
        return notations.integers(array) if want.dtype == "int64" else notations.numbers(array, want.decimal_mark)
    if types.is_duration(kind):
        microseconds = array.cast(pa.duration("us")).cast(pa.int64()).cast(pa.float64(), safe=False)
        return pc.divide(microseconds, 1e6).cast(target)
    if types.is_uint64(kind) and want.dtype == "int64":
        return pc.if_else(pc.less(array, pa.scalar(_INT64, pa.uint64())), array, None).cast(pa.int64())
    if types.is_integer(kind) or types.is_boolean(kind):
        return array.cast(pa.int64() if types.is_boolean(kind) else kind).cast(target, safe=False)
    if types.is_decimal(kind) and want.dtype == "int64":
        whole = pc.floor(array)
        text = pc.if_else(pc.equal(whole, array), whole, None).cast(pa.decimal128(38, 0), safe=False).cast(pa.string())
        return notations.integers(text)
    if types.is_decimal(kind) or types.is_floating(kind):
        return _of_fractions(array.cast(pa.float64(), safe=False), target)
    return pa.nulls(len(array), target)


def _of_fractions(numbers: pa.Array, target: pa.DataType) -> pa.Array:
    if target == pa.float64():
        return numbers
    whole = pc.and_(pc.equal(pc.floor(numbers), numbers), pc.less(pc.abs(numbers), float(_INT64)))
    return pc.if_else(whole, numbers, None).cast(pa.int64())


def _class_numbers(array: pa.Array, vocabulary: Sequence[str] | Sequence[int]) -> _Parsed:
    class_number = _class_number(vocabulary)
    items = array.to_pylist()
    numbers: np.ndarray = np.zeros(len(items), np.int64)
    missing: np.ndarray = np.zeros(len(items), bool)
    wrong: np.ndarray = np.zeros(len(items), bool)
    markers = notations.is_missing(array).to_pylist() if types.is_string(array.type) else [False] * len(items)
    for index, item in enumerate(items):
        try:
            numbers[index] = class_number(item)
        except ValueError:
            missing[index] = item is None or item != item or bool(markers[index])
            wrong[index] = not missing[index]
    return _Parsed(numbers, missing, wrong)


def _texts(array: pa.Array, want: Wanted) -> tuple[pa.Array, dict[int, str], np.ndarray]:
    kind = array.type
    none: np.ndarray = np.zeros(len(array), bool)
    if types.is_integer(kind) or (types.is_decimal(kind) and kind.scale == 0):
        missing = array.is_null().to_numpy(zero_copy_only=False)
        array = array.cast(pa.string())
    elif types.is_string(kind) or types.is_binary(kind):
        missing = none
        if want.default is not None:
            blank = pc.equal(pc.ascii_trim_whitespace(array), "") if types.is_string(kind) else pc.equal(array, b"")
            array = pc.if_else(blank, None, array)
    else:
        wrong = {index: _problem(item, want) for index, item in enumerate(array.to_pylist())}
        return pa.array([b""] * len(array), pa.binary()), wrong, none
    array = array.cast(pa.binary())
    problems: dict[int, str] = {}
    if array.null_count:
        if want.default is None and not types.is_string(kind) and not types.is_binary(kind):
            problems = dict.fromkeys(np.flatnonzero(missing).tolist(), "is empty")
        array = array.fill_null(b"" if want.default is None else _text(want.default))
    return array, problems, missing


def _problem(item: Any, want: Wanted) -> str:
    """The reason why a value cannot be converted."""
    not_a_number = isinstance(item, float) and math.isnan(item)
    if item is None or not_a_number:
        return "is NaN" if not_a_number else "is empty"
    if isinstance(item, str | bytes) and not item.strip():
        return "is empty"
    convert = _conversion(want)
    try:
        convert(item)
    except ValueError as error:
        return str(error)
    return f"{item!r} is not a {'date' if want.part else 'number'} as the others"


def _conversion(want: Wanted) -> Callable[[Any], Any]:
    if want.vocabulary is not None:
        return _class_number(want.vocabulary)
    if want.weight:
        return _weight
    if want.part is not None:
        return lambda item: None
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
    shown = f"[{', '.join(map(str, vocabulary[:20]))}{', ...' * (len(vocabulary) > 20)}]"

    def class_number(item: Any) -> int:
        with contextlib.suppress(ValueError, KeyError):
            return numbers[kind(item)]
        value = item.decode(errors="replace") if isinstance(item, bytes) else item
        message = f"{value!r} is not in data.label_vocabulary={shown}"
        if {"no", "yes"} >= set(vocabulary) and str(value).lower() in ("false", "true"):
            message += f"; quote False and True, which YAML reads as booleans: {_QUOTED_BOOLEANS}"
        raise ValueError(message)

    return class_number


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
