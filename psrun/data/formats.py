"""Rows of files as Arrow record batches: CSV and TSV, Parquet, Arrow IPC, JSON lines, npz, TFRecord."""

from __future__ import annotations

import codecs
import contextlib
import csv
import functools
import importlib
import io
import itertools
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import csv as arrow_csv
from pyarrow import ipc, json, parquet, types

from psrun.data import files
from psrun.errors import ConfigError, DataError, Problem

TAB = "\t"
TEXT = {"csv": ",", "tsv": TAB}  # and their default delimiters
_BLOCK_BYTES = 1 << 22  # of text, converted together
_LONGEST_BYTES = 1 << 30  # of a row
_ROWS_AT_ONCE = 1 << 15
_ENCODED = pa.dictionary(pa.int32(), pa.string())
_INT64 = 2**63
_BEYOND_INT64 = pa.decimal128(38, 0)  # integers of which some are no int64
_SNIFFED_BYTES = 1 << 16
_DELIMITERS = ",;\t|: "
_ENDINGS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".npz": "npz",
}
_SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".ods")
_MAGIC = {b"PAR1": "parquet", b"ARROW1": "arrow", b"PK\x03\x04": "npz"}


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
    """The format of files, by the extensions of their names, or else by the start of the first.

    Raises:
      ConfigError: the extensions differ, or neither tells.
    """
    by_format: dict[str, str] = {}
    for name in names:
        plain = files.SHARD.sub("", name).removesuffix(".gz").removesuffix(".gzip")
        ending = next((each for each in _ENDINGS if plain.endswith(each)), None)
        by_format.setdefault(_ENDINGS[ending] if ending else _sniffed(name), name)
    if len(by_format) > 1:
        examples = " and ".join(f"{name} ({form})" for form, name in by_format.items())
        raise ConfigError([Problem("data.path", f"matches files of several formats, {examples}; choose one format")])
    return next(iter(by_format))


def _sniffed(name: str) -> str:
    """The format that the first bytes of a file tell."""
    if name.lower().endswith(_SPREADSHEETS):
        message = f"is unknown for {name}: spreadsheets cannot be read; save it as CSV"
        raise ConfigError([Problem("data.format", message)])
    with files.data_errors(name), files.opened(name) as stream:
        start = stream.read(_SNIFFED_BYTES)
    for magic, form in _MAGIC.items():
        if start.startswith(magic):
            return form
    first, *rest = start.decode("utf-8", "replace").splitlines()[:20] or [""]
    if "\0" not in first and first.startswith("{"):
        return "json"
    counts = {form: first.count(delimiter) for form, delimiter in TEXT.items()}
    form = max(counts, key=lambda each: counts[each])
    if "\0" not in first and counts[form] and all(line.count(TEXT[form]) for line in rest):
        return form
    message = f"is unknown for the file name {name}; set data.format={'|'.join(FORMATS)}"
    raise ConfigError([Problem("data.format", message)])


def columns(name: str, layout: Layout) -> tuple[str, ...] | None:
    """The names of a file's columns; None if each record has its own.

    Raises:
      DataError: the file cannot be read, or two columns have the same name.
    """
    known = schema([name], layout)
    return None if known is None else tuple(known.names)


def schema(names: Sequence[str], layout: Layout) -> pa.Schema | None:
    """The columns of files with the types that hold the values of each file; None if each record has its own columns.

    Columns that not all files have are those of the files that have them.

    Raises:
      DataError: a file cannot be read, two of its columns have the same name, or a column has types in two files that
        no type holds.
    """
    schemas: dict[str, pa.Schema] = {}
    for name in names:
        known = _schema_of_file(name, layout)
        if known is None:
            return None
        added = [key for key in files.partition(name, layout.folders) if key not in known.names]
        known = pa.schema([*known, *(pa.field(key, pa.string()) for key in added)])
        _check_unique(name, known.names, layout)
        schemas[name] = known
    first, *others = schemas.items()
    unified = first[1]
    for name, known in others:
        try:
            unified = pa.unify_schemas(_with_common_integers(unified, known), promote_options="permissive")
        except pa.ArrowException as error:
            raise DataError(f"the columns of {name} differ in type from those of {first[0]}: {error}") from error
    return unified


