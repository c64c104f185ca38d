"""The decimal mark, the units and the time format of a table, from its files to the numbers that a model gets."""

from __future__ import annotations

import io
import re

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from rich.console import Console
from support import run_config
from table_files import read, table, write

from psrun.errors import ConfigError, DataError
from psrun.results.run_folder import RunFolder
from psrun.roles import planner
from psrun.tables import profiles

pytestmark = pytest.mark.tensorflow
SEMICOLON = {"delimiter": ";", "decimal_mark": ","}


def text(path, *lines: str):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_a_label_with_a_decimal_comma_is_not_a_thousand_times_too_large(tmp_path):
    lines = [f"{10 * n},5;{n},385" for n in range(1, 20)]
    path = text(tmp_path / "kg.csv", "size;label", *lines, "981;0,227")
    for options in ({}, {"task": "regression"}):
        with pytest.raises(
            ConfigError, match=r"data\.decimal_mark: .* is 1385 with .* 1\.385 with 'data\.decimal_mark="
        ):
            table(path, delimiter=";", **options)
    with pytest.raises(ConfigError, match=r"data\.decimal_mark: does not fit .* '0,227'"):
        table(path, delimiter=";", decimal_mark=".")
    source = table(path, **SEMICOLON)
    assert (
        source.notes[-1]
        == "label label: regression: 20 different numbers; read with decimal mark , (data.decimal_mark)"
    )
    assert source.facts["label"] == {"task": "regression", "decimal_mark": ",", "unit": ""}
    for options in ({}, {"task": "regression"}, {"task": "regression", "features": {"size": {}}}):
        found = read(path, **SEMICOLON, **options)
        assert [row["label"] for row in found[-2:]] == [[pytest.approx(19.385)], [pytest.approx(0.227)]]
        assert [row["size"] for row in found[-2:]] == [[190.5], [981.0]]


def test_plain_numbers_beside_a_decimal_comma_ask(tmp_path):
    rows = [f"{n},8;{n}.775;{n}" for n in range(1, 20)]
    path = text(tmp_path / "rows.csv", "x;y;label", *rows)
    with pytest.raises(ConfigError, match=re.escape("1.775 with data.decimal_mark=. and 1775 with")):
        table(path, delimiter=";")
    assert read(path, **SEMICOLON)[0]["y"] == [1775.0]
    with pytest.raises(DataError, match=r"'1,8' does not fit decimal_mark=\."):  # what does not fit is malformed
        read(path, **SEMICOLON, features={"y": {"decimal_mark": "."}, "x": {"decimal_mark": "."}}, task="regression")
    found = read(path, **SEMICOLON, features={"y": {"decimal_mark": "."}, "x": {}}, task="regression")
    assert (found[0]["x"], found[0]["y"]) == ([pytest.approx(1.8)], [pytest.approx(1.775)])


@pytest.mark.parametrize(
    ("row", "options", "column"),
    [
        ("{0},8;{0}.775;1;{0}", {"features": {"y": {}}, "task": "regression"}, "y"),
        ("1;{0}.775;1;{0},5", {"features": {"x": {}}, "task": "regression", "label": "y"}, "y"),
        ("{0},8;{0};{0}.775;{0}", {"features": {"y": {}}, "task": "regression", "weight": "w"}, "w"),
        ("{0}1;{0};{0}.775;{0}", {"weight": "w"}, "w"),
    ],
)
def test_described_numbers_of_two_readings_ask_too(tmp_path, row, options, column):
    path = text(tmp_path / "rows.csv", "x;y;w;label", *(row.format(n) for n in range(1, 20)))
    with pytest.raises(
        ConfigError, match=rf"data\.decimal_mark: is needed for column '{column}': '1\.775' is 1\.775 with"
    ):
        table(path, delimiter=";", **options)
    source = table(path, delimiter=";", decimal_mark=",", **options)
    assert source.num_train_examples == 19


def test_the_check_of_described_numbers_looks_at_other_columns_only_where_a_number_has_two_readings(
    tmp_path, monkeypatch
):
    looked = []
    of_first_rows = profiles.profile_first_rows

    def noting(names, layout, wanted=None):
        found = of_first_rows(names, layout, wanted)
        looked.append([*found])
        return found

    monkeypatch.setattr(profiles, "profile_first_rows", noting)
    options = {"features": {"y": {}, "w": {"dtype": "string"}}, "task": "binary"}
    table(text(tmp_path / "a.csv", "x,y,w,label", *(f"{n}1,{n}.5,b,{n % 2}" for n in range(20))), **options)
    assert looked == [["y", "label"]]
    looked.clear()
    table(text(tmp_path / "b.csv", "x,y,w,label", *(f"{n}1,{n}.775,b,{n % 2}" for n in range(1, 20))), **options)
    assert looked == [["y", "label"], ["x", "y", "w", "label"]]


