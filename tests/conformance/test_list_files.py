"""Lists in files: truncated, empty, missing and of one length, and features with lists that are inferred."""

from __future__ import annotations

import numpy as np
import pytest
import table_files
import tensorflow as tf
from table_files import evaluated, read, write

from psrun.data import columns, records
from psrun.errors import DataError

pytestmark = pytest.mark.tensorflow

HISTORY = {"dtype": "int64", "num_buckets": 100, "max_values": 4, "weights": "seconds"}
FEATURES = {"history": HISTORY, "tags": {"dtype": "string", "max_values": 9, "combiner": None}, "age": {}}


def table(path, **options):
    return table_files.table(path, **{"features": FEATURES, "task": "binary", **options})


def rows(count: int = 300) -> dict[str, list]:
    """Lists of 0 to 4 items, and one that is longer in row 2."""
    rng = np.random.default_rng(3)
    history = [[5, 6, 7, 8, 9, 10] if n == 1 else rng.integers(0, 100, size=n % 5).tolist() for n in range(count)]
    return {
        "history": history,
        "seconds": [[float(item) / 4 for item in items] for items in history],
        "tags": [[f"tag {item % 7}" for item in items] for items in history],
        "age": [float(index) for index in range(count)],
        "label": [index % 2 for index in range(count)],
    }


def test_models_see_the_lists_in_the_features_and_long_ones_are_reported(tmp_path):
    source = table(write(tmp_path / "rows.csv", rows()))
    history, weights, tags = (source.features[name] for name in ("history", "history_weights", "tags"))
    assert (history.shape, history.dtype, history.num_buckets, history.max_values) == ((None,), tf.int64, 100, 4)
    assert (history.combiner, history.weights, history.is_list) == ("mean", "history_weights", True)
    assert (weights.shape, weights.dtype, weights.max_values, weights.weights) == ((None,), tf.float32, 4, None)
    assert (tags.combiner, tags.num_buckets) == (None, 100_000)
    assert not source.features["age"].is_list
    assert source.warnings == ("history: 1 rows have more than max_values=4 values; the first values are kept",)


def test_prepared_lists_are_reused_and_truncated_anew(tmp_path):
    path = write(tmp_path / "rows.csv", rows())
    cache = tmp_path / "cache"
    for max_values, count in ((4, 1), (4, 1), (6, 0), (1, 181)):
        features = {"history": {**HISTORY, "max_values": max_values}}
        source = table(path, features=features, cache=str(cache))
        assert source.facts["num_truncated_rows"] == {"history": count}
    assert len([*cache.glob("*/prepared.json")]) == 3


def test_a_batch_of_empty_lists_is_read(tmp_path):
    columns = {"tags": [["a"], []], "label": [0, 1]}
    path = write(tmp_path / "rows.csv", columns)
    other = write(tmp_path / "eval.csv", {**columns, "tags": [[], []]})
    found = evaluated(table(path, eval_path=str(other), features={"tags": FEATURES["tags"]}))
    assert [row["tags"] for row in found] == [[], []]


def test_missing_values_of_a_list_have_the_default(tmp_path):
    features = {"history": {"dtype": "int64", "num_buckets": 9, "max_values": 5, "separator": "; ", "default": -1}}
    path = write(tmp_path / "rows.csv", {"history": ["1; ; 3", ""], "label": [1, 0]})
    found = read(path, features=features, task="binary")
    assert [row["history"] for row in found] == [[1, -1, 3], []]


def test_null_lists_of_parquet_are_empty(tmp_path):
    columns = {"history": [[1], None, [], [2, 3]], "seconds": [[1.0], None, None, [2.0, 3.0]], "label": [0, 1, 1, 0]}
    found = read(write(tmp_path / "rows.parquet", columns), features={"history": HISTORY}, task="binary")
    assert [row["history"] for row in found] == [[1], [], [], [2, 3]]
    assert [row["history_weights"] for row in found] == [[1.0], [], [], [2.0, 3.0]]
    nulls = write(tmp_path / "nulls.parquet", {**columns, "history": [[1], None, [], [2, None]]})
    with pytest.raises(DataError, match="row 4: column history"):
        table(nulls, features={"history": HISTORY})


def test_lists_of_parquet_are_inferred_and_those_of_text_are_not(tmp_path):
    columns = {**rows(), "pair": [[1.0, 2.0]] * 300, "empty": [None, [3, 4]] * 150}
    columns["history"][7] = list(range(150))
    path = write(tmp_path / "rows.parquet", columns)
    source = table(path, features=None)
    specs = source.facts["features"]
    assert {name: spec.get("max_values") for name, spec in specs.items()} == {
        "history": 100, "tags": 6, "age": None, "pair": None, "empty": 2,
    }  # fmt: skip
    assert specs["pair"]["width"] == 2
    notes = {row["feature"]: row["note"] for row in source.guessed}
    assert "150 values; 1 rows truncated to 100" in notes["history"]
    assert "weights of a list" in notes["seconds"]
    assert source.facts["num_truncated_rows"] == {"history": 1, "tags": 0, "empty": 0}
    again = table(path, features=None, recorded=source.facts)  # a resumed run
    assert again.features == source.features
    text = table(write(tmp_path / "rows.csv", rows()), features=None)
    assert not any(feature.is_list for feature in text.features.values())


@pytest.mark.parametrize("words", [["a|b", "c"], ["a|b", ""]])
def test_a_text_with_separators_is_a_list_in_every_record(tmp_path, words):
    """Also if all records have one value, which NumPy would make a matrix."""
    path = table_files.write_records(
        tmp_path / "rows.tfrecord", [table_files.record({"words": [word] * bool(word)}) for word in words]
    )
    (piece,) = records.rows(str(path), ["words"])
    wanted = {"words": columns.ColumnSpec("words", "string", max_values=9, separator="|")}
    (found,) = columns.convert(piece, wanted).batch.columns
    assert found.to_pylist() == [[b"a", b"b"], [b"c"] if words[1] else []]