def _with_common_integers(one: pa.Schema, other: pa.Schema) -> list[pa.Schema]:
    """Schemas that have a type for uint64 and signed integers together: pyarrow would make them int64."""
    schemas = [one, other]
    for name in set(one.names) & set(other.names):
        kinds = [one.field(name).type, other.field(name).type]
        if pa.uint64() in kinds and any(map(types.is_signed_integer, kinds)):
            schemas = [each.set(each.get_field_index(name), pa.field(name, _BEYOND_INT64)) for each in schemas]
    return schemas


def _schema_of_file(name: str, layout: Layout) -> pa.Schema | None:
    """The columns that are in a file itself, not in the names of folders."""
    with _data_errors(name):
        return _schema_once(name, layout, tuple(files.stamp(name)))


@functools.lru_cache(maxsize=1024)
def _schema_once(name: str, layout: Layout, stamp: tuple[Any, ...]) -> pa.Schema | None:
    """As long as a file does not change, it is looked at once: JSON and npz are read whole for their schema."""
    return FORMATS[layout.format].schema(name, layout)


def _check_unique(name: str, names: Sequence[str], layout: Layout) -> None:
    twice = sorted({column for column in names if names.count(column) > 1})
    if not twice:
        return
    headless = layout.format in TEXT and layout.columns is None and all(_is_value(each) for each in twice)
    remedy = "no header? set data.columns=[...]" if headless else "rename the duplicates"
    raise DataError(f"{name} has more than one column {', '.join(map(repr, twice))}; {remedy}")


def _is_value(text: str) -> bool:
    """Whether a header has a value where a name should stand."""
    with contextlib.suppress(ValueError):
        float(text)
        return True
    return not text.strip()


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


def rows(name: str, wanted: Sequence[str], layout: Layout, unified: pa.Schema | None = None) -> Iterator[Rows]:
    """The rows of a file, in order, in pieces.

    Args:
      wanted: columns.
      unified: the types of the columns, for files whose own types are narrower; None for those of the file.

    Raises:
      DataError: the file cannot be read to its end.
    """
    partition = {key: value for key, value in files.partition(name, layout.folders).items() if key in wanted}
    inside = [column for column in wanted if column not in partition]
    with _data_errors(name):
        for piece in FORMATS[layout.format].rows(name, inside, layout):
            batch = piece.batch
            for key, value in partition.items():
                batch = batch.append_column(key, pa.array([value] * batch.num_rows, pa.string()))
            batch = batch.select(list(wanted))
            yield replace(piece, batch=batch if unified is None else _typed(batch, unified))


def rows_of_files(names: Sequence[str], wanted: Sequence[str], layout: Layout) -> Iterator[tuple[int, Rows]]:
    """The rows of files, in pieces, each with the number of rows in the files before, malformed ones included."""
    first = 0
    for name in names:
        num_rows = 0
        for piece in rows(name, wanted, layout):
            yield first, piece
            num_rows = max(num_rows, piece.end)
        first += num_rows


def decoded(column: pa.Array) -> pa.Array:
    """A column without a dictionary."""
    return column.dictionary_decode() if types.is_dictionary(column.type) else column


def _typed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for name, column in zip(batch.schema.names, batch.columns):
        kind = column.type.value_type if types.is_dictionary(column.type) else column.type
        target = schema.field(name).type
        columns.append(column if kind == target else column.cast(target))
    return pa.record_batch(columns, batch.schema.names)


def _data_errors(name: str) -> contextlib.AbstractContextManager[None]:
    return files.data_errors(name, "cannot be read to its end", ValueError, zipfile.BadZipFile)


class _Utf8(io.RawIOBase):
    """A text in UTF-8. Bytes that cannot be decoded stay as they are.

    It counts double quotes: pyarrow takes the rest of a file whose last quote is not closed as one field.
    """

    def __init__(self, stream: pa.NativeFile, encoding: str) -> None:
        self._stream = stream
        plain = codecs.lookup(encoding).name == "utf-8"
        self._decoder = None if plain else codecs.getincrementaldecoder(encoding)("surrogateescape")
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


def _text_schema(name: str, layout: Layout) -> pa.Schema:
    if layout.columns is not None:
        return pa.schema([(column, pa.string()) for column in layout.columns])
    try:
        with _fields(name, layout) as lines:
            header = tuple(next(lines, (0, []))[1])
    except DataError as error:  # quotes within fields, which do not start or end there
        if hint := delimiter_hint(name, layout):
            raise ConfigError([Problem("data.delimiter", f"{error}.{hint}")]) from error
        raise
    for column in header:
        if problem := _undecodable(column.encode("utf-8", "surrogateescape"), layout, header=True):
            raise DataError(f"{name}, row 1: {problem}")
    return pa.schema([(column, pa.string()) for column in header])


