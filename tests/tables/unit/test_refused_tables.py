"""Mistakes in files, rows, features, labels and splits of tables are refused, by the key, the file or the column.

What is said: tests/tables/contract/test_messages_tables.py.
"""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
import table_files
from messages import refused
from plain_config import plain_config

from psrun.config import parse
from psrun.errors import DataError, PsrunError
from psrun.tables import commands, label_guess, preparation
from psrun.tables.profiles import Profiler

pytestmark = pytest.mark.tensorflow

ROWS = "".join(f"{n % 7},{'ab'[n % 2]},{n * 0.5},{n % 2}\n" for n in range(300))
GOOD = "k,w,x,y\n" + ROWS


def text(*rows: str) -> str:
    return "".join(f"{row}\n" for row in rows)


# Files, and the key or what is said.
FILES: dict[str, tuple[dict[str, str | bytes], str]] = {
    "tabs in a csv file": ({"a.csv": GOOD.replace(",", "\t")}, "data.label"),
    "another column in the second file": (
        {"a.csv": GOOD, "b.csv": "k,w,ex,y\n1,a,2,0\n"},
        "it lacks 'x' and also has 'ex'",
    ),
    "only a header": ({"a.csv": "x,y\n"}, "there is no row"),
    "nothing to learn from": (
        {"a.csv": text("name,y", *(f"person {n} of them,{n % 2}" for n in range(50)))},
        "data.features",
    ),
    "a column twice": ({"a.csv": GOOD.replace("k,w", "k,k")}, "rename the duplicates"),
    "no header, words": ({"a.csv": "5,word,1.5\n" + "6,other,2.5\n" * 9}, "data.label"),
    "too many words": ({"a.csv": text("x,y", *(f"{n},class {n % 10_000}" for n in range(20_000)))}, "data.label"),
    "utf-16": ({"a.csv": GOOD.encode("utf-16")}, "data.encoding=utf-16"),
    "notes": ({"a.doc": "rows"}, "data.format"),
    "a JSON array": ({"a.json": '[{"x": 1, "y": 0}]'}, "data.path"),
    "JSON by content": ({"a.txt": '{"x": 1, "y": 0}\n'}, "data.path"),
    "arrays": ({"a.npz": b"PK"}, "data.path"),
    "an open quote": ({"a.csv": 'x,y\n"1,0\n2,1\n'}, "row 2 cannot be read"),
    "an empty folder": ({}, "the folder is empty"),
}
# Options, and the keys.
OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "multiclass without number": ({"task": "multiclass", "delimiter": ""}, "data.delimiter, data.num_classes"),
    "vocabulary too long": ({"label_vocabulary": ("a", "b", "c"), "task": "binary"}, "data.label_vocabulary"),
    "vocabulary of a regression": ({"label_vocabulary": ("a", "b"), "task": "regression"}, "data.label_vocabulary"),
    "vocabulary and num_classes": (
        {"label_vocabulary": ("a", "b"), "task": "multiclass", "num_classes": 3},
        "data.label_vocabulary",
    ),
    "column names without the label": ({"columns": ["k", "w", "x", "yy"]}, "data.label"),
    "eval_path of the training": ({"eval_path": "."}, "data.eval_path"),
    "no features": ({"features": {}}, "data.features"),
    "options of a number": (
        {"features": {"x": {"num_buckets": 2, "table": "item", "default": "x"}}},
        "data.features.x.num_buckets, data.features.x.table, data.features.x.default",
    ),
    "vocabulary of a number": ({"features": {"x": {"vocabulary": [1]}}}, "data.features.x.vocabulary"),
    "options of words": (
        {"features": {"w": {"dtype": "string", "logarithm": True, "vocabulary": [1]}}},
        "data.features.w.logarithm, data.features.w.vocabulary",
    ),
    "vocabulary file": ({"features": {"w": {"dtype": "string", "vocabulary": "no"}}}, "data.features.w.vocabulary"),
    "weight is the label": ({"weight": "y"}, "data.weight"),
    "combiner": (
        {"features": {"w": {"dtype": "int64", "combiner": "median", "max_values": 3}}},
        "data.features.w.combiner",
    ),
    "no values": ({"features": {"w": {"dtype": "int64", "max_values": 0}}}, "data.features.w.max_values"),
    "options of a list without one": (
        {
            "features": {"w": {"dtype": "int64", "weights": "x", "separator": ";", "combiner": "sum"}},
        },
        "data.features.w.separator, data.features.w.weights, data.features.w.combiner",
    ),
    "texts of a list": (
        {"features": {"w": {"dtype": "int64", "max_values": 3, "separator": "", "table": "an item"}}},
        "data.features.w.separator, data.features.w.table",
    ),
    "unknown weights": (
        {"features": {"w": {"dtype": "int64", "max_values": 3, "weights": "xx"}}},
        "data.features.w.weights",
    ),
    "logarithm of a list": ({"features": {"w": {"max_values": 3, "logarithm": True}}}, "data.features.w.logarithm"),
    "names beside a list": (
        {
            "features": {
                "w": {"max_values": 3, "weights": "x"},
                "w_weights": {"column": "k"},
                "w_length": {"column": "k"},
            },
        },
        "data.features.w_weights, data.features.w_length",
    ),
    "separator is the delimiter": (
        {"features": {"w": {"max_values": 3, "separator": ","}}, "quoted": False},
        "data.features.w.separator",
    ),
    "weight is the weights of a list": (
        {"features": {"w": {"max_values": 3, "weights": "x"}}, "weight": "x"},
        "data.weight",
    ),
    "split fraction": ({"split": {"fraction": 2}}, "data.split.fraction"),
    "split by group without column": ({"split": {"by": "group"}}, "data.split.column"),
    "split by last without user": ({"split": {"by": "last", "column": "x"}}, "data.split.user"),
    "split by time with user": ({"split": {"by": "time", "column": "x", "user": "k"}}, "data.split.user"),
    "split by rows with column": ({"split": {"column": "k"}}, "data.split.by"),
    "split by an unknown column": ({"split": {"by": "time", "column": "xx"}}, "data.split.column"),
    "split is a list": ({"split": [0.1]}, "data.split"),
}
# A row, and what is said.
BAD_ROWS = {
    "1_0,baker,1": "column age",
    ",baker,1": "column age",
    "1e39,baker,1": "column age",
    "1e400,baker,1": "column age",
    "nan,baker,1": "column age",
    "old,baker,1": "column age",
    "1,baker": "2 fields",
    "1,baker,1,1": "4 fields",
    "1,baker,2": "column label",
    "1,baker,0.5": "column label",
    "1,baker,yes": "column label",
    "1,B\udce4cker,1": "column work",
}
BAD_LISTS = {
    "1|x,1|1": "column history",
    "1||3,1|1|1": "column history",
    "1|2,1": "column seconds",
    ",1": "column seconds",
    "1|2|3|4|5,1|1|1|1": "column seconds",
    "1|2,1|-1": "column seconds",
    "1|2,1|nan": "column seconds",
    "1|2,1|inf": "column seconds",
}
# Labels, options, and the key.
LABELS: dict[str, tuple[tuple[list, dict[str, Any]], str]] = {
    "one number": ((["1"] * 20 + [""], {}), "data.label"),
    "one boolean": (([True] * 20, {}), "data.label"),
    "none": ((["", "NA"] * 20, {}), "data.label"),
    "dates as text": ((["2021-01-31", "2021-02-01"] * 20, {}), "data.label"),
    "dates": (([datetime.date(2021, 1, 31)] * 20, {}), "data.label"),
    "lists": (([[1, 2], [3]] * 20, {}), "data.label"),
    "structures": (([{"a": 1}] * 20, {}), "data.label"),
    "words of a regression": ((["a", "b"] * 20, {"task": "regression"}), "data.task"),
    "three words of two": ((["a", "b", "c"] * 20, {"task": "binary"}), "data.task"),
    "fractions of two": ((["0.5", "1.5"] * 20, {"task": "binary"}), "data.task"),
    "fractions of many": (([str(n / 3) for n in range(50)], {"task": "multiclass"}), "data.task"),
}
INSPECTIONS = {
    "rows.csv --label liked": "set --delimiter ';'",
    "rows.csv --delimiter ;;": "data.delimiter",
    "rows.csv --encoding latin-x": "data.encoding",
    "constant.csv --label y": "data.label",
    "weighted.csv --weight ws": "Did you mean 'w'",
    "weighted.csv --label w --weight w": "--weight",
    "weighted.csv --weight word": "--weight",
    "rows.tfrecord": "data.features",
    "none.csv": "no such file",
    "part-*.csv --label y": "it lacks 'y'",
}
WEIGHTED = {"age": [1.5, 2.5, 3.5, 4.5], "w": [2.0, 0.0, 0.25, 7.0], "label": [0, 1, 1, 0]}
WEIGHTS = {
    "a feature of that name": ({}, {"features": {"w": {"column": "age"}}}, "data.weight"),
    "nothing": ({"w": [""] * 4}, {"max_bad_rows": 99}, "data.weight"),
    "zeros": ({"w": [0] * 4}, {}, "data.weight"),
    **{str(bad): ({"w": [1.0, bad, 2.0, 3.0]}, {}, "column w") for bad in (-1e-50, "nan", "inf", "", "much")},
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("case", FILES)
def test_files(tmp_path, case):
    contents, text = FILES[case]
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(text, table_files.table, tmp_path, label="y", split=0.1, error=PsrunError)


@pytest.mark.parametrize("case", OPTIONS)
def test_options(tmp_path, case):
    options, keys = OPTIONS[case]
    (tmp_path / "rows.csv").write_text(GOOD)
    refused(keys, table_files.table, "rows.csv", label="y", **options)


def test_options_of_records(tmp_path):
    path = table_files.write(tmp_path / "rows.tfrecord", {"x": [1.5, 2.5], "y": [0, 1]})
    split = {"by": "time", "column": "x"}
    refused("data.features", table_files.table, path, label="y")
    refused("data.split.by", table_files.table, path, label="y", features={"x": {}}, split=split)
    refused(
        "column x", table_files.table, path, label="y", features={"x": {"width": 3}}, task="binary", error=DataError
    )
    refused("pip install fsspec", table_files.table, "nowhere://rows/b.csv", label="y", error=DataError)
    refused("data.cache", preparation.cache_folder, "s3://bucket")


@pytest.mark.parametrize("row", BAD_ROWS)
def test_rows(tmp_path, row):
    """Behind a row of two lines and a blank one."""
    path = tmp_path / "rows.csv"
    content = f'age,work,label\n1,"two\nlines",0\n\n{row}\n2,,1\n'
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    features = {"age": {}, "work": {"dtype": "string"}}
    refused(f"row 4: {BAD_ROWS[row]}", table_files.table, path, features=features, task="binary", error=DataError)
    source = table_files.table(path, features=features, task="binary", max_bad_rows=1)
    assert (source.num_train_examples, source.facts["num_bad_rows"], len(source.warnings)) == (2, 1, 1)


@pytest.mark.parametrize("row", BAD_LISTS)
def test_rows_of_lists(tmp_path, row):
    path = tmp_path / "rows.csv"
    path.write_text(f"history,seconds,label\n1|2,0.5|1,1\n{row},0\n,,0\n")
    features = {"history": {"dtype": "int64", "num_buckets": 100, "max_values": 4, "weights": "seconds"}}
    refused(f"row 3: {BAD_LISTS[row]}", table_files.table, path, features=features, task="binary", error=DataError)
    source = table_files.table(path, features=features, task="binary", max_bad_rows=1)
    assert (source.num_train_examples, source.facts["num_bad_rows"]) == (2, 1)


@pytest.mark.parametrize("case", LABELS)
def test_labels(case):
    (values, options), key = LABELS[case]
    profiler = Profiler("y")
    profiler.add(pa.array(values))
    refused(key, label_guess.guess, profiler.profile(), **options)


@pytest.mark.parametrize("arguments", INSPECTIONS)
def test_inspections(tmp_path, arguments):
    for name, content in {
        "rows.csv": "a;liked\n1;0\n2;1\n",
        "weighted.csv": "w,word\n1,a\n2,b\n",
        "constant.csv": "x,y\n1,1\n2,1\n",
        "rows.tfrecord": "x",
        "part-a.csv": "x,y\n1,0\n2,1\n",
        "part-b.csv": "x\n1\n2\n",
    }.items():
        (tmp_path / name).write_text(content)
    refused(INSPECTIONS[arguments], commands.main, ["inspect", *arguments.split()], error=PsrunError)


@pytest.mark.parametrize("case", WEIGHTS)
def test_columns_that_cannot_have_weights(case, tmp_path):
    columns, options, text = WEIGHTS[case]
    path = tmp_path / "rows.csv"
    rows = [[*WEIGHTED], *zip(*(WEIGHTED | columns).values())]
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    given = {"label": "label", "task": "binary", "weight": "w", **options}
    refused(text, table_files.table, path, **given, error=PsrunError)


def test_paths_without_files():
    arguments = ("data=table", "data.path=/rows/train-*.csv", "data.eval_path=/rows/eval.csv", "data.label=y")
    refused("data.path, data.eval_path", parse.load, plain_config(*arguments))
