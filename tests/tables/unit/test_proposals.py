"""The features that are proposed for columns, by the content of these, and the task of a label."""

from __future__ import annotations

import datetime
import random

import pyarrow as pa
import pytest

from psrun.errors import ConfigError
from psrun.tables import feature_spec, label_guess, proposals
from psrun.tables.notations import Notation
from psrun.tables.profiles import Profile, Profiler
from psrun.tables.proposals import Proposal

COUNT = 6000
RNG = random.Random(3)


def profile(values: list | pa.Array, column: str = "x", **notation: str) -> Profile:
    profiler = Profiler(column, Notation(**notation))
    profiler.add(values if isinstance(values, pa.Array) else pa.array(values))
    return profiler.profile()


def proposed(values: list | pa.Array, column: str = "x", **notation: str) -> dict[str, Proposal]:
    return proposals.propose([profile(values, column, **notation)], ())


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
        ("x", [str(n * n) for n in range(400)], {"bins": 8}),  # amounts, which may differ in each row
        # Numbers.
        ("x", [str(n / 7) for n in range(400)], {"bins": 8}),
        ("x", ["0.5", "1.25", "NA"] * 20, {"nullable": True, "bins": 4}),
        ("x", ["0.5"] * 50 + ["", "NA"], {"nullable": True, "bins": 4}),
        ("x", [str(n % 20) for n in range(200)] + ["90000.5"], {"logarithm": True, "bins": 4}),
        # Words.
        ("x", ["drama", "news", ""] * 20, {"dtype": "string", "vocabulary": ["drama", "news"]}),
        ("x", ["True", "False"] * 20, {"dtype": "string", "vocabulary": ["False", "True"]}),
        ("x", ["01234", "00501"] * 20, {"dtype": "string", "vocabulary": ["00501", "01234"]}),
        ("x", ["0xFF", "0x1F"] * 20, {"dtype": "string", "vocabulary": ["0x1F", "0xFF"]}),
        ("x", ["NA", "DE"] * 20, {"dtype": "string", "vocabulary": ["DE", "NA"]}),
        ("x", ["a", "b"] * 100 + ["rare"], {"dtype": "string", "vocabulary": ["a", "b"]}),
        ("x", ["a", "b"] * 20 + ["rare"], {"dtype": "string", "vocabulary": ["a", "b", "rare"]}),  # of few rows
        (
            "x", [str(2**63 + n % 5) for n in range(100)],
            {"dtype": "string", "vocabulary": [str(2**63 + n) for n in range(5)]},
        ),
        # Types of Arrow.
        ("x", [True, False, None] * 20, {"dtype": "int64", "vocabulary": [0, 1], "default": -1}),
        ("x", ["a", None, "b"] * 20, {"dtype": "string", "vocabulary": ["a", "b"], "default": ""}),
        ("item_id", [1.0, None, 2.0] * 20, {"dtype": "int64", "vocabulary": [1, 2], "default": 0}),
        ("item_id", pa.array([2**63, 1] * 20, pa.uint64()), {"dtype": "string", "vocabulary": ["1", str(2**63)]}),
        ("id", [-(2**63), None, 1] * 20, {"dtype": "int64", "vocabulary": [-(2**63), 1], "default": 2}),
        ("x", pa.array([datetime.timedelta(seconds=n) for n in range(60)], pa.duration("s")), {"bins": 4}),
        ("x", pa.array([[0.5, 1.5], [2.5, 3.5]] * 20, pa.list_(pa.float32(), 2)), {"width": 2}),
        ("x", [[1, 2], [3], []] * 20, {"dtype": "int64", "vocabulary": [1, 2, 3], "max_values": 2}),
        ("x", [["a", "b"], None] * 20, {"dtype": "string", "vocabulary": ["a", "b"], "max_values": 2}),
    ],
)  # fmt: skip
def test_a_column_becomes_a_feature(column, values, expected):
    ((_, found),) = proposed(values, column).items()
    assert found.feature is not None, found.note
    options = feature_spec.options(found.feature)
    assert {key: value for key, value in options.items() if key != "column"} == expected


