"""The preprocessing of tables: the values of Keras' layers, feature by feature, in few operations for many features."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from psrun.data.source import Feature
from psrun.models.model import IntegerHashing, SideBySide, inputs, prepared

pytestmark = pytest.mark.tensorflow

WORDS = np.array(["ulm", "bonn", "köln", "kiel", "[UNK]", ""])


def feature_by_feature(source: Any, *, keep_missing: bool) -> tuple[tf_keras.Model, dict[str, int]]:
    """The oracle: a set of Keras' layers for each feature."""
    raw = inputs(source.features)
    outputs = dict(raw)
    num_ids = {}
    for name, feature in source.features.items():
        if feature.vocabulary is not None:
            kind = tf_keras.layers.StringLookup if feature.dtype == tf.string else tf_keras.layers.IntegerLookup
            known = feature.vocabulary
            lookup = kind(vocabulary=str(known) if isinstance(known, Path) else list(known))
            outputs[name] = lookup(raw[name])
            num_ids[name] = lookup.vocabulary_size()
        elif feature.num_buckets is not None:
            kind = IntegerHashing if feature.dtype.is_integer else tf_keras.layers.Hashing
            outputs[name] = kind(feature.num_buckets)(raw[name])
            num_ids[name] = feature.num_buckets
        elif feature.logarithm:
            outputs[name] = tf.math.log1p(tf.nn.relu(raw[name]))
        if (feature.mean, feature.deviation) != (0.0, 1.0):
            scaling = tf_keras.layers.Rescaling(1 / feature.deviation, -feature.mean / feature.deviation)
            outputs[name] = scaling(outputs[name])
        if feature.nullable and not keep_missing:
            outputs[name] = tf.where(tf.math.is_nan(outputs[name]), 0.0, outputs[name])
    return tf_keras.Model(raw, outputs), num_ids


def mixed(folder: Path) -> dict[str, Feature]:
    """Features of all kinds, several of most."""
    words = folder / "words.txt"
    words.write_text("ulm\nbonn\nkiel\n", encoding="utf-8")
    numbers = folder / "numbers.txt"
    numbers.write_text("5\n7\n", encoding="utf-8")
    return {
        "plain": Feature((1,), tf.float32),
        "age": Feature((1,), tf.float32, mean=40.3, deviation=10.7),
        "city": Feature((1,), tf.string, ("ulm", "bonn", "kiel")),
        "fare": Feature((1,), tf.float32, mean=-1.1, deviation=0.3, nullable=True),
        "count": Feature((1,), tf.float32, logarithm=True, mean=0.5, deviation=2.0),
        "clicks": Feature((3,), tf.float32, logarithm=True, mean=0.2, nullable=True),
        "logarithm": Feature((1,), tf.float32, logarithm=True),
        "scalar": Feature((), tf.float32, mean=1.0),
        "matrix": Feature((2, 3), tf.float32, deviation=4.0),
        "any_width": Feature((None,), tf.float32, mean=1.0, deviation=2.0),
        "missing": Feature((1,), tf.float32, nullable=True),
        "double": Feature((1,), tf.float64, mean=2.0, deviation=3.0),
        "integer": Feature((1,), tf.int64, mean=2.0, deviation=3.0),
        "weights": Feature((None,), tf.float32, mean=1.0, deviation=2.0, max_values=3),
        "towns": Feature((2,), tf.string, ("kiel", "köln", "[UNK]")),
        "outside_first": Feature((), tf.string, ("[UNK]", "kiel", "köln")),
        "visited": Feature((None,), tf.string, ("bonn", "köln"), max_values=4),
        "in_file": Feature((1,), tf.string, words),
        "in_the_same_file": Feature((2,), tf.string, words),
        "year": Feature((1,), tf.int64, (3, 5, 7)),
        "small": Feature((1,), tf.int32, (-1, 0, 1)),
        "negative": Feature((1,), tf.int64, (7, -1)),
        "numbers_in_file": Feature((1,), tf.int64, numbers),
        "years": Feature((None,), tf.int64, (5, 7), max_values=3),
        "hashed": Feature((1,), tf.string, num_buckets=10),
        "hashed_alike": Feature((1,), tf.string, num_buckets=10),
        "other_buckets": Feature((1,), tf.string, num_buckets=7),
        "hashed_integer": Feature((1,), tf.int64, num_buckets=5),
        "hashed_small": Feature((2,), tf.int32, num_buckets=5),
        "hashed_integers": Feature((None,), tf.int64, num_buckets=5, max_values=4),
        "hashed_list": Feature((None,), tf.string, num_buckets=7, max_values=3),
    }


