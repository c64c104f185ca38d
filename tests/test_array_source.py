"""Sources with arrays in memory: batches have the rows of the arrays."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow


def test_columns_of_any_type_and_width_are_those_of_the_arrays():
    import tensorflow as tf

    from psrun.data.lists import of_lengths
    from psrun.data.source import ArraySource, Feature

    rng, size = np.random.default_rng(1), 7
    lengths = np.arange(size) % 3
    arrays = {
        "a": rng.integers(9, size=(size, 1)),
        "pair": rng.integers(9, size=(size, 2)),
        "small": rng.integers(9, size=(size, 1)).astype(np.int32),
        "x": rng.normal(size=(size, 1)).astype(np.float32),
        "y": rng.normal(size=(size, 3)).astype(np.float32),
        "image": rng.normal(size=(size, 2, 2)).astype(np.float32),
        "word": np.array([[b"ant"], [b"bee"], [b"ant"], [b""], [b"cat"], [b"bee"], [b"dog"]]),
        "words": np.array([[b"p", b"q"]] * 6 + [[b"r", b"p"]]),
    }
    history = of_lengths(rng.integers(9, size=lengths.sum()), lengths)
    label, weight = rng.integers(3, size=size), rng.random(size).astype(np.float32)
    features = {
        name: Feature(array.shape[1:], tf.string if array.dtype.kind == "S" else tf.as_dtype(array.dtype))
        for name, array in arrays.items()
    }
    features["history"] = Feature((None,), tf.int64, max_values=3)
    examples = {**arrays, "history": history}, label, weight
    source = ArraySource(features=features, task="multiclass", num_classes=3, train=examples, evaluation=examples)
    (batch, of_labels, of_weights) = next(iter(source.evaluation(batch_size=size)))
    for name, array in arrays.items():
        assert batch[name].dtype == features[name].dtype
        np.testing.assert_array_equal(batch[name].numpy(), array.astype(object) if array.dtype.kind == "S" else array)
    assert batch["history"].to_list() == history.objects().tolist()
    np.testing.assert_array_equal(of_labels, label)
    np.testing.assert_array_equal(of_weights, weight)
    numbers = tf.data.Dataset.range(2)
    batches = list(source.batches(numbers, source.order(3), tf.constant(1, tf.int64)))
    for _, rows, (given, of_rows, _) in batches:
        assert given["y"].shape == (3, 3)
        np.testing.assert_array_equal(given["pair"].numpy(), arrays["pair"][rows.numpy()])
        np.testing.assert_array_equal(given["word"].numpy(), arrays["word"].astype(object)[rows.numpy()])
        np.testing.assert_array_equal(of_rows.numpy(), label[rows.numpy()])
