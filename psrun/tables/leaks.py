"""Columns that decide a label by themselves: rows with the same value of the column have the same label."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from psrun.tables import notations
from psrun.tables.columns import plain
from psrun.tables.contents import Nothing, content_of
from psrun.tables.notations import NO_NOTATION
from psrun.tables.rows import codes_of, decoded

_MOST_VALUES = 10_000  # different values of a column; a column with more is only compared with the label itself
_HEAD = 1000  # rows that rule out most columns
_CHANCE = 1e-6  # of a column that does not depend on the label
_COPIED = 10  # different labels of a copy: one of 10! orders is less likely than _CHANCE


class Leaks:
    """Finds the columns that decide labels, from blocks of rows. A missing value is a value of its column."""

    def __init__(self, schema: pa.Schema, labels: Sequence[str]) -> None:
        names = [each.name for each in schema if _has_values(each.type)]
        self._columns: dict[str, dict[str, _Column]] = {}  # by label, those that may decide it
        for label in labels:
            if label in names:
                self._columns[label] = {name: _Column() for name in names if name not in labels}

    def add(self, batch: pa.RecordBatch) -> None:
        for label, columns in self._columns.items():
            if columns:
                _add(batch, label, columns)

    def labels_by_column(self) -> dict[str, list[str]]:
        """The labels that each column decides, but for those that it may decide by chance."""
        found: dict[str, list[str]] = {}
        for label, columns in self._columns.items():
            for name, column in columns.items():
                if column.decides:
                    found.setdefault(name, []).append(label)
        return found


def _add(batch: pa.RecordBatch, label: str, columns: dict[str, _Column]) -> None:
    """Adds the rows with a label to the columns, and removes those that do not decide it."""
    labels = decoded(batch.column(label))
    labeled = pc.invert(_is_unlabeled(plain(labels)))
    labels = labels.filter(labeled).dictionary_encode()
    if not len(labels):
        return
    for name, column in list(columns.items()):
        values = batch.column(name)
        if len(labels) < len(values):
            values = values.filter(labeled)
        if not column.add(values, labels):
            del columns[name]


class _Pairs(NamedTuple):
    """Values of a column, the label of each, and the number of rows that have both."""

    values: pa.Array
    labels: pa.Array
    counts: np.ndarray

    def merged(self) -> _Pairs | None:
        """The different values; None if one has several labels, or there are too many."""
        codes = codes_of(self.values)
        labels = codes_of(self.labels)
        places = np.full(int(codes.max()) + 1, -1)  # of each value, one of its places
        places[codes] = np.arange(len(codes))
        if (labels[places[codes]] != labels).any():
            return None
        different = places[places >= 0]
        if len(different) > _MOST_VALUES:
            return None
        counts = np.bincount(codes, self.counts)[places >= 0]
        return _Pairs(decoded(self.values.take(different)), decoded(self.labels.take(different)), counts)


class _Column:
    """A column beside a label.

    Attributes:
      is_function: whether each value has one label.
      is_copy: whether the values are the labels.
    """

    def __init__(self) -> None:
        self.is_function = True
        self.is_copy = True
        self._pairs: _Pairs | None = None

    def add(self, values: pa.Array, labels: pa.DictionaryArray) -> bool:
        """Adds rows, and returns whether the column may still decide the label."""
        if self.is_copy:
            self.is_copy = _equal(values[:_HEAD], labels[:_HEAD]) and _equal(values, labels)
        if self.is_function:
            self._pairs = self._with(values, labels)
            self.is_function = self._pairs is not None
        return self.is_function or self.is_copy

    def _with(self, values: pa.Array, labels: pa.DictionaryArray) -> _Pairs | None:
        counts: np.ndarray = np.ones(len(values), np.int64)
        if _Pairs(values[:_HEAD], labels[:_HEAD], counts[:_HEAD]).merged() is None:
            return None
        added = _Pairs(values, labels, counts).merged()
        known = self._pairs
        if added is None or known is None:
            return added
        return _Pairs(
            pa.concat_arrays([known.values, added.values]),
            pa.concat_arrays([known.labels, added.labels]),
            np.concatenate([known.counts, added.counts]),
        ).merged()

    @property
    def decides(self) -> bool:
        """Whether the column decides the label, and a column that does not depend on it would not do so by chance."""
        if self._pairs is None:
            return self.is_copy and not self.is_function  # with more values than are kept
        counts = self._pairs.counts
        if self.is_copy and len(counts) >= _COPIED:
            return True
        num_repeated = counts.sum() - len(counts)  # rows that have the label of an earlier row with their value
        largest_share = np.bincount(codes_of(self._pairs.labels), counts).max() / counts.sum()
        return num_repeated * math.log(largest_share) < math.log(_CHANCE)


def _has_values(kind: pa.DataType) -> bool:
    """Whether values of a type are numbers, words or times."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return not isinstance(content_of(kind, NO_NOTATION), Nothing)


def _is_unlabeled(labels: pa.Array) -> pa.BooleanArray:
    """Whether each label is missing in a column of any kind; "none" may be a class."""
    if not pa.types.is_string(labels.type):
        return labels.is_null(nan_is_null=True)
    words = pc.utf8_lower(pc.utf8_trim_whitespace(labels))
    unsure = pc.is_in(words, pa.array(sorted(notations.UNSURE)))
    return pc.and_not(notations.is_missing(labels), unsure)


def _equal(values: pa.Array, labels: pa.Array) -> bool:
    return decoded(values).equals(decoded(labels))
