"""Files with rows in each format that psrun reads, tables on them, and the examples of a data source as lists."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import ipc, parquet

from psrun.data import storage
from psrun.tables import columns as conversion
from psrun.tables import formats
from psrun.tables.columns import ColumnSpec

LIST_SEPARATOR = "|"


def write(path: Path, columns: Mapping[str, Any]) -> Path:
    """Writes columns, lists of values or Arrow arrays, in the format that the name of the file says.

    Text has empty fields for missing values; a record leaves these out.
    """
    table = pa.table(
        {name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in columns.items()}
    )
    {
        "csv": _text, "tsv": _text, "parquet": _parquet, "arrow": _arrow, "feather": _arrow, "tfrecord": _records,
    }[path.name.split(".")[1]](path, table)  # fmt: skip
    return path


def _text(path: Path, table: pa.Table) -> None:
    opened = gzip.open if path.name.endswith(".gz") else open
    with opened(path, "wt", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t" if ".tsv" in path.name else ",")
        writer.writerow(table.column_names)
        writer.writerows(map(_field, row.values()) for row in table.to_pylist())


def _field(value: Any) -> str:
    if isinstance(value, list):
        return LIST_SEPARATOR.join(map(str, value))
    return "" if value is None else str(value)


def _parquet(path: Path, table: pa.Table) -> None:
    parquet.write_table(table, path, row_group_size=64)


def _arrow(path: Path, table: pa.Table) -> None:
    with ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=64)


def _records(path: Path, table: pa.Table) -> None:
    write_records(path, map(record, table.to_pylist()))


def write_records(path: Path, records: Iterable[bytes]) -> Path:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path), "GZIP" if path.name.endswith(".gz") else None) as writer:
        for each in records:
            writer.write(each)
    return path


def record(row: Mapping[str, Any]) -> bytes:
    """A tf.train.Example, without features that have no values."""
    import tensorflow as tf

    example = tf.train.Example()
    for name, value in row.items():
        values = value if isinstance(value, list) else [value]
        if values and values[0] is not None:
            feature = example.features.feature[name]
            kinds = {
                bool: feature.int64_list,
                int: feature.int64_list,
                float: feature.float_list,
                str: feature.bytes_list,
            }
            encoded = [each.encode() if isinstance(each, str) else each for each in values]
            kinds[type(values[0])].value.extend(encoded)
    return example.SerializeToString()


def table(path: Path | str, **options: Any) -> Any:
    """A `Table` with the label `label`."""
    from psrun.tables.table import Table

    return Table(**{"path": str(path), "label": "label", **options})


def examples(batches: Iterable[Any]) -> list[dict[str, Any]]:
    """The examples of batches: lists of values by the name of the feature, and the label and the weight by these."""
    found: list[dict[str, Any]] = []
    for features, *others in batches:
        columns = {**features, **dict(zip(("label", "weight"), others))}
        lists = {
            name: each.to_list() if hasattr(each, "to_list") else each.numpy().tolist()
            for name, each in columns.items()
        }
        found += [dict(zip(lists, row)) for row in zip(*lists.values())]
    return found


def evaluated(source: Any, batch_size: int = 64) -> list[dict[str, Any]]:
    """The evaluation examples, in order."""
    return examples(source.evaluation(batch_size=batch_size))


def read(path: Path, **options: Any) -> list[dict[str, Any]]:
    """All rows of a file as examples, in order: those of an evaluation set."""
    other = path.with_name(f"other-{path.name}")
    other.write_bytes(path.read_bytes())
    return evaluated(table(other, eval_path=str(path), **options))


def converted(path: Path, column: str, dtype: str = "string", default: Any = None) -> tuple[list, list[int]]:
    """The values of a column of a file or a folder as a prepared set has them, and the numbers of malformed rows."""
    names = storage.find(str(path))
    layout = formats.layout(names, folders=(str(path),))
    values: list[Any] = []
    malformed: list[int] = []
    unified = None if layout.is_text else formats.schema(names, layout)
    for name in names:
        for rows in formats.rows(name, [column], layout, unified):
            piece = conversion.convert(rows, {"x": ColumnSpec(column, dtype, default=default)})
            values += piece.batch.column("x").to_pylist()
            malformed += [number for number, _ in piece.problems]
    return values, malformed
