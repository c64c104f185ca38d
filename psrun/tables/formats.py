"""Rows of files of any format as Arrow record batches: CSV and TSV, Parquet, Arrow IPC, TFRecord."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import ipc, parquet, types

from psrun.data import storage
from psrun.errors import ConfigError, DataError, Problem
from psrun.tables import text
from psrun.tables.rows import TAB, TEXT, Layout, LayoutKeys, Rows

_ROWS_AT_ONCE = 1 << 15
_BEYOND_INT64 = pa.decimal128(38, 0)  # integers of which some are no int64
_SNIFFED_BYTES = 1 << 16
_SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".ods")
# Formats that are not read, and how to make Parquet of them.
_FROM_JSON_LINES = "pandas.read_json({name!r}, lines=True).to_parquet({target!r})"
_FROM_JSON = "pandas.read_json({name!r}).to_parquet({target!r})"
_FROM_ARRAYS = (
    "pyarrow.parquet.write_table(pyarrow.table({{key: list(array) for key, array in numpy.load({name!r}).items()}}),"
    " {target!r})"
)
_CONVERSIONS = {
    ".jsonl": _FROM_JSON_LINES,
    ".ndjson": _FROM_JSON_LINES,
    ".json": _FROM_JSON,
    ".npz": _FROM_ARRAYS,
}


def detect(names: Sequence[str]) -> str:
    """The format of files, by the extensions of their names, or else by the start of the first.

    Raises:
      ConfigError: the extensions differ, neither tells, or psrun does not read the format.
    """
    by_format: dict[str, str] = {}
    for name in names:
        plain = storage.SHARD.sub("", name).removesuffix(".gz").removesuffix(".gzip")
        for refused, conversion in _CONVERSIONS.items():
            if plain.endswith(refused):
                raise _convert_first(name, conversion)
        form = _named(plain)
        if form is None:
            form = _sniffed(name)
        by_format.setdefault(form, name)
    if len(by_format) > 1:
        examples = " and ".join(f"{name} ({form})" for form, name in by_format.items())
        raise ConfigError([Problem("data.path", f"matches files of several formats, {examples}; choose one format")])
    return next(iter(by_format))


def _named(name: str) -> str | None:
    """The format that the ending of a file's name tells; None if it tells none."""
    for form, known in FORMATS.items():
        if name.endswith(known.endings):
            return form
    return None


def _sniffed(name: str) -> str:
    """The format that the first bytes of a file tell."""
    if name.lower().endswith(_SPREADSHEETS):
        message = f"is unknown for {name}: spreadsheets cannot be read; save it as CSV"
        raise ConfigError([Problem("data.format", message)])
    with storage.data_errors(name), storage.opened(name) as stream:
        start = stream.read(_SNIFFED_BYTES)
    for form, known in FORMATS.items():
        if known.magic is not None and start.startswith(known.magic):
            return form
    first, *rest = start.decode("utf-8", "replace").splitlines()[:20] or [""]
    if "\0" not in first and first.startswith("{"):
        raise _convert_first(name, _FROM_JSON_LINES)
    counts = {form: first.count(delimiter) for form, delimiter in TEXT.items()}
    form = max(counts, key=lambda each: counts[each])
    if "\0" not in first and counts[form] and all(line.count(TEXT[form]) for line in rest):
        return form
    message = f"is unknown for the file name {name}; set data.format={'|'.join(FORMATS)}"
    raise ConfigError([Problem("data.format", message)])


def _convert_first(name: str, conversion: str) -> ConfigError:
    target = f"{os.path.splitext(name.removesuffix('.gz'))[0]}.parquet"
    how = conversion.format(name=name, target=target)
    message = f"{name} is not in a format that psrun reads; write it as Parquet: {how}"
    return ConfigError([Problem("data.path", message)])


