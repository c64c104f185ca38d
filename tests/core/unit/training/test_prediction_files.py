"""Files of predictions in each format: names, types, missing values, and numbers that come back with the same bits."""

from __future__ import annotations

import csv
import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import parquet

from psrun.errors import ConfigError, PsrunError
from psrun.roles import checkpoint_modes as files

pytestmark = pytest.mark.tensorflow

FLOATS = np.array([[0.1], [1 / 3], [np.float32(1e-30)]], np.float32)
KEPT = pa.table(
    {
        "id": pa.array(["007", None, 'a "b", c'], pa.string()),
        "day": pa.array([datetime.date(2024, 1, 31), None, datetime.date(2024, 2, 1)]),
        "large": pa.array([2**63, 1, None], pa.uint64()),
        "exact": pa.array([0.1, 1e300, None], pa.float64()),
        "kind": pa.array(["x", "y", "x"]).dictionary_encode(),
        "list": pa.array([[1, 2], [], None], pa.list_(pa.int64())),
        "bytes": pa.array([b"\xff", None, b"ok"], pa.binary()),
    }
)


def written(path: Path, *parts: dict[str, Any], **options: Any) -> Path:
    with files.written(path, path.suffix[1:], files.Layout(**options)) as write:
        for part in parts:
            write(files.Rows(**{"kept": None, "labels": {}, "problems": {}, **part}))
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file as texts and numbers; a missing value is None, or an empty text in CSV."""
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    if path.suffix == ".parquet":
        return parquet.read_table(path).to_pylist()
    read = []
    for record in tf.data.TFRecordDataset(str(path)):
        features = tf.train.Example.FromString(record.numpy()).features.feature
        read.append({name: list(getattr(each, each.WhichOneof("kind")).value) for name, each in features.items()})
    return read


@pytest.mark.parametrize("extension", ["csv", "parquet"])
def test_numbers_come_back_with_the_same_bits(tmp_path, extension):
    doubles = FLOATS.astype(np.float64) / 3
    path = written(tmp_path / f"p.{extension}", {"labels": {"label": doubles}, "predictions": {"prediction": FLOATS}})
    read = rows(path)
    assert [np.float32(row["prediction"]) for row in read] == FLOATS[:, 0].tolist()
    assert [float(row["label"]) for row in read] == doubles[:, 0].tolist()
    if extension == "parquet":
        schema = parquet.read_schema(path)
        assert [(field.name, field.type) for field in schema] == [("label", pa.float64()), ("prediction", pa.float32())]


def test_csv_is_as_it_was(tmp_path):
    part = {"labels": {"label": np.array([1, 0])}, "predictions": {"prediction": FLOATS[:2]}}
    assert written(tmp_path / "p.csv", part).read_bytes() == (b"label,prediction\r\n1,0.100000001\r\n0,0.333333343\r\n")


def test_kept_columns_stand_before_the_predictions_as_in_the_input(tmp_path):
    part = {"kept": KEPT, "predictions": {"prediction": FLOATS}}
    first, second, third = rows(written(tmp_path / "p.csv", part))
    assert list(first) == [*KEPT.column_names, "prediction"]
    del first["prediction"], second["prediction"], third["prediction"]
    assert list(first.values()) == ["007", "2024-01-31", str(2**63), "0.1", "x", "[1, 2]", "\\xff"]
    assert list(second.values()) == ["", "", "1", "1e+300", "y", "[]", ""]
    assert list(third.values()) == ['a "b", c', "2024-02-01", "", "", "x", "", "ok"]
    read = parquet.read_table(written(tmp_path / "p.parquet", part))
    assert read.drop_columns("prediction").to_pylist() == KEPT.to_pylist()
    records = rows(written(tmp_path / "p.tfrecord", part))
    assert (records[0]["bytes"], records[0]["day"]) == ([b"\xff"], [b"2024-01-31"])
    record = records[1]
    assert {name: value for name, value in record.items() if name not in ("prediction", "exact")} == {
        "large": [b"1"], "kind": [b"y"], "list": [b"[]"],
    }  # fmt: skip


@pytest.mark.parametrize("extension", ["csv", "parquet", "tfrecord"])
def test_malformed_rows_are_marked_and_have_no_label_and_no_prediction(tmp_path, extension):
    good = {"labels": {"label": np.array([0, 1])}, "predictions": {"prediction": np.full((2, 2), 0.5, np.float32)}}
    bad = {**good, "labels": {"label": np.array([1, -99])}, "problems": {1: "row 4: price is 'x'"}}
    path = written(tmp_path / f"p.{extension}", good, bad, class_names=("no", "yes"), has_problems=True)
    read = rows(path)
    assert len(read) == 4
    if extension == "tfrecord":
        assert [sorted(row) for row in read] == [["class", "label", "prediction"]] * 3 + [["problem"]]
        return
    missing = "" if extension == "csv" else None
    assert [row["label"] for row in read] == ["no", "yes", "yes", missing]
    assert [row["class"] for row in read] == ["no"] * 3 + [missing]
    assert read[3] == {**dict.fromkeys(read[0], missing), "problem": "row 4: price is 'x'"}
    assert list(read[0]) == ["label", "prediction_no", "prediction_yes", "class", "problem"]


@pytest.mark.parametrize("extension", ["csv", "parquet", "tfrecord"])
def test_the_column_of_a_single_probability_names_its_class(tmp_path, extension):
    """Other outputs of that name keep theirs: a number of classes, and integers."""
    named = {"class_names": ("No", "Yes"), "probabilities": {"prediction": "churn=Yes", "like": "like=1"}}
    part = {"labels": {"label": np.array([0, 1, 1])}, "predictions": {"prediction": FLOATS}}
    (first, *_) = rows(written(tmp_path / f"p.{extension}", part, **named))
    assert sorted(first) == ["churn=Yes", "label"]
    wide = {"predictions": {"prediction": np.eye(3, dtype=np.float32), "like": np.array([1, 2, 3])}}
    (first, *_) = rows(written(tmp_path / f"w.{extension}", wide, **named))
    columns = ["prediction"] if extension == "tfrecord" else ["prediction_0", "prediction_1", "prediction_2"]
    assert sorted(first) == ["like", *columns]


@pytest.mark.parametrize(
    ("class_names", "classes", "columns"),
    [
        (("no", "yes"), {"churn": ("no", "yes")}, {"churn": "churn=yes", "prediction": "churn=yes"}),
        (("1", "2"), {}, {"prediction": "label=2"}),  # a source that names no label
        (("a", "b", "c"), {"kind": ("a", "b", "c")}, {}),
        (None, {"like": (-1, 1), "kind": ("a", "b", "c")}, {"like": "like=1"}),  # several labels
        (None, {}, {}),
    ],
)
def test_which_outputs_are_probabilities_of_a_named_class(class_names, classes, columns):
    source = SimpleNamespace(classes=classes)
    assert files._probability_columns(source, class_names) == columns


@pytest.mark.parametrize("extension", ["csv", "parquet"])
def test_each_output_has_its_columns(tmp_path, extension):
    predictions = {"click": FLOATS, "stars": np.eye(3, dtype=np.float32), "at": np.zeros((3, 2), np.float32)}
    labels = {"label_click": FLOATS, "label_stars": np.arange(3)}
    (first, *_) = rows(written(tmp_path / f"p.{extension}", {"labels": labels, "predictions": predictions}))
    numbered = ["stars_0", "stars_1", "stars_2", "at_0", "at_1"]
    assert list(first) == ["label_click", "label_stars", "click", *numbered]
    path = written(tmp_path / f"n.{extension}", {"predictions": predictions}, class_names=("a", "b", "c"))
    assert list(rows(path)[0]) == ["click", "stars_a", "stars_b", "stars_c", "at_0", "at_1", "stars_class"]
    assert [row["stars_class"] for row in rows(path)] == ["a", "b", "c"]


@pytest.mark.parametrize("extension", ["csv", "parquet", "tfrecord"])
@pytest.mark.parametrize(
    ("part", "key"),
    [
        ({"kept": pa.table({"prediction": [1, 2, 3]})}, "predict.keep"),
        ({"labels": {"prediction": FLOATS}}, "model"),
    ],
)
def test_columns_of_the_same_name_are_refused_and_nothing_is_written(tmp_path, extension, part, key):
    with pytest.raises(ConfigError) as raised:
        written(tmp_path / f"p.{extension}", {**part, "predictions": {"prediction": FLOATS}})
    assert [problem.key for problem in raised.value.problems] == [key]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("extension", ["csv", "parquet", "tfrecord"])
def test_a_file_that_cannot_be_written_is_reported(extension):
    with pytest.raises(PsrunError, match=r"/proc/none/p\."):
        written(Path(f"/proc/none/p.{extension}"), {"predictions": {"prediction": FLOATS}})


def test_small_batches_are_one_row_group(tmp_path):
    path = written(tmp_path / "p.parquet", *[{"predictions": {"prediction": FLOATS}}] * 50)
    metadata = parquet.read_metadata(path)
    assert (metadata.num_rows, metadata.num_row_groups) == (150, 1)
