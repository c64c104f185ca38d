"""What a column is, over all its values and in whatever blocks they come."""

from __future__ import annotations

import datetime
import decimal
import json
import random
from collections import Counter
from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pytest

from psrun.tables import formats, profiles
from psrun.tables.notations import Notation
from psrun.tables.profiles import Profile, Profiler

DAY = datetime.datetime(2021, 1, 31, 18)


def profile(*blocks: list | pa.Array, kind: pa.DataType | None = None, **notation: str) -> Profile:
    """Of the blocks of a column; of text where no type is said."""
    profiler = Profiler("x", Notation(**notation))
    for block in blocks:
        profiler.add(block if isinstance(block, pa.Array) else pa.array(block, kind or pa.string()))
    return profiler.profile()


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ([["1", "2", "2"]], {"kind": "integers", "least": 1, "most": 2, "num_values": 2, "num_once": 1, "middle": 2}),
        ([["1", " 2 ", "+2", "2"]], {"kind": "integers", "num_values": 2, "values": [2, 1], "counts": [3, 1]}),
        ([["1", "2"], ["3.5"]], {"kind": "numbers", "least": 1, "most": 3.5, "whole": False, "num_values": 3}),
        ([["1.0", "2.0"], ["1"]], {"kind": "numbers", "whole": True, "num_values": 2, "values": ["1", "1.0", "2.0"]}),
        ([["1", "2"], ["word"]], {"kind": "strings", "num_values": 3, "least": None}),
        ([["007", "010"]], {"kind": "strings", "values": ["007", "010"]}),
        ([["1", "2"], ["-01"]], {"kind": "strings"}),
        ([["0", "0.5", "-0.5"]], {"kind": "numbers", "least": -0.5}),
        ([["0x1F", "0xFF"]], {"kind": "strings"}),
        ([["1_000"]], {"kind": "strings"}),
        ([["9007199254740993", "9007199254740992"]], {"kind": "integers", "num_values": 2, "most": 2**53 + 1}),
        (
            [["1", str(2**63)], [str(2**64 + 1), "-3"]],
            {
                "kind": "integers", "least": -3, "most": 2**64 + 1, "num_values": 4,
                "values": ["-3", "1", str(2**64 + 1), str(2**63)],
            },
        ),
        ([["1", "NA", "", " ", "-", "?", "None"]], {"kind": "integers", "num_missing": 6, "num_values": 1}),
        ([["1.5", "NULL"], ["n/a"]], {"kind": "numbers", "num_missing": 2, "markers": ["NULL", "n/a"]}),
        ([["NA", "DE", "", " "]], {"kind": "strings", "num_missing": 2, "num_values": 2, "values": ["DE", "NA"]}),
        ([["", "NA"], [" "]], {"kind": "empty", "num_missing": 3, "num_rows": 3}),
        ([["$1,521.00", "$2"]], {"kind": "strings", "look": "formatted", "samples": ["$1,521.00"]}),
        ([["12 %"], ["5 %", "NA"]], {"kind": "strings", "look": "formatted", "samples": ["12 %"], "num_missing": 0}),
        ([["1", "2"], ["1.521,00"]], {"kind": "strings", "look": "formatted", "proofs": {",": "1.521,00"}}),
        ([["1.5"], ["1,5"]], {"kind": "strings", "look": "", "proofs": {}}),  # both marks: neither
        ([["1.5"], ["1,500.5"]], {"kind": "strings", "look": "formatted", "proofs": {".": "1.5"}}),
        ([["1,5"], ["word"]], {"kind": "strings", "look": "", "proofs": {}}),
        ([["0,5"], ["word"]], {"kind": "strings", "look": "", "proofs": {",": "0,5"}}),
        ([["0.82", "5"], ["27%"]], {"kind": "strings", "look": "formatted", "samples": ["0.82", "27%"]}),
        ([["$82.12"], ["¥12318"]], {"kind": "strings", "look": "formatted", "samples": ["$82.12", "¥12318"]}),
        ([["981", "12.775"]], {"kind": "numbers", "two_ways": "12.775", "most": 981.0, "proofs": {}}),
        ([["981", "12.775"], ["0.5"]], {"kind": "numbers", "two_ways": None, "proofs": {".": "0.5"}}),
        ([["981"]], {"kind": "integers", "two_ways": None, "proofs": {}}),
        ([["inf", "1"]], {"kind": "strings"}),
        ([["1e400", "1"]], {"kind": "strings"}),
        (
            [["2021-01-31", "2021-02-01"]],
            {"kind": "times", "least": "2021-01-31", "most": "2021-02-01", "num_months": 2},
        ),
        ([["2021-01-31 10:20", "NA"]], {"kind": "times", "num_missing": 1, "least": "2021-01-31 10:20:00"}),
        ([["1/31/2021"], ["12/1/2021"]], {"kind": "strings", "look": "times", "samples": ["1/31/2021"], "odd": []}),
        ([["2021-1-31"]], {"kind": "strings", "look": "times"}),
        ([["2021-01-31"], ["2021-02-30"]], {"kind": "strings"}),
        ([["20210131", "20210201"]], {"kind": "integers", "most": 20210201}),
        ([["12:30", "23:45"]], {"kind": "strings", "look": "times"}),
        ([["one two three four", "five six seven"]], {"kind": "strings", "mean_words": 3.5}),
    ],
)  # fmt: skip
def test_text(blocks, expected):
    got = asdict(profile(*blocks))
    assert {key: list(got[key]) if isinstance(got[key], tuple) else got[key] for key in expected} == expected
    assert got["text"]


