"""Lists of values, one per row, in a compact form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

COMBINERS = ("sum", "mean", "sqrtn", "max")  # of the rows of the values of a list


def weights_name(feature: str) -> str:
    """The name by which batches have the weights of the values of a list feature."""
    return f"{feature}_weights"


def length_name(feature: str) -> str:
    """The name of the lengths of a list feature among the inputs of an exported model, which are padded."""
    return f"{feature}_length"


@dataclass(frozen=True)
class Lists:
    """A list per row, of any length.

    Attributes:
      values: of all rows, one after the other; numbers or objects, one axis.
      splits: where the list of each row begins in `values`, and the end of the last one; int64, shape (rows + 1,).
    """

    values: np.ndarray
    splits: np.ndarray

    def __len__(self) -> int:
        return len(self.splits) - 1

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.splits)

    @property
    def width(self) -> int | None:
        """The number of values of each row; None if rows differ, if there are none, or if all are empty."""
        lengths = self.lengths
        return int(lengths[0]) if lengths.any() and (lengths == lengths[0]).all() else None

    @property
    def row_of(self) -> np.ndarray:
        """The row of each value."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def where(self, rows: np.ndarray) -> Lists:
        """The rows for which `rows`, bool, is true."""
        return of_lengths(self.values[np.repeat(rows, self.lengths)], self.lengths[rows])

    def part(self, first: int, last: int) -> Lists:
        """The rows from `first` to before `last`; fewer if there are fewer."""
        splits = self.splits[first : last + 1]
        return Lists(self.values[splits[0] : splits[-1]], splits - splits[0])

    def truncated(self, max_values: int) -> Lists:
        """The first `max_values` values of each row."""
        place = np.arange(len(self.values)) - np.repeat(self.splits[:-1], self.lengths)
        return of_lengths(self.values[place < max_values], np.minimum(self.lengths, max_values))

    def followed_by(self, other: Lists) -> Lists:
        filled = [each.values for each in (self, other) if len(each.values)]  # empty ones may have another type
        values = np.concatenate(filled) if filled else other.values
        return Lists(values, np.concatenate([self.splits, self.splits[-1] + other.splits[1:]]))

    def objects(self) -> np.ndarray:
        """A Python list per row."""
        return objects([part.tolist() for part in np.split(self.values, self.splits[1:-1])] if len(self) else [])


def objects(values: Sequence[Any]) -> np.ndarray:
    """An array of these objects: NumPy would convert lists of equal length to an array with two axes."""
    array: np.ndarray = np.empty(len(values), object)
    for index, value in enumerate(values):
        array[index] = value
    return array


def of_lengths(values: np.ndarray, lengths: np.ndarray) -> Lists:
    return Lists(values, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


def empty(count: int) -> Lists:
    """Rows without values."""
    return Lists(np.zeros(0, object), np.zeros(count + 1, np.int64))


def of_rows(values: np.ndarray | Lists, separator: str | None) -> Lists:
    """The lists in a column of a file. A missing value and an empty text are empty lists, other values lists of one.

    Args:
      separator: of the values in a text; None: a text is one value.
    """
    if isinstance(values, Lists):
        return values if separator is None else _of_objects(values.objects().tolist(), separator)
    if values.ndim > 1:
        flat = values.reshape(len(values), -1)
        if separator is not None and flat.shape[1] == 1 and flat.dtype.kind in "OSU":  # lists of one text each
            return _of_objects(flat[:, 0].tolist(), separator)
        return of_lengths(flat.ravel(), np.full(len(flat), flat.shape[1]))
    if values.dtype.kind in "iub":
        return of_lengths(values, np.ones(len(values), np.int64))
    return _of_objects(values.tolist(), separator)


def _of_objects(values: Sequence[Any], separator: str | None) -> Lists:
    rows = [_list(value, separator) for value in values]
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return of_lengths(objects([value for row in rows for value in row]), lengths)


def _list(value: Any, separator: str | None) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        if separator is None or len(value) != 1 or not isinstance(value[0], str | bytes):
            return value
        (value,) = value
    if isinstance(value, np.ndarray):
        return value.ravel().tolist()
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ()
    if not isinstance(value, str | bytes):
        return (value,)
    if not value.strip():
        return ()
    if separator is None:
        return (value,)
    return value.split(separator) if isinstance(value, str) else value.split(separator.encode())
