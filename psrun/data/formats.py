"""Rows of files in several formats: CSV, TFRecord, Parquet and NumPy's .npz."""

from __future__ import annotations

import codecs
import contextlib
import csv
import importlib
import io
import itertools
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from psrun.data import files, parquet
from psrun.data.columns import Rows
from psrun.data.lists import objects
from psrun.errors import ConfigError, DataError, Problem

TAB = "\t"
TEXT = {"csv": ",", "tsv": TAB}  # and their default delimiters
_AT_ONCE = 1000
_DELIMITERS = ",;\t|: "
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
    """How to read files.

    Attributes:
      delimiter: between the fields of text; `quoted`: whether fields may be in double quotes.
      columns: column names of text; None: the first row of each file is the header.
      encoding: of text, as Python names it; a byte order mark at the start of UTF-8 is skipped.
    """

    format: str
    delimiter: str = ","
    quoted: bool = True
    columns: tuple[str, ...] | None = None
    encoding: str = "utf-8"

    def decodable(self, text: str, *, header: bool = False) -> str | None:
        """The problem of a text with undecodable bytes, which are surrogates in it; None without a problem."""
        if is_decoded(text):
            return None
        raw = text.encode(self.encoding, "surrogateescape")
        likely = "utf-16" if header and raw.startswith((b"\xff\xfe", b"\xfe\xff")) else "latin-1"
        return f"{raw!r} is not {self.encoding}; set the encoding of the files, such as data.encoding={likely}"


def problems(delimiter: str | None, columns: Sequence[str] | None, encoding: str) -> Iterator[Problem]:
    """The problems of options for text."""
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
        message = f"is {delimiter!r}, must be one character, not a quote or a line feed"
        yield Problem("data.delimiter", f"{message}; quote it for the shell and for psrun: 'data.delimiter=\";\"'")
    if columns is not None and len(set(columns)) < max(len(columns), 1):
        yield Problem("data.columns", f"is {list(columns)}, must list unique column names")
    try:
        "".encode(encoding)
    except LookupError as error:
        yield Problem("data.encoding", f"is {encoding!r}: {error}; use utf-8, latin-1, cp1252, utf-16, ...")


def of(names: Sequence[str]) -> str:
    """The format of files, by the extensions of their names.

    Raises:
      ConfigError: an extension is unknown, or the extensions differ.
    """
    by_format: dict[str, str] = {}
    for name in names:
        plain = files.SHARD.sub("", name).removesuffix(".gz").removesuffix(".gzip")
        ending = next((each for each in _ENDINGS if plain.endswith(each)), None)
        if ending is None:
            message = f"is unknown for the file name {name}; set data.format={'|'.join(FORMATS)}"
            raise ConfigError([Problem("data.format", message)])
        by_format.setdefault(_ENDINGS[ending], name)
    if len(by_format) > 1:
        examples = " and ".join(f"{name} ({form})" for form, name in by_format.items())
        raise ConfigError([Problem("data.path", f"matches files of several formats, {examples}; choose one format")])
    return next(iter(by_format))


def columns(name: str, layout: Layout) -> tuple[str, ...] | None:
    """The names of a file's columns; None if each record has its own.

    Raises:
      DataError: the file cannot be read, or two columns have the same name.
    """
    with _data_errors(name):
        names = FORMATS[layout.format][0](name, layout)
    twice = sorted({column for column in names or () if (names or ()).count(column) > 1})
    if twice:
        raise DataError(f"{name} has more than one column {', '.join(map(repr, twice))}; rename the duplicates")
    return names


def check_columns(
    name: str, layout: Layout, first: str, expected: Sequence[str] | None, ignored: Collection[str] = ()
) -> None:
    """Raises DataError if the columns of a file, except those `ignored`, differ from those of the first file."""
    there, here = (set(each or ()).difference(ignored) for each in (expected, columns(name, layout)))
    if there != here:
        differences = [
            f"{what} {', '.join(map(repr, sorted(which)))}"
            for what, which in (("lacks", there - here), ("also has", here - there))
            if which
        ]
        raise DataError(f"the columns of {name} differ from those of {first}: it {' and '.join(differences)}")


def rows(name: str, wanted: Sequence[str], layout: Layout) -> Iterator[Rows]:
    """The rows of a file, in order, in pieces.

    Raises:
      DataError: the file cannot be read to its end.
    """
    with _data_errors(name):
        yield from FORMATS[layout.format][1](name, wanted, layout)


def _data_errors(name: str) -> contextlib.AbstractContextManager[None]:
    return files.data_errors(name, "cannot be read to its end", ValueError, zipfile.BadZipFile)


@contextlib.contextmanager
def _text(name: str, layout: Layout) -> Iterator[io.TextIOWrapper]:
    """Reads a text file. Bytes that cannot be decoded become surrogates."""
    with files.opened(name) as stream:
        utf8 = codecs.lookup(layout.encoding).name == "utf-8"
        yield io.TextIOWrapper(stream, "utf-8-sig" if utf8 else layout.encoding, "surrogateescape", newline="")


