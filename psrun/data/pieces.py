"""Converts rows of files to the columns of a prepared set, without malformed rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from psrun.data import lists
from psrun.data.columns import Rows, Wanted, converted
from psrun.data.lists import Lists


@dataclass(frozen=True)
class Piece:
    """Some rows of a file.

    Attributes:
      columns: by name, of shape (rows, width), or lists.
      bad: skipped rows: number in the file, from 1, and problem of each.
      num_truncated: number of truncated lists, by name.
    """

    columns: Mapping[str, np.ndarray | Lists]
    bad: Sequence[tuple[int, str]] = ()
    num_truncated: Mapping[str, int] = field(default_factory=dict)


def checked(rows: Rows, wanted: Mapping[str, Wanted]) -> Piece:
    """Converts rows to the required columns, without malformed rows."""
    arrays: dict[str, np.ndarray | Lists] = {}
    problems, lengths = dict[int, str](), dict[str, np.ndarray]()
    for name, want in wanted.items():
        values = rows.columns[want.column]
        if want.max_values is None:
            arrays[name], wrong = converted(values.objects() if isinstance(values, Lists) else values, want)
        else:
            arrays[name], wrong, lengths[name] = _lists(values, want, want.max_values)
        for index, problem in wrong.items():
            problems.setdefault(index, f"column {want.column}: {problem}")
    for name, want in wanted.items():
        if want.weights_of is not None:
            for index, problem in _other_lengths(lengths[name], lengths[want.weights_of], want.weights_of):
                problems.setdefault(index, f"column {want.column}: {problem}")
    good: np.ndarray = np.ones(len(rows.numbers), bool)
    good[list(problems)] = False
    bad = sorted([*rows.bad, *((rows.numbers[index], problem) for index, problem in problems.items())])
    columns = {name: each.where(good) if isinstance(each, Lists) else each[good] for name, each in arrays.items()}
    truncated = {
        name: int((length[good] > (wanted[name].max_values or 0)).sum())
        for name, length in lengths.items()
        if wanted[name].weights_of is None
    }
    return Piece(columns, bad, truncated)


def _lists(values: np.ndarray | Lists, want: Wanted, max_values: int) -> tuple[Lists, dict[int, str], np.ndarray]:
    """The truncated lists, the problems of rows by index, and the number of values of each row in the file."""
    whole = lists.of_rows(values, want.separator)
    truncated = whole.truncated(max_values)
    array, wrong = converted(truncated.values, replace(want, max_values=None))
    rows: dict[int, str] = {}
    if wrong:
        row_of = truncated.row_of.tolist()
        for index, problem in wrong.items():
            rows.setdefault(row_of[index], problem)
    return Lists(array[:, 0], truncated.splits), rows, whole.lengths


def _other_lengths(weights: np.ndarray, values: np.ndarray, name: str) -> list[tuple[int, str]]:
    """The problems of rows, by index, that do not have one weight per value."""
    return [
        (index, f"has {weights[index]} weights for the {values[index]} values of {name}")
        for index in np.flatnonzero(weights != values).tolist()
    ]
