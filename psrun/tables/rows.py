"""Rows of files as record batches, and how to read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from pyarrow import types

TAB = "\t"
TEXT = {"csv": ",", "tsv": TAB}  # and their default delimiters


@dataclass(frozen=True)
class LayoutKeys:
    """The keys of `data` that say how files are read, as `psrun.tables.table.Table` describes them."""

    format: str | None = None
    delimiter: str | None = None
    columns: Sequence[str] | None = None
    quoted: bool = True
    encoding: str = "utf-8"


@dataclass(frozen=True)
class Layout:
    """How to read files.

    Attributes:
      delimiter: between the fields of text; `quoted`: whether fields may be in double quotes.
      columns: column names of text; None: the first row of each file is the header.
      encoding: of text, as Python names it; a byte order mark at the start of UTF-8 is skipped.
      folders: of datasets, in which folders such as year=2026 are columns of their files.
    """

    format: str
    delimiter: str = ","
    quoted: bool = True
    columns: tuple[str, ...] | None = None
    encoding: str = "utf-8"
    folders: tuple[str, ...] = ()

    @property
    def is_text(self) -> bool:
        return self.format in TEXT


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of a file.

    Attributes:
      batch: the rows that are well formed; columns of text files are dictionaries of strings, without nulls.
      places: of these rows among all rows of the file, from 0.
      bad: the malformed rows before the last of these rows: place and problem of each.
      number: of the row at a place, as a person counts rows: from 1, with header and blank lines.
    """

    batch: pa.RecordBatch
    places: np.ndarray
    bad: Sequence[tuple[int, str]] = ()
    number: Callable[[int], int] = field(default=lambda place: place + 1)

    @property
    def end(self) -> int:
        """The place after all of these rows, also of the malformed ones."""
        return 1 + max([*self.places[-1:].tolist(), *(place for place, _ in self.bad[-1:])], default=-1)

    @property
    def problems(self) -> list[tuple[int, str]]:
        """The malformed rows by their numbers."""
        return [(self.number(place), problem) for place, problem in self.bad]

    def since(self, place: int) -> Rows:
        """The rows from a place on."""
        first = int(np.searchsorted(self.places, place))
        bad = [each for each in self.bad if each[0] >= place]
        return replace(self, batch=self.batch.slice(first), places=self.places[first:], bad=bad)

    def complete(self) -> Rows:
        """The rows with those that could not be split into fields, as nulls."""
        lost = np.setdiff1d(np.array([place for place, _ in self.bad], np.int64), self.places)
        if not len(lost):
            return self
        places = np.sort(np.concatenate([self.places, lost]))
        index = pa.array(np.searchsorted(self.places, places), mask=np.isin(places, lost))
        return replace(self, batch=self.batch.take(index), places=places)


def decoded(column: pa.Array) -> pa.Array:
    """A column without a dictionary."""
    return column.dictionary_decode() if types.is_dictionary(column.type) else column


def codes_of(column: pa.Array) -> np.ndarray:
    """A number for each value: its place in the dictionary, or in the order of a column without one; the next for null.

    Values have one number if the dictionary has each once.
    """
    encoded = column if types.is_dictionary(column.type) else column.dictionary_encode()
    if not encoded.indices.null_count:
        return encoded.indices.to_numpy().astype(np.int64)
    places = encoded.indices.cast(pa.int64())  # a narrower type need not hold the number for null
    return places.fill_null(len(encoded.dictionary)).to_numpy()
