"""Sources of examples: shapes, order, what is refused, and that nothing is lost between file and batch."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
import tensorflow as tf

from psrun.data.fashion_mnist import FashionMnist
from psrun.data.features import VOCABULARY, HeroFeatures
from psrun.data.flights import Flights, late, load, split
from psrun.errors import ConfigError

pytestmark = pytest.mark.tensorflow


def batches(dataset: tf.data.Dataset, count: int) -> list:
    return list(dataset.take(count).as_numpy_iterator())


def test_hero_features_are_labelled_by_the_avenger():
    source = HeroFeatures(num_train_examples=300, num_eval_examples=50, seed=4)
    for features, label in batches(source.train(batch_size=64, seed=tf.constant(1, tf.int64)), 6):
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
    ((features, label),) = batches(FashionMnist(path=str(idx_folder)).evaluation(batch_size=5), 1)
    assert features["image"].shape == (5, 28, 28, 1)
    assert features["image"].max() == 1.0
    path = tmp_path_factory.mktemp("npz") / "f.npz"
    images = (features["image"][..., 0] * 255).astype(np.uint8)
    np.savez(path, x_train=images, y_train=label, x_test=images, y_test=label)
    ((again, _),) = batches(FashionMnist(path=str(path)).evaluation(batch_size=5), 1)
    np.testing.assert_array_equal(again["image"], features["image"])


def test_flights_are_split_by_time_and_none_is_lost():
    source, known = Flights(eval_fraction=0.2), load()[0]
    assert source.facts == {"num_rows": 336776, "num_rows_left_out": 9430}
    assert source.num_train_examples + source.num_eval_examples == 336776 - 9430
    train, evaluation = split(known, 0.2)
    last, first = (part[["month", "day", "hour", "minute"]].to_records(index=False)[i] for part, i in
                   ((train, -1), (evaluation, 0)))  # fmt: skip
    assert tuple(last) <= tuple(first)
    (batch,) = batches(source.evaluation(batch_size=source.num_eval_examples), 1)
    features, label = batch
    assert label.sum() == late(evaluation).sum()
    assert [value.decode() for value in features["tailnum"][:5, 0]] == evaluation["tailnum"].tolist()[:5]
    np.testing.assert_array_equal(features["flight"][:, 0], evaluation["flight"])
    ((features, _),) = batches(source.train(batch_size=200000, seed=tf.constant(1, tf.int64)), 1)
    distance = source.features["distance"]
    assert abs(features["distance"].mean() - distance.mean) < 0.05 * distance.deviation


def test_flights_to_choose_options_by_leave_the_test_part_alone():
    whole, choosing = Flights(eval_fraction=0.2), Flights(eval_fraction=0.2, evaluate_on="validation")
    assert choosing.num_train_examples + choosing.num_eval_examples == whole.num_train_examples
    with pytest.raises(ConfigError, match="evaluate_on"):
        Flights(evaluate_on="tset")