def values(feature: Feature, num_rows: int, rng: np.random.Generator) -> Any:
    def drawn(shape: tuple[int, ...]) -> np.ndarray:
        if feature.dtype == tf.string:
            return rng.choice(WORDS, shape)
        if feature.dtype.is_integer:
            return rng.integers(-2, 9, shape).astype(feature.dtype.as_numpy_dtype)
        numbers = np.exp(3 * rng.normal(size=shape)) * rng.choice([-1, 1, 1], shape)
        if feature.nullable:
            numbers[rng.random(shape) < 0.2] = np.nan
        return numbers.astype(feature.dtype.as_numpy_dtype)

    if feature.is_list:
        lengths = rng.integers(0, 4, num_rows)
        return tf.RaggedTensor.from_row_lengths(drawn((int(lengths.sum()),)), lengths)
    return tf.constant(drawn((num_rows, *(2 if size is None else size for size in feature.shape))))


@pytest.mark.parametrize("keep_missing", [False, True])
def test_values_are_bit_by_bit_those_of_layers_for_each_feature(tmp_path: Path, keep_missing: bool) -> None:
    source = SimpleNamespace(features=mixed(tmp_path))
    expected, num_ids = feature_by_feature(source, keep_missing=keep_missing)
    preparation, found = prepared(source, keep_missing=keep_missing)
    assert preparation is not None
    assert list(found.items()) == list(num_ids.items())
    traced = tf.function(preparation)
    rng = np.random.default_rng(0)
    for num_rows in (1, 3, 112, 127, 128):
        batch = {name: values(feature, num_rows, rng) for name, feature in source.features.items()}
        one, other = expected(batch), traced(batch)
        assert list(one) == list(other)
        for name in one:
            assert one[name].dtype == other[name].dtype, name
            for left, right in zip(_parts(one[name]), _parts(other[name]), strict=True):
                assert left.shape == right.shape, name
                # TensorFlow takes logarithms of 16 values at once, and of the rest of a tensor by another function.
                if source.features[name].logarithm and num_rows % 16:
                    np.testing.assert_allclose(left, right, rtol=1e-6, atol=1e-6, err_msg=name)
                else:
                    assert left.tobytes() == right.tobytes(), name


def _parts(tensor: Any) -> list[np.ndarray]:
    if isinstance(tensor, tf.RaggedTensor):
        return [tensor.flat_values.numpy(), tensor.row_splits.numpy()]
    return [tensor.numpy()]


def test_more_columns_of_a_kind_add_no_operation() -> None:
    few, many = operations(columns(3)), operations(columns(30))
    assert few == many
    assert few["LookupTableFindV2"] == 2  # the number of the word, and the id of this number in the column
    assert few["StringToHashBucketFast"] == few["Log1p"] == 1


def columns(number: int) -> dict[str, Feature]:
    features = {}
    for index in range(number):
        features |= {
            f"word_{index}": Feature((1,), tf.string, ("ulm", f"town {index}")),
            f"hashed_{index}": Feature((1,), tf.string, num_buckets=9),
            f"number_{index}": Feature((1,), tf.float32, mean=float(index), nullable=True),
            f"count_{index}": Feature((1,), tf.float32, logarithm=True),
        }
    return features


def operations(features: dict[str, Feature]) -> Counter[str]:
    """The operations of the traced preprocessing by type, without the inputs and outputs of the function."""
    preparation, _ = prepared(SimpleNamespace(features=features))
    batch = {name: tf.TensorSpec([None, 1], feature.dtype) for name, feature in features.items()}
    graph = tf.function(preparation).get_concrete_function(batch).graph
    return Counter(each.type for each in graph.get_operations() if each.type not in ("Placeholder", "Identity"))


def test_an_id_is_of_the_vocabulary_of_the_column() -> None:
    features = {
        "city": Feature((1,), tf.string, ("ulm", "bonn")),
        "town": Feature((1,), tf.string, ("bonn", "kiel")),
    }
    preparation, num_ids = prepared(SimpleNamespace(features=features))
    assert preparation is not None
    words = tf.constant([["ulm"], ["bonn"], ["kiel"], ["?"]])
    ids = preparation({"city": words, "town": words})
    assert ids["city"].numpy()[:, 0].tolist() == [1, 2, 0, 0]
    assert ids["town"].numpy()[:, 0].tolist() == [0, 1, 2, 0]
    assert num_ids == {"city": 3, "town": 3}


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        ((), "a vocabulary is empty"),
        (("[UNK]",), "a vocabulary is empty"),
        (("ulm", "bonn", "ulm"), "has the value 'ulm' twice"),
    ],
)
def test_wrong_vocabularies_are_refused(vocabulary: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepared(SimpleNamespace(features={"city": Feature((1,), tf.string, vocabulary)}))


def test_nothing_is_prepared_where_all_features_stay_as_they_are() -> None:
    assert prepared(SimpleNamespace(features={"plain": Feature((1,), tf.float32)})) == (None, {})


def test_tensors_of_any_shape_side_by_side() -> None:
    made = SideBySide()([tf.constant([1.0, 2.0]), tf.constant([[3.0], [4.0]]), tf.reshape(tf.range(8.0), [2, 2, 2])])
    assert made.numpy().tolist() == [[1, 3, 0, 1, 2, 3], [2, 4, 4, 5, 6, 7]]
