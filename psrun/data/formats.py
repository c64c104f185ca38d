"""Rows of files in several formats: CSV, TFRecord, Parquet and NumPy's .npz."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
import itertools
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from psrun.data import files, records
from psrun.data.columns import Rows, objects
from psrun.errors import ConfigError, DataError, Problem

_AT_ONCE = 1000
_ENDINGS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".parquet": "parquet",
    ".npz": "npz",
}


@dataclass(frozen=True)
class Layout:
    """How files are to be read.

    Attributes:
      delimiter: between the fields of text; `quoted`: whether fields may stand in double quotes.
      columns: names of the fields of text; None: the first row of each file says them.
    """

    format: str
    delimiter: str = ","
    quoted: bool = True
    columns: tuple[str, ...] | None = None


def of(names: Sequence[str]) -> str:
    """The format of files, by the endings of their names.

    Raises:
      ConfigError: a name ends otherwise, or not all in the same way.
    """
    known: dict[str, str] = {}
    for name in names:
        plain = files.SHARD.sub("", name).removesuffix(".gz").removesuffix(".gzip")
        ending = next((each for each in _ENDINGS if plain.endswith(each)), None)
        if ending is None:
            message = f"cannot be told from the name {name}; give it: data.format={'|'.join(FORMATS)}"
            raise ConfigError([Problem("data.format", message)])
        known.setdefault(_ENDINGS[ending], name)
    if len(known) > 1:
        told = " and ".join(f"{name} ({form})" for form, name in known.items())
        raise ConfigError([Problem("data.path", f"all files must be of one format; here are {told}")])
    return next(iter(known))


def columns(name: str, layout: Layout) -> tuple[str, ...] | None:
    """The names of a file's columns; None where each record says them for itself.

    Raises:
      DataError: the file cannot be read, or two columns have one name.
    """
    with _told(name):
        found = FORMATS[layout.format][0](name, layout)
    twice = sorted({column for column in found or () if (found or ()).count(column) > 1})
    if twice:
        raise DataError(f"{name} has more than one column {', '.join(map(repr, twice))}")
    return found


def rows(name: str, wanted: Sequence[str], layout: Layout) -> Iterator[Rows]:
    """The rows of a file, in order, some at a time.

    Raises:
      DataError: it cannot be read to its end.
    """
    with _told(name):
        yield from FORMATS[layout.format][1](name, wanted, layout)


def _told(name: str) -> contextlib.AbstractContextManager[None]:
    return files.told(name, "cannot be read to its end", ValueError, zipfile.BadZipFile)


@contextlib.contextmanager
def _fields(name: str, layout: Layout) -> Iterator[Iterator[tuple[int, list[str]]]]:
    """The rows of a text that are not blank, with their numbers. Bytes that are no UTF-8 stay what they are."""
    with files.opened(name) as stream:
        text = io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="")
        quoting: Any = csv.QUOTE_MINIMAL if layout.quoted else csv.QUOTE_NONE
        yield _numbered(name, csv.reader(text, delimiter=layout.delimiter, quoting=quoting, strict=True))


def _numbered(name: str, reader: Iterator[list[str]]) -> Iterator[tuple[int, list[str]]]:
    for number in itertools.count(1):
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(f"{name}, row {number} cannot be read: {error}") from error
        if row:
            yield number, row


def _text_columns(name: str, layout: Layout) -> tuple[str, ...]:
    if layout.columns is not None:
        return layout.columns
    with _fields(name, layout) as lines:
        return tuple(next(lines, (0, []))[1])


def _text_rows(name: str, wanted: Sequence[str], layout: Layout) -> Iterator[Rows]:
    names = _text_columns(name, layout)
    places = {column: names.index(column) for column in wanted}
    with _fields(name, layout) as lines:
        if layout.columns is None:
            next(lines, None)
        while part := list(itertools.islice(lines, _AT_ONCE)):
            good = [(number, row) for number, row in part if len(row) == len(names)]
            bad = [
                (number, f"{len(row)} fields instead of {len(names)}") for number, row in part if len(row) != len(names)
            ]
            fields = {column: objects([row[place] for _, row in good]) for column, place in places.items()}
            yield Rows([number for number, _ in good], fields, bad)


def _parquet() -> Any:
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError([Problem("data", "Parquet files need the parquet extra: pip install 'psrun[parquet]'")])
    from pyarrow import parquet  # an optional extra: only this format needs it

    return parquet


def _parquet_columns(name: str, layout: Layout) -> tuple[str, ...]:
    parquet = _parquet()
    with files.opened(name) as stream:
        return tuple(parquet.ParquetFile(stream).schema_arrow.names)


def _parquet_rows(name: str, wanted: Sequence[str], layout: Layout) -> Iterator[Rows]:
    parquet, first = _parquet(), 1
    with files.opened(name) as stream:
        file = parquet.ParquetFile(stream, page_checksum_verification=True)
        for batch in file.iter_batches(_AT_ONCE, columns=list(wanted)):
            arrays = {column: _array(batch.column(column)) for column in wanted}
            yield Rows(range(first, first + batch.num_rows), arrays)
            first += batch.num_rows


def _array(column: Any) -> np.ndarray:
    """A column of Parquet; a string that is null is empty, as in text."""
    from pyarrow import compute, types

    kind = column.type
    if types.is_dictionary(kind):
        return _array(column.dictionary_decode())
    if types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        return column.fill_null("").to_numpy(zero_copy_only=False)
    numeric = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    if numeric and not column.null_count:
        return column.to_numpy(zero_copy_only=False)
    if (types.is_list(kind) or types.is_fixed_size_list(kind)) and len(column) and not column.null_count:
        inner, widths = column.flatten(), compute.list_value_length(column).to_numpy(zero_copy_only=False)
        if not inner.null_count and (widths == widths[0]).all():
            return _array(inner).reshape(len(column), int(widths[0]))
    return objects(column.to_pylist())


def _npz_columns(name: str, layout: Layout) -> tuple[str, ...]:
    with files.opened(name) as stream, np.load(stream, allow_pickle=False) as held:
        return tuple(held.files)


def _npz_rows(name: str, wanted: Sequence[str], layout: Layout) -> Iterator[Rows]:
    with files.opened(name) as stream, np.load(stream, allow_pickle=False) as held:
        arrays = {column: np.asarray(held[column]) for column in wanted}
    shapes = {column: array.shape for column, array in arrays.items()}
    if len({shape[:1] for shape in shapes.values()}) > 1 or () in shapes.values():
        raise DataError(f"{name}: the arrays' first axes must be equal; the shapes are {shapes}")
    count = len(arrays[wanted[0]])
    for first in range(0, count, _AT_ONCE):
        part = {column: array[first : first + _AT_ONCE] for column, array in arrays.items()}
        yield Rows(range(first + 1, min(first + _AT_ONCE, count) + 1), part)


_Columns = Callable[[str, Layout], "tuple[str, ...] | None"]
_Rows = Callable[[str, Sequence[str], Layout], Iterator[Rows]]
FORMATS: dict[str, tuple[_Columns, _Rows]] = {
    "csv": (_text_columns, _text_rows),
    "tsv": (_text_columns, _text_rows),
    "tfrecord": (lambda name, layout: None, lambda name, wanted, layout: records.rows(name, wanted)),
    "parquet": (_parquet_columns, _parquet_rows),
    "npz": (_npz_columns, _npz_rows),
}
