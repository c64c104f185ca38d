"""Which rows of files a split holds out, without preparing them."""

from __future__ import annotations

import csv
import itertools
from datetime import date, datetime, time, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from psrun.errors import ConfigError, DataError, PsrunError
from psrun.tables import formats, splits

END_OF_9999 = 253_402_300_799
NOW = 1_700_000_000


def write(path: Path, columns: dict[str, Any]) -> str:
    """A CSV or a Parquet file."""
    if path.suffix == ".parquet":
        parquet.write_table(pa.table(columns), path, row_group_size=100)
        return str(path)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values()))
    return str(path)


def held_out(names: Any, **spec: Any) -> list[int]:
    """The numbers of the held-out rows."""
    names = [names] if isinstance(names, str) else names
    return np.flatnonzero(splits.held_out(names, formats.layout(names), splits.read(spec))).tolist()


def by_time(path: Path, when: Any, **spec: Any) -> list[int]:
    return held_out(write(path, {"when": when}), by="time", column="when", **spec)


def error_of(path: Path, columns: dict[str, Any], **spec: Any) -> PsrunError:
    with pytest.raises((ConfigError, DataError)) as raised:
        held_out(write(path, columns), **spec)
    return raised.value


ENDINGS = pytest.mark.parametrize("ending", ["csv", "parquet"])


def few_rows(count: int, seed: int = 0) -> dict[str, list]:
    """Rows of which many are equal."""
    rng = np.random.default_rng(seed)
    return {
        "a": rng.integers(0, 30, count).tolist(),
        "b": rng.choice(["x", "y", "", "ä"], count).tolist(),
        "c": (rng.integers(0, 5, count) / 8).tolist(),
    }


def sides(columns: dict[str, list], names: list[str], **spec: Any) -> dict[tuple, set[bool]]:
    """The sides of each different row."""
    found: dict[tuple, set[bool]] = {}
    evaluated = splits.held_out(names, formats.layout(names), splits.read(spec))
    for row, side in zip(zip(*columns.values()), evaluated, strict=True):
        found.setdefault(row, set()).add(bool(side))
    return found


@ENDINGS
@pytest.mark.parametrize("num_files", [1, 2, 7])
def test_the_side_of_a_row_depends_on_its_values_and_the_seed_alone(tmp_path, ending, num_files):
    """Not on the order of the rows and of the columns, nor on the number and the names of the files."""
    whole = few_rows(4000)
    expected = sides(whole, [write(tmp_path / f"whole.{ending}", whole)])
    assert {len(each) for each in expected.values()} == {1}
    rng = np.random.default_rng(num_files)
    order = rng.permutation(4000)
    columns = {name: [whole[name][place] for place in order] for name in rng.permutation(list(whole)).tolist()}
    bounds = [0, *sorted(rng.choice(np.arange(1, 4000), num_files - 1, replace=False).tolist()), 4000]
    names = []
    for number, (first, end) in enumerate(itertools.pairwise(bounds)):
        part = {name: values[first:end] for name, values in columns.items()}
        names.append(write(tmp_path / f"{number}.{ending}", part))
    rows = {name: columns[name] for name in whole}
    assert sides(rows, names) == expected
    others = sides(rows, names, seed=1)
    assert {len(each) for each in others.values()} == {1}
    assert others != expected