@pytest.mark.parametrize(
    ("values", "notation", "expected"),
    [
        (["$1,521.00", "$2"], {"decimal_mark": "."}, {"kind": "numbers", "unit": "$", "most": 1521.0, "least": 2.0}),
        (["12 %", "5 %", "NA"], {"decimal_mark": "."}, {"kind": "numbers", "unit": "%", "num_missing": 1}),
        (["1", "1.521,00"], {"decimal_mark": ","}, {"kind": "numbers", "unit": "", "most": 1521.0, "least": 1.0}),
        (["981", "12.775"], {"decimal_mark": ","}, {"kind": "numbers", "most": 12775.0, "two_ways": None}),
        (["981", "12.775"], {"decimal_mark": "."}, {"kind": "numbers", "most": 981.0, "two_ways": None}),
        (["981", "982"], {"decimal_mark": ","}, {"kind": "integers", "decimal_mark": ",", "unit": "", "samples": []}),
        (["1.5", "2e5"], {"decimal_mark": "."}, {"kind": "numbers", "decimal_mark": ".", "unit": "", "samples": []}),
        (["12.5", "3"], {"decimal_mark": ","}, {"kind": "strings", "look": "formatted", "odd": ["12.5"]}),
        (["0.82", "27%"], {"decimal_mark": "."}, {"kind": "strings", "look": "formatted", "samples": ["0.82", "27%"]}),
        (["007", "010"], {"decimal_mark": "."}, {"kind": "strings", "look": ""}),
        (["word", "5"], {"decimal_mark": "."}, {"kind": "strings", "look": ""}),
        (["31.12.2023", "1.1.2023"], {"time_format": "%d.%m.%Y"}, {"kind": "times", "least": "2023-01-01"}),
        (["20210131", "20210201"], {"time_format": "%Y%m%d"}, {"kind": "times", "most": "2021-02-01"}),
        (["12", "11"], {"time_format": "%m"}, {"kind": "integers", "most": 12}),  # an amount as likely as a month
        (["2023-01-31"], {"time_format": "%d.%m.%Y"}, {"kind": "times", "time_format": "iso"}),
        (["2023-03-04"], {"time_format": "%Y-%d-%m"}, {"kind": "times", "least": "2023-04-03"}),
        (
            [f"{n}.01.2023" for n in range(1, 33)], {"time_format": "%d.%m.%Y"},
            {"kind": "strings", "look": "times", "odd": ["32.01.2023"]},
        ),
    ],
)  # fmt: skip
def test_text_in_the_notation_of_the_data_set(values, notation, expected):
    for blocks in ([values], [[each] for each in values]):
        got = asdict(profile(*blocks, **notation))
        assert {key: list(got[key]) if isinstance(got[key], tuple) else got[key] for key in expected} == expected


