"""Sources with arrays in memory: batches have the rows of the arrays."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from psrun.data.lists import of_lengths
from psrun.data.source import ArraySource, Feature, converted_batches, endless, gathering

pytestmark = pytest.mark.tensorflow


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
    seed, labels = tf.constant(1, tf.int64), {}
    for kind in (ArraySource, Doubled, Later):
        source = kind(features={"x": Feature((1,), tf.float32)}, task="multiclass", num_classes=9, train=examples,
                      evaluation=examples)  # fmt: skip
        order = source.order(4)
        dataset = converted_batches(source, endless(3), order, seed, lambda number, numbers, batch: (number, batch[1]))
        (number, label), (next_number, _) = dataset.take(2)
        assert (number, next_number) == (3, 4)
        labels[kind] = label.numpy()
        _, trained = next(iter(source.train(batch_size=4, seed=seed).skip(3)))
        np.testing.assert_array_equal(trained, label)
        np.testing.assert_array_equal(
            abs(label) // (2 if kind is Doubled else 1), order.numbers(number, seed).numpy() + 1
        )
    np.testing.assert_array_equal(labels[Doubled], 2 * labels[ArraySource])
    np.testing.assert_array_equal(labels[Later], -labels[ArraySource])