def layout(names: Sequence[str], keys: LayoutKeys | None = None, folders: Sequence[str | None] = ()) -> Layout:
    """How to read files, as the configuration says and, where it says nothing, as their names or first bytes tell.

    Args:
      keys: of the configuration; None: it says nothing.
      folders: datasets, in which folders such as year=2026 are columns of their files; None for none.
    """
    if keys is None:
        keys = LayoutKeys()
    form = keys.format or detect(names)
    delimiter = keys.delimiter or TEXT.get(form, ",")
    if delimiter == r"\t":
        delimiter = TAB
    named = None
    if keys.columns:
        named = tuple(keys.columns)
    datasets = tuple(folder for folder in folders if folder)
    return Layout(form, delimiter, keys.quoted, named, keys.encoding, datasets)


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
        with _data_errors(name):
            known = FORMATS[layout.format].schema(name, layout)
        if known is None:
            return None
        added = [key for key in storage.partition(name, layout.folders) if key not in known.names]
        known = pa.schema([*known, *(pa.field(key, pa.string()) for key in added)])
        _check_unique(name, known.names, layout)
        schemas[name] = known
    first, *others = schemas.items()
    unified = first[1]
    for name, known in others:
        try:
            unified = pa.unify_schemas(_with_common_integers(unified, known), promote_options="permissive")
        except pa.ArrowException as error:
            raise DataError(f"the columns of {name} have other types than in {first[0]}: {error}") from error
    return unified


def _with_common_integers(one: pa.Schema, other: pa.Schema) -> list[pa.Schema]:
    """Schemas that have a type for uint64 and signed integers together: pyarrow would make them int64."""
    schemas = [one, other]
    for name in set(one.names) & set(other.names):
        kinds = [one.field(name).type, other.field(name).type]
        if pa.uint64() in kinds and any(map(types.is_signed_integer, kinds)):
            schemas = [each.set(each.get_field_index(name), pa.field(name, _BEYOND_INT64)) for each in schemas]
    return schemas


def _check_unique(name: str, names: Sequence[str], layout: Layout) -> None:
    twice = sorted({column for column in names if names.count(column) > 1})
    if twice:
        remedy = "; no header? set data.columns=[...]" if text.header_hint(twice, layout) else "; rename the duplicates"
        raise DataError(f"{name} has more than one column {', '.join(map(repr, twice))}{remedy}")


def check_columns(name: str, layout: Layout, first: str, expected: Sequence[str] | None) -> None:
    """Raises DataError if the columns of a file differ from those of the first file."""
    here = set(columns(name, layout) or ())
    there = set(expected or ())
    if there != here:
        differences = [
            f"{what} {', '.join(map(repr, sorted(which)))}"
            for what, which in (("lacks", there - here), ("also has", here - there))
            if which
        ]
        raise DataError(f"{name} has other columns than {first}: it {' and '.join(differences)}")


def rows(name: str, wanted: Sequence[str], layout: Layout, unified: pa.Schema | None = None) -> Iterator[Rows]:
    """The rows of a file, in order, in pieces.

    Args:
      wanted: columns.
      unified: the types of the columns, for files whose own types are narrower; None for those of the file.

    Raises:
      DataError: the file cannot be read to its end.
    """
    partition = {key: value for key, value in storage.partition(name, layout.folders).items() if key in wanted}
    inside = [column for column in wanted if column not in partition]
    with _data_errors(name):
        for piece in FORMATS[layout.format].rows(name, inside, layout):
            batch = piece.batch
            for key, value in partition.items():
                batch = batch.append_column(key, pa.array([value] * batch.num_rows, pa.string()))
            batch = batch.select(list(wanted))
            yield replace(piece, batch=batch if unified is None else _typed(batch, unified))


def rows_of_files(names: Sequence[str], wanted: Sequence[str], layout: Layout) -> Iterator[tuple[str, int, Rows]]:
    """The rows of files, in pieces: each with the name of its file and the number of rows in the files before.

    Malformed rows count.
    """
    first = 0
    for name in names:
        num_rows = 0
        for piece in rows(name, wanted, layout):
            yield name, first, piece
            num_rows = max(num_rows, piece.end)
        first += num_rows


def _typed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for name, column in zip(batch.schema.names, batch.columns):
        kind = column.type.value_type if types.is_dictionary(column.type) else column.type
        target = schema.field(name).type
        columns.append(column if kind == target else column.cast(target))
    return pa.record_batch(columns, batch.schema.names)