def test_integers_of_arrow_are_dates_with_the_key_alone():
    days = pa.array([20210131, 20210201])
    assert profile(days).kind == "integers"
    assert profile(days, time_format="%Y%m%d").least == "2021-01-31"
    assert profile(pa.array([20210131, 20210232]), time_format="%Y%m%d").kind == "integers"


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([1, None, 3], pa.int8(), {"kind": "integers", "least": 1, "most": 3, "num_missing": 1}),
        ([2**63, 5], pa.uint64(), {"kind": "integers", "most": 2**63, "values": [5, 2**63]}),
        ([2**53 + 1, None], pa.int64(), {"kind": "integers", "most": 2**53 + 1}),
        (
            [1.0, float("nan"), None, 2.0], pa.float64(),
            {"kind": "numbers", "whole": True, "num_missing": 2, "values": [1, 2]},
        ),
        ([0.5, 0.25], pa.float16(), {"kind": "numbers", "whole": False, "least": 0.25}),
        ([True, False, None], pa.bool_(), {"kind": "booleans", "num_values": 2, "values": [0, 1], "num_missing": 1}),
        (
            [decimal.Decimal("1.50"), decimal.Decimal("2.00")], pa.decimal128(9, 2),
            {"kind": "numbers", "text": False, "most": 2.0},
        ),
        ([decimal.Decimal(2**70)], pa.decimal128(38, 0), {"kind": "integers", "most": 2**70}),
        ([DAY.date()], pa.date32(), {"kind": "times", "least": "2021-01-31", "num_values": 1}),
        ([DAY, None], pa.timestamp("ns", "UTC"), {"kind": "times", "least": "2021-01-31 18:00:00", "num_missing": 1}),
        ([DAY.time()], pa.time32("s"), {"kind": "times", "num_hours": 1, "num_days": 1}),
        ([datetime.timedelta(seconds=90)], pa.duration("ms"), {"kind": "numbers", "least": 90.0}),
        (["a", None, "NA"], pa.string(), {"kind": "strings", "num_missing": 1, "num_null": 1, "num_values": 2}),
        (["1", None], pa.large_string(), {"kind": "integers", "text": True}),
        ([b"ab", b"\xff"], pa.binary(), {"kind": "strings", "num_values": 2}),
        ([None, None], pa.null(), {"kind": "empty", "num_missing": 2}),
        ([{"a": 1}], pa.struct([("a", pa.int64())]), {"kind": "other"}),
        ([], pa.int64(), {"kind": "empty", "num_rows": 0}),
    ],
)  # fmt: skip
def test_types_of_arrow(values, kind, expected):
    got = asdict(profile(values, kind=kind))
    assert {key: list(got[key]) if isinstance(got[key], tuple) else got[key] for key in expected} == expected
    assert got["num_rows"] == len(values)


def test_dictionaries_are_taken_by_value():
    first, second = pa.array(["a", "b", "a"]).dictionary_encode(), pa.array(["b", "c"]).dictionary_encode()
    assert profile(first, second).values == ["a", "b", "c"]
    assert profile(first, second).counts == [2, 2, 1]


def test_lists():
    got = profile([[1, 2], None, [3], []], [[7] * 101], kind=pa.list_(pa.int64()))
    assert (got.kind, got.varies, got.width) == ("integers", True, 2)
    assert (got.longest, got.num_empty, got.num_long) == (101, 2, 1)
    assert (got.num_rows, got.num_items, got.num_values, got.num_missing) == (5, 104, 4, 0)
    fixed = profile([[0.5, 1.5], [2.5, 3.5]], kind=pa.list_(pa.float32(), 2))
    assert (fixed.kind, fixed.varies, fixed.width, fixed.num_empty) == ("numbers", False, 2, 0)
    assert profile([["a", "NA"]], kind=pa.list_(pa.string())).kind == "strings"
    nested = profile([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], kind=pa.list_(pa.list_(pa.int64(), 2), 2))
    assert (nested.width, nested.varies, nested.num_items, nested.most) == (4, False, 8, 8)
    assert profile([["a"], ["a"]], kind=pa.list_(pa.dictionary(pa.int32(), pa.string()))).counts == [2]


def test_the_first_value_that_differs_may_come_last():
    lasts = {"x": "strings", "0.5": "numbers", "01": "strings", "7": "integers", "1,000": "strings"}
    for last, kind in lasts.items():
        assert profile(*[[str(n) for n in range(10, 500)]] * 20, [last]).kind == kind


def test_almost_numbers_name_the_exceptions():
    got = profile([str(n) for n in range(100)] + ["n.k.", "n.k.", "NA"])
    assert (got.kind, got.odd, got.num_missing) == ("strings", ["n.k."], 0)
    assert profile([str(n) for n in range(5)] + ["n.k."]).odd == ()


