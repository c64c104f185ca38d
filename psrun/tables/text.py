"""Rows of CSV and TSV files."""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv

from psrun.data import storage
from psrun.errors import ConfigError, DataError, Problem
from psrun.tables.rows import TAB, Layout, LayoutKeys, Rows

_BLOCK_BYTES = 1 << 22  # of text, converted together
_LONGEST_BYTES = 1 << 30  # of a row
_ENCODED = pa.dictionary(pa.int32(), pa.string())
_DELIMITERS = ",;\t|: "


def problems(keys: LayoutKeys) -> Iterator[Problem]:
    """The problems of the keys for text."""
    if keys.delimiter is not None and not _may_delimit(keys.delimiter):
        message = f"is {keys.delimiter!r}, must be one character, not a quote or a line feed"
        yield Problem("data.delimiter", f"{message}; quote it for the shell and for psrun: 'data.delimiter=\";\"'")
    if keys.columns is not None and len(set(keys.columns)) < max(len(keys.columns), 1):
        yield Problem("data.columns", f"is {list(keys.columns)}, must list unique column names")
    try:
        "".encode(keys.encoding)
    except LookupError as error:
        message = f"is {keys.encoding!r}: {error}; use utf-8, latin-1, cp1252, utf-16, ..."
        yield Problem("data.encoding", message)


def _may_delimit(delimiter: str) -> bool:
    if delimiter == r"\t":
        return True
    return len(delimiter) == 1 and delimiter not in '"\r\n'


def schema(name: str, layout: Layout) -> pa.Schema:
    """The columns of a file, all of strings."""
    columns: Sequence[str] = layout.columns or ()
    if layout.columns is None:
        try:
            with _numbered_rows(name, layout) as rows:
                columns = next(rows, (0, []))[1]
        except DataError as error:  # quotes within fields, which do not start or end there
            if hint := delimiter_hint(name, layout):
                raise ConfigError([Problem("data.delimiter", f"{error}.{hint}")]) from error
            raise
    for column in columns:
        if problem := _undecodable(column.encode("utf-8", "surrogateescape"), layout):
            raise DataError(f"{name}, row 1: {problem}")
    return pa.schema([(column, pa.string()) for column in columns])


def rows(name: str, wanted: Sequence[str], layout: Layout) -> Iterator[Rows]:
    """The rows of a file.

    A row that is longer than a block makes pyarrow stop: then it begins again with larger blocks.
    """
    num_columns = len(schema(name, layout))
    num_rows = 0
    block_bytes = _BLOCK_BYTES
    while True:
        try:
            for piece in _blocks(name, wanted, layout, num_columns, block_bytes):
                if piece.end > num_rows:
                    yield piece.since(num_rows)
                    num_rows = piece.end
            return
        except pa.ArrowInvalid as error:
            if "straddl" not in str(error) or block_bytes >= _LONGEST_BYTES:
                _check_quotes(name, layout)
                raise
            block_bytes *= 16


def _blocks(name: str, wanted: Sequence[str], layout: Layout, num_columns: int, block_bytes: int) -> Iterator[Rows]:
    header = int(layout.columns is None)
    number = _row_numbers(name, layout)
    bad: list[tuple[int, str]] = []

    def refused(row: Any) -> str:
        bad.append((row.number - 1 - header, f"{row.actual_columns} fields instead of {row.expected_columns}"))
        return "skip"

    with storage.opened(name) as stream:
        text = _Utf8(stream, layout.encoding)
        try:
            reader = arrow_csv.open_csv(
                text,
                arrow_csv.ReadOptions(use_threads=False, block_size=block_bytes, column_names=layout.columns),
                arrow_csv.ParseOptions(
                    delimiter=layout.delimiter,
                    quote_char='"' if layout.quoted else False,
                    newlines_in_values=layout.quoted,
                    ignore_empty_lines=num_columns > 1,
                    invalid_row_handler=refused,
                ),
                arrow_csv.ConvertOptions(
                    check_utf8=False,
                    strings_can_be_null=False,
                    include_columns=list(wanted),
                    column_types=dict.fromkeys(wanted, _ENCODED),  # what follows works on different values alone
                ),
            )
        except pa.ArrowInvalid as error:
            if "Empty CSV file" in str(error):
                return
            raise
        place = 0
        for batch in reader:
            places = np.arange(place, place + batch.num_rows + len(bad))
            places = places[~np.isin(places, [each for each, _ in bad])][: batch.num_rows]
            place = (int(places[-1]) if len(places) else place - 1) + 1
            before = [each for each in bad if each[0] < place]
            del bad[: len(before)]  # pyarrow reads ahead: the others are of later batches
            yield _well_encoded(Rows(batch, places, before, number), layout)
        if bad:  # after the last well-formed row
            empty = pa.record_batch([pa.array([], pa.string()).cast(_ENCODED)] * len(wanted), list(wanted))
            yield Rows(empty, np.zeros(0, np.int64), bad, number)
    if layout.quoted and text.num_quotes % 2:
        _check_quotes(name, layout)


class _Utf8(io.RawIOBase):
    """A text in UTF-8. Bytes that cannot be decoded stay as they are.

    It counts double quotes: pyarrow takes the rest of a file whose last quote is not closed as one field.
    """

    def __init__(self, stream: pa.NativeFile, encoding: str) -> None:
        self._stream = stream
        decoder = codecs.getincrementaldecoder(encoding)
        self._decoder = None if _is_utf8(encoding) else decoder("surrogateescape")
        self.num_quotes = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size if size >= 0 else None)
        while data and self._decoder is not None:
            text = self._decoder.decode(data).encode("utf-8", "surrogateescape")
            if text:  # else only the first bytes of a character
                data = text
                break
            data = self._stream.read(size)
        self.num_quotes += data.count(b'"')
        return data