def _data_errors(name: str) -> contextlib.AbstractContextManager[None]:
    return storage.data_errors(name, "cannot be read to its end", ValueError)


def suggestions(name: str, layout: Layout) -> Sequence[str]:
    """The names of a file's columns; of TFRecord, those of the first record."""
    names = columns(name, layout)
    if names is None:
        return importlib.import_module("psrun.tables.records").columns(name)
    return names


def _numbered_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[Rows]:
    first = 0
    for batch in batches:
        yield Rows(batch, np.arange(first, first + batch.num_rows))
        first += batch.num_rows


def _parquet_rows(name: str, wanted: Sequence[str], layout: Layout) -> Iterator[Rows]:
    with storage.opened_anywhere(name) as stream:
        schema = parquet.read_schema(stream)
        texts = [each for each in wanted if types.is_string(schema.field(each).type)]
        file = parquet.ParquetFile(stream, page_checksum_verification=True, read_dictionary=texts)
        yield from _numbered_batches(file.iter_batches(_ROWS_AT_ONCE, columns=list(wanted)))


def index_columns(names: Sequence[str], layout: Layout) -> set[str]:
    """The columns of Parquet or Arrow files that the metadata of one of them calls the index of a pandas DataFrame."""
    found: set[str] = set()
    own_schema = FORMATS[layout.format].own_schema
    if own_schema is None:
        return found
    for name in names:
        with _data_errors(name), storage.opened_anywhere(name) as stream:
            metadata = own_schema(stream).metadata
        described = json.loads((metadata or {}).get(b"pandas", b"{}"))
        for each in described.get("index_columns", ()):
            if isinstance(each, str):  # a range of numbers is no column
                found.add(each)
    return found


def _arrow_schema(stream: Any) -> pa.Schema:
    return ipc.open_file(stream).schema


def _arrow_rows(name: str, wanted: Sequence[str], layout: Layout) -> Iterator[Rows]:
    with storage.opened_anywhere(name) as stream:
        file = ipc.open_file(stream)
        batches = (file.get_batch(index).select(list(wanted)) for index in range(file.num_record_batches))
        yield from _numbered_batches(batches)


def _record_rows(name: str, wanted: Sequence[str], layout: Layout) -> Iterator[Rows]:
    records = importlib.import_module("psrun.tables.records")  # only this format needs TensorFlow
    yield from records.rows(name, wanted)


@dataclass(frozen=True)
class _Format:
    """A format of files.

    Attributes:
      endings: of names that tell the format.
      rows: the rows of a file with the wanted columns.
      magic: the first bytes of each file; None if they tell nothing.
      own_schema: the schema that an open file holds; None if files hold none.
      text_schema: the schema of a file of text; None if the format is none of text.
    """

    endings: tuple[str, ...]
    rows: Callable[[str, Sequence[str], Layout], Iterator[Rows]]
    magic: bytes | None = None
    own_schema: Callable[[Any], pa.Schema] | None = None
    text_schema: Callable[[str, Layout], pa.Schema] | None = None

    @property
    def has_columns(self) -> bool:
        """Whether all records of a file have the same columns."""
        return self.own_schema is not None or self.text_schema is not None

    def schema(self, name: str, layout: Layout) -> pa.Schema | None:
        """The columns of a file with their types; None if each record has its own."""
        if self.text_schema is not None:
            return self.text_schema(name, layout)
        if self.own_schema is None:
            return None
        with storage.opened_anywhere(name) as stream:
            return self.own_schema(stream).remove_metadata()


# To read one more format, add it here; `pyarrow` reads its rows, as `_arrow_rows` shows.
FORMATS: dict[str, _Format] = {
    "csv": _Format((".csv",), text.rows, text_schema=text.schema),
    "tsv": _Format((".tsv", ".tab"), text.rows, text_schema=text.schema),
    "parquet": _Format((".parquet", ".pq"), _parquet_rows, b"PAR1", parquet.read_schema),
    "arrow": _Format((".arrow", ".ipc", ".feather"), _arrow_rows, b"ARROW1", _arrow_schema),
    "tfrecord": _Format((".tfrecord", ".tfrecords"), _record_rows),
}