def test_of_more_rows_than_there_are_in_a_block_equal_ones_are_on_one_side(tmp_path):
    count = 100_000
    columns = {"a": np.random.default_rng(0).permutation(np.repeat(np.arange(count // 10), 10)).tolist()}
    found = sides(columns, [write(tmp_path / "a.csv", columns)])
    assert {len(each) for each in found.values()} == {1}
    assert 0.09 < np.mean([True in each for each in found.values()]) < 0.11


def test_the_rows_that_a_hash_holds_out_stay_the_same():
    """A resumed run holds out the same rows."""
    batch = pa.record_batch({"a": [str(number) for number in range(60)], "b": ["", "x", "y"] * 20})
    chosen = splits._ByHash(splits.SplitSpec(fraction=0.2))
    rows = formats.Rows(batch, np.arange(60))
    assert np.flatnonzero(chosen.held_out(rows, 0)).tolist() == [9, 11, 19, 24, 28, 32, 36, 40, 47, 49, 51, 52, 54]


ALIKE: dict[str, tuple[pa.Array, pa.Array]] = {
    "integers and floats": (pa.array([1, 2**52, 10**15, 0]), pa.array([1.0, 2.0**52, 1e15, -0.0])),
    "integers of two sizes": (pa.array([1, 2], pa.int8()), pa.array([1, 2], pa.uint64())),
    "floats of two sizes": (pa.array([0.1, 0.5], pa.float32()), pa.array(np.float32([0.1, 0.5]).astype(np.float64))),
    "a missing number": (pa.array([None, 1.5]), pa.array([np.nan, 1.5])),
    "a missing text": (pa.array([None, "x"]), pa.array(["", "x"])),
    "only missing values": (pa.nulls(2), pa.array(["", ""])),
    "decimals": (pa.array([Decimal("1.50"), Decimal("2.00"), Decimal("100")]), pa.array([1.5, 2.0, 100.0])),
    "times of two units": (
        pa.array([datetime(2024, 1, 2, 3, 4, 5), None], pa.timestamp("s")),
        pa.array([datetime(2024, 1, 2, 3, 4, 5), None], pa.timestamp("ns")),
    ),
    "times of the day": (pa.array([time(1, 2, 3)], pa.time32("s")), pa.array([time(1, 2, 3)], pa.time64("ns"))),
    "texts and dictionaries": (pa.array(["x", "y", "x"]), pa.array(["x", "y", "x"]).dictionary_encode()),
    "large texts": (pa.array(["x"]), pa.array(["x"], pa.large_string())),
    "texts and bytes": (pa.array(["ä"]), pa.array(["ä".encode()])),
    "lists of two types": (pa.array([[1, 2], [], None]), pa.array([[1.0, 2.0], None, []], pa.large_list(pa.float64()))),
    "structures": (pa.array([{"a": 1, "b": "x"}]), pa.array([{"b": "x", "a": 1.0}])),
}  # fmt: skip


@pytest.mark.parametrize("kind", ALIKE)
def test_equal_values_have_equal_hashes_however_they_are_stored(kind):
    one, other = ALIKE[kind]
    expected = splits.hash_of_rows(pa.record_batch({"a": one, "b": pa.array(["z"] * len(one))}))
    np.testing.assert_array_equal(splits.hash_of_rows(pa.record_batch({"a": other, "b": ["z"] * len(one)})), expected)
    sliced = pa.record_batch({"a": pa.concat_arrays([other, other])}).slice(len(other))
    np.testing.assert_array_equal(splits.hash_of_rows(sliced), splits.hash_of_rows(pa.record_batch({"a": one})))


DIFFERENT: dict[str, pa.Array] = {
    "integers beyond 2^53": pa.array([2**53, 2**53 + 1]),
    "lists": pa.array([[1, 2], [2, 1], [1, 2, 0], [], [0]]),
    "lists of texts": pa.array([["a", "b"], ["ab"], [""], []]),
    "structures": pa.array([{"a": 1, "b": 2}, {"a": 2, "b": 1}]),
    "maps": pa.array([[("a", 1)], [("b", 1)], [("a", 2)]], pa.map_(pa.string(), pa.int64())),
    "nanoseconds": pa.array([1, 2], pa.timestamp("ns")),
    "floats": pa.array([0.1, float(np.float32(0.1)) + 1e-9, 1e300, 1e301]),
    "booleans": pa.array([True, False, None]),
}  # fmt: skip


@pytest.mark.parametrize("kind", DIFFERENT)
def test_different_values_have_different_hashes(kind):
    values = DIFFERENT[kind]
    assert len(set(splits.hash_of_rows(pa.record_batch({"a": values})).tolist())) == len(values)


def test_rows_that_differ_in_lists_alone_are_on_both_sides(tmp_path):
    lists = pa.array([[number, 1] for number in range(1000)])
    assert 150 < len(held_out(write(tmp_path / "a.parquet", {"l": lists}), fraction=0.2)) < 250


def test_columns_of_other_types_in_other_files_are_of_equal_rows(tmp_path):
    one = write(tmp_path / "a.parquet", {"a": pa.array(range(200)), "b": pa.array(["x"] * 200)})
    two = write(tmp_path / "b.parquet", {"b": pa.array(["x"] * 200), "a": pa.array(np.arange(200.0))})
    found = held_out([one, two], fraction=0.2)
    assert found[: len(found) // 2] == [number - 200 for number in found[len(found) // 2 :]]


SENTINELS = {
    "int64": [2**63 - 1], "int32": [2**31 - 1], "uint32": [2**32 - 1], "end of 9999": [END_OF_9999],
    "end of 9999 in ms": [END_OF_9999 * 1000], "none": [0, -1], "nines": [9_999_999_999], "least": [-(2**63)],
    "several": [2**63 - 1, -1, 0, 9_999_999_999],
}  # fmt: skip


@ENDINGS
@pytest.mark.parametrize("scale", [1, 1000, 10**6, 10**9])
@pytest.mark.parametrize("kind", SENTINELS)
def test_a_number_that_stands_for_never_does_not_decide_the_split(tmp_path, kind, scale, ending):
    times = [(NOW + number) * scale for number in range(2000)]
    found = by_time(tmp_path / f"a.{ending}", [*SENTINELS[kind], *times])
    late = {place for place, time in enumerate(SENTINELS[kind]) if time > times[-1]}
    expected = 200 - len(late)
    assert set(found) - late == set(range(len(SENTINELS[kind]) + 2000 - expected, len(SENTINELS[kind]) + 2000))


@ENDINGS
def test_a_date_that_stands_for_never_does_not_decide_the_split(tmp_path, ending):
    days = [date(2024, 1, 1 + number) for number in range(30)]
    assert by_time(tmp_path / f"a.{ending}", [date(9999, 12, 31), *days, date(1, 1, 1)], fraction=0.1) == [0, 29, 30]


EXACT: dict[str, Any] = {
    "integers beyond 2^53": pa.array([2**53 + number for number in range(100)]),
    "nanoseconds": pa.array([NOW * 10**9 + number for number in range(100)], pa.timestamp("ns")),
    "seconds of any size": pa.array([2**53 + number for number in range(100)], pa.timestamp("s")),
    "floats": pa.array(np.arange(100) / 1000),
    "floats as text": [f"{number / 1000}" for number in range(100)],
    "integers and floats as text": [f"{2**53 + number}" for number in range(99)] + ["9007199254741091.5"],
    "seconds with nanoseconds": [f"{NOW}.{number:09d}" for number in range(100)],
    "decimals with nanoseconds": pa.array([Decimal(f"{NOW}.{number:09d}") for number in range(100)]),
    "ISO with nine digits": [f"2024-01-01T00:00:00.{number:09d}" for number in range(100)],
    "times of the day": pa.array(range(100), pa.time64("ns")),
    "dates": [date(1600 + number, 1, 1).isoformat() for number in range(100)],
    "durations": pa.array(range(100), pa.duration("ns")),
    "decimals": pa.array([Decimal(number) for number in range(100)]),
    "with an offset": [f"2024-01-01T00:00:{number:02d}+01:00" for number in range(60)],
    "as the column's zone says": pa.array(range(100), pa.timestamp("ms", "Europe/Berlin")),
}  # fmt: skip


@pytest.mark.parametrize("kind", EXACT)
def test_the_latest_rows_are_exactly_as_many_as_the_fraction_says(tmp_path, kind):
    values = EXACT[kind]
    count = len(values)
    order = np.random.default_rng(0).permutation(count)
    shuffled = values.take(pa.array(order)) if isinstance(values, pa.Array) else [values[place] for place in order]
    path = tmp_path / ("a.parquet" if isinstance(values, pa.Array) else "a.csv")
    assert sorted(order[by_time(path, shuffled, fraction=0.2)]) == list(range(count - count // 5, count))


def test_more_numbers_than_are_sorted_in_memory_are_ranked_in_passes(monkeypatch):
    rng = np.random.default_rng(0)
    numbers = np.concatenate([rng.integers(0, 2**64, 500, np.uint64), rng.integers(0, 50, 500, np.uint64)])
    ordered = np.sort(numbers)[::-1]
    for most in (0, 3, 100, 1 << 20):
        monkeypatch.setattr(splits, "_SORTED", most)
        for rank in (1, 2, 300, 499, 510, 900, 1000):
            found, num_larger, num_equal = splits._ranked(lambda: iter(np.split(numbers, 4)), rank, len(numbers))
            assert found == ordered[rank - 1]
            assert (num_larger, num_equal) == ((numbers > found).sum(), (numbers == found).sum())


def test_more_rows_than_are_kept_in_memory_are_split_in_the_same_way(tmp_path, monkeypatch):
    times = np.random.default_rng(0).integers(0, 500, 1000) / 7
    expected = by_time(tmp_path / "a.csv", times, fraction=0.3)
    assert 290 < len(expected) < 310
    monkeypatch.setattr(splits, "_KEPT_ROWS", 100)
    monkeypatch.setattr(splits, "_SORTED", 10)
    assert by_time(tmp_path / "a.csv", times, fraction=0.3) == expected


@pytest.mark.parametrize(
    ("counts", "fraction", "expected"),  # of rows by time, of which no time is divided
    [
        ([50, 50], 0.1, 50),
        ([90, 10], 0.1, 10),
        ([10, 90], 0.1, 90),
        ([80, 12, 8], 0.1, 8),
        ([85, 8, 7], 0.1, 7),
        ([87, 7, 6], 0.1, 13),
        ([5, 5, 90], 0.95, 95),
    ],
)
def test_rows_of_one_time_stay_on_one_side_and_the_nearest_size_is_chosen(tmp_path, counts, fraction, expected):
    times = np.repeat(np.arange(len(counts)), counts)
    assert len(by_time(tmp_path / "a.csv", times, fraction=fraction)) == expected


ISO = "2024-01-01T00:00:00"
TWO_WAYS: dict[str, tuple[list[Any], str, str]] = {
    "ms among s": ([NOW, NOW + 1, (NOW + 2) * 1000], str(NOW), str((NOW + 2) * 1000)),
    "s among us": ([NOW * 10**6, NOW], str(NOW), str(NOW * 10**6)),
    "ns among ms": ([NOW * 1000, NOW * 10**9, 0], str(NOW * 1000), str(NOW * 10**9)),
    "ms among s with sentinels": ([NOW, -1, 2**63 - 1, 9_999_999_999, NOW * 1000], str(NOW), str(NOW * 1000)),
    "fractions of s and ms": ([NOW + 0.5, NOW * 1000.0], f"{NOW}.5", f"{NOW * 1000}"),
    "ISO and a number": ([ISO, ISO, NOW], ISO, str(NOW)),
    "a number and ISO": ([NOW, ISO], str(NOW), ISO),
    "with and without offset": ([ISO, f"{ISO}Z"], ISO, f"{ISO}Z"),
    "ISO and a word": ([ISO, "soon"], "soon", ISO),
    "ISO and another date": ([ISO, "31.12.2023"], "31.12.2023", ISO),
    "numbers and a word": ([1, 2, "three"], "three", "1"),
}  # fmt: skip


@pytest.mark.parametrize("by", ["time", "last"])
@pytest.mark.parametrize("kind", TWO_WAYS)
def test_times_in_two_ways_are_an_error_that_names_two_values_and_their_rows(tmp_path, kind, by):
    values, first, second = TWO_WAYS[kind]
    spec = {"by": by, "column": "when"} | ({"user": "who"} if by == "last" else {})
    columns = {"who": ["u"] * len(values), "when": values}
    error = error_of(tmp_path / "a.csv", columns, **spec)
    assert isinstance(error, DataError)
    for part in ("data.split.column: when", first, second, "a.csv, row 2"):
        assert part in str(error)


def test_the_row_of_a_value_is_that_of_its_file(tmp_path):
    one = write(tmp_path / "a.csv", {"when": [ISO] * 3})
    two = write(tmp_path / "b.csv", {"when": [ISO, "soon"]})
    with pytest.raises(
        DataError, match=r"'soon' \(.*b\.csv, row 3\), which is not a time like '2024.*' \(.*a\.csv, row 2\)"
    ):
        held_out([one, two], by="time", column="when")


@pytest.mark.parametrize(
    "values",
    [
        [10**exponent for exponent in range(1, 18)],  # numbers that grow, and are no times
        list(range(0, 10**13, 10**10)),
        [NOW * 1000, -(10**12), 10**9],  # ms of dates of birth, one of January 1970
    ],
)
def test_numbers_that_only_grow_are_no_times_in_two_units(tmp_path, values):
    assert by_time(tmp_path / "a.csv", values, fraction=0.3)


UNREADABLE = {
    "German": (["31.12.2023", "01.02.2023"], None), "American": (["5/31/2023"] * 2, None), "words": (["x", "y"], None),
    "another format": (["2023-12-31"] * 2, "%d.%m.%Y"), "infinity": (["inf", "-inf"], None),
    "months": (["2023-05"], None),
}  # fmt: skip


@pytest.mark.parametrize("by", ["time", "last"])
@pytest.mark.parametrize("kind", UNREADABLE)
def test_times_that_cannot_be_read_name_the_key_of_the_format(tmp_path, kind, by):
    values, time_format = UNREADABLE[kind]
    spec = {"by": by, "column": "day", "time_format": time_format} | ({"user": "who"} if by == "last" else {})
    error = error_of(tmp_path / "a.csv", {"who": ["u"] * len(values), "day": values}, **spec)
    assert isinstance(error, ConfigError)
    assert error.problems[0].key == "data.split.time_format"
    assert f"{values[0]!r} (" in str(error)
    assert "%d.%m.%Y" in str(error)


@ENDINGS
@pytest.mark.parametrize("by", ["time", "last"])
def test_a_column_without_any_time_names_its_key(tmp_path, by, ending):
    spec = {"by": by, "column": "day"} | ({"user": "who"} if by == "last" else {})
    missing: list[Any] = ["", "NA", ""] if ending == "csv" else [None] * 3
    error = error_of(tmp_path / f"a.{ending}", {"who": ["u", "v", "v"], "day": missing}, **spec)
    assert isinstance(error, ConfigError)
    assert str(error).startswith("data.split.column: day has no time in any row")


def test_one_time_in_all_rows_is_an_error_that_shows_it(tmp_path):
    with pytest.raises(
        ConfigError, match=r"data\.split\.column: when has one time, 2024-01-01T00:00:00, in all 3 rows"
    ):
        by_time(tmp_path / "a.csv", [ISO] * 3)


@pytest.mark.parametrize("key", ["user", "column"])
def test_lists_are_no_users_and_no_times(tmp_path, key):
    columns = {"user": pa.array([[1]]), "column": pa.array([[1]])} | {
        other: pa.array([1]) for other in ("user", "column") if other != key
    }
    error = error_of(tmp_path / "a.parquet", columns, by="last", user="user", column="column")
    assert str(error).startswith(f"data.split.{key}: {key} holds list<")


@pytest.mark.parametrize("by", ["time", "group"])
def test_lists_are_no_groups_and_no_times_of_a_split_by_time(tmp_path, by):
    error = error_of(tmp_path / "a.parquet", {"column": pa.array([[1], [2]])}, by=by, column="column")
    assert str(error).startswith("data.split.column: column holds list<")


LAST = {
    "numbers": ([3, 1, 2, 9, 8], None),
    "ISO": ([f"2024-01-{day:02d}" for day in (3, 1, 2, 9, 8)], None),
    "German": ([f"{day:02d}.01.2024" for day in (3, 1, 2, 9, 8)], "%d.%m.%Y"),
    "American": ([f"1/{day}/2024" for day in (3, 1, 2, 9, 8)], "%m/%d/%Y"),
    "nine digits": ([f"{ISO}.00000000{day}" for day in (3, 1, 2, 9, 8)], None),
    "missing": (["3", "", "NA", 9, ""], None),
    "ties": ([3, 3, 3, 9, 8], None),
    "offsets": ([f"2024-01-01T12:00+{14 - day:02d}:00" for day in (3, 1, 2, 9, 8)], None),
}  # fmt: skip


@pytest.mark.parametrize("kind", LAST)
def test_the_last_row_of_each_user_is_held_out(tmp_path, kind):
    when, time_format = LAST[kind]
    name = write(tmp_path / "a.csv", {"user": ["u", "u", "u", "v", "v"], "when": when})
    expected = [2, 3] if kind == "ties" else [0, 3]
    assert held_out(name, by="last", user="user", column="when", time_format=time_format) == expected


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_the_last_row_is_that_of_the_latest_unit(tmp_path, unit):
    when = pa.array([NOW * 10**9 + each for each in (1, 3, 2)] if unit == "ns" else [1, 3, 2], pa.timestamp(unit))
    name = write(tmp_path / "a.parquet", {"user": ["u"] * 3, "when": when})
    assert held_out(name, by="last", user="user", column="when") == [1]


def test_times_of_two_units_are_compared(tmp_path):
    one = write(tmp_path / "a.parquet", {"user": ["u"], "when": pa.array([datetime(2024, 1, 1)], pa.timestamp("ns"))})
    two = write(tmp_path / "b.parquet", {"user": ["u"], "when": pa.array([datetime(2023, 1, 1)], pa.timestamp("s"))})
    assert held_out([one, two], by="last", user="user", column="when") == [0]


def test_a_column_with_a_time_zone_beside_one_without_is_an_error(tmp_path):
    zoned = pa.array([datetime(2024, 1, 1, tzinfo=timezone.utc)], pa.timestamp("us", "UTC"))
    one = write(tmp_path / "a.parquet", {"when": zoned})
    two = write(tmp_path / "b.parquet", {"when": pa.array([datetime(2024, 1, 1)], pa.timestamp("us"))})
    with pytest.raises(DataError, match="when is written in two ways"):
        held_out([one, two], by="time", column="when")


@ENDINGS
def test_rows_without_a_user_or_a_group_are_training_examples(tmp_path, ending):
    none = "" if ending == "csv" else None
    users = [none] * 500 + [f"u{number % 50}" for number in range(500)]
    name = write(tmp_path / f"a.{ending}", {"user": users, "when": list(range(1000))})
    assert held_out(name, by="last", user="user", column="when") == list(range(950, 1000))
    found = held_out(name, by="group", column="user", fraction=0.5)
    assert found
    assert min(found) >= 500
    for seed in range(1, 4):
        other = held_out(name, by="group", column="user", fraction=0.5, seed=seed)
        assert other != found
        assert min(other) >= 500


def test_a_group_is_the_same_however_it_is_stored(tmp_path):
    one = write(tmp_path / "a.parquet", {"g": pa.array(range(100))})
    two = write(tmp_path / "b.parquet", {"g": pa.array(np.arange(100.0))})
    three = write(tmp_path / "c.parquet", {"g": pa.array([str(number) for number in range(100)]).dictionary_encode()})
    found = held_out([one, two, three], by="group", column="g", fraction=0.3)
    third = len(found) // 3
    assert found == [number + first for first in (0, 100, 200) for number in found[:third]]


def test_a_seed_belongs_to_splits_by_chance():
    with pytest.raises(ConfigError, match=r"data\.split\.seed: requires data\.split\.by=rows or group"):
        splits.read({"by": "time", "column": "when", "seed": 1})
    with pytest.raises(ConfigError, match=r"data\.split\.seed: is -1"):
        splits.read({"seed": -1})
