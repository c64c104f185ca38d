"""Lists in files: what is read, truncated and bad, and features with lists that are inferred."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from psrun.errors import ConfigError, DataError

pytestmark = pytest.mark.tensorflow

FORMATS = ("csv", "tsv", "tfrecord", "parquet")
FEATURES = {
    "history": {"dtype": "int64", "num_buckets": 100, "max_values": 4, "weights": "seconds"},
    "tags": {"dtype": "string", "max_values": 9, "combiner": None},
    "age": {},
}
LONG = [5, 6, 7, 8, 9, 10]


def rows(count: int = 300) -> dict[str, list]:
    """Lists of 0 to 4 items, and one that is longer in row 2."""
    rng = np.random.default_rng(3)
    history = [LONG if index == 1 else rng.integers(0, 100, size=index % 5).tolist() for index in range(count)]
    return {
        "history": history,
        "seconds": [[float(item) / 4 for item in items] for items in history],
        "tags": [[f"tag {item % 7}" for item in items] for items in history],
        "age": [float(index) for index in range(count)],
        "label": [index % 2 for index in range(count)],
    }


def write(path: Path, columns: dict[str, list]) -> Path:
    {".csv": _text, ".tsv": _text, ".tfrecord": _records, ".parquet": _parquet}[path.suffix](path, columns)
    return path


def _text(path: Path, columns: dict[str, list]) -> None:
    delimiter = "," if path.suffix == ".csv" else "\t"
    fields = [[_field(value) for value in row] for row in zip(*columns.values())]
    path.write_text("".join(delimiter.join(line) + "\n" for line in [columns.keys(), *fields]))


def _field(value) -> str:
    return "|".join(map(str, value)) if isinstance(value, list) else str(value)


def _records(path: Path, columns: dict[str, list]) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in zip(*columns.values()):
            record = tf.train.Example()
            for name, value in zip(columns, row):
                values = value if isinstance(value, list) else [value]
                if values:  # without any, the feature has no type
                    feature = record.features.feature[name]
                    kinds = {int: feature.int64_list, float: feature.float_list, str: feature.bytes_list}
                    encoded = [each.encode() if isinstance(each, str) else each for each in values]
                    kinds[type(values[0])].value.extend(encoded)
            writer.write(record.SerializeToString())


def _parquet(path: Path, columns: dict[str, list]) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path, row_group_size=64)


def table(path: Path, **options):
    from psrun.data.table import Table

    return Table(**{"path": str(path), "label": "label", "features": FEATURES, **options})


def text(path: Path, *lines: str) -> Path:
    path.write_text("history,seconds,tags,age,label\n" + "".join(f"{line}\n" for line in lines))
    return path


def evaluated(source) -> dict[str, list]:
    """All rows of the evaluation files, in order."""
    held: dict[str, list] = {}
    for features, _ in source.evaluation(batch_size=64):
        for name, values in features.items():
            listed = values.to_list() if hasattr(values, "to_list") else values.numpy()[:, 0].tolist()
            held.setdefault(name, []).extend(listed)
    return held


@pytest.mark.parametrize("ending", FORMATS)
def test_lists_are_those_that_were_written(tmp_path, ending):
    import tensorflow as tf

    written = rows()
    path = write(tmp_path / f"rows.{ending}", written)
    source = table(write(tmp_path / f"train.{ending}", written), eval_path=str(path))
    values = evaluated(source)
    assert values["history"] == [items[:4] for items in written["history"]]
    assert values["history_weights"] == [seconds[:4] for seconds in written["seconds"]]
    assert values["tags"] == [[tag.encode() for tag in tags] for tags in written["tags"]]
    assert values["age"] == written["age"]
    assert source.facts["num_truncated_rows"] == {"history": 2, "tags": 0}  # of training and evaluation
    assert source.warnings == ("history: 2 rows have more than max_values=4 values; the first values are kept",)

    features, label = next(iter(source.train(batch_size=32, seed=tf.constant(1, tf.int64))))
    assert isinstance(features["history"], tf.RaggedTensor)
    assert (features["history"].dtype, features["history_weights"].dtype) == (tf.int64, tf.float32)
    for index in range(32):
        row = int(features["age"][index, 0])
        assert features["history"][index].numpy().tolist() == written["history"][row][:4]
        assert float(label[index, 0]) == written["label"][row]
    assert features["history"].row_splits.numpy().tolist() == features["history_weights"].row_splits.numpy().tolist()


def test_models_see_the_lists_in_the_features(tmp_path):
    import tensorflow as tf

    source = table(write(tmp_path / "rows.csv", rows()))
    history, weights, tags = (source.features[name] for name in ("history", "history_weights", "tags"))
    assert (history.shape, history.dtype, history.num_buckets, history.max_values) == ((None,), tf.int64, 100, 4)
    assert (history.combiner, history.weights, history.is_list) == ("mean", "history_weights", True)
    assert (weights.shape, weights.dtype, weights.max_values, weights.weights) == ((None,), tf.float32, 4, None)
    assert (tags.combiner, tags.num_buckets) == (None, 100_000)
    assert not source.features["age"].is_list


def test_prepared_lists_are_reused_and_truncated_anew(tmp_path):
    path, cache = write(tmp_path / "rows.csv", rows()), tmp_path / "cache"
    for max_values, count in ((4, 1), (4, 1), (6, 1), (1, 181)):
        features = {"history": {**FEATURES["history"], "max_values": max_values}}
        source = table(path, features=features, cache=str(cache))
        assert source.facts["num_truncated_rows"] == {"history": count if max_values != 6 else 0}
    assert len([*cache.glob("*/prepared.json")]) == 3


def test_a_batch_of_empty_lists_is_read(tmp_path):
    path = text(tmp_path / "rows.csv", "1|2,1|1,a|b,5,0", ",,,6,1")
    other = text(tmp_path / "eval.csv", ",,,6,1", ",,,7,0")
    assert evaluated(table(path, eval_path=str(other)))["tags"] == [[], []]


BAD = [
    ("1|x,1|1", "column history: 'x' is not an integer"),
    ("1||3,1|1|1", "column history: is empty"),
    ("1|2,1", "column seconds: has 1 weights for the 2 values of history"),
    (",1", "column seconds: has 1 weights for the 0 values of history"),
    ("1|2|3|4|5,1|1|1|1", "column seconds: has 4 weights for the 5 values of history"),
    ("1|2,1|-1", "column seconds: '-1' is negative; a weight must be 0 or more"),
    ("1|2,1|nan", "column seconds: 'nan' is not a number"),
    ("1|2,1|inf", "column seconds: 'inf' is too large for a float32, or infinite"),
]


@pytest.mark.parametrize(("bad", "message"), BAD)
def test_a_row_with_a_bad_list_is_named_or_skipped(tmp_path, bad, message):
    path = text(tmp_path / "rows.csv", "1|2,0.5|1,a|b,1,1", f"{bad},a,2,0", ",,,3,0")
    with pytest.raises(DataError, match=rf"rows\.csv, row 3: {message.replace('|', '.')}.*; set data.max_bad_rows="):
        table(path)
    source = table(path, max_bad_rows=1)
    assert (source.num_train_examples, source.facts["num_bad_rows"]) == (2, 1)


def test_missing_values_of_a_list_have_the_default(tmp_path):
    features = {"history": {"dtype": "int64", "num_buckets": 9, "max_values": 5, "separator": "; ", "default": -1}}
    path = text(tmp_path / "rows.csv", "1; ; 3,,,1,1", ",,,1,0")
    source = table(path, eval_path=str(text(tmp_path / "eval.csv", "1; ; 3,,,1,1", ",,,1,0")), features=features)
    assert evaluated(source)["history"] == [[1, -1, 3], []]


def test_null_lists_of_parquet_are_empty(tmp_path):
    columns = {"history": [[1], None, [], [2, 3]], "seconds": [[1.0], None, None, [2.0, 3.0]], "label": [0, 1, 1, 0]}
    path, other = (write(tmp_path / name, columns) for name in ("rows.parquet", "eval.parquet"))
    values = evaluated(table(path, eval_path=str(other), features={"history": FEATURES["history"]}))
    assert values["history"] == [[1], [], [], [2, 3]]
    assert values["history_weights"] == [[1.0], [], [], [2.0, 3.0]]
    nulls = {**columns, "history": [[1], None, [], [2, None]]}
    with pytest.raises(DataError, match=r"row 4: column history: is empty"):
        table(write(tmp_path / "nulls.parquet", nulls), features={"history": FEATURES["history"]})


def test_arrays_of_npz_are_lists_of_one_length_or_texts(tmp_path):
    for name in ("rows.npz", "eval.npz"):
        np.savez(
            tmp_path / name, history=np.arange(6).reshape(2, 3), tags=np.array(["a b", ""]), label=np.array([0, 1])
        )
    features = {
        "history": {"dtype": "int64", "num_buckets": 9, "max_values": 2},
        "tags": {"dtype": "string", "max_values": 2, "separator": " "},
    }
    values = evaluated(table(tmp_path / "rows.npz", eval_path=str(tmp_path / "eval.npz"), features=features))
    assert values == {"history": [[0, 1], [3, 4]], "tags": [[b"a", b"b"], []]}


WRONG = [
    ({"combiner": "median", "max_values": 3}, "combiner: is 'median', must be one of sum, mean, sqrtn, max, null"),
    ({"max_values": 0}, "max_values: is 0, must be 1 or more"),
    ({"max_values": 3, "width": 2}, "width: contradicts max_values"),
    ({"weights": "seconds"}, "weights: requires max_values"),
    ({"separator": ";"}, "separator: requires max_values"),
    ({"combiner": "sum"}, "combiner: requires max_values"),
    ({"max_values": 3, "weights": "seconds", "combiner": "max"}, "weights: contradicts combiner: max"),
    ({"max_values": 3, "separator": ""}, "separator: is empty"),
    ({"max_values": 3, "weights": "second"}, "weights: .* has no column 'second'. Did you mean 'seconds'"),
    ({"max_values": 3, "dtype": "float32", "logarithm": True}, "logarithm: is not supported for lists"),
    ({"dtype": "float32", "table": "item"}, "table: requires dtype: string or int64"),
    ({"table": "an item"}, "table: is not a valid variable name"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_options_of_lists_are_checked(tmp_path, options, message):
    path = write(tmp_path / "rows.csv", rows(5))
    with pytest.raises(ConfigError, match=rf"data\.features\.history\.{message}"):
        table(path, features={"history": {"dtype": "int64", **options}})


def test_names_of_weights_and_lengths_are_reserved(tmp_path):
    path = write(tmp_path / "rows.csv", rows(5))
    for name, what in (("history_weights", "weights"), ("history_length", "lengths, in exports,")):
        features = {"history": FEATURES["history"], name: {"column": "age"}}
        with pytest.raises(ConfigError, match=rf"data\.features\.{name}: is the name of the {what} of history"):
            table(path, features=features)
    unquoted = {"history": {**FEATURES["history"], "separator": ","}}
    with pytest.raises(ConfigError, match=r"history\.separator: is ',', as is the delimiter"):
        table(path, features=unquoted, quoted=False)
    with pytest.raises(ConfigError, match=r"data\.weight: 'seconds' is also data\.features\.history\.weights"):
        table(path, weight="seconds")
    with pytest.raises(ConfigError, match=r"history\.width: is 2, must be 1: .* set max_values for a list"):
        table(path, features={"history": {"width": 2}})


def test_lists_of_parquet_are_inferred(tmp_path):
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
    assert notes["history"] == "lists of up to 150 values; 1 rows truncated to 100"
    assert notes["seconds"] == "numbers in lists of different lengths; they may be the weights of a list"
    assert source.facts["num_truncated_rows"] == {"history": 1, "tags": 0, "empty": 0}
    again = table(path, features=None, recorded=source.facts)  # a resumed run
    assert again.features == source.features


def test_text_is_not_inferred_as_lists(tmp_path):
    source = table(write(tmp_path / "rows.csv", rows()), features=None)
    assert not any(feature.is_list for feature in source.features.values())


@pytest.mark.parametrize("words", [["a|b", "c"], ["a|b", ""]])
def test_a_text_with_separators_is_a_list_in_every_record(tmp_path, words):
    """Also if all records have one value, which NumPy would make a matrix."""
    from psrun.data import columns, records

    path = tmp_path / "rows.tfrecord"
    _records(path, {"words": [[word] if word else [] for word in words]})
    (piece,) = records.rows(str(path), ["words"])
    wanted = {"words": columns.ColumnSpec("words", "string", max_values=9, separator="|")}
    (read,) = columns.convert(piece, wanted).batch.columns
    assert read.to_pylist() == [[b"a", b"b"], [b"c"] if words[1] else []]