def _reader(lines: Iterable[str], layout: Layout) -> Iterator[list[str]]:
    quoting: Any = csv.QUOTE_MINIMAL if layout.quoted else csv.QUOTE_NONE
    return csv.reader(lines, delimiter=layout.delimiter, quoting=quoting, strict=True)


@contextlib.contextmanager
def _fields(name: str, layout: Layout) -> Iterator[Iterator[tuple[int, list[str]]]]:
    """The rows of a text that are not blank, with their numbers."""
    with _text(name, layout) as text:
        yield _numbered(name, _reader(text, layout))


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
    try:
        with _fields(name, layout) as lines:
            header = tuple(next(lines, (0, []))[1])
    except DataError as error:  # quotes within fields, which do not start or end there
        if hint := delimiter_hint(name, layout):
            raise ConfigError([Problem("data.delimiter", f"{error}.{hint}")]) from error
        raise
    for column in header:
        if problem := layout.decodable(column, header=True):
            raise DataError(f"{name}, row 1: {problem}")
    return header


def _text_rows(name: str, wanted: Sequence[str], layout: Layout) -> Iterator[Rows]:
    names = _text_columns(name, layout)
    places = {column: names.index(column) for column in wanted}
    with _fields(name, layout) as lines:
        if layout.columns is None:
            next(lines, None)
        while part := list(itertools.islice(lines, _AT_ONCE)):
            bad = _bad_rows(part, len(names), places, layout)
            skipped = {number for number, _ in bad}
            good = [(number, row) for number, row in part if number not in skipped] if bad else part
            fields = {column: objects([row[place] for _, row in good]) for column, place in places.items()}
            yield Rows([number for number, _ in good], fields, bad)


def _bad_rows(
    part: Sequence[tuple[int, list[str]]], width: int, places: Mapping[str, int], layout: Layout
) -> list[tuple[int, str]]:
    """Rows of text with a wrong number of fields, or undecodable bytes in the required fields."""
    bad = {number: f"{len(row)} fields instead of {width}" for number, row in part if len(row) != width}
    if not is_decoded("".join(itertools.chain.from_iterable(row for _, row in part))):
        for number, row in part:
            problems = ((column, layout.decodable(row[place])) for column, place in places.items() if place < len(row))
            for column, problem in problems:
                if problem:
                    bad.setdefault(number, f"column {column}: {problem}")
    return sorted(bad.items())


def is_decoded(text: str) -> bool:
    """Whether all bytes were decoded (no surrogate)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def delimiter_hint(name: str, layout: Layout, label: str | None = None, *, command: bool = False) -> str:
    """A hint at the delimiter of a header, if it seems to differ from `layout.delimiter`.

    Args:
      label: a column that the header should have; None: it should have more than one.
      command: whether to name the options of `psrun data inspect`, and not the keys of a run.
    """
    if layout.format not in TEXT or layout.columns is not None:
        return ""
    with _text(name, layout) as text:
        line = text.readline()
    for delimiter in _DELIMITERS:
        names = _split(line, layout, delimiter)
        if delimiter != layout.delimiter and len(names) > 1 and (label in names if label else True):
            key = "data.format=tsv" if delimiter == TAB else f"'data.delimiter=\"{delimiter}\"'"
            if command:
                key = "--format tsv" if delimiter == TAB else f"--delimiter '{delimiter}'"
            return f" The delimiter in its first row seems to be {delimiter!r}; set {key}"
    return ""


def _split(line: str, layout: Layout, delimiter: str) -> list[str]:
    with contextlib.suppress(csv.Error):
        return next(_reader([line], replace(layout, delimiter=delimiter)), [])
    return []


def suggestions(name: str, layout: Layout) -> Sequence[str]:
    """The names of a file's columns; of TFRecord, those of the first record."""
    if layout.format == "tfrecord":
        return importlib.import_module("psrun.data.records").columns(name)
    return columns(name, layout) or ()


def _record_rows(name: str, wanted: Sequence[str], layout: Layout) -> Iterator[Rows]:
    records = importlib.import_module("psrun.data.records")  # only this format needs TensorFlow
    yield from records.rows(name, wanted)


def _npz_columns(name: str, layout: Layout) -> tuple[str, ...]:
    with files.opened(name) as stream, np.load(stream, allow_pickle=False) as archive:
        return tuple(archive.files)


def _npz_rows(name: str, wanted: Sequence[str], layout: Layout) -> Iterator[Rows]:
    with files.opened(name) as stream, np.load(stream, allow_pickle=False) as archive:
        arrays = {column: np.asarray(archive[column]) for column in wanted}
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
    "tfrecord": (lambda name, layout: None, _record_rows),
    "parquet": (lambda name, layout: parquet.columns(name), lambda name, wanted, layout: parquet.rows(name, wanted)),
    "npz": (_npz_columns, _npz_rows),
}
