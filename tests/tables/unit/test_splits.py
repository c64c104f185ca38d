"""Which rows of one table are evaluation examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import table_files
from pyarrow import csv, parquet

from psrun.errors import ConfigError
from psrun.tables import splits, text
from psrun.tables.table import Table

pytestmark = pytest.mark.tensorflow


def write(path: Path, rows: list[tuple], header: str = "user,when,x,y") -> Path:
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def rows(count: int, first: int = 0) -> list[tuple]:
    return [(n % 40, 1000 - n, n * 0.5, n % 2) for n in range(first, first + count)]


def table(path: Path, **options: Any) -> Any:
    given = {"label": "y", "features": {"x": {}}, "task": "binary", **options}
    return Table(path=str(path), cache=str(path.parent / "cache"), **given)


def held_out(path: Path, **options: Any) -> list[float]:
    """The feature x of the evaluation examples, in their order."""
    source = table(path, **options)
    batches = source.evaluation(batch_size=64).as_numpy_iterator()
    return np.concatenate([each[0]["x"][:, 0] for each in batches]).tolist()


def test_a_fraction_of_the_rows_is_held_out_and_more_rows_move_none(tmp_path):
    some = held_out(write(tmp_path / "rows.csv", rows(1000)), split=0.2)
    assert 150 < len(some) < 250
    more = held_out(write(tmp_path / "rows.csv", rows(1500)), split=0.2)
    assert more[: len(some)] == some
    backwards = held_out(write(tmp_path / "rows.csv", rows(1000)[::-1]), split=0.2)
    assert sorted(backwards) == sorted(some)
    source = table(tmp_path / "rows.csv", split=0.2)
    assert source.num_train_examples + source.num_eval_examples == 1000
    spec = {"by": "rows", "fraction": 0.2, "seed": 0}
    assert source.facts["split"] == {"spec": spec, "num_different": 1000, "largest": 1}
    assert "of 1,000 rows are evaluation examples" in source.notes[-1]
    assert not source.warnings


def test_features_and_formats_do_not_change_the_split(tmp_path):
    path = write(tmp_path / "rows.csv", rows(400))
    expected = held_out(path, split=0.2)
    assert held_out(path, split=0.2, features={"x": {}, "user": {"dtype": "int64", "num_buckets": 40}}) == expected
    other = csv.read_csv(path, convert_options=csv.ConvertOptions(column_types={"x": pa.string()}))
    parquet.write_table(other, tmp_path / "rows.parquet")
    assert held_out(tmp_path / "rows.parquet", split=0.2) == expected


def test_equal_rows_are_on_one_side(tmp_path):
    path = write(tmp_path / "rows.csv", [(1, 1, n % 50, n % 2) for n in range(1000)])
    batches = table(path, split=0.2).training_rows.in_order(64)
    trained = {x for each in batches.as_numpy_iterator() for x in each[2]["x"][:, 0].tolist()}
    held = held_out(path, split=0.2)
    assert held
    assert not set(held) & trained
    other = held_out(path, split={"fraction": 0.2, "seed": 1})
    assert set(other) != set(held)


SIZES: dict[str, tuple[list[tuple], Any, str]] = {
    "few different rows": (
        [(1, 1, n % 30, n % 2) for n in range(900)], {"seed": 11},
        "split: holds out 210 of 900 rows instead of about 90: there are 30 different rows, too few",
    ),
    "few rows": (
        [(n, 1, n, n % 2) for n in range(18)], {},
        "split: holds out 6 of 18 rows instead of about 2: there are 18 different rows, too few",
    ),
    "few groups": (
        [(n % 25, 1, n, n % 2) for n in range(1000)], {"by": "group", "column": "user", "seed": 4},
        "split: holds out 40 of 1,000 rows instead of about 100: there are 25 different groups, too few",
    ),
    "one large group": (
        [(0 if n < 900 else n, 1, n, n % 2) for n in range(1000)], {"by": "group", "column": "user", "fraction": 0.3},
        "one group is in 900 rows, which stay on one side",
    ),
    "equal times": (
        [(0, "2024-01-0" + "123"[n % 3], n, n % 2) for n in range(300)], {"by": "time", "column": "when"},
        "split: holds out 100 of 300 rows instead of about 30: 100 rows have the time 2024-01-03T00:00:00",
    ),
    "no labels": (
        [(0, n, n, n % 2 if n < 97 else "") for n in range(100)], {"by": "time", "column": "when", "fraction": 0.05},
        "split: holds out 2 of 97 rows instead of about 5: other rows of the split have no label",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", SIZES)
def test_a_split_of_another_size_than_was_asked_for_says_so_and_why(tmp_path, kind):
    found, split, expected = SIZES[kind]
    (warning,) = [each for each in table(write(tmp_path / "rows.csv", found), split=split).warnings if "split" in each]
    assert expected in warning


def test_a_row_for_each_user_is_the_reason_why_none_is_left_to_train_on(tmp_path):
    path = write(tmp_path / "rows.csv", [(n, n, n, n % 2) for n in range(40)])
    with pytest.raises(
        ConfigError, match="none of 40 rows to train on: there are 40 different values of user, each with"
    ):
        table(path, split={"by": "last", "user": "user", "column": "when"})


SPELLED = [("A ", 1), ("a", 2), ("b", 3), ("b", 4), ("a", 5), ("", 6)] * 20


def test_groups_and_users_and_labels_that_differ_only_in_case_or_blanks_get_a_warning(tmp_path):
    path = write(tmp_path / "rows.csv", [(group, n, n, n % 2) for group, n in SPELLED])
    alike = "has values that differ only in case or blanks, and count as different: 'A ' = 'a'"
    for by in ({"by": "group", "fraction": 0.5}, {"by": "last"}):
        column = {"column": "user"} if by["by"] == "group" else {"user": "user", "column": "when"}
        source = table(path, split=by | column)
        assert f"data.split: user {alike}" in source.warnings[0]
        assert "; 20 rows without user are training examples" in source.notes[-1]
    other = write(tmp_path / "other.csv", [("5" if n % 2 else "5.0", n, n, n % 3 % 2) for n in range(40)])
    warning = table(other, split={"by": "last", "user": "user", "column": "when"}).warnings[0]
    assert "user has values that differ only in case, blanks or decimals of zero" in warning
    source = table(path, label="user", task=None, split=None)
    assert source.num_classes == 3
    assert f"label user {alike}" in source.warnings


def test_whole_groups_are_held_out(tmp_path):
    path = write(tmp_path / "rows.csv", rows(2000))
    held = {2 * x % 40 for x in held_out(path, split={"by": "group", "column": "user", "fraction": 0.3})}
    assert 4 < len(held) < 22
    batches = table(path, split={"by": "group", "column": "user", "fraction": 0.3}).training_rows.in_order(64)
    trained = {2 * x % 40 for each in batches.as_numpy_iterator() for x in each[2]["x"][:, 0]}
    assert not held & trained
    assert held | trained == set(range(40))


@pytest.mark.parametrize(
    ("form", "time_format"), [("{}", None), ("2026-01-01T00:{:02}:00", None), ("01.01.26 0:{:02}", "%d.%m.%y %H:%M")]
)
def test_the_latest_rows_are_held_out(tmp_path, form, time_format):
    path = write(
        tmp_path / "rows.csv", [(0, form.format(n), n, n % 2) for n in np.random.default_rng(1).permutation(50)]
    )
    split = {"by": "time", "column": "when", "fraction": 0.2, "time_format": time_format}
    assert sorted(held_out(path, split=split)) == list(range(40, 50))


def test_a_split_by_time_stays_where_it_was_when_the_run_began(tmp_path):
    path = write(tmp_path / "rows.csv", [(0, n, n, n % 2) for n in range(100)])
    split = {"by": "time", "column": "when"}
    began = table(path, split=split)
    assert began.facts["split"]["since"] == 90
    write(path, [(0, n, n, n % 2) for n in range(200)])
    assert held_out(path, split=split, recorded=began.facts) == list(range(90, 200))
    assert held_out(path, split=split) == list(range(180, 200))


def test_the_last_row_of_each_user_is_held_out_of_equal_times_the_last_in_the_file(tmp_path):
    path = write(tmp_path / "a.csv", [("u", 5, 1, 0), ("v", 2, 2, 1), ("u", 7, 3, 0), ("bad",), ("v", 1, 4, 1)])
    write(tmp_path / "b.csv", [("u", 7, 5, 0), ("w", 1, 6, 1), ("v", "", 7, 1)])
    split = {"by": "last", "user": "user", "column": "when"}
    assert held_out(path.parent / "?.csv", split=split, max_bad_rows=1) == [2, 5, 6]


@pytest.mark.parametrize("first", [2**53, 1_700_000_000_000_000_000])  # such as nanoseconds, or ids that grow
def test_the_last_row_is_that_of_the_largest_integer_that_no_float_holds(tmp_path, first):
    path = write(tmp_path / "a.csv", [("u", first, 1, 0), ("u", first + 1, 2, 0), ("u", first, 3, 1)])
    assert held_out(path, split={"by": "last", "user": "user", "column": "when"}) == [2]


@pytest.mark.parametrize("start", ["2024-01-01T00:00:00", "1700000000"])
def test_a_time_from_which_on_rows_are_held_out_is_recorded_exactly(tmp_path, start):
    times = [f"{start}.{n:09d}" for n in range(100)]
    path = write(tmp_path / "rows.csv", [(0, when, n, n % 2) for n, when in enumerate(times)])
    split = {"by": "time", "column": "when"}
    began = table(path, split=split)
    assert began.facts["split"]["since"] == times[90].rstrip("0") + "0" * ("-" in start)
    write(path, [(0, when, n, n % 2) for n, when in enumerate(times + [times[-1]] * 50)])
    assert held_out(path, split=split, recorded=began.facts) == list(range(90, 150))
    write(path, rows(100) if "-" in start else [(0, f"2024-01-01T00:00:{n:02d}", n, n % 2) for n in range(60)])
    with pytest.raises(ConfigError, match=rf"data\.split\.column: the run held out the rows since {start}\.0"):
        table(path, split=split, recorded=began.facts)


def test_records_without_a_schema_are_split_by_their_values(tmp_path):
    columns = {"x": [float(number) for number in range(1000)], "y": [number % 2 for number in range(1000)]}
    path = table_files.write(tmp_path / "rows.tfrecord", columns)
    assert 60 < len(held_out(path, split=0.1)) < 140
    with pytest.raises(ConfigError, match=r"data\.split\.by: is time, which TFRecord files have no columns for"):
        table(path, split={"by": "time", "column": "x"})


def test_hashes_depend_on_names_and_values_and_not_on_the_order_of_columns():
    one = pa.record_batch({"a": ["x", "", "x" * 5000], "b": ["1", "2", "1"]})
    hashes = splits.hash_of_rows(one)
    assert len(set(hashes)) == 3
    np.testing.assert_array_equal(splits.hash_of_rows(one.select(["b", "a"])), hashes)
    encoded = pa.record_batch({name: column.dictionary_encode() for name, column in zip("ab", one.columns)})
    np.testing.assert_array_equal(splits.hash_of_rows(encoded), hashes)
    assert not set(splits.hash_of_rows(one.rename_columns(["a", "c"]))) & set(hashes)
    spread = splits.hash_of_rows(pa.record_batch({"a": [str(n) for n in range(100_000)]})) / 2.0**64
    np.testing.assert_allclose(np.histogram(spread, 20, (0, 1))[0], 5000, rtol=0.06)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 5000])
def test_a_hash_of_a_text_is_a_polynomial_in_its_bytes(length):
    written = ["", "x" * length, "é" * (length // 2), "yz"]
    texts = pa.array(["before", *written])[1:]
    sums = []
    for each in written:
        data = each.encode()
        powers = [pow(int(splits._PRIME), 1 + place % len(splits._POWERS), 2**64) for place in range(len(data))]
        total = len(data) + sum((byte + 1) * power for byte, power in zip(data, powers))
        sums.append(total % 2**64)
    np.testing.assert_array_equal(splits._hash_of_texts(texts), splits._mixed(np.array(sums, np.uint64)))


def test_a_table_is_guessed_split_and_prepared_from_one_pass_over_its_files(tmp_path, monkeypatch):
    path = write(tmp_path / "rows.csv", rows(1000))
    passes = []
    opened = text.arrow_csv.open_csv
    monkeypatch.setattr(text.arrow_csv, "open_csv", lambda *arguments: passes.append(1) or opened(*arguments))
    source = Table(path=str(path), label="y", split=0.1, cache=str(tmp_path / "cache"))
    assert source.num_train_examples + source.num_eval_examples == 1000
    assert len(passes) == 1