@pytest.mark.parametrize(
    ("column", "values", "mark", "expected"),
    [
        ("x", ["$1,521.00", "$2.00"] * 20, ".", {"decimal_mark": ".", "unit": "$", "bins": 4}),
        ("x", ["12,5 %", "3 %"] * 20, ",", {"decimal_mark": ",", "unit": "%", "bins": 4}),
        ("x", ["5", "8"] * 20, ",", {"decimal_mark": ",", "unit": "", "bins": 4}),  # 1.234 in later data is 1234
        ("item", ["5", "8"] * 20, ",", {"dtype": "int64", "vocabulary": [5, 8]}),
        ("x", [5.5, 8.5] * 20, ",", {"bins": 4}),
        ("x", ["0.82", "27%"] * 20, ".", {"dtype": "string", "vocabulary": ["0.82", "27%"]}),
    ],
)
def test_a_column_becomes_a_feature_with_the_decimal_mark_of_the_data_set(column, values, mark, expected):
    ((_, found),) = proposed(values, column, decimal_mark=mark).items()
    options = feature_spec.options(found.feature)
    assert {key: value for key, value in options.items() if key != "column"} == expected


UNREAD = {
    "amounts": (
        {"price": ["$5", "$1,000"], "fee": ["1,5"]}, {},
        [
            "price: not read as numbers, such as '$5' in price; set data.decimal_mark to . or ,",
            "fee: not read as numbers, such as '1,5' in fee; for numbers, set 'data.decimal_mark=\",\"'",
        ],
    ),
    "many": (
        {f"x{n}": ["5 %", "7 %"] for n in range(200)}, {},
        ["x0, x1, x2 and 197 more: not read as numbers, such as '5 %' in x0; set data.decimal_mark to . or ,"],
    ),
    "all but one": (
        {"x": [f"${n}" for n in range(30)] + ["tbd"]}, {},
        ["x: not read as numbers, such as '$0' in x, except 'tbd'; set data.decimal_mark to . or ,"],
    ),
    "units": (
        {"share": ["0.82", "27%"], "price": ["$5", "¥7"]}, {},
        ["share, price: not read as numbers, since the units differ: '0.82' and '27%' in share"],
    ),
    "units with the key": (
        {"share": ["0.82", "27%"], "fee": ["$5"]}, {"decimal_mark": "."},
        ["share: not read as numbers, since the units differ: '0.82' and '27%' in share"],
    ),
    "the other mark": (
        {"x": ["5", "12.5"]}, {"decimal_mark": ","},
        ["x: not read as numbers, since '12.5' in x does not fit data.decimal_mark=,"],
    ),
    "dates": (
        {"sold": ["31.12.2023", "1.1.2024"]}, {},
        ["sold: not read as dates or times, such as '31.12.2023' in sold; set data.time_format as strptime takes it, "
         "such as %d.%m.%Y"],
    ),
    "another format": (
        {"sold": ["12/31/2023", "31/12/2023"]}, {"time_format": "%d/%m/%Y"},
        ["sold: not read as dates or times, since '12/31/2023' in sold does not fit data.time_format=%d/%m/%Y"],
    ),
    "ISO 8601 but for one": (
        {"day": [*(f"2023-01-{n}" for n in range(10, 30)), "0000-00-00"]}, {},
        ["day: not read as dates or times of ISO 8601, such as '2023-01-10' in day, except '0000-00-00'; write it so, "
         "or leave it empty"],
    ),
    "ISO 8601 but for one, beside a format": (
        {"day": [*(f"2023-01-{n}" for n in range(10, 30)), "01.02.2023"]}, {"time_format": "%d.%m.%Y"},
        ["day: not read as dates or times of ISO 8601, such as '2023-01-10' in day, except '01.02.2023'; write it so, "
         "or leave it empty"],
    ),
    "read": ({"x": ["1.5"], "day": ["2021-01-31"], "word": ["a b", "5 km"], "code": ["007"]}, {}, []),
}  # fmt: skip


@pytest.mark.parametrize(("columns", "notation", "lines"), UNREAD.values(), ids=UNREAD)
def test_one_line_names_what_looks_like_numbers_or_times_and_the_key(columns, notation, lines):
    looked = [profile(values * 20, column=name, **notation) for name, values in columns.items()]
    found = proposals.propose(looked, ())
    assert [line for line in proposals.warnings(found, Notation(**notation)) if "left to learn" not in line] == lines