def test_words_written_in_several_ways():
    assert profile(["yes", "Yes ", "no", "YES", "yes"]).spellings == (("YES", "Yes ", "yes"),)
    assert profile(["yes", "no"]).spellings == ()


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ([["0", "1"], ["2"]], True), ([["1", "2"], ["3"]], True), ([["2", "3"]], False), ([["0", "1"], ["3"]], False),
        ([["0", "2", "1", "3"]], False), ([["a", "b"]], False), ([["0", "", "2"]], False),
    ],
)  # fmt: skip
def test_an_index_counts_the_rows(blocks, expected):
    profiler = Profiler("x")
    place = 0
    for block in blocks:
        profiler.add(pa.array(block), np.arange(place, place + len(block)))
        place += len(block)
    assert profiler.profile().is_index == expected
    for second in ([0, 1], [3, 4]):  # begins again, or goes on
        profiler.begin_file()
        profiler.add(pa.array(map(str, second)), np.arange(2))
        assert profiler.profile().is_index == expected


def test_a_malformed_row_does_not_end_an_index():
    profiler = Profiler("x")
    profiler.add(pa.array([1, 2, 4]), np.array([0, 1, 3]))
    assert profiler.profile().is_index


def test_values_are_counted_in_blocks_as_at_once():
    rng = random.Random(1)
    words = ["", "NA", "7", *(f"v{n}" for n in range(3000))]
    values = [rng.choice(words) for _ in range(20_000)]
    at_once = profile(values)
    blocks = profile(*(values[first : first + 700] for first in range(0, len(values), 700)))
    assert at_once == blocks
    assert (at_once.num_values, at_once.is_exact) == (len(set(values) - {""}), True)
    assert at_once.num_missing == values.count("")
    counts = {value: count for value, count in Counter(values).items() if value and count > 1}
    assert dict(zip(at_once.values, at_once.counts)) == counts
    assert list(at_once.counts) == sorted(at_once.counts, reverse=True)


@pytest.mark.parametrize("kind", [pa.string(), pa.int64(), pa.float64()])
def test_too_many_values_are_estimated(kind):
    blocks = [pa.array(np.arange(first, first + 100_000) * 3).cast(kind) for first in range(0, 700_000, 50_000)]
    got = profile(*blocks, pa.array([-5]).cast(kind))  # each value of the middle is there twice
    assert (got.is_exact, got.least, got.most) == (False, -5, 2_249_997)
    assert 700_000 < got.num_values < 800_000
    assert 0.1 < got.num_once / got.num_values < 0.16
    assert (got.num_rows, got.values) == (1_400_001, ())


def test_exceptions_among_too_many_values_are_not_lost_in_the_sample():
    numbers = [pa.array(np.arange(first, first + 150_000)).cast(pa.string()) for first in (0, 150_000, 300_000)]
    assert profile(*numbers, ["word"], ["NA", "NA"]).kind == "strings"
    assert profile(["word"], *numbers).kind == "strings"
    missing = profile(*numbers, ["NA", "NA"])
    assert (missing.kind, missing.num_missing) == ("integers", 2)


def test_long_texts_are_sampled_too():
    blocks = [[f"{n} {'long ' * 600}" for n in range(first, first + 1000)] for first in range(0, 12_000, 1000)]
    got = profile(*blocks)
    assert not got.is_exact
    assert 9_000 < got.num_values < 15_000
    assert got.num_once == got.num_values


def test_files_and_their_cache(tmp_path):
    for name, rows in (("a.csv", "1,x\n2\n3,y\n"), ("b.csv", "3.5,x\nNA,NA\n")):
        (tmp_path / name).write_text(f"n,w\n{rows}")
    names = [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]
    layout = formats.Layout("csv")
    cache = tmp_path / "cache"
    got = profiles.profile_files(names, layout, cache=cache)
    assert (got["n"].kind, got["n"].num_missing, got["n"].num_rows) == ("numbers", 1, 4)
    assert (got["w"].kind, got["w"].values) == ("strings", ["x", "NA", "y"])
    assert (got["w"].num_bad, got["w"].first_bad) == (1, f"{names[0]}, row 3: 1 fields instead of 2")
    (stored,) = cache.glob("*.profile.json")
    again = profiles.profile_files(names, layout, cache=cache)
    assert {name: json.dumps(asdict(each)) for name, each in again.items()} == (
        {name: json.dumps(asdict(each)) for name, each in got.items()}
    )
    stored.write_text("[]damaged")
    assert profiles.profile_files(names, layout, cache=cache)["n"] == got["n"]
    (tmp_path / "b.csv").write_text("n,w\n5,x\n")
    assert profiles.profile_files(names, layout, cache=cache)["n"].kind == "integers"
