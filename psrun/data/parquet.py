"""Rows of Parquet files."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from psrun.data import files
from psrun.data.columns import Rows, objects
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


def _array(column: Any) -> np.ndarray:
    """Converts a column of Parquet; null strings become empty, as in text."""
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