def test_times_become_several_numbers():
    start = datetime.datetime(2021, 1, 31)
    hours = [(start + datetime.timedelta(hours=7 * n)).strftime("%m/%d/%Y %H:%M") for n in range(200)]
    found = proposed(["", *hours], column="sold at", time_format="%m/%d/%Y %H:%M")
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
    assert list(proposed([datetime.date(2021, 1, n) for n in range(1, 31)], column="d")) == ["d_days", "d_weekday"]


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        ("x", [""] * 20, "empty"),
        ("x", ["a"] * 20, "the same in each row"),
        ("x", ["5"] * 20, "the same in each row"),
        ("x", ["2021-01-31"] * 20, "the same in each row"),
        ("x", [str(n) for n in range(20)], "counts the rows, as an index does"),
        ("Unnamed: 0", [str(n) for n in range(1, 5)], "an index, by its name"),
        ("Unnamed: 0.1", ["7", "3", "5"], "an index, by its name"),
        ("__index_level_0__", [7, 3, 5], "an index, by its name"),
        ("...1", [7, 3, 5], "an index, by its name"),
        ("", [str(7 * n) for n in range(20)], "an index, by its name"),
        (" ", ["a", "b"] * 20, "an index, by its name"),
        ("user id", [str(7 * n) for n in range(20)], "different in each row"),
        ("x", [f"name {n}" for n in range(20)], "different in each row"),
        ("x", [f"name {n}" for n in range(19)] * 1 + ["name 1"], "different in nearly each row"),
        ("x", [f"the {n} of many words" for n in range(20)], "free text, different in each row"),
        ("x", [str(2**64 + n) for n in range(20)], "different in each row"),
        ("x", [{"a": 1}], "neither numbers nor words"),
    ],
)
def test_columns_that_are_left_out(column, values, expected):
    (found,) = proposed(values, column).values()
    assert (found.feature, found.note) == (None, expected)


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
    numbers = ["5", "5.0", "7", "7"] * 20
    (warning,) = proposals.warnings(proposed(numbers, column="user_id"))
    how = "case, blanks or decimals of zero"
    assert warning == f"user_id has values that differ only in {how}, and count as different: '5' = '5.0'"
    assert list(proposals.warnings(proposed(numbers, column="price"))) == []
    (each,) = proposed([str(n) for n in range(50)] * 9 + ["n.k.", "n.k."]).values()
    assert each.note == "numbers, except 'n.k.'"
    (warning,) = proposals.warnings(proposed(["a"] * 20))
    assert warning == "no column is left to learn from (x: the same in each row)"
    (warning,) = proposals.warnings(proposed([f"{n},5" for n in range(20)]))
    left = "no column is left to learn from (x: different in each row)"
    assert warning == f"{left}; x: not read as numbers, such as '0,5' in x; for numbers, set 'data.decimal_mark=\",\"'"


def test_names_of_features_are_valid_and_unique():
    columns = ["a b", "a_b", "\u5e74", "[text]", "d", "d_days"]
    dates = ["2021-01-01", "2021-01-02"] * 20
    profiles = [profile(["0.5", "1.5"] * 20 if name != "d" else dates, column=name) for name in columns]
    found = proposals.propose([*profiles, profile(["1"], column="y")], ("y", None))
    assert list(found) == ["a_b", "a_b_2", "column_3", "text", "d_days", "d_weekday", "d_days_2"]
    assert feature_spec.read({name: feature_spec.options(each.feature) for name, each in found.items()})


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


# -- labels


