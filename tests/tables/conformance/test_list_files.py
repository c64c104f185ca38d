"""Lists in files: truncated, empty, missing and of one length, and features with lists that are inferred."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import table_files
import tensorflow as tf
from support import run_config
from table_files import evaluated, read, write

from psrun.checkpoint import trained_model
from psrun.data import loading
from psrun.data.source import Feature
from psrun.errors import ConfigError, DataError
from psrun.program.build import make_model
from psrun.tables import columns, records

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


LONG = {
    "history": [[1, 2, 3, 4, 5, 6], [7], [], [8, 9, 10, 11], [12, 13, 14, 15, 16]],
    "seconds": [[0.5, 1.5, 2.5, 3.5, 4.5, 5.5], [6.5], [], [0.5, 1.5, 2.5, 3.5], [0.5, 1.5, 2.5, 3.5, 4.5]],
    "label": [1, 0, 1, 0, 1],
}


@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet", "rows.arrow", "rows.tfrecord"])
@pytest.mark.parametrize("keep", [None, "first", "last"])
def test_longer_lists_keep_the_end_that_their_key_says(tmp_path, name, keep):
    path = write(tmp_path / name, LONG)
    features = {"history": {**HISTORY, "keep": keep}}
    found = read(path, features=features, task="binary")
    chosen = slice(-4, None) if keep == "last" else slice(4)
    assert [row["history"] for row in found] == [each[chosen] for each in LONG["history"]]
    assert [row["history_weights"] for row in found] == [each[chosen] for each in LONG["seconds"]]


def test_lists_of_one_length_keep_their_last_values(tmp_path):
    equal = pa.array([[1, 2, 3], None, [4, 5, 6]], pa.list_(pa.int64(), 3))
    path = write(tmp_path / "rows.parquet", {"history": equal, "label": [1, 0, 1]})
    spec = {"dtype": "int64", "num_buckets": 9, "max_values": 2, "keep": "last"}
    found = read(path, features={"history": spec}, task="binary")
    assert [row["history"] for row in found] == [[2, 3], [], [5, 6]]


@pytest.mark.parametrize(
    ("keep", "reads", "recorded", "expected"),
    [
        (None, {}, None, "first"),
        (None, {"history": "last"}, None, "last"),
        ("first", {"history": "last"}, None, "first"),
        ("last", {}, None, "last"),
        (None, {"history": "first"}, {"list_ends": {"history": "last"}}, "last"),
    ],
)
def test_a_list_keeps_the_end_of_its_key_or_of_the_run_or_that_the_model_reads(
    tmp_path, keep, reads, recorded, expected
):
    path = write(tmp_path / "rows.parquet", LONG)
    source = table(path, features={"history": {**HISTORY, "keep": keep}}, list_ends=reads, recorded=recorded)
    assert source.features["history"].keep == expected
    assert source.features["history_weights"].keep == expected
    assert source.facts["list_ends"] == {"history": expected}
    assert source.warnings[0].endswith(f"the {expected} values are kept")


def test_a_guessed_list_keeps_the_end_that_the_model_reads(tmp_path):
    history = [list(range(n % 7, 105 + n % 3)) for n in range(100)]
    both = {"history": history, "label": [n % 2 for n in range(100)]}
    path = write(tmp_path / "rows.parquet", both)
    guessed = {"features": None, "eval_path": str(write(tmp_path / "eval.parquet", both))}
    last = table(path, **guessed, list_ends={"history": "last"})
    assert {tuple(row["history"]) for row in evaluated(last)} <= {tuple(each[-100:]) for each in history}
    assert table(path, **guessed, recorded=last.facts).features["history"].keep == "last"
    first = table(path, **guessed)
    assert {tuple(row["history"]) for row in evaluated(first)} <= {tuple(each[:100]) for each in history}


def test_the_history_of_sasrec_keeps_its_newest_values(tmp_path):
    path = write(tmp_path / "rows.parquet", {**LONG, "label": [1, 2, 3, 4, 5], "item": [1, 2, 3, 4, 5]})
    ids = "dtype: int64, num_buckets: 20"
    arguments = (
        "model=sasrec", "model.history=history", "model.item=item", f"data.path={path}", "data.label=label",
        f"data.features={{history: {{{ids}, max_values: 4, KEEP}}, item: {{{ids}}}}}", "data.split=0.4",
        "data.task=regression", "data.global_batch_size=2",
    )  # fmt: skip

    def built(keep: str, *more: str) -> str | None:
        given = [each.replace("KEEP", keep).replace(", }", "}") for each in arguments]
        run = run_config(*given, *more, "cluster=none")
        source = loading.load_source(run)
        make_model(run, source)
        return source.features["history"].keep

    assert built("") == "last"
    assert built("", "model.newest=first") == "first"
    assert built("keep: first", "model.newest=first") == "first"
    with pytest.raises(ConfigError, match="longer lists of history keep their first values; set data"):
        built("keep: first")
    with pytest.raises(ConfigError, match=r"or model\.newest=last"):
        built("keep: last", "model.newest=first")


@pytest.mark.parametrize("keep", ["first", "last"])
def test_exported_models_keep_the_same_end(keep):
    spec = Feature((None,), tf.int64, num_buckets=20, max_values=4, keep=keep, weights="seconds")
    source = SimpleNamespace(
        features={"history": spec, "seconds": Feature((None,), tf.float32, max_values=4, keep=keep)}
    )
    ragged = {name: tf.ragged.constant(LONG[name], dtype=source.features[name].dtype) for name in source.features}
    padded = {name: each.to_tensor() for name, each in ragged.items()}
    padded["history_length"] = tf.constant([len(each) for each in LONG["history"]], tf.int64)
    found = trained_model.without_padding(source, padded)
    chosen = slice(-4, None) if keep == "last" else slice(4)
    for name, each in found.items():
        assert each.to_list() == [values[chosen] for values in LONG[name]]


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