def _text_rows(name: str, wanted: Sequence[str], layout: Layout) -> Iterator[Rows]:
    """The rows of a text.

    A row that is longer than a block makes pyarrow stop: then it begins again with larger blocks.
    """
    num_columns = len(_schema_of_file(name, layout) or ())
    num_rows = 0
    block_bytes = _BLOCK_BYTES
    while True:
        try:
            for piece in _text_blocks(name, wanted, layout, num_columns, block_bytes):
                if piece.end > num_rows:
                    yield _from(piece, num_rows)
                    num_rows = piece.end
            return
        except pa.ArrowInvalid as error:
            if "straddl" not in str(error) or block_bytes >= _LONGEST_BYTES:
                _check_quotes(name, layout)
                raise
            block_bytes *= 16


def _from(piece: Rows, place: int) -> Rows:
    """The rows from a place on."""
    first = int(np.searchsorted(piece.places, place))
    bad = [(each, problem) for each, problem in piece.bad if each >= place]
    return replace(piece, batch=piece.batch.slice(first), places=piece.places[first:], bad=bad)


def _text_blocks(
    name: str, wanted: Sequence[str], layout: Layout, num_columns: int, block_bytes: int
) -> Iterator[Rows]:
    header = int(layout.columns is None)
    numbers = _Numbers(name, layout)
    bad: list[tuple[int, str]] = []

    def refused(row: Any) -> str:
        bad.append((row.number - 1 - header, f"{row.actual_columns} fields instead of {row.expected_columns}"))
        return "skip"

    with files.opened(name) as stream:
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
            places = _places(place, batch.num_rows, [each for each, _ in bad])
            place = (int(places[-1]) if len(places) else place - 1) + 1
            before = [each for each in bad if each[0] < place]
            del bad[: len(before)]  # pyarrow reads ahead: the others are of later batches
            yield _decoded(Rows(batch, places, before, numbers.of), layout)
        if bad:  # after the last well-formed row
            empty = pa.record_batch([pa.array([], pa.string()).cast(_ENCODED)] * len(wanted), list(wanted))
            yield Rows(empty, np.zeros(0, np.int64), bad, numbers.of)
    if layout.quoted and text.num_quotes % 2:
        _check_quotes(name, layout)


def _places(first: int, count: int, bad: Sequence[int]) -> np.ndarray:
    """The places of the next `count` well-formed rows."""
    places = np.arange(first, first + count + len(bad))
    return places[~np.isin(places, bad)][:count] if bad else places


def _decoded(rows: Rows, layout: Layout) -> Rows:
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
    columns = [_used(column.filter(pa.array(good))) for column in rows.batch.columns]
    batch = pa.record_batch(columns, rows.batch.schema.names)
    return replace(rows, batch=batch, places=rows.places[good], bad=bad)


def _used(column: pa.DictionaryArray) -> pa.DictionaryArray:
    """The column with a dictionary of the values that occur: others may be undecodable."""
    codes, indices = np.unique(column.indices.to_numpy(), return_inverse=True)
    dictionary = column.dictionary.take(pa.array(codes))
    return pa.DictionaryArray.from_arrays(pa.array(indices.astype(np.int32)), dictionary)


def _undecodable(value: bytes, layout: Layout, *, header: bool = False) -> str | None:
    """The problem of a text that is not UTF-8 after the conversion from its encoding; None without a problem."""
    try:
        value.decode()
        return None
    except UnicodeDecodeError:
        likely = "utf-16" if header and value.startswith((b"\xff\xfe", b"\xfe\xff")) else "latin-1"
        return f"{value!r} is not {layout.encoding}; set the encoding of the files, such as data.encoding={likely}"


class _Numbers:
    """The numbers of rows of a text by their places. pyarrow does not count blank lines: they are counted here."""

    def __init__(self, name: str, layout: Layout) -> None:
        self._name = name
        self._layout = layout
        self._known: list[int] = []
        self._rest: Iterator[int] | None = None

    def of(self, place: int) -> int:
        if self._rest is None:
            self._rest = self._numbers()
        self._known += itertools.islice(self._rest, max(0, place + 1 - len(self._known)))
        return self._known[place]

    def _numbers(self) -> Iterator[int]:
        with _fields(self._name, self._layout) as lines:
            if self._layout.columns is None:
                next(lines, None)
            yield from (number for number, _ in lines)


