"""What every data source does: each example once per pass, in an order by seed, from any position, in any shards.

The oracle is what was written or generated, as lists. A source is created once for all facts about it.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import table_files
import tensorflow as tf
from example_ids import AsOthersHaveIt, InFiles, Numbered
from pyarrow import ipc
from support import run_config
from tensorflow.python.data.experimental.ops import distribute

from psrun.config.run_config import RunConfig
from psrun.data import loading
from psrun.data.datasets import VOCABULARY, FashionMnist, HeroFeatures, Regression
from psrun.data.lists import of_lengths
from psrun.data.source import (
    ArraySource,
    DataSource,
    Feature,
    converted_batches,
    endless,
    evaluation_batches,
    gathering,
    trains_by_number,
)
from psrun.recsys.data.criteo import CATEGORIES, Criteo
from psrun.recsys.data.flights import Flights, late, load, split
from psrun.tables import synthesis

pytestmark = pytest.mark.tensorflow

NUM_TRAIN = 100
NUM_EVAL = 23
BATCH = 20
WORDS = ("baker", 'said "so"', "tab\there", "two\nlines", "comma, here", "", "Käse")
MOST = 4  # values of a list


@dataclass(frozen=True)
class Case:
    source: DataSource
    train: list[dict[str, Any]]
    evaluation: list[dict[str, Any]]


def columns(numbers: range) -> dict[str, list]:
    """Columns of each kind; lists of 0 to 4 values, and some that are longer."""
    lengths = [6 if number % 50 == 1 else number % 5 for number in numbers]
    history = [[(number * 7 + item) % 100 for item in range(length)] for number, length in zip(numbers, lengths)]
    return {
        "id": [2**40 + number for number in numbers],
        "price": [number / 4 for number in numbers],
        "word": [WORDS[number % len(WORDS)] for number in numbers],
        "pair": [[number, -number] for number in numbers],
        "history": history,
        "seconds": [[item / 4 for item in items] for items in history],
        "tags": [[f"tag {item % 7}" for item in items] for items in history],
        "label": [number % 2 for number in numbers],
    }


FEATURES = {
    "id": {"dtype": "int64", "num_buckets": 9},
    "price": {},
    "word": {"dtype": "string"},
    "pair": {"dtype": "int64", "num_buckets": 9, "width": 2},
    "history": {"dtype": "int64", "num_buckets": 100, "max_values": MOST, "weights": "seconds"},
    "tags": {"dtype": "string", "max_values": 9, "combiner": None},
}


def as_read(written: dict[str, list], names: list[str]) -> list[dict[str, Any]]:
    """The examples of these columns, as a source has to give them."""
    shown = {
        "id": [[each] for each in written["id"]],
        "price": [[each] for each in written["price"]],
        "word": [[each.encode()] for each in written["word"]],
        "pair": written["pair"],
        "history": [each[:MOST] for each in written["history"]],
        "history_weights": [each[:MOST] for each in written["seconds"]],
        "tags": [[tag.encode() for tag in each] for each in written["tags"]],
        "label": [[float(each)] for each in written["label"]],
    }
    names = [*names, *(["history_weights"] if "history" in names else []), "label"]
    return [dict(zip(names, row)) for row in zip(*(shown[name] for name in names))]


def of_files(ending: str) -> Callable[[Path], Case]:
    def make(folder: Path) -> Case:
        lacking = ("pair",) if ending[1:3] == "sv" else ()
        parts = [columns(range(NUM_TRAIN)), columns(range(NUM_TRAIN, NUM_TRAIN + NUM_EVAL))]
        paths = [folder / f"{name}.{ending}" for name in ("train", "eval")]
        for path, part in zip(paths, parts):
            table_files.write(path, {name: values for name, values in part.items() if name not in lacking})
        features = {name: options for name, options in FEATURES.items() if name not in lacking}
        source = table_files.table(paths[0], eval_path=str(paths[1]), features=features, task="binary")
        if "history" in features:
            assert source.facts["num_truncated_rows"] == {"history": 3, "tags": 0}
        return Case(source, *(as_read(part, list(features)) for part in parts))

    return make


def split_table(folder: Path) -> Case:
    """Evaluation examples from the same file: those that the source holds out, none of them twice or nowhere."""
    written = columns(range(NUM_TRAIN + NUM_EVAL))
    path = table_files.write(folder / "rows.parquet", written)
    features = {name: FEATURES[name] for name in ("id", "word")}
    split = {"by": "time", "column": "id", "fraction": NUM_EVAL / (NUM_TRAIN + NUM_EVAL)}
    rows = as_read(written, list(features))
    return Case(
        table_files.table(path, features=features, task="binary", split=split), rows[:NUM_TRAIN], rows[NUM_TRAIN:]
    )


def criteo(folder: Path) -> Case:
    synthesis.write(folder / "files", synthesis.Recipe(NUM_TRAIN, NUM_EVAL, num_values=20), num_files=3)

    def rows(pattern: str) -> list[dict[str, Any]]:
        lines = [line for path in sorted((folder / "files").glob(pattern)) for line in path.read_text().splitlines()]
        found = []
        for fields in (line.split("\t") for line in lines):
            counts = [float(each or 0) for each in fields[1:14]]
            categories = {name: [each.encode()] for name, each in zip(CATEGORIES, fields[14:])}
            found.append({"counts": counts, **categories, "label": [float(fields[0])]})
        return found

    source = Criteo(path=f"{folder}/files/train-*", eval_path=f"{folder}/files/eval.tsv")
    return Case(source, rows("train-*"), rows("eval.tsv"))


def arrays(folder: Path) -> Case:
    """Columns of each type, width and rank, lists and weights."""
    rng = np.random.default_rng(1)

    def examples(count: int) -> tuple[Any, ...]:
        lengths = np.arange(count) % 3
        return (
            {
                "a": np.arange(count)[:, np.newaxis],
                "pair": rng.integers(9, size=(count, 2)),
                "small": rng.integers(9, size=(count, 1)).astype(np.int32),
                "x": rng.normal(size=(count, 3)).astype(np.float32),
                "image": rng.normal(size=(count, 2, 2)).astype(np.float32),
                "words": rng.choice(np.array([b"ant", b"", b"bee"]), size=(count, 2)),
                "history": of_lengths(rng.integers(9, size=lengths.sum()), lengths),
            },
            rng.integers(3, size=count),
            rng.random(count).astype(np.float32),
        )

    def rows(part: tuple[Any, ...]) -> list[dict[str, Any]]:
        values, label, weight = part
        history = [each.tolist() for each in np.split(values["history"].values, values["history"].splits[1:-1])]
        shown = {name: each.tolist() for name, each in values.items() if name != "history"}
        shown |= {"history": history, "label": label.tolist(), "weight": weight.tolist()}
        return [dict(zip(shown, row)) for row in zip(*shown.values())]

    train = examples(NUM_TRAIN)
    evaluation = examples(NUM_EVAL)
    features = {
        name: Feature(each.shape[1:], tf.string if each.dtype.kind == "S" else tf.as_dtype(each.dtype))
        for name, each in train[0].items()
        if name != "history"
    }
    features["history"] = Feature((None,), tf.int64, max_values=2)
    source = ArraySource(features=features, task="multiclass", num_classes=3, train=train, evaluation=evaluation)
    return Case(source, rows(train), rows(evaluation))


def images(folder: Path) -> Case:
    rng = np.random.default_rng(2)
    parts = [(rng.integers(256, size=(n, 28, 28), dtype=np.uint8), np.arange(n) % 10) for n in (NUM_TRAIN, NUM_EVAL)]
    (x, y), (x_test, y_test) = parts
    np.savez(folder / "images.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    rows = [
        [
            {"image": pixels.tolist(), "label": label}
            for pixels, label in zip(x[..., np.newaxis].astype(np.float32) / 255, y.tolist())
        ]
        for x, y in parts
    ]
    return Case(FashionMnist(path=str(folder / "images.npz")), *rows)


def generated(kind: type) -> Callable[[Path], Case]:
    """Sources whose examples nobody else knows: the arrays that they drew are the oracle."""

    def make(folder: Path) -> Case:
        source = kind(num_train_examples=NUM_TRAIN, num_eval_examples=NUM_EVAL)
        parts = [
            [
                {**dict(zip(values, row)), "label": label}
                for *row, label in zip(*(each.tolist() for each in values.values()), labels.tolist())
            ]
            for values, labels in (source._train, source._evaluation)
        ]
        return Case(source, *parts)

    return make


def of_others(folder: Path) -> Case:
    """A class that knows nothing of numbers or shards."""
    source = AsOthersHaveIt(num_eval_examples=NUM_EVAL)
    train, evaluation = (
        [{"x": [float(np.float32(n / 100))], "label": [float(n)]} for n in range(count)] for count in (200, NUM_EVAL)
    )
    return Case(source, train, evaluation)


CASES = {
    "table": of_files("parquet"),
    "split": split_table,
    "criteo": criteo,
    "arrays": arrays,
    "images": images,
    "features": generated(HeroFeatures),
    "regression": generated(Regression),
    "of others": of_others,
}


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory) -> Case:
    return CASES[request.param](tmp_path_factory.mktemp("files"))


def seed(number: int) -> tf.Tensor:
    return tf.constant(number, tf.int64)


def in_any_order(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


def test_each_example_is_in_each_pass_once_in_an_order_by_seed_and_from_any_position(case):
    source = case.source
    num_train = len(case.train)
    assert source.num_train_examples == num_train
    batches = list(source.train(batch_size=BATCH, seed=seed(1)).take(2 * num_train // BATCH))
    assert {len(batch[1]) for batch in batches} == {BATCH}
    rows = table_files.examples(batches)
    first = rows[:num_train]
    second = rows[num_train:]
    assert in_any_order(first) == in_any_order(second) == in_any_order(case.train)
    assert first != second
    other = table_files.examples(source.train(batch_size=BATCH, seed=seed(2)).take(1))
    assert other != first[:BATCH]
    if trains_by_number(source):
        resumed = source.batches(endless(3), source.order(BATCH), seed(1)).take(2)
        assert table_files.examples(batch for _, _, batch in resumed) == rows[3 * BATCH : 5 * BATCH]


def test_evaluation_is_every_example_once_in_order(case):
    source = case.source
    assert source.num_eval_examples == len(case.evaluation) == NUM_EVAL
    batches = list(evaluation_batches(source, 5))
    assert [len(batch[1]) for batch in batches] == [5, 5, 5, 5, 3]
    assert table_files.examples(batches) == case.evaluation
    shards = [list(evaluation_batches(source, 5, (tf.constant(index, tf.int64), 2))) for index in range(2)]
    assert [len(shard) for shard in shards] == [2, 3]
    assert table_files.examples(batch for shard in shards for batch in shard) == case.evaluation


def test_batches_are_as_the_features_say(case):
    source = case.source
    features, label, *_ = source.evaluation(batch_size=5).element_spec
    assert set(features) == set(source.features)
    for name, feature in source.features.items():
        assert features[name].dtype == feature.dtype, name
        assert tuple(features[name].shape)[1:] == tuple(feature.shape), name
        assert isinstance(features[name], tf.RaggedTensorSpec) == feature.is_list, name
    assert label.dtype == (tf.int64 if source.task == "multiclass" else tf.float32)
    assert label.shape.rank == (1 if source.task == "multiclass" else 2)


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "tsv", "parquet", "arrow", "tfrecord", "tfrecord.gz"])
def test_files_of_each_format_have_the_rows_that_were_written(tmp_path, ending):
    """As they are prepared: from there on, all formats are one."""
    case = of_files(ending)(tmp_path)
    for part, expected in (
        (case.source.training_rows, case.train),
        (case.source.evaluation_rows, case.evaluation),
    ):
        with ipc.open_file(part.path) as file:
            rows = file.read_all().to_pylist()
        listed = [{name: each if isinstance(each, list) else [each] for name, each in row.items()} for row in rows]
        assert listed == expected


def test_prepared_rows_of_several_record_batches_are_read_in_any_order(tmp_path, monkeypatch):
    monkeypatch.setattr("psrun.tables.prepared_rows.BATCH_ROWS", 7)
    case = of_files("parquet")(tmp_path)
    rows = table_files.examples(case.source.train(batch_size=BATCH, seed=seed(1)).take(NUM_TRAIN // BATCH))
    assert in_any_order(rows) == in_any_order(case.train)


# -- arrays


def rows_of(lists) -> list[list]:
    return [part.tolist() for part in np.split(lists.values, lists.splits[1:-1])]


def test_lists_of_several_columns_are_gathered_together():
    rng, size = np.random.default_rng(2), 6
    lengths = [rng.integers(3, size=size) for _ in range(4)]
    columns = {
        "a": of_lengths(rng.integers(9, size=lengths[0].sum()), lengths[0]),
        "b": of_lengths(rng.integers(9, size=lengths[1].sum()), lengths[1]),
        "x": of_lengths(rng.random(lengths[2].sum()).astype(np.float32), lengths[2]),
        "word": of_lengths(rng.choice(np.array(["ant", "bee"], object), size=lengths[3].sum()), lengths[3]),
        "none": of_lengths(np.zeros(0, object), np.zeros(size)),
        "pairs": of_lengths(np.arange(2 * size), np.full(size, 2)),
        "words": of_lengths(np.array(list("abcdef"), object), np.ones(size, np.int64)),
    }
    rows = np.array([5, 0, 0, 3])
    gather = gathering((columns, np.arange(size)))
    for gathered, label in (gather(tf.constant(rows)), tf.function(gather)(tf.constant(rows))):
        np.testing.assert_array_equal(label, rows)
        for name, column in columns.items():
            expected = [rows_of(column)[row] for row in rows]
            values = [[word.encode() for word in each] for each in expected] if name.startswith("word") else expected
            assert gathered[name].to_list() == values
            assert gathered[name].shape == (4, None)
            assert gathered[name].row_splits.dtype == tf.int64
    of_any_number = tf.function(gather, input_signature=[tf.TensorSpec([None], tf.int64)])
    assert of_any_number(tf.constant(rows))[0]["pairs"].to_list() == [[10, 11], [0, 1], [0, 1], [6, 7]]


def test_batches_are_converted_where_they_are_read_unless_a_source_changes_them():
    class Doubled(ArraySource):
        def read(self, batches: tf.data.Dataset) -> tf.data.Dataset:
            return super().read(batches).map(lambda number, numbers, batch: (number, numbers, (batch[0], 2 * batch[1])))

    class Later(ArraySource):
        def batches(self, *arguments: object) -> tf.data.Dataset:
            return (
                super().batches(*arguments).map(lambda number, numbers, batch: (number, numbers, (batch[0], -batch[1])))
            )

    examples = {"x": np.arange(8.0, dtype=np.float32)[:, np.newaxis]}, np.arange(1, 9)
    labels = {}
    for kind in (ArraySource, Doubled, Later):
        source = kind(features={"x": Feature((1,), tf.float32)}, task="multiclass", num_classes=9, train=examples,
                      evaluation=examples)  # fmt: skip
        order = source.order(4)
        dataset = converted_batches(
            source, endless(3), order, seed(1), lambda number, numbers, batch: (number, batch[1])
        )
        (number, label), (next_number, _) = dataset.take(2)
        assert (number, next_number) == (3, 4)
        labels[kind] = label.numpy()
        _, trained = next(iter(source.train(batch_size=4, seed=seed(1)).skip(3)))
        np.testing.assert_array_equal(trained, label)
        np.testing.assert_array_equal(
            abs(label) // (2 if kind is Doubled else 1), order.numbers(number, seed(1)).numpy() + 1
        )
    np.testing.assert_array_equal(labels[Doubled], 2 * labels[ArraySource])
    np.testing.assert_array_equal(labels[Later], -labels[ArraySource])


# -- what is special about the sources of psrun


def test_hero_features_are_labelled_by_the_avenger():
    source = HeroFeatures(num_train_examples=300, num_eval_examples=50, seed=4)
    for features, label in source.train(batch_size=64, seed=seed(1)).take(6).as_numpy_iterator():
        assert features["features"].shape == (64, 3)
        assert set(features["features"].ravel()) <= {name.encode() for name in VOCABULARY}
        np.testing.assert_array_equal(label[:, 0], (features["features"] == b"avenger").any(axis=1))


@pytest.fixture
def idx_folder(tmp_path):
    images = np.arange(5 * 28 * 28, dtype=np.uint8).reshape(5, 28, 28)
    labels = np.arange(5, dtype=np.uint8)
    for name, array in (("train-images-idx3-ubyte", images), ("train-labels-idx1-ubyte", labels),
                        ("t10k-images-idx3-ubyte", images), ("t10k-labels-idx1-ubyte", labels)):  # fmt: skip
        header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(header + array.tobytes()))
    return tmp_path


def test_fashion_mnist_reads_idx_and_npz_alike(idx_folder, tmp_path_factory):
    ((features, label),) = FashionMnist(path=str(idx_folder)).evaluation(batch_size=5).as_numpy_iterator()
    assert features["image"].shape == (5, 28, 28, 1)
    assert features["image"].max() == 1.0
    path = tmp_path_factory.mktemp("npz") / "f.npz"
    images = (features["image"][..., 0] * 255).astype(np.uint8)
    np.savez(path, x_train=images, y_train=label, x_test=images, y_test=label)
    ((again, _),) = FashionMnist(path=str(path)).evaluation(batch_size=5).as_numpy_iterator()
    np.testing.assert_array_equal(again["image"], features["image"])


def test_flights_are_split_by_time_and_none_is_lost():
    source, known = Flights(eval_fraction=0.2), load()[0]
    assert source.facts == {"num_rows": 336776, "num_rows_left_out": 9430}
    assert source.num_train_examples + source.num_eval_examples == 336776 - 9430
    train, evaluation = split(known, 0.2)
    last, first = (part[["month", "day", "hour", "minute"]].to_records(index=False)[i] for part, i in
                   ((train, -1), (evaluation, 0)))  # fmt: skip
    assert tuple(last) <= tuple(first)
    ((features, label),) = source.evaluation(batch_size=source.num_eval_examples).as_numpy_iterator()
    assert label.sum() == late(evaluation).sum()
    assert [value.decode() for value in features["tailnum"][:5, 0]] == evaluation["tailnum"].tolist()[:5]
    np.testing.assert_array_equal(features["flight"][:, 0], evaluation["flight"])
    ((features, _),) = source.train(batch_size=200000, seed=seed(1)).take(1).as_numpy_iterator()
    distance = source.features["distance"]
    assert abs(features["distance"].mean() - distance.mean) < 0.05 * distance.deviation


def test_flights_to_choose_options_by_leave_the_test_part_alone():
    whole, choosing = Flights(eval_fraction=0.2), Flights(eval_fraction=0.2, evaluate_on="validation")
    assert choosing.num_train_examples + choosing.num_eval_examples == whole.num_train_examples


# -- how workers that do every step together share the data; see tests/core/system/test_synchronous.py

TOGETHER = ("cluster=multi_worker_mirrored", "trainer=fit", "model=dense")


def policy(source: DataSource, asked: str | None, run: RunConfig | None = None) -> str | None:
    run = run or run_config(*TOGETHER)
    run = replace(run, data=replace(run.data, sharding=asked))
    return loading.sharding_policy(run, lambda: source.train(batch_size=20, seed=seed(1)))


def test_what_is_not_chosen_is_as_tensorflow_does_it(tmp_path, capfd):
    files, numbers = InFiles(folder=str(tmp_path)), Numbered()
    assert [policy(files, asked) for asked in (None, "auto", "file", "data", "off")] == [
        "file", "file", "file", "data", "off"
    ]  # fmt: skip
    assert [policy(numbers, asked) for asked in (None, "auto", "data", "off")] == ["data", "data", "data", "off"]
    chosen = InFiles(folder=str(tmp_path), policy="DATA")
    assert [policy(chosen, asked) for asked in (None, "auto", "off")] == ["data", "file", "off"]
    assert policy(files, None, run_config("cluster=local", "model=dense")) is None
    assert "unshardable" not in capfd.readouterr().err  # TensorFlow's error is expected where psrun asks


def test_tensorflows_message_about_too_few_files_is_understood(tmp_path):
    """The message is the only sign of it."""
    dataset = loading.sharded(InFiles(folder=str(tmp_path), num_files=2).train(batch_size=20, seed=seed(1)), "file")
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        next(iter(distribute._AutoShardDataset(dataset, 3, 0)))
    problem = loading.too_few_files(str(raised.value))
    assert problem is not None
    assert "fewer files than the 3 workers" in problem.message
    assert loading.too_few_files("something else") is None
