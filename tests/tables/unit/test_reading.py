"""Rows of files as they come out, where a good guess about pyarrow is wrong."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pytest
from table_files import converted, write

from psrun.errors import ConfigError, DataError
from psrun.tables import formats


def text(folder: Path, content: str, name: str = "rows.csv") -> Path:
    path = folder / name
    path.write_text(content)
    return path


@pytest.fixture(params=[400, 1 << 22])
def blocks(request, monkeypatch):
    monkeypatch.setattr("psrun.tables.text._BLOCK_BYTES", request.param)


def test_line_feeds_in_quotes_are_part_of_their_value(tmp_path, blocks):
    words = [f'"first {index}\nsecond\n\nthird"' for index in range(300)]
    expected = [word.strip('"').encode() for word in words]
    path = text(tmp_path, "x,y\n" + "".join(f"{word},{index % 2}\n" for index, word in enumerate(words)))
    assert converted(path, "x") == (expected, [])
    alone = text(tmp_path, "x\n" + "\n".join(words) + "\n", "alone.csv")
    assert converted(alone, "x") == (expected, [])


def test_a_field_may_be_longer_than_a_block(tmp_path, blocks):
    long = "a" * 300_000
    path = text(tmp_path, f'x,y\na,0\nb,1\n{long},0\n"{long},\n",1\nc,0\n' + "d,1\n" * 300)
    assert converted(path, "x") == ([b"a", b"b", long.encode(), f"{long},\n".encode(), b"c", *[b"d"] * 300], [])


def test_malformed_rows_have_the_number_that_a_person_counts(tmp_path, blocks):
    good = "\n".join(f'{index},"two\nlines",0\n' for index in range(40))  # each followed by a blank line
    values, bad = converted(text(tmp_path, f"x,word,y\n{good}\n1,2\n5,b,1\nlast,b,1\n"), "x", "float32")
    assert values == [*range(40), 5]
    assert bad == [82, 84]


def test_a_quote_that_is_not_closed_does_not_swallow_the_rest(tmp_path):
    for content in ('x,y\n1,0\n"2,1\n3,0\n', 'y,x\n1,0\n0,"2\n1,3\n'):
        with pytest.raises(DataError, match="row 3 "):
            converted(text(tmp_path, content), "x")
    assert converted(text(tmp_path, 'x,y\n5" pipe,0\n3,1\n'), "x")[0] == [b'5" pipe', b"3"]


def test_an_empty_line_of_a_file_with_one_column_is_a_row(tmp_path):
    assert converted(text(tmp_path, "x\n1\n\n2\n"), "x")[0] == [b"1", b"", b"2"]


def test_columns_of_parquet_files_may_differ_in_type(tmp_path):
    first, second = tmp_path / "a.parquet", tmp_path / "b.parquet"
    write(first, {"x": pa.array([1, 2], pa.int32())})
    write(second, {"x": pa.array([2**40, 5], pa.int64())})
    assert converted(tmp_path, "x", "int64")[0] == [1, 2, 2**40, 5]
    write(second, {"x": [1.5, 2.5]})
    assert converted(tmp_path, "x", "float32")[0] == [1.0, 2.0, 1.5, 2.5]
    write(first, {"x": [None, None]})
    write(second, {"x": ["p", "q"]})
    assert converted(tmp_path, "x")[0] == [b"", b"", b"p", b"q"]


def test_dictionaries_are_read_by_value(tmp_path):
    path = write(tmp_path / "rows.parquet", {"x": pa.array(["b", "a", None, "b"]).dictionary_encode()})
    assert converted(path, "x")[0] == [b"b", b"a", b"", b"b"]


def test_folders_of_a_partitioned_dataset_are_columns(tmp_path):
    for year in (2025, 2026):
        (tmp_path / f"year={year}").mkdir()
        write(tmp_path / f"year={year}" / "part-0.parquet", {"x": [1.0, 2.0]})
    assert converted(tmp_path, "year", "int64")[0] == [2025, 2025, 2026, 2026]


def test_the_format_of_a_file_without_a_known_extension_is_found(tmp_path):
    content = "x,y\n" + "".join(f"{n},{n % 2}\n" for n in range(20))
    write(tmp_path / "rows.arrow", {"x": [1.5, 2.5]}).rename(tmp_path / "rows")
    with gzip.open(tmp_path / "rows.txt.gz", "wt") as file:
        file.write(content)
    text(tmp_path, content, "train.txt")
    text(tmp_path, content.replace(",", "\t"), "tabs.txt")
    expected = {"train.txt": "csv", "tabs.txt": "tsv", "rows.txt.gz": "csv", "rows": "arrow"}
    assert {name: formats.detect([str(tmp_path / name)]) for name in expected} == expected
    with pytest.raises(ConfigError):
        formats.detect([str(text(tmp_path, "words only\nmore words\n", "notes.txt"))])