def test_a_split_by_numbers_of_two_readings_asks(tmp_path):
    path = text(tmp_path / "rows.csv", "x;when;label", *(f"{n},5;{n}.775;{n % 2}" for n in range(1, 20)))
    options = {"delimiter": ";", "split": {"by": "time", "column": "when"}, "task": "binary"}
    features = {"x": {"dtype": "string"}}
    with pytest.raises(ConfigError, match=r"data\.decimal_mark: is needed for column 'when'"):
        table(path, features=features, **options)
    with pytest.raises(
        ConfigError, match=r"data\.split\.column: when has '1\.775', which a split reads with a decimal p"
    ):
        table(path, features=features, decimal_mark=",", **options)
    assert table(path, features=features, decimal_mark=".", **options).num_eval_examples == 2


def test_a_decimal_comma_in_the_second_file_asks_for_described_numbers_too(tmp_path):
    text(tmp_path / "a.csv", "x;y;label", *(f"{n};{n}.775;{n}" for n in range(1, 20)))
    text(tmp_path / "b.csv", "x;y;label", *(f"{n},5;{n}.775;{n}" for n in range(1, 20)))
    with pytest.raises(ConfigError, match=r"is needed for column 'y': .* '1,5' in column 'x' indicates"):
        table(tmp_path / "*.csv", delimiter=";", features={"y": {}}, task="regression")


def test_a_count_is_no_binary_label_of_described_features(tmp_path):
    path = text(tmp_path / "rows.csv", "x,label", *(f"{n % 7},{n}" for n in range(40)))
    with pytest.raises(
        ConfigError, match=r"data\.task: is binary, but label has 40 different numbers: data\.task=regr"
    ):
        table(path, features={"x": {}}, task="binary")


PRICES = ["$82.12", "$1,521.00", "($3.50)", "-$0.25"]


def test_the_unit_of_a_column_is_that_of_the_training_files(tmp_path):
    path = text(tmp_path / "rows.csv", "price,label", *(f'"{each}",{n % 2}' for n, each in enumerate(PRICES)))
    options = {"features": {"price": {"decimal_mark": "."}}, "task": "binary"}
    found = read(path, **options)
    assert [row["price"][0] for row in found] == pytest.approx([82.12, 1521, -3.5, -0.25])
    source = table(path, **options)
    assert source.facts["units"] == {"price": "$"}
    later = text(tmp_path / "later.csv", "price,label", "$5.00,1", "5.00,0", "€5.00,1", '"$5,00",0')
    for recorded in (None, source.facts):
        again = table(path, eval_path=str(later), predicting=True, recorded=recorded, **options)
        problems = again.rows_to_predict.problems
        assert sorted(problems) == [1, 2, 3]
        assert "'5.00' has no unit, but the training files have $" in problems[1]
        assert "'€5.00' has the unit €, but the training files have $" in problems[2]
    inferred = table(path, label="label", decimal_mark=".")
    assert inferred.facts["features"]["price"]["unit"] == "$"
    assert read(path, features={"price": {"decimal_mark": ".", "unit": "$"}}, task="binary") == found
    with pytest.raises(ConfigError, match=r"features\.price\.unit: requires decimal_mark"):
        table(path, features={"price": {"unit": "$"}})


@pytest.mark.parametrize("values", [["0.82", "27%"], ["$82.12", "¥12318"]])
def test_a_column_of_two_units_is_words_or_asks(tmp_path, values):
    path = text(tmp_path / "rows.csv", "share,label", *(f"{values[n % 2]},{n % 2}" for n in range(40)))
    for options in ({}, {"decimal_mark": "."}):
        source = table(path, **options)
        assert source.features["share"].vocabulary == tuple(sorted(values))
        assert any("units differ" in each and repr(values[1]) in each for each in source.warnings)
    with pytest.raises(ConfigError, match=rf"features\.share\.unit: must be set: .*{re.escape(values[0])}"):
        table(path, features={"share": {"decimal_mark": "."}}, task="binary")
    with pytest.raises(DataError, match=r"has the unit|has no unit"):
        table(
            path, features={"share": {"decimal_mark": ".", "unit": "" if values[0] == "0.82" else "$"}}, task="binary"
        )


def test_the_decimal_mark_is_that_of_weights_too(tmp_path):
    lines = ["1,5;0,5;3|4;0,5|1,5;0", "2,5;2;5;0,25;1"] * 5
    path = text(tmp_path / "rows.csv", "x;w;items;seconds;label", *lines)
    items = {"dtype": "int64", "num_buckets": 9, "max_values": 3, "weights": "seconds"}
    found = read(path, weight="w", features={"x": {}, "items": items}, task="binary", **SEMICOLON)
    assert found[0]["x"] == [1.5]
    assert found[0]["items_weights"] == [0.5, 1.5]
    assert [row["weight"] for row in found[:2]] == [0.5, 2.0]
    assert table(path, weight="w", **SEMICOLON).facts["mean_weight"] == 1.25


