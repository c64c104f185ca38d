"""The features that are proposed for columns, by the content of these."""

from __future__ import annotations

import datetime
import random

import pyarrow as pa
import pytest

from psrun.data import feature_spec, proposals
from psrun.data.profiles import Profile, Profiler
from psrun.data.proposals import Proposal

COUNT = 6000
RNG = random.Random(3)


def profile(values: list, kind: pa.DataType | None = None, column: str = "x") -> Profile:
    profiler = Profiler(column)
    profiler.add(pa.array(values, kind))
    return profiler.profile()


def proposed(values: list, kind: pa.DataType | None = None, column: str = "x") -> dict[str, Proposal]:
    return proposals.propose([profile(values, kind, column)], ())


def options(values: list, kind: pa.DataType | None = None, column: str = "x") -> dict:
    """The options of the only feature, without the column's name."""
    (name,) = found = proposed(values, kind, column)
    assert found[name].feature is not None, found[name].note
    return {key: value for key, value in feature_spec.options(found[name].feature).items() if key != "column"}


def note(values: list, kind: pa.DataType | None = None, column: str = "x") -> str:
    (each,) = proposed(values, kind, column).values()
    assert each.feature is None
    return each.note


def integers(*, least: int = 0, most: int, step: int = 1) -> list[str]:
    return [str(step * RNG.randint(least, most)) for _ in range(COUNT)]


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        ("user_id", integers(least=1, most=300), {"dtype": "int64", "vocabulary": [*range(1, 301)]}),
        ("movieId", integers(most=299, step=97), {"dtype": "int64", "vocabulary": [*range(0, 97 * 300, 97)]}),
        ("weekday", integers(most=6), {"dtype": "int64", "vocabulary": [*range(7)]}),
        ("month", integers(least=1, most=12), {"dtype": "int64", "vocabulary": [*range(1, 13)]}),
        ("store", integers(most=149), {"dtype": "int64", "vocabulary": [*range(150)]}),
        ("x", integers(most=399), {"dtype": "int64", "vocabulary": [*range(400)]}),  # counted from 0 without gaps
        ("x", integers(most=5), {"bins": 32}),
        (
            "x", [str(10**9 + n % 50) for n in range(COUNT)],
            {"dtype": "int64", "vocabulary": [10**9 + n for n in range(50)]},
        ),
        ("rooms", integers(least=1, most=8), {"bins": 32}),
        ("year", integers(least=1990, most=2020), {"bins": 32}),
        ("age", integers(least=18, most=70), {"bins": 32}),
        ("x", integers(least=18, most=70), {"bins": 32}),
        ("is_new_year", ["0", "1"] * 50, {"dtype": "int64", "vocabulary": [0, 1]}),
        ("timestamp", integers(least=978_300_760, most=978_300_990), {"bins": 32}),
        ("visits", [str(n % 40) for n in range(100)], {"bins": 4}),  # one for 50 rows, at least 4
        ("item", ["5", "", "NA", "7", "8"] * 20, {"dtype": "int64", "vocabulary": [5, 7, 8], "default": 4}),
        ("age", ["5", "", "NA", "7", "8"] * 20, {"nullable": True, "bins": 4}),
    ],
)  # fmt: skip
def test_integers(column, values, expected):
    assert options(values, column=column) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["0.5", "1.25", "NA"] * 20, {"nullable": True, "bins": 4}),
        (["$1,521.00", "$2.00"] * 20, {"decimal_mark": ".", "bins": 4}),
        (["12,5 %", "3 %"] * 20, {"decimal_mark": ",", "bins": 4}),
        (["0.5"] * 50 + ["", "NA"], {"nullable": True, "bins": 4}),
        ([str(n % 20) for n in range(200)] + ["90000.5"], {"logarithm": True, "bins": 4}),
    ],
)
def test_numbers(values, expected):
    assert options(values) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["drama", "news", ""] * 20, {"dtype": "string", "vocabulary": ["drama", "news"]}),
        (["True", "False"] * 20, {"dtype": "string", "vocabulary": ["False", "True"]}),
        (["01234", "00501"] * 20, {"dtype": "string", "vocabulary": ["00501", "01234"]}),
        (["0xFF", "0x1F"] * 20, {"dtype": "string", "vocabulary": ["0x1F", "0xFF"]}),
        (["NA", "DE"] * 20, {"dtype": "string", "vocabulary": ["DE", "NA"]}),
        (["a", "b"] * 100 + ["rare"], {"dtype": "string", "vocabulary": ["a", "b"]}),
        (["a", "b"] * 20 + ["rare"], {"dtype": "string", "vocabulary": ["a", "b", "rare"]}),  # of few rows
        (
            [str(2**63 + n % 5) for n in range(100)],
            {"dtype": "string", "vocabulary": [str(2**63 + n) for n in range(5)]},
        ),
    ],
)  # fmt: skip
def test_words(values, expected):
    assert options(values) == expected