def _is_utf8(encoding: str) -> bool:
    return codecs.lookup(encoding).name == "utf-8"


def _well_encoded(rows: Rows, layout: Layout) -> Rows:
    """Moves rows with undecodable bytes to the malformed ones."""
    wrong: dict[int, str] = {}
    for name, column in zip(rows.batch.schema.names, rows.batch.columns):
        raw = column.dictionary.cast(pa.binary())
        try:
            raw.cast(pa.string())
        except pa.ArrowInvalid:
            problems = [_undecodable(value, layout) for value in raw.to_pylist()]
            for index, code in enumerate(column.indices.to_pylist()):
                if problem := problems[code]:
                    wrong.setdefault(index, f"column {name}: {problem}")
    if not wrong:
        return rows
    good: np.ndarray = np.ones(len(rows.places), bool)
    good[list(wrong)] = False
    bad = sorted([*rows.bad, *((int(rows.places[index]), problem) for index, problem in wrong.items())])
    kept = [column.filter(pa.array(good)) for column in rows.batch.columns]
    encoded = [column.dictionary_decode().dictionary_encode() for column in kept]  # without the undecodable values
    batch = pa.record_batch(encoded, rows.batch.schema.names)
    return replace(rows, batch=batch, places=rows.places[good], bad=bad)


def _undecodable(value: bytes, layout: Layout) -> str | None:
    """The problem of a text that is not UTF-8 after the conversion from its encoding; None without a problem."""
    try:
        value.decode()
        return None
    except UnicodeDecodeError:
        likely = "utf-16" if value.startswith((b"\xff\xfe", b"\xfe\xff")) else "latin-1"
        return f"{value!r} is not {layout.encoding}; set the encoding of the files, such as data.encoding={likely}"


def _row_numbers(name: str, layout: Layout) -> Callable[[int], int]:
    """A function from the place of a row to its number. pyarrow does not count blank lines: they are counted here."""
    known: list[int] = []

    def numbers() -> Iterator[int]:
        with _numbered_rows(name, layout) as rows:
            yield from (number for number, _ in itertools.islice(rows, int(layout.columns is None), None))

    rest = numbers()

    def number(place: int) -> int:
        known.extend(itertools.islice(rest, max(0, place + 1 - len(known))))
        return known[place]

    return number


def _check_quotes(name: str, layout: Layout) -> None:
    """Raises DataError with the number of the first row that is not quoted correctly."""
    with _numbered_rows(name, layout) as rows:
        for _ in rows:
            pass


@contextlib.contextmanager
def _numbered_rows(name: str, layout: Layout) -> Iterator[Iterator[tuple[int, list[str]]]]:
    """The rows that are not blank, with their numbers, slowly."""
    csv.field_size_limit(_LONGEST_BYTES)
    encoding = "utf-8-sig" if _is_utf8(layout.encoding) else layout.encoding
    with storage.opened(name) as stream, io.TextIOWrapper(stream, encoding, "surrogateescape", newline="") as text:
        yield _numbered(name, _reader(text, layout.delimiter, quoted=layout.quoted))


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


def _reader(lines: Iterable[str], delimiter: str, *, quoted: bool) -> Iterator[list[str]]:
    quoting: Any = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    return csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)


def delimiter_hint(name: str, layout: Layout, label: str | None = None, *, command: bool = False) -> str:
    """A hint at the delimiter of a header, if it seems to differ from `layout.delimiter`.

    Args:
      label: as in `other_delimiter`.
      command: whether to name the options of `psrun data inspect`, and not the keys of a run.
    """
    delimiter = other_delimiter(name, layout, label)
    if not delimiter:
        return ""
    key = "data.format=tsv" if delimiter == TAB else f"'data.delimiter=\"{delimiter}\"'"
    if command:
        key = "--format tsv" if delimiter == TAB else f"--delimiter '{delimiter}'"
    return f" The delimiter in its first row seems to be {delimiter!r}; set {key}"


def other_delimiter(name: str, layout: Layout, column: str | None = None) -> str:
    """The delimiter that a header seems to have instead of `layout.delimiter`; empty if it seems to have this one.

    Args:
      column: one that the header should have; None: it should have more than one.
    """
    if not layout.is_text or layout.columns is not None:
        return ""
    with storage.data_errors(name), storage.opened(name) as stream:
        text = io.TextIOWrapper(stream, layout.encoding, "replace", newline="")
        line = text.readline().removeprefix("\ufeff")
    for delimiter in _DELIMITERS.replace(layout.delimiter, ""):
        names: list[str] = []
        with contextlib.suppress(csv.Error):
            names = next(_reader([line], delimiter, quoted=layout.quoted), [])
        if len(names) > 1 and (column is None or column in names):
            return delimiter
    return ""


def header_hint(names: Sequence[str], layout: Layout) -> str:
    """A hint at a missing header: names of columns that are values."""
    if layout.is_text and layout.columns is None and any(map(_is_value, names[1:] or names)):
        return f" The first row ({', '.join(names[:3])}, ...) looks like values; no header? set data.columns=[...]"
    return ""


def _is_value(text: str) -> bool:
    """Whether a header has a value where a name should stand."""
    with contextlib.suppress(ValueError):
        float(text)
        return True
    return not text.strip()