@pytest.mark.parametrize(
    ("values", "task", "vocabulary", "num_missing"),
    [
        (["0", "1"] * 20, "binary", None, 0),
        (["0.0", "1.0"] * 20, "binary", None, 0),
        (["0.0", "1.0", "2.0"] * 20, "multiclass", ("0.0", "1.0", "2.0"), 0),
        ([0.0, 1.0, 2.0] * 20, "multiclass", None, 0),
        ([0.0, 1.0] * 20, "binary", None, 0),
        ([False, True] * 20, "binary", None, 0),
        (["1", "2"] * 20, "binary", (1, 2), 0),
        (["-1", "1"] * 20, "binary", (-1, 1), 0),
        (["0", "1", "NA"] * 20, "binary", None, 20),
        (["0", "1", "", "?"] * 20, "binary", None, 40),
        (["Yes", "No"] * 20, "binary", ("No", "Yes"), 0),
        (["True", "False"] * 20, "binary", ("False", "True"), 0),
        (["Y", "N", "NA", " "] * 20, "binary", ("N", "Y"), 40),
        (["yes", "no", "None"] * 20, "binary", ("no", "yes"), 20),
        (["<=50K", ">50K"] * 20, "binary", ("<=50K", ">50K"), 0),
        (["churn", "no churn"] * 20, "binary", ("no churn", "churn"), 0),
        (["active", "inactive"] * 20, "binary", ("inactive", "active"), 0),
        (["positive", "negative"] * 20, "binary", ("negative", "positive"), 0),
        (["good", "bad"] * 20, "binary", ("bad", "good"), 0),
        (["a", "b"] * 20, "binary", ("a", "b"), 0),
        (["a", "c", "b"] * 20, "multiclass", ("a", "b", "c"), 0),
        (["None", "Mild", "Severe"] * 20, "multiclass", ("Mild", "None", "Severe"), 0),  # a class, as likely as not
        (["N", "U", "Y", "NA"] * 20, "multiclass", ("N", "U", "Y"), 20),
        (["0", "1", "2"] * 20, "multiclass", None, 0),
        (["1", "2", "3"] * 20, "multiclass", (1, 2, 3), 0),
        (["3", "5", "8", "NA"] * 20, "multiclass", (3, 5, 8), 20),
        ([str(n) for n in range(60)] * 10, "multiclass", None, 0),  # counted from 0, evenly
        ([str(n) for n in range(60)] * 2, "regression", None, 0),  # too few rows
        ([str(n * n) for n in range(60)] * 10, "regression", None, 0),
        (["0"] * 900 + [str(n) for n in range(60)] * 6, "regression", None, 0),  # a count
        ([str(n / 7) for n in range(50)], "regression", None, 0),
        (["1.5", "0.0", "1.0"] * 20, "regression", None, 0),
        (["1.5", "2.5", "NA"] * 20, "regression", None, 20),
        ([0.5, None, float("nan")] + [1.5, 2.25] * 9, "regression", None, 2),
        (["007", "010"] * 20, "binary", ("007", "010"), 0),
        ([str(2**63), "5"] * 20, "binary", ("5", str(2**63)), 0),
    ],
)
def test_the_task_of_a_label(values, task, vocabulary, num_missing):
    got = label_guess.guess(profile(values))
    assert (got.task, got.label_vocabulary, got.num_missing) == (task, vocabulary, num_missing)
    classes = len(set(values)) - len({"", "?", "NA", " "} & set(values))
    assert got.num_classes == (classes if task == "multiclass" else None)


def test_large_floats_are_regression_with_their_mark():
    got = label_guess.guess(profile([f"${n},000.00" for n in range(1, 40)], decimal_mark="."))
    assert (got.task, got.decimal_mark, got.unit) == ("regression", ".", "$")
    assert got.note == "regression: 39 different numbers; read with decimal mark . and $ (data.decimal_mark)"


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        ([str(n) for n in range(3)] * 20, {"task": "regression"}, {"task": "regression"}),
        ([str(n) for n in range(3)] * 20, {"num_classes": 5}, {"task": "multiclass", "num_classes": 5}),
        (["2", "4"] * 20, {"num_classes": 5}, {"task": "multiclass", "num_classes": 5}),
        (["0", "1"] * 20, {"task": "multiclass"}, {"task": "multiclass", "num_classes": 2}),
        (
            [str(n * n) for n in range(30)] * 2,
            {"task": "multiclass"},
            {"task": "multiclass", "num_classes": 30, "label_vocabulary": [n * n for n in range(30)]},
        ),
        (
            [f"w{n:02d}" for n in range(30)],
            {"task": "multiclass"},
            {"task": "multiclass", "num_classes": 30, "label_vocabulary": [f"w{n:02d}" for n in range(30)]},
        ),
    ],
)
def test_what_the_user_says_of_a_label_holds(values, options, expected):
    assert label_guess.guess(profile(values), **options).options == expected


