"""Rows of files as they come out, where a good guess about pyarrow is wrong; and prepared rows of several batches."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from psrun.data import formats, prepared_rows
from psrun.errors import ConfigError, DataError

pytestmark = pytest.mark.tensorflow


def text(tmp_path: Path, content: str, name: str = "rows.csv") -> str:
    path = tmp_path / name
    path.write_text(content)
    return str(path)


def table(path: Any, **options: Any) -> Any:
    from psrun.data.table import Table

    return Table(path=str(path), label="y", **options)


def spec(path: Any, column: str = "x", **options: Any) -> dict[str, Any]:
    """What the guess says about a column."""
    features = table(path, **options).facts["features"]
    return {name: value for name, value in features[column].items() if name not in ("column", "bins")}


def csv_of(values: list[Any], column: str = "x") -> str:
    """A file with a label that alternates, and another feature."""
    lines = [f"{value},{index % 2},{index * 0.5}" for index, value in enumerate(values)]
    return "\n".join([f"{column},y,z", *lines]) + "\n"


def values(path: Any, column: str, **options: Any) -> list[Any]:
    """The values of a column as training examples have them, in the order of the file."""
    source = table(path, features={column: options}, task="binary")
    batches = source._train.in_order(10_000).as_numpy_iterator()
    return np.concatenate([each[2][column] for each in batches])[:, 0].tolist()


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr("psrun.data.text._BLOCK_BYTES", 400)


def test_ids_beyond_int64_stay_what_they_are(tmp_path):
    ids = [9007199254740993, 9007199254740992, 2**63, 2**64 - 1] * 20
    path = text(tmp_path, csv_of(ids))
    described = spec(path)
    assert described["dtype"] == "string"
    assert set(described["vocabulary"]) == {str(each) for each in ids}
    assert values(path, "x", dtype="string")[:4] == [str(each).encode() for each in ids[:4]]
    with pytest.raises(DataError, match=r"row 4: column x: '9223372036854775808' is too large for an int64"):
        values(path, "x", dtype="int64", num_buckets=5)


@pytest.mark.parametrize(
    "codes", [["007", "010", "123"], ["0xFFFFFFFFFFFFFFFF", "0xFFFFFFFF", "0x10"], ["1e5x", "3", "4"]]
)
def test_codes_stay_text(tmp_path, codes):
    path = text(tmp_path, csv_of(codes * 20))
    described = spec(path)
    assert (described["dtype"], set(described["vocabulary"])) == ("string", set(codes))
    with pytest.raises(DataError, match=r"is not an integer"):
        values(text(tmp_path, csv_of(["5", "0x10"])), "x", dtype="int64", num_buckets=5)


def test_types_are_decided_over_all_blocks(tmp_path, small_blocks):
    whole = [str(each) for each in range(400)]
    assert "dtype" not in spec(text(tmp_path, csv_of([*whole, "399.5"])))
    assert values(tmp_path / "rows.csv", "x")[-1] == 399.5
    words = text(tmp_path, csv_of([*(["1", "2", "3"] * 200), "word", "word", "word"]))
    assert spec(words) == {"dtype": "string", "vocabulary": ["1", "2", "3", "word"]}


@pytest.mark.parametrize(
    "marker", ["", " ", "NA", "N/A", "#N/A", "n/a", "NULL", "null", "nan", "NaN", "None", "?", "-"]
)
def test_markers_of_missing_values_do_not_make_words_of_numbers(tmp_path, marker):
    path = text(tmp_path, csv_of([*range(50), marker, *range(50)]))
    source = table(path)
    assert source.facts["features"]["x"]["nullable"] is True
    (row,) = [row for row in source.guessed if row["feature"] == "x"]
    assert row["missing"] == "1"
    read = values(path, "x", nullable=True)
    assert np.isnan(read[50])
    assert read[51:] == [float(each) for each in range(50)]


def test_a_marker_among_words_is_a_word(tmp_path):
    assert spec(text(tmp_path, csv_of(["DE", "NA", "None"] * 20)))["vocabulary"] == ["DE", "NA", "None"]


def test_numbers_that_no_float_holds_are_malformed(tmp_path):
    for number, message in (
        ("1e400", "'1e400' is too large"),
        ("1e40", "'1e40' is too large"),
        ("inf", "'inf' is too"),
    ):
        with pytest.raises(DataError, match=f"row 2: column x: {message}"):
            values(text(tmp_path, csv_of([number, 1])), "x")


def test_blanks_and_signs_around_numbers(tmp_path):
    path = text(tmp_path, csv_of([" 12", "+5", "7 "]))
    assert values(path, "x") == [12.0, 5.0, 7.0]
    assert values(path, "x", dtype="int64", num_buckets=9) == [12, 5, 7]


def test_line_feeds_in_quotes_are_part_of_their_value(tmp_path, small_blocks):
    words = [f'"first {index}\nsecond\n\nthird"' for index in range(300)]
    path = text(tmp_path, "x,y\n" + "".join(f"{word},{index % 2}\n" for index, word in enumerate(words)))
    expected = [word.strip('"').encode() for word in words]
    assert values(path, "x", dtype="string") == expected
    alone = text(tmp_path, "x\n" + "\n".join(words) + "\n", "alone.csv")
    rows = list(formats.rows(alone, ["x"], formats.Layout("csv")))
    read = [value for piece in rows for value in piece.batch.column("x").to_pylist()]
    assert read == [each.decode() for each in expected]


def test_a_field_may_be_longer_than_a_block(tmp_path, small_blocks):
    long = "a" * 300_000
    path = text(tmp_path, csv_of(["a", "b", long, f'"{long},\n"', "c"] + ["d"] * 300))
    assert values(path, "x", dtype="string")[:5] == [b"a", b"b", long.encode(), f"{long},\n".encode(), b"c"]


def test_malformed_rows_have_the_number_that_a_person_counts(tmp_path, small_blocks):
    good = "\n".join(f'{index},"two\nlines",0\n' for index in range(40))  # each followed by a blank line
    path = text(tmp_path, f"x,word,y\n{good}\n1,2\n5,b,1\nlast,b,1\n")
    source = table(path, features={"x": {}}, task="binary", max_bad_rows=2)
    assert source.num_train_examples == 41
    with pytest.raises(DataError, match=r"row 82: 2 fields instead of 3"):
        table(path, features={"x": {}}, task="binary")
    with pytest.raises(DataError, match=r"row 84: column x: 'last' is not a number \(malformed rows: 2 so far"):
        table(path, features={"x": {}}, task="binary", max_bad_rows=1)


def test_a_quote_that_is_not_closed_does_not_swallow_the_rest(tmp_path):
    path = text(tmp_path, 'x,y\n1,0\n"2,1\n3,0\n')
    with pytest.raises(DataError, match=r"row 3 cannot be read: unexpected end of data"):
        values(path, "x")
    assert values(text(tmp_path, 'x,y\n5" pipe,0\n3,1\n'), "x", dtype="string") == [b'5" pipe', b"3"]


def test_an_empty_line_of_a_file_with_one_column_is_a_row(tmp_path):
    (rows,) = formats.rows(text(tmp_path, "x\n1\n\n2\n"), ["x"], formats.Layout("csv"))
    assert rows.batch.column("x").to_pylist() == ["1", "", "2"]


def test_columns_of_parquet_files_may_differ_in_type(tmp_path):
    def write(name: str, **columns: Any) -> None:
        parquet.write_table(pa.table(columns), tmp_path / f"{name}.parquet")

    write("a", x=pa.array([1, 2], pa.int32()), y=[0, 1])
    write("b", x=pa.array([2**40, 5], pa.int64()), y=[0, 1])
    assert values(tmp_path, "x", dtype="int64", num_buckets=9) == [1, 2, 2**40, 5]
    write("b", x=pa.array([1.5, 2.5]), y=[0, 1])
    assert values(tmp_path, "x") == [1.0, 2.0, 1.5, 2.5]
    write("a", x=pa.array([None, None]), y=[0, 1])
    write("b", x=["p", "q"], y=[0, 1])
    assert values(tmp_path, "x", dtype="string") == [b"", b"", b"p", b"q"]
    write("b", x=["p", "q"], more=[1, 2], y=[0, 1])
    with pytest.raises(DataError, match=r"b.parquet differ from those of .*a.parquet: it also has 'more'"):
        values(tmp_path, "x", dtype="string")


def test_dictionaries_are_read_by_value(tmp_path):
    path = tmp_path / "rows.parquet"
    x = pa.array(["b", "a", None, "b"]).dictionary_encode()
    parquet.write_table(pa.table({"x": x, "y": pa.array([0, 1, 0, 1]).dictionary_encode()}), path)
    assert values(path, "x", dtype="string") == [b"b", b"a", b"", b"b"]


def test_folders_of_a_partitioned_dataset_are_columns(tmp_path):
    for year in (2025, 2026):
        folder = tmp_path / f"year={year}"
        folder.mkdir()
        parquet.write_table(pa.table({"x": [1.0, 2.0], "y": [0, 1]}), folder / "part-0.parquet")
    assert values(tmp_path, "year", dtype="int64", num_buckets=9) == [2025, 2025, 2026, 2026]


@pytest.mark.parametrize("name", ["rows.arrow", "rows.feather", "rows.jsonl", "rows"])
def test_arrow_files_and_json_lines(tmp_path, name):
    path = tmp_path / name
    columns = pa.table({"x": [1.5, 2.5], "words": ["a", "b"], "y": [0, 1]})
    if name.endswith("jsonl"):
        path.write_text("".join(f'{{"x": {x}, "words": "w", "y": {y}}}\n' for x, y in ((1.5, 0), (2.5, 1))))
    else:
        with ipc.new_file(str(path), columns.schema) as writer:
            writer.write_table(columns, max_chunksize=1)
    assert values(path, "x") == [1.5, 2.5]


def test_the_format_of_a_file_without_a_known_extension_is_found(tmp_path):
    content = csv_of(list(range(20)))
    for name, layout in (("train.txt", "csv"), ("tabs.txt", "tsv")):
        path = text(tmp_path, content if layout == "csv" else content.replace(",", "\t"), name)
        assert formats.detect([path]) == layout
    with gzip.open(tmp_path / "rows.txt.gz", "wt") as file:
        file.write(content)
    assert formats.detect([str(tmp_path / "rows.txt.gz")]) == "csv"
    with pytest.raises(ConfigError, match="is unknown for the file name"):
        formats.detect([text(tmp_path, "words only\nmore words\n", "notes.txt")])


def test_prepared_rows_of_several_record_batches(tmp_path, monkeypatch):
    """Any rows in any order, and the types next to each other."""
    import tensorflow as tf

    from psrun.data.columns import Column

    monkeypatch.setattr(prepared_rows, "BATCH_ROWS", 100)
    rng = np.random.default_rng(1)
    count = 1050
    columns = {
        "label": Column("float32"),
        "pair": Column("float32", 2),
        "word": Column("string"),
        "words": Column("string", 2),
        "id": Column("int64"),
        "ids": Column("int64", max_values=4),
        "tags": Column("string", max_values=3),
        "other": Column("float32"),
    }
    words = [f"{'w' * (n % 30)}{n}" if n % 7 else "" for n in range(count)]
    written: dict[str, list[Any]] = {
        "label": rng.integers(0, 2, count).tolist(),
        "pair": rng.random((count, 2), np.float32).tolist(),
        "word": words,
        "words": [[word, f"{word}-"] for word in words],
        "id": rng.integers(-(2**62), 2**62, count).tolist(),
        "ids": [rng.integers(-9, 9, n % 5).tolist() for n in range(count)],
        "tags": [[f"{n}{k}" * k for k in range(n % 4)] for n in range(count)],
        "other": rng.random(count, np.float32).tolist(),
    }
    path = tmp_path / "rows.arrow"
    writer = prepared_rows.Writer(path, columns)
    schema = prepared_rows.schema(columns)
    for first in range(0, count, 30):
        part = {name: each[first : first + 30] for name, each in written.items()}
        writer.add(pa.record_batch(part, schema=schema))
    writer.close()
    rows = prepared_rows.opened(path, columns)
    assert rows.num_examples == count
    numbers = rng.permutation(count)
    batches = tf.data.Dataset.from_tensors((tf.constant(0, tf.int64), tf.constant(numbers, tf.int64)))
    ((_, _, read),) = rows.read(batches)
    for name, column in columns.items():
        expected = [written[name][number] for number in numbers]
        found = read[name].to_list() if column.max_values is not None else read[name].numpy().tolist()
        if column.dtype == "string":
            expected = [each.encode() if isinstance(each, str) else [e.encode() for e in each] for each in expected]
        if column.max_values is None and column.width == 1:
            expected = [[each] for each in expected]
        assert found == expected, name
