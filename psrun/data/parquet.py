"""Rows of Parquet files."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from psrun.data import files
from psrun.data.columns import Rows
from psrun.data.lists import Lists, objects, of_lengths
from psrun.errors import ConfigError, Problem

_ROWS_AT_ONCE = 1000


def _parquet() -> Any:
    """pyarrow's module. Raises ConfigError if it is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError([Problem("data", "Parquet files need the parquet extra: pip install 'psrun[parquet]'")])
    from pyarrow import parquet  # an optional extra: only this format needs it

    return parquet


def columns(name: str) -> tuple[str, ...]:
    """The names of a file's columns. Raises ConfigError if pyarrow is not installed."""
    parquet = _parquet()
    with files.opened(name) as stream:
        return tuple(parquet.ParquetFile(stream).schema_arrow.names)


def rows(name: str, wanted: Sequence[str]) -> Iterator[Rows]:
    """The required columns of a file's rows, in order, in pieces.

    Raises:
      ConfigError: pyarrow is not installed.
    """
    parquet, first = _parquet(), 1
    with files.opened(name) as stream:
        file = parquet.ParquetFile(stream, page_checksum_verification=True)
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=list(wanted)):
            arrays = {column: _array(batch.column(column)) for column in wanted}
            yield Rows(range(first, first + batch.num_rows), arrays)
            first += batch.num_rows


def _array(column: Any) -> np.ndarray | Lists:
    """Converts a column of Parquet; null strings become empty, as in text, and null lists empty lists."""
    from pyarrow import types

    kind = column.type
    if types.is_dictionary(kind):
        return _array(column.dictionary_decode())
    if types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        return column.fill_null("").to_numpy(zero_copy_only=False)
    numeric = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    if numeric and not column.null_count:
        return column.to_numpy(zero_copy_only=False)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _lists(column)
    return objects(column.to_pylist())


def _lists(column: Any) -> np.ndarray | Lists:
    """Lists of equal lengths become an array with two axes."""
    from pyarrow import compute

    lengths = compute.fill_null(compute.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    values = _array(column.flatten())
    if isinstance(values, Lists) or values.ndim > 1:  # lists of lists
        return objects(column.to_pylist())
    if len(lengths) and lengths[0] and (lengths == lengths[0]).all():
        return values.reshape(len(lengths), -1)
    return of_lengths(values, lengths)