def test_notes_on_labels_say_how_to_say_otherwise():
    notes = {
        ("0", "1"): "binary: 0 and 1",
        ("Yes", "No"): "binary: No is 0, Yes is 1; 'data.label_vocabulary=[Yes,No]' for the other way round",
        ("1", "2", "3"): "multiclass: 3 classes, 1, 2, 3; data.task=regression to predict the number",
        ("1", "0", "", "NA"): "binary: 0 and 1; 40 rows without a label are left out",
    }
    for values, note in notes.items():
        how = "words" if "Yes" in values else "plain numbers"
        assert label_guess.guess(profile([*values] * 20)).note == f"{note}; read as {how}"
    assert label_guess.guess(profile([0, 1] * 20)).note == "binary: 0 and 1"
    many = label_guess.guess(profile([str(n * n) for n in range(312)] + [""]))
    assert many.note == (
        "regression: 312 different numbers; data.task=multiclass to treat them as classes;"
        " 1 row without a label is left out; read as plain numbers"
    )


# Labels in notations that no key says how to read, the key, and what the error says.
UNREAD_LABELS = {
    "both marks": (["3,385", "2,100"], {}, "data.decimal_mark", ["3385", "3.385"]),
    "the comma alone": (["3,385", "0,227"], {}, "data.decimal_mark", ["'3,385' is 3385", "3.385"]),
    "currency": (["$12", "$13"], {}, "data.decimal_mark", ["'$12' is 12"]),
    "percent": (["27%", "30%"], {}, "data.decimal_mark", ["'27%' is 27 with data.decimal_mark=. or 'data"]),
    "blanks": (["1 000", "2 000"], {}, "data.decimal_mark", ["'1 000' is 1000"]),
    "parentheses": (["(12)", "13"], {}, "data.decimal_mark", ["'(12)' is -12"]),
    "two values": (["1,0", "0,0"], {}, "data.decimal_mark", ["'1,0' is 1"]),
    "the other mark": (["12.5", "3.75"], {"decimal_mark": ","}, "data.decimal_mark", ["'12.5'"]),
    "units": (["0.82", "27%"], {}, "data.label", ["'0.82'", "'27%'"]),
    "units with the key": (["0.82", "27%"], {"decimal_mark": "."}, "data.label", ["'0.82'", "'27%'"]),
    "dates": (["31.12.2023", "1.1.2024"], {}, "data.label", ["dates"]),
}


@pytest.mark.parametrize(("values", "notation", "key", "said"), UNREAD_LABELS.values(), ids=UNREAD_LABELS)
@pytest.mark.parametrize("task", [None, "regression"])
def test_a_label_that_no_key_says_how_to_read_ends_with_its_readings(values, notation, key, said, task):
    with pytest.raises(ConfigError) as caught:
        label_guess.guess(profile(values * 40, **notation), task=task)
    (problem,) = caught.value.problems
    assert problem.key == key
    for text in said:
        assert text in problem.message
    if notation != {"decimal_mark": ","}:
        words = label_guess.guess(profile(values * 40, **notation), task="multiclass")
        assert words.note.endswith("read as words")


@pytest.mark.parametrize(
    ("values", "task", "vocabulary"),
    [
        (["1,0", "0,0"], "binary", None), (["1,0", "2,0"], "binary", ("1,0", "2,0")), (["0", "1"], "binary", None),
        (["1,5", "2,25", "0,5"], "regression", None), (["$1", "$2", "$3"], "regression", None),
        (["1,0", "2,0", "3,0"], "multiclass", ("1,0", "2,0", "3,0")),
    ],
)  # fmt: skip
def test_the_task_of_a_label_with_a_decimal_mark(values, task, vocabulary):
    got = label_guess.guess(profile(values * 40, decimal_mark=","))
    assert (got.task, got.label_vocabulary) == (task, vocabulary)
    if vocabulary is None:
        assert got.decimal_mark == ","


@pytest.mark.parametrize(("count", "remedy"), [(585, "data.task=regression"), (3, "data.task=multiclass")])
def test_a_count_is_no_binary_label(count, remedy):
    for given in (profile([str(n) for n in range(count)] * 3, "bikers"), profile([*range(count)] * 3, "bikers")):
        with pytest.raises(ConfigError, match=f"bikers has {count} different numbers: {remedy}"):
            label_guess.check(given, "binary")
