"""Converts the columns of files to those of a prepared set, and finds the malformed rows."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from psrun.tables import notations
from psrun.tables.rows import Rows, codes_of

_INT64 = 2**63
_FLOAT32 = float(np.finfo(np.float32).max)
_SHOWN = 20  # values of a vocabulary in a message
_ARROW_TYPES = {"float32": pa.float32(), "int64": pa.int64(), "string": pa.binary()}
_KINDS = {"float32": "a number", "int64": "an integer", "string": "a string"}
_YAML_BOOLEANS = """; quote False and True, which YAML reads as booleans: 'data.label_vocabulary=["False","True"]'"""


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
        item = _ARROW_TYPES[self.dtype]
        if self.max_values is not None:
            return pa.list_(item)
        return item if self.width == 1 else pa.list_(item, self.width)


@dataclass(frozen=True)
class ColumnSpec:
    """How a column of a prepared set is read from a column of files.

    Attributes:
      column: its name in the file.
      dtype: float32, int64 or string; `width`: values per row.
      default: replaces a missing value; None: such a row is malformed, except for an empty string.
      nullable: whether missing numbers become NaN.
      decimal_mark, part, time_format: as in `feature_spec.FeatureSpec`.
      unit: of numbers with a decimal mark; empty for none.
      is_label: rows without it are left out, and are not malformed.
      num_classes: for a label, which must be in 0 to num_classes - 1.
      vocabulary: for a label, the valid values, all strings or all integers; converted to class numbers.
      weight: whether it is a weight, which must be 0 or more.
      max_values: for lists, the length to which they are truncated; None: rows have `width` values.
      keep: first or last: the values of longer lists that remain.
      separator: of the values of a list in a text; None: a text is one value.
      weights_of: for the weights of the values of a list, the name of that list.
    """

    column: str
    dtype: str
    width: int = 1
    default: float | int | str | None = None
    nullable: bool = False
    decimal_mark: str | None = None
    unit: str = ""
    part: str | None = None
    time_format: str | None = None
    is_label: bool = False
    num_classes: int | None = None
    vocabulary: tuple[str, ...] | tuple[int, ...] | None = None
    weight: bool = False
    max_values: int | None = None
    keep: str = "first"
    separator: str | None = None
    weights_of: str | None = None

    @property
    def prepared(self) -> Column:
        return Column(self.dtype, self.width, self.max_values)


@dataclass(frozen=True)
class Piece(Rows):
    """Rows of a file as a prepared set has them, without nulls. Columns of words may be dictionaries.

    Attributes:
      num_unlabeled: number of rows that were left out because they have no label.
      num_truncated: number of truncated lists, by name.
    """

    num_unlabeled: int = 0
    num_truncated: Mapping[str, int] = field(default_factory=dict)


class _Converted(NamedTuple):
    """Values without nulls: any value where a row is wrong. `lengths` are those of lists before they were truncated."""

    array: pa.Array
    wrong: dict[int, str]
    missing: np.ndarray
    lengths: np.ndarray | None = None


class _Numbers(NamedTuple):
    """Numbers, float64 or int64, and where there is none."""

    values: np.ndarray
    missing: np.ndarray
    wrong: np.ndarray


def convert(rows: Rows, specs: Mapping[str, ColumnSpec], *, keep: bool = False) -> Piece:
    """Converts rows to the columns of a prepared set.

    Args:
      keep: whether malformed rows stay, with any values.
    """
    if keep:
        rows = rows.complete()
    columns = {name: _converted(rows.batch.column(spec.column), spec) for name, spec in specs.items()}
    problems: dict[int, str] = {}
    unlabeled = np.zeros(rows.batch.num_rows, bool)
    for name, spec in specs.items():
        for index, problem in columns[name].wrong.items():
            problems.setdefault(index, f"column {spec.column}: {problem}")
        if spec.is_label:
            unlabeled |= columns[name].missing
    for name, spec in specs.items():
        if spec.weights_of is not None:
            weights, values = (columns[each].lengths for each in (name, spec.weights_of))
            assert weights is not None
            assert values is not None
            for index in np.flatnonzero(weights != values).tolist():
                problem = f"has {weights[index]} weights for the {values[index]} values of {spec.weights_of}"
                problems.setdefault(index, f"column {spec.column}: {problem}")
    bad = [*rows.bad, *((int(rows.places[index]), problem) for index, problem in problems.items())]
    good = np.ones(rows.batch.num_rows, bool)
    if not keep:
        good[list(problems)] = False
        good &= ~unlabeled
    truncated = {
        name: int((column.lengths[good] > (specs[name].max_values or 0)).sum())
        for name, column in columns.items()
        if column.lengths is not None and specs[name].weights_of is None
    }
    batch = pa.record_batch([each.array for each in columns.values()], list(columns))
    places = rows.places
    if not good.all():
        batch = batch.filter(pa.array(good))
        places = places[good]
    unique = {place: problem for place, problem in reversed(bad)}  # of a row that is malformed twice, the first
    return Piece(batch, places, sorted(unique.items()), rows.number, int(unlabeled.sum()), truncated)


def converted_value(value: Any, dtype: str) -> Any:
    """A value as a column of that type has it. Raises ValueError if it cannot be converted."""
    try:
        array = pa.array([value])
    except (pa.ArrowException, OverflowError):
        array = pa.array([str(value)])
    converted = _scalars(array, ColumnSpec("", dtype))
    if converted.wrong:
        raise ValueError(converted.wrong[0])
    return converted.array[0].as_py()


def plain(array: pa.Array) -> pa.Array:
    """A column without dictionaries, and without the types of which there are several for one thing."""
    kind = array.type
    if types.is_dictionary(kind):
        return plain(array.dictionary_decode())
    if types.is_null(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return array.cast(pa.string())
    if types.is_large_binary(kind) or types.is_binary_view(kind) or types.is_fixed_size_binary(kind):
        return plain(array.cast(pa.binary()))
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
    lengths = _lengths(lists)
    values = plain(lists.flatten())
    if not is_list(values.type):
        return lengths, values
    inner, values = flattened(values)
    ends = np.concatenate([[0], np.cumsum(inner)])[np.concatenate([[0], np.cumsum(lengths)])]
    return np.diff(ends), values


def _lengths(lists: pa.Array) -> np.ndarray:
    return pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)


def _converted(array: pa.Array, spec: ColumnSpec) -> _Converted:
    is_scalar = spec.max_values is None and spec.width == 1
    if is_scalar and types.is_dictionary(array.type):
        return _scalars(array, spec)
    array = plain(array)
    if spec.max_values is not None:
        return _list(array, spec)
    if is_list(array.type):
        return _wide(array, spec)
    return _scalars(array, spec) if is_scalar else _wide(pa.FixedSizeListArray.from_arrays(array, 1), spec)


def _wide(array: pa.Array, spec: ColumnSpec) -> _Converted:
    """Rows of `width` values; an empty list is as many missing values."""
    width = spec.width
    lengths, flat = flattened(array)
    wrong = {
        index: f"has {lengths[index]} values instead of {width}"
        for index in np.flatnonzero((lengths != width) & (lengths != 0)).tolist()
    }
    if (lengths != width).any():
        starts = np.cumsum(lengths) - lengths
        index = starts[:, np.newaxis] + np.arange(width)
        flat = flat.take(pa.array(index.ravel(), mask=np.repeat(lengths != width, width)))
    converted = _scalars(flat, spec)
    for index, problem in converted.wrong.items():
        wrong.setdefault(index // width, problem)
    values = converted.array if width == 1 else pa.FixedSizeListArray.from_arrays(converted.array, width)
    missing: Any = converted.missing.reshape(-1, width).any(axis=1)
    return _Converted(values, wrong, missing)


def _list(array: pa.Array, spec: ColumnSpec) -> _Converted:
    """Lists, truncated. A missing value and an empty text are empty lists, other values lists of one."""
    array = _lists(array, spec.separator)
    lengths = _lengths(array)
    kept = np.minimum(lengths, spec.max_values or 0)
    values = array.flatten()
    if (kept < lengths).any():
        values = values.take(pa.array(_places(lengths, kept, spec.keep)))
    converted = _scalars(plain(values), replace(spec, max_values=None))
    row_of = np.repeat(np.arange(len(kept)), kept) if converted.wrong else kept
    wrong: dict[int, str] = {}
    for index, problem in converted.wrong.items():
        wrong.setdefault(int(row_of[index]), problem)
    offsets = np.concatenate([[0], np.cumsum(kept)]).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), converted.array)
    return _Converted(lists, wrong, np.zeros(len(kept), bool), lengths)


def _places(lengths: np.ndarray, kept: np.ndarray, keep: str) -> np.ndarray:
    """The places of the first or last `kept` values of each list among the values of all lists."""
    begins = np.cumsum(lengths) - lengths
    if keep == "last":
        begins = begins + lengths - kept
    number = np.arange(kept.sum()) - np.repeat(np.cumsum(kept) - kept, kept)
    return np.repeat(begins, kept) + number


def _lists(array: pa.Array, separator: str | None) -> pa.Array:
    if is_list(array.type):
        texts = plain(array.flatten())
        lengths = _lengths(array)
        if separator is None or not types.is_string(texts.type) or (lengths > 1).any():
            return array
        array = texts.take(pa.array(np.cumsum(lengths) - lengths, mask=lengths == 0))  # lists of one text each
    if types.is_string(array.type):
        blank = pc.equal(pc.utf8_trim_whitespace(array), "").fill_null(True)
        array = pc.if_else(blank, None, array)
        if separator is not None:
            return pc.split_pattern(array, separator)
    present = ~array.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(present)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), array.filter(pa.array(present)))


def _scalars(array: pa.Array, spec: ColumnSpec) -> _Converted:
    if spec.dtype == "string" and spec.vocabulary is None:
        return _texts_once(array, spec)
    values, missing, wrong = _numbers_once(array, spec)
    if missing.any():
        if spec.default is not None:
            values[missing] = converted_value(spec.default, spec.dtype)
        elif spec.nullable:
            values[missing] = math.nan
        elif not spec.is_label:
            wrong = wrong | missing
    problems: dict[int, str] = {}
    if wrong.any():
        problems = {index: _problem(array[index].as_py(), spec) for index in np.flatnonzero(wrong).tolist()}
        values[wrong] = 0
    if spec.num_classes is not None:
        strange = ~missing & ~wrong & ((values != values // 1) | (values < 0) | (values >= spec.num_classes))
        for index in np.flatnonzero(strange).tolist():
            value: int | float = values[index].item()
            shown = str(int(value)) if value == value // 1 else repr(value)
            problems[index] = f"{shown} is not a class from 0 to {spec.num_classes - 1}"
    if spec.dtype == "float32":
        with np.errstate(over="ignore", invalid="ignore"):
            values = values.astype(np.float32)
    return _Converted(pa.array(values, _ARROW_TYPES[spec.dtype]), problems, missing)


def _numbers_once(array: pa.Array, spec: ColumnSpec) -> _Numbers:
    """The numbers in a column. Of text, each value is parsed once, however often it occurs."""
    if types.is_string(array.type):
        array = array.dictionary_encode()
    if not types.is_dictionary(array.type):
        return _numbers(array, spec)
    values, missing, wrong = _numbers(plain(array.dictionary), spec)
    codes = codes_of(array)
    has_missing = array.null_count > 0 or missing.any()
    missing_rows = np.append(missing, True)[codes] if has_missing else np.zeros(len(codes), bool)
    wrong_rows = np.append(wrong, False)[codes] if wrong.any() else np.zeros(len(codes), bool)
    return _Numbers(np.append(values, 0)[codes], missing_rows, wrong_rows)


def _texts_once(array: pa.Array, spec: ColumnSpec) -> _Converted:
    """The texts in a column. A dictionary of words without nulls stays one: it is shorter than the rows."""
    kind = array.type
    if not types.is_dictionary(kind) or not types.is_string(kind.value_type) or array.null_count:
        return _texts(plain(array), spec)
    words = _texts(array.dictionary, spec)
    return words._replace(
        array=pa.DictionaryArray.from_arrays(array.indices, words.array), missing=np.zeros(len(array), bool)
    )


def _numbers(array: pa.Array, spec: ColumnSpec) -> _Numbers:
    is_text = types.is_string(array.type)
    absent = notations.is_missing(array) if is_text else array.is_null(nan_is_null=True)
    numbers = _arrow_numbers(array, spec) if spec.vocabulary is None else _class_numbers(array, spec.vocabulary)
    is_number = numbers.is_valid().to_numpy(zero_copy_only=False)
    missing = absent.to_numpy(zero_copy_only=False)
    if spec.vocabulary is not None:
        missing = missing & ~is_number  # a class may be named None
    wrong = ~is_number & ~missing
    values = np.array(numbers.fill_null(0).to_numpy(zero_copy_only=False))  # a copy, which may be changed
    if spec.dtype == "float32":
        with np.errstate(invalid="ignore"):
            wrong |= ~missing & ~(np.abs(values) <= _FLOAT32)
            if spec.weight:
                wrong |= ~missing & (values < 0)
    return _Numbers(values, missing, wrong)


def _arrow_numbers(array: pa.Array, spec: ColumnSpec) -> pa.Array:
    """Doubles or int64, null where a value is not such a number."""
    kind = array.type
    target = pa.float64() if spec.dtype == "float32" else pa.int64()
    if spec.part is not None:
        if types.is_temporal(kind) or types.is_string(kind) or types.is_integer(kind):
            return notations.part(notations.instants(array, spec.time_format), spec.part).cast(target)
        return pa.nulls(len(array), target)
    if types.is_string(kind):
        return _numbers_of_text(array, spec)
    if types.is_duration(kind):
        microseconds = array.cast(pa.duration("us")).cast(pa.int64()).cast(pa.float64(), safe=False)
        return pc.divide(microseconds, 1e6).cast(target)
    if types.is_uint64(kind) and spec.dtype == "int64":
        return pc.if_else(pc.less(array, pa.scalar(_INT64, pa.uint64())), array, None).cast(pa.int64())
    if types.is_integer(kind) or types.is_boolean(kind):
        return array.cast(pa.int64() if types.is_boolean(kind) else kind).cast(target, safe=False)
    if types.is_decimal(kind) and spec.dtype == "int64":
        whole = pc.floor(array)
        text = pc.if_else(pc.equal(whole, array), whole, None).cast(pa.decimal128(38, 0), safe=False).cast(pa.string())
        return notations.integers(text)
    if not types.is_decimal(kind) and not types.is_floating(kind):
        return pa.nulls(len(array), target)
    numbers = array.cast(pa.float64(), safe=False)
    if spec.dtype == "float32":
        return numbers
    is_whole = pc.and_(pc.equal(pc.floor(numbers), numbers), pc.less(pc.abs(numbers), float(_INT64)))
    return pc.if_else(is_whole, numbers, None).cast(pa.int64())


def _numbers_of_text(array: pa.StringArray, spec: ColumnSpec) -> pa.Array:
    if spec.dtype == "int64":
        return notations.integers(array)
    return notations.numbers(array, spec.decimal_mark, spec.unit)


def _class_numbers(array: pa.Array, vocabulary: Sequence[str] | Sequence[int]) -> pa.Array:
    is_text = isinstance(vocabulary[0], str)
    spec = ColumnSpec("", "string" if is_text else "int64")
    values = _texts(array, spec).array if is_text else _arrow_numbers(array, spec)
    known = pa.array(vocabulary).cast(values.type)
    return pc.index_in(values, value_set=known).cast(pa.int64())


def _texts(array: pa.Array, spec: ColumnSpec) -> _Converted:
    kind = array.type
    missing: np.ndarray = np.zeros(len(array), bool)
    if types.is_integer(kind) or (types.is_decimal(kind) and kind.scale == 0):
        missing = array.is_null().to_numpy(zero_copy_only=False)
        array = array.cast(pa.string())
    elif not types.is_string(kind) and not types.is_binary(kind):
        wrong = {index: _problem(item, spec) for index, item in enumerate(array.to_pylist())}
        return _Converted(pa.array([b""] * len(array), pa.binary()), wrong, missing)
    elif spec.default is not None:
        blank = pc.equal(pc.ascii_trim_whitespace(array), "") if types.is_string(kind) else pc.equal(array, b"")
        array = pc.if_else(blank, None, array)
    problems = {}
    if spec.default is None and missing.any():
        problems = dict.fromkeys(np.flatnonzero(missing).tolist(), "is empty")
    filler = b"" if spec.default is None else converted_value(spec.default, "string")
    return _Converted(array.cast(pa.binary()).fill_null(filler), problems, missing)


def _problem(item: Any, spec: ColumnSpec) -> str:
    """The reason why a value cannot be converted."""
    if item is None or (isinstance(item, str | bytes) and not item.strip()):
        return "is empty"
    if item != item:
        return "is NaN"
    if spec.vocabulary is not None:
        return _unknown_class(item, spec.vocabulary)
    if spec.part is not None:
        return f"{item!r} is not a date as the others"
    if isinstance(item, str) and spec.dtype == "float32" and (problem := _other_notation(item, spec)):
        return problem
    problem = f"is not {_KINDS[spec.dtype]}"
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        number = float(item)
        if spec.weight and number < 0:
            problem = "is negative; a weight must be 0 or more"
        elif spec.dtype == "float32" and abs(number) > _FLOAT32:
            problem = "is too large for a float32, or infinite"
        elif spec.dtype == "int64" and abs(number) >= _INT64:
            problem = "is too large for an int64"
    hint = "; name such classes with data.label_vocabulary=[...]" if spec.num_classes is not None else ""
    return f"{item!r} {problem}{hint}"


def _other_notation(item: str, spec: ColumnSpec) -> str:
    """The problem of a number that is written in another way than the column has; empty for other text."""
    text = pa.array([item])
    if spec.decimal_mark is not None:
        unit = notations.units(text, spec.decimal_mark)[0].as_py()
        if unit is not None and unit != spec.unit:
            has = f"the unit {unit}" if unit else "no unit"
            expected = f"have {spec.unit}" if spec.unit else "have none"
            return f"{item!r} has {has}, but the training files {expected} (the key unit in data.features)"
    for mark in (".", ","):
        if mark != spec.decimal_mark and notations.units(text, mark).null_count == 0:
            plain = notations.numbers(text).null_count == 0
            if spec.decimal_mark is None and not plain:
                return f"{item!r} is no plain number; data.decimal_mark says how such numbers are written"
            if spec.decimal_mark is not None:
                return f"{item!r} does not fit decimal_mark={spec.decimal_mark}"
    return ""


def _unknown_class(item: Any, vocabulary: Sequence[str] | Sequence[int]) -> str:
    value = item.decode(errors="replace") if isinstance(item, bytes) else item
    shown = f"[{', '.join(map(str, vocabulary[:_SHOWN]))}{', ...' * (len(vocabulary) > _SHOWN)}]"
    is_boolean = {"no", "yes"} >= set(vocabulary) and str(value).lower() in ("false", "true")
    return f"{value!r} is not in data.label_vocabulary={shown}{_YAML_BOOLEANS * is_boolean}"