@pytest.mark.parametrize(
    ("values", "kind", "column", "expected"),
    [
        ([True, False, None] * 20, pa.bool_(), "x", {"dtype": "int64", "vocabulary": [0, 1], "default": -1}),
        (["a", None, "b"] * 20, pa.string(), "x", {"dtype": "string", "vocabulary": ["a", "b"], "default": ""}),
        ([1.0, None, 2.0] * 20, pa.float64(), "item_id", {"dtype": "int64", "vocabulary": [1, 2], "default": 0}),
        ([2**63, 1] * 20, pa.uint64(), "item_id", {"dtype": "string", "vocabulary": ["1", str(2**63)]}),
        ([-(2**63), None, 1] * 20, pa.int64(), "id", {"dtype": "int64", "vocabulary": [-(2**63), 1], "default": 2}),
        ([datetime.timedelta(seconds=n) for n in range(60)], pa.duration("s"), "x", {"bins": 4}),
        ([[0.5, 1.5], [2.5, 3.5]] * 20, pa.list_(pa.float32(), 2), "x", {"width": 2}),
        (
            [[1, 2], [3], []] * 20,
            pa.list_(pa.int64()),
            "x",
            {"dtype": "int64", "vocabulary": [1, 2, 3], "max_values": 2},
        ),
        (
            [["a", "b"], None] * 20, pa.list_(pa.string()), "x",
            {"dtype": "string", "vocabulary": ["a", "b"], "max_values": 2},
        ),
    ],
)  # fmt: skip
def test_types_of_arrow(values, kind, column, expected):
    assert options(values, kind, column) == expected


def test_times_become_several_numbers():
    start = datetime.datetime(2021, 1, 31)
    hours = [(start + datetime.timedelta(hours=7 * n)).strftime("%m/%d/%Y %H:%M") for n in range(200)]
    found = proposed(["", *hours], column="sold at")
    got = {name: feature_spec.options(each.feature) for name, each in found.items()}
    how = {"column": "sold at", "time_format": "%m/%d/%Y %H:%M"}
    assert got == {
        "sold_at_days": {**how, "part": "days", "nullable": True, "bins": 4},
        "sold_at_month": {**how, "dtype": "int64", "part": "month", "vocabulary": [*range(1, 13)], "default": -1},
        "sold_at_weekday": {**how, "dtype": "int64", "part": "weekday", "vocabulary": [*range(7)], "default": -1},
        "sold_at_hour": {**how, "dtype": "int64", "part": "hour", "vocabulary": [*range(24)], "default": -1},
    }
    assert found["sold_at_days"].examples == "2021-01-31 00:00:00 to 2021-03-30 01:00:00"
    dates = [f"2021-01-{day:02d}" for day in range(1, 31)]
    assert list(proposed(dates)) == ["x_days", "x_weekday"]  # one month, no hours
    assert "all values are %d/%m/%Y too" in proposed(["1/2/2021", "3/4/2021"] * 9)["x_days"].note
    assert list(proposed([datetime.date(2021, 1, n) for n in range(1, 31)], column="d")) == ["d_days", "d_weekday"]


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        ("x", [""] * 20, "empty"),
        ("x", ["a"] * 20, "the same in each row"),
        ("x", ["5"] * 20, "the same in each row"),
        ("x", ["2021-01-31"] * 20, "the same in each row"),
        ("x", [str(n) for n in range(20)], "counts the rows, as an index does"),
        ("Unnamed: 0", [str(n) for n in range(1, 5)], "counts the rows, as an index does"),
        ("", [str(7 * n) for n in range(20)], "column without a name, such as an index"),
        ("user id", [str(7 * n) for n in range(20)], "different in each row"),
        ("x", [f"name {n}" for n in range(20)], "different in each row"),
        ("x", [f"name {n}" for n in range(19)] * 1 + ["name 1"], "different in nearly each row"),
        ("x", [f"the {n} of many words" for n in range(20)], "free text, different in each row"),
        ("x", [str(2**64 + n) for n in range(20)], "different in each row"),
    ],
)
def test_columns_that_are_left_out(column, values, expected):
    assert note(values, column=column) == expected


