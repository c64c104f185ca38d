"""Tables: what is read from files, what is damaged, what a run keeps of its guess, and models that learn from them."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from outcomes import events
from pyarrow import ipc
from support import flipped, truncated
from table_files import evaluated, read, record, table, write, write_records

from psrun.errors import ConfigError, DataError
from psrun.models.model import prepared
from psrun.results.run_folder import RunFolder

pytestmark = pytest.mark.tensorflow

READ = ("data=table", "data._target_=psrun.tables.table.Table", "data.label=label")
FORMATS = ("csv.gz", "tfrecord", "tfrecord.gz", "parquet")
FEATURES = {"age": {}, "work": {"dtype": "string"}}
WORKS = ("baker", 'said "so"', "tab\there", "two\nlines", "comma, here", "", "Käse")


def rows(count: int = 150) -> dict[str, list]:
    """Columns that a model can learn from."""
    rng = np.random.default_rng(3)
    age = rng.integers(1, 90, size=count)
    works = [WORKS[index] for index in rng.integers(len(WORKS), size=count)]
    return {"age": (age / 4).tolist(), "work": works, "label": [int(each > 45) for each in age]}


def binary(path: Path | str, **options: Any) -> Any:
    return table(path, **{"task": "binary", **options})


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_features_are_those_of_the_first_file_in_whatever_order_others_have_them(tmp_path, ending):
    write(tmp_path / f"rows.{ending}", rows()).rename(tmp_path / f"rows.{ending}-00000-of-00002")
    turned = dict(reversed(rows().items()))
    write(tmp_path / f"rows.{ending}", turned).rename(tmp_path / f"rows.{ending}-00001-of-00002")
    source = binary(tmp_path / f"rows.{ending}-*")
    words = sorted(filter(None, WORKS))
    assert source.facts["features"] == {
        "age": {"column": "age", "bins": 6},
        "work": {"dtype": "string", "column": "work", "vocabulary": words},
    }
    assert (source.features["age"].dtype, source.features["work"].dtype) == (tf.float32, tf.string)
    assert source.features["age"].mean == pytest.approx(np.mean(rows()["age"]))
    assert source.features["work"].vocabulary == tuple(words)
    assert source.num_eval_examples == 0


def test_a_guess_holds_for_as_long_as_the_run(tmp_path):
    """Whatever the files hold later."""
    path = write(tmp_path / "rows.csv", {"item": [1, 2] * 20, "label": [0, 1] * 20})
    first = binary(path)
    assert first.features["item"].vocabulary == (1, 2)
    assert [row["feature"] for row in first.guessed] == ["item"]
    write(path, {"item": [*range(40)], "label": [0, 1] * 20})
    later = binary(path, recorded=first.facts)
    assert (later.features, later.facts["features"]) == (first.features, first.facts["features"])
    assert not later.guessed
    write(path, {"item": [1, 2] * 20, "work": ["a", "b"] * 20, "label": [0, 1] * 20})
    assert binary(path, features={"work": {"dtype": "string"}}, recorded=first.facts).features.keys() == {"work"}


def test_scales_are_those_that_the_run_recorded(tmp_path):
    path = write(tmp_path / "rows.csv", {"x": [1.0, 2.0, 6.0], "label": [10.0, 20.0, 60.0]})
    options = {"features": {"x": {}}, "task": "regression"}
    first = table(path, **options)
    assert (first.label_mean, first.features["x"].mean) == (30.0, 3.0)
    write(path, {"x": [1.0, 2.0, 60.0], "label": [10.0, 20.0, 90.0]})
    later = table(path, recorded=first.facts, **options)
    assert (later.label_mean, later.label_deviation) == (30.0, first.label_deviation)
    assert later.features == first.features


def test_floats_are_reported_with_mean_and_deviation(tmp_path):
    """Over all files to train on, and of logarithms as the model takes them."""
    first = {"x": [-1.0, 0.0, 5.0], "label": [0, 1, 1]}
    write(tmp_path / "a.csv", first)
    write(tmp_path / "b.csv", {"x": [100.0], "label": [1]})
    features = {"x": {}, "counts": {"column": "x", "logarithm": True}}
    source = binary(tmp_path, features=features)
    values = np.array([*first["x"], 100.0])
    logarithms = np.log1p(np.maximum(values, 0))
    described = source.features["x"], source.features["counts"]
    np.testing.assert_allclose([each.mean for each in described], [values.mean(), logarithms.mean()], rtol=1e-6)
    np.testing.assert_allclose([each.deviation for each in described], [values.std(), logarithms.std()], rtol=1e-6)

    preprocessing, _ = prepared(source)
    given = preprocessing({name: values[:, np.newaxis].astype(np.float32) for name in features})
    np.testing.assert_allclose(given["counts"][:, 0], (logarithms - logarithms.mean()) / logarithms.std(), rtol=1e-5)
    same = binary(write(tmp_path / "same.csv", {"x": [3.0, 3.0], "label": [0, 1]}), features={"x": {}})
    assert (same.features["x"].mean, same.features["x"].deviation) == (3.0, 1.0)


YES_NO = {"label": ["yes", "no", "no", "yes"]}
X = {"x": [1.5, 2.5, 3.5, 4.5]}
WORDS = {"label_vocabulary": ("no", "yes")}
NUMBERS = {"label_vocabulary": (20, 30, 10), "task": "multiclass"}
DEFAULTS = {
    "age": {"default": -1},
    "work": {"dtype": "string", "default": "none"},
    "day": {"dtype": "int64", "default": 7, "vocabulary": [3, 7]},
}
# The file, the options, and the values by feature, of which those of the label are last.
CASES: dict[str, tuple[str, dict[str, list], dict[str, Any], list[list]]] = {
    "words of text": ("csv", {**X, **YES_NO}, WORDS, [[1.0], [0.0], [0.0], [1.0]]),
    "words of parquet": ("parquet", {**X, **YES_NO}, WORDS, [[1.0], [0.0], [0.0], [1.0]]),
    "words of records": ("tfrecord", {**X, **YES_NO}, WORDS, [[1.0], [0.0], [0.0], [1.0]]),
    "numbers of text": ("csv", {**X, "label": [30, 10, 20, 10]}, NUMBERS, [1, 2, 0, 2]),
    "numbers of parquet": ("parquet", {**X, "label": [30, 10, 20, 10]}, NUMBERS, [1, 2, 0, 2]),
    "whole floats": ("parquet", {**X, "label": [2.0, -1.0, -1.0, 2.0]}, {"label_vocabulary": (-1, 2)},
                     [[1], [0], [0], [1]]),
    "class numbers": ("parquet", {**X, "label": [2, 0, 1, 2]}, {"task": "multiclass", "num_classes": 3}, [2, 0, 1, 2]),
    "numbers to regress": ("csv", {**X, "label": [2, 0, 1, 2.5]}, {"task": "regression"}, [[2.0], [0.0], [1.0], [2.5]]),
}  # fmt: skip


@pytest.mark.parametrize(("ending", "columns", "options", "expected"), CASES.values(), ids=CASES)
def test_labels_become_class_numbers_or_numbers(tmp_path, ending, columns, options, expected):
    path = write(tmp_path / f"rows.{ending}", columns)
    found = read(path, features={"x": {}}, **options)
    assert [row["label"] for row in found] == expected
    assert [row["x"] for row in found] == [[each] for each in columns["x"]]


def several(path: Path, label: list[str], **options: Any) -> Any:
    return table(path, label=label, task=None, **options)


def test_several_labels_are_a_dict_by_column_each_with_a_task_of_its_own(tmp_path):
    count = 120
    columns = {
        "age": [n % 7 / 2 for n in range(count)],
        "click": [n % 2 for n in range(count)],
        "like": ["yes" if n % 3 else "no" for n in range(count)],
        "seconds": [n / 4 for n in range(count)],
        "w": [n % 4 for n in range(count)],
    }
    path = write(tmp_path / "rows.csv", columns)
    labels = ["click", "like", "seconds"]
    source = several(path, labels, weight="w")
    assert (source.task, list(source.features)) == (None, ["age"])
    assert source.label_tasks == {"click": "binary", "like": "binary", "seconds": "regression"}
    ((_, label, weight),) = source.train(batch_size=count, seed=tf.constant(1, tf.int64)).take(1)
    assert {name: values.shape for name, values in label.items()} == dict.fromkeys(labels, (count, 1))
    of_seconds = {second: place for place, second in enumerate(columns["seconds"])}
    order = [of_seconds[second] for second in label["seconds"].numpy()[:, 0].tolist()]
    assert label["click"].numpy()[:, 0].tolist() == [columns["click"][place] for place in order]
    assert label["like"].numpy()[:, 0].tolist() == [columns["like"][place] == "yes" for place in order]
    assert weight.numpy().tolist() == [columns["w"][place] for place in order]
    scale = source.label_scales["seconds"]
    assert scale == pytest.approx({"mean": np.mean(columns["seconds"]), "deviation": np.std(columns["seconds"])})

    later = write(tmp_path / "later.csv", {**columns, "like": ["no"] * count, "seconds": [1000.0] * count})
    resumed = several(later, labels, weight="w", recorded=source.facts)
    assert (resumed.label_tasks, resumed.label_scales) == (source.label_tasks, source.label_scales)
    unlabeled = write(tmp_path / "new.csv", {"age": columns["age"]})
    predicted = several(path, labels, weight="w", eval_path=str(unlabeled), recorded=source.facts, predicting=True)
    ((_, label),) = predicted.evaluation(batch_size=count)
    assert {name: float(tf.reduce_sum(values)) for name, values in label.items()} == dict.fromkeys(labels, 0.0)
    assert not predicted.rows_to_predict.labeled
    assert predicted.classes == {"like": ("no", "yes")}


SPLITS = {
    "rows": {"by": "rows", "fraction": 0.3},
    "group": {"by": "group", "column": "who", "fraction": 0.3},
    "time": {"by": "time", "column": "day", "fraction": 0.3},
    "last": {"by": "last", "column": "day", "user": "who"},
}


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_columns_beside_predictions_are_those_of_the_held_out_rows(tmp_path, ending, split):
    """In the order of two files, without malformed rows and without rows that have no label."""
    for first in (0, 100):
        numbers = range(first, first + 100)
        columns = {
            "id": [f"#{n}" for n in numbers],
            "who": [n % 17 for n in numbers],
            "day": [(n * 7) % 200 for n in numbers],
            "n": [None if n % 11 == 5 else float(n) for n in numbers],
            "label": [None if n % 13 == 5 else n % 2 for n in numbers],
        }
        write(tmp_path / f"{first:03}.{ending}", columns)
    options = {"split": split, "features": {"n": {}}, "max_bad_rows": 50}
    trained = binary(tmp_path, **options)
    predicted = binary(tmp_path, **options, recorded=trained.facts, predicting=True)
    held_out = predicted.rows_to_predict
    assert held_out.columns == ("id", "who", "day", "n", "label")
    kept = [row for batch in held_out.kept(["id", "who"]) for row in batch.to_pylist()]
    expected = [int(row["n"][0]) for row in evaluated(predicted)]
    assert [row["id"] for row in kept] == [f"#{n}" for n in expected]
    assert [int(row["who"]) for row in kept] == [n % 17 for n in expected]
    assert len(kept) == predicted.num_eval_examples > 10
    assert (held_out.labeled, dict(held_out.problems)) == (True, {})
    assert binary(tmp_path, **options).rows_to_predict is None  # of an evaluation


@pytest.mark.parametrize(
    ("label", "options", "message"),
    [
        (["click", "click"], {}, "several different ones"),
        ([], {}, "several different ones"),
        (["click", "user"], {}, "'user', which has 5 classes"),
        (["click", "clck"], {}, r"data\.label\[1\]: .* Did you mean 'click'"),
        (["click", "like"], {"task": "binary"}, "data.task: is inferred"),
        (["click", "like"], {"weight": "like"}, "'like' is the label"),
        (["click", "like"], {"features": {"like": {"dtype": "string"}}}, "'like' is the label"),
    ],
)
def test_labels_that_cannot_be_several(tmp_path, label, options, message):
    columns = {"user": [f"u{n % 5}" for n in range(60)], "click": [n % 2 for n in range(60)]}
    path = write(tmp_path / "rows.csv", {**columns, "like": ["yes", "no"] * 30})
    with pytest.raises(ConfigError, match=message):
        table(path, label=label, **{"task": None, **options})


def test_other_labels_than_those_of_the_vocabulary_are_malformed_rows(tmp_path):
    path = write(tmp_path / "rows.parquet", {**X, "label": ["yes", "no", "maybe", "yes"]})
    with pytest.raises(DataError):
        read(path, features={"x": {}}, **WORDS)
    found = read(path, features={"x": {}}, max_bad_rows=1, **WORDS)
    assert [(row["x"], row["label"]) for row in found] == [([1.5], [1.0]), ([2.5], [0.0]), ([4.5], [1.0])]


def test_rows_without_a_label_are_left_out_and_counted(tmp_path):
    path = write(tmp_path / "rows.csv", {"age": [1, 2, 3, 4], "label": ["0", "", "NA", "1"]})
    source = binary(path, features={"age": {}})
    assert (source.num_train_examples, source.facts["num_unlabeled_rows"]) == (2, 2)
    assert "2 rows without a label are left out" in source.warnings
    with pytest.raises(DataError):
        binary(write(path, {"age": [1, 2], "label": ["", ""]}), features={"age": {}})


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_default_stands_for_what_is_missing(tmp_path, ending):
    path = write(
        tmp_path / f"rows.{ending}", {"age": [None, 2.0], "work": [None, "b"], "day": [None, 3], "label": [1, 0]}
    )
    first, second = read(path, features=DEFAULTS, task="binary")
    assert first == {"age": [-1.0], "work": [b"none"], "day": [7], "label": [1.0]}
    assert second == {"age": [2.0], "work": [b"b"], "day": [3], "label": [0.0]}
    (row,) = [row for row in binary(path).guessed if row["feature"] == "age"]
    assert row["missing"] == "1"
    with pytest.raises(DataError):
        binary(path, features={"age": {}})


def test_vocabularies_are_lists_or_files_and_integers_without_are_reported(tmp_path):
    columns = {"work": ["b", "a", "c"], "day": [5, 3, 4], "hour": [1, 2, 3], "label": [0, 1, 0]}
    path = write(tmp_path / "rows.parquet", columns)
    (tmp_path / "words.txt").write_text("a\nb\n")
    words = {"dtype": "string", "vocabulary": str(tmp_path / "words.txt")}
    days = {"dtype": "int64", "vocabulary": [3, 5]}
    source = binary(path, features={"work": words, "day": days, "hour": {"dtype": "int64"}})
    assert source.warnings == ("hour: integers without vocabulary and num_buckets; psrun's models ignore them",)
    preprocessing, num_ids = prepared(source)
    assert num_ids == {"work": 3, "day": 3}
    ids = preprocessing(next(source.train(batch_size=3, seed=np.int64(0)).as_numpy_iterator())[0])
    pairs = zip(ids["work"].numpy()[:, 0].tolist(), ids["day"].numpy()[:, 0].tolist())
    assert sorted(pairs) == [(0, 0), (1, 1), (2, 2)]


def test_booleans_are_numbers(tmp_path):
    path = write(tmp_path / "rows.parquet", {"member": [True, False], "label": [False, True]})
    features = {"member": {"dtype": "int64"}, "as_float": {"column": "member"}}
    found = read(path, features=features, task="binary")
    assert found == [
        {"member": [1], "as_float": [1.0], "label": [0.0]},
        {"member": [0], "as_float": [0.0], "label": [1.0]},
    ]


def test_a_record_that_lacks_a_feature_is_bad(tmp_path):
    records = record({"age": 1, "label": 1}), record({"label": 1}), b"\xff\xff", record({"age": "x"})
    path = write_records(tmp_path / "rows.tfrecord", records)
    source = binary(path, features={"age": {}}, max_bad_rows=3)
    assert source.num_train_examples == 1
    for row, problem in ((2, "is empty"), (3, "is not a tf.train.Example"), (4, "'x' is not a number")):
        with pytest.raises(DataError, match=f"row {row}: .*{problem}"):
            binary(path, features={"age": {}}, max_bad_rows=row - 2)


@pytest.mark.parametrize("ending", FORMATS)
def test_a_file_that_is_cut_short_is_an_error(tmp_path, ending):
    """Wherever it is cut within a record; TensorFlow takes some of these for files that end there."""
    whole = write(tmp_path / f"rows.{ending}", rows()).read_bytes()
    path = tmp_path / f"cut.{ending}"
    for size in (5, 13, len(whole) // 2, len(whole) - 12, len(whole) - 3):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match="cannot be read"):
            binary(path, features=FEATURES, max_bad_rows=9)


def test_records_that_are_cut_after_their_length_are_no_end(tmp_path):
    """TensorFlow reads 100 records of such a file without an error."""
    one = record({"age": 1, "label": 1})
    path = write_records(tmp_path / "rows.tfrecord", [one] * 101)
    whole = path.read_bytes()
    for over in (1, 8, 11):
        path.write_bytes(whole[: 100 * (len(one) + 16) + over])
        assert len(list(tf.data.TFRecordDataset(str(path)))) == 100
        with pytest.raises(DataError, match="record 101 cannot be read"):
            binary(path, features={"age": {}})


@pytest.mark.parametrize("ending", [each for each in FORMATS if each != "parquet"])
def test_a_flipped_bit_is_an_error(tmp_path, ending):
    path = write(tmp_path / f"rows.{ending}", rows())
    flipped(path)
    with pytest.raises(DataError):
        binary(path, features=FEATURES)


def test_the_record_that_is_broken_is_reported_by_its_number(tmp_path):
    path = write(tmp_path / "rows.tfrecord", {"age": [1] * 1300, "label": [1] * 1300})
    held = bytearray(path.read_bytes())
    held[1234 * len(held) // 1300 + 20] ^= 1
    path.write_bytes(held)
    with pytest.raises(DataError, match="record 1235 "):
        binary(path, features={"age": {}})


def test_text_without_a_header_and_of_other_delimiters_and_encodings(tmp_path):
    path = tmp_path / "rows.txt"
    options = {
        "format": "csv",
        "columns": ["label", "work"],
        "features": {"work": {"dtype": "string"}},
        "task": "binary",
    }
    expected = [{"work": [b"a"], "label": [1.0]}, {"work": ["ä".encode()], "label": [0.0]}]
    content = "1;a\r\n0;ä\r\n"
    path.write_bytes(f"\ufeff{content}".encode())
    assert read(path, delimiter=";", **options) == expected
    path.write_bytes(content.replace(";", "\t").encode())
    assert read(path, delimiter="\\t", **options) == expected
    for encoding in ("latin-1", "utf-16"):
        path.write_bytes(content.encode(encoding))
        assert read(path, delimiter=";", encoding=encoding, **options) == expected
    path.write_bytes(content.encode("latin-1"))
    assert binary(path, delimiter=";", max_bad_rows=1, **options).num_train_examples == 1


def test_rows_are_prepared_once_and_again_where_a_set_is_not_whole(tmp_path):
    write(tmp_path / "a.csv", {**X, "label": [0, 1, 1, 0]})
    write(tmp_path / "b.csv", {"x": [5.5], "label": [1]})
    cache = tmp_path / "cache"
    messages: list[str] = []

    def prepared() -> list[float]:
        source = binary(tmp_path / "?.csv", features={"x": {}}, cache=str(cache), tell=messages.append)
        with ipc.open_file(source.training_rows.path) as file:
            return file.read_all().column("x").to_pylist()

    first = prepared()
    assert first == [1.5, 2.5, 3.5, 4.5, 5.5]
    assert messages[-1].endswith("(2 of 2 files): 5 rows so far")
    (prepared_set,) = (path for path in cache.iterdir() if path.is_dir() and path.name != "digests")
    messages.clear()
    assert prepared() == first
    assert messages == []
    (cache / f".{prepared_set.name}.{socket.gethostname()}.1").mkdir()  # by a process that was killed
    truncated(prepared_set / "train.arrow")
    assert prepared() == first
    assert messages
    assert [path for path in cache.iterdir() if path.is_dir() and path.name != "digests"] == [prepared_set]
    write(tmp_path / "b.csv", {"x": [6.5], "label": [1]})
    assert prepared() == [1.5, 2.5, 3.5, 4.5, 6.5]
    (tmp_path / "no folder").touch()
    with pytest.raises(DataError, match="choose a folder on another disk"):
        binary(tmp_path / "?.csv", features={"x": {}}, cache=str(tmp_path / "no folder"))


def test_a_name_with_brackets_is_that_of_a_file(tmp_path):
    path = write(tmp_path / "rows[1].csv", {**X, "label": [0, 1, 1, 0]})
    assert binary(path, features={"x": {}}).num_train_examples == 4
    other = write(tmp_path / "rows1.csv", {"x": [1.0], "label": [0]})
    assert binary(path, features={"x": {}}, eval_path=str(other)).num_eval_examples == 1


def test_files_of_an_object_store(tmp_path):
    """A store that pyarrow does not know and fsspec does."""
    import fsspec

    store = fsspec.filesystem("memory")
    for name in ("a", "c"):
        store.pipe(f"/rows/{name}.csv.gz", write(tmp_path / "rows.csv.gz", rows()).read_bytes())
    source = binary("memory://rows/*.csv.gz", features=FEATURES)
    assert (source.num_train_examples, source.facts["num_train_files"]) == (300, 2)
    assert binary("memory://rows", features=FEATURES).num_train_examples == 300
    with pytest.raises(DataError):
        binary("memory://rows/b.csv", features=FEATURES)


@pytest.fixture
def small_disk(tmp_path):
    """For root only."""
    where = tmp_path / "disk"
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "psrun-test", where], check=True)
    yield where
    subprocess.run(["umount", "--lazy", where], check=True)


@pytest.mark.thorough
def test_a_disk_that_is_full_while_rows_are_prepared_is_reported(small_disk, tmp_path):
    """With what to do, and nothing of the set is left."""
    path = write(tmp_path / "rows.csv", rows(20_000))
    with pytest.raises(DataError, match=r"No space left on device.*; free disk space"):
        binary(path, features=FEATURES, cache=str(small_disk))
    assert [each.suffix for each in small_disk.iterdir()] == [".lock"]
    assert binary(path, features=FEATURES, cache=str(tmp_path)).num_train_examples == 20_000


def test_odd_values_that_can_be_read_are_warnings(tmp_path):
    label = [int(n == 57) for n in range(200)]
    columns = {
        "x": [n * 0.5 for n in range(200)],
        "tags": [f"['a{n % 5}', 'b']" for n in range(200)],
        "word": [("yes", "Yes ", "no")[n % 3] for n in range(200)],
        "label": label,
    }
    warnings = "\n".join(table(write(tmp_path / "rows.csv", columns), split=0.1).warnings)
    for words in (
        "have the label 0: metrics that",
        "tags has texts that look like lists",
        "word has values that differ",
    ):
        assert words in warnings


def test_a_run_keeps_the_guess_and_says_it_once(train, tmp_path):
    """Numbers that are ids: as floats, of which one stands for all of these, nothing could be learned from them."""
    rng = np.random.default_rng(3)
    likes = rng.integers(2, size=300)
    users = [*range(300), *rng.integers(300, size=5700)]
    ids = [2**63 + 7 * int(user) for user in users]
    path = write(tmp_path / "rows.csv", {"user": list(map(str, ids)), "label": likes[users].tolist()})
    small = (*READ, f"data.path={path}", "model=wide_deep", "evaluation=none", "cluster=none",
             "data.split=null", "trainer.steps_per_epoch=60", "data.global_batch_size=100",
             "optimizer.learning_rate=0.5")  # fmt: skip
    result, folder = train(*small, "trainer.epochs=1")
    user = result["data"]["features"]["user"]
    assert user == {"dtype": "string", "column": "user", "vocabulary": "vocabularies/user.txt"}
    assert (folder.path / user["vocabulary"]).read_text().split() == [str(2**63 + 7 * each) for each in range(300)]
    assert result["metrics"]["auc"] > 0.65
    write(path, {"user": [1, 2, 3, 4] * 60, "label": [0, 1, 1, 0] * 60})
    result, _ = train(*small, "trainer.epochs=2", into=RunFolder.resume(folder.path, completed=True))
    (features,) = [event["features"] for event in events(folder, "features")]
    assert [row["ids"] for row in features] == ["vocabulary"]
    assert result["steps"]["applied"] == 120


@pytest.mark.thorough
def test_a_model_that_takes_numbers_alone_learns_and_warns(train, tmp_path):
    write(tmp_path / "train-0.csv.gz", rows(300))
    write(tmp_path / "eval.csv.gz", rows(70))
    result, folder = train(
        *READ, f"data.path={tmp_path}/train-*", f"data.eval_path={tmp_path}/eval.csv.gz", "model=dense",
        "data.features={age:{},work:{dtype:string,num_buckets:11}}", "data.global_batch_size=32", "trainer.epochs=1",
        "trainer.steps_per_epoch=18", "optimizer.learning_rate=0.1", "cluster=none",
    )  # fmt: skip
    assert result["data"]["num_train_files"] == 1
    assert result["evaluation"]["examples_seen"] == 70
    assert result["metrics"]["auc"] > 0.8
    assert "the model does not use these features: work" in folder.metrics.read_text()