def test_the_time_format_is_that_of_features_and_the_split(tmp_path):
    days = [f"{n % 28 + 1:02}.{n // 28 + 1:02}.2023" for n in range(100)]
    columns = {"sold": days, "seen": [f"2023-01-{n % 28 + 1:02}" for n in range(100)], "label": [0, 1] * 50}
    path = write(tmp_path / "rows.csv", columns)
    assert any("sold: not read as dates" in each and "data.time_format" in each for each in table(path).warnings)
    options = {"time_format": "%d.%m.%Y", "split": {"by": "time", "column": "sold"}}
    source = table(path, **options)
    assert source.facts["features"]["sold_days"]["time_format"] == "%d.%m.%Y"
    assert source.facts["features"]["seen_days"]["time_format"] == "iso"
    assert 8 <= source.num_eval_examples <= 12
    again = table(path, recorded=source.facts, **options)
    assert again.features == source.features
    features = {"day": {"column": "sold", "part": "days"}, "seen": {"part": "days", "time_format": "iso"}}
    first = read(path, time_format="%d.%m.%Y", features=features, task="binary")[0]
    assert (first["day"], first["seen"]) == ([19358.0], [19358.0])
    with pytest.raises(ConfigError, match=r"data\.time_format: '%Q' has %Q"):
        table(path, time_format="%Q")
    with pytest.raises(ConfigError, match=r"data\.decimal_mark: is ':'"):
        table(path, decimal_mark=":")


def with_index(path, name: str, metadata: bytes):
    rng = np.random.default_rng(1)
    columns = {"x": rng.random(60), name: rng.permutation(60), "label": np.arange(60) % 2}
    schema = pa.table(columns).schema.with_metadata({b"pandas": metadata})
    parquet.write_table(pa.table(columns).cast(schema), path)
    return path


@pytest.mark.parametrize(
    ("name", "metadata"),
    [
        ("__index_level_0__", b'{"index_columns": ["__index_level_0__"]}'),
        ("passenger", b'{"index_columns": ["passenger"]}'),
        ("Unnamed: 0", b'{"index_columns": [{"kind": "range", "start": 0, "stop": 60, "step": 1}]}'),
        ("__index_level_0__", b"{}"),
    ],
)
def test_an_index_is_no_feature_unless_it_is_named(tmp_path, name, metadata):
    path = with_index(tmp_path / "rows.parquet", name, metadata)
    source = table(path)
    assert set(source.features) == {"x"}
    (note,) = [each for each in source.notes if "left out as an index" in each]
    assert repr(name) in note
    assert "data.features" in note
    kept = table(path, features={"x": {}, "number": {"column": name}}, task="binary")
    assert set(kept.features) == {"x", "number"}
    assert table(path, label=name).task == "regression"


def test_an_index_of_the_second_file_is_no_feature(tmp_path):
    with_index(tmp_path / "a.parquet", "passenger", b"{}")
    with_index(tmp_path / "b.parquet", "passenger", b'{"index_columns": ["passenger"]}')
    assert set(table(tmp_path / "*.parquet").features) == {"x"}


def test_a_count_as_binary_label_is_found_before_its_rows_are_read(tmp_path):
    path = write(tmp_path / "rows.csv", {"x": [0.5, 1.5] * 300, "label": [*range(600)]})
    with pytest.raises(ConfigError, match=r"data\.task: .*label has 600 different numbers: data\.task=regression"):
        table(path, task="binary")


def test_a_plan_warns_of_what_a_training_warns_of(tmp_path):
    rows = [f"{n % 50};{n % 9},{n % 7}9;{n % 2}" for n in range(200)]
    path = text(tmp_path / "rows.csv", "age;price;label", *rows)
    run = run_config("mode=plan", "cluster=none", "model=dense", "data=table", f"data.path={path}", "data.label=label",
                     "data.delimiter=';'")  # fmt: skip
    shown = io.StringIO()
    planner.run(run, RunFolder.create(tmp_path / "run", raw={}), Console(file=shown, width=200))
    assert """for numbers, set 'data.decimal_mark=","'""" in shown.getvalue()


def test_rows_to_predict_that_are_written_in_another_notation(tmp_path):
    rows = [f"{n % 50},{n % 9},{n % 2}" for n in range(200)]
    path = text(tmp_path / "rows.csv", "age,visits,label", *rows)
    recorded = table(path).facts
    later = text(tmp_path / "later.csv", "age;visits", "31;4")
    with pytest.raises(DataError, match=r"has the delimiter ';', and the files of the run ','; write it as the others"):
        table(path, eval_path=str(later), predicting=True, recorded=recorded)
    lacking = text(tmp_path / "lacking.csv", "age,label", "31,1")
    with pytest.raises(DataError, match="lacks 'visits', which the model needs; it has age, label"):
        table(path, eval_path=str(lacking), predicting=True, recorded=recorded)