def test_amounts_may_differ_in_each_row():
    assert options([str(n * n) for n in range(400)]) == {"bins": 8}
    assert options([str(n / 7) for n in range(400)]) == {"bins": 8}


def test_rare_values_share_an_id_and_their_share_is_shown():
    common = [f"v{n % 50}" for n in range(900)]
    (each,) = proposed(common + [f"rare {n}" for n in range(100)]).values()
    assert len(each.feature.vocabulary) == 50
    assert each.ids == "vocabulary of 50, 10% of rows rare"


def test_more_values_than_a_vocabulary_has_are_hashed():
    (each,) = proposed([f"v{n % 150_000}" for n in range(450_000)]).values()
    assert (each.feature.num_buckets, each.feature.vocabulary) == (300_000, None)
    assert each.ids == "300,000 buckets, 39% of values collide"
    (each,) = proposed([f"v{n % 90_000}" for n in range(450_000)]).values()
    assert len(each.feature.vocabulary) == 90_000


def test_notes_and_warnings():
    values = ["yes", "Yes ", "no", "no"] * 20
    found = proposed(values)
    assert found["x"].note == "1 value is written in several ways"
    assert list(proposals.warnings(found)) == [
        "x has values that differ only in case or blanks, and count as different: 'Yes ' = 'yes'"
    ]
    (each,) = proposed([str(n) for n in range(50)] * 9 + ["n.k.", "n.k."]).values()
    assert each.note == "numbers, but for 'n.k.'"
    (warning,) = proposals.warnings(proposed(["a"] * 20))
    assert warning == "no column is left to learn from (x: the same in each row)"


def test_names_of_features_are_valid_and_unique():
    columns = ["a b", "a_b", "\u5e74", "[text]", "d", "d_days"]
    dates = ["2021-01-01", "2021-01-02"] * 20
    profiles = [profile(["0.5", "1.5"] * 20 if name != "d" else dates, column=name) for name in columns]
    found = proposals.propose([*profiles, profile(["1"], column="y")], ("y", None))
    assert list(found) == ["a_b", "a_b_2", "column_3", "text", "d_days", "d_weekday", "d_days_2"]
    assert feature_spec.read({name: feature_spec.options(each.feature) for name, each in found.items()})


def test_nested_columns_are_left_out():
    (each,) = proposed([{"a": 1}]).values()
    assert (each.feature, each.note) == (None, "neither numbers nor words")


def test_texts_that_look_like_lists_are_reported():
    (warning,) = proposals.warnings(proposed(["['a', 'b']", "['c']"] * 20))
    assert warning.startswith("x has texts that look like lists, such as \"['a', 'b']\"")


def test_rows_for_display():
    (each,) = proposed([str(2**53 + 1 + n % 3) for n in range(99)] + ["NA"], column="item_id").values()
    assert each.row("item_id") == {
        "feature": "item_id", "dtype": "int64", "ids": "vocabulary", "values": 3, "missing": f"1 as {2**53}",
        "examples": f"{2**53 + 1} to {2**53 + 3}", "note": "",
    }  # fmt: skip
    found = proposed([f"v{n % 150_000}" for n in range(450_000)])
    assert proposals.features(found, num_buckets=7)["x"].num_buckets == 7