def _check_quotes(name: str, layout: Layout) -> None:
    """Raises DataError with the number of the first row that is not quoted correctly."""
    with _fields(name, layout) as lines:
        for _ in lines:
            pass


@contextlib.contextmanager
def _fields(name: str, layout: Layout) -> Iterator[Iterator[tuple[int, list[str]]]]:
    """The rows of a text that are not blank, with their numbers, slowly."""
    csv.field_size_limit(_LONGEST_BYTES)
    utf8 = codecs.lookup(layout.encoding).name == "utf-8"
    encoding = "utf-8-sig" if utf8 else layout.encoding
    with files.opened(name) as stream, io.TextIOWrapper(stream, encoding, "surrogateescape", newline="") as text:
        yield _numbered(name, _reader(text, layout))


def _reader(lines: Iterable[str], layout: Layout) -> Iterator[list[str]]:
    quoting: Any = csv.QUOTE_MINIMAL if layout.quoted else csv.QUOTE_NONE
    return csv.reader(lines, delimiter=layout.delimiter, quoting=quoting, strict=True)


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


def delimiter_hint(name: str, layout: Layout, label: str | None = None, *, command: bool = False) -> str:
    """A hint at the delimiter of a header, if it seems to differ from `layout.delimiter`.

    Args:
      label: a column that the header should have; None: it should have more than one.
      command: whether to name the options of `psrun data inspect`, and not the keys of a run.
    """
    if layout.format not in TEXT or layout.columns is not None:
        return ""
    with files.data_errors(name), files.opened(name) as stream:
        text = io.TextIOWrapper(stream, layout.encoding, "replace", newline="")
        line = text.readline().removeprefix("\ufeff")
    for delimiter in _DELIMITERS:
        names = _split(line, layout, delimiter)
        if delimiter != layout.delimiter and len(names) > 1 and (label in names if label else True):
            key = "data.format=tsv" if delimiter == TAB else f"'data.delimiter=\"{delimiter}\"'"
            if command:
                key = "--format tsv" if delimiter == TAB else f"--delimiter '{delimiter}'"
            return f" The delimiter in its first row seems to be {delimiter!r}; set {key}"
    return ""


def header_hint(names: Sequence[str], layout: Layout) -> str:
    """A hint at a missing header: names of columns that are values."""
    if layout.format in TEXT and layout.columns is None and any(map(_is_value, names[1:] or names)):
        return f" The first row ({', '.join(names[:3])}, ...) looks like values; no header? set data.columns=[...]"
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


def _numbered_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[Rows]:
    first = 0
    for batch in batches:
        yield Rows(batch, np.arange(first, first + batch.num_rows))
        first += batch.num_rows


def _parquet_schema(name: str, layout: Layout) -> pa.Schema:
    with files.opened_anywhere(name) as stream:
        return parquet.read_schema(stream).remove_metadata()


def _parquet_rows(name: str, wanted: Sequence[str], layout: Layout) -> Iterator[Rows]:
    with files.opened_anywhere(name) as stream:
        schema = _schema_of_file(name, layout)
        texts = [each for each in wanted if schema is not None and types.is_string(schema.field(each).type)]
        file = parquet.ParquetFile(stream, page_checksum_verification=True, read_dictionary=texts)
        yield from _numbered_batches(file.iter_batches(_ROWS_AT_ONCE, columns=list(wanted)))


def _arrow_schema(name: str, layout: Layout) -> pa.Schema:
    with files.opened_anywhere(name) as stream:
        return ipc.open_file(stream).schema.remove_metadata()


def _arrow_rows(name: str, wanted: Sequence[str], layout: Layout) -> Iterator[Rows]:
    with files.opened_anywhere(name) as stream:
        file = ipc.open_file(stream)
        batches = (file.get_batch(index).select(list(wanted)) for index in range(file.num_record_batches))
        yield from _numbered_batches(batches)


def _json_table(name: str) -> pa.Table:
    table = _json_columns(name)
    for index, field_ in enumerate(table.schema):
        if not _may_be_integers(table.column(index)):
            continue
        is_list = types.is_list(field_.type)
        exact = pa.field(field_.name, pa.list_(_BEYOND_INT64) if is_list else _BEYOND_INT64)
        with contextlib.suppress(pa.ArrowInvalid):  # some have fractions
            table = table.set_column(index, exact, _json_columns(name, pa.schema([exact])).column(0))
    return table


