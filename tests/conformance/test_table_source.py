"""Rows of files in several formats: what is read, what is bad, what is cut short, and models that learn from them."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from psrun.errors import ConfigError, DataError
from psrun.results.run_folder import RunFolder

pytestmark = pytest.mark.tensorflow

READ = ("data=table", "data._target_=psrun.data.table.Table", "data.label=label")
FORMATS = ("csv", "csv.gz", "tsv", "tfrecord", "tfrecord.gz", "npz", "parquet")
FEATURES = {"age": {}, "work": {"dtype": "string"}}
WORKS = ("baker", 'said "so"', "tab\there", "two\nlines", "comma, here", "", "Käse")


def rows(count: int = 150) -> dict[str, list]:
    """Columns that a model can learn from."""
    rng = np.random.default_rng(3)
    age = rng.integers(1, 90, size=count)
    works = [WORKS[index] for index in rng.integers(len(WORKS), size=count)]
    return {"age": (age / 4).tolist(), "work": works, "label": [int(each > 45) for each in age]}


def write(path: Path, columns: dict[str, list]) -> Path:
    {"csv": _text, "tsv": _text, "tfrecord": _records, "npz": _arrays, "parquet": _parquet}[path.name.split(".")[1]](
        path, columns
    )
    return path


def _text(path: Path, columns: dict[str, list]) -> None:
    opened = gzip.open if path.name.endswith(".gz") else open
    with opened(path, "wt", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t" if ".tsv" in path.name else ",")
        writer.writerows([columns.keys(), *zip(*columns.values())])


def example(row: dict) -> bytes:
    import tensorflow as tf

    record = tf.train.Example()
    for name, value in row.items():
        feature, values = record.features.feature[name], value if isinstance(value, list) else [value]
        if isinstance(values[0], str):
            feature.bytes_list.value.extend(item.encode() for item in values)
        elif isinstance(values[0], int):
            feature.int64_list.value.extend(values)
        else:
            feature.float_list.value.extend(values)
    return record.SerializeToString()


def _records(path: Path, columns: dict[str, list]) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path), "GZIP" if path.name.endswith(".gz") else None) as writer:
        for row in zip(*columns.values()):
            writer.write(example(dict(zip(columns, row))))


def _arrays(path: Path, columns: dict[str, list]) -> None:
    np.savez(path, **{name: np.array(values) for name, values in columns.items()})


def _parquet(path: Path, columns: dict[str, list]) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path, row_group_size=64)


def table(path, **options):
    from psrun.data.table import Table

    vocabulary = options.get("label_vocabulary", ())
    options.setdefault("task", "binary" if len(vocabulary) < 3 else "multiclass")
    return Table(path=str(path), label="label", **options)


def all_of(source) -> tuple[dict[str, np.ndarray], np.ndarray]:
    batches = list(source.evaluation(batch_size=64).as_numpy_iterator())
    features = {name: np.concatenate([batch[0][name] for batch in batches]) for name in batches[0][0]}
    return features, np.concatenate([batch[1] for batch in batches])


def read(path: Path, **options) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """All rows of a file, in order: those of an evaluation set."""
    other = path.with_name(f"other-{path.name}")
    other.write_bytes(path.read_bytes())
    return all_of(table(other, eval_path=str(path), **options))


@pytest.mark.parametrize("ending", FORMATS)
def test_rows_are_those_that_were_written(tmp_path, ending):
    written = rows()
    features, label = read(write(tmp_path / f"rows.{ending}", written), features=FEATURES)
    assert features["age"].tolist() == [[age] for age in written["age"]]
    assert features["work"].tolist() == [[work.encode()] for work in written["work"]]
    assert label.tolist() == [[each] for each in written["label"]]
    assert (features["age"].dtype, label.dtype) == (np.float32, np.float32)


@pytest.mark.parametrize("ending", FORMATS)
def test_features_are_taken_from_the_first_file(tmp_path, ending):
    import tensorflow as tf

    path = write(tmp_path / f"rows.{ending}", rows())
    path = path.rename(tmp_path / f"rows.{ending}-00000-of-00001")
    if "tfrecord" in ending:
        with pytest.raises(ConfigError, match=r"data.features: is required"):
            table(path)
        return
    source = table(path)
    words = sorted(filter(None, WORKS))
    assert source.facts["features"] == {
        "age": {"column": "age", "bins": 4}, "work": {"dtype": "string", "column": "work", "vocabulary": words}
    }  # fmt: skip
    assert (source.features["age"].dtype, source.features["work"].dtype) == (tf.float32, tf.string)
    assert source.features["work"].vocabulary == tuple(words)
    assert source.num_eval_examples == 0


def test_a_guess_holds_for_as_long_as_the_run(tmp_path):
    """Whatever the files hold later; runs of psrun before it guessed ids recorded names and types only."""
    path = write(tmp_path / "rows.csv", {"item": [1, 2] * 20, "label": [0, 1] * 20})
    first = table(path)
    assert first.features["item"].vocabulary == (1, 2)
    assert [row["feature"] for row in first.guessed] == ["item"]
    write(path, {"item": [*range(40)], "label": [0, 1] * 20})
    later = table(path, recorded=first.facts)
    assert (later.features, later.facts["features"]) == (first.features, first.facts["features"])
    assert not later.guessed
    write(path, {"item id": [1, 2] * 20, "work": ["a", "b"] * 20, "label": [0, 1] * 20})
    before = table(path, recorded={"features_taken": "item_id float32, work string"})
    assert before.features["item_id"].mean == 1.5
    assert before.features["work"].num_buckets == 100_000
    assert table(path, features={"work": {"dtype": "string"}}, recorded=first.facts).features.keys() == {"work"}


def test_inferred_ids_are_a_vocabulary_unless_there_are_too_many(tmp_path):
    few = write(tmp_path / "few.csv", {"work": [f"w{n % 400}" for n in range(1800)], "label": [0, 1, 1] * 600})
    assert len(table(few).features["work"].vocabulary) == 400
    words = [f"w{n % 110_000}" for n in range(240_000)]
    many = write(tmp_path / "many.csv", {"work": words, "label": [0, 1, 1] * 80_000})
    assert table(many).features["work"].num_buckets == 220_000
    assert table(many, num_buckets=7).features["work"].num_buckets == 7


def test_scales_are_those_that_the_run_recorded(tmp_path):
    """Labels of a run from before scales were recorded had none: its model predicts in units of the label itself."""
    path = write(tmp_path / "rows.csv", {"x": [1.0, 2.0, 6.0], "label": [10.0, 20.0, 60.0]})
    options = {"features": {"x": {}}, "task": "regression"}
    first = table(path, **options)
    assert (first.label_mean, first.features["x"].mean) == (30.0, 3.0)
    write(path, {"x": [1.0, 2.0, 60.0], "label": [10.0, 20.0, 90.0]})
    later = table(path, recorded=first.facts, **options)
    assert (later.label_mean, later.label_deviation) == (30.0, first.label_deviation)
    assert later.features == first.features
    before = table(path, recorded={"num_train_files": 1}, **options)
    assert not hasattr(before, "label_mean")
    assert (before.features["x"].mean, "scales" in before.facts) == (21.0, False)


def test_columns_with_names_that_are_no_layers_get_others(tmp_path):
    path = write(tmp_path / "rows.csv", {"fixed acidity": [1.0, 2.0], "label": [0, 1]})
    assert list(table(path).features) == ["fixed_acidity"]
    assert list(table(path, features={"acid": {"column": "fixed acidity"}}).features) == ["acid"]
    with pytest.raises(ConfigError, match=r"data.features.fixed acidity: is not a valid layer name"):
        table(path, features={"fixed acidity": {}})


def test_floats_are_reported_with_mean_and_deviation(tmp_path):
    """Over all files to train on, and of logarithms as the model takes them."""
    first, second = {"x": [-1.0, 0.0, 5.0], "label": [0, 1, 1]}, {"x": [100.0], "label": [1]}
    write(tmp_path / "a.csv", first)
    write(tmp_path / "b.csv", second)
    features = {"x": {}, "counts": {"column": "x", "logarithm": True}}
    source = table(tmp_path, features=features)
    values = np.array(first["x"] + second["x"])
    logarithms = np.log1p(np.maximum(values, 0))
    described = source.features["x"], source.features["counts"]
    np.testing.assert_allclose([each.mean for each in described], [values.mean(), logarithms.mean()], rtol=1e-6)
    np.testing.assert_allclose([each.deviation for each in described], [values.std(), logarithms.std()], rtol=1e-6)

    from psrun.models.model import prepared

    preprocessing, _ = prepared(source)
    given = preprocessing({name: values[:, np.newaxis].astype(np.float32) for name in features})
    np.testing.assert_allclose(given["counts"][:, 0], (logarithms - logarithms.mean()) / logarithms.std(), rtol=1e-5)
    same = table(write(tmp_path / "same.csv", {"x": [3.0, 3.0], "label": [0, 1]}), features={"x": {}})
    assert (same.features["x"].mean, same.features["x"].deviation) == (3.0, 1.0)
    assert table(tmp_path / "?.csv", features=features).features == source.features  # prepared before


@pytest.mark.parametrize("ending", ["tfrecord", "npz", "parquet"])
def test_columns_have_several_values_and_labels_of_several_tasks(tmp_path, ending):
    written = {"pair": [[1, 2], [3, 4], [5, 6]], "words": [["a", "b"], ["c", "d"], ["e", "f"]], "label": [2, 0, 1]}
    path = write(tmp_path / f"rows.{ending}", written)
    features = {"pair": {"width": 2, "dtype": "int64", "num_buckets": 9}, "words": {"dtype": "string", "width": 2}}
    values, label = read(path, features=features, task="multiclass", num_classes=3)
    assert values["pair"].tolist() == written["pair"]
    assert values["words"].tolist() == [[word.encode() for word in each] for each in written["words"]]
    assert (label.tolist(), label.dtype) == ([2, 0, 1], np.int64)
    values, label = read(path, features={"pair": {"width": 2}}, task="regression")
    assert (values["pair"].tolist(), label.tolist()) == (written["pair"], [[2.0], [0.0], [1.0]])
    if ending != "tfrecord":
        assert {name: each.shape for name, each in table(path, task="regression").features.items()} == {
            "pair": (2,), "words": (2,)
        }  # fmt: skip
    with pytest.raises(DataError, match=r"row 1: column pair: has 2 values instead of 3"):
        table(path, features={"pair": {"width": 3}}, task="regression")
    with pytest.raises(DataError, match=r"row 1: column label: 2 is not a class from 0 to 1"):
        table(path, features=features, task="multiclass", num_classes=2)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("old,baker,1", "column age: 'old' is not a number"),
        ("1_0,baker,1", "column age: '1_0' is not a number"),
        (",baker,1", "column age: is empty"),
        ("1e39,baker,1", "column age: '1e39' is too large for a float32"),
        ("nan,baker,1", "column age: 'nan' is not a number"),
        ("1,baker", "2 fields instead of 3"),
        ("1,baker,1,1", "4 fields instead of 3"),
        ("1,baker,2", "column label: 2 is not a class from 0 to 1"),
        ("1,baker,0.5", "column label: 0.5 is not a class from 0 to 1"),
    ],
)
def test_a_bad_row_is_named_or_left_out(tmp_path, row, message):
    path = tmp_path / "rows.csv"
    path.write_text(f'age,work,label\n1,"two\nlines",0\n\n{row}\n2,,1\n')
    with pytest.raises(DataError, match=rf"rows\.csv, row 4: {message}.*; set data.max_bad_rows="):
        table(path, features=FEATURES)
    source = table(path, features=FEATURES, max_bad_rows=1)
    assert (source.num_train_examples, source.facts["num_bad_rows"]) == (2, 1)
    assert source.features["age"].mean == 1.5
    assert len(source.warnings) == 1


def test_rows_without_a_label_are_left_out_and_counted(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("age,label\n1,0\n2,\n3,NA\n4,1\n")
    source = table(path, features={"age": {}})
    assert (source.num_train_examples, source.facts["num_unlabeled_rows"]) == (2, 2)
    assert "2 rows without a label are left out" in source.warnings
    path.write_text("age,label\n1,\n2,\n")
    with pytest.raises(DataError, match=r"there is no row in .*rows\.csv, but rows without a label"):
        table(path, features={"age": {}})


WORDS = (["yes", "no", "no", "yes"], ("no", "yes"), [1, 0, 0, 1])
NUMBERS = ([30, 10, 20, 10], (20, 30, 10), [1, 2, 0, 2])


@pytest.mark.parametrize(
    ("ending", "values", "label_vocabulary", "classes"),
    [
        ("csv", *WORDS),
        ("npz", *WORDS),
        ("csv", *NUMBERS),
        ("tfrecord", ["c", "a", "b", "a"], ("b", "c", "a"), [1, 2, 0, 2]),
        ("npz", [2.0, -1.0, -1.0, 2.0], (-1, 2), [1, 0, 0, 1]),
        pytest.param("tfrecord", *NUMBERS, marks=pytest.mark.thorough),
        ("parquet", *WORDS),
        pytest.param("parquet", *NUMBERS, marks=pytest.mark.thorough),
    ],
)
def test_labels_are_values_of_a_vocabulary(tmp_path, ending, values, label_vocabulary, classes):
    path, columns = tmp_path / f"rows.{ending}", {"age": [1.5, 2.5, 3.5, 4.5], "label": values}
    options = {"features": {"age": {}}, "label_vocabulary": label_vocabulary}
    if len(label_vocabulary) > 2:
        options["task"] = "multiclass"
    _, label = read(write(path, columns), **options)
    assert label.tolist() == (classes if "task" in options else [[float(each)] for each in classes])
    bad = {str: "maybe", int: 77, float: 77.5}[type(values[0])]
    path = write(tmp_path / f"bad-rows.{ending}", {**columns, "label": [*values[:2], bad, values[3]]})
    row, shown = (4 if ending == "csv" else 3), ", ".join(map(str, label_vocabulary))
    message = rf"rows\.{ending}, row {row}: column label: '?{bad}'? is not in data.label_vocabulary=\[{shown}\]"
    with pytest.raises(DataError, match=message):
        read(path, **options)
    features, label = read(path, max_bad_rows=1, **options)
    assert (features["age"].tolist(), len(label)) == ([[1.5], [2.5], [4.5]], 3)


def test_booleans_that_yaml_read_as_no_and_yes_are_explained(tmp_path):
    path = write(tmp_path / "rows.csv", {"age": [1.5, 2.5], "label": ["True", "False"]})
    with pytest.raises(DataError, match=r"=\[no, yes\]; quote False and True, which YAML reads as booleans"):
        read(path, features={"age": {}}, label_vocabulary=("no", "yes"))


def test_words_as_labels_need_a_vocabulary(tmp_path):
    path = write(tmp_path / "rows.csv", {"age": [1.5, 2.5], "label": ["yes", "no"]})
    with pytest.raises(
        DataError, match=r"row 2: .*'yes' is not a number; name such classes with data.label_vocabulary"
    ):
        table(path, features={"age": {}})


def test_a_default_stands_for_what_is_missing(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("age,work,day,label\n,,,1\n2,b,3,0\n")
    features = {
        "age": {"default": -1},
        "work": {"dtype": "string", "default": "none"},
        "day": {"dtype": "int64", "default": 7, "vocabulary": [3, 7]},
    }
    values, _ = read(path, features=features)
    assert values["age"].tolist() == [[-1.0], [2.0]]
    assert values["work"].tolist() == [[b"none"], [b"b"]]
    assert values["day"].tolist() == [[7], [3]]


def test_vocabularies_are_lists_or_files_and_integers_without_are_reported(tmp_path):
    from psrun.models.model import prepared

    path = write(
        tmp_path / "rows.npz", {"work": ["b", "a", "c"], "day": [5, 3, 4], "hour": [1, 2, 3], "label": [0, 1, 0]}
    )
    (tmp_path / "words.txt").write_text("a\nb\n")
    words, days = (
        {"dtype": "string", "vocabulary": str(tmp_path / "words.txt")},
        {"dtype": "int64", "vocabulary": [3, 5]},
    )
    source = table(path, features={"work": words, "day": days, "hour": {"dtype": "int64"}})
    assert source.warnings == ("hour: integers without vocabulary and num_buckets; psrun's models ignore them",)
    preprocessing, num_ids = prepared(source)
    assert num_ids == {"work": 3, "day": 3}
    ids = preprocessing(next(source.train(batch_size=3, seed=np.int64(0)).as_numpy_iterator())[0])
    pairs = zip(ids["work"].numpy()[:, 0].tolist(), ids["day"].numpy()[:, 0].tolist())
    assert sorted(pairs) == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_booleans_are_numbers(tmp_path, ending):
    path = write(tmp_path / f"rows.{ending}", {"member": [True, False], "label": [False, True]})
    for dtype in ("int64", "float32"):
        features, label = read(path, features={"member": {"dtype": dtype}})
        assert (features["member"].tolist(), label.tolist()) == ([[1], [0]], [[0.0], [1.0]])


def test_what_is_null_in_parquet_is_as_an_empty_field(tmp_path):
    path = write(tmp_path / "rows.parquet", {"age": [1.5, None], "work": [None, "b"], "label": [0, 1]})
    with pytest.raises(DataError, match=r"rows\.parquet, row 2: column age: is empty"):
        table(path, features={"age": {}})
    (row,) = [row for row in table(path).guessed if row["feature"] == "age"]
    assert row["missing"] == "1"
    values, _ = read(path, features={"age": {"default": 0}, "work": {"dtype": "string"}})
    assert (values["age"].tolist(), values["work"].tolist()) == ([[1.5], [0.0]], [[b""], [b"b"]])


def test_a_record_that_lacks_a_feature_is_bad(tmp_path):
    import tensorflow as tf

    path = tmp_path / "rows.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in (example({"age": 1, "label": 1}), example({"label": 1}), b"\xff\xff", example({"age": "x"})):
            writer.write(record)
    source = table(path, features={"age": {}}, max_bad_rows=3)
    assert source.num_train_examples == 1
    for row, message in (
        (2, "column age: is empty"), (3, "is not a tf.train.Example"), (4, "column age: 'x' is not a number")
    ):  # fmt: skip
        with pytest.raises(DataError, match=f"row {row}: {message}"):
            table(path, features={"age": {}}, max_bad_rows=row - 2)


@pytest.mark.parametrize("ending", [each for each in FORMATS if each not in ("csv", "tsv")])
def test_a_file_that_is_cut_short_is_an_error(tmp_path, ending):
    """Wherever it is cut within a record; TensorFlow takes some of these for files that end there."""
    whole = write(tmp_path / f"rows.{ending}", rows()).read_bytes()
    path = tmp_path / f"cut.{ending}"
    for size in (5, 13, len(whole) // 2, len(whole) - 12, len(whole) - 3):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match=rf"cut\.{ending}(, (row|record) \d+)? cannot be read"):
            table(path, features=FEATURES, max_bad_rows=9)


def test_records_that_are_cut_after_their_length_are_no_end(tmp_path):
    """TensorFlow reads 100 records of such a file without an error."""
    import tensorflow as tf

    record = example({"age": 1, "label": 1})
    path = tmp_path / "rows.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for _ in range(101):
            writer.write(record)
    whole = path.read_bytes()
    for over in (1, 8, 11):
        path.write_bytes(whole[: 100 * (len(record) + 16) + over])
        assert len(list(tf.data.TFRecordDataset(str(path)))) == 100
        with pytest.raises(DataError, match=r"rows\.tfrecord, record 101 cannot be read: the file is cut short"):
            table(path, features={"age": {}})


def test_text_that_ends_within_quotes_is_an_error(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('age,work,label\n1,a,0\n1,"a,0\n2,b,1\n')
    with pytest.raises(DataError, match=r"rows\.csv, row 3 cannot be read: unexpected end of data"):
        table(path, features=FEATURES, max_bad_rows=10)
    assert table(path, features=FEATURES, quoted=False).num_train_examples == 3


@pytest.mark.parametrize("ending", ["tfrecord", "tfrecord.gz", "npz", "csv.gz"])
def test_a_flipped_bit_is_an_error(tmp_path, ending):
    path = write(tmp_path / f"rows.{ending}", rows())
    held = bytearray(path.read_bytes())
    held[len(held) // 2] ^= 1
    path.write_bytes(held)
    with pytest.raises(DataError, match=r"rows\..* (cannot be read|row|record)"):
        table(path, features=FEATURES)


def test_the_record_that_is_broken_is_reported_by_its_number(tmp_path):
    path = write(tmp_path / "rows.tfrecord", {"age": [1] * 1300, "label": [1] * 1300})
    held = bytearray(path.read_bytes())
    held[1234 * len(held) // 1300 + 20] ^= 1
    path.write_bytes(held)
    with pytest.raises(DataError, match=r"rows\.tfrecord, record 1235 cannot be read: corrupted record at"):
        table(path, features={"age": {}})


@pytest.mark.parametrize("ending", ["csv", "npz", "parquet"])
def test_other_columns_in_one_of_the_files_are_reported(tmp_path, ending):
    write(tmp_path / f"a.{ending}", {"age": [1.5, 2.0], "work": ["a", "b"], "label": [0, 1]})
    turned = {"label": [1, 0], "work": ["c", "d"], "age": [3.5, 4.0]}
    write(tmp_path / f"b.{ending}", turned)
    assert table(tmp_path / f"*.{ending}").features["age"].mean == 2.75  # in another order
    write(tmp_path / f"c.{ending}", {"label": [1], "ages": [3.0], "work": ["c"]})
    for options in ({}, {"eval_path": str(tmp_path / f"c.{ending}")}):
        path = tmp_path / (f"[ab].{ending}" if options else f"*.{ending}")
        with pytest.raises(DataError, match=rf"c\.{ending} differ from those of .*a\.{ending}: it lacks 'age' and "
                                            "also has 'ages'"):  # fmt: skip
            table(path, **options)


def test_text_without_a_header_and_of_other_delimiters(tmp_path):
    path = tmp_path / "rows.txt"
    path.write_bytes("\ufeff1;a\r\n0;ä\r\n".encode())
    options = {
        "format": "csv",
        "delimiter": ";",
        "columns": ["label", "work"],
        "features": {"work": {"dtype": "string"}},
    }
    values, label = read(path, **options)
    assert (values["work"].tolist(), label.tolist()) == ([[b"a"], ["ä".encode()]], [[1.0], [0.0]])
    path.write_bytes(path.read_bytes().replace(b";", b"\t"))
    assert read(path, **{**options, "delimiter": "\\t"})[1].tolist() == [[1.0], [0.0]]


def test_bytes_of_another_encoding_are_bad_rows_unless_it_is_named(tmp_path):
    path = tmp_path / "rows.csv"
    written = "age,work,note,label\n1,Bäcker,,1\n2,a,é,0\n3,b,,1\n"
    path.write_bytes(written.encode("latin-1"))
    message = (
        r"rows\.csv, row 2: column work: b'B\\xe4cker' is not utf-8; .*data.encoding=latin-1.*; set data.max_bad_rows="
    )
    with pytest.raises(DataError, match=message):
        table(path, features=FEATURES)
    assert table(path, features=FEATURES, max_bad_rows=1).num_train_examples == 2  # nobody reads the note
    features, _ = read(path, features=FEATURES, encoding="latin-1")
    assert features["work"].tolist() == [["Bäcker".encode()], [b"a"], [b"b"]]
    path.write_bytes(written.encode("utf-16"))
    with pytest.raises(DataError, match=r"rows\.csv, row 1: .* is not utf-8; .*data.encoding=utf-16"):
        table(path, features=FEATURES)
    assert table(path, features=FEATURES, encoding="utf-16").num_train_examples == 3
    assert "data.encoding: is 'latin-x': unknown encoding" in problems(path, encoding="latin-x")


@pytest.mark.parametrize("delimiter", [";", "|", "\t"])
def test_a_header_that_looks_like_another_delimiter_is_reported_with_the_key_to_set(tmp_path, delimiter):
    path = tmp_path / "rows.csv"
    path.write_text('"age";"work, or none";"label"\n1;a;0\n'.replace(";", delimiter))
    key = {"\t": "data.format=tsv"}.get(delimiter, f"'data.delimiter=\"{delimiter}\"'")
    for features in (None, FEATURES):
        message = problems(path, features=features)
        assert f"The delimiter in its first row seems to be {delimiter!r}; set {key}" in message


def problems(path: Path, **options) -> str:
    with pytest.raises(ConfigError) as error:
        table(path, **options)
    return str(error.value)


def test_options_that_cannot_be_are_reported(tmp_path):
    path = write(tmp_path / "rows.csv", rows(10))
    for options, message in (
        ({"task": "ranking"}, "data.task: is 'ranking'"),
        ({"task": "multiclass"}, "data.num_classes: is None"),
        ({"num_classes": 2}, "data.num_classes: requires data.task=multiclass"),
        (
            {"label_vocabulary": ("a", "b", "c"), "task": "binary"},
            "data.label_vocabulary: has 3 values; a binary task has 2",
        ),
        (
            {"label_vocabulary": ("a", "b"), "task": "regression"},
            "data.label_vocabulary: requires a classification task",
        ),
        ({"label_vocabulary": ("a", "b"), "task": "multiclass", "num_classes": 3}, "but num_classes is 3"),
        ({"format": "xml"}, "data.format: is 'xml'"),
        ({"delimiter": "||"}, "data.delimiter: is '||'"),
        ({"delimiter": ""}, "quote it for the shell and for psrun: 'data.delimiter=\";\"'"),
        ({"columns": ["a", "a"]}, "must list unique column names"),
        ({"num_buckets": 0}, "data.num_buckets: is 0"),
        ({"max_bad_rows": -1}, "data.max_bad_rows: is -1"),
        ({"features": {}}, "data.features: is {}"),
        ({"features": {"ages": {}}}, "csv has no column 'ages'. Did you mean 'age'?"),
        ({"features": {"label": {}}}, "data.features.label: 'label' is the label"),
        ({"features": {"age": {"width": 2}}}, "data.features.age.width: is 2"),
        ({"features": {"age": {"dtype": "int"}}}, "data.features.age.dtype: is 'int', must be one of float32"),
        ({"features": {"age": {"wide": 2}}}, "data.features.age.wide: no such key"),
        ({"features": {"age": {"num_buckets": 2}}}, "data.features.age.num_buckets: requires dtype: string"),
        ({"features": {"age": {"default": "x"}}}, "data.features.age.default: 'x' is not a number"),
        ({"features": {"age": {"vocabulary": [1]}}}, "data.features.age.vocabulary: requires dtype: string"),
        ({"features": {"work": {"dtype": "string", "logarithm": True}}}, "data.features.work.logarithm: requires"),
        ({"features": {"work": {"dtype": "string", "vocabulary": [1]}}}, "work.vocabulary: must be a list of values"),
        ({"features": {"work": {"dtype": "string", "vocabulary": "no"}}}, "work.vocabulary: there is no file no"),
        ({"columns": ["age", "work", "labels"]}, "has no column 'label'. Did you mean 'labels'?"),
    ):
        assert message in problems(path, **options)
    write(tmp_path / "rows.npz", rows(10))
    assert "matches files of several formats" in problems(tmp_path / "rows.*")
    for name, message in (("notes.doc", "is unknown for the file name"), ("rows.xlsx", "save it as CSV")):
        (tmp_path / name).write_text("rows")
        assert message in problems(tmp_path / name)
    for text, message in (("age,age,label\n1,2,0\n", "more than one column 'age'"), ("age,label\n", "there is no row")):
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            table(path)


def test_arrays_of_different_lengths_are_reported(tmp_path):
    np.savez(tmp_path / "rows.npz", age=np.arange(3.0), label=np.arange(2))
    with pytest.raises(DataError, match=r"rows\.npz: the arrays' first axes must be equal"):
        table(tmp_path / "rows.npz")
    np.savez(tmp_path / "rows.npz", age=np.array([1, "a", None], object), label=np.arange(3))
    with pytest.raises(DataError, match=r"rows\.npz cannot be read to its end: .*allow_pickle"):
        table(tmp_path / "rows.npz")


def test_files_of_an_object_store(tmp_path):
    """A store that pyarrow does not know and fsspec does."""
    import fsspec

    store = fsspec.filesystem("memory")
    for name in ("a", "c"):
        store.pipe(f"/rows/{name}.csv.gz", write(tmp_path / "rows.csv.gz", rows()).read_bytes())
    source = table("memory://rows/*.csv.gz", features=FEATURES)
    assert (source.num_train_examples, source.facts["num_train_files"]) == (300, 2)
    assert table("memory://rows", features=FEATURES).num_train_examples == 300
    with pytest.raises(DataError, match=r"memory://rows/b.csv: no such file"):
        table("memory://rows/b.csv", features=FEATURES)
    with pytest.raises(DataError, match=r"nowhere:// is unknown to pyarrow and to fsspec"):
        table("nowhere://rows/b.csv", features=FEATURES)


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
    message = (
        rf"rows cannot be written to {small_disk}/\w+: .*No space left on device.*; free disk space, or choose a folder"
    )
    with pytest.raises(DataError, match=message):
        table(path, features=FEATURES, cache=str(small_disk))
    assert [each.suffix for each in small_disk.iterdir()] == [".lock"]
    assert table(path, features=FEATURES, cache=str(tmp_path)).num_train_examples == 20_000


def test_a_model_reports_categories_that_it_does_not_use(train, tmp_path):
    path = write(tmp_path / "rows.csv", rows(100))
    _, folder = train(*READ, f"data.path={path}", "model=dense", "evaluation=none", "cluster=none",
                           "data.global_batch_size=32", "trainer.epochs=1", "checkpoint=none")  # fmt: skip
    warned = [event["message"] for event in map(json.loads, folder.metrics.read_text().splitlines())
              if event["event"] == "warning"]  # fmt: skip
    assert any(text.startswith("this model does not use categorical features: work; choose") for text in warned), warned


def test_models_learn_from_inferred_features_which_are_reported_once_and_kept_at_resume(train, tmp_path):
    """Numbers that are ids: as floats, of which one stands for all of these, nothing could be learned from them."""
    rng = np.random.default_rng(3)
    likes = rng.integers(2, size=300)
    users = [*range(300), *rng.integers(300, size=5700)]
    path = write(
        tmp_path / "rows.csv", {"user": [2**63 + 7 * int(user) for user in users], "label": likes[users].tolist()}
    )
    small = (*READ, f"data.path={path}", "model=wide_deep", "evaluation=none", "cluster=none",
             "trainer.steps_per_epoch=60", "data.global_batch_size=100", "optimizer.learning_rate=0.5")  # fmt: skip
    result, folder = train(*small, "trainer.epochs=1")
    user = result["data"]["features"]["user"]
    assert user == {"dtype": "string", "column": "user", "vocabulary": "vocabularies/user.txt"}
    assert (folder.path / user["vocabulary"]).read_text().split() == [str(2**63 + 7 * each) for each in range(300)]
    assert result["metrics"]["auc"] > 0.65
    write(path, {"user": [1, 2, 3, 4] * 60, "label": [0, 1, 1, 0] * 60})
    result, _ = train(*small, "trainer.epochs=2", into=RunFolder.take_over(folder.path, completed=True))
    events = [
        event for event in map(json.loads, folder.metrics.read_text().splitlines()) if event["event"] == "features"
    ]
    assert [row["ids"] for row in events[0]["features"]] == ["vocabulary"]
    assert len(events) == 1
    assert result["steps"]["applied"] == 120


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "ending"), [pytest.param("wide_deep", "tfrecord", marks=pytest.mark.thorough), ("dense", "csv.gz")]
)
def test_models_learn_from_it(train, tmp_path, model, ending):
    write(tmp_path / f"train-0.{ending}", rows(300))
    write(tmp_path / f"eval.{ending}", rows(70))
    result, _ = train(
        *READ, f"data.path={tmp_path}/train-*", f"data.eval_path={tmp_path}/eval.{ending}", f"model={model}",
        "data.features={age:{},work:{dtype:string,num_buckets:11}}", "data.global_batch_size=32", "trainer.epochs=1",
        "trainer.steps_per_epoch=18", "optimizer.learning_rate=0.1",
    )  # fmt: skip
    assert result["data"]["num_train_files"] == 1
    assert result["evaluation"]["examples_seen"] == 70
    assert result["metrics"]["auc"] > 0.8
