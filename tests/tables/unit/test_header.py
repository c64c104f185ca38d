"""Columns and features that there are not are found in the header of a table's files, before TensorFlow is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from plain_config import plain_config
from pyarrow import parquet

from psrun.config import parse
from psrun.errors import ConfigError
from psrun.tables import header

COLUMNS = ("Age", "City", "day", "Bought", "Weight")
FORMATS = ("csv", "tsv", "parquet")


def write(folder: Path, form: str) -> str:
    """Writes a table of one row; returns its path."""
    path = folder / f"Table.{form}"
    if form == "parquet":
        parquet.write_table(pa.table({name: ["1"] for name in COLUMNS}), path)
        return str(path)
    delimiter = "," if form == "csv" else "\t"
    rows = (delimiter.join(COLUMNS), delimiter.join("1" for _ in COLUMNS))
    path.write_text("".join(f"{row}\n" for row in rows))
    return str(path)


def keys_of_problems(path: str, *arguments: str, **keys: Any) -> list[str]:
    raw = plain_config("model=wide_deep", "data=table", f"data.path={path}", "data.label=Bought", *arguments)
    raw["data"] |= keys
    try:
        parse.load(raw)
    except ConfigError as error:
        return [problem.key for problem in error.problems]
    return []


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("argument", "key"),
    [
        ("data.label=bought", "data.label"),
        ("data.label=[Bought, age]", "data.label[1]"),
        ("data.label=[]", "data.label"),
        ("data.label=???", "data.label"),
        ("data.weight=Wieght", "data.weight"),
        ("data.features={age: {column: age}}", "data.features.age"),
        ("data.features={Age: {vocabluary: [1]}}", "data.features.Age.vocabluary"),
        ("data.features={City: {dtype: int64, max_values: 3, weights: weight}}", "data.features.City.weights"),
        ("data.split={by: group, column: city}", "data.split.column"),
        ("data.split={by: last, column: day, user: age}", "data.split.user"),
        ("data.split={by: tme}", "data.split.by"),
        ("evaluation.by=[City, age]", "evaluation.by[1]"),
        ("evaluation.user=Bought", "evaluation.user"),
    ],
)
def test_a_name_that_the_header_does_not_have_is_reported_by_its_key(tmp_path, form, argument, key):
    assert keys_of_problems(write(tmp_path, form), argument) == [key]


@pytest.mark.parametrize(
    "argument",
    [
        "data.weight=Weight",
        "data.features={Age: {}, town: {column: City, dtype: string}}",
        "data.split={by: last, column: day, user: Age}",
        "evaluation.by=[City, day_month]",  # a feature that may be inferred from the column day
    ],
)
def test_names_that_there_are_pass(tmp_path, argument):
    assert keys_of_problems(write(tmp_path, "csv"), argument) == []


def test_a_feature_that_is_no_column_has_the_name_of_the_configuration(tmp_path):
    features = {"town": {"column": "City", "dtype": "string"}}
    path = write(tmp_path, "csv")
    assert keys_of_problems(path, "evaluation.by=[town]", features=features) == []
    assert keys_of_problems(path, "evaluation.by=[City]", features=features) == ["evaluation.by[0]"]


def test_a_name_with_a_blank_behind_it_is_meant_and_no_delimiter(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("Age ,City\n1,2\n")
    (problem,) = header.problems({"path": str(path), "label": "Age"}, {})
    assert problem.message.endswith("has no column 'Age'. Did you mean 'Age '?")
    assert header.problems({"path": None, "label": "Age"}, {}) == []


@pytest.mark.parametrize("path", ["gs://bucket/table.csv", "s3://bucket/table-*.csv"])
def test_files_of_an_object_store_are_left_to_the_table(path):
    assert keys_of_problems(path, "data.label=bought") == []


def test_a_file_that_cannot_be_read_is_left_to_the_table(tmp_path):
    path = tmp_path / "table.parquet"
    path.write_bytes(b"PAR1")
    assert keys_of_problems(str(path), "data.label=bought") == []


@pytest.mark.parametrize(("name", "meant"), [("table.csv", "Table.csv"), ("Tabel.csv", "Table.csv"), ("other.csv", "")])
def test_a_file_that_does_not_exist_is_reported_with_the_one_that_is_meant(tmp_path, name, meant):
    write(tmp_path, "csv")
    raw = plain_config("model=wide_deep", "data=table", f"data.path={tmp_path / name}", "data.label=Bought")
    with pytest.raises(ConfigError) as raised:
        parse.load(raw)
    (problem,) = raised.value.problems
    assert problem.key == "data.path"
    assert (f"Did you mean '{tmp_path / meant}'" in problem.message) == bool(meant)


def test_the_check_imports_no_tensorflow(tmp_path):
    script = (
        "import sys\n"
        "from psrun.tables import header\n"
        "problems = header.problems({'path': sys.argv[1], 'label': 'bought'}, {})\n"
        "assert [problem.key for problem in problems] == ['data.label'], problems\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script, write(tmp_path, "csv")], check=True)


VALUES = [True, 3, 0.5, "", "x", [], ["Age"], [3], {}, {"Age": 1}, {"x": {"column": 3}}, None]


@pytest.mark.parametrize("key", sorted(plain_config("model=wide_deep", "data=table")["data"].keys() - {"path"}))
def test_a_value_of_another_type_is_accepted_or_reported(tmp_path, key):
    path = write(tmp_path, "csv")
    for value in VALUES:
        for problem_key in keys_of_problems(path, **{key: value}):
            assert problem_key.startswith("data"), (value, problem_key)
