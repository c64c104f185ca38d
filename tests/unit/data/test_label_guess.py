"""The task of a label: each kind of label with what it becomes, and the message where it can be none."""

from __future__ import annotations

import pyarrow as pa
import pytest

from psrun.data import label_guess
from psrun.data.profiles import Profile, Profiler


def profile(values: list, kind: pa.DataType | None = None) -> Profile:
    profiler = Profiler("y")
    profiler.add(pa.array(values, kind))
    return profiler.profile()


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
def test_tasks(values, task, vocabulary, num_missing):
    got = label_guess.guess(profile(values))
    assert (got.task, got.label_vocabulary, got.num_missing) == (task, vocabulary, num_missing)
    classes = len(set(values)) - len({"", "?", "NA", " "} & set(values))
    assert got.num_classes == (classes if task == "multiclass" else None)


def test_large_floats_are_regression_with_their_mark():
    got = label_guess.guess(profile([f"${n},000.00" for n in range(1, 40)]))
    assert (got.task, got.decimal_mark) == ("regression", ".")


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
def test_what_the_user_says_holds(values, options, expected):
    assert label_guess.guess(profile(values), **options).options == expected


def test_notes_say_how_to_say_otherwise():
    notes = {
        ("0", "1"): "binary: 0 and 1",
        ("Yes", "No"): "binary: No is 0, Yes is 1; 'data.label_vocabulary=[Yes,No]' for the other way round",
        ("1", "2", "3"): "multiclass: 3 classes, 1, 2, 3; data.task=regression to predict the number",
        ("1", "0", "", "NA"): "binary: 0 and 1; 40 rows without a label are left out",
    }
    for values, note in notes.items():
        assert label_guess.guess(profile([*values] * 20)).note == note
    many = label_guess.guess(profile([str(n * n) for n in range(312)] + [""]))
    assert many.note == (
        "regression: 312 different numbers; data.task=multiclass to treat them as classes;"
        " 1 row without a label is left out"
    )