def _json_columns(name: str, schema: pa.Schema | None = None) -> pa.Table:
    """The columns of `schema` with its types; None: all columns with the types that pyarrow chooses."""
    options = json.ParseOptions(schema, unexpected_field_behavior="infer" if schema is None else "ignore")
    with files.opened(name) as stream:
        try:
            return json.read_json(stream, json.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES), options)
        except pa.ArrowInvalid as error:
            if schema is not None:
                raise
            raise DataError(f"{name} cannot be read: {error}; it must have one JSON object a line") from error


def _may_be_integers(column: pa.ChunkedArray) -> bool:
    """Whether doubles may be integers that no double holds: for some beyond int64, pyarrow makes a column doubles."""
    values = pc.list_flatten(column) if types.is_list(column.type) else column
    if not types.is_floating(values.type):
        return False
    are_whole = pc.all(pc.equal(values, pc.floor(values))).as_py()
    return bool(are_whole and pc.any(pc.greater_equal(pc.abs(values), float(_INT64))).as_py())


def _json_schema(name: str, layout: Layout) -> pa.Schema:
    return _json_table(name).schema


def _json_rows(name: str, wanted: Sequence[str], layout: Layout) -> Iterator[Rows]:
    """The rows of a whole file: the types of JSON's columns are known at the end of the file."""
    yield from _numbered_batches(_json_table(name).select(list(wanted)).to_batches(_ROWS_AT_ONCE))


def _npz_schema(name: str, layout: Layout) -> pa.Schema:
    arrays = _npz_arrays(name, None)
    return pa.schema([(column, _npz_column(array[:1]).type) for column, array in arrays.items()])


def _npz_rows(name: str, wanted: Sequence[str], layout: Layout) -> Iterator[Rows]:
    arrays = _npz_arrays(name, wanted)
    shapes = {column: array.shape for column, array in arrays.items()}
    if len({shape[:1] for shape in shapes.values()}) > 1 or () in shapes.values():
        raise DataError(f"{name}: the arrays' first axes must be equal; the shapes are {shapes}")
    count = len(arrays[wanted[0]])
    parts = (slice(first, first + _ROWS_AT_ONCE) for first in range(0, count, _ROWS_AT_ONCE))
    batches = (
        pa.record_batch([_npz_column(arrays[column][part]) for column in wanted], list(wanted)) for part in parts
    )
    yield from _numbered_batches(batches)


def _npz_arrays(name: str, wanted: Sequence[str] | None) -> Mapping[str, np.ndarray]:
    with files.opened_anywhere(name) as stream, np.load(stream, allow_pickle=False) as archive:
        return {column: np.asarray(archive[column]) for column in wanted or archive.files}


def _npz_column(array: np.ndarray) -> pa.Array:
    """An array with further axes becomes lists of one length."""
    flat = array.ravel()
    if flat.dtype.byteorder == ">":  # of another machine; pyarrow refuses it
        flat = flat.astype(flat.dtype.newbyteorder("="))
    values = pa.array(flat.tolist(), pa.binary()) if flat.dtype.kind == "S" else pa.array(flat)
    if array.ndim < 2:
        return values
    width = int(np.prod(array.shape[1:]))
    return pa.FixedSizeListArray.from_arrays(values, width)


def _record_rows(name: str, wanted: Sequence[str], layout: Layout) -> Iterator[Rows]:
    records = importlib.import_module("psrun.data.records")  # only this format needs TensorFlow
    yield from records.rows(name, wanted)


@dataclass(frozen=True)
class _Format:
    schema: Callable[[str, Layout], pa.Schema | None]
    rows: Callable[[str, Sequence[str], Layout], Iterator[Rows]]


FORMATS: dict[str, _Format] = {
    "csv": _Format(_text_schema, _text_rows),
    "tsv": _Format(_text_schema, _text_rows),
    "parquet": _Format(_parquet_schema, _parquet_rows),
    "arrow": _Format(_arrow_schema, _arrow_rows),
    "json": _Format(_json_schema, _json_rows),
    "npz": _Format(_npz_schema, _npz_rows),
    "tfrecord": _Format(lambda name, layout: None, _record_rows),
}
